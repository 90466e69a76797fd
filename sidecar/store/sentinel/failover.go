package sentinel

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// SENTINEL FAILOVER promotes a replica without asking the master, which goes on granting locks that the promoted
// one does not have. But the Sentinel that leads publishes each step before it takes it:
//
//	+failover-state-select-slave          it chooses a replica
//	+failover-state-send-slaveof-noone    a tick later; the next one has the replica leave
//	+promoted-slave                       it has left, and the Sentinel names it as the master
//	+switch-master                        the other replicas follow the new master
//
// A tick is 50 to 100 ms. From the first message on, nothing that the old master executes is done: it is NotSynced,
// as with too few replicas (see durability). So clients wait or are refused, and no deadline is extended, until the new
// master is asked:
//
//	          announced                           the master moved
//	serving ─────────────► withholding ─────────────────────────────────► another connection
//	   ▲                      │
//	   └──────────────────────┘
//	     it was aborted: the Sentinel leads no failover, or does not answer any more
//
// What is left: a host that the leading Sentinel cannot reach in time goes on as if nothing was announced.

// SwitchMaster is the channel that all Sentinels publish the new address of a master on.
const SwitchMaster = "+switch-master"

// FailoverChannels are those that a Sentinel publishes the steps of a failover on.
var FailoverChannels = []string{
	"+failover-state-select-slave", "+failover-state-send-slaveof-noone", "+promoted-slave",
	"-failover-abort-no-good-slave", "-failover-abort-slave-timeout", "-failover-abort-master-timeout",
}

// failoverSilence is how long an announced failover counts while its Sentinel does not answer. Others name the
// new master some seconds after its promotion.
const failoverSilence = int64(10 * time.Second)

// aboutMaster returns the address of the master that a message is about, and that of the replica, if it is about one;
// "": it is no message about the master of that name.
func aboutMaster(name, text string) (master, replica string) {
	words := strings.Fields(text) // master NAME HOST PORT, or slave NAME HOST PORT @ MASTER HOST PORT
	if len(words) == 8 && words[4] == "@" && IsPort(words[3]) {
		replica = wire.JoinPort(words[2], words[3])
		words = append([]string{"master"}, words[5:]...)
	}
	if len(words) != 4 || words[0] != "master" || words[1] != name || !IsPort(words[3]) {
		return "", ""
	}
	return wire.JoinPort(words[2], words[3]), replica
}

// Moved returns where the master of that name was, and is, by a message; from "": it is not about that one;
// to "": it does not say.
func Moved(name, channel, text string) (from, to string) {
	if channel != SwitchMaster {
		from, to = aboutMaster(name, text)
		if channel != "+promoted-slave" {
			to = ""
		}
		return from, to
	}
	words := strings.Fields(text) // NAME HOST PORT HOST PORT
	if len(words) != 5 || words[0] != name || !IsPort(words[4]) {
		return "", ""
	}
	return wire.JoinPort(words[1], words[2]), wire.JoinPort(words[3], words[4])
}

// Announced takes a message that a failover is about to promote a replica. False: it is another one.
func (g *Group) Announced(now int64, m *Member, channel, text string) bool {
	if channel != FailoverChannels[0] && channel != FailoverChannels[1] {
		return false
	}
	if address, _ := aboutMaster(g.Master, text); address != "" && g.Has(m) {
		g.announce(now, m, address)
	}
	return true
}

// announce notes that a Sentinel leads a failover.
func (g *Group) announce(now int64, m *Member, address string) {
	f := g.failovers[m]
	if f != nil && f.address == address {
		f.heardAt = now
		return
	}
	g.failovers[m] = &failover{address: address, since: now, heardAt: now}
	g.note(Note{Kind: Failover, Address: address, Text: fmt.Sprintf("the Sentinel at %s fails over the master at %s, which may grant nothing more; the next one is asked as soon as it is promoted", m.Address, address)})
}

// review notes which Sentinels lead a failover by what they answered in a round.
func (g *Group) review(now, began int64, views []View) {
	had := len(g.failovers)
	for _, v := range views {
		f := g.failovers[v.Member]
		switch {
		case v.Lead == LeadsFrom && v.Master == g.last && g.Has(v.Member):
			g.announce(now, v.Member, v.Master) // the message was lost
		case f == nil:
		case v.Lead != LeadsNone:
			f.heardAt = now // it names the promoted replica
		case f.since < began && (v.Master != "" || v.Err == ErrStranger):
			delete(g.failovers, v.Member)
		}
	}
	for m, f := range g.failovers {
		if now-f.heardAt > failoverSilence {
			delete(g.failovers, m)
		}
	}
	if had > 0 && len(g.failovers) == 0 {
		g.note(Note{Kind: Failover})
	}
}

// IsFailingOver reports whether a Sentinel leads a failover.
func (g *Group) IsFailingOver() bool { return len(g.failovers) > 0 }

// IsPort reports whether a text is the number of a port.
func IsPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

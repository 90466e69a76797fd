package store

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
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

// failoverChannels are those that a Sentinel publishes the steps of a failover on.
var failoverChannels = []string{
	"+failover-state-select-slave", "+failover-state-send-slaveof-noone", "+promoted-slave",
	"-failover-abort-no-good-slave", "-failover-abort-slave-timeout", "-failover-abort-master-timeout",
}

const (
	// failoverInterval is the time between two rounds of questions while a failover is announced.
	failoverInterval = time.Second

	// failoverSilence is how long an announced failover counts while its Sentinel does not answer. Others name the
	// new master some seconds after its promotion.
	failoverSilence = 10 * time.Second
)

// lead is whether a Sentinel leads a failover, as it answers.
type lead uint8

const (
	leadsNone lead = iota
	leadsFrom      // it does, and still names the master that is replaced
	leadsTo        // it names the replica that it has promoted
)

// failover is one that a Sentinel leads.
type failover struct {
	address string    // of the master that is replaced
	since   time.Time // when it was announced
	heardAt time.Time // when the Sentinel last said so
}

// failoverMaster returns the address of the master that a message is about, and that of the replica, if it is about one;
// "": it is no message about the master of that name.
func failoverMaster(name, text string) (master, replica string) {
	words := strings.Fields(text) // master NAME HOST PORT, or slave NAME HOST PORT @ MASTER HOST PORT
	if len(words) == 8 && words[4] == "@" && isPort(words[3]) {
		replica = net.JoinHostPort(words[2], words[3])
		words = append([]string{"master"}, words[5:]...)
	}
	if len(words) != 4 || words[0] != "master" || words[1] != name || !isPort(words[3]) {
		return "", ""
	}
	return net.JoinHostPort(words[2], words[3]), replica
}

// movedMaster returns where the master of that name was, and is, by a message; from "": it is not about that one;
// to "": it does not say.
func movedMaster(name, channel, text string) (from, to string) {
	if channel != switchMaster {
		from, to = failoverMaster(name, text)
		if channel != "+promoted-slave" {
			to = ""
		}
		return from, to
	}
	words := strings.Fields(text) // NAME HOST PORT HOST PORT
	if len(words) != 5 || words[0] != name || !isPort(words[4]) {
		return "", ""
	}
	return net.JoinHostPort(words[1], words[2]), net.JoinHostPort(words[3], words[4])
}

// onAnnounced takes a message that a failover is about to promote a replica. False: it is another one.
func (s *sentinels) onAnnounced(m *sentinelMember, channel, text string) bool {
	if channel != failoverChannels[0] && channel != failoverChannels[1] {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if address, _ := failoverMaster(s.group.Master, text); address != "" && s.members[m.address] == m {
		s.announce(m, address)
	}
	return true
}

// announce notes that a Sentinel leads a failover. The caller holds mu, so that changes are reported in order.
func (s *sentinels) announce(m *sentinelMember, address string) {
	now := time.Now()
	f := s.failovers[m]
	if f != nil && f.address == address {
		f.heardAt = now
		return
	}
	s.failovers[m] = &failover{address: address, since: now, heardAt: now}
	s.reportFailover(address, fmt.Sprintf("the Sentinel at %s fails over the master at %s, which may grant nothing more; the next one is asked as soon as it is promoted", m.address, address))
	s.wake()
}

// review notes which Sentinels lead a failover by what they answered in a round.
func (s *sentinels) review(began time.Time, views []sentinelView) {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := len(s.failovers)
	for _, v := range views {
		f := s.failovers[v.member]
		switch {
		case v.lead == leadsFrom && v.master == s.last && s.members[v.member.address] == v.member:
			s.announce(v.member, v.master) // the message was lost
		case f == nil:
		case v.lead != leadsNone:
			f.heardAt = time.Now() // it names the promoted replica
		case f.since.Before(began) && (v.master != "" || v.err == errStranger):
			delete(s.failovers, v.member)
		}
	}
	for m, f := range s.failovers {
		if time.Since(f.heardAt) > failoverSilence {
			delete(s.failovers, m)
		}
	}
	if had > 0 && len(s.failovers) == 0 {
		s.reportFailover("", "")
	}
}

// reportFailover calls onFailover. The caller holds mu.
func (s *sentinels) reportFailover(address, why string) {
	if s.onFailover != nil {
		s.onFailover(address, why)
	}
}

func (s *sentinels) isFailingOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.failovers) > 0
}

// wake has watch look at the Sentinels.
func (s *sentinels) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// isLed reports whether a Sentinel that names an address leads a failover: it promoted that server, and the
// others are about to learn it.
func isLed(views []sentinelView, address string) bool {
	return slices.ContainsFunc(views, func(v sentinelView) bool { return v.lead == leadsTo && v.master == address })
}

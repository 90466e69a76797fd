package pipeline

import (
	"cmp"
	"math"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A probe takes and drops a lock of the sidecars' own by the script that acquires and releases
// execute: so it needs every command, key and byte of memory that they need. Script and lock are
// the same on all hosts. The lock is free again when the script ends; what stays is its token
// counter, which expires.
//
// A Redis that executes the probe may refuse an acquire for a reason of its lock only. A Redis
// that refuses the probe is degraded:
//
//	         refused for good, or twice
//	serving ───────────────────────────► degraded
//	   ▲                                     │
//	   └─────────────────────────────────────┘
//	                 executed
//
// A probe without a reply decides nothing: the liveness of the connection does.
//
// Before it, the commands of all scripts are tried: renewals, and an acquire that meets another host's
// lock, need more than the probe. A Redis that does not permit one of them is degraded at once, by its name.

// beginProbes prepares the probes of a connection. The first one is sent at once.
func (m *Machine) beginProbes() {
	b := &m.probe
	b.interval = int64(m.cfg.ProbeInterval)
	b.encoder = m.encoder
	b.encoder.Expiry = 2 * time.Duration(b.interval).Milliseconds()
}

// checkProbe makes a probe if one is due, and returns when to check again, at the latest.
func (m *Machine) checkProbe(now int64) (next int64) {
	b := &m.probe
	switch {
	case b.interval == 0, b.inFlight, m.isFinishing, !m.accepts(): // a reply, or the end of the connection, changes that
		return math.MaxInt64
	case now < b.next:
		return b.next
	case m.durability.inFlight: // the answer to the WAIT looks again
		return math.MaxInt64
	}
	if m.probeLock == "" {
		b.next = now + min(int64(probeDegraded), b.interval)
		return b.next
	}
	m.askPermissions(now)
	b.inFlight, b.sentAt = true, now
	m.register(now, call{kind: probing})
	lease := uint32(probeLease.Milliseconds())
	ops := []redisop.Op{
		{Kind: redisop.Take, Name: m.probeLock, HoldID: 1, Count: 1, LeaseMS: lease, Asked: redisop.Asked{Reserve: 1}},
		{Kind: redisop.Drop, Name: m.probeLock, HoldID: 1},
	}
	begin := len(m.out)
	m.out = b.encoder.AppendRun(m.out, wire.Run{Script: wire.AcquireRelease}, now, m.ID.Above(now), ops)
	m.made += int64(len(m.out) - begin)
	m.durability.owed = m.cfg.Replicas > 0 // a host that locks nothing finds a lost replica, and its return
	m.queueWait(now)
	if b.passed {
		m.ping(now) // a busy connection is asked for its role, too
		m.askEviction(now)
	}
	return math.MaxInt64
}

// askPermissions asks which commands this user may execute: the first time, also for those that locks do without.
func (m *Machine) askPermissions(now int64) {
	channel, isSharded := "", int64(0)
	if m.probe.sentAt == 0 {
		channel = m.cfg.Keys.Channel(m.probeLock)
	}
	if m.encoder.IsSharded {
		isSharded = 1
	}
	m.register(now, call{kind: permitting})
	begin := len(m.out)
	m.out = wire.AppendCommand(m.out, wire.Run{Script: wire.Permissions, ByText: !m.Loads}, 1, 2)
	m.out = m.cfg.Keys.AppendOurs(m.out, wire.PermissionsPrefix, m.probeLock)
	m.out = wire.AppendString(m.out, channel)
	m.out = wire.AppendNumber(m.out, isSharded)
	m.made += int64(len(m.out) - begin)
}

// onPermissions takes in which commands are refused. The reply to the probe follows, and decides.
func (m *Machine) onPermissions(now int64, answer *wire.Reply) {
	m.onAnswered()
	if wire.Code(answer.Text) == "NOSCRIPT" && !m.isLoading[wire.Permissions] {
		m.load(now, wire.Permissions)
	}
	if answer.Kind != '*' {
		return // the reply to the probe says more
	}
	optional := m.Lacks // of the greeting
	m.Lacks = nil
	var needed []string
	text := ""
	for i := 0; i+1 < len(answer.List); i += 2 {
		switch name := answer.List[i].Text; name {
		case "exists", "hlen", "hkeys", "hget", "hdel", "hset", "pttl", "pexpire", "set", "incrby", "del":
			needed = append(needed, "+"+name)
			text = cmp.Or(text, wire.Reason(answer.List[i+1].Text))
		default:
			permission := "+" + name
			if strings.Contains(answer.List[i+1].Text, "channel") { // the command is permitted, and its channel is not
				permission = "&" + strings.ReplaceAll(m.cfg.Keys.ChannelPatterns(), " and ", " &")
			}
			optional = append(optional, permission)
		}
	}
	if m.probe.lacks = ""; len(needed) > 0 {
		m.probe.lacks = m.Server.Lacks(needed, text)
	}
	if len(optional) > 0 {
		m.deliver(Delivery{Kind: Noted, Note: LacksOptional, Names: optional})
	}
}

// onProbe takes in the reply to a probe.
func (m *Machine) onProbe(now int64, answer *wire.Reply) {
	m.onAnswered()
	b := &m.probe
	b.inFlight = false
	text := refusedProbe(answer)
	word := wire.Code(text)
	switch {
	case text == "":
		b.passed, b.takeServed, b.takeRefused = true, false, false
		b.refusals, b.why = 0, ""
	case wire.EndsConnection(word):
		m.drain(m.Server.Answered(redisop.KindLock, wire.ProbeLock, text))
	case word == "NOSCRIPT": // the next operation loads it
	case m.noteRedirect(text), m.cfg.IsNode && (word == "ASK" || word == "TRYAGAIN"): // the slot is on its way to another node
	case wire.DeniesKey(text) && !b.isConclusive(m.cfg.Keys.Prefix):
		b.refusals, b.why = 0, ""
		m.deliver(Delivery{Kind: Noted, Note: KeysDenied, Text: text})
	default:
		b.refusals++
		if b.why != "" || b.refusals > 1 || wire.OutcomeOf(word) == redisop.Refused {
			b.why = m.Server.Degraded(text)
		}
	}
	switch {
	case b.why != "", b.lacks != "", m.durability.why != "":
		b.next = now + min(int64(probeDegraded), b.interval)
	case b.refusals > 0:
		b.next = now + min(int64(probeConfirm), b.interval)
	default:
		b.next = now + b.interval
	}
	m.dueAt(b.next)
	m.report()
}

// isConclusive reports whether a refusal of the probe's keys shows that the keys of other locks
// are refused. All keys have the prefix, if there is one.
func (b *probe) isConclusive(prefix string) bool {
	return prefix != "" || !b.takeServed && (b.passed || b.takeRefused)
}

// noteResult notes the result of a Take, or that a renewal was refused. A result that the last probe does not explain
// brings the next one forward.
func (m *Machine) noteResult(r *redisop.Result) {
	b := &m.probe
	isServed := r.Outcome == redisop.Done || r.Outcome == redisop.HeldByOther
	isRefused := r.Outcome == redisop.Refused || r.Outcome == redisop.Retryable
	switch r.Kind {
	case redisop.Take:
		b.takeServed = b.takeServed || isServed
		b.takeRefused = b.takeRefused || r.Outcome == redisop.Refused
	case redisop.Renew:
		if isServed = false; r.Outcome == redisop.Refused { // a Redis that executes renewals may refuse acquires
			b.takeServed, b.takeRefused = false, true // this user could take the lock, and lost that right
		}
	default:
		return
	}
	if isDegraded := b.why != "" || b.lacks != ""; isDegraded && isServed || !isDegraded && isRefused {
		m.probeBy(b.sentAt + int64(probeConfirm))
	}
}

// refusedProbe returns the error of Redis in the reply to a probe; "": it was executed, or the
// lock is a foreign client's.
func refusedProbe(answer *wire.Reply) string {
	if answer.Kind == '-' {
		return wire.Reason(answer.Text)
	}
	for _, status := range answer.List {
		if wire.IsLaidOut(status, redisop.Take) && status.List[0].Num == int64(wire.CodeRefused) {
			return wire.Reason(status.List[1].Text)
		}
	}
	return ""
}

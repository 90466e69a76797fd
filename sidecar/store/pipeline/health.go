package pipeline

import (
	"cmp"
	"math"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// The end of a connection is noticed at once, because other hosts may reconnect to a Redis that lost the locks before
// this one does. A connection that ends without a packet is found by a ping, while it owes nothing, and was silent for
// so long.
const IdlePing = 5 * time.Second

// ping makes a command that any Redis answers at once: ROLE, because a master that is demoted may keep its clients;
// PING, if this user may not ask for the role.
func (m *Machine) ping(now int64) {
	word := "role"
	if m.NoRole {
		word = "ping"
	}
	m.ask(now, pinging, word)
}

// checkLiveness finds out whether the connection is overdue, at the second check, and has it pinged when it has been
// idle for long. lastByteAt is when Redis last sent anything; hasUnread: some of it was not taken in yet. It is to be
// called again at next, or when a command is sent on an idle connection.
func (m *Machine) checkLiveness(now, lastByteAt int64, hasUnread bool) (next int64, isDead bool) {
	if lastByteAt > m.lastReply {
		m.lastReply = lastByteAt
		if m.liveness == overdue {
			m.liveness = owing
		}
	}
	if m.liveness == idle && now >= m.lastReply+int64(IdlePing) {
		m.ping(now)
	}
	patience := int64(m.cfg.Timeout)
	quiet := now - m.lastReply
	switch {
	case m.liveness == dead:
		return math.MaxInt64, false
	case m.liveness == idle && quiet >= patience:
		return m.lastReply + int64(IdlePing), false
	case m.liveness == idle: // a command may be sent at any time
		return m.lastReply + min(patience, int64(IdlePing)), false
	case quiet < patience:
		return m.lastReply + patience, false
	case m.liveness == owing, hasUnread:
		m.liveness = overdue
		return now + patience/8, false
	}
	return math.MaxInt64, true
}

// onPong takes the answer of ping: any reply shows that Redis is alive. A replica is left.
func (m *Machine) onPong(now int64, answer *wire.Reply) {
	switch {
	case answer.Kind == '-' && wire.OutcomeOf(wire.Code(answer.Text)) == redisop.Refused: // NOPERM, or it is not known
		m.NoRole = true
	case answer.Kind == '*' && len(answer.List) > 0 && IsReplica(answer.List[0].Text):
		m.drain(m.Server.Demoted(""))
	case answer.Kind == '*' && len(answer.List) == 3 && answer.List[2].Kind == '*': // of a master
		m.onReplicas(now, len(answer.List[2].List))
	}
	if m.Replication.Replicas == 0 || m.Replication.IsDenied {
		m.reportRisk()
	}
}

// IsReplica reports whether a role is that of a replica.
func IsReplica(role string) bool { return role == "slave" || role == "replica" }

// onReplicas takes in how many replicas ROLE lists, and has the setting read again: replicas come and go, and an
// operator may change it.
func (m *Machine) onReplicas(now int64, n int) {
	m.Replication.Replicas, m.Replication.Tells = n, true
	if n > 0 && !m.Replication.IsDenied && m.drains == "" {
		m.ask(now, reading, "config", "get", MinReplicas)
	}
}

// onMinimum takes in the answer to CONFIG GET, with RESP3 a map.
func (m *Machine) onMinimum(answer *wire.Reply) {
	if m.Replication.IsDenied = answer.Kind == '-'; answer.Kind == '%' && len(answer.List) == 2 {
		m.Replication.OnMinimum(answer.List[1].Text)
	}
	m.reportRisk()
}

// askEviction has the numbers of evicted keys read again.
func (m *Machine) askEviction(now int64) {
	if m.Eviction.isKnown && m.drains == "" {
		m.ask(now, informing, "info", "memory")
		m.ask(now, informing, "info", "stats")
	}
}

// onInfo takes in the answer to INFO.
func (m *Machine) onInfo(answer *wire.Reply) {
	m.Eviction.OnInfo(wire.InfoFields(answer.Text))
	m.reportRisk()
}

// risks is why two owners are possible, as far as it is known now.
func (m *Machine) risks() *Risk {
	return &Risk{m.Replication, m.Eviction, m.Server, m.cfg.Replicas}
}

// reportRisk delivers why two owners are possible, if that is not what was delivered last.
func (m *Machine) reportRisk() {
	r := m.risks()
	if risk := r.String(); risk != m.risk {
		m.risk = risk
		m.deliver(Delivery{Kind: Risked, Text: risk, Risk: r})
	}
}

// report delivers why Redis is degraded, if that is not what was delivered last.
func (m *Machine) report() {
	if why := m.degradedWhy(); why != m.degraded {
		m.degraded = why
		m.deliver(Delivery{Kind: Degraded, Text: why})
	}
}

// degradedWhy is why Redis is degraded; "": it is not. What refuses every acquire is shown before what some replica
// does.
func (m *Machine) degradedWhy() string {
	return cmp.Or(m.failover(), m.probe.lacks, m.probe.why, m.durability.why)
}

// failover is why nothing is done that the server executes; "": all is.
func (m *Machine) failover() string {
	if m.failingOver != "" && m.failingOver == m.At {
		return m.failoverWhy
	}
	return ""
}

// isWithholding reports whether what the server executes may not be kept: by a failover, or because replicas are to
// confirm it.
func (m *Machine) isWithholding() bool { return m.cfg.Replicas > 0 || m.failover() != "" }

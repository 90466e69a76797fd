package pipeline

import (
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// accepts reports whether a command may be made now. Operations have further conditions: see canSend.
func (m *Machine) accepts() bool { return m.isUp && !m.isCut && m.drains == "" }

// canSend reports whether operations may be sent now.
func (m *Machine) canSend() bool {
	near := m.minRTT <= m.cfg.Batches.NearRTT
	inFlight := m.calls.len() - m.channels.inFlight - m.queryCalls // these keep no operation waiting
	return m.accepts() && m.flight.len() < m.cfg.Batches.InFlight && !(near && inFlight >= m.cfg.Batches.NearCalls) && !m.durability.inFlight
}

// isIdle reports whether every command is answered.
func (m *Machine) isIdle() bool { return m.calls.len() == 0 }

// hasQueued reports whether operations wait to be sent.
func (m *Machine) hasQueued() bool {
	return m.waiting.Len()+m.asking.len() > 0
}

// dueAt has Advance be called at a time, at the latest.
func (m *Machine) dueAt(at int64) { m.next = min(m.next, at) }

// register notes that a command is about to be made.
func (m *Machine) register(now int64, cl call) {
	if m.isIdle() {
		m.lastReply = now
		m.setLiveness(owing)
	}
	cl.sent, cl.from = now, m.made
	m.calls.push(cl)
}

// command appends a command, which is registered.
func (m *Machine) command(words ...string) {
	begin := len(m.out)
	m.out = wire.AppendArray(m.out, len(words))
	for _, w := range words {
		m.out = wire.AppendString(m.out, w)
	}
	m.made += int64(len(m.out) - begin)
}

// onAnswered removes the oldest call, which carries out no operations.
func (m *Machine) onAnswered() {
	m.served = true
	m.calls.drop(1)
	if m.isIdle() {
		m.setLiveness(idle)
	}
}

// takeBack takes the oldest call and its operations from those in flight.
func (m *Machine) takeBack(cl *call) []redisop.Op {
	ops := cl.ops
	m.calls.drop(1)
	return m.flight.pop(nil, ops)
}

// drain has no further command be sent on this connection, for the reason that is given first.
func (m *Machine) drain(why string) {
	if m.drains == "" {
		m.drains = why
	}
}

// noteRedirect notes an answer of a node that does not serve a slot, and reports whether it is one.
func (m *Machine) noteRedirect(text string) bool {
	if !m.cfg.IsNode || wire.Code(text) != "MOVED" {
		return false
	}
	r, ok := wire.ParseRedirect(text, m.Server.Address)
	if ok {
		m.redirects = append(m.redirects, r)
	}
	return ok
}

// ask makes a command that is answered once, of a kind.
func (m *Machine) ask(now int64, k kind, words ...string) {
	m.register(now, call{kind: k})
	m.command(words...)
}

// load has Redis taught a script.
func (m *Machine) load(now int64, s *wire.Script) {
	m.isLoading[s] = true
	m.register(now, call{kind: loading, script: s})
	m.command("script", "load", s.Text)
}

// probeBy has the next probe be sent at a time, at the latest.
func (m *Machine) probeBy(at int64) {
	if m.probe.interval != 0 {
		m.probe.next = min(m.probe.next, at)
		m.dueAt(m.probe.next)
	}
}

// setLiveness leaves a dead connection dead.
func (m *Machine) setLiveness(l liveness) {
	if m.liveness != dead {
		m.liveness = l
	}
}

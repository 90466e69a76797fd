package pipeline

import "github.com/locksidecar/locksidecar/sidecar/store/wire"

// Reply takes in one reply, or a push, that Redis sent. The error ends the connection.
func (m *Machine) Reply(now int64, answer *wire.Reply) error {
	if answer.Kind == '>' {
		return m.onPush(now, answer)
	}
	if len(m.messages) > 0 {
		m.gather()
	}
	if answer.Kind == '-' {
		m.count(answer.Text)
	}
	if m.isIdle() {
		return &wire.UnexpectedReply{Reply: *answer}
	}
	cl := m.calls.front()
	switch cl.kind {
	case running:
		return m.onRun(now, answer)
	case subscribing:
		return m.onChannels(now, answer)
	case waiting:
		if err := m.onWait(now, answer); err != nil {
			return err
		}
		m.report()
		m.release(now)
		return nil
	case querying:
		m.onQuery(answer)
		return nil
	case permitting:
		m.onPermissions(now, answer)
		return nil
	case probing:
		m.onProbe(now, answer)
		return nil
	case loading:
		m.onTrip(now, cl)
		m.onLoaded(answer)
		return nil
	}
	m.onTrip(now, cl)
	k := cl.kind
	m.onAnswered()
	switch k {
	case pinging:
		m.onPong(now, answer)
	case timing:
		m.onClock(now, answer)
	case reading:
		m.onMinimum(answer)
	case informing:
		m.onInfo(answer)
	}
	return nil
}

// onPush takes in what Redis sends without having been asked, and confirmations of subscriptions.
func (m *Machine) onPush(now int64, push *wire.Reply) error {
	parts := push.List
	if len(parts) != 3 || parts[0].Kind != '$' || parts[1].Kind != '$' {
		return nil // no message, and no confirmation
	}
	switch kind, channel := parts[0].Text, parts[1].Text; kind {
	case "message", "smessage":
		m.onMessage(now, channel, &parts[2])
	case "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe":
		return m.onConfirmation(push, kind == "unsubscribe" || kind == "sunsubscribe", channel)
	}
	return nil
}

// count counts an error that a node of a Cluster answered.
func (m *Machine) count(text string) {
	if !m.cfg.IsNode {
		return
	}
	switch wire.Code(text) {
	case "MOVED":
		m.counts.Moved++
	case "ASK":
		m.counts.Ask++
	case "TRYAGAIN":
		m.counts.TryAgain++
	}
}

package pipeline

import (
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// onMessage notes a message. What it says matters on the sidecar's channel only.
func (m *Machine) onMessage(now int64, channel string, text *wire.Reply) {
	if channel != m.ownChannel {
		if name, wanted := m.channels.want[channel]; wanted {
			m.messages = append(m.messages, redisop.Message{Kind: redisop.Unlocked, Name: name})
		}
		return
	}
	switch word, rest, _ := strings.Cut(text.Text, " "); word {
	case "answer":
		m.deliver(Delivery{Kind: Answer, Text: rest})
		return
	case "ask":
		if from, body, ok := strings.Cut(rest, " "); ok && wire.IsUUID(from) {
			m.deliver(Delivery{Kind: Question, From: from, Text: body})
			return
		}
	}
	msg, from, ok := m.cfg.Keys.Message(text.Text)
	if !ok || text.Kind != '$' {
		if m.ignored.add(now) {
			m.deliver(Delivery{Kind: Noted, Note: Flooded})
		}
		return
	}
	if m.cfg.IsNode && from.IsKnown && m.Origin.IsKnown && !from.IsSame(m.Origin) {
		return // a copy: a Cluster brings each message to all its nodes, and this one did not send it
	}
	if from.IsSame(m.Origin) && !m.isWithholding() { // otherwise a Take confirms it
		msg.Conn = m.id
	}
	m.checkTokens(now, &msg)
	m.messages = append(m.messages, msg)
}

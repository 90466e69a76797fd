package pipeline

import (
	"strings"
	"time"

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

// ignored counts messages on the channel of this sidecar that say nothing to it: texts
// that are none of its messages, and messages about keys that are no lock of it. Only another
// program sends many of them. Redis sends results after the messages that came before, so a flood
// of messages delays all operations of this host.
type ignored struct {
	total    uint64
	since    int64 // begin of the present window, CLOCK_BOOTTIME in ns
	inWindow uint64
	warnedAt int64
	isWarned bool // since warnedAt is valid
}

const (
	ignoredWindow = int64(time.Second)
	ignoredMost   = 1000                 // in a window, without a line in the log
	ignoredAgain  = int64(time.Hour) / 6 // between two of these lines
)

// add counts one message that was read at now. warns: there are so many that the log is to have a
// line.
func (g *ignored) add(now int64) (warns bool) {
	g.total++
	if now-g.since >= ignoredWindow {
		g.since, g.inWindow = now, 0
	}
	if g.inWindow++; g.inWindow != ignoredMost+1 || g.isWarned && now-g.warnedAt < ignoredAgain {
		return false
	}
	g.isWarned, g.warnedAt = true, now
	return true
}

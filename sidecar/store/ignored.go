package store

import (
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// ignoredMessages counts messages on the channel of this sidecar that say nothing to it: texts
// that are none of its messages, and messages about keys that are no lock of it. Only another
// program sends many of them. Redis sends results after the messages that came before, so a flood
// of messages delays all operations of this host.
type ignoredMessages struct {
	total atomic.Uint64

	// Of the pipeline's reader.
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
func (m *ignoredMessages) add(now int64) (warns bool) {
	m.total.Add(1)
	if now-m.since >= ignoredWindow {
		m.since, m.inWindow = now, 0
	}
	if m.inWindow++; m.inWindow != ignoredMost+1 || m.isWarned && now-m.warnedAt < ignoredAgain {
		return false
	}
	m.isWarned, m.warnedAt = true, now
	return true
}

// IgnoredMessages is how many messages on the channel of this sidecar were ignored.
func (s *Store) IgnoredMessages() (n uint64) {
	s.all(func(c *commands) { n += c.ignored.total.Load() })
	return n
}

// onIgnored notes a message that is ignored. The caller is the reader.
func (p *pipeline) onIgnored() {
	c := p.commands
	if c.ignored.add(p.now) {
		c.cfg.Log.Warn("another program floods the channel of this sidecar: results of Redis wait behind its messages, which are ignored; let only daemons have +publish and the channels "+wire.OwnChannel("*"),
			"messages_in_a_second", c.ignored.inWindow, "ignored", c.ignored.total.Load())
	}
}

package pipeline

import "time"

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

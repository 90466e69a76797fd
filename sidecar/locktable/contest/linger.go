package contest

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
)

// A lock that is used again and again by one host lingers: after a release that no client waits
// for, it stays this host's in Redis for Config.Linger, and the next local acquire is granted
// with the next token that was drawn, without a round trip. Another sidecar's Take recalls it
// at once. A foreign client waits for the rest of the moment.
//
// Only a hot lock lingers: one that was acquired here soon after its last release here, with no
// other host in between. How soon, and how long it lingers, is lingerTime.

// lingerTime is how long a lock lingers that was held for so long. To keep it costs other
// programs that time if no client here acquires it; to drop it costs the next client here two
// operations of Redis. So it lingers for as long as these take now, or as it was held, and never
// is it taken for much more than twice the time for which it would be without lingering. (Ski
// rental: an unused moment costs no more than what it was to save.)
func (s *Shared) lingerTime(held int64) int64 {
	if s.latency == 0 {
		return s.linger
	}
	return min(max(2*s.latency, held), s.linger)
}

// OnReleased notes that the owner of a lock released it, who had it for so long. It returns until
// when the lock lingers if that is decided.
func (s *Shared) OnReleased(name string, m *Memory, now, held int64) (until int64) {
	until = now + s.lingerTime(held)
	m.hotUntil = max(1, moment.ShortMoment(until))
	s.hot.note(name, m.hotUntil)
	return until
}

// decideForNobody decides about a lock that no local client wants. If its owner has just released it,
// and it has had no free moment for long, this host yields: the lock stays free for a moment.
func (s *Shared) decideForNobody(w *Verdict, a *moment.Alarm, m *Memory, c *Contest, v *View) {
	isTired := s.isTired(m, v)
	switch {
	case v.LingerUntil == 0 || !v.MayLinger || isWanted(m, c, v):
	case v.IsReleased && v.Grants >= 2 && isTired:
		w.Do, w.EndsTurn = Yield, true
	case v.IsSpare && !v.IsBusy && !a.Due(min(v.LingerUntil, v.LingerLatest)):
		w.Do = Linger
	}
	w.LeavesFree = isTired
}

// isWanted reports whether another host, or a foreign client, is known to want the lock, or whether
// a client here waits for its release.
func isWanted(m *Memory, c *Contest, v *View) bool {
	if c != nil {
		return c.areOthersKnown(v.Now) || v.HasConfirms
	}
	return m.hostsWait || m.subscribers != 0
}

// OnFirstAcquire notes an acquire of a lock that no local client has or waits for: only a lock that is
// hot now lingers after it. mayLinger: the sidecar does not stop, and receives messages of other
// sidecars.
func (s *Shared) OnFirstAcquire(m *Memory, now int64, mayLinger bool) {
	m.isHot = mayLinger && s.cfg.Linger != moment.SpanOf(0) && s.isHotAt(now, m.hotUntil)
}

// isHotAt reports whether a time that has not come yet is until; see Memory.hotUntil.
func (s *Shared) isHotAt(now int64, until uint32) bool {
	return until != 0 && until-moment.ShortMoment(now) <= moment.ShortMoment(s.linger)+1
}

// Cool notes that another host wants the lock, or that it is not to linger for another reason.
func (s *Shared) Cool(name string, m *Memory) {
	if m.hotUntil != 0 {
		s.hot.note(name, 0)
	}
	m.isHot, m.hotUntil = false, 0
}

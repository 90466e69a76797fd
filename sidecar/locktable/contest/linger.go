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
		return int64(s.cfg.Linger)
	}
	return min(max(2*s.latency, held), int64(s.cfg.Linger))
}

// OnReleased notes that the owner of a lock released it, who had it for so long. It returns until
// when the lock lingers if AfterRelease says so.
func (s *Shared) OnReleased(name string, m *Memory, now, held int64) (until int64) {
	until = now + s.lingerTime(held)
	m.hotUntil = max(1, moment.ShortMoment(until))
	s.hot.note(name, m.hotUntil)
	return until
}

// AfterRelease decides about a hot lock that its owner released: Linger, or Drop; or Yield if it has
// had no free moment for long: then it is dropped, and stays free for a moment.
func (s *Shared) AfterRelease(m *Memory, c *Contest, v *View) Do {
	switch {
	case v.Waiting > 0 || isWanted(m, c, v) || !v.MayLinger:
		return Drop
	case v.Grants >= 2 && s.isTired(m, v):
		return Yield
	case v.IsBusy, !v.IsSpare:
		return Drop
	}
	return Linger
}

// isWanted reports whether another host, or a foreign client, is known to want the lock, or whether
// a client here waits for its release.
func isWanted(m *Memory, c *Contest, v *View) bool {
	if c != nil {
		return c.areOthersKnown(v.Now) || v.HasConfirms
	}
	return m.hostsWait || m.subscribers != 0
}

// lingers reports whether the lock stays this host's in Redis although no local client wants
// it.
func (s *Shared) lingers(a *moment.Alarm, m *Memory, c *Contest, v *View) bool {
	return v.LingerUntil != 0 && v.MayLinger && v.IsSpare && !v.IsBusy && !isWanted(m, c, v) &&
		!a.Due(min(v.LingerUntil, v.LingerLatest))
}

// OnFirstAcquire notes an acquire of a lock that no local client has or waits for: only a lock that is
// hot now lingers after it. mayLinger: the sidecar does not stop, and receives messages of other
// sidecars.
func (s *Shared) OnFirstAcquire(m *Memory, now int64, mayLinger bool) {
	m.isHot = mayLinger && !s.cfg.NoLinger && s.isHotAt(now, m.hotUntil)
}

// isHotAt reports whether a time that has not come yet is until; see Memory.hotUntil.
func (s *Shared) isHotAt(now int64, until uint32) bool {
	return until != 0 && until-moment.ShortMoment(now) <= moment.ShortMoment(int64(s.cfg.Linger))+1
}

// Cool notes that another host wants the lock, or that it is not to linger for another reason.
func (s *Shared) Cool(name string, m *Memory) {
	if m.hotUntil != 0 {
		s.hot.note(name, 0)
	}
	m.isHot, m.hotUntil = false, 0
}

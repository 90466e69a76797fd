package locktable

import (
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// explain says why a request of a session that came at since, and is in no queue any more, does
// not get the lock.
func (t *Table) explain(now int64, l *lock, s *session, since int64, mode Mode, wasAlone bool) (protocol.Code, string) {
	q := l.queue
	if h := l.holders.newest; h != nil && !l.holders.admits(mode) {
		holder := s.describe(l.name, h.session.peer) + " on this host"
		if h.phase == HoldKept {
			return protocol.Timeout, "kept for another " + milliseconds(h.deadline-now) + ": the last hold was by " + holder + ", which asked to keep it"
		}
		return protocol.Timeout, "held by " + holder
	}
	isTooEarly := since == now && t.shardOf(l).phase == shardNeverReached // others come before it, whatever Redis will say
	if why := t.whyNoResult(l); why != "" && !isTooEarly {
		return protocol.Unavailable, why
	}
	// The result of an earlier operation may be out of date.
	remote := q.contest.Remote()
	isKnown := remote.IsKnownSince(since)
	asked := int64(0)
	if sent, is := l.claim.Awaited(); is {
		asked = now - max(sent, t.shardOf(l).paused)
	}
	first := q.waiters.head
	switch {
	case !isKnown && (t.isSilent(now, l) || asked >= int64(t.cfg.TryWithin)):
		silence := max(asked, int64(t.shardOf(l).silence(now)))
		return protocol.Unavailable, "Redis has not answered for " + milliseconds(silence) + "; whether the lock is free is not known"
	case q.contest.RefusesTries(now, l.claim.IsDropping()):
		return protocol.Timeout, contest.AnothersTurn
	case remote.IsKnown():
		return protocol.Timeout, l.describeRemote(t)
	case !wasAlone && first != nil && first.request.since <= since:
		return protocol.Timeout, "others on this host wait for it"
	case !wasAlone:
		return protocol.Timeout, "others on this host had it until now"
	case !l.claim.IsBusy():
		return protocol.Timeout, contest.AnothersTurn
	}
	return protocol.Unavailable, "Redis has not answered within " + milliseconds(now-since) + " whether the lock is free"
}

// isShortOfPermits reports whether the last result was that too few permits are free.
func (l *lock) isShortOfPermits() bool {
	field, _ := l.queue.contest.Remote().Field()
	return l.kind() == redisop.KindPermits && field == ""
}

// describeRemote says for people what keeps waiters of this host from the lock.
func (l *lock) describeRemote(t *Table) string {
	remote := l.queue.contest.Remote()
	switch field, _ := remote.Field(); {
	case l.isShortOfPermits():
		return tooFewPermits
	case l.kind() == redisop.KindReadWrite && field == "":
		return readElsewhere
	}
	return remote.Describe(&t.contests)
}

const tooFewPermits = "too few of its permits are free, or requests of other hosts come first"

// whyNoResult says what keeps Redis from being asked for the lock, or from granting it; "":
// nothing.
func (t *Table) whyNoResult(l *lock) string {
	switch {
	case !t.shardOf(l).isUp():
		return t.shardOf(l).why()
	case l.queue.lastError == "" && l.claim.RetryAt() != 0: // it came before the queue
		return "Redis could not carry out the last request for this lock; it is asked again in a moment"
	}
	return l.queue.lastError
}

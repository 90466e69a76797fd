package locktable

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
)

// view fills in what the contest for a lock depends on.
func (t *Table) view(v *contest.View, now int64, l *lock) {
	c := &l.claim
	v.Now = now
	s := t.shardOf(l)
	v.IsReachable, v.IsListening, v.MayLinger = s.isUp(), s.isListening, t.mayLinger(l)
	v.Claim, v.IsBusy, v.IsDropping, v.IsReleasing = viewOf(c.State()), c.IsBusy(), c.IsDropping(), c.IsReleasing()
	v.DropPassedMS, v.CameAt, v.BusySince, v.Grants = int64(c.InFlight().PassedMS), c.CameAt(), c.BusySince(), c.Grants()
	v.LingerUntil, v.LingerLatest = c.LingerUntil(), c.ValidUntil()-moment.MS(c.LeaseMS())/3
	v.IsSpare = c.IsSpare()
	q := l.queue
	if q == nil {
		return
	}
	v.Waiting, v.WantsOrder, v.HasNewcomer, v.HasConfirms = l.waiting(), q.fair > 0, q.newcomer != nil, len(q.confirms) > 0
	if w := q.waiters.head; w != nil {
		r := w.request
		v.First = contest.Waiter{Tries: w.isTrying(), IsFair: r.isFair, IsAlone: r.isAlone, Since: r.since, Arrived: r.arrived}
	}
}

// mayLinger reports whether a lock may linger: another sidecar that wants it can say so.
func (t *Table) mayLinger(l *lock) bool {
	s := t.shardOf(l)
	return s.isUp() && s.isListening && !t.isStopping
}

// isInOrder reports whether the waiters of a lock get it in strict order.
func (t *Table) isInOrder(l *lock) bool {
	return l.queue != nil && l.queue.fair > 0 && t.shardOf(l).isListening
}

// viewOf is what the contest has to know of the state of a claim.
func viewOf(s claim.State) contest.ClaimState {
	switch {
	case s == claim.Absent:
		return contest.Absent
	case s.IsOurs():
		return contest.Ours
	}
	return contest.Unsure
}

// cool has a lock not linger, because another host wants it, or for another reason.
func (t *Table) cool(l *lock) {
	t.contests.Cool(l.name, &l.memory)
	l.claim.EndLinger()
}

// linger has a hot lock linger, or be yielded, that its owner released, who had it since then.
func (t *Table) linger(now int64, l *lock, since int64) {
	until := t.contests.OnReleased(l.name, &l.memory, now, now-since)
	if !l.memory.IsHot() {
		return
	}
	var v contest.View
	t.view(&v, now, l)
	switch t.contests.AfterRelease(&l.memory, l.contest(), &v) {
	case contest.Linger:
		l.claim.Linger(until)
	case contest.Yield:
		t.needQueue(l).contest.Yield()
	}
}

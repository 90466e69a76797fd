package locktable

import (
	"math"
	"time"
)

// Turns. A release wakes every host on which somebody waits. If all of them asked for
// the lock, Redis would answer most of them in vain, and the one that it writes to
// first, or that is nearest, would have the lock again and again. So each host draws
// when to ask: at once, with a probability that lets about two of all of them do so;
// or else some time within a span that is so long that one of them asks every few
// milliseconds. That bounds both what a release costs Redis, however many wait, and
// how long the lock stands free if nobody drew "at once".
//
// A draw alone would still leave it to the near ones: who asks at once from far away
// comes too late. So a host draws the better the more turns of others it has let pass,
// in proportion to how many there are. Those who have just had the lock, the near ones
// most of all, leave it free for a moment more and more often, until one who is far
// finds it so. The moments have to be long enough to be found; where holds are long,
// and all who are near know that the lock was given back before the one who is far
// does, they grow with the holds.
//
// A host that gives the lock back while others listen draws like the rest for the next
// of its own waiters. That nobody knows how many listen (Redis does not permit to ask)
// ends all this: then everybody asks at once.

const (
	drawAtOnce    = 1.5                   // so many, of all who wait, ask at once after a release
	drawSpacing   = 5 * time.Millisecond  // the others ask at least so far apart, on average
	drawOfHold    = 8                     // or an eighth of a hold,
	drawSpacedOut = 20 * time.Millisecond // but no farther apart than this
	drawLeast     = 1.0 / 3               // weight of a host that has just had its turn; that of all is 1 on average
	drawMost      = 8.0                   // of one that is passed over again and again
)

// vain is how many messages a subscription that nobody needs is kept for: hearing them
// costs Redis as much as another subscription. It also keeps the number of those who
// listen near to that of those who wait.
const vain = 4

// others is how many other hosts, or clients of other kinds, listen on the lock's
// channel, as far as is known; −1: it is not.
func (l *lock) others() int32 {
	n := l.rivals.listeners
	if n > 0 && l.queue != nil && l.queue.sub == subscribed {
		n--
	}
	return n
}

// othersListen tells whether somebody on another host may be waiting.
func (l *lock) othersListen() bool { return l.others() != 0 }

// draw sets when the host asks for a lock that was given back by somebody: at once, if
// it may be at once, or at a time drawn from now. A time that was drawn before stays,
// or hosts that are told of many releases would put off asking for ever.
func (t *Table) draw(now int64, l *lock, atOnce bool) {
	q := l.queue
	from := max(now, q.standUntil)
	if q.drawn {
		// It may be due, and wait for the end of a tick to be noticed. That must not be
		// now: all whom the message reaches would ask together.
		q.tryAt = max(q.tryAt, now+1)
	}
	n := float64(l.others())
	weight := min(max(2*float64(q.passed)/n, drawLeast), drawMost)
	if n <= 0 || q.head != nil && q.head.try || atOnce && t.rng.Float64() < drawAtOnce*weight/n {
		q.tryAt = min(q.tryAt, from)
		return
	}
	spacing := min(max(drawSpacing, time.Duration(now-q.turnAt)/drawOfHold), drawSpacedOut)
	span := max(int64(n/weight*float64(spacing)), int64(wheelTick))
	span = min(span, int64(t.pause(q)))
	if !q.drawn || q.tryAt > from+span {
		q.tryAt = min(q.tryAt, from+t.rng.Int64N(span))
		q.drawn = true
	}
}

// linger is how long a subscription is kept after its last use: less where many
// listen, for each of them costs every release, and counts as one who waits.
func (t *Table) linger(l *lock) time.Duration {
	return t.cfg.SubscriptionLinger / time.Duration(max(1, l.others()/2))
}

// pause is how long a lock that another host has is not asked for if no message comes.
func (t *Table) pause(q *queue) time.Duration {
	if q.sub == subscribed {
		return t.cfg.Poll
	}
	return min(max(t.cfg.PollDeaf, time.Duration(t.polling)*t.cfg.PollDeafLeast), t.cfg.Poll)
}

// givenBack is called when Redis has the lock back from this host.
func (t *Table) givenBack(now int64, l *lock) {
	q := l.queue
	q.tryAt, q.drawn = max(now, q.standUntil), false
	if l.othersListen() {
		q.passed = 0
		q.tryAt = math.MaxInt64
		t.draw(now, l, true)
	}
}

// Message says that something was published on the lock's channel.
func (t *Table) Message(now int64, name string) {
	l := t.byName[name]
	if l == nil || l.queue == nil {
		return
	}
	q := l.queue
	own := q.echoes > 0 && now < q.echoBy
	if own {
		q.echoes--
	} else {
		q.echoes = 0
	}
	l.claim.op.wake = true // even if a local owner believes to have it: the answer may say otherwise
	if l.hold.num != 0 && !own {
		l.lookSoon(now)
	}
	switch {
	case q.head == nil:
		if q.vain++; q.vain >= vain {
			q.lingerUntil = min(q.lingerUntil, now)
		}
	case l.hold.num == 0:
		if !own {
			q.passed++
		}
		if !l.claim.isBusy() && !q.stand { // a host that yields asks again after its pause
			t.draw(now, l, !own)
		}
		if !own {
			q.turnAt = now
		}
	}
	t.settle(now, l)
}

package locktable

import (
	"math"
	"math/rand/v2"
	"time"
)

// An arbiter decides, for one lock, between this host and others: when this host asks
// Redis for the lock, how long it hands the lock over between its own clients, when it
// yields and how long it backs off then, and whether it is subscribed to the lock's
// channel. Nothing else in the table decides between hosts, so that another policy can
// take its place.
//
// # When to retry
//
// A release wakes every host that waits: a thundering herd. If all of them asked for the
// lock, Redis would
// refuse most of them, and the host that Redis writes to first, or that is nearest, would
// get the lock again and again. So each host draws when to retry: at once, with a
// probability that lets about two of all of them do so, or else at a random time within a
// span that is so long that one of them retries every few milliseconds. That bounds what
// a release costs Redis, however many hosts wait, and how long the lock is free if no host
// drew "at once".
//
// Uniform randomisation still favours hosts with a short round trip to Redis. Each host
// therefore weights its chance to retry at once by the number of releases it has seen
// since it last held the lock, relative to the number of subscribers. Recent holders wait
// longer more often, which leaves the key free for long enough that distant hosts find it
// so. Where holds are long, the near hosts all know of a release before a distant one
// does: the spans grow with the holds.
//
// A host that releases the lock while others are subscribed draws like them for the next
// of its own waiters. If Redis does not permit to count the subscribers, every host
// retries at once.
type arbiter struct {
	phase  contention
	rivals *rivals // the lock's
	remote remoteHolder

	nextTry           int64 // no Take before, unless Redis has the lock for this host
	backoffUntil      int64 // and no earlier nextTry, because this host has just yielded
	missedTurns       int32 // releases by others since the local waiters last had the lock
	lastReleaseSeenAt int64 // when another host released the lock last, or this one got it

	// While Redis has the lock for this host: how many grants in a row, and since when.
	handoffs      int
	handoffsSince int64
	quiet         bool // of yielding and backoffUntil: no other host is known to want the lock

	rivalUntil int64 // another host had the lock without being subscribed; see Config.RivalMemory

	sub                  subscription
	lingerUntil          int64 // the subscription is kept until then
	unneededMessages     uint8 // received since a waiter here waited for another host
	ownPublishesPending  uint8 // messages to come that this host has published itself,
	ownPublishesDeadline int64 // and until when: a lost one must not have another's taken for it
	isPolling            bool  // counts in policy.polling
}

// contention is what the arbiter does about other hosts.
//
//	               a release was published
//	contending ──────────────────────────▶ retryScheduled
//	  ▲  ▲ │  ◀──────────────────────────────    │
//	  │  │ │     Take sent, lock granted, or     │
//	  │  │ │     refused: held by another host   │
//	  │  │ ▼ the budget of handoffs is spent     ▼
//	  │ yielding ◀────────────────────────────────
//	  │    │ the Drop is done: backoffUntil is set
//	  └────┘
type contention uint8

const (
	// contending: this host asks for a lock that it does not have from nextTry on, and
	// hands over between its clients the lock that it has.
	contending contention = iota

	// retryScheduled: the same, but nextTry was drawn at random after a release. Later
	// messages may move it forward, never back, or a host that receives many of them would
	// postpone it for good.
	retryScheduled

	// yielding: this host has had the lock for long enough in a row. It releases the lock
	// in Redis before a local client gets it again.
	yielding
)

// remoteHolder is what Redis returned last about a holder on another host.
type remoteHolder struct {
	isKnown bool // another host had the lock at the last result
	field   string
	ttlMS   int64 // its time to live then; −1: none
	seenAt  int64 // when the result came
	askedAt int64 // when the operation was sent that it is the result of
}

// rivals is what is known of other hosts that want the lock. It outlives the arbiter,
// which exists only while the lock is contended.
type rivals struct {
	since     int64 // since when others are known to want it; 0: they are not
	listeners int32 // subscribers of the lock's channel, this sidecar among them; −1: unknown
}

func (r *rivals) areKnown() bool { return r.since != 0 }

type subscription uint8

const (
	unsubscribed subscription = iota
	subscribing               // requested, not confirmed by Redis, or broken
	subscribed
)

// policy is what the arbiters of a table share.
type policy struct {
	cfg     *Config
	rng     *rand.Rand
	polling int // locks that are polled because their subscription does not work
}

const (
	retryAtOnce    = 1.5                   // so many, of all hosts that wait, retry at once after a release
	retrySpacing   = 5 * time.Millisecond  // the others retry at least so far apart, on average
	retryOfHold    = 8                     // or an eighth of a hold,
	retrySpacedOut = 20 * time.Millisecond // but no farther apart than this
	minWeight      = 1.0 / 3               // weight of a host that has just had its turn; that of all is 1 on average
	maxWeight      = 8.0                   // of one that is passed over again and again
)

// maxUnneededMessages is how many messages a subscription is kept for that no waiter needs:
// each costs Redis as much as another subscription. It also keeps the number of subscribers
// near to the number of hosts that wait.
const maxUnneededMessages = 4

// ownPublishWithin is how long a host waits for the message of a release of its own. Later
// it is taken for another program's, and the key is checked without need.
const ownPublishWithin = int64(time.Second)

// maxTTL bounds the time to live of another program's key, ms: a year. Redis has any
// number that fits into 63 bits.
const maxTTL = int64(365 * 24 * time.Hour / time.Millisecond)

// others is how many other hosts, or clients of other kinds, are subscribed to the lock's
// channel, as far as is known; −1: it is not.
func (a *arbiter) others() int32 {
	n := a.rivals.listeners
	if n > 0 && a.sub == subscribed {
		n--
	}
	return n
}

// isContended reports whether a client on another host may be waiting.
func (a *arbiter) isContended() bool { return a.others() != 0 }

// isBackingOff reports whether the lock is left to other hosts.
func (a *arbiter) isBackingOff(now int64) bool { return now < a.backoffUntil }

// isYielding reports whether local waiters do not get the lock because it is the turn of
// another host.
func (a *arbiter) isYielding(now int64) bool { return a.phase == yielding || a.isBackingOff(now) }

// onFirstRequest has Redis asked for the lock for a waiter that is now the first. noWait: it
// waits for the result only.
func (a *arbiter) onFirstRequest(now int64, noWait bool) {
	if noWait && a.quiet {
		a.backoffUntil = now
		if a.phase == yielding {
			a.phase = contending
		}
	}
	if noWait || a.phase != retryScheduled {
		a.nextTry, a.missedTurns = max(now, a.backoffUntil), 0
		if a.phase == retryScheduled {
			a.phase = contending
		}
	}
}

// tryBy moves the next try forward.
func (a *arbiter) tryBy(at int64) { a.nextTry = min(a.nextTry, max(at, a.backoffUntil)) }

// onTake notes that a Take is sent for the queue.
func (a *arbiter) onTake() {
	if a.phase == retryScheduled {
		a.phase = contending
	}
}

// scheduleRetry sets when the host asks for a lock that was released: at once, if it may
// be at once, or at a random time from now on. A time that was drawn before may move forward, never back. noWait:
// the first local waiter waits for a result only.
func (a *arbiter) scheduleRetry(p *policy, now int64, noWait, mayBeAtOnce bool) {
	from := max(now, a.backoffUntil)
	if a.phase == retryScheduled {
		// It may be due, and wait for the end of a tick to be noticed. That must not be
		// now: all hosts that the message reaches would ask together.
		a.nextTry = max(a.nextTry, now+1)
	}
	n := float64(a.others())
	weight := min(max(2*float64(a.missedTurns)/n, minWeight), maxWeight)
	if n <= 0 || noWait || mayBeAtOnce && p.rng.Float64() < retryAtOnce*weight/n {
		a.nextTry = min(a.nextTry, from)
		return
	}
	spacing := min(max(retrySpacing, time.Duration(now-a.lastReleaseSeenAt)/retryOfHold), retrySpacedOut)
	span := max(int64(n/weight*float64(spacing)), int64(wheelTick))
	span = min(span, int64(a.pause(p)))
	if a.phase != retryScheduled || a.nextTry > from+span {
		a.nextTry = min(a.nextTry, from+p.rng.Int64N(span))
		a.phase = retryScheduled
	}
}

// pause is how long a lock that another host has is not asked for if no message comes.
func (a *arbiter) pause(p *policy) time.Duration {
	if a.sub == subscribed {
		return p.cfg.Poll
	}
	return min(max(p.cfg.PollDeaf, time.Duration(p.polling)*p.cfg.PollDeafLeast), p.cfg.Poll)
}

// linger is how long a subscription is kept after its last use: less where many hosts are
// subscribed, because each of them costs every release, and counts as a host that waits.
func (a *arbiter) linger(p *policy) time.Duration {
	return p.cfg.SubscriptionLinger / time.Duration(max(1, a.others()/2))
}

// onAcquired notes that Redis has confirmed a Take or a Renew. was is the state of the claim
// before.
func (a *arbiter) onAcquired(now int64, was claimState) {
	a.remote.isKnown = false
	if was.isOurs() {
		return
	}
	a.missedTurns, a.lastReleaseSeenAt = 0, now
	if was == claimAbsent {
		a.handoffs = 0
		if a.phase == yielding {
			a.phase = contending
		}
	}
}

// onRivalsChanged notes that it is news whether another host wants the lock. If one does, a
// run of local handoffs counts from now on.
func (a *arbiter) onRivalsChanged() {
	if a.phase == yielding {
		a.phase = contending
	}
	if a.rivals.areKnown() {
		a.handoffs = 0
	}
}

// onGrant notes that a local waiter gets the lock.
func (a *arbiter) onGrant(now int64) {
	if a.phase == retryScheduled {
		a.phase = contending
	}
	if a.handoffs == 0 {
		a.handoffsSince = now
	}
	a.handoffs++
}

// mayGrant decides whether a local waiter may get a lock that is this host's in Redis, or
// whether the host has to yield. A request that does not wait is not kept from a lock that
// no other host is known to want. isReachable: Redis can be asked; otherwise no other host
// could get the lock.
func (a *arbiter) mayGrant(p *policy, now int64, noWait, isReachable bool) bool {
	if !isReachable {
		if a.phase == yielding {
			a.phase = contending
		}
		return true
	}
	if a.phase != yielding && a.isBudgetSpent(p, now) {
		if quiet := !a.rivals.areKnown(); !quiet || !noWait {
			a.phase, a.quiet = yielding, quiet
		}
	}
	return a.phase != yielding
}

// isBudgetSpent reports whether this host has had the lock for long enough in a row. If no
// other host is known to want it, one handoff is always allowed: the waiter of a holder
// that was killed after hours gets the lock at once.
func (a *arbiter) isBudgetSpent(p *policy, now int64) bool {
	cfg := p.cfg
	if since := a.rivals.since; since != 0 && (a.handoffs >= cfg.HandoffBudget || now-since >= int64(cfg.HandoffTime)) {
		return true
	}
	return a.handoffs >= 2 && now-a.handoffsSince >= int64(cfg.QuietTime)
}

// mayPipeline decides whether a Take may be pipelined after a Drop of the same key, so that
// an acquire right after a release costs one round trip and not two. They may even be
// executed in the other order: a Drop touches no later number.
//
// With a pipelined Take the key never disappears, so no other host can win it. Pipeline
// only while no other host is subscribed, and for QuietTime at most, because a client that
// may not subscribe polls instead.
func (a *arbiter) mayPipeline(p *policy, now int64, w *window) bool {
	return a.phase != yielding && !a.isContended() && now >= a.rivalUntil &&
		(w.pipelined == 0 || int(w.pipelined) < p.cfg.HandoffBudget && shortMillis(now)-w.pipelinedSince < shortMillis(int64(p.cfg.QuietTime)))
}

// onRelease notes that Redis has executed this host's release.
func (a *arbiter) onRelease(p *policy, now int64, noWait bool) {
	if a.phase == yielding {
		a.backoffUntil = now + int64(p.cfg.Backoff)
		if a.quiet {
			a.backoffUntil = now + int64(p.cfg.QuietPause)
		}
	}
	a.nextTry, a.phase = max(now, a.backoffUntil), contending
	if a.isContended() {
		a.missedTurns = 0
		a.nextTry = math.MaxInt64
		a.scheduleRetry(p, now, noWait, true)
	}
}

// onHeldByOther notes the result that another host has the lock, and until when there is
// no use in asking again.
func (a *arbiter) onHeldByOther(p *policy, now int64, field string, ttlMS int64, op *inFlight, noWait bool) {
	a.remote = remoteHolder{isKnown: true, field: field, ttlMS: min(ttlMS, maxTTL), seenAt: now, askedAt: op.sentAt}
	pause := int64(a.pause(p))
	if a.remote.ttlMS >= 0 {
		pause = min(pause, ms(a.remote.ttlMS+1))
	}
	if a.sub != subscribed {
		// Its period must not be that of the pauses which the holder's host makes.
		pause = pause/2 + p.rng.Int64N(pause)
	}
	a.nextTry, a.phase = now+pause, contending
	if a.others() == 0 {
		a.rivalUntil = now + int64(p.cfg.RivalMemory)
	}
	if op.mayBeFree {
		a.scheduleRetry(p, now, noWait, true)
	}
}

// onMessage notes a message on the lock's channel. It returns whether this host published
// it.
func (a *arbiter) onMessage(now int64) (own bool) {
	own = a.ownPublishesPending > 0 && now < a.ownPublishesDeadline
	if own {
		a.ownPublishesPending--
	} else {
		a.ownPublishesPending = 0
	}
	return own
}

// onUnneededMessage notes a message that no local waiter needs.
func (a *arbiter) onUnneededMessage(now int64) {
	if a.unneededMessages++; a.unneededMessages >= maxUnneededMessages {
		a.lingerUntil = min(a.lingerUntil, now)
	}
}

// onPublishedRelease notes that the lock was released, while local waiters wait for another
// host. isAsking: an operation is in flight, and its result says more.
func (a *arbiter) onPublishedRelease(p *policy, now int64, own, noWait, isAsking bool) {
	if !own {
		a.missedTurns++
	}
	if !isAsking && a.phase != yielding {
		a.scheduleRetry(p, now, noWait, !own)
	}
	if !own {
		a.lastReleaseSeenAt = now
	}
}

// onDropSent notes that a Drop was sent, which publishes a message.
func (a *arbiter) onDropSent(now int64) {
	if a.sub == subscribed && a.ownPublishesPending < math.MaxUint8 {
		a.ownPublishesPending++
		a.ownPublishesDeadline = now + ownPublishWithin
	}
}

// onDropResult corrects how many messages of its own this host expects, after a Drop that
// published none: the next message is another program's.
func (a *arbiter) onDropResult(r *Result) {
	switch {
	case a.ownPublishesPending == 0:
	case r.Outcome == Unknown:
		a.ownPublishesPending = 0 // if it was published, the key is checked once without need
	case r.Outcome != Done || r.Listeners == Uncounted:
		a.ownPublishesPending--
	}
}

// onSubscribed notes that Redis confirmed the subscription, for the first time or again:
// whatever was published before may have been missed, so a waiter for another host asks
// again.
func (a *arbiter) onSubscribed(now int64, isWaiting bool) {
	a.sub = subscribed
	if isWaiting && (a.remote.isKnown || a.phase != retryScheduled) {
		a.tryBy(now)
	}
}

// onUnsubscribed notes that the subscription is gone or was denied. The host polls until
// onSubscribed.
func (a *arbiter) onUnsubscribed(p *policy, now int64) {
	a.sub, a.ownPublishesPending = subscribing, 0
	a.tryBy(now + int64(a.pause(p)))
}

// updateSubscription decides whether the host is to be subscribed: while local waiters wait
// for another host, or have waited for long for a local holder, and for some time after.
// head is the first waiter, or nil. It returns the effect that is needed; 0: none.
func (a *arbiter) updateSubscription(p *policy, at *alarm, head *waiter, isHeld bool) (effect EffectKind) {
	if head == nil && a.phase == retryScheduled && at.due(a.nextTry) {
		a.phase = contending // no local client wanted the turn
	}
	isNeeded := false
	switch {
	case head == nil:
	case !isHeld:
		isNeeded = a.remote.isKnown || a.phase == retryScheduled
	default:
		isNeeded = at.due(head.request.since + int64(p.cfg.WatchAfter))
	}
	if isNeeded {
		a.lingerUntil, a.unneededMessages = at.now+int64(a.linger(p)), 0
		if a.sub == unsubscribed {
			a.sub, effect = subscribing, Subscribe
		}
	} else if a.sub != unsubscribed && at.due(a.lingerUntil) {
		a.sub, a.ownPublishesPending, effect = unsubscribed, 0, Unsubscribe
	}
	isPolling := head != nil && !isHeld && a.remote.isKnown && a.sub != subscribed
	if isPolling != a.isPolling {
		a.isPolling = isPolling
		p.polling += btoi(isPolling) - btoi(!isPolling)
	}
	return effect
}

// isIdle reports whether nothing is lost if the arbiter is forgotten.
func (a *arbiter) isIdle() bool {
	return a.sub == unsubscribed && !a.rivals.areKnown() && a.phase != retryScheduled
}

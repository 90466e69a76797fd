package locktable

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// An arbiter decides, for one lock, between this host and others: when this host asks
// Redis for the lock, how long a turn of this host is, when it yields and how long it backs
// off then, and whether it is subscribed to the lock's channel. Nothing else in the table
// decides between hosts, so that another policy can take its place.
//
// # Turns
//
// A turn begins when the lock comes to this host: by a Take, or by a transfer of another
// sidecar (see place.go). During its turn a host hands the lock over between its own clients
// without Redis. The turn is over when another sidecar waits and this host has had the lock
// for HandoffBudget grants or for Config.Turn. Then the host releases the lock, which passes
// to the first in the queue, and queues behind all others.
//
// # Programs that are no sidecars
//
// A program that waits for the lock with another client of the same protocol has no place in
// the queue. If it is subscribed to the lock's channel, a turn ends after HandoffTime, too.
// If it polls, nothing is known of it. So a lock that has passed from owner to owner without a
// free moment for QuietTime is released and left free for QuietPause; the time counts over
// all hosts (see remoteClaim.busySince). If a program was found to have the lock within the
// last RivalMemory, the time is PollerTime.
//
// A host that has no place in the queue, because Redis does not permit it one, waits as
// those programs do: it is subscribed, or polls.
type arbiter struct {
	phase  contention
	rivals *rivals // the lock's
	remote remoteHolder

	nextTry      int64 // no Take before, unless Redis has the lock for this host
	backoffUntil int64 // and no earlier nextTry, because the lock is left to others
	rivalUntil   int64 // a program had the lock without being subscribed; see Config.RivalMemory

	sub                  subscription
	lingerUntil          int64 // the subscription is kept until then
	unneededMessages     uint8 // received since a waiter here waited for another host
	ownPublishesPending  uint8 // messages to come that this host has published itself,
	ownPublishesDeadline int64 // and until when: a lost one must not have another's taken for it
	isPolling            bool  // counts in policy.polling
}

// contention is what the arbiter does about other hosts.
//
//	           the turn is over
//	contending ────────────────▶ yielding
//	     ▲                          │ the Drop is done, or another sidecar or a result
//	     └──────────────────────────┘ of Redis gives this host the lock
type contention uint8

const (
	// contending: this host asks for a lock that it does not have from nextTry on, and
	// hands over between its clients the lock that it has.
	contending contention = iota

	// yielding: this host has had the lock for long enough in a row. It releases the lock
	// in Redis before a local client gets it again.
	yielding
)

// remoteHolder is what Redis returned last about a holder on another host.
type remoteHolder struct {
	isKnown   bool // another host had the lock at the last result
	isSidecar bool // the recall reached it
	field     string
	ttlMS     int64 // its time to live then; −1: none
	seenAt    int64 // when the result came
	askedAt   int64 // when the operation was sent that it is the result of
}

// rivals is what is known of other hosts that want the lock. It outlives the arbiter,
// which exists only while the lock is contended.
type rivals struct {
	pollerAt   uint32 // when a program was found to have the lock without being subscribed: see shortMillis; 0: it is not known
	listeners  int16  // subscribers of the lock's channel, this sidecar among them, up to math.MaxInt16; −1: unknown
	areWaiting bool   // there are tickets in the queue while this host has the lock, as far as is known
}

// quietTime is how long the lock passes from owner to owner without a free moment.
func (r *rivals) quietTime(cfg *Config, now int64) int64 {
	if r.pollerAt != 0 && shortMillis(now)-r.pollerAt < shortMillis(int64(cfg.RivalMemory)) {
		return int64(cfg.PollerTime)
	}
	return int64(cfg.QuietTime)
}

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
	polling int   // locks that are polled because their subscription does not work
	trip    int64 // a short round trip to Redis, ns; see noteTrip
	latency int64 // how long Redis takes to answer now, ns; 0: it is not known
}

// maxUnneededMessages is how many messages a subscription is kept for that no waiter needs:
// each costs Redis as much as another subscription.
const maxUnneededMessages = 4

// ownPublishWithin is how long a host waits for the message of a release of its own. Later
// it is taken for another program's, and the key is checked without need.
const ownPublishWithin = int64(time.Second)

// maxTTL bounds the time to live of another program's key, ms: a year. Redis has any
// number that fits into 63 bits.
const maxTTL = int64(365 * 24 * time.Hour / time.Millisecond)

// expirySpacing is how far apart the hosts of a queue ask for a lock whose holder has let its
// lease end.
const expirySpacing = int64(5 * time.Millisecond)

// noteTrip notes how long Redis took to answer. The shortest answers are what counts: the
// others are of a busy Redis or a busy host. It grows slowly, if the network has changed.
func (p *policy) noteTrip(d int64) {
	if d < p.trip {
		p.trip = max(d, 0)
	} else {
		p.trip += (min(d, 2*p.trip+int64(time.Millisecond)) - p.trip) / 1024
	}
}

// noteLatency notes how long Redis took to answer, as noteTrip does; but here it counts how slow
// it is now. More than Config.Linger makes no difference.
func (p *policy) noteLatency(d int64) {
	switch d = min(d, int64(p.cfg.Linger)); {
	case d <= 0:
	case p.latency == 0:
		p.latency = d
	default:
		p.latency += (min(d, 2*p.latency) - p.latency) / 8 // a moment in which Redis or the host stood still counts little
	}
}

// turn is how long a turn may last while another sidecar waits: two round trips, so that most of
// the time the lock is in use, and not on its way.
func (p *policy) turn() int64 {
	if p.cfg.Turn != 0 {
		return int64(p.cfg.Turn)
	}
	return min(max(2*p.trip, int64(200*time.Microsecond)), int64(20*time.Millisecond))
}

// others is how many programs are subscribed to the lock's channel, this host not counted, as
// far as is known; −1: it is not.
func (a *arbiter) others() int16 {
	n := a.rivals.listeners
	if n > 0 && a.sub == subscribed {
		n--
	}
	return n
}

// isBackingOff reports whether the lock is left to other hosts.
func (a *arbiter) isBackingOff(now int64) bool { return now < a.backoffUntil }

// isYielding reports whether local waiters do not get the lock because it is the turn of
// another host.
func (a *arbiter) isYielding(now int64) bool { return a.phase == yielding || a.isBackingOff(now) }

// refusesTries reports whether a request that does not wait is refused because it is the turn of
// another host. While the release that ends this host's turn is in flight, that takes another host
// or a program that is known to want the lock: otherwise the result says whether any does.
func (a *arbiter) refusesTries(now int64, c *remoteClaim) bool {
	if a.phase == yielding && c.op.kind == redisop.Drop {
		return a.rivals.areWaiting || a.others() > 0 || now < a.rivalUntil
	}
	return a.isYielding(now)
}

// onFirstRequest has Redis asked for the lock for a waiter that is now the first. noWait: it
// waits for the result only.
func (a *arbiter) onFirstRequest(now int64, noWait bool) {
	if noWait && !a.areRivalsKnown(now) {
		a.backoffUntil = now
		a.phase = contending
	}
	a.nextTry = max(now, a.backoffUntil)
}

// tryBy moves the next try forward.
func (a *arbiter) tryBy(at int64) { a.nextTry = min(a.nextTry, max(at, a.backoffUntil)) }

// leaveFree leaves the lock free for so long.
func (a *arbiter) leaveFree(now, pause int64) {
	a.backoffUntil = max(a.backoffUntil, now+pause)
	a.nextTry, a.phase = a.backoffUntil, contending
}

// lookForPoller has Redis asked while the lock is left free, at a moment that is left to chance: a
// program that polls has the lock then, with luck. Without that, only a program that has it for
// longer is met. It is asked again until the answer may come after the pause, and not if a program
// was met lately. Such a Take takes nothing: see want.onlyAsk.
func (a *arbiter) lookForPoller(p *policy, now int64) {
	isKnown := a.rivals.pollerAt != 0 && shortMillis(now)-a.rivals.pollerAt < shortMillis(int64(p.cfg.RivalMemory)/2)
	if left := a.backoffUntil - now - 2*p.trip; p.trip > 0 && left > 0 && !isKnown {
		a.nextTry = now + p.rng.Int64N(left)
	}
}

// onFreed notes that another sidecar left the lock free for so long. A request that does not
// wait is not kept from it.
func (a *arbiter) onFreed(p *policy, now, pause int64, noWait bool) {
	if noWait {
		pause = 0
	}
	a.remote.isKnown = false
	a.leaveFree(now, pause)
	a.lookForPoller(p, now)
}

// onUnlocked notes that a release was published while a client here waits for another host.
//
// A sidecar passes a lock on to the first of its queue, and publishes only if it leaves the lock
// free for programs that are no sidecars. So a host with a ticket backs off if a sidecar had the
// lock. If a program had it, the first two of the queue ask at once.
func (a *arbiter) onUnlocked(p *policy, now int64, pl *place) {
	switch {
	case !pl.isQueued():
		a.tryBy(now)
	case pl.rank >= 2: // those before it ask
	case a.remote.isSidecar:
		a.tryBy(now + int64(p.cfg.Backoff))
	default:
		a.tryBy(now)
	}
}

// mustOnlyAsk decides whether a Take of this host, which shows that it still waits, leaves a
// free lock alone. Such a lock was left free for a moment: for programs that are no sidecars,
// and then for the first of the queue. With a thousand hosts, one of them asks in every such
// moment.
func (a *arbiter) mustOnlyAsk(now int64, pl *place) bool {
	hasExpired := a.remote.ttlMS >= 0 && now > a.remote.seenAt+ms(a.remote.ttlMS)
	return a.remote.isKnown && a.isTold(pl) && pl.rank > 0 && !hasExpired
}

// onFoundFree notes that such a Take found the lock free. If it is still free in a moment, no
// other host wants it. A request that does not wait is not kept from it.
func (a *arbiter) onFoundFree(p *policy, now int64, noWait bool) {
	a.remote.isKnown = false
	a.nextTry = max(now, a.backoffUntil)
	if a.isBackingOff(now) {
		a.lookForPoller(p, now)
	} else if !noWait {
		a.nextTry = max(now+int64(p.cfg.Backoff), a.backoffUntil)
	}
}

// onRefused notes that Redis did not carry out an operation and does not say who has the lock: the
// holder that it named before may be gone.
func (a *arbiter) onRefused() { a.remote.isKnown = false }

// pollPause is how long a lock that another host has is not asked for if no message comes, by
// a host that has no ticket.
func (a *arbiter) pollPause(p *policy) int64 {
	if a.sub == subscribed {
		return int64(p.cfg.Poll)
	}
	return int64(min(max(p.cfg.PollDeaf, time.Duration(p.polling)*p.cfg.PollDeafLeast), p.cfg.Poll))
}

// refreshPause is how long a host with a ticket does not ask again: it shows that it lives,
// and what it is told of its ticket is the beginning of a transfer's validity.
func (p *policy) refreshPause() int64 {
	pause := min(int64(p.cfg.Poll), int64(p.cfg.Lease)/6)
	return pause + p.rng.Int64N(pause/4+1)
}

// onAcquired notes that the lock has come to this host, or that Redis has confirmed that it
// has it.
func (a *arbiter) onAcquired(was claimState) {
	a.remote.isKnown = false
	a.nextTry = 0 // it was of a holder that is gone
	if !was.isOurs() && a.phase == yielding {
		a.phase = contending
	}
}

// mayGrant decides whether a local waiter may get a lock that is this host's in Redis, or
// whether the host has to yield. A request that does not wait is not kept from a lock that
// no other host is known to want. isReachable: Redis can be asked; otherwise no other host
// could get the lock.
func (a *arbiter) mayGrant(p *policy, now int64, c *remoteClaim, noWait, isReachable, inOrder bool) bool {
	if !isReachable {
		a.phase = contending
		return true
	}
	if a.phase != yielding {
		if isQuiet := !a.areRivalsKnown(now); a.isTurnOver(p, now, c, inOrder) && (!isQuiet || !noWait) {
			a.phase = yielding
		}
	}
	return a.phase != yielding
}

// areRivalsKnown reports whether another host is known to want the lock, or a program is
// likely to.
func (a *arbiter) areRivalsKnown(now int64) bool { return a.rivals.areWaiting || a.arePrograms(now) }

// arePrograms reports whether a program that is no sidecar is known to want the lock, or likely
// to.
func (a *arbiter) arePrograms(now int64) bool { return a.others() != 0 || now < a.rivalUntil }

// isTurnOver reports whether this host has had the lock for long enough in a row.
//
// If no other host is known to want it, one handoff is always allowed: the waiter of a holder
// that was killed after hours gets the lock at once. Between sidecars, a lock that is in order
// has no turns.
func (a *arbiter) isTurnOver(p *policy, now int64, c *remoteClaim, inOrder bool) bool {
	cfg := p.cfg
	othersWait := a.rivals.areWaiting && !inOrder
	switch had := now - c.cameAt; {
	case c.grants == 0:
		return false
	case othersWait && (int(c.grants) >= cfg.HandoffBudget || had >= p.turn()),
		(othersWait || a.arePrograms(now)) && (int(c.grants) >= cfg.HandoffBudget || had >= int64(cfg.HandoffTime)):
		return true
	}
	return c.grants >= 2 && c.isTired(cfg, a.rivals, now)
}

// mayPipeline decides whether a Take may be pipelined after a Drop of the same key, so that
// an acquire right after a release costs one round trip and not two. They may even be
// executed in the other order: a Drop touches no later number.
//
// With a pipelined Take the key never disappears, so no other host can win it. Pipeline only
// while no other host is known to be subscribed, and for QuietTime at most, because a client that
// may not subscribe polls instead. A host whose turn is over pipelines the Take that puts it
// behind all others in the queue, unless the lock may be left free by the Drop. yields: its waiters
// are not to get the lock before. inOrder: the Take
// puts its next waiter to where it belongs, and leaves a lock free that the Drop leaves free.
func (a *arbiter) mayPipeline(p *policy, now int64, c *remoteClaim, yields, mayQueue, inOrder bool) bool {
	if yields {
		return mayQueue && (inOrder || a.rivals.areWaiting && c.op.passedMS < pauseAfterMS)
	}
	return !a.areRivalsKnown(now) && !c.isTired(p.cfg, a.rivals, now)
}

// pauseAfterMS is PassedMS of a Drop from which on it leaves the lock free although there is
// a queue; see scripts/acquire_release.lua in package store.
const pauseAfterMS = 100

// onDropDone notes that Redis has executed this host's release.
func (a *arbiter) onDropDone(p *policy, now int64, r *redisop.Result, noWait bool) {
	a.remote.isKnown = false // of before
	isQuiet := !a.areRivalsKnown(now)
	switch {
	case !r.Paused && (a.phase != yielding || r.Passed):
		a.nextTry, a.phase = max(now, a.backoffUntil), contending
	case isQuiet && noWait:
		a.leaveFree(now, 0)
	default:
		// By the listeners, Redis has chosen the pause of the first of the queue.
		a.leaveFree(now, p.freePause(a.arePrograms(now) || r.Paused && r.Listeners != 0))
		if isQuiet {
			a.lookForPoller(p, now)
		}
	}
}

// freePause is how long a host leaves a lock free that it has released for others. arePrograms:
// a program that is no sidecar is known to want it, or is likely to. That other sidecars are in the
// queue makes no difference: the first of them asks after QuietPause or Backoff, too.
func (p *policy) freePause(arePrograms bool) int64 {
	if arePrograms {
		return int64(p.cfg.Backoff)
	}
	return int64(p.cfg.QuietPause)
}

// onHeldByOther notes the result that another host has the lock, and until when there is
// no use in asking again. noWait: the first waiter is a try that came after the operation was
// sent.
func (a *arbiter) onHeldByOther(p *policy, now int64, r *redisop.Result, op *inFlight, pl *place, noWait bool) {
	isQueued := r.Ticket != 0
	if p.cfg.HostName != nil && r.Field != "" && r.Field != a.remote.field {
		p.cfg.HostName(r.Field) // so that it is known when a message needs it
	}
	a.remote = remoteHolder{
		isKnown: true, isSidecar: isQueued && r.HolderReached != 0,
		field: printable(r.Field), ttlMS: min(r.TTLMS, maxTTL), seenAt: now, askedAt: op.sentAt,
	}
	a.phase = contending
	if r.Field == "" {
		// This host has left it free. The first of the queue asks after the pause; so does a host
		// without a place in it.
		switch {
		case noWait && !a.areRivalsKnown(now):
			a.leaveFree(now, 0)
		case r.Rank > 0:
			a.nextTry = now + p.refreshPause()
		default:
			a.leaveFree(now, p.freePause(a.arePrograms(now)))
		}
		return
	}
	isTold := a.isTold(pl)
	pause := a.pollPause(p)
	if isTold || isQueued && a.sub == subscribed {
		pause = p.refreshPause()
	}
	if a.remote.ttlMS >= 0 {
		expiry := ms(a.remote.ttlMS + 1)
		if isQueued {
			expiry += int64(r.Rank) * expirySpacing
		}
		pause = min(pause, expiry)
	}
	if !isTold && a.sub != subscribed {
		// Its period must not be that of the pauses which the holder's host makes.
		pause = pause/2 + p.rng.Int64N(pause)
	}
	a.nextTry = now + pause
	a.backoffUntil = min(a.backoffUntil, now) // the moment in which it was free is over
	if a.others() == 0 && !a.remote.isSidecar {
		a.rivalUntil = now + int64(p.cfg.RivalMemory)
		a.rivals.pollerAt = max(1, shortMillis(now))
	}
	if op.mayBeFree {
		a.tryBy(now)
	}
}

// isTold reports whether a sidecar will tell this host when it can have the lock, or when to
// ask: it has a ticket, and the holder is a sidecar or others stand before it that would ask.
func (a *arbiter) isTold(pl *place) bool {
	return pl.isQueued() && (a.remote.isSidecar || pl.rank >= 2)
}

// onOwnPublish notes a message on the lock's channel. It returns whether this host published
// it.
func (a *arbiter) onOwnPublish(now int64) (own bool) {
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

// onDropSent notes that a Drop was sent, which publishes a message unless its result says otherwise.
func (a *arbiter) onDropSent(now int64) {
	if a.sub == subscribed && a.ownPublishesPending < math.MaxUint8 {
		a.ownPublishesPending++
		a.ownPublishesDeadline = now + ownPublishWithin
	}
}

// onDropResult corrects how many messages of its own this host expects, after a Drop that
// published none: the next message is another program's.
func (a *arbiter) onDropResult(r *redisop.Result) {
	switch {
	case a.ownPublishesPending == 0:
	case r.Outcome == redisop.Unknown:
		a.ownPublishesPending = 0 // if it was published, the key is checked once without need
	case r.Outcome != redisop.Done || r.Passed || r.Listeners == redisop.Uncounted:
		a.ownPublishesPending--
	}
}

// onSubscribed notes that Redis confirmed the subscription, for the first time or again:
// whatever was published before may have been missed, so a waiter for another host asks
// again.
func (a *arbiter) onSubscribed(now int64, isWaiting bool) {
	a.sub = subscribed
	if isWaiting && a.remote.isKnown {
		a.tryBy(now)
	}
}

// onUnsubscribed notes that the subscription is gone or was denied. The host polls
// until onSubscribed.
func (a *arbiter) onUnsubscribed(p *policy, now int64) {
	a.sub, a.ownPublishesPending = subscribing, 0
	a.tryBy(now + a.pollPause(p))
}

// updateSubscription decides whether the host is to be subscribed to the lock's channel:
//   - while local waiters wait for another host, and no sidecar would tell them that the lock
//     is free: there is no ticket, or the holder is no sidecar and only one ticket, or none,
//     stands before this host's;
//   - while local waiters have waited for long for one local holder, or as the first of the
//     queue: so that they notice at once if a program deletes the key;
//   - and for some time after; in the second case not if sidecars queue for the lock. Every
//     subscriber counts as a program that waits, for which they leave the lock free more often
//     and for longer.
//
// head is the first waiter, or nil; heldSince is when the local hold was granted, or never.
// It returns the effect that is needed; 0: none.
func (a *arbiter) updateSubscription(p *policy, at *alarm, head *waiter, heldSince int64, pl *place) (effect EffectKind) {
	isNeeded, isPolling := false, false
	lingerUntil := at.now + int64(p.cfg.SubscriptionLinger)
	isHeld := heldSince != never
	switch isAway := !isHeld && a.remote.isKnown; {
	case head == nil:
	case isAway && (pl.phase == placeAsked || pl.phase == placeLeaving):
		isNeeded, isPolling = a.sub != unsubscribed, a.isPolling // until the result that is to come
		lingerUntil = at.now
	case isAway && !a.isTold(pl):
		isNeeded, isPolling = true, a.sub != subscribed
	case isHeld || isAway && pl.rank == 0:
		since := heldSince
		if isAway {
			since = pl.since
		}
		isNeeded = at.due(max(head.request.since, since) + int64(p.cfg.WatchAfter))
		if pl.isQueued() || a.rivals.areWaiting {
			lingerUntil = at.now
		}
	}
	if isNeeded {
		a.lingerUntil, a.unneededMessages = max(a.lingerUntil, lingerUntil), 0
		if a.sub == unsubscribed {
			a.sub, effect = subscribing, Subscribe
		}
	} else if a.sub != unsubscribed && at.due(a.lingerUntil) {
		a.sub, a.ownPublishesPending, effect = unsubscribed, 0, Unsubscribe
	}
	if isPolling != a.isPolling {
		a.isPolling = isPolling
		p.polling += btoi(isPolling) - btoi(!isPolling)
	}
	return effect
}

// isIdle reports whether nothing is lost if the arbiter is forgotten.
func (a *arbiter) isIdle() bool { return a.sub == unsubscribed && a.phase != yielding }

package contest

import "github.com/locksidecar/locksidecar/sidecar/redisop"

// Contest is what this host knows of one contended lock, and what it does about other hosts.
type Contest struct {
	phase  phase
	memory *Memory // the lock's
	remote Remote

	nextTry      int64 // no Take before, unless Redis has the lock for this host
	backoffUntil int64 // and no earlier nextTry, because the lock is left to others
	foreignUntil int64 // a foreign client had the lock without being subscribed; see Config.ForeignMemory

	subscription
	place Place
	order order
	asked asked
}

// asked is what the last Take asked for: permits, and of how many; or a mode of a read/write lock, and where the host waits.
type asked struct{ want, of uint16 }

// phase is what this host does about other hosts.
//
//	           the turn is over
//	contending ────────────────▶ yielding
//	     ▲                          │ the Drop is done, or another sidecar or a result
//	     └──────────────────────────┘ of Redis gives this host the lock
type phase uint8

const (
	// contending: this host asks for a lock that it does not have from nextTry on, and
	// hands over between its clients the lock that it has.
	contending phase = iota

	// yielding: this host has had the lock for long enough in a row. It releases the lock
	// in Redis before a local client gets it again.
	yielding
)

// Begin begins the contest for a lock. memory is the lock's.
func (c *Contest) Begin(memory *Memory) { c.memory = memory }

// Remote is what Redis returned last about a holder on another host.
type Remote struct {
	isKnown   bool // another host had the lock at the last result
	isSidecar bool // the recall reached it; or it has no connection, and its field is one of a sidecar
	field     string
	ttlMS     int64 // its time to live then; −1: none
	seenAt    int64 // when the result came
	askedAt   int64 // when the operation was sent that it is the result of
}

// Place is what this host has in the queue of a lock in Redis, as far as it knows: see place.go.
type Place struct {
	phase      placePhase
	ticket     uint64       // it may stand in the queue; 0: of placeNone
	since      int64        // when the Take was sent that made it
	validSince int64        // a transfer of the ticket happens after this
	rank       int32        // tickets before it, at the last result
	conn       redisop.Conn // that this result came over; not known: there was none, or its server is not known
	arrived    uint64       // it stands in the queue as of a request that arrived then, by Redis's clock, µs
	queues     uint8        // of a read/write lock: in which it may stand

	// mayHaveLock: a message says that the lock passed to the ticket, and does not prove it. The
	// next Take finds out.
	mayHaveLock bool
}

type placePhase uint8

const (
	placeNone    placePhase = iota // Redis has no ticket of this host
	placeAsked                     // a Take was sent that makes the ticket, and has no result
	placeQueued                    // the ticket stands, or was transferred
	placeLeaving                   // it is given up, and dead
)

// isQueued reports whether Redis has answered that the ticket stands.
func (p *Place) isQueued() bool { return p.phase == placeQueued }

// live is the ticket that may be transferred to this host; 0: none.
func (p *Place) live() uint64 {
	if p.phase == placeLeaving {
		return 0
	}
	return p.ticket
}

// served returns which waiters may get the lock when the ticket does: those that arrived no later than
// the one for which it stands, or, if its arrival is not known, those that came before the ticket.
func (p *Place) served() served {
	if p.arrived != 0 {
		return served{upTo: p.arrived}
	}
	return served{until: p.since}
}

// order is what is known of strict order between hosts: see order.go.
type order struct {
	asked    uint64 // the arrival that the last Take carried; 0: none
	toServe  served // which waiters are served if that Take gets the lock
	served   served
	retryAt  int64 // no Arrive before, because the last one failed
	isDenied bool  // Redis refused the last one: arrivals cannot be known before a Take is executed
}

// served says which waiters may get the lock that this host has, without a look at the queue in
// Redis: no ticket in it arrived before them.
type served struct {
	until int64  // those that came here until then, by this host's clock; 0: none
	upTo  uint64 // those that arrived until then, by Redis's clock, µs
}

func (s *served) includes(w *Waiter) bool {
	return s.until != 0 && w.Since <= s.until || w.Arrived != 0 && w.Arrived <= s.upTo
}

// subscription is this host's subscription to the channel of the lock.
type subscription struct {
	sub              subscriptionState
	isPolling        bool  // counts in Shared.polling
	unneededMessages uint8 // received since a waiter here waited for another host
	subscribedUntil  int64 // the subscription is kept until then
}

type subscriptionState uint8

const (
	unsubscribed subscriptionState = iota
	subscribing                    // requested, not confirmed by Redis, or broken
	subscribed
)

package sidecar

import (
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// event is an input of the loop that no client's request is. Which fields count depends
// on kind.
type event struct {
	kind    eventKind
	flag    bool
	session locktable.SessionID
	results []locktable.Result
	redis   store.Identity
	names   []string
	text    string
	done    chan struct{}
}

type eventKind uint8

const (
	loopPing     eventKind = iota // done
	processEnded                  // session

	redisResults // results; flag: redis has a new floor of tokens
	redisUp      // flag: data may be lost; redis
	redisDown    // text
	redisSubscribed
	redisUnsubscribed
)

// request is an input of the loop that a client's connection brings. Which fields count
// depends on kind.
type request struct {
	kind    requestKind
	conn    *conn
	acquire protocol.Acquire
	release protocol.Release
	other   interface{ RequestID() uint64 } // owned by the request; *refused
	fault   *protocol.Err
}

type requestKind uint8

const (
	clientHello   requestKind = iota // other: a *protocol.Hello
	clientAcquire                    // acquire
	clientRelease                    // release
	clientOther                      // other
	clientGone                       // the connection ended
	clientBroke                      // fault: it broke the rules of the protocol
)

// last tells whether a connection asks for nothing after it.
func (k requestKind) last() bool { return k == clientGone || k == clientBroke }

// inbox carries inputs to the loop. It never blocks a sender; each sender has a bound of
// its own (conn.throttle, the operations in flight).
//
// Events come first, in order: what Redis answered and which process ended must not wait
// for clients. Requests are taken in turn from each user, and of each user from each
// process, in order for each connection: see fairQueue.
type inbox struct {
	ready chan struct{} // holds one token when run is to take what is there

	mu       sync.Mutex // guards what follows
	events   []event
	messages map[string]int // by name: how many were published since the last step
	requests fairQueue
	ending   bool // no reader waits for room
	held     bool // no requests are taken until there is an event: Redis is behind
}

// Of this many messages for one lock in one step the table is told; more say nothing new.
const maxMessages = 8

func (b *inbox) init() {
	b.ready = make(chan struct{}, 1)
	b.messages = make(map[string]int)
	b.requests.init()
}

// put adds an event.
func (b *inbox) put(e event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, e)
}

// publish adds a message for each of the names.
func (b *inbox) publish(names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		b.messages[name] = min(b.messages[name]+1, maxMessages)
	}
}

// add adds requests of one process, once those that it has there leave room.
func (b *inbox) add(from *peerProcess, requests []request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for from.len() >= maxWaiting && !b.ending {
		from.room.Wait()
	}
	b.requests.push(from, requests)
}

// end has no reader wait for room any more.
func (b *inbox) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ending = true
	for _, p := range b.requests.processes {
		p.room.Broadcast()
	}
}

// wake has run take what is there.
func (b *inbox) wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// pending reports whether there is anything that the loop would take now.
func (b *inbox) pending() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.events) > 0 || len(b.messages) > 0 || b.requests.len > 0 && !b.held
}

// takeEvents swaps events and messages for empty ones.
func (b *inbox) takeEvents(events []event, messages map[string]int) ([]event, map[string]int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events, events = events[:0], b.events
	b.messages, messages = messages, b.messages
	return events, messages
}

// hold has requests wait, or ends that.
func (b *inbox) hold(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = on
}

// takeRequest takes the next request, after it charged the one before: cost is what that
// took of the loop, ns.
func (b *inbox) takeRequest(before *peerProcess, cost int64, r *request) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before != nil {
		before.charge(cost)
	}
	return b.requests.pop(r)
}

// charge has a process pay for its last request of a step.
func (b *inbox) charge(p *peerProcess, cost int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.charge(cost)
}

// join and leave count a connection of a process: until its last request was done.

func (b *inbox) join(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.sender = b.requests.join(c)
	c.sender.room.L = &b.mu
}

// conns is how many connections all users have, and this one.
func (b *inbox) conns(uid int64) (all, own int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if u := b.requests.byUID[uid]; u != nil {
		own = u.conns
	}
	return b.requests.conns, own
}

func (b *inbox) leave(p *peerProcess) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests.leave(p)
}

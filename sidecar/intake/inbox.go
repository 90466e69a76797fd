// Package intake is the queue of the loop's inputs, and what bounds it: each process and user of the host
// has its share.
package intake

import (
	"sync"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Inbox is the queue of the loop's inputs: events, of type E, and requests of clients, of type R. Its
// length is bounded by its senders: by what a connection may have in it, maxQueuedOfProcess, and the
// number of operations in flight; and for messages, which any program can publish, by AddMessages.
//
// Events come first, in order: results of Redis, messages and ends of processes must not wait
// for requests of clients. Requests come from the users in turn, and of each user from its
// processes in turn, in order for each connection: see queue.
type Inbox[E, R any] struct {
	ready chan struct{} // has an element when the loop has to read the inbox

	mu              sync.Mutex // guards what follows
	events          []Event[E]
	unlocked        map[string]int // by name: how many messages of kind Unlocked the last event has
	ownMessages     int            // messages of other kinds that events have
	requests        queue[R]
	unblocked       bool // AddRequests does not block any more
	redisBacklogged bool // requests wait, because too many operations wait to be sent to Redis
}

// Event is an input that does not come from a client.
type Event[E any] struct {
	IsMessages bool              // what follows; or else it is Other
	Messages   []redisop.Message // of Redis
	Other      E
}

const (
	// maxUnlocked is how many messages of kind Unlocked for one lock the table gets with nothing
	// else between them. More of them have no further effect.
	maxUnlocked = 8

	// maxOwnMessages is how many messages of other kinds wait for one step, at most. Sidecars do
	// not send that many; and each may be lost, because a waiter asks Redis again now and then.
	maxOwnMessages = 1 << 14
)

// New makes an inbox.
func New[E, R any]() *Inbox[E, R] {
	return &Inbox[E, R]{ready: make(chan struct{}, 1), unlocked: make(map[string]int), requests: newQueue[R]()}
}

// Ready has an element when the loop has to read the inbox.
func (b *Inbox[E, R]) Ready() <-chan struct{} { return b.ready }

// AddEvent adds an event.
func (b *Inbox[E, R]) AddEvent(e E) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, Event[E]{Other: e})
	b.beginMessages()
}

// AddMessages adds messages, without those that have no further effect: to the last event, if
// that has messages, or as an event.
func (b *Inbox[E, R]) AddMessages(messages []redisop.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.events); n == 0 || !b.events[n-1].IsMessages {
		b.events = append(b.events, Event[E]{IsMessages: true})
	}
	e := &b.events[len(b.events)-1]
	for _, m := range messages {
		switch {
		case m.Kind == redisop.Unlocked && b.unlocked[m.Name] < maxUnlocked:
			b.unlocked[m.Name]++
		case m.Kind != redisop.Unlocked && b.ownMessages < maxOwnMessages:
			b.ownMessages++
		default:
			continue
		}
		e.Messages = append(e.Messages, m)
	}
}

// beginMessages: the next messages are not of the same event as those before. The caller holds mu.
func (b *Inbox[E, R]) beginMessages() {
	if len(b.unlocked) > 0 {
		clear(b.unlocked)
	}
}

// AddRequests adds requests of one process. It blocks while maxQueuedOfProcess requests of that
// process are queued.
func (b *Inbox[E, R]) AddRequests(from *Process[R], requests []R) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for from.len() >= maxQueuedOfProcess && !b.unblocked {
		from.room.Wait()
	}
	b.requests.push(from, requests)
}

// Unblock ends the blocking of AddRequests for good.
func (b *Inbox[E, R]) Unblock() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unblocked = true
	for _, p := range b.requests.processes {
		p.room.Broadcast()
	}
}

// Wake has the loop read the inbox.
func (b *Inbox[E, R]) Wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// HasInput reports whether the loop has something to read now.
func (b *Inbox[E, R]) HasInput() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.events) > 0 || b.requests.hasTurns() && b.requests.len > 0 && !b.redisBacklogged
}

// SwapEvents returns the events, and continues with these emptied ones.
func (b *Inbox[E, R]) SwapEvents(events []Event[E]) []Event[E] {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events, events = events[:0], b.events
	b.beginMessages()
	b.ownMessages = 0
	return events
}

// SetRedisBacklogged has requests wait in the inbox, or ends that.
func (b *Inbox[E, R]) SetRedisBacklogged(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.redisBacklogged = on
}

// NextRequest removes the next request and stores it in r; false: there is none. First it
// charges the process of the request before for cost, the time that this took in the loop, ns. A process
// whose next request isHeld waits until ResumeHeld.
func (b *Inbox[E, R]) NextRequest(before *Process[R], cost int64, r *R, isHeld func(*R) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before != nil {
		before.charge(cost)
	}
	return b.requests.pop(r, isHeld)
}

// ResumeHeld has the processes looked at again whose requests were held back.
func (b *Inbox[E, R]) ResumeHeld() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests.resume()
}

// Charge charges a process for the time of its last request in a step, ns.
func (b *Inbox[E, R]) Charge(p *Process[R], cost int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.charge(cost)
}

// AddConn counts a connection of a process, until RemoveConn, and returns the process. pid 0: it is not
// visible here.
func (b *Inbox[E, R]) AddConn(uid, pid int64) *Process[R] {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.requests.addConn(uid, pid)
	p.room.L = &b.mu
	return p
}

// Conns returns the number of connections of all users, and of this one.
func (b *Inbox[E, R]) Conns(uid int64) (all, own int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if u := b.requests.byUID[uid]; u != nil {
		own = u.conns
	}
	return b.requests.conns, own
}

// RemoveConn is called after the last request of a connection was done.
func (b *Inbox[E, R]) RemoveConn(p *Process[R]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests.removeConn(p)
}

package sidecar

import (
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// event is an input of the loop that does not come from a client's connection. Which fields it
// has depends on kind.
type event struct {
	kind      eventKind
	flag      bool
	listening bool
	shard     redisop.Shard
	session   locktable.SessionID
	results   []redisop.Result
	messages  []redisop.Message
	redis     wire.Identity
	names     []string
	routes    []redisop.SlotRange
	text      string
	body      []byte
	done      chan struct{}
	query     func(now int64)
}

type eventKind uint8

const (
	loopPing     eventKind = iota // done
	loopQuery                     // query, done
	processEnded                  // session

	hostQuestion // text: uuid of the sidecar that asks; body

	redisResults      // results; flag: redis has a new floor of tokens
	redisMessages     // messages
	redisUp           // shard; flag: data may be lost; listening; redis
	redisDown         // shard; text
	redisDegraded     // shard; text: why, "": it is not
	redisOpenSlots    // text: why slots stay open, "": none does
	redisRoute        // routes
	redisSubscribed   // shard; names
	redisUnsubscribed // shard; names
)

// request is an input of the loop that comes from a client's connection. Which fields it has
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
	clientHello         requestKind = iota // other: a *protocol.Hello
	clientAcquire                          // acquire
	clientRelease                          // release
	clientOther                            // other
	clientDisconnected                     // the connection ended
	clientProtocolError                    // fault: the client broke the protocol
)

// isLast reports whether no request of the connection follows.
func (k requestKind) isLast() bool { return k == clientDisconnected || k == clientProtocolError }

// inbox is the queue of the loop's inputs. Its length is bounded by its senders: conn.throttle,
// maxQueuedOfProcess, and the number of operations in flight; and for messages, which any
// program can publish, by addMessages.
//
// Events come first, in order: results of Redis, messages and ends of processes must not wait
// for requests of clients. Requests come from the users in turn, and of each user from its
// processes in turn, in order for each connection: see fairQueue.
type inbox struct {
	ready chan struct{} // has an element when the loop has to read the inbox

	mu              sync.Mutex // guards what follows
	events          []event
	unlocked        map[string]int // by name: how many messages of kind Unlocked the last event has
	ownMessages     int            // messages of other kinds that events have
	requests        fairQueue
	unblocked       bool // addRequests does not block any more
	redisBacklogged bool // requests wait, because too many operations wait to be sent to Redis
}

const (
	// maxUnlocked is how many messages of kind Unlocked for one lock the table gets with nothing
	// else between them. More of them have no further effect.
	maxUnlocked = 8

	// maxOwnMessages is how many messages of other kinds wait for one step, at most. Sidecars do
	// not send that many; and each may be lost, because a waiter asks Redis again now and then.
	maxOwnMessages = 1 << 14
)

func (b *inbox) init() {
	b.ready = make(chan struct{}, 1)
	b.unlocked = make(map[string]int)
	b.requests.init()
}

// addEvent adds an event.
func (b *inbox) addEvent(e event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, e)
	b.beginMessages()
}

// addMessages adds messages, without those that have no further effect: to the last event, if
// that has messages, or as an event.
func (b *inbox) addMessages(messages []redisop.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.events); n == 0 || b.events[n-1].kind != redisMessages {
		b.events = append(b.events, event{kind: redisMessages})
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
		e.messages = append(e.messages, m)
	}
}

// beginMessages: the next messages are not of the same event as those before. The caller holds mu.
func (b *inbox) beginMessages() {
	if len(b.unlocked) > 0 {
		clear(b.unlocked)
	}
}

// addRequests adds requests of one process. It blocks while maxQueuedOfProcess requests of that
// process are queued.
func (b *inbox) addRequests(from *peerProcess, requests []request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for from.len() >= maxQueuedOfProcess && !b.unblocked {
		from.room.Wait()
	}
	b.requests.push(from, requests)
}

// unblock ends the blocking of addRequests for good.
func (b *inbox) unblock() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unblocked = true
	for _, p := range b.requests.processes {
		p.room.Broadcast()
	}
}

// wake has loop.run read the inbox.
func (b *inbox) wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// hasInput reports whether the loop has something to read now.
func (b *inbox) hasInput() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.events) > 0 || b.requests.hasTurns() && b.requests.len > 0 && !b.redisBacklogged
}

// swapEvents returns the events, and continues with these emptied ones.
func (b *inbox) swapEvents(events []event) []event {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events, events = events[:0], b.events
	b.beginMessages()
	b.ownMessages = 0
	return events
}

// setRedisBacklogged has requests wait in the inbox, or ends that.
func (b *inbox) setRedisBacklogged(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.redisBacklogged = on
}

// nextRequest removes the next request and stores it in r; false: there is none. First it
// charges the process of the request before for cost, the time that this took in the loop, ns. A process
// whose next request isHeld waits until resumeHeld.
func (b *inbox) nextRequest(before *peerProcess, cost int64, r *request, isHeld func(*request) bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before != nil {
		before.charge(cost)
	}
	return b.requests.pop(r, isHeld)
}

// resumeHeld has the processes looked at again whose requests were held back.
func (b *inbox) resumeHeld() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests.resume()
}

// charge charges a process for the time of its last request in a step, ns.
func (b *inbox) charge(p *peerProcess, cost int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p.charge(cost)
}

// addConn counts a connection of its process, until removeConn.
func (b *inbox) addConn(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.sender = b.requests.addConn(c)
	c.sender.room.L = &b.mu
}

// conns returns the number of connections of all users, and of this one.
func (b *inbox) conns(uid int64) (all, own int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if u := b.requests.byUID[uid]; u != nil {
		own = u.conns
	}
	return b.requests.conns, own
}

// removeConn is called after the last request of a connection was done.
func (b *inbox) removeConn(p *peerProcess) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests.removeConn(p)
}

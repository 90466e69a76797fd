package sidecar

import (
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// input is one thing that the loop is told. Which fields count depends on what.
type input struct {
	what    what
	flag    bool
	conn    *conn
	session locktable.SessionID
	acquire protocol.Acquire
	release protocol.Release
	request interface{ RequestID() uint64 } // any other request, owned by the input; *refused
	results []locktable.Result
	redis   store.Identity
	names   []string
	text    string
	code    protocol.Code
	done    chan struct{}
}

type what uint8

const (
	ping what = iota

	clientHello   // request: a *protocol.Hello
	clientAcquire // acquire
	clientRelease // release
	clientRequest // request
	clientGone    // the connection ended
	clientBroke   // code, text: it broke the rules of the protocol
	processEnded  // session

	redisResults // results; flag: redis has a new floor of tokens
	redisUp      // flag: data may be lost; redis
	redisDown    // text
	redisSubscribed
	redisUnsubscribed
	redisMessage
)

// inbox carries inputs to the loop, in order for each sender. It never blocks a
// sender; each sender has a bound of its own (conn.throttle, the operations in
// flight).
type inbox struct {
	ready chan struct{} // holds one token when run is to take what is there

	mu   sync.Mutex // guards list
	list []input
}

func (b *inbox) init() { b.ready = make(chan struct{}, 1) }

// put adds inputs, and tells whether they are the first since the last take.
func (b *inbox) put(in ...input) (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first = len(b.list) == 0
	b.list = append(b.list, in...)
	return first
}

// wake has run take what is there.
func (b *inbox) wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// take swaps the list for an empty one.
func (b *inbox) take(empty []input) []input {
	b.mu.Lock()
	defer b.mu.Unlock()
	got := b.list
	b.list = empty[:0]
	return got
}

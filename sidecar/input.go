package sidecar

import (
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
	redis     wire.Identity
	names     []string
	routes    []redisop.SlotRange
	text      string
	question  protocol.Request
	done      chan struct{}
	query     func(now int64)
}

type eventKind uint8

const (
	loopPing     eventKind = iota // done
	loopQuery                     // query, done
	processEnded                  // session

	hostQuestion // text: uuid of the sidecar that asks; question

	redisResults      // results; flag: redis has a new floor of tokens
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

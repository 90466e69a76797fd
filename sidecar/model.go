package sidecar

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/eventlog"
	"github.com/locksidecar/locksidecar/sidecar/intake"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// loop is the state of a running sidecar. The goroutine that has locked running owns
// the rest of it: one that brought an input while it was free, for one step; or else run, for what
// was left meanwhile and what is due. Before run and after it, Listen and Serve have it.
type loop struct {
	// Immutable after Listen.
	cfg       Config
	log       *slog.Logger
	startedAt int64 // CLOCK_BOOTTIME, ns
	// gatherMetrics has metrics gathered, and calls answer with a page of them in a later step; nil: there are none.
	gatherMetrics func(after uint64, answer func(protocol.MetricsOK, error))
	uuid          string   // of the sidecar, of which this process may be a later one
	key           [32]byte // of tickets
	// overflowUID is the uid of all users that have none in this user namespace; −1: all have
	// one.
	overflowUID int64
	policy      *policy.Policy // nil: there is none

	// Safe for concurrent use.
	inbox    *intake.Inbox[event, request]
	senders  sync.WaitGroup // goroutines that put something into it: the accept loop, a reader for each connection, …
	redis    atomic.Pointer[redisHealth]
	shards   shardHealths
	surveyor surveyor
	troubles troubles
	// redisIsUp has an element when a connection to Redis was made, healthChanged when Redis
	// returns another text.
	redisIsUp, healthChanged chan struct{}
	ended                    chan struct{} // closed when the loop is not run any more

	running          sync.Mutex  // the first in the order of locks: it is locked with none held
	finishing        atomic.Bool // finish has locked running, and sleeps with it
	table            *locktable.Table
	store            *store.Store
	pids             *peers.Watch
	hosts            *otherhosts.Hosts
	state            *state.File // nil: nothing is kept for a successor
	sessions         map[locktable.SessionID]*session
	ledger           policy.Ledger
	last             locktable.SessionID // newest session
	newRedis         *wire.Identity      // what a successor must know of Redis, if it changed in this step
	stopping         bool
	redisBacklogged  bool                   // requests wait, because too many operations wait to be sent: see step
	backloggedShards map[redisop.Shard]bool // the same of the requests for locks of these, in a Cluster

	events  []intake.Event[event] // emptied, for the next takeEvents
	request request               // the one that is being done

	timer   *time.Timer // wakes run
	planned int64       // when it does, or did; never later than something is due; MaxInt64: nothing is

	eventLog     *eventlog.Log
	followers    []follower // that wait for events, at most maxFollowers
	followersDue int64      // when the next of them is answered; 0: there is no event for them
	stepAt       int64      // when the step began
	losses       lossWindow
	takeover     takeover
	crash        crash
	unusable     map[redisop.Shard]redisTrouble // of shards that are in trouble, as the newest event says
	openSlots    string                         // why slots stay open, as the newest event says; "": none is

	absentUntil int64 // when the next absent client has been waited for long enough; 0: none is
	lines       *loglimit.Log
	counters    counters
	gathering   int // requests for metrics that are being answered

	// Collected in one step and carried out at its end.
	dirty   []*conn
	byes    []bye
	closing []closing
	ops     []redisop.Op

	afterEffects []protocol.EventRow // events that come after those of the effects

	// Scratch for frames, so that an answer costs no allocation.
	granted  protocol.AcquireOK
	released protocol.ReleaseOK
	failed   protocol.Err
	lost     protocol.LostEvent
	lease    protocol.LeaseEvent
	page     protocol.ListOK

	eventPage protocol.EventsOK
}

// bye is a bye that is not answered yet.
type bye struct {
	session *session
	id      uint64
}

// closing is a connection that ends with a last frame.
type closing struct {
	conn *conn
	last protocol.Reply
}

// session is one client's conversation with the sidecar, as the loop knows it: its connection,
// its process and its ticket. What it holds and asks for is in the table (locktable/session.go,
// and locktable/resume.go for its claims). A resumable session outlives its connection and this
// process: the successor finds it in the state file.
type session struct {
	id        locktable.SessionID
	peer      locktable.Peer
	process   state.Process // as it was when the client sent its newest hello
	phase     locktable.SessionPhase
	conn      *conn // nil: there is none
	pidfd     int   // −1: not watched
	resumable bool
	policy    *policy.Session // nil: the policy says nothing about it

	// While its client is away:
	since  int64                      // the restart
	until  int64                      // how long it is waited for
	missed map[uint64]protocol.Reason // holds that it lost and does not know of

	forgotten int // holds that it claimed and that the table does not know
}

// conn is one connection. Its reader goroutine decodes requests, gives them to the loop,
// and mostly does the loop's step, too. The step writes the answers as long as the socket
// takes them.
type conn struct {
	nc  *net.UnixConn
	raw syscall.RawConn

	sender *intake.Process[request] // its process in the inbox; set before the reader starts
	unread *atomic.Int64            // of all connections: bytes of answers that no socket has taken

	// Set before the reader hands over anything, then owned by the loop.
	peer    locktable.Peer
	process state.Process
	gid     int64
	pidfd   int // −1: not watched, or the client's by now

	policyPeer *policy.Peer    // the peer, as the policy needs it; nil: there is no policy
	denial     *protocol.Err   // why that is not known; nil: it is
	rules      *policy.Rules   // what the policy says about it; nil: nothing
	refusal    *policy.Refusal // why that is not known; nil: it is

	// Owned by the reader.
	pace     *intake.Pace // nil: the policy does not limit its requests
	isSlowed bool         // its last requests came faster than that

	// Owned by the loop.
	session *session // nil: there is none
	dirty   bool     // in loop.dirty
	isOver  bool     // of one that is drained: the client had ended it before

	isDraining atomic.Bool // the sidecar stops: see drain

	mu          sync.Mutex    // guards what follows; no other lock is taken under it
	changed     sync.Cond     // on mu: queued or out became less, out takes no more, or isAbandoned
	asking      int           // questions to other hosts that have no answer
	queued      int           // requests that the loop has not taken
	isAbandoned bool          // see abandon
	out         *rawio.Writer // of frames; finished with the last frame
	counted     int           // what unread has of this connection
	lease       int64         // position in out of the newest `lease` event; it is queued unless Begun is greater
}

// event is an input of the loop that does not come from a client's connection. Which fields it
// has depends on kind.
type event struct {
	kind     eventKind
	session  locktable.SessionID
	redis    store.Event
	from     string
	question protocol.Request
	done     chan struct{}
	query    func(now int64)
}

type eventKind uint8

const (
	loopQuery    eventKind = iota // query, done
	processEnded                  // session

	hostQuestion // from: uuid of the sidecar that asks; question
	ofRedis      // redis
)

// request is an input of the loop that comes from a client's connection. Which fields it has
// depends on kind.
type request struct {
	kind    requestKind
	conn    *conn
	lock    redisop.LockKind        // of acquire
	shared  bool                    // of acquire, if lock is a read/write lock
	acquire protocol.AcquirePermits // Permits and Of: of a semaphore
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

// follower is an `events` request that waits for an event.
type follower struct {
	session *session
	conn    *conn
	id      uint64
	after   uint64
}

// surveyor makes surveys, one at a time.
type surveyor struct {
	mu   sync.Mutex // locked during a survey
	last locktable.Survey
	at   int64         // of last, CLOCK_BOOTTIME; 0: there is none
	cost time.Duration // of last: the time that it took of the loop
}

// counters is what the loop counts beside the table.
type counters struct {
	resumed    uint64
	redisDowns uint64 // outages of Redis
	dataLosses uint64 // connections to a Redis that may have lost data
	forgotten  uint64 // holds that clients claimed and no sidecar knew
	steps      locktable.Histogram
}

// takeover is what the sidecar found of its predecessor when it was started.
type takeover struct {
	reset  string // why the state could not be used; "": it was used, or there was none
	holds  int    // that were taken over
	opened int    // sessions whose clients may come back
	ended  int    // sessions whose processes had ended
	back   int    // sessions whose clients came back
}

// crash counts the holds of the session that ended last with holds.
type crash struct {
	session locktable.SessionID
	holds   int
}

// redisTrouble is why Redis, or a master of a Cluster, cannot be used as it should.
type redisTrouble struct {
	kind string // of the event
	why  string
}

package link

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Config is what stays for as long as a link.
type Config struct {
	UUID          string
	Last          wire.Identity // as store.Config has it
	TokenExpiry   time.Duration
	Replicas      int
	ProbeInterval time.Duration
	Log           *slog.Logger
	Shared        *Shared

	// Login returns the way to the server with the user and the password of the URL, which is read again.
	Login func() (*Dialer, error)

	// Floor is the largest floor of tokens of all nodes of a Cluster at a time, µs. nil: Redis is no Cluster.
	Floor func(now int64) int64

	// The callbacks come from the goroutines of the link, one after the other. Hand brings what the Machine delivers, in
	// its order. OnUp, OnDown and OnSentinels: as store.Event has them; the last comes from any goroutine.
	Hand        func(d *pipeline.Delivery)
	OnUp        func(dataLost, listening bool, id wire.Identity)
	OnDown      func(err error)
	OnSentinels func(why string)
}

// A Link is the way to one server: a Machine, and the connection that it drives. Operations come from any goroutine.
// The goroutine that brings one also writes it, if the connection is free for it. The goroutine run makes and checks
// the connection, and hands on what the Machine delivers while there is none. Another goroutine, of the wired, reads and
// hands on while there is one, and one dials while there is none.
type Link struct {
	cfg       Config
	dial      *Dialer                // what the first URL says
	server    atomic.Pointer[Dialer] // the way to the server that was connected last; before: dial
	sentinels *sentinels             // who know where the server is; nil: the URL does

	wake   chan struct{} // run is to look at what waits, at closing and at when the Machine is due
	dialed chan dialed   // from the dialing goroutine
	hurry  chan struct{} // the dialing goroutine is to wait no longer
	ctx    context.Context
	cancel context.CancelFunc // cuts everything short
	done   chan struct{}      // run has ended

	mu       sync.Mutex // guards what lock returns; never held during I/O or a callback
	behindMu guarded

	isIdle    atomic.Bool  // a node of a Cluster without slots
	unsentOps atomic.Int64 // as Machine.Unsent has it
	roundTrip atomic.Int64 // as Machine.RoundTrip has it

	// Owned by the dialing goroutine, of which there is one at a time.
	login        *Dialer       // with the user and the password that were read last
	lost         lostAddresses // of run too, while there is no dialing goroutine
	loginFailure string        // why they could not be read, as the log has it; "": they were

	// Owned by run.
	last       wire.Identity // of the last connection that was up, perhaps in another process
	upAt       time.Time
	delay      time.Duration // before the next attempt to connect
	why        string        // Redis cannot be asked: the last reason; "": it can
	killLogged bool          // that CLIENT KILL is not permitted was logged
	ownLogged  bool          // that the sidecar's channel is not permitted was logged
	noQueue    bool          // that the queues of locks are not permitted was logged

	isClusterLogged bool // that the server is a node of a Cluster was logged
}

type dialed struct {
	ready *readyConn
	err   error
}

// guarded is what the mutex of a Link guards: only lock leads to it.
type guarded struct {
	link    *Link
	m       *pipeline.Machine
	wired   *wired // nil while down
	closed  bool
	armed   int64  // when run looks at the Machine again, at the latest
	movedTo string // where the master is since the last attempt to connect began; "": nothing was received
}

// lock locks the mutex, and unlock unlocks it.
func (l *Link) lock() *guarded {
	l.mu.Lock()
	return &l.behindMu
}

func (g *guarded) unlock() { g.link.mu.Unlock() }

// connection is the one that is in use; nil: there is none.
func (l *Link) connection() *wired {
	held := l.lock()
	defer held.unlock()
	return held.wired
}

// wired is a connection in use.
type wired struct {
	*readyConn
	link  *Link
	out   *rawio.Writer // used with the mutex of the link, which it unlocks for the time of a system call
	from  io.Reader
	ended chan struct{} // closed when the reader has ended; out.Err says why

	lastByteAt atomic.Int64 // when Redis last sent anything
	now        int64        // when the reader last read something
	deliveries []pipeline.Delivery
}

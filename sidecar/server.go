// Package sidecar is the daemon: it listens on a Unix domain socket, and its loop owns the lock
// table. Requests of clients, results of Redis and ends of processes reach the loop through one
// inbox. The effects of the table leave it as frames to clients and operations on Redis. The
// loop runs one step at a time, on the goroutine that has an input for it.
package sidecar

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/endpoint"
	"github.com/locksidecar/locksidecar/sidecar/eventlog"
	"github.com/locksidecar/locksidecar/sidecar/intake"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/loglimit"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/settings"
	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// probeInterval is how often Redis is asked to execute what an acquire needs.
const probeInterval = time.Minute

// endpointInterval is how often a sidecar checks that its socket and its state are where
// clients and successors look for them. A check costs three stats.
const endpointInterval = 2 * time.Second

// stopWithin bounds an orderly stop, in which clients get their answers and Redis executes
// the releases.
const stopWithin = 2 * time.Second

// At most so many refused clients at a time get a moment to read the reason.
const maxRefusals = 16

// Server is one sidecar.
type Server struct {
	// Immutable after Listen.
	endpoint *endpoint.Endpoint
	metrics  net.Listener // nil: there is none, or not yet

	unread  atomic.Int64 // bytes of answers that no client's socket has taken
	readers readers
	loop    loop

	mu     sync.Mutex         // guards what follows
	conns  map[*conn]struct{} // every connection, with or without a session
	ending bool               // no more of them

	recovered state.Recovered // what the predecessor left, until Serve has restored it
}

// Listen makes the socket. Clients can connect from then on and are served once
// Serve runs. Its errors say what to do; those that stay until a person changes a setting
// are settings.Errors.
func Listen(cfg Config) (_ *Server, err error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, settings.AsError(err)
	}
	if err := peers.CheckFDLimit(); err != nil {
		return nil, settings.AsError(err)
	}
	s := &Server{loop: loop{cfg: cfg, log: cfg.Log, lines: loglimit.New(cfg.Log, peers.IsPrivileged), startedAt: protocol.Now()}, conns: make(map[*conn]struct{})}
	l := &s.loop
	if l.policy, err = cfg.policy(); err != nil {
		return nil, settings.AsError(err)
	}
	l.inbox = intake.New[event, request]()
	s.readers.loop, s.readers.commands = l, peers.NewCommands()
	l.redisIsUp, l.healthChanged = make(chan struct{}, 1), make(chan struct{}, 1)
	l.ended = make(chan struct{})
	l.running.Lock() // until run
	l.sessions = make(map[locktable.SessionID]*session)
	l.redis.Store(&redisHealth{status: notReached})
	if store.IsCluster(cfg.Redis) {
		l.shards.ofCluster()
	}

	// The socket appears last: a sidecar that cannot start leaves no trace, and
	// does not disturb the one that serves already.
	if s.endpoint, err = endpoint.Lock(cfg.endpoint()); err != nil {
		return nil, settings.AsError(err)
	}
	l.troubles.init(s.endpoint)
	defer func() {
		if err != nil {
			s.endpoint.Unlock()
		}
	}()
	if err = s.openState(); err != nil {
		return nil, settings.AsError(err)
	}
	defer func() {
		if err != nil && l.state != nil {
			l.state.Close()
		}
	}()
	l.hosts = otherhosts.New(otherhosts.Config{
		Setting: cfg.OtherHosts, UUID: l.uuid, HostName: cfg.HostName, KeyPrefix: cfg.KeyPrefix, Lease: cfg.Lease, AskWithin: cfg.AskWithin,
	})
	l.store, err = store.Open(store.Config{
		URL:           cfg.Redis,
		ReadURL:       cfg.ReadRedis,
		KeyPrefix:     cfg.KeyPrefix,
		TLS:           cfg.tls(),
		UUID:          l.uuid,
		Last:          wire.Identity(s.recovered.Redis),
		TokenExpiry:   cfg.TokenExpiry,
		Replicas:      cfg.Replicas,
		Log:           cfg.Log,
		ProbeInterval: probeInterval,
		OnEvent:       l.onRedis,
	})
	if err != nil {
		return nil, settings.AsError(err)
	}
	l.hosts.Store = l.store
	defer func() {
		if err != nil {
			_ = l.store.Close(context.Background())
		}
	}()
	if cfg.Metrics != "" {
		if err = s.openMetrics(); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil && s.metrics != nil {
				s.metrics.Close()
			}
		}()
	}
	if err = s.endpoint.Listen(); err != nil {
		return nil, settings.AsError(err)
	}
	if l.state != nil {
		if why := l.state.Unidentified(); why != "" {
			l.log.Error("no successor can use the state", "file", cfg.State, "reason", why)
		}
	}
	if l.overflowUID = peers.OverflowUID(); l.overflowUID >= 0 {
		l.log.Warn("users of this host cannot be told apart: they have one uid here; only root and the user of the sidecar may force their locks free, and they share limits; leave PrivateUsers= out of the unit", "uid", l.overflowUID)
	}
	l.ledger.SharedUID = l.overflowUID
	s.endpoint.RecordServing(l.uuid)
	if l.pids, err = peers.NewWatch(func(id locktable.SessionID) { l.submitEvent(event{kind: processEnded, session: id}) }); err != nil {
		s.endpoint.Close()
		return nil, err
	}
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	table := cfg.table()
	table.SlotOf = l.store.SlotOf()
	if cfg.OtherHosts != otherhosts.None {
		table.Contest.HostName = l.hosts.NameOf
	}
	table.Seed = binary.LittleEndian.Uint64(seed[:])
	if l.state != nil {
		table.Journal = l.state
	}
	now := protocol.Now()
	l.table = locktable.New(table, now)
	l.eventLog = eventlog.New(now)
	return s, nil
}

// openState takes the state file into possession and reads what the predecessor left.
func (s *Server) openState() (err error) {
	l := &s.loop
	if l.cfg.State == StateNone {
		l.uuid = state.NewUUID().String()
		_, _ = rand.Read(l.key[:])
		s.recovered.Reset = true
	} else {
		of := state.Sidecar{UUID: s.endpoint.LastServed(), KeyPrefix: l.cfg.KeyPrefix}
		if l.state, err = state.OpenOf(of, l.cfg.State); err != nil {
			return err
		}
		s.recovered = l.state.Recovered()
		l.uuid, l.key = s.recovered.UUID, s.recovered.Key
	}
	return nil
}

// lookAround checks now and then that clients find the socket, and a successor the state.
func (s *Server) lookAround(stop <-chan struct{}, accept func(*net.UnixListener)) {
	tick := time.NewTicker(endpointInterval)
	defer tick.Stop()
	for {
		if l := s.endpoint.Check(); l != nil {
			accept(l)
		}
		s.loop.keepState(stop)
		s.loop.endExecuted(stop)
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// Serve restores what the predecessor left and serves until ctx ends. Then it stops in order: it
// accepts no more requests, waits up to two seconds for answers and releases that are in
// flight, and leaves every hold to its successor. Serve is called once.
func (s *Server) Serve(ctx context.Context) error {
	l := &s.loop
	if l.state != nil {
		l.eventLog.Keep(l.cfg.State, l.log)
	}
	l.restore(protocol.Now(), &s.recovered)
	s.recovered = state.Recovered{}
	cannotAccept := make(chan error, 1)
	accept := func(on *net.UnixListener) {
		l.senders.Go(func() {
			if err := s.accept(on); err != nil {
				select {
				case cannotAccept <- err:
				default:
				}
			}
		})
	}
	accept(s.endpoint.Listener())
	var failed error
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		select {
		case <-ctx.Done():
		case failed = <-cannotAccept:
		}
	}()
	l.senders.Go(func() { s.lookAround(stop, accept) })
	l.senders.Go(func() { l.hosts.Announce(stop, l.redisIsUp, l.cfg.Version, l.startedAt) })
	l.run(stop)
	s.endpoint.Close()
	s.hangUp()
	bound, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	l.finish(bound)
	l.inbox.Unblock()
	if err := l.store.Close(bound); err != nil {
		l.log.Warn("some releases did not reach Redis; those locks end with their leases", "error", err)
	}
	l.senders.Wait()
	l.pids.Close()
	for l.step(); l.inbox.HasInput(); { // the last requests of the readers
		l.step()
	}
	close(l.ended)
	l.lines.Flush()
	for _, cl := range l.sessions {
		cl.unwatch()
	}
	l.eventLog.Close()
	if l.state != nil {
		if err := l.state.Close(); err != nil {
			l.log.Error("closing the state file", "file", l.cfg.State, "error", err)
		}
	}
	s.endpoint.Unlock()
	return failed
}

// accept takes connections until the listener is closed.
func (s *Server) accept(l *net.UnixListener) error {
	trouble := make(loglimit.Episodes)
	refusing := make(chan struct{}, maxRefusals)
	for {
		nc, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			if !passing(err) {
				return fmt.Errorf("accepting clients on %s: %w", l.Addr(), err)
			}
			if trouble.Begins(time.Now(), err.Error()) {
				s.loop.log.Error("cannot accept clients; raise the limit of open files", "error", err)
			}
			time.Sleep(100 * time.Millisecond) // descriptors become free when clients close theirs
			continue
		}
		c, err := newConn(nc, &s.unread)
		if err != nil {
			nc.Close()
			continue
		}
		if !s.enter(c) {
			nc.Close()
			continue
		}
		why := s.admit(c)
		if why == nil {
			c.sender = s.loop.inbox.AddConn(c.peer.UID, c.peer.PID)
			s.loop.senders.Go(func() {
				defer s.leave(c)
				s.readers.serve(c)
			})
			continue
		}
		if trouble.Begins(time.Now(), why.Msg) {
			s.loop.log.Error("clients are refused", "reason", why.Msg)
		}
		select {
		case refusing <- struct{}{}:
			s.loop.senders.Go(func() {
				defer s.leave(c)
				c.refuse(why)
				<-refusing
			})
		default: // a client that has not sent its hello yet may miss the reason
			c.queueReply(why)
			c.flush()
			c.end()
			s.leave(c)
		}
	}
}

// admit identifies a client, and returns the reason if it is not served.
func (s *Server) admit(c *conn) (why *protocol.Err) {
	defer func() {
		if why != nil {
			peers.ClosePidfd(&c.pidfd)
		}
	}()
	p, highest, err := peers.Identify(c.raw)
	c.peer.PID, c.peer.UID, c.gid, c.pidfd = p.PID, p.UID, p.GID, p.Pidfd
	switch {
	case peers.IsResourceExhausted(err), err == nil && uint64(highest) >= peers.ClientFDLimit():
		return &protocol.Err{Code: protocol.Limit, Msg: fmt.Sprintf("the sidecar may open no more files (%d at most, two for each client); raise its limit (LimitNOFILE= of its unit, ulimit -n), or close some clients", peers.FDLimit())}
	case err != nil:
		return &protocol.Err{Code: protocol.Denied, Msg: "the sidecar cannot tell who you are: " + err.Error()}
	}
	all, own := s.loop.inbox.Conns(c.peer.UID)
	return checkShare("connections", c.peer.UID, all, own, s.loop.cfg.MaxSessions+spareConns)
}

// passing reports whether accept may work again after this error.
func passing(err error) bool {
	return peers.IsResourceExhausted(err) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.EINTR)
}

// enter notes a connection; false: the sidecar stops.
func (s *Server) enter(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) leave(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// hangUp sends every client its last frame. That ends the waiters, whose clients send their
// requests again to the successor. Holds stay as they are, but for those that the clients have released.
func (s *Server) hangUp() {
	s.loop.stopping = true
	s.loop.table.DropWaiters(protocol.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	for c := range s.conns { // those that have not said hello too
		c.drain(&stopping)
	}
}

// metricsRetry is how often a sidecar tries to open the metrics listener while it cannot.
const metricsRetry = 5 * time.Second

// openMetrics opens the listener of the setting Metrics. It returns settings.Errors only: an error
// that may pass is logged, because a restart must not end the holds if another program took the
// port meanwhile.
func (s *Server) openMetrics() (err error) {
	if s.metrics, err = listenMetrics(&s.loop.cfg); err == nil {
		return nil
	}
	var refused *settings.Error
	if err = settings.AsError(err); errors.As(err, &refused) {
		return err
	}
	s.loop.log.Error("the metrics are not served yet; locks are", "error", err, "retry", metricsRetry)
	return nil
}

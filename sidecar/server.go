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
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/settings"
	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store"
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

	unread   atomic.Int64 // bytes of answers that no client's socket has taken
	commands *peers.Commands
	surveyor surveyor
	paces    intake.Paces[policy.Account]
	policyMu sync.Mutex // of readers that ask the policy; no other lock is taken under it
	// redisIsUp has an element when a connection to Redis was made, healthChanged when Redis
	// returns another text.
	redisIsUp, healthChanged chan struct{}
	ended                    chan struct{} // closed when the loop is not run any more
	metrics                  net.Listener  // nil: there is none, or not yet
	// misplaced is why a successor would not find the state; "": it would.
	misplaced atomic.Pointer[string]
	readers   sync.WaitGroup // accept loop and one reader for each connection

	mu     sync.Mutex         // guards what follows
	conns  map[*conn]struct{} // every connection, with or without a session
	ending bool               // no more of them

	recovered state.Recovered // what the predecessor left, until Serve has restored it

	loop
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
	if s.policy, err = cfg.policy(); err != nil {
		return nil, settings.AsError(err)
	}
	s.inbox = intake.New[event, request]()
	s.commands = peers.NewCommands()
	s.redisIsUp, s.healthChanged = make(chan struct{}, 1), make(chan struct{}, 1)
	s.ended = make(chan struct{})
	s.running.Lock() // until run
	s.sessions = make(map[locktable.SessionID]*session)
	s.misplaced.Store(new(string))
	s.incomplete.Store(new(string))
	s.redis.Store(&redisHealth{status: notReached})
	if store.IsCluster(cfg.Redis) {
		s.shards.ofCluster()
	}

	// The socket appears last: a sidecar that cannot start leaves no trace, and
	// does not disturb the one that serves already.
	if s.endpoint, err = endpoint.Lock(cfg.endpoint()); err != nil {
		return nil, settings.AsError(err)
	}
	defer func() {
		if err != nil {
			s.endpoint.Unlock()
		}
	}()
	if err = s.openState(); err != nil {
		return nil, settings.AsError(err)
	}
	defer func() {
		if err != nil && s.state != nil {
			s.state.Close()
		}
	}()
	s.hosts = otherhosts.New(otherhosts.Config{
		Setting: cfg.OtherHosts, UUID: s.uuid, HostName: cfg.HostName, KeyPrefix: cfg.KeyPrefix, Lease: cfg.Lease, AskWithin: cfg.AskWithin,
	})
	s.store, err = store.Open(store.Config{
		URL:           cfg.Redis,
		ReadURL:       cfg.ReadRedis,
		KeyPrefix:     cfg.KeyPrefix,
		TLS:           cfg.tls(),
		UUID:          s.uuid,
		Last:          store.Identity(s.recovered.Redis),
		TokenExpiry:   cfg.TokenExpiry,
		Replicas:      cfg.Replicas,
		Log:           cfg.Log,
		OnResults:     s.redisResults,
		OnUp:          s.redisUp,
		OnDown:        s.redisDown,
		OnDegraded:    s.redisDegraded,
		OnRisk:        s.redisRisk,
		OnSentinels:   func(why string) { s.shards.setSentinels(why, s.setHealth) },
		OnOpenSlots:   s.redisOpenSlots,
		OnRoute:       s.redisRoute,
		ProbeInterval: probeInterval,
		OnSubscribed: func(n redisop.Shard, names []string) {
			s.submitEvent(event{kind: redisSubscribed, shard: n, names: names})
		},
		OnUnsubscribed: func(n redisop.Shard, names []string) {
			s.submitEvent(event{kind: redisUnsubscribed, shard: n, names: names})
		},
		OnMessages: func(m []redisop.Message) { s.inbox.AddMessages(m); s.runIfIdle() },
		OnQuestion: s.onQuestion,
		OnAnswer:   s.hosts.OnAnswer,
	})
	if err != nil {
		return nil, settings.AsError(err)
	}
	s.hosts.Store = s.store
	defer func() {
		if err != nil {
			_ = s.store.Close(context.Background())
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
	if s.state != nil {
		if why := s.state.Unidentified(); why != "" {
			s.log.Error("no successor can use the state", "file", cfg.State, "reason", why)
		}
	}
	if s.overflowUID = peers.OverflowUID(); s.overflowUID >= 0 {
		s.log.Warn("users of this host cannot be told apart: they have one uid here; only root and the user of the sidecar may force their locks free, and they share limits; leave PrivateUsers= out of the unit", "uid", s.overflowUID)
	}
	s.ledger.SharedUID = s.overflowUID
	s.endpoint.RecordServing(s.uuid)
	if s.pids, err = peers.NewWatch(func(id locktable.SessionID) { s.submitEvent(event{kind: processEnded, session: id}) }); err != nil {
		s.endpoint.Close()
		return nil, err
	}
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // never fails
	table := cfg.table()
	table.SlotOf = s.store.SlotOf()
	if cfg.OtherHosts != otherhosts.None {
		table.Contest.HostName = s.hosts.NameOf
	}
	table.Seed = binary.LittleEndian.Uint64(seed[:])
	if s.state != nil {
		table.Journal = s.state
	}
	now := protocol.Now()
	s.table = locktable.New(table, now)
	s.eventLog = eventlog.New(now)
	return s, nil
}

// openState takes the state file into possession and reads what the predecessor left.
func (s *Server) openState() (err error) {
	if s.cfg.State == StateNone {
		s.uuid = state.NewUUID().String()
		_, _ = rand.Read(s.key[:])
		s.recovered.Reset = true
	} else {
		of := state.Sidecar{UUID: s.endpoint.LastServed(), KeyPrefix: s.cfg.KeyPrefix}
		if s.state, err = state.OpenOf(of, s.cfg.State); err != nil {
			return err
		}
		s.recovered = s.state.Recovered()
		s.uuid, s.key = s.recovered.UUID, s.recovered.Key
	}
	return nil
}

// Addr is the path of the socket.
func (s *Server) Addr() string { return s.endpoint.Listener().Addr().String() }

// Config returns the settings, with their defaults.
func (s *Server) Config() Config { return s.cfg }

// Trouble is why clients cannot connect, or why a restart would end their locks.
type Trouble struct {
	Kind TroubleKind
	Why  string // "": it is not so
}

// TroubleKind is a kind of trouble of the daemon, as the label of its metric has it.
type TroubleKind string

// The kinds, in the order of their importance.
const (
	SocketGone TroubleKind = "socket"     // clients cannot connect
	StateGone  TroubleKind = "state_gone" // a successor would not find the state
	StateFull  TroubleKind = "state_full" // the state lacks locks or clients
)

// Troubles returns all kinds of trouble. restart: a restart by systemd helps.
func (s *Server) Troubles() (all [3]Trouble, restart bool) {
	why, restart := s.endpoint.Unreachable()
	return [...]Trouble{{SocketGone, why}, {StateGone, *s.misplaced.Load()}, {StateFull, *s.incomplete.Load()}}, restart
}

// Trouble returns the sentence for the first trouble; "": there is none. restart: a restart by systemd helps.
func (s *Server) Trouble() (why string, restart bool) {
	all, restart := s.Troubles()
	for _, t := range all {
		if t.Why != "" {
			return t.Why, restart && t.Kind == SocketGone
		}
	}
	return "", false
}

// lookAround checks now and then that clients find the socket, and a successor the state.
func (s *Server) lookAround(stop <-chan struct{}, accept func(*net.UnixListener)) {
	tick := time.NewTicker(endpointInterval)
	defer tick.Stop()
	for {
		if l := s.endpoint.Check(); l != nil {
			accept(l)
		}
		s.keepState(stop)
		s.endExecuted(stop)
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// keepState has a state that another program removed written again.
func (s *Server) keepState(stop <-chan struct{}) {
	if s.state == nil {
		return
	}
	why := s.state.Misplaced()
	if why != "" {
		var err error
		if !s.inLoop(stop, func(int64) { err = s.state.Renew() }) {
			return
		}
		if err == nil {
			s.log.Warn("the state was removed, and is written again; find out which program removed it", "file", s.cfg.State)
			why = ""
		} else {
			why += fmt.Sprintf("; it cannot be written again: %v", err)
		}
	}
	if was := s.misplaced.Swap(&why); why != "" && *was == "" {
		s.log.Error("a successor will not find the state", "reason", why)
	}
}

// inLoop has the loop call f between two inputs, and returns when it has; false: the sidecar stops.
func (s *Server) inLoop(stop <-chan struct{}, f func(now int64)) bool {
	done := make(chan struct{})
	s.submitEvent(event{kind: loopQuery, query: f, done: done})
	select {
	case <-done:
		return true
	case <-stop:
		return false
	}
}

// Redis is "ok", or says in one sentence what is wrong.
func (s *Server) Redis() string { return s.redis.Load().status }

// RedisChanged has an element when Redis may return another text than before. One goroutine
// receives from it.
func (s *Server) RedisChanged() <-chan struct{} { return s.healthChanged }

func (s *Server) setHealth(h *redisHealth) {
	s.redis.Store(h)
	signal(s.healthChanged)
}

// signal puts an element into a channel that has room for one.
func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// RedisServer names what hosts that share locks have in common: the address of Redis with
// the number of the database, the run id of the server if it is known, and the key prefix
// if there is one.
func (s *Server) RedisServer() string {
	text := s.store.Address()
	if id := s.redis.Load().runID; id != "" {
		text += ", run id " + id
	}
	if s.cfg.KeyPrefix != "" {
		text += fmt.Sprintf(", key prefix %q", s.cfg.KeyPrefix)
	}
	return text
}

func (s *Server) redisResults(results []redisop.Result, raised *store.Identity) {
	e := event{kind: redisResults, results: results}
	if raised != nil {
		e.redis, e.flag = *raised, true
	}
	s.submitEvent(e)
}

func (s *Server) redisUp(n redisop.Shard, dataLost, listening bool, id store.Identity) {
	s.shards.set(n, func(h *redisHealth) { *h = redisHealth{status: "ok", runID: id.RunID} }, s.setHealth)
	signal(s.redisIsUp)
	s.submitEvent(event{kind: redisUp, shard: n, flag: dataLost, listening: listening, redis: id})
}

// redisDegraded has why Redis refuses what locks need; "": it does not.
func (s *Server) redisDegraded(n redisop.Shard, why string) {
	s.shards.set(n, func(h *redisHealth) {
		if h.status, h.isDegraded = "ok", why != ""; why != "" {
			h.status = why
		}
	}, s.setHealth)
	s.submitEvent(event{kind: redisDegraded, shard: n, text: why})
}

// redisRisk has why two owners of one lock are possible; "": nothing is known.
func (s *Server) redisRisk(n redisop.Shard, risk string) {
	s.shards.set(n, func(h *redisHealth) { h.risk = risk }, s.setHealth)
}

// redisOpenSlots has why slots stay open; "": none is.
func (s *Server) redisOpenSlots(why string, isBlocking bool) {
	s.shards.setOpen(why, isBlocking, s.setHealth)
	s.submitEvent(event{kind: redisOpenSlots, text: why})
}

func (s *Server) redisRoute(ranges []redisop.SlotRange) {
	s.shards.route(ranges, s.setHealth)
	s.submitEvent(event{kind: redisRoute, routes: ranges})
}

func (s *Server) redisDown(n redisop.Shard, err error) {
	why := err.Error()
	s.shards.set(n, func(h *redisHealth) { *h = redisHealth{status: why} }, s.setHealth)
	s.submitEvent(event{kind: redisDown, shard: n, text: why})
}

// Serve restores what the predecessor left and serves until ctx ends. Then it stops in order: it
// accepts no more requests, waits up to two seconds for answers and releases that are in
// flight, and leaves every hold to its successor. Serve is called once.
func (s *Server) Serve(ctx context.Context) error {
	if s.state != nil {
		s.eventLog.Keep(s.cfg.State, s.log)
	}
	s.restore(protocol.Now(), &s.recovered)
	s.recovered = state.Recovered{}
	cannotAccept := make(chan error, 1)
	accept := func(l *net.UnixListener) {
		s.readers.Go(func() {
			if err := s.accept(l); err != nil {
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
	s.readers.Go(func() { s.lookAround(stop, accept) })
	s.readers.Go(func() { s.hosts.Announce(stop, s.redisIsUp, s.cfg.Version, s.startedAt) })
	s.run(stop)
	s.endpoint.Close()
	s.hangUp()
	bound, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	s.finish(bound)
	s.inbox.Unblock()
	if err := s.store.Close(bound); err != nil {
		s.log.Warn("some releases did not reach Redis; those locks end with their leases", "error", err)
	}
	s.readers.Wait()
	s.pids.Close()
	for s.step(); s.inbox.HasInput(); { // the last requests of the readers
		s.step()
	}
	close(s.ended)
	s.lines.Flush()
	for _, cl := range s.sessions {
		cl.unwatch()
	}
	s.eventLog.Close()
	if s.state != nil {
		if err := s.state.Close(); err != nil {
			s.log.Error("closing the state file", "file", s.cfg.State, "error", err)
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
				s.log.Error("cannot accept clients; raise the limit of open files", "error", err)
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
			c.sender = s.inbox.AddConn(c.peer.UID, c.peer.PID)
			s.readers.Go(func() { s.serveConn(c) })
			continue
		}
		if trouble.Begins(time.Now(), why.Msg) {
			s.log.Error("clients are refused", "reason", why.Msg)
		}
		select {
		case refusing <- struct{}{}:
			s.readers.Go(func() {
				s.refuseConn(c, why)
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
	all, own := s.inbox.Conns(c.peer.UID)
	return checkShare("connections", c.peer.UID, all, own, s.cfg.MaxSessions+spareConns)
}

// passing reports whether accept may work again after this error.
func passing(err error) bool {
	return peers.IsResourceExhausted(err) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.EINTR)
}

// Ping returns when the loop has handled an event.
func (s *Server) Ping(ctx context.Context) error {
	done := make(chan struct{})
	s.submitEvent(event{kind: loopPing, done: done})
	return s.awaitLoop(ctx, done)
}

// awaitLoop waits until the loop has closed done.
func (s *Server) awaitLoop(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-s.ended:
		return errors.New("the sidecar has stopped")
	case <-ctx.Done():
		return fmt.Errorf("the loop did not answer: %w", ctx.Err())
	}
}

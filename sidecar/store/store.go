// Package store executes the lock table's operations in Redis.
//
// It has one connection, for scripts and for subscriptions to channels. It is made in the
// background, checked, closed when it fails a check, and made again. Nothing here decides
// anything about locks.
package store

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/redisurl"
	"github.com/locksidecar/locksidecar/sidecar/store/sentinel"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Config is which Redis is used, for which sidecar, and where results go.
type Config struct {
	// URL of Redis, with user, password and database: see package redisurl. Required.
	URL string

	// ReadURL returns URL again, at each connection: its user and password may have changed. If it
	// fails, or names another Redis, the last ones count. nil: they do not change.
	ReadURL func() (string, error)

	// KeyPrefix is put before the name of each lock: its keys and its channel in Redis are
	// those of the name with the prefix. What is given to and comes from a Store are names
	// without it. CheckKeyPrefix says which ones are refused. "": none.
	KeyPrefix string

	// TLS for rediss://. Zero: the authorities of the host, and no certificate.
	TLS TLS

	// UUID of the sidecar, the first half of its owner fields. Required.
	UUID string

	// Last is what OnUp gave the process before this one that had the same UUID:
	// the first connection is then a reconnect like any other. Zero: there was none.
	Last wire.Identity

	// TokenExpiry is how long a token counter outlives its last use by a sidecar, in
	// whole ms. 0: counters do not expire. A Redisson program does not refresh the
	// expiry when it draws tokens, and begins at 1 after it: only where no Redisson
	// program draws fencing tokens may counters expire.
	TokenExpiry time.Duration

	// Replicas is how many replicas of Redis must confirm a Take, a Renew, and a Drop that something
	// waits for, before it is Done; otherwise it is NotSynced. 0: none, and nothing is waited for.
	Replicas int

	// Log gets one line per event that an operator acts on. nil: none.
	Log *slog.Logger

	// Timeout is how long Redis may be silent while it owes an answer. Then the
	// connection is given up, at the second check: the first one may only show that this
	// process slept.
	// 0 or less: 2 s.
	Timeout time.Duration

	// ProbeInterval is how often Redis is asked to execute what an acquire needs, on a lock that
	// no client can have. 0: never.
	ProbeInterval time.Duration

	// The callbacks come from the store's goroutines, one after the other. They must not
	// block, and may call Do, Subscribe and Unsubscribe. nil: not called. What they are given
	// is theirs; results may be given back with Recycle.
	//
	// While there is a connection, OnResults, OnMessages, OnSubscribed and OnUnsubscribed come
	// in the order in which Redis sent what they bring.

	// OnResults brings results, and, if a token raised the floor of tokens, the identity
	// with its new floor; otherwise nil. When a connection is lost, OnDown comes
	// first, so that nothing is sent again to a Redis that is gone.
	// OnUp: Redis can be asked. dataLost: it is not certainly the same data as
	// before (another run, another replication history, or it does not tell). listening:
	// messages to this sidecar are received; false: Redis does not permit it. id is
	// what a successor of this process needs as its Last.
	// OnDown, at the start of an outage and when its reason changes: err is the sentence that
	// an operator reads.
	OnResults func(results []redisop.Result, raised *wire.Identity)
	OnUp      func(n redisop.Shard, dataLost, listening bool, id wire.Identity)
	OnDown    func(n redisop.Shard, err error)

	// OnRoute, in a Cluster: other shards have these slots from now on. It comes before the results of
	// operations that a node did not execute for that reason.
	OnRoute func([]redisop.SlotRange)

	// OnDegraded: Redis is connected, but refuses acquires, or too few replicas confirm them, with the sentence that an operator
	// reads; "": it does not any more. After OnUp it does not, until this is called.
	OnDegraded func(n redisop.Shard, why string)

	// OnRisk: two owners may have one lock, after a failover as the numbers of replicas stand, or because Redis evicts
	// keys, with the sentence that an operator reads; "": nothing is known. After OnUp it is "", until this is called.
	OnRisk func(n redisop.Shard, risk string)

	// OnSentinels: most of the Sentinels do not answer, with the sentence that an operator reads; "": they do again.
	OnSentinels func(why string)

	// OnOpenSlots: slots of a Cluster stay open, with the sentence that an operator
	// reads; "": none is any more. isBlocking: locks wait because of that.
	OnOpenSlots func(why string, isBlocking bool)

	// OnSubscribed: Redis confirmed these subscriptions (again); what was published
	// before may be lost. OnUnsubscribed: they are gone, or not permitted. If the
	// connection was lost they come back by themselves.
	// OnMessages: something was published on the channels of locks, or to this sidecar.
	OnSubscribed   func(n redisop.Shard, names []string)
	OnUnsubscribed func(n redisop.Shard, names []string)
	OnMessages     func(messages []redisop.Message)

	// OnQuestion: the sidecar with the uuid from asked this one. OnAnswer: a sidecar answered,
	// as any program that may publish can pretend to. See Ask.
	OnQuestion func(from string, body []byte)
	OnAnswer   func(body []byte)
}

// Store is the way to one Redis, or to the masters of a Cluster. Its methods never block, Close apart.
type Store struct {
	cfg     Config
	dial    *dialer  // what the URL says
	single  *shard   // the one Redis; nil: it is a Cluster
	masters *masters // nil: it is one Redis

	shared         shared      // by all links
	announceLogged atomic.Bool // that the name of the host is not permitted was logged
	close          sync.Once
}

// IsCluster reports whether a Redis URL names a Cluster.
func IsCluster(url string) bool {
	u, err := redisurl.Parse(url)
	return err == nil && u.Nodes != nil
}

// readAgain reads the URL again.
func (cfg Config) readAgain() (d *dialer, err error) {
	if cfg.URL, err = cfg.ReadURL(); err != nil {
		return nil, err
	}
	return parse(cfg)
}

func (cfg *Config) onResults(results []redisop.Result, raised *wire.Identity) {
	if cfg.OnResults != nil {
		cfg.OnResults(results, raised)
	}
}

// Check returns why Open would refuse these settings of a Redis, or nil.
func Check(cfg Config) error {
	_, err := parse(cfg)
	return err
}

// Found is what Try found.
type Found struct {
	Address string // of Redis, and the number of the database
	RunID   string // of the server, or the smallest id of the nodes of a Cluster; "": it is not known
	Risk    string // as Config.OnRisk has it; of a Cluster, that of one master

	// Of a Cluster:
	Nodes   map[string]bool  // the ids of all nodes
	Masters []string         // the addresses of those that have slots
	Down    map[string]error // why a master cannot be used, by address; "": some slots have no master
}

// Try connects to Redis as a Store would, and ends the connection. It tries again until ctx ends. Of a
// Cluster, it connects to each master, and it fails if it reached none. If it reached some, it ends at once if
// that is enough.
func Try(ctx context.Context, cfg Config, isEnough func(*Found) bool) (Found, error) {
	cfg.UUID = uuid.NewString() // a channel of its own
	if cfg.Timeout <= 0 {
		cfg.Timeout = 2 * time.Second
	}
	d, err := parse(cfg)
	if err != nil {
		return Found{}, err
	}
	lost := &lostAddresses{}
	try := func() (Found, error) { return tryCluster(ctx, cfg, d) }
	var sentinels *sentinels
	if d.group != nil {
		sentinels = newSentinels(d.group, slog.New(slog.DiscardHandler))
		defer sentinels.close()
	}
	if d.nodes == nil {
		try = func() (Found, error) {
			s, err := d.find(ctx, sentinels, lost, wire.Identity{})
			if err != nil {
				return Found{}, err
			}
			s.close()
			return Found{Address: s.dial.place(), RunID: s.id.RunID, Risk: s.risk().String()}, nil
		}
	}
	var part Found // some masters of a Cluster
	for {
		found, failed := try()
		if failed == nil && (len(found.Down) == 0 || isEnough(&found)) {
			return found, nil
		}
		// An attempt that the end of ctx cut explains nothing. The network notices a deadline
		// before ctx does.
		deadline, bounded := ctx.Deadline()
		cut := ctx.Err() != nil || bounded && !time.Now().Before(deadline)
		switch {
		case cut && (err != nil || part.Down != nil):
		case failed != nil:
			part, err = Found{}, failed
		default:
			part, err = found, nil
		}
		if !pause(ctx, 4*backoffMin) {
			return part, err
		}
	}
}

// Open checks cfg and begins to connect. It never needs Redis to be there: an
// error means that cfg is wrong.
func Open(cfg Config) (*Store, error) {
	if cfg.UUID == "" {
		return nil, errors.New("store: no UUID")
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 2 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d, err := parse(cfg)
	if err != nil {
		return nil, err
	}
	cfg.Log = cfg.Log.With("redis", d.Address)
	if cfg.KeyPrefix != "" {
		cfg.Log = cfg.Log.With("key_prefix", cfg.KeyPrefix)
	}
	s := &Store{cfg: cfg, dial: d}
	s.shared.spare = make(resultPool, 4)
	if d.nodes != nil {
		s.masters = newMasters(cfg, d, &s.shared)
		s.masters.done.Go(s.masters.run)
		return s, nil
	}
	s.single = &shard{cfg: &s.cfg, log: cfg.Log}
	s.single.link = newLink(s.single.linkConfig(cfg.Last, &s.shared), d)
	go s.single.link.run()
	return s, nil
}

// Address is where Redis is: host and port, or the path of a socket, and the number of
// the database after a slash. Behind Sentinels it changes, and is the name of the master until the
// first connection. Of a Cluster, it is the addresses that the URL has.
func (s *Store) Address() string {
	if s.masters != nil {
		return s.dial.place()
	}
	return s.single.link.server.Load().place()
}

// Database is the number of the database.
func (s *Store) Database() int { return s.dial.options.DB }

// Sentinels returns how many Sentinels there are, and answer; zero: the URL has none.
func (s *Store) Sentinels() sentinel.Count {
	if s.single == nil || s.single.link.sentinels == nil {
		return sentinel.Count{}
	}
	return s.single.link.sentinels.counted()
}

// SlotOf returns the function that says which slot a lock has; nil: Redis is no Cluster.
func (s *Store) SlotOf() func(name string) uint16 {
	if s.masters == nil {
		return nil
	}
	return s.dial.Keys.SlotOf
}

// Splits returns why a Cluster cannot have a lock of this name; "": it can, or Redis is none.
func (s *Store) Splits(name string) string {
	if s.masters == nil {
		return ""
	}
	return s.dial.Keys.Splits(name)
}

// ShardAddress is where a shard is, as Address.
func (s *Store) ShardAddress(n redisop.Shard) string {
	if s.masters == nil {
		return s.Address()
	}
	if sh := s.masters.get(n); sh != nil {
		return sh.link.dial.Address
	}
	return s.dial.Address
}

// all calls yield with each server.
func (s *Store) all(yield func(*shard)) {
	if s.masters == nil {
		yield(s.single)
		return
	}
	for _, sh := range *s.masters.shards.Load() {
		if sh != nil {
			yield(sh)
		}
	}
}

// ofKey returns the server that has a key; nil: none is known.
func (s *Store) ofKey(key string) *shard {
	if s.masters == nil {
		return s.single
	}
	return s.masters.ofKey(key)
}

// Do sends ops, or does so as soon as the connection is free for them. Each gets exactly one
// Result; while Redis is down it is NotSent, at once. It may change their order. Precondition: OnUp of
// their shards was called.
//
// Within one batch the order is: renewals, checks, takes, drops, except that most pipelined
// Takes follow their Drop. Operations that hit NOSCRIPT are sent again after SCRIPT LOAD, and
// may run after later ones. So a name must have at most one operation in flight, or a Drop
// and the Take that is pipelined after it: that pair commutes.
//
// After Close nothing is sent, and nothing gets a Result.
func (s *Store) Do(ops []redisop.Op) {
	if s.masters != nil {
		s.masters.do(ops)
		return
	}
	s.single.link.do(ops)
}

// Recycle takes back results that OnResults brought. The caller does not use them again.
func (s *Store) Recycle(results []redisop.Result) { s.shared.spare.put(results) }

// Unsent calls yield with how many operations wait to be sent to a shard, because Redis has not answered
// those before them, if any does. Renewals, checks and what can wait do not count: they are sent beside
// all others.
func (s *Store) Unsent(yield func(n redisop.Shard, unsent int)) {
	s.all(func(sh *shard) {
		if n := sh.link.unsent(); n > 0 {
			yield(sh.n, n)
		}
	})
}

// RoundTrip is how long the last command took that Redis answered; 0: there was none. Of a Cluster, it is
// the longest of its masters.
func (s *Store) RoundTrip() (longest time.Duration) {
	s.all(func(sh *shard) { longest = max(longest, sh.link.trip()) })
	return longest
}

// Subscribe subscribes to the channel of a lock until Unsubscribe. OnSubscribed
// follows every call once Redis has confirmed it, unless Unsubscribe comes first.
func (s *Store) Subscribe(n redisop.Shard, name string) {
	if sh := s.shard(n); sh != nil {
		sh.link.subscribe(name)
	}
}

// Unsubscribe ends Subscribe. A callback that is under way may still arrive.
func (s *Store) Unsubscribe(n redisop.Shard, name string) {
	if sh := s.shard(n); sh != nil {
		sh.link.unsubscribe(name)
	}
}

// serverOf returns the server that has a lock.
func (s *Store) serverOf(name string) *wire.Server {
	if sh := s.ofKey(s.dial.Keys.Key(name)); sh != nil {
		return &sh.link.server.Load().Server
	}
	return &s.dial.Server
}

// shard returns a shard; nil: it is none.
func (s *Store) shard(n redisop.Shard) *shard {
	if s.masters == nil {
		return s.single
	}
	return s.masters.get(n)
}

// Close sends what is queued, for as long as ctx allows, and ends the
// connection. What could not be sent by then has the result NotSent, what has
// no answer Unknown.
// When Close returns, no goroutine and no callback is left. The error is ctx's,
// if it ended first.
func (s *Store) Close(ctx context.Context) error {
	var err error
	s.close.Do(func() {
		if s.masters != nil {
			err = s.masters.close(ctx)
		} else {
			err = s.single.link.close(ctx)
		}
	})
	return err
}

// IgnoredMessages is how many messages on the channel of this sidecar were ignored.
func (s *Store) IgnoredMessages() (n uint64) {
	s.all(func(sh *shard) {
		total, _ := sh.link.ignored()
		n += total
	})
	return n
}

// OnKeysGone has the numbers of evicted keys read soon: keys of held locks are gone. It returns what the server of
// a lock is known to do to keys of locks; "": nothing.
func (s *Store) OnKeysGone(name string) string {
	if sh := s.ofKey(s.dial.Keys.Key(name)); sh != nil {
		return sh.link.keysGone()
	}
	return ""
}

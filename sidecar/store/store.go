// Package store executes the lock table's operations in Redis.
//
// It opens links, each to one server, and hands on what they deliver. Of a Cluster, it carries out what the map of its
// slots wants done. Nothing here decides anything about locks.
package store

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/redisurl"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/sentinel"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Store is the way to one Redis, or to the masters of a Cluster. Its methods never block, Close apart.
type Store struct {
	cfg     Config
	dial    *link.Dialer // what the URL says
	single  *shard       // the one Redis; nil: it is a Cluster
	masters *masters     // nil: it is one Redis

	shared         *link.Shared // by all links
	announceLogged atomic.Bool  // that the name of the host is not permitted was logged
	close          sync.Once
}

// IsCluster reports whether a Redis URL names a Cluster.
func IsCluster(url string) bool {
	u, err := redisurl.Parse(url)
	return err == nil && u.Nodes != nil
}

// Check returns why Open would refuse these settings of a Redis, or nil.
func Check(cfg Config) error {
	_, err := link.Parse(cfg.settings())
	return err
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
	d, err := link.Parse(cfg.settings())
	if err != nil {
		return nil, err
	}
	cfg.Log = cfg.Log.With("redis", d.Address)
	if cfg.KeyPrefix != "" {
		cfg.Log = cfg.Log.With("key_prefix", cfg.KeyPrefix)
	}
	s := &Store{cfg: cfg, dial: d, shared: link.NewShared()}
	if d.Nodes != nil {
		s.masters = newMasters(cfg, d, s.shared, (*shard).connect)
		s.masters.done.Go(s.masters.run)
		return s, nil
	}
	s.single = &shard{cfg: &s.cfg, log: cfg.Log}
	s.single.connect(d, cfg.Last, s.shared)
	go s.single.link.Run()
	return s, nil
}

// Address is where Redis is: host and port, or the path of a socket, and the number of
// the database after a slash. Behind Sentinels it changes, and is the name of the master until the
// first connection. Of a Cluster, it is the addresses that the URL has.
func (s *Store) Address() string {
	if s.masters != nil {
		return s.dial.Place()
	}
	return s.single.link.At().Place()
}

// Database is the number of the database.
func (s *Store) Database() int { return s.dial.Database() }

// Sentinels returns how many Sentinels there are, and answer; zero: the URL has none.
func (s *Store) Sentinels() sentinel.Count {
	if s.single == nil {
		return sentinel.Count{}
	}
	return s.single.link.CountSentinels()
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
		return sh.dial.Address
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
// Result; while Redis is down it is NotSent, at once. It may change their order. Precondition: their
// shards are Up.
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
	s.single.link.Do(ops)
}

// Recycle takes back results that an Event brought. The caller does not use them again.
func (s *Store) Recycle(results []redisop.Result) { s.shared.Recycle(results) }

// Unsent calls yield with how many operations wait to be sent to a shard, because Redis has not answered
// those before them, if any does. Renewals, checks and what can wait do not count: they are sent beside
// all others.
func (s *Store) Unsent(yield func(n redisop.Shard, unsent int)) {
	s.all(func(sh *shard) {
		if n := sh.link.Unsent(); n > 0 {
			yield(sh.n, n)
		}
	})
}

// RoundTrip is how long the last command took that Redis answered; 0: there was none. Of a Cluster, it is
// the longest of its masters.
func (s *Store) RoundTrip() (longest time.Duration) {
	s.all(func(sh *shard) { longest = max(longest, sh.link.Trip()) })
	return longest
}

// Subscribe subscribes to the channel of a lock until Unsubscribe. Subscribed
// follows every call once Redis has confirmed it, unless Unsubscribe comes first.
func (s *Store) Subscribe(n redisop.Shard, name string) {
	if sh := s.shard(n); sh != nil {
		sh.link.Subscribe(name)
	}
}

// Unsubscribe ends Subscribe. An Event that is under way may still arrive.
func (s *Store) Unsubscribe(n redisop.Shard, name string) {
	if sh := s.shard(n); sh != nil {
		sh.link.Unsubscribe(name)
	}
}

// serverOf returns the server that has a lock.
func (s *Store) serverOf(name string) *wire.Server {
	if sh := s.ofKey(s.dial.Keys.Key(name)); sh != nil {
		return &sh.link.At().Server
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
// When Close returns, no goroutine and no call of OnEvent is left. The error is ctx's,
// if it ended first.
func (s *Store) Close(ctx context.Context) error {
	var err error
	s.close.Do(func() {
		if s.masters != nil {
			err = s.masters.close(ctx)
		} else {
			err = s.single.link.Close(ctx)
		}
	})
	return err
}

// IgnoredMessages is how many messages on the channel of this sidecar were ignored.
func (s *Store) IgnoredMessages() (n uint64) {
	s.all(func(sh *shard) {
		sh.link.With(func(m *pipeline.Machine) {
			total, _ := m.Ignored()
			n += total
		})
	})
	return n
}

// OnKeysGone has the numbers of evicted keys read soon: keys of held locks are gone. It returns what the server of
// a lock is known to do to keys of locks; "": nothing.
func (s *Store) OnKeysGone(name string) (evicts string) {
	if sh := s.ofKey(s.dial.Keys.Key(name)); sh != nil {
		sh.link.With(func(m *pipeline.Machine) {
			if evicts = m.Evicts(); evicts != "" {
				m.KeysGone(protocol.Now())
			}
		})
	}
	return evicts
}

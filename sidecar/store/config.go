package store

import (
	"log/slog"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
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
	TLS link.TLS

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

// readAgain reads the URL again.
func (cfg Config) readAgain() (d *link.Dialer, err error) {
	if cfg.URL, err = cfg.ReadURL(); err != nil {
		return nil, err
	}
	return link.Parse(cfg.settings())
}

func (cfg *Config) settings() link.Settings {
	return link.Settings{URL: cfg.URL, KeyPrefix: cfg.KeyPrefix, UUID: cfg.UUID, TLS: cfg.TLS, Timeout: cfg.Timeout, Replicas: cfg.Replicas}
}

func (cfg *Config) onResults(results []redisop.Result, raised *wire.Identity) {
	if cfg.OnResults != nil {
		cfg.OnResults(results, raised)
	}
}

func namesAnother(d *link.Dialer) error {
	return wire.Unavailablef("it names another Redis, at %s; reload the daemon to use it", d.Place())
}

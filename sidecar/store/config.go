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

	// Last is what an Up gave the process before this one that had the same UUID:
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

	// OnEvent is called from the store's goroutines, for one Event after the other. It must not block, and may call Do,
	// Subscribe and Unsubscribe. nil: not called. What an Event has is its receiver's; results may be given back with
	// Recycle.
	OnEvent func(e Event)
}

// An Event is one thing that happened. While there is a connection, Results, Messages, Subscribed and Unsubscribed come in
// the order in which Redis sent what they bring.
type Event struct {
	Kind  EventKind
	Shard redisop.Shard // Up, Down, Degraded, Risk, Subscribed, Unsubscribed

	Results  []redisop.Result    // Results
	Messages []redisop.Message   // Messages
	Names    []string            // Subscribed, Unsubscribed: of locks
	Routes   []redisop.SlotRange // Route

	ID          *wire.Identity // Up: what a successor needs as its Last; Results: the same, if a token raised its floor
	IsLost      bool           // Up: it is not certainly the same data as before
	IsListening bool           // Up: messages to this sidecar are received; otherwise Redis does not permit it
	IsBlocking  bool           // OpenSlots: locks wait because of that

	Text string // the sentence that an operator reads; Question, Answer: the body
	From string // Question: the uuid of the sidecar that asks
}

// EventKind says what happened.
type EventKind uint8

const (
	_ EventKind = iota

	Results      // of operations. When a connection is lost, Down comes first, so that nothing is sent again to a Redis that is gone
	Messages     // something was published on the channels of locks, or to this sidecar
	Subscribed   // Redis confirmed these subscriptions (again); what was published before may be lost
	Unsubscribed // they are gone, or not permitted. If the connection was lost they come back by themselves

	Up       // Redis can be asked. The data may have been lost: another run, another replication history, or it does not tell
	Down     // at the start of an outage and when its reason, Text, changes
	Degraded // Redis is connected, but refuses acquires, or too few replicas confirm them; "": it does not any more. After Up it does not
	Risk     // two owners may have one lock, after a failover as the numbers of replicas stand, or because Redis evicts keys; "", and after Up: nothing is known

	Route     // in a Cluster, other shards have these slots from now on. It comes before the results of operations that a node did not execute for that reason
	OpenSlots // slots of a Cluster stay open; "": none is any more
	Sentinels // most of the Sentinels do not answer; "": they do again

	Question // a sidecar asked this one
	Answer   // a sidecar answered, as any program that may publish can pretend to. See Ask
)

func (cfg *Config) tell(e Event) {
	if cfg.OnEvent != nil {
		cfg.OnEvent(e)
	}
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

func namesAnother(d *link.Dialer) error {
	return wire.Unavailablef("it names another Redis, at %s; reload the daemon to use it", d.Place())
}

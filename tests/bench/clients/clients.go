package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/state"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// client is a way to Redis. open gets the text of the script.
type client struct {
	name string
	open func(ctx context.Context, s *server, text string) (locks, error)
}

// clients are what is compared, the sidecar's own first.
var clients = []client{
	{"the pipeline of `sidecar/store`", openStore},
	{"go-redis, batches", openGoRedisBatches},
	{"rueidis, batches", openRueidisBatches},
	{"go-redis, a script an operation", openGoRedis},
	{"rueidis, a script an operation", openRueidis},
}

// maxCallers bounds the callers of a measurement.
const maxCallers = 1024

// ---- sidecar/store -------------------------------------------------------------

// storeLocks gives each operation to the store, which makes the batches.
type storeLocks struct {
	store   *store.Store
	results [maxCallers]chan redisop.Result
	callers map[string]int // by name of the lock
	ops     [maxCallers][]redisop.Op
}

func openStore(ctx context.Context, s *server, _ string) (locks, error) {
	l := &storeLocks{callers: make(map[string]int)}
	for i := range l.results {
		l.results[i] = make(chan redisop.Result, 1)
		l.ops[i] = make([]redisop.Op, 1)
		l.callers[lockName(i)] = i
	}
	up := make(chan struct{})
	var err error
	l.store, err = store.Open(store.Config{
		URL: "redis://" + s.addr, UUID: state.NewUUID().String(),
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		OnEvent: func(e store.Event) {
			switch rs := e.Results; e.Kind {
			case store.Results:
				for i := range rs {
					l.results[l.callers[rs[i].Name]] <- rs[i]
				}
				l.store.Recycle(rs)
			case store.Up:
				close(up)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-up:
		return l, nil
	case <-ctx.Done():
		l.close()
		return nil, ctx.Err()
	}
}

func (l *storeLocks) do(caller int, o op) error {
	ops := l.ops[caller]
	ops[0] = redisop.Op{Kind: redisop.Take, Name: o.name, HoldID: o.num, Count: 1, LeaseMS: leaseMS, Asked: redisop.Asked{Reserve: 1}}
	if o.drop {
		ops[0] = redisop.Op{Kind: redisop.Drop, Name: o.name, HoldID: o.num}
	}
	l.store.Do(ops)
	if r := <-l.results[caller]; r.Outcome != redisop.Done {
		return fmt.Errorf("outcome %v: %s", r.Outcome, r.Msg)
	}
	return nil
}

func (l *storeLocks) close() { _ = l.store.Close(context.Background()) }

// ---- go-redis ------------------------------------------------------------------

// goRedis returns a client with as many connections, and the digest of the script.
func goRedis(ctx context.Context, s *server, text string, connections int) (*redis.Client, string, error) {
	c := redis.NewClient(&redis.Options{
		Addr: s.addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1,
		PoolSize: connections, MinIdleConns: connections, PipelinePoolSize: -1,
	})
	sha, err := c.ScriptLoad(ctx, text).Result()
	if err != nil {
		c.Close()
	}
	return c, sha, err
}

// goRedisLocks runs a script for each operation, on a connection from a pool.
type goRedisLocks struct {
	client *redis.Client
	sha    string
}

func openGoRedis(ctx context.Context, s *server, text string) (locks, error) {
	// A connection for each of 64 callers: none waits for one.
	c, sha, err := goRedis(ctx, s, text, 64)
	return &goRedisLocks{c, sha}, err
}

func (l *goRedisLocks) do(_ int, o op) error {
	ops := []*pending{{op: o}}
	l.run(ops)
	return ops[0].err
}

func (l *goRedisLocks) run(ops []*pending) {
	takes := sortOps(ops)
	keys, args := command(nil, nil, ops, takes)
	values := make([]any, len(args))
	for i, arg := range args {
		values[i] = arg
	}
	reply, err := l.client.EvalSha(context.Background(), l.sha, keys, values...).Result()
	answer(ops, reply, err)
}

func (l *goRedisLocks) close() { l.client.Close() }

// batchedGoRedis runs a script for a batch, on one of two connections: its connections
// are half duplex.
type batchedGoRedis struct {
	goRedisLocks
	*batcher
}

func openGoRedisBatches(ctx context.Context, s *server, text string) (locks, error) {
	c, sha, err := goRedis(ctx, s, text, maxInFlight)
	l := &batchedGoRedis{goRedisLocks: goRedisLocks{c, sha}}
	l.batcher = newBatcher(l.goRedisLocks.run)
	return l, err
}

func (l *batchedGoRedis) do(caller int, o op) error { return l.batcher.do(caller, o) }

// ---- rueidis -------------------------------------------------------------------

// rueidisLocks runs a script for each operation, all on one connection: it writes what
// several callers ask at one time in one write.
type rueidisLocks struct {
	client rueidis.Client
	sha    string
}

func openRueidis(ctx context.Context, s *server, text string) (locks, error) {
	return rueidisOf(ctx, s, text)
}

func rueidisOf(ctx context.Context, s *server, text string) (*rueidisLocks, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{s.addr}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
		PipelineMultiplex: -1, // one connection, as the sidecar has
	})
	if err != nil {
		return nil, err
	}
	sha, err := c.Do(ctx, c.B().ScriptLoad().Script(text).Build()).ToString()
	if err != nil {
		c.Close()
		return nil, err
	}
	return &rueidisLocks{c, sha}, nil
}

func (l *rueidisLocks) do(_ int, o op) error {
	ops := []*pending{{op: o}}
	l.run(ops)
	return ops[0].err
}

func (l *rueidisLocks) run(ops []*pending) {
	takes := sortOps(ops)
	keys, args := command(nil, nil, ops, takes)
	reply, err := l.client.Do(context.Background(),
		l.client.B().Evalsha().Sha1(l.sha).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToAny()
	answer(ops, reply, err)
}

func (l *rueidisLocks) close() { l.client.Close() }

// batchedRueidis runs a script for a batch, two at a time on one connection.
type batchedRueidis struct {
	*rueidisLocks
	*batcher
}

func openRueidisBatches(ctx context.Context, s *server, text string) (locks, error) {
	r, err := rueidisOf(ctx, s, text)
	if err != nil {
		return nil, err
	}
	return &batchedRueidis{r, newBatcher(r.run)}, nil
}

func (l *batchedRueidis) do(caller int, o op) error { return l.batcher.do(caller, o) }

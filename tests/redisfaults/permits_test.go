package redisfaults

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

const permitsOfAPI = 3

// permitUsers take one permit or two of a semaphore, again and again, on two hosts.
type permitUsers struct {
	t      *testing.T
	redis  *harness.Redis
	inUse  atomic.Int64
	most   atomic.Int64
	grants [6]atomic.Int64
}

func startPermitUsers(t *testing.T, r *harness.Redis, daemons ...*harness.Daemon) *permitUsers {
	u := &permitUsers{t: t, redis: r}
	ctx, stop := context.WithCancel(context.Background())
	var users sync.WaitGroup
	t.Cleanup(func() { stop(); users.Wait() })
	for i := range u.grants {
		c, err := locksidecar.Dial(ctx, daemons[i%len(daemons)].Socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		users.Go(func() { u.use(ctx, c.Semaphore("api", permitsOfAPI), i) })
	}
	return u
}

func (u *permitUsers) use(ctx context.Context, s *locksidecar.Semaphore, i int) {
	for n := 1 + int64(i%2); ctx.Err() == nil; {
		held, err := s.Acquire(ctx, int(n))
		if err != nil {
			continue // what was done to its keys
		}
		now := u.inUse.Add(n)
		for most := u.most.Load(); now > most && !u.most.CompareAndSwap(most, now); most = u.most.Load() {
		}
		u.redis.Ping(ctx) // what the permits are for
		u.inUse.Add(-n)
		_ = held.Release() // it may be lost
		u.grants[i].Add(1)
	}
}

// await waits until each user has got permits so many times again.
func (u *permitUsers) await(what string, times int64) {
	u.t.Helper()
	var before [len(u.grants)]int64
	for i := range u.grants {
		before[i] = u.grants[i].Load()
	}
	harness.Eventually(u.t, what, func() bool {
		for i := range u.grants {
			if u.grants[i].Load() < before[i]+times {
				return false
			}
		}
		return true
	})
}

// An operator, or another program, deletes or overwrites one key of a semaphore after the other, under load. Each client gets
// permits again, and when that has ended, no more are in use than there are.
//
// Shows docs/guarantees.md: FLUSHALL, a deleted key, `forceUnlock` of a Redisson program.
func TestPermitsSurviveWhatIsDoneToTheirKeys(t *testing.T) {
	t.Parallel()
	const lease = "--lease=3s"
	r := harness.StartRedis(t)
	u := startPermitUsers(t, r, harness.StartDaemon(t, r.UnixURL(), lease), harness.StartDaemon(t, r.UnixURL(), lease))
	u.await("all get permits", 10)
	if most := u.most.Load(); most > permitsOfAPI {
		t.Fatalf("%d permits are in use of %d", most, permitsOfAPI)
	}
	const stranger = "11111111-2222-8333-8444-555555555555"
	change := func(field, value string) []any { // of claims, if there are any
		return []any{"EVAL", "if redis.call('HEXISTS', 'api', 'mode') == 1 then redis.call('HSET', 'api', unpack(ARGV)) end return 0", 0, field, value}
	}
	for _, attack := range []struct {
		what    string
		command []any
	}{
		{"the claims are deleted", []any{"DEL", "api"}},
		{"the places are deleted", []any{"DEL", "locksidecar_wanted:{api}"}},
		{"what the places are for is deleted", []any{"DEL", "locksidecar_wants:{api}"}},
		{"the mode is deleted", []any{"HDEL", "api", "mode"}}, // until the rest expires, that is no semaphore
		{"the mode is none", change("mode", "permits -1 x 9999999999999999999 0")},
		{"a claim is a text", change(stranger, "none")},
		{"a claim is negative", change(stranger, fmt.Sprint("5 -3 ", time.Now().Add(time.Hour).UnixMilli()))},
		{"a place is first, and for nothing", []any{"ZADD", "locksidecar_wanted:{api}", "-inf", stranger}},
		{"a place is no uuid", []any{"ZADD", "locksidecar_wanted:{api}", "0", "x"}},
		{"the claims expire", []any{"PEXPIRE", "api", "1"}},
		{"all is deleted", []any{"FLUSHALL"}},
	} {
		for range 2 {
			r.MustDo(attack.command...)
			u.await("all get permits after "+attack.what, 2)
		}
	}
	u.await("those that had permits before have given them back", 2)
	isWithin := func() bool {
		u.most.Store(0)
		u.await("all get permits", 20)
		return u.most.Load() <= permitsOfAPI
	}
	harness.Eventually(t, "no more permits are in use than there are", isWithin)
	for range 5 {
		if !isWithin() {
			t.Fatalf("%d permits are in use of %d, after no more than those were", u.most.Load(), permitsOfAPI)
		}
	}
}

// The host that is the first to wait stands still. It may be admitted to permits; when its lease has ended, others get
// them.
func TestHostsAreGrantedThePermitsOfAHostThatStandsStill(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL(), "--lease=2s"), harness.StartDaemon(t, r.UnixURL(), "--lease=2s")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	dial := func(d *harness.Daemon) *locksidecar.Semaphore {
		c, err := locksidecar.Dial(ctx, d.Socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.Semaphore("api", permitsOfAPI)
	}
	s, other := dial(here), dial(there)
	held, err := s.Acquire(ctx, permitsOfAPI)
	if err != nil {
		t.Fatal(err)
	}
	var waiter sync.WaitGroup
	waiter.Go(func() { _, _ = other.Acquire(ctx, permitsOfAPI) })
	harness.Eventually(t, "the other host waits", func() bool {
		return r.ZCard(ctx, "locksidecar_wanted:{api}").Val() == 1
	})
	there.Suspend()
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	if held, err = s.Acquire(ctx, permitsOfAPI); err != nil {
		t.Fatal(err)
	}
	if err := held.Err(); err != nil {
		t.Error(err)
	}
	there.Kill()
	stop()
	waiter.Wait()
}

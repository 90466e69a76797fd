package store

import (
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Shows docs/guarantees.md: Tokens grow.
func TestTokens(t *testing.T) {
	const name, counter = "lock", "redisson_lock_token:{lock}"
	const week = 7 * 24 * time.Hour
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url, func(c *Config) { c.TokenExpiry = week })
		last := uint64(0)
		num := uint64(0)
		draw := func(t *testing.T, n uint16) uint64 {
			t.Helper()
			r.t = t
			num++
			op := takeOp(name, num)
			op.Reserve = n
			res := r.one(op)
			if res.Outcome != redisop.Done {
				t.Fatalf("got %+v", res)
			}
			if first := res.Token - uint64(n) + 1; first <= last {
				t.Fatalf("token %d after %d", first, last)
			}
			last = res.Token
			// Tokens are drawn more slowly than one per µs; a test could outrun that.
			for uint64(must(b.admin.Time(ctx).Result()).UnixMicro()) <= last && n == 64 {
			}
			if got := must(b.admin.Get(ctx, counter).Uint64()); got != res.Token {
				t.Errorf("the counter is %d, the last token %d", got, res.Token)
			}
			return res.Token
		}
		now := func() uint64 { return uint64(must(b.admin.Time(ctx).Result()).UnixMicro()) }
		expiry := func() time.Duration { return must(b.admin.PTTL(ctx, counter).Result()) }

		t.Run("a new counter begins at the server's time and lives for a week", func(t *testing.T) {
			before := now()
			if got := draw(t, 1); got < before || got > now()+1 {
				t.Errorf("token %d, time %d", got, before)
			}
			if left := expiry(); left > week || left < week-time.Hour {
				t.Errorf("it expires in %v", left)
			}
		})
		t.Run("tokens of one counter are consecutive", func(t *testing.T) {
			a := draw(t, 1)
			if z := draw(t, 64); z != a+64 {
				t.Errorf("%d after %d with 64 reserved", z, a)
			}
		})
		t.Run("tokens go on after FLUSHALL", func(t *testing.T) {
			draw(t, 64)
			b.admin.FlushAll(ctx)
			draw(t, 1)
		})
		t.Run("tokens go on after the counter was deleted", func(t *testing.T) {
			b.admin.Del(ctx, counter)
			draw(t, 64)
		})
		t.Run("a counter from a stale replica is lifted, and keeps its expiry", func(t *testing.T) {
			b.admin.Set(ctx, counter, 17, 3*time.Hour)
			draw(t, 1)
			if left := expiry(); left > 3*time.Hour || left < 2*time.Hour {
				t.Errorf("it expires in %v, want the 3 h it had", left)
			}
		})
		t.Run("a counter without expiry, as of Redisson's fenced lock, is lifted and stays without", func(t *testing.T) {
			b.admin.Set(ctx, counter, 17, 0)
			draw(t, 1)
			draw(t, 1)
			if left := expiry(); left != -1 {
				t.Errorf("it expires in %v", left)
			}
		})
		t.Run("a negative counter is lifted", func(t *testing.T) {
			b.admin.Set(ctx, counter, -5, 0)
			draw(t, 1)
		})
		t.Run("use refreshes the expiry, but not at every grant", func(t *testing.T) {
			b.admin.PExpire(ctx, counter, 6*24*time.Hour+13*time.Hour)
			draw(t, 1)
			if left := expiry(); left > 6*24*time.Hour+13*time.Hour {
				t.Errorf("refreshed too early: %v", left)
			}
			b.admin.PExpire(ctx, counter, 6*24*time.Hour)
			draw(t, 1)
			if left := expiry(); left < week-time.Hour {
				t.Errorf("not refreshed: %v", left)
			}
		})
		t.Run("a counter that is ahead of the time is believed", func(t *testing.T) {
			ahead := now() + 3_600_000_000
			b.admin.Set(ctx, counter, ahead, 0)
			if got := draw(t, 2); got != ahead+2 {
				t.Errorf("got %d, want %d", got, ahead+2)
			}
		})
		t.Run("a counter that no longer fits is an error and takes nothing", func(t *testing.T) {
			b.admin.Del(ctx, name)
			b.admin.Set(ctx, counter, int64(1)<<53, 0)
			r.t = t
			res := r.one(takeOp(name, 1000))
			if res.Outcome != redisop.Refused || !strings.Contains(res.Msg, counter) {
				t.Errorf("got %+v", res)
			}
			if b.admin.Exists(ctx, name).Val() != 0 {
				t.Error("the lock was taken")
			}
		})
		t.Run("a counter that is no number is an error and takes nothing", func(t *testing.T) {
			b.admin.Set(ctx, counter, "seventeen", 0)
			if res := r.one(takeOp(name, 1000)); res.Outcome != redisop.Refused {
				t.Errorf("got %+v", res)
			}
			if b.admin.Exists(ctx, name).Val() != 0 {
				t.Error("the lock was taken")
			}
		})
	})
}

// Redisson's fenced lock does not refresh the expiry of a counter, and begins at 1 after
// it. So a counter has none, whatever made it, unless an operator wants one.
func TestCountersDoNotExpire(t *testing.T) {
	const name, counter = "lock", "redisson_lock_token:{lock}"
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		num := uint64(0)
		for _, tt := range []struct {
			says  string
			value any // of the counter before; nil: there is none
		}{
			{"a new counter", nil},
			{"a counter with an expiry, as earlier versions made it", uint64(1) << 51},
			{"the same, behind the floor", 17},
		} {
			t.Run(tt.says, func(t *testing.T) {
				r.t = t
				b.admin.Del(ctx, counter)
				if tt.value != nil {
					b.admin.Set(ctx, counter, tt.value, time.Hour)
				}
				num++
				first := r.one(takeOp(name, num)).Token
				if left := must(b.admin.PTTL(ctx, counter).Result()); left != -1 {
					t.Errorf("after a take it expires in %v", left)
				}
				theirs := uint64(must(b.admin.Incr(ctx, counter).Result()))
				num++
				again := takeOp(name, num)
				again.Flags |= redisop.AfterPendingDrop
				last := r.ask(dropOp(name, num-1), again)[1].Token
				if !(first < theirs && theirs < last) {
					t.Errorf("tokens %d, %d, %d do not grow", first, theirs, last)
				}
				if left := must(b.admin.PTTL(ctx, counter).Result()); left != -1 {
					t.Errorf("it expires in %v", left)
				}
			})
		}
	})
}

// A Redis whose clock was ahead, was corrected, and then lost its data gives tokens that
// are larger than all that this sidecar has seen, over a reconnect and a restart too.
func TestTokensGrowAfterTheClockWasSetBackAndTheCounterLost(t *testing.T) {
	const name, counter = "lock", "redisson_lock_token:{lock}"
	backends(t, func(t *testing.T, b backend) {
		ids := make(chan wire.Identity, 100)
		var r *recorder
		r = connected(t, b.url, func(c *Config) {
			c.on(Results, func(e Event) {
				if e.ID != nil {
					ids <- *e.ID
				}
				r.results <- e.Results
			})
		})
		// The clock was an hour ahead when another host made the counter.
		ahead := uint64(must(b.admin.Time(ctx).Result()).UnixMicro()) + 3_600_000_000
		b.admin.Set(ctx, counter, ahead, 0)
		last := r.one(takeOp(name, 1)).Token
		if last != ahead+1 {
			t.Fatalf("token %d, want %d", last, ahead+1)
		}
		id := recv(t, ids, "raised floor")
		if id.Floor != int64(last) {
			t.Errorf("the floor is %d, want %d", id.Floor, last)
		}
		b.admin.FlushAll(ctx)
		next := r.one(takeOp(name, 2)).Token
		if next <= last {
			t.Errorf("token %d after %d on the same connection", next, last)
		}

		b.admin.FlushAll(ctx)
		successor := open(t, b.url, func(c *Config) { c.Last = id })
		successor.up()
		if got := successor.one(takeOp(name, 3)).Token; got <= next {
			t.Errorf("token %d after %d in a process that was started after it", got, next)
		}

		// A stale replica: the counter is there, and behind.
		b.admin.Set(ctx, counter, ahead-3_600_000_000, 0)
		successor = open(t, b.url, func(c *Config) { c.Last = id })
		successor.up()
		if got := successor.one(takeOp(name, 4)).Token; got <= next {
			t.Errorf("token %d after %d with a counter that is behind", got, next)
		}
	})
}

// A counter that another program has set to an absurd value concerns its own lock alone.
func TestAbsurdCounterDoesNotLiftOthers(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		b.admin.Set(ctx, counterOf("absurd"), uint64(1)<<52, 0)
		if got := r.one(takeOp("absurd", 1)).Token; got != 1<<52+1 {
			t.Errorf("token %d, want 2^52 + 1", got)
		}
		now := uint64(must(b.admin.Time(ctx).Result()).UnixMicro())
		if got := r.one(takeOp("other", 2)).Token; got > now+60_000_000 {
			t.Errorf("token %d, the time is %d", got, now)
		}
	})
}

// A token that is ahead of Redis's clock shows that the clock was set back. The counters of
// other locks may have been lost and made again since.
func TestTokenAheadOfTheClockLiftsOtherCounters(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		clock := must(b.admin.Time(ctx).Result())
		ahead := uint64(clock.Add(2 * time.Hour).UnixMicro())
		b.admin.Set(ctx, counterOf("ahead"), ahead, 0)
		b.admin.Set(ctx, counterOf("other"), clock.Add(time.Hour).UnixMicro(), 0)
		if got := r.one(takeOp("ahead", 1)).Token; got != ahead+1 {
			t.Errorf("token %d, want %d", got, ahead+1)
		}
		if got := r.one(takeOp("other", 2)).Token; got <= ahead {
			t.Errorf("token %d; the sidecar has seen %d", got, ahead)
		}
	})
}

// The tokens of a host whose clock is fast must not rise above Redis's clock: those of
// other hosts, after a counter is lost, would be smaller.
func TestFloorRisesMoreSlowlyThanTheClock(t *testing.T) {
	id := wire.Identity{Floor: 1_000_000, FloorAt: 5_000_000_000}
	day := int64(24 * time.Hour)
	for _, tt := range []struct{ now, want int64 }{
		{id.FloorAt, id.Floor},
		{id.FloorAt + 1000, id.Floor + 1},
		{id.FloorAt + day, id.Floor + day/1000/100*99},
	} {
		if got := id.Above(tt.now); got != tt.want {
			t.Errorf("%v later: floor %d, want %d", time.Duration(tt.now-id.FloorAt), got, tt.want)
		}
	}
}

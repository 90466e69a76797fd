package guarantees

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// For a thousand locks of fifty processes, a daemon needs one connection to Redis and a few
// goroutines for each session. It renews all of them.
func TestFiftyProcessesShareOneRedisConnection(t *testing.T) {
	t.Parallel()
	const processes, locksEach = 50, 20
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=12s")
	ctx := t.Context()

	var fleet []*harness.Worker
	for i := range processes {
		start := harness.StartGoWorker
		if i%5 == 0 && harness.HasPython() {
			start = harness.StartPythonWorker // its start takes ten times as long
		}
		fleet = append(fleet, start(t, d))
	}
	var answers []<-chan harness.Answer
	for i, w := range fleet {
		answers = append(answers, w.Send(harness.Command{Do: "lock_many", Name: fmt.Sprintf("fleet:%d:", i), Count: locksEach, WaitMS: -1}))
	}
	for i, w := range fleet {
		if a := w.Await(answers[i]); a.Err != "" {
			t.Fatalf("process %d: %s: %s", i, a.Err, a.Msg)
		}
	}
	// For a waiter whose lock another host holds, the daemon subscribes.
	r.HSet(ctx, "elsewhere", "8743c9c0-0795-4907-87fd-6c719a6b4586:1", 1)
	fleet[0].Send(harness.Command{Do: "lock", As: "elsewhere", Name: "elsewhere", WaitMS: -1})
	harness.Eventually(t, "the daemon has subscribed", func() bool {
		return r.PubSubNumSub(ctx, "redisson_lock__channel:{elsewhere}").Val()["redisson_lock__channel:{elsewhere}"] == 1
	})
	if clients := r.LockConnections(); len(clients) != 1 {
		t.Errorf("%d Redis connections for locking, not 1: %+v", len(clients), clients)
	}

	// The time to live of each lock grows more often than it is renewed in one lease.
	type sight struct {
		ttl  time.Duration
		rose int
	}
	seen := map[string]sight{}
	harness.Eventually(t, "every lock is renewed four times", func() bool {
		pipe := r.Pipeline()
		ttls := map[string]*redis.DurationCmd{}
		for p := range processes {
			for l := range locksEach {
				name := fmt.Sprintf("fleet:%d:%d", p, l)
				ttls[name] = pipe.PTTL(ctx, name)
			}
		}
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		done := true
		for name, cmd := range ttls {
			now, s := cmd.Val(), seen[name]
			if now <= 0 {
				t.Fatalf("%s is not in Redis any more (PTTL %v)", name, now)
			}
			if now > s.ttl {
				s.rose++
			}
			s.ttl = now
			seen[name] = s
			done = done && s.rose > 4 // the first value counts, too
		}
		return done
	})
	for i, w := range fleet {
		if a := w.Try(harness.Command{Do: "check", As: fmt.Sprintf("fleet:%d:0", i)}); a.Err != "" {
			t.Errorf("process %d: %+v", i, a)
		}
	}
	// A few for each session, none for each lock.
	if n, limit := d.QuitAndCountGoroutines(), 3*processes+40; n > limit {
		t.Errorf("the daemon has %d goroutines for %d sessions and %d locks; %d would do", n, processes, processes*locksEach, limit)
	} else {
		t.Logf("%d goroutines for %d sessions and %d locks", n, processes, processes*locksEach)
	}
}

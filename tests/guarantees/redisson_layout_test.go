package guarantees

import (
	"context"
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// The keys of a lock are those that Redisson writes for an RLock, so that clients of Redisson
// respect the lock, and its release wakes them.
func TestLockHasRedissonsLayout(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=30s")
	c := harness.Dial(t, d)
	for _, k := range []struct{ name, channel string }{
		{"invoice:42", "redisson_lock__channel:{invoice:42}"},
		{"{invoice}:42", "redisson_lock__channel:{invoice}:42"},
	} {
		t.Run(k.name, func(t *testing.T) {
			ctx := t.Context()
			sub := r.Subscribe(ctx, k.channel)
			defer sub.Close()
			if _, err := sub.Receive(ctx); err != nil {
				t.Fatal(err)
			}
			ctx = locksidecar.NewOwner(ctx)
			first, err := c.Lock(ctx, k.name)
			if err != nil {
				t.Fatal(err)
			}
			field := checkLayout(t, r, k.name, "1")
			if ttl := r.PTTL(ctx, k.name).Val(); ttl <= 20*time.Second || ttl > 30*time.Second {
				t.Errorf("PTTL is %v with a lease of 30 s", ttl)
			}

			second, err := c.Lock(ctx, k.name)
			if err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "the re-entry is in Redis", func() bool { return r.HGet(ctx, k.name, field).Val() == "2" })
			if err := second.Unlock(); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "one entry is left in Redis", func() bool { return r.HGet(ctx, k.name, field).Val() == "1" })
			if err := first.Unlock(); err != nil {
				t.Fatal(err)
			}
			msg := receive(t, sub)
			if msg.Payload != "0" {
				t.Errorf("the release published %q; Redisson expects \"0\"", msg.Payload)
			}
			if n := r.Exists(ctx, k.name).Val(); n != 0 {
				t.Error("the key is still there after the release")
			}
		})
	}
}

// checkLayout checks that the key is a hash with one field in the form of an RLock, and
// returns the field.
func checkLayout(t *testing.T, r *harness.Redis, name, count string) string {
	t.Helper()
	all, err := r.HGetAll(t.Context(), name).Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 {
		t.Fatalf("the hash is %v, not one field", all)
	}
	field := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:[0-9]+$`)
	for k, v := range all {
		if !field.MatchString(k) || v != count {
			t.Fatalf("the hash is %v, not uuid:number with %s", all, count)
		}
		return k
	}
	panic("unreachable")
}

func receive(t *testing.T, sub *redis.PubSub) *redis.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	msg, err := sub.ReceiveMessage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// A daemon respects a key that has the layout of a lock of Redisson. The message of its
// release wakes a waiter.
func TestLockOfARedissonClientIsRespected(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	ctx := t.Context()
	const name, field = "theirs", "8743c9c0-0795-4907-87fd-6c719a6b4586:61"
	r.HSet(ctx, name, field, 1)
	r.PExpire(ctx, name, 10*time.Minute)

	w := harness.StartGoWorker(t, d)
	if a := w.Try(harness.Command{Do: "lock", As: name, Name: name, WaitMS: 0}); a.Err != "held" {
		t.Errorf("a request that does not wait is answered %+v, not that the lock is held", a)
	}
	granted := w.Send(harness.Command{Do: "lock", As: name, Name: name, WaitMS: -1})
	harness.Eventually(t, "the daemon has subscribed to the channel of the lock", func() bool {
		return r.PubSubNumSub(ctx, "redisson_lock__channel:{theirs}").Val()["redisson_lock__channel:{theirs}"] == 1
	})
	if n := r.HGet(ctx, name, field).Val(); n != "1" {
		t.Errorf("the field of the other client is %q now", n)
	}
	// What RLock.unlock does.
	pipe := r.TxPipeline()
	pipe.Del(ctx, name)
	pipe.Publish(ctx, "redisson_lock__channel:{theirs}", "0")
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	if a := w.Await(granted); a.Err != "" {
		t.Errorf("the waiter got %+v", a)
	}
}

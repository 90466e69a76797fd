package redisfaults

import (
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A holder learns at the next renewal that its lock was deleted from Redis. Until then,
// another host may be granted the lock, with a larger token.
//
// Shows docs/guarantees.md: A lost lock is reported once, with the reason.
// Shows docs/guarantees.md: FLUSHALL, a deleted key, `forceUnlock` of a Redisson program.
func TestFlushedLocksAreLostAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	here, there := harness.StartDaemon(t, r.UnixURL(), "--lease=3s"), harness.StartDaemon(t, r.UnixURL(), "--lease=1m")
	holds := harness.LockEach(r, harness.StartWorkerPerSDK(t, here), "flushed")
	other := harness.StartGoWorker(t, there)

	r.MustDo("FLUSHALL")
	for _, h := range holds {
		h.ExpectLost(protocol.Deleted)
		// The token counter was deleted, too.
		again := h.Lock(h.Name)
		if again.Token <= h.Token {
			t.Errorf("%s: after the flush the token is %d, before it was %d", h.Name, again.Token, h.Token)
		}
		h.Unlock(h.Name)
		if a := other.Lock(h.Name); a.Token <= again.Token {
			t.Errorf("%s: on the other host the token is %d after %d", h.Name, a.Token, again.Token)
		}
		other.Unlock(h.Name)
	}

	// With a lease of one minute, the lock is not renewed before the other host has it.
	slow := harness.Hold{Worker: other, Name: "flushed unnoticed"}
	slow.Token = slow.Lock(slow.Name).Token
	r.MustDo("FLUSHALL")
	if a := holds[0].Lock(slow.Name); a.Token <= slow.Token {
		t.Errorf("%s: after the flush the token is %d, before it was %d", slow.Name, a.Token, slow.Token)
	}
	slow.CheckHeld() // not guaranteed: the lock has two holders until the renewal
}

// A holder learns at the next renewal that another program has overwritten its lock. The
// daemon does not delete the key of that program.
//
// Shows docs/guarantees.md: A lost lock is reported once, with the reason.
func TestOverwrittenLockIsLostAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease=3s")
	ctx := t.Context()
	for _, h := range harness.LockEach(r, harness.StartWorkerPerSDK(t, d), "stolen") {
		pipe := r.TxPipeline()
		pipe.Del(ctx, h.Name)
		pipe.HSet(ctx, h.Name, "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1")
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		h.ExpectLost(protocol.Stolen)
		if n := len(r.Fields(h.Name)); n != 1 {
			t.Errorf("the key of the other program has %d fields now", n)
		}
	}
}

package locktable_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// The queue of the sidecars in Redis: tickets, transfers, turns, and what Redis publishes to
// a sidecar.

// newListeningRig returns a rig whose sidecar is subscribed to its own channel.
func newListeningRig(t *testing.T, cfg locktable.Config) *rig {
	r := &rig{T: t, now: int64(time.Hour)}
	r.tb = locktable.New(cfg, r.now)
	r.tb.Up(r.now, false, true)
	for s := range locktable.SessionID(4) {
		r.tb.Open(r.now, s+1, locktable.Peer{PID: int64(100 + s), Cmd: fmt.Sprintf("worker-%d", s+1)})
	}
	return r
}

func (r *rig) cancel(s locktable.SessionID, id uint64) {
	r.tb.Cancel(r.now, s, protocol.Cancel{Target: id})
	r.collect()
}

// forgotten checks that the table has forgotten the lock "a".
func (r *rig) forgotten() {
	r.Helper()
	r.quiet()
	if row, ok := r.tb.Info(r.now, "a"); ok {
		r.Fatalf("the table still knows the lock: %+v", row)
	}
}

// A Take was sent with a ticket, and its sidecar has its channel no more when the result
// comes.
func TestTakeThatEnqueuedMayEndAfterTheChannelIsGone(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	id := r.acquire(1, "a")
	r.tb.Down(r.now, "gone")
	r.tb.Up(r.now, false, false)
	r.cancel(1, id)
	r.redis(locktable.Take, locktable.Unknown)
	r.want("s1 refused canceled")
	r.redis(locktable.Drop, locktable.Done)
	r.forgotten()
}

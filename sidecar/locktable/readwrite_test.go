package locktable_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// modes checks how Redis has the lock for each host, and how many wait to read and to write.
func (r *pairRig) modes(a, b redisop.Mode, readers, writers int) {
	r.Helper()
	l := &r.lock
	got := [...]redisop.Mode{l.Claims[0].Mode, l.Claims[1].Mode}
	if got != [...]redisop.Mode{a, b} || len(l.Places[0]) != readers || len(l.Places[1]) != writers {
		r.Fatalf("Redis has modes %v, want %d and %d; %d hosts wait to read and %d to write, want %d and %d: %+v", got, a, b, len(l.Places[0]), len(l.Places[1]), readers, writers, *l)
	}
}

const (
	none   = redisop.NoMode
	shares = redisop.SharedMode
	owns   = redisop.ExclusiveMode
)

// One operation serves all readers of a host, and they share it with those of another host.
func TestHostsReadTogether(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.reads(1)
	if op := a.redis(); op.Of != redisop.KindReadWrite || op.Want != uint16(shares) || op.Count != 0 || op.Times != redisop.ReadersQueue {
		t.Errorf("asked by %+v", op)
	}
	a.reads(2)
	a.want("s1 granted", "s2 granted")
	a.quiet()
	b.reads(1)
	r.settle()
	b.want("s1 granted")
	r.modes(shares, shares, 0, 0)
	a.release(1)
	a.quiet()
	a.release(2)
	b.release(1)
	r.settle()
	r.pass(20 * time.Millisecond)
	r.modes(none, none, 0, 0)
}

// While a writer waits on any host, no new reader gets the lock (K8); after it all that wait do, on all hosts (K9).
func TestPhasesAlternateBetweenHosts(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.reads(1)
	r.settle()
	b.writes(1)
	r.settle()
	r.modes(shares, none, 0, 1)
	a.reads(2)
	b.reads(2)
	r.settle()
	a.want("s1 granted")
	b.want()
	r.modes(shares, none, 2, 1) // the place of the first host is for later
	a.writes(3)
	r.settle()
	a.release(1)
	r.settle()
	b.want("s1 granted")
	r.modes(none, owns, 2, 1)
	b.writes(3)
	r.settle()
	b.release(1)
	r.settle()
	a.want("s2 granted")
	b.want("s2 granted")
	r.modes(shares, shares, 0, 2)
	a.release(2)
	b.release(2)
	r.settle()
	a.want("s3 granted")
	a.release(3)
	r.settle()
	b.want("s3 granted")
	b.release(3)
	r.settle()
	r.pass(20 * time.Millisecond)
	r.modes(none, none, 0, 0)
}

// A local writer leaves the lock to the readers that wait here, also to those that came after other writers. Redis gets to
// know with one operation that other hosts may read.
func TestReadersFollowALocalWriter(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.writes(1)
	r.settle()
	a.writes(2)
	a.reads(3)
	a.reads(4)
	a.quiet()
	b.reads(1)
	r.settle()
	a.want("s1 granted")
	a.release(1)
	r.settle()
	a.want("s3 granted", "s4 granted")
	b.want("s1 granted")
	r.modes(shares, shares, 0, 1)
	a.reads(1) // the writer came before it
	r.settle()
	a.want()
	a.release(3)
	a.release(4)
	b.release(1)
	r.settle()
	a.want("s2 granted")
}

// Writers of one host pass the lock on among themselves without Redis, while no other host waits.
func TestWritersOfOneHostNeedNoRedis(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.writes(1)
	r.settle()
	a.writes(2)
	a.writes(3)
	a.release(1)
	r.settle()
	a.release(2)
	a.want("s1 granted", "s2 granted", "s3 granted")
	a.quiet()
}

// The last writer that waits leaves: the readers that waited for it are admitted (K7).
func TestReadersDoNotWaitForAWriterThatIsGone(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.reads(1)
	r.settle()
	id := b.writes(1)
	r.settle()
	a.reads(2)
	b.reads(2)
	r.settle()
	a.want("s1 granted")
	b.cancel(1, id)
	r.settle()
	a.want("s2 granted")
	b.want("s1 refused canceled: canceled by the client", "s2 granted")
	r.modes(shares, shares, 0, 0)
}

// A claim of readers whose host is recalled is given back as soon as no client has it, and lingers no more.
func TestRecalledReadersLeave(t *testing.T) {
	r, a, b := newPermitsRig(t)
	for range 3 {
		a.reads(1)
		r.settle()
		a.release(1)
		r.settle()
	}
	r.modes(shares, none, 0, 0) // it lingers
	b.writes(1)
	r.settle()
	b.want("s1 granted")
}

// A request that does not wait is answered by the next result.
func TestTryOfAReadWriteLock(t *testing.T) {
	r, a, b := newPermitsRig(t)
	a.reads(1)
	r.settle()
	b.writes(1, wait(0))
	r.settle()
	b.want("s1 refused timeout: clients of other hosts read, or requests of other hosts come first")
	b.reads(2, wait(0))
	r.settle()
	b.want("s2 granted")
	a.writes(2, wait(0))
	r.settle()
	a.want("s1 granted", "s2 refused timeout: held by pid 100 (worker-1) on this host")
	r.modes(shares, shares, 0, 0)
}

// Another host has the name as a lock of another kind: Redis is asked when its key may expire, and not all the time.
func TestReadWriteLockThatSomethingElseHas(t *testing.T) {
	_, a, _ := newPermitsRig(t)
	a.reads(1)
	a.writes(2)
	for range 2 { // the second one is for the writer, too
		op := a.sent()
		a.ops = nil
		a.tb.Result(a.rig.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: redisop.HeldByOther, Sent: a.rig.now, Field: "another:1", TTLMS: 20_000})
		a.collect()
	}
	a.quiet()
}

// A result of an operation of one kind is not taken for one of another kind.
func TestKindStaysWhileATakeIsInFlight(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	id := a.reads(1)
	op, res := a.run()
	a.cancel(1, id)
	a.tb.Acquire(r.now, 2, protocol.Acquire{ID: 99, Name: op.Name, WaitMS: protocol.Forever})
	a.collect()
	a.tb.Result(r.now, res)
	a.want("s1 refused canceled: canceled by the client", "s2 refused unavailable: this sidecar has not given back to Redis what it had under this name as a read/write lock; try again")
}

// A share that was in doubt is confirmed: readers that came after a writer wait on.
func TestConfirmedShareBeginsNoPhase(t *testing.T) {
	r, a, _ := newPermitsRig(t)
	a.reads(1)
	r.settle()
	a.writes(2)
	r.settle()
	a.reads(3)
	r.settle()
	a.tb.Down(r.now, 0, "gone")
	a.tb.Up(r.now, 0, true, true)
	r.settle()
	a.want("s1 granted")
}

package redisfaults

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// Faults of hosts that wait in the queue of a lock, and of Redis while they do.

// signOfLife is for how long Redis passes a lock on to a host after it has last asked for it.
const signOfLife = 15 * time.Second

// A queuedHost is a host with one client that waits for a lock.
type queuedHost struct {
	*harness.Worker
	d       *harness.Daemon
	way     *harness.Proxy // between the daemon and Redis
	uuid    string
	granted <-chan harness.Answer
}

// An orderedQueue is a lock that three hosts wait for in a known order: first, passer and next.
// A foreign client holds it. When that program releases it, only first and passer
// are woken, and a first that is out of order does not ask. So passer takes the lock, its client
// releases it at once, and Redis passes it on to the ticket of first.
type orderedQueue struct {
	t                   *testing.T
	r                   *harness.Redis
	name                string
	first, passer, next queuedHost
}

func startQueue(t *testing.T, lease string) *orderedQueue {
	t.Helper()
	q := &orderedQueue{t: t, r: harness.StartRedis(t)}
	for _, h := range []*queuedHost{&q.first, &q.passer, &q.next} {
		h.way = harness.StartProxy(t, q.r)
		h.d = harness.StartDaemon(t, h.way.URL(), lease)
		h.Worker = harness.StartGoWorker(t, h.d)
		h.Lock("whose uuid")
		h.uuid = q.r.Owner("whose uuid")
		h.Unlock("whose uuid")
		harness.Eventually(t, "the lock is free", func() bool { return len(q.r.Fields("whose uuid")) == 0 })
	}
	q.enqueue()
	return q
}

// enqueue has a program hold a new lock, and the hosts wait for it.
func (q *orderedQueue) enqueue() {
	q.t.Helper()
	q.name += "x"
	q.r.MustDo("HSET", q.name, "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1")
	for i, h := range []*queuedHost{&q.first, &q.passer, &q.next} {
		c := harness.Command{Do: "lock", As: q.name, Name: q.name, WaitMS: -1}
		if h == &q.passer {
			c.Do, c.Count, c.ForMS = "poll", 1, (10 * time.Minute).Milliseconds() // acquires and releases
		}
		h.granted = h.Send(c)
		harness.Eventually(q.t, "the host has a ticket", func() bool { return q.r.Tickets(q.name) == int64(i+1) })
	}
	harness.Eventually(q.t, "the first two hosts have subscribed", func() bool { return q.r.Subscribers(q.name) == 2 })
}

// release has the program release the lock, and waits until passer has released it after that.
func (q *orderedQueue) release() {
	q.t.Helper()
	q.r.MustDo("DEL", q.name)
	q.r.MustDo("PUBLISH", "redisson_lock__channel:{"+q.name+"}", "0")
	if a := q.passer.Await(q.passer.granted); a.Err != "" || a.Grants != 1 {
		q.t.Fatalf("the host that passes the lock on got %+v", a)
	}
}

// passToFirst has the lock passed on to the ticket of first, which does not react. fail is what
// is wrong with first. If the machine is so slow that the lock is left free for a moment instead
// of being passed on, it tries again with another lock.
func (q *orderedQueue) passToFirst(fail, heal func()) {
	q.t.Helper()
	for range 5 {
		fail()
		q.release()
		owner := ""
		harness.Eventually(q.t, "the lock is passed on, or free", func() bool {
			owner = q.r.Owner(q.name)
			return owner != q.passer.uuid
		})
		if owner == q.first.uuid {
			return
		}
		heal()
		q.serveBoth()
		q.enqueue()
	}
	q.t.Fatal("the lock was never passed on to the first host")
}

// serveBoth has first and next be granted the lock and release it, in any order.
func (q *orderedQueue) serveBoth() {
	q.t.Helper()
	var a, b harness.Answer
	select {
	case a = <-q.first.granted:
		q.first.Unlock(q.name)
		b = q.expect(&q.next)
		q.next.Unlock(q.name)
	case a = <-q.next.granted:
		q.next.Unlock(q.name)
		b = q.expect(&q.first)
		q.first.Unlock(q.name)
	case <-time.After(harness.Patience):
		q.t.Fatalf("no host was granted the lock within %v", harness.Patience)
	}
	if a.Err != "" || b.Token <= a.Token {
		q.t.Errorf("%+v after %+v", b, a)
	}
}

// expect waits until a host is granted the lock, and returns its answer.
func (q *orderedQueue) expect(h *queuedHost) harness.Answer {
	q.t.Helper()
	a := h.Await(h.granted)
	if a.Err != "" {
		q.t.Fatalf("the waiter got %+v", a)
	}
	return a
}

// isGranted reports whether a host was granted the lock. After that, expect does not return.
func (h *queuedHost) isGranted() bool {
	select {
	case <-h.granted:
		return true
	default:
		return false
	}
}

// A host that waits is gone, and Redis knows, or it has not asked for the lock for 15 s. The lock
// goes to the next host in the same script: leases are far longer than this test. When the host
// is back, it is granted the lock in its turn.
func TestLockIsNotPassedOnToAHostThatIsKnownToBeGone(t *testing.T) {
	t.Parallel()
	awaitDisconnect := func(r *harness.Redis, h *queuedHost) {
		harness.Eventually(t, "Redis has noticed that the connection ended", func() bool { return !r.IsReached(h.uuid) })
	}
	for _, c := range []struct {
		what string
		fail func(r *harness.Redis, h *queuedHost)
		heal func(h *queuedHost)
	}{
		{"its daemon is killed",
			func(r *harness.Redis, h *queuedHost) { h.d.Kill(); awaitDisconnect(r, h) },
			func(h *queuedHost) { h.d.Start(harness.LongLease); h.d.AwaitSocket() }},
		{"its connection is reset",
			func(r *harness.Redis, h *queuedHost) { h.way.Refuse(); h.way.Reset(); awaitDisconnect(r, h) },
			func(h *queuedHost) { h.way.Admit() }},
		{"its daemon is suspended for longer than 15 s",
			func(_ *harness.Redis, h *queuedHost) {
				h.d.Suspend()
				stopped := time.Now()
				harness.Eventually(t, "the host is taken for dead", func() bool { return time.Since(stopped) > signOfLife+1500*time.Millisecond })
			},
			func(h *queuedHost) { h.d.Signal(syscall.SIGCONT) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			q := startQueue(t, harness.LongLease)
			c.fail(q.r, &q.first)
			released := time.Now()
			q.release()
			a := q.expect(&q.next)
			t.Logf("granted to the next host %v after the release", time.Since(released).Round(time.Millisecond))
			c.heal(&q.first)
			harness.Eventually(t, "the host waits again", func() bool { return harness.Waiters(t, q.first.d, q.name) == 1 })
			if q.first.isGranted() {
				t.Fatal("two hosts have the lock")
			}
			q.next.Unlock(q.name)
			if b := q.expect(&q.first); b.Token <= a.Token {
				t.Errorf("token %d after %d", b.Token, a.Token)
			}
		})
	}
}

// A host that waits is suspended, and the lock is passed on to it: no host has the lock until the
// lease ends. If the host goes on before that, it has the lock.
func TestHostThatIsSuspendedForAMomentIsPassedALock(t *testing.T) {
	t.Parallel()
	q := startQueue(t, harness.LongLease)
	q.passToFirst(q.first.d.Suspend, func() { q.first.d.Signal(syscall.SIGCONT) })
	if q.next.isGranted() {
		t.Fatal("a host was granted a lock that was passed on to another one")
	}
	q.first.d.Signal(syscall.SIGCONT)
	a := q.expect(&q.first)
	if q.next.isGranted() {
		t.Fatal("two hosts have the lock")
	}
	q.first.Unlock(q.name)
	if b := q.expect(&q.next); b.Token <= a.Token {
		t.Errorf("token %d after %d", b.Token, a.Token)
	}
}

// The host goes on after the end of the lease, when the next one has the lock. It reads then that
// the lock was passed on to it, and does not grant it.
func TestHostThatIsSuspendedPastTheLeaseDoesNotGrantTheLockItWasPassed(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	q := startQueue(t, "--lease="+lease.String())
	q.passToFirst(q.first.d.Suspend, func() { q.first.d.Signal(syscall.SIGCONT) })
	passed := time.Now()
	a := q.expect(&q.next)
	t.Logf("granted to the next host after %v, with a lease of %v", time.Since(passed).Round(time.Millisecond), lease)
	q.first.d.Signal(syscall.SIGCONT)
	asked := q.r.CommandCalls(t.Context())["zrank"]
	harness.Eventually(t, "the host asks for the lock, and again", func() bool {
		return harness.Waiters(t, q.first.d, q.name) == 1 && q.r.CommandCalls(t.Context())["zrank"] >= asked+2
	})
	if q.first.isGranted() || q.r.Owner(q.name) != q.next.uuid {
		t.Fatalf("the host that was suspended was granted the lock, or took it: Redis has %v", q.r.Fields(q.name))
	}
	if a := q.next.Try(harness.Command{Do: "check", As: q.name}); a.Err != "" {
		t.Errorf("the SDK of the holder reports %+v", a)
	}
	q.next.Unlock(q.name)
	if b := q.expect(&q.first); b.Token <= a.Token {
		t.Errorf("token %d after %d", b.Token, a.Token)
	}
}

// The connection of the first host is half-open when the lock is passed on to it. Its daemon
// finds that, connects again, and has the lock, long before the end of the lease.
func TestHostWithAHalfOpenConnectionFindsTheLockItWasPassed(t *testing.T) {
	t.Parallel()
	for _, ways := range [][]harness.Direction{{harness.FromRedis}, {harness.ToRedis, harness.FromRedis}} {
		t.Run(fmt.Sprintf("directions that are lost: %d", len(ways)), func(t *testing.T) {
			t.Parallel()
			q := startQueue(t, harness.LongLease)
			q.passToFirst(func() { q.first.way.Blackhole(ways...) }, func() { q.first.way.Reset() })
			passed := time.Now()
			a := q.expect(&q.first)
			t.Logf("granted %v after the lock was passed on", time.Since(passed).Round(time.Millisecond))
			if q.next.isGranted() {
				t.Fatal("two hosts have the lock")
			}
			q.first.Unlock(q.name)
			if b := q.expect(&q.next); b.Token <= a.Token {
				t.Errorf("token %d after %d", b.Token, a.Token)
			}
		})
	}
}

// A daemon dies after the lock was passed on to it, and before it has read that. Its successor
// grants the lock to the client that waits, or gives it back if that client died, too: long before
// the end of the lease.
func TestDaemonThatDiesBeforeItReadsATransferKeepsNoLock(t *testing.T) {
	t.Parallel()
	for _, isClientDead := range []bool{false, true} {
		t.Run(fmt.Sprintf("client dies: %v", isClientDead), func(t *testing.T) {
			t.Parallel()
			q := startQueue(t, harness.LongLease)
			q.passToFirst(q.first.d.Suspend, func() { q.first.d.Signal(syscall.SIGCONT) })
			q.first.d.Kill()
			if q.next.isGranted() || q.r.Owner(q.name) != q.first.uuid {
				t.Fatalf("before the restart, the lock was granted, or is %v", q.r.Fields(q.name))
			}
			if isClientDead {
				q.first.Kill()
			}
			q.first.d.Start(harness.LongLease)
			q.first.d.AwaitSocket()
			if isClientDead {
				q.expect(&q.next)
			} else {
				q.serveBoth()
			}
		})
	}
}

// The host of the holder dies while others wait. They are granted the lock after the end of its
// lease, one after another.
func TestHostsAreGrantedTheLockOfAHostThatDied(t *testing.T) {
	t.Parallel()
	const lease, hosts = 3 * time.Second, 4
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL(), "--lease="+lease.String())
	h := harness.LockEach(r, []*harness.Worker{harness.StartGoWorker(t, d)}, "held")[0]
	var fleet []*harness.Worker
	answers := make(chan queuedAnswer, hosts)
	for i := range hosts {
		there := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
		w := harness.StartNthWorker(t, there, i)
		fleet = append(fleet, w)
		granted := w.Enqueue(there, h.Name)
		go func() { answers <- queuedAnswer{i, <-granted} }()
		harness.Eventually(t, "the host has a ticket", func() bool { return r.Tickets(h.Name) == int64(i+1) })
	}
	d.Kill()
	died := time.Now()
	lost := h.ExpectLost(protocol.Expired)
	last := h.Token
	for n := range hosts {
		a := nextAnswer(t, answers)
		if a.Err != "" || a.Token <= last || a.AtNS < lost.DeadlineNS {
			t.Errorf("host %d got %+v; the token before was %d, the deadline of the dead holder %d", a.host, a.Answer, last, lost.DeadlineNS)
		}
		if n == 0 {
			t.Logf("granted %v after the death, with a lease of %v", time.Since(died).Round(time.Millisecond), lease)
		}
		last = a.Token
		fleet[a.host].Unlock(h.Name)
	}
}

// Redis's clock is set back by an hour while a host waits, and two others acquire and release the
// lock again and again. To those that come later, the ticket of the first is an hour ahead.
//
// The clock of the machine cannot be set back here. The score of the ticket is raised instead: the
// two are the same to Redis, which compares its clock with scores only.
func TestHostThatWaitsIsServedAfterTheClockOfRedisWasSetBack(t *testing.T) {
	t.Parallel()
	const name, back = "a", time.Hour
	r := harness.StartRedis(t)
	r.MustDo("HSET", name, "8743c9c0-0795-4907-87fd-6c719a6b4586:1", "1")
	var fleet []*harness.Worker
	for range 3 {
		d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
		fleet = append(fleet, harness.StartGoWorker(t, d))
	}
	granted := fleet[0].Send(harness.Command{Do: "lock", As: name, Name: name, WaitMS: -1})
	harness.Eventually(t, "the host has a ticket", func() bool { return r.Tickets(name) == 1 })
	queue := "locksidecar_queue:{" + name + "}"
	ticket := r.ZRange(t.Context(), queue, 0, -1).Val()[0]
	r.MustDo("ZINCRBY", queue, back.Microseconds(), ticket)

	for i, w := range fleet[1:] {
		w.Send(harness.Command{Do: "poll", Name: name, WaitMS: -1, ForMS: (10 * time.Minute).Milliseconds()})
		harness.Eventually(t, "the next host has a ticket", func() bool { return r.Tickets(name) == int64(i+2) })
	}
	if rank := r.ZRank(t.Context(), queue, ticket).Val(); rank != 0 {
		t.Errorf("%d tickets that came later are before the one of the host", rank)
	}
	r.MustDo("DEL", name)
	r.MustDo("PUBLISH", "redisson_lock__channel:{"+name+"}", "0")
	if a := fleet[0].Await(granted); a.Err != "" {
		t.Errorf("the host that waited got %+v", a)
	}
}

// A queuedAnswer is what the client of one of several hosts got.
type queuedAnswer struct {
	host int
	harness.Answer
}

func nextAnswer(t *testing.T, answers <-chan queuedAnswer) queuedAnswer {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(harness.Patience):
		t.Fatalf("no host was granted the lock within %v", harness.Patience)
	}
	panic("unreachable")
}

// The keys of a queue are lost while hosts wait, alone or with the lock. All of them are granted
// the lock: they ask again after 5 to 6.25 s, and queue again.
func TestHostsThatLostTheirPlaceAreGrantedTheLock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what string
		keys []string // that are deleted, without the name of the lock; nil: all of Redis
	}{
		{"the queue and the signs of life", []string{"locksidecar_queue:", "locksidecar_signs:"}},
		{"the queue", []string{"locksidecar_queue:"}},
		{"the signs of life", []string{"locksidecar_signs:"}},
		{"FLUSHALL", nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			const hosts = 3
			r := harness.StartRedis(t)
			holder := harness.StartGoWorker(t, harness.StartDaemon(t, r.UnixURL(), "--lease=3s"))
			h := harness.LockEach(r, []*harness.Worker{holder}, "held")[0]
			var fleet []*harness.Worker
			answers := make(chan queuedAnswer, hosts)
			for i := range hosts {
				d := harness.StartDaemon(t, r.UnixURL(), harness.LongLease)
				w := harness.StartNthWorker(t, d, i)
				fleet = append(fleet, w)
				granted := w.Enqueue(d, h.Name)
				go func() { answers <- queuedAnswer{i, <-granted} }()
				harness.Eventually(t, "the host has a ticket", func() bool { return r.Tickets(h.Name) == int64(i+1) })
			}
			last := h.Token
			if c.keys == nil {
				r.MustDo("FLUSHALL")
				h.ExpectLost(protocol.Deleted, protocol.Stolen) // stolen: a host that waits asked before the holder renewed
			} else {
				for _, key := range c.keys {
					r.MustDo("DEL", key+"{"+h.Name+"}")
				}
				h.Unlock(h.Name)
			}
			began := time.Now()
			for range hosts {
				a := nextAnswer(t, answers)
				if a.Err != "" || a.Token <= last {
					t.Errorf("host %d got %+v; the token before was %d", a.host, a.Answer, last)
				}
				last = a.Token
				fleet[a.host].Unlock(h.Name)
			}
			t.Logf("all hosts have had the lock after %v", time.Since(began).Round(time.Millisecond))
			harness.Eventually(t, "the lock is free, and no ticket stands", func() bool { return len(r.Fields(h.Name)) == 0 && r.Tickets(h.Name) == 0 })
		})
	}
}

// A Redis user may not use the keys of queues, or not the channels of sidecars. Its host waits
// without a place in the queue, beside one that may, and its log says once what to permit. No
// increment is lost, and both are served.
func TestHostThatMayNotQueueIsServed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  string
		rules []string
		words []string
	}{
		{"without the keys", []string{"~counter*", "~redisson_lock_token:*", "&*"}, []string{"may not use the queues", "locksidecar_*"}},
		{"without the channel of the sidecar", []string{"~*", "&redisson_lock__channel:{counter*"}, []string{"may not subscribe to the channel on which other sidecars reach this one", "{locksidecar}:*"}},
		{"without any channel", []string{"~*", "resetchannels"}, []string{"may not subscribe to the channel on which other sidecars reach this one"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			const workersPerHost, rounds = 2, 60
			r := harness.StartRedis(t)
			r.AddUser("limited", append([]string{">pw", "+@all"}, c.rules...)...)
			limited := harness.StartDaemon(t, r.URLOf("limited", "pw"))
			fleet := harness.StartFleet(t, workersPerHost, limited, harness.StartDaemon(t, r.UnixURL()))
			harness.HammerTogether(t, r, fleet, rounds)
			limited.Log.AwaitWords(t, c.words...)
			if n := strings.Count(limited.Log.String(), c.words[0]); n != 1 {
				t.Errorf("the log says so %d times:\n%s", n, limited.Log.String())
			}
		})
	}
}

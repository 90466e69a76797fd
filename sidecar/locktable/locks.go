package locktable

import (
	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// strayCells is the room beyond MaxLocks for locks that no client here asked for: those that
// messages are about.
const strayCells = 4096

// lockFor returns the lock of a name, made if need be.
func (t *Table) lockFor(name string) *lock {
	l := t.byName[name]
	if l == nil {
		l = t.unused.get()
		*l = lock{name: name, index: uint32(len(t.locks))}
		l.timer.Value = l
		l.claim.Reset()
		l.memory = t.contests.Remember(name)
		l.group, l.shard = t.groupOf(name), t.routeOf(name)
		t.byName[name] = l
		t.locks = append(t.locks, l)
		t.cells += Cells(name)
	}
	return l
}

func (t *Table) forget(l *lock) {
	t.markDirty(l)
	t.charge(l, nil)
	t.cells -= Cells(l.name)
	t.wheel.Remove(&l.timer)
	if l.kind().HasMany() {
		delete(t.many, l)
	}
	delete(t.byName, l.name)
	last := len(t.locks) - 1
	moved := t.locks[last]
	t.locks[l.index] = moved
	moved.index = l.index
	t.locks[last] = nil
	t.locks = t.locks[:last]
	l.index = noIndex
	if !l.isDirty() { // otherwise writeJournal has work with it
		t.unused.put(l)
	}
}

// noIndex is that of a lock which is forgotten. Its memory is that of the next new lock.
const noIndex = 1<<32 - 1

func (l *lock) isForgotten() bool { return l.index == noIndex }

func (l *lock) isIdle() bool {
	return !l.holders.isHeld() && l.claim.IsIdle() && l.claim.State() == claim.Absent && l.queue == nil
}

// capacityOf is how many permits a semaphore has, as its holders and the first waiter of this host know; 0: it is not known.
func (t *Table) capacityOf(l *lock, m *many) uint16 {
	of := m.capacities.largest()
	if l.waiting() > 0 {
		of = max(of, l.queue.waiters.head.request.capacity)
	}
	return of
}

// waiting is how many waiters the lock has, but for those that are being refused.
func (l *lock) waiting() int {
	if q := l.queue; q != nil && q.denial == "" {
		return q.waiters.len
	}
	return 0
}

// isAwaited reports whether a request of this host, another host, or a program that is subscribed
// waits for the lock that a Drop frees, as far as this host knows.
func (l *lock) isAwaited(op *redisop.Op) bool {
	q := l.queue
	return op.Ticket != 0 || l.memory.HostsWait() || l.memory.HasSubscribers() || q != nil && (q.waiters.head != nil || len(q.confirms) > 0)
}

// modes is in which queues of a read/write lock this host waits: for clients that wait for more than the next result of Redis.
func (q *queue) modes() (queues uint8) {
	if q == nil || q.waiters.head == nil {
		return 0
	}
	readers, writers := q.waiters.len-q.writers, q.writers
	if first := q.waiters.head; first.isTrying() {
		isWriter := btoi(first.request.mode == Exclusive)
		readers, writers = readers-(1-isWriter), writers-isWriter
	}
	if readers > 0 {
		queues |= redisop.ReadersQueue
	}
	if writers > 0 {
		queues |= redisop.WritersQueue
	}
	return queues
}

// needQueue returns the queue of a lock, made if need be.
func (t *Table) needQueue(l *lock) *queue {
	if l.queue == nil {
		l.queue = t.queues.get()
		l.queue.contest.Begin(&l.memory)
	}
	return l.queue
}

// firstTries reports whether the first waiter waits for the next result of Redis only.
func (q *queue) firstTries() bool { return q.waiters.head != nil && q.waiters.head.isTrying() }

// forgetClaim notes that Redis has no field of this host, or that nothing is known of it.
func (l *lock) forgetClaim(s claim.State) {
	l.claim.Forget(s)
	l.memory.NoteHosts(false)
	if l.queue != nil {
		l.queue.contest.OnClaimForgotten(s == claim.Absent)
	}
}

// doubt notes that Redis has, or had, a field of this host that the table did not know of. A
// Drop of it is to meet all such fields and tickets.
func (t *Table) doubt(l *lock) {
	l.claim.Doubt(t.lastNum)
	if l.queue != nil {
		l.queue.contest.TryBy(t.now)
	}
}

// hasRemoteState reports whether Redis has, or may yet have, a field or a ticket of this
// sidecar.
func (l *lock) hasRemoteState() bool {
	return l.holders.isHeld() || l.claim.State() != claim.Absent || l.claim.IsBusy() || l.queue != nil && l.queue.contest.HasPlace()
}

func (w *waiter) isTrying() bool { return w.request.phase == requestTrying }

// leaseOf is the lease that Redis is given for a request or a hold. leaseMS is that of a
// fixed lease. Under the watchdog it is 0, unless a predecessor, which may have had another
// lease, stopped renewing the hold: then it is the predecessor's.
func (t *Table) leaseOf(kind LeaseKind, leaseMS uint32) uint32 {
	if kind == WatchdogLease && leaseMS == 0 {
		return t.leaseMS
	}
	return leaseMS
}

package intake

import "sync"

// A queue shares the loop's time evenly among the users of the host that have requests, and
// the time of each user evenly among its processes.
//
// It is a deficit round robin with two levels, like the flow queues of RFC 8290. Its currency
// is the loop's time: after a request that takes long, its sender misses turns. A sender that
// was idle goes before the others, once, so a sender with few requests waits as if it were
// alone.
//
// A sender cannot get a larger share: more connections are still one process, and more
// processes are still one user.
type queue[R any] struct {
	users     flows[*user[R]]
	processes map[processKey]*Process[R]
	byUID     map[int64]*user[R]
	conns     int
	unseen    uint64        // connections of processes that are not visible here, so far
	len       int           // requests
	held      []*Process[R] // that have requests, and are idle: see pop
}

// processKey identifies a process. If the process is not visible here (pid 0), each connection
// counts as a process of its own.
type processKey struct {
	uid, pid int64
	unseen   uint64
}

// user is one user of the host.
type user[R any] struct {
	flow         flow[*user[R]]
	uid          int64
	processes    flows[*Process[R]]
	processCount int
	conns        int
}

// Process is one client process with the requests of its connections.
type Process[R any] struct {
	flow     flow[*Process[R]]
	user     *user[R]
	key      processKey
	conns    int
	requests []R
	head     int       // of requests
	room     sync.Cond // on Inbox.mu: there are less than maxQueuedOfProcess requests again
}

func (p *Process[R]) len() int { return len(p.requests) - p.head }

// maxQueuedOfProcess is how many requests of a process may be queued. Beyond that its
// connections are not read: also the reading takes processor time from others.
const maxQueuedOfProcess = 256

// A quantum is the loop's time that a flow may use before the next flow has its turn, ns. A
// request takes one or two microseconds.
const (
	userQuantum    = 20_000
	processQuantum = 10_000
)

func newQueue[R any]() queue[R] {
	return queue[R]{processes: make(map[processKey]*Process[R]), byUID: make(map[int64]*user[R])}
}

// addConn counts a connection and returns its process.
func (q *queue[R]) addConn(uid, pid int64) *Process[R] {
	key := processKey{uid: uid, pid: pid}
	if pid == 0 {
		q.unseen++
		key.unseen = q.unseen
	}
	p := q.processes[key]
	if p == nil {
		u := q.byUID[key.uid]
		if u == nil {
			u = &user[R]{uid: key.uid}
			u.flow.owner = u
			q.byUID[key.uid] = u
		}
		u.processCount++
		p = &Process[R]{user: u, key: key}
		p.flow.owner = p
		q.processes[key] = p
	}
	p.conns++
	p.user.conns++
	q.conns++
	return p
}

// removeConn is the reverse of addConn, after the last request of the connection.
func (q *queue[R]) removeConn(p *Process[R]) {
	q.conns--
	p.user.conns--
	p.conns--
	q.removeIfUnused(p)
}

// removeIfUnused removes a process that has no connection, and its user if it was the last one.
// Precondition for both: the flow is idle, so that a process that connects again at once does
// not count as one that was idle.
func (q *queue[R]) removeIfUnused(p *Process[R]) {
	if p.conns > 0 || p.flow.phase != flowIdle || q.processes[p.key] != p {
		return
	}
	delete(q.processes, p.key)
	p.user.processCount--
	q.removeUserIfUnused(p.user)
}

func (q *queue[R]) removeUserIfUnused(u *user[R]) {
	if u.processCount == 0 && u.flow.phase == flowIdle {
		delete(q.byUID, u.uid)
	}
}

func (q *queue[R]) push(p *Process[R], requests []R) {
	if p.head > len(p.requests)/2 {
		// The queue of a process that always has requests never becomes empty.
		n := copy(p.requests, p.requests[p.head:])
		clear(p.requests[n:])
		p.requests, p.head = p.requests[:n], 0
	}
	p.requests = append(p.requests, requests...)
	q.len += len(requests)
	p.user.processes.activate(&p.flow, processQuantum)
	q.users.activate(&p.user.flow, userQuantum)
}

// pop removes the request whose turn it is and stores it in r; false: there is none. A process whose next
// request is held back has no turn until resume.
func (q *queue[R]) pop(r *R, isHeld func(*R) bool) bool {
	for {
		uf := q.users.pick(userQuantum)
		if uf == nil {
			return false
		}
		u := uf.owner
		pf := u.processes.pick(processQuantum)
		if pf == nil {
			q.users.drained(uf)
			q.removeUserIfUnused(u)
			continue
		}
		p := pf.owner
		if p.head == len(p.requests) {
			u.processes.drained(pf)
			q.removeIfUnused(p)
			continue
		}
		if isHeld != nil && isHeld(&p.requests[p.head]) {
			if u.processes.drained(pf); pf.phase == flowIdle {
				q.held = append(q.held, p)
			}
			continue
		}
		*r = p.requests[p.head]
		var none R
		p.requests[p.head] = none // keep no reference to its memory
		p.head++
		if p.head == len(p.requests) {
			if p.requests, p.head = p.requests[:0], 0; cap(p.requests) > maxQueuedOfProcess {
				p.requests = nil // a burst's memory is not kept
			}
		}
		q.len--
		if p.len() < maxQueuedOfProcess {
			p.room.Signal()
		}
		return true
	}
}

// resume gives the processes that were held back their turns again.
func (q *queue[R]) resume() {
	for i, p := range q.held {
		q.held[i] = nil
		if p.len() > 0 {
			p.user.processes.activate(&p.flow, processQuantum)
			q.users.activate(&p.user.flow, userQuantum)
		}
	}
	q.held = q.held[:0]
}

// hasTurns reports whether a process has a request that is not held back, as far as that is known.
func (q *queue[R]) hasTurns() bool { return q.users.fresh.head != nil || q.users.old.head != nil }

// charge subtracts the cost of a request from the deficits of the process and its user.
func (p *Process[R]) charge(ns int64) {
	p.flow.deficit -= ns
	p.user.flow.deficit -= ns
}

// flows are the senders that are not idle. The fresh ones go first.
type flows[T any] struct {
	fresh, old flowList[T]
}

// flow is one sender's place among the others.
type flow[T any] struct {
	owner   T
	next    *flow[T]
	deficit int64 // the loop's time that it may use before the next flow has its turn, ns
	phase   flowPhase
}

// flowPhase is the list in which a flow is.
//
//	          activate                 the deficit is used up, or drained
//	flowIdle ──────────► flowFresh ──────────────────────────────────────► flowOld
//	    ▲                                                                    │
//	    └──────────────────────────── drained ───────────────────────────────┘
type flowPhase uint8

const (
	flowIdle  flowPhase = iota // in no list: it has no requests
	flowFresh                  // it was idle, and goes before the old ones
	flowOld                    // it has had its turn as a fresh one
)

type flowList[T any] struct{ head, tail *flow[T] }

func (l *flowList[T]) push(f *flow[T]) {
	f.next = nil
	if l.tail != nil {
		l.tail.next = f
	} else {
		l.head = f
	}
	l.tail = f
}

func (l *flowList[T]) pop() *flow[T] {
	f := l.head
	if l.head = f.next; l.head == nil {
		l.tail = nil
	}
	f.next = nil
	return f
}

// activate is called when a flow has got requests.
func (fs *flows[T]) activate(f *flow[T], quantum int64) {
	if f.phase == flowIdle {
		f.phase, f.deficit = flowFresh, quantum
		fs.fresh.push(f)
	}
}

// pick returns the flow whose turn it is, or nil.
func (fs *flows[T]) pick(quantum int64) *flow[T] {
	for {
		list := &fs.fresh
		if list.head == nil {
			list = &fs.old
		}
		f := list.head
		if f == nil || f.deficit > 0 {
			return f
		}
		list.pop()
		f.deficit += quantum
		f.phase = flowOld
		fs.old.push(f)
	}
}

// drained is called when pick has returned a flow without requests. A fresh one stays in one
// round of the old ones before it becomes idle, and can be fresh again.
func (fs *flows[T]) drained(f *flow[T]) {
	if f.phase == flowFresh {
		fs.fresh.pop()
		f.phase = flowOld
		fs.old.push(f)
		return
	}
	fs.old.pop()
	f.phase = flowIdle
}

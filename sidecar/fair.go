package sidecar

import "sync"

// A fairQueue gives each user of the host the same time of the loop, and each process of
// a user the same part of that, however much any of them asks for.
//
// It is a deficit round robin of two levels, whose currency is the loop's time: a
// request that takes long is paid for by the turns that its sender then misses. A sender
// that has been idle goes before those that are not: a sender that asks for little is
// answered as if it were alone. (The idea is that of the flow queues of RFC 8290.)
//
// Nothing is asked of a sender about its importance, and it can make itself no more
// important: more connections are still one process, more processes are still one user.
type fairQueue struct {
	users     flows[*peerUser]
	processes map[processKey]*peerProcess
	byUID     map[int64]*peerUser
	conns     int
	len       int // requests
}

// processKey identifies a process. Of one that is not visible from here (pid 0) each
// connection counts as a process of its own.
type processKey struct {
	uid, pid int64
	conn     *conn
}

// peerUser is one user of the host.
type peerUser struct {
	flow      flow[*peerUser]
	uid       int64
	processes flows[*peerProcess]
	members   int // processes
	conns     int
}

// peerProcess is one client process, with what its connections have asked for.
type peerProcess struct {
	flow  flow[*peerProcess]
	user  *peerUser
	key   processKey
	conns int
	queue []request
	first int       // of queue
	room  sync.Cond // on inbox.mu: queue has become shorter than maxWaiting
}

func (p *peerProcess) len() int { return len(p.queue) - p.first }

// While so many requests of a process are in the queue, its connections are not read
// from: what reads them would be as much in the way of others as what they ask for.
const maxWaiting = 256

// What a flow may use of the loop before the next one has its turn, ns. A request takes
// one or two microseconds.
const (
	userQuantum    = 20_000
	processQuantum = 10_000
)

func (q *fairQueue) init() {
	q.processes = make(map[processKey]*peerProcess)
	q.byUID = make(map[int64]*peerUser)
}

// join returns the process of a connection.
func (q *fairQueue) join(c *conn) *peerProcess {
	key := processKey{uid: c.peer.UID, pid: c.peer.PID}
	if key.pid == 0 {
		key.conn = c
	}
	p := q.processes[key]
	if p == nil {
		u := q.byUID[key.uid]
		if u == nil {
			u = &peerUser{uid: key.uid}
			u.flow.owner = u
			q.byUID[key.uid] = u
		}
		u.members++
		p = &peerProcess{user: u, key: key}
		p.flow.owner = p
		q.processes[key] = p
	}
	p.conns++
	p.user.conns++
	q.conns++
	return p
}

// leave ends what join began, when the last request of the connection was done.
func (q *fairQueue) leave(p *peerProcess) {
	q.conns--
	p.user.conns--
	p.conns--
	q.forget(p)
}

// forget removes a process that has no connection, and its user if that has no other
// one. Each is remembered until its turns are over: one that comes back at once is not
// new.
func (q *fairQueue) forget(p *peerProcess) {
	if p.conns > 0 || p.flow.phase != flowIdle || q.processes[p.key] != p {
		return
	}
	delete(q.processes, p.key)
	p.user.members--
	q.forgetUser(p.user)
}

func (q *fairQueue) forgetUser(u *peerUser) {
	if u.members == 0 && u.flow.phase == flowIdle {
		delete(q.byUID, u.uid)
	}
}

func (q *fairQueue) push(p *peerProcess, requests []request) {
	if p.first > len(p.queue)/2 {
		// A process that always asks for more never lets its queue become empty.
		n := copy(p.queue, p.queue[p.first:])
		clear(p.queue[n:])
		p.queue, p.first = p.queue[:n], 0
	}
	p.queue = append(p.queue, requests...)
	q.len += len(requests)
	p.user.processes.activate(&p.flow, processQuantum)
	q.users.activate(&p.user.flow, userQuantum)
}

// pop takes the request whose turn it is; false: there is none.
func (q *fairQueue) pop(r *request) bool {
	for {
		uf := q.users.pick(userQuantum)
		if uf == nil {
			return false
		}
		u := uf.owner
		pf := u.processes.pick(processQuantum)
		if pf == nil {
			q.users.drained(uf)
			q.forgetUser(u)
			continue
		}
		p := pf.owner
		if p.first == len(p.queue) {
			u.processes.drained(pf)
			q.forget(p)
			continue
		}
		*r = p.queue[p.first]
		p.queue[p.first] = request{} // what it refers to is garbage when it is done
		p.first++
		if p.first == len(p.queue) {
			if p.queue, p.first = p.queue[:0], 0; cap(p.queue) > 4*maxQueued {
				p.queue = nil // a burst's memory is not kept
			}
		}
		q.len--
		if p.len() < maxWaiting {
			p.room.Signal()
		}
		return true
	}
}

// charge takes what a request cost from the process and its user.
func (p *peerProcess) charge(ns int64) {
	p.flow.deficit -= ns
	p.user.flow.deficit -= ns
}

// flows are senders that have something in the queue, or had a moment ago. Those that
// were idle are fresh and go first, once.
type flows[T any] struct {
	fresh, old flowList[T]
}

// flow is one sender's place among the others.
type flow[T any] struct {
	owner   T
	next    *flow[T]
	deficit int64 // what it may use of the loop before the next one has its turn, ns
	phase   flowPhase
}

type flowPhase uint8

const (
	flowIdle  flowPhase = iota // in no list: it has nothing in the queue
	flowFresh                  // it was idle, and goes before the old ones
	flowOld                    // it has had a turn
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

// activate is called when a flow has got something to do.
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

// drained is called when pick has returned a flow that has nothing to do. A fresh one
// waits one round among the old ones before it can be fresh again.
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

package intake

import (
	"testing"
)

// request is what a test has queued.
type request struct {
	from   *Process[request]
	number uint64
}

// fairLoop is a queue and a loop in which requests take as long as the test chooses.
type fairLoop struct {
	*testing.T
	q    queue[request]
	cost map[*Process[request]]int64 // of one request, ns
	used map[*Process[request]]int64 // of the loop's time, ns

	isHeld func(*request) bool
}

func newFairLoop(t *testing.T) *fairLoop {
	return &fairLoop{T: t, q: newQueue[request](), cost: make(map[*Process[request]]int64), used: make(map[*Process[request]]int64)}
}

func (f *fairLoop) connect(uid, pid, cost int64) *Process[request] {
	p := f.q.addConn(uid, pid)
	f.cost[p] = cost
	return p
}

// push adds n requests, numbered from first on.
func (f *fairLoop) push(p *Process[request], first uint64, n int) {
	requests := make([]request, n)
	for i := range requests {
		requests[i] = request{p, first + uint64(i)}
	}
	f.q.push(p, requests)
}

// next does one request, and returns its process and number; nil: there was none.
func (f *fairLoop) next() (*Process[request], uint64) {
	var r request
	if !f.q.pop(&r, f.isHeld) {
		return nil, 0
	}
	p := r.from
	p.charge(f.cost[p])
	f.used[p] += f.cost[p]
	return p, r.number
}

// busy does n requests, while each of these processes always has some.
func (f *fairLoop) busy(n int, ps ...*Process[request]) {
	clear(f.used)
	for range n {
		for _, p := range ps {
			if p.len() == 0 {
				f.push(p, 0, 16)
			}
		}
		f.next()
	}
}

// expectShare checks that a share of the used time is as expected, within 5 %.
func (f *fairLoop) expectShare(what string, of int64, want float64) {
	f.Helper()
	all := int64(0)
	for _, ns := range f.used {
		all += ns
	}
	if got := float64(of) / float64(all); got < want*0.95 || got > want*1.05 {
		f.Errorf("%s had %.3f of the time, not %.3f", what, got, want)
	}
}

// Two users get the same time, although one has many processes, whose requests take long. The
// processes of a user share its time evenly.
func TestFairQueueSharesTimeByUserThenByProcess(t *testing.T) {
	f := newFairLoop(t)
	alone := f.connect(1, 10, 1_000)
	var many []*Process[request]
	for pid := range int64(9) {
		many = append(many, f.connect(2, 20+pid, 1_000*(1+pid%3*20)))
	}
	f.busy(100_000, append(many, alone)...)
	f.expectShare("the user with one process", f.used[alone], 0.5)
	for _, p := range many {
		f.expectShare("a process of the other user", f.used[p], 0.5/9)
	}
}

// More connections give a process no larger share. Processes that are not visible here (pid 0)
// are distinguished only by their connections.
func TestFairQueueCountsConnectionsOfOneProcessAsOne(t *testing.T) {
	f := newFairLoop(t)
	a := f.connect(1, 10, 1_000)
	for range 100 {
		if f.connect(1, 10, 1_000) != a {
			t.Fatal("another connection of the process counts as another process")
		}
	}
	if first := f.connect(1, 0, 1); first == f.connect(1, 0, 1) {
		t.Error("two connections without a pid count as one process")
	}
	if f.connect(1, 10, 1).user != f.connect(1, 11, 1).user {
		t.Error("two processes of a user count as two users")
	}
}

// A sender that was idle goes before the others, once: a sender that is idle again and again gets
// no more than its share.
func TestFairQueuePrefersIdleSendersOnce(t *testing.T) {
	f := newFairLoop(t)
	busy, idle := f.connect(1, 10, 1_000), f.connect(2, 20, 1_000)
	f.push(busy, 0, 1000)
	for range 50 {
		f.next()
	}
	f.push(idle, 0, 1)
	if p, _ := f.next(); p != idle {
		t.Fatal("the idle sender waits")
	}

	// It sends its next request as soon as it has the answer.
	f = newFairLoop(t)
	busy, idle = f.connect(1, 10, 1_000), f.connect(2, 20, 10_000)
	for range 100_000 {
		if idle.len() == 0 {
			f.push(idle, 0, 1)
		}
		if busy.len() == 0 {
			f.push(busy, 0, 16)
		}
		f.next()
	}
	if share := float64(f.used[idle]) / float64(f.used[idle]+f.used[busy]); share > 0.55 {
		t.Errorf("the sender that is idle now and then had %.2f of the time", share)
	}
}

// The requests of a process are done in the order in which they came.
func TestFairQueueKeepsTheOrderOfOneSender(t *testing.T) {
	f := newFairLoop(t)
	ps := []*Process[request]{f.connect(1, 10, 3_000), f.connect(1, 11, 700), f.connect(2, 20, 11_000)}
	pushed, done := map[*Process[request]]uint64{}, map[*Process[request]]uint64{}
	for i := range 30_000 {
		p := ps[i*7%3]
		if i%5 < 3 {
			f.push(p, pushed[p], 1+i%4)
			pushed[p] += uint64(1 + i%4)
		}
		for range i % 6 {
			p, n := f.next()
			if p == nil {
				break
			}
			if n != done[p] {
				t.Fatalf("request %d came before request %d", n, done[p])
			}
			done[p]++
		}
	}
	for {
		p, n := f.next()
		if p == nil {
			break
		}
		if n != done[p] {
			t.Fatalf("request %d came before request %d", n, done[p])
		}
		done[p]++
	}
	for p, n := range pushed {
		if done[p] != n {
			t.Errorf("%d requests of %d were done", done[p], n)
		}
	}
	if f.q.len != 0 {
		t.Errorf("the queue counts %d requests and has none", f.q.len)
	}
}

// A queue that never becomes empty does not grow.
func TestFairQueueMemoryIsBounded(t *testing.T) {
	f := newFairLoop(t)
	p := f.connect(1, 10, 1_000)
	f.push(p, 0, 100)
	for range 100_000 {
		f.next()
		f.push(p, 0, 1)
	}
	if n := cap(p.requests); n > 1000 {
		t.Errorf("100 requests wait in a queue with room for %d", n)
	}
}

// A process is removed, with its user, after its last connection has ended and its last request
// was done.
func TestFairQueueRemovesUnusedProcesses(t *testing.T) {
	f := newFairLoop(t)
	p := f.connect(1, 10, 1_000)
	f.connect(1, 10, 1_000)
	f.push(p, 0, 3)
	f.q.removeConn(p)
	f.q.removeConn(p)
	for i := range uint64(3) {
		if _, n := f.next(); n != i {
			t.Errorf("request %d of a process without connections was not done", i)
		}
	}
	if f.connect(1, 10, 1_000) != p {
		t.Error("a process that connects again at once counts as another one")
	}
	f.next()
	if len(f.q.processes) != 1 {
		t.Error("a process with a connection was removed")
	}
	f.q.removeConn(p)
	if len(f.q.processes) != 0 || len(f.q.byUID) != 0 || f.q.conns != 0 {
		t.Errorf("%d processes, %d users and %d connections are left", len(f.q.processes), len(f.q.byUID), f.q.conns)
	}
}

// A process that connects for each request is one process, which pays for its earlier requests.
func TestFairQueueCountsAReconnectingProcessAsOne(t *testing.T) {
	f := newFairLoop(t)
	honest := f.connect(2, 20, 1_000)
	for range 20_000 {
		p := f.connect(1, 10, 1_000)
		f.push(p, 0, 2)
		if honest.len() == 0 {
			f.push(honest, 0, 16)
		}
		f.next()
		f.q.removeConn(p)
	}
	f.expectShare("the user with one connection", f.used[honest], 0.5)
}

// A sender that is idle after each request does not go before the others each time.
func TestFairQueueGivesAnOftenIdleSenderItsShare(t *testing.T) {
	f := newFairLoop(t)
	const others = 9
	for uid := range int64(others) {
		f.push(f.connect(1+uid, 10+uid, 1_000), 0, 1000)
	}
	idle := f.connect(100, 100, 1_000)
	for i := range 1000 {
		if i%2 == 0 && idle.len() == 0 {
			f.push(idle, 0, 1)
		}
		f.next()
	}
	if n, part := f.used[idle]/f.cost[idle], int64(1000/(others+1)); n > part {
		t.Errorf("%d of 1000 requests were its own, its part is %d", n, part)
	}
}

// A request that is held back keeps those after it of its process back, and of no other one.
func TestProcessWhoseRequestIsHeldBackKeepsNoOtherBack(t *testing.T) {
	f := newFairLoop(t)
	slow, same, other := f.connect(1, 1, 1), f.connect(1, 2, 1), f.connect(2, 3, 1)
	f.isHeld = func(r *request) bool { return r.number == 100 }
	f.push(slow, 100, 2)
	f.push(same, 1, 2)
	f.push(other, 11, 2)
	got := make(map[*Process[request]]int)
	for p, _ := f.next(); p != nil; p, _ = f.next() {
		got[p]++
	}
	if got[slow] != 0 || got[same] != 2 || got[other] != 2 {
		t.Errorf("%d requests of the process that is held back were done, and %d and %d of the others, want 0, 2 and 2", got[slow], got[same], got[other])
	}
	if f.q.hasTurns() {
		t.Error("a process has a turn although all requests are held back")
	}
	f.push(slow, 102, 1) // it is looked at once more, and waits
	if p, _ := f.next(); p != nil || f.q.hasTurns() {
		t.Error("the process that is held back has a turn")
	}
	f.isHeld = nil
	f.q.resume()
	for want := uint64(100); want < 103; want++ {
		if p, n := f.next(); p != slow || n != want {
			t.Errorf("request %d was done, want %d", n, want)
		}
	}
	if p, _ := f.next(); p != nil {
		t.Error("a request was done twice")
	}
}

package sidecar

import (
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// fairRig is a fairQueue and a loop whose requests take as long as the test says.
type fairRig struct {
	*testing.T
	q    fairQueue
	cost map[*peerProcess]int64 // of one request, ns
	used map[*peerProcess]int64 // of the loop's time, ns
}

func newFairRig(t *testing.T) *fairRig {
	f := &fairRig{T: t, cost: make(map[*peerProcess]int64), used: make(map[*peerProcess]int64)}
	f.q.init()
	return f
}

func (f *fairRig) join(uid, pid, cost int64) *peerProcess {
	p := f.q.join(&conn{peer: locktable.Peer{UID: uid, PID: pid}})
	f.cost[p] = cost
	return p
}

// ask adds n requests, numbered by release.Hold from first on.
func (f *fairRig) ask(p *peerProcess, first uint64, n int) {
	requests := make([]request, n)
	for i := range requests {
		requests[i].conn = &conn{sender: p}
		requests[i].release.Hold = first + uint64(i)
	}
	f.q.push(p, requests)
}

// next does one request, and returns whose and which it was; nil: there was none.
func (f *fairRig) next() (*peerProcess, uint64) {
	var r request
	if !f.q.pop(&r) {
		return nil, 0
	}
	p := r.conn.sender
	p.charge(f.cost[p])
	f.used[p] += f.cost[p]
	return p, r.release.Hold
}

// busy keeps each of these supplied, and does n requests.
func (f *fairRig) busy(n int, ps ...*peerProcess) {
	clear(f.used)
	for range n {
		for _, p := range ps {
			if p.len() == 0 {
				f.ask(p, 0, 16)
			}
		}
		f.next()
	}
}

// share tells that a part of the time that was used is as expected, within 5 %.
func (f *fairRig) share(what string, of int64, want float64) {
	f.Helper()
	all := int64(0)
	for _, ns := range f.used {
		all += ns
	}
	if got := float64(of) / float64(all); got < want*0.95 || got > want*1.05 {
		f.Errorf("%s had %.3f of the time, not %.3f", what, got, want)
	}
}

// Two users get the same time, though one asks from many processes and for what takes
// long. The processes of a user share its time evenly.
func TestFairQueueSharesTimeByUserThenByProcess(t *testing.T) {
	f := newFairRig(t)
	alone := f.join(1, 10, 1_000)
	var many []*peerProcess
	for pid := range int64(9) {
		many = append(many, f.join(2, 20+pid, 1_000*(1+pid%3*20)))
	}
	f.busy(100_000, append(many, alone)...)
	f.share("the user with one process", f.used[alone], 0.5)
	for _, p := range many {
		f.share("a process of the other user", f.used[p], 0.5/9)
	}
}

// More connections make a process no more important. One that is not visible from here
// (pid 0) is told from others by its connections alone.
func TestFairQueueCountsConnectionsOfOneProcessAsOne(t *testing.T) {
	f := newFairRig(t)
	a := f.join(1, 10, 1_000)
	for range 100 {
		if f.join(1, 10, 1_000) != a {
			t.Fatal("another connection of the process counts as another process")
		}
	}
	if first := f.join(1, 0, 1); first == f.join(1, 0, 1) {
		t.Error("two connections without a pid count as one process")
	}
	if f.join(1, 10, 1).user != f.join(1, 11, 1).user {
		t.Error("two processes of a user count as two users")
	}
}

// A sender that was idle goes before those that are not, and once: one that comes and
// goes gets no more than its share.
func TestFairQueuePrefersIdleSendersOnce(t *testing.T) {
	f := newFairRig(t)
	busy, idle := f.join(1, 10, 1_000), f.join(2, 20, 1_000)
	f.ask(busy, 0, 1000)
	for range 50 {
		f.next()
	}
	f.ask(idle, 0, 1)
	if p, _ := f.next(); p != idle {
		t.Fatal("the idle sender waits")
	}

	// It asks again for as much as it likes, as soon as it has its answer.
	f = newFairRig(t)
	busy, idle = f.join(1, 10, 1_000), f.join(2, 20, 10_000)
	for range 100_000 {
		if idle.len() == 0 {
			f.ask(idle, 0, 1)
		}
		if busy.len() == 0 {
			f.ask(busy, 0, 16)
		}
		f.next()
	}
	if share := float64(f.used[idle]) / float64(f.used[idle]+f.used[busy]); share > 0.55 {
		t.Errorf("the sender that is idle now and then had %.2f of the time", share)
	}
}

// The requests of a process are done in the order in which they came.
func TestFairQueueKeepsTheOrderOfOneSender(t *testing.T) {
	f := newFairRig(t)
	ps := []*peerProcess{f.join(1, 10, 3_000), f.join(1, 11, 700), f.join(2, 20, 11_000)}
	asked, done := map[*peerProcess]uint64{}, map[*peerProcess]uint64{}
	for i := range 30_000 {
		p := ps[i*7%3]
		if i%5 < 3 {
			f.ask(p, asked[p], 1+i%4)
			asked[p] += uint64(1 + i%4)
		}
		for range i % 6 {
			p, n := f.next()
			if p == nil {
				break
			}
			if n != done[p] {
				t.Fatalf("request %d came when %d was due", n, done[p])
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
			t.Fatalf("request %d came when %d was due", n, done[p])
		}
		done[p]++
	}
	for p, n := range asked {
		if done[p] != n {
			t.Errorf("%d requests of %d were done", done[p], n)
		}
	}
	if f.q.len != 0 {
		t.Errorf("the queue counts %d requests and has none", f.q.len)
	}
}

// A sender whose queue never becomes empty uses no more memory with time.
func TestFairQueueMemoryIsBounded(t *testing.T) {
	f := newFairRig(t)
	p := f.join(1, 10, 1_000)
	f.ask(p, 0, 100)
	for range 100_000 {
		f.next()
		f.ask(p, 0, 1)
	}
	if n := cap(p.queue); n > 1000 {
		t.Errorf("100 requests wait in a queue with room for %d", n)
	}
}

// A process that ends is forgotten with its user, when its last connection has ended and
// nothing that it asked for is left.
func TestFairQueueForgetsWhoLeft(t *testing.T) {
	f := newFairRig(t)
	p := f.join(1, 10, 1_000)
	f.join(1, 10, 1_000)
	f.ask(p, 0, 3)
	f.q.leave(p)
	f.q.leave(p)
	for i := range uint64(3) {
		if _, n := f.next(); n != i {
			t.Errorf("request %d of a process that left was not done", i)
		}
	}
	if f.join(1, 10, 1_000) != p {
		t.Error("a process that comes back at once is taken for another one")
	}
	f.next()
	if len(f.q.processes) != 1 {
		t.Error("a process is forgotten that has a connection")
	}
	f.q.leave(p)
	if len(f.q.processes) != 0 || len(f.q.byUID) != 0 || f.q.conns != 0 {
		t.Errorf("%d processes, %d users and %d connections are remembered", len(f.q.processes), len(f.q.byUID), f.q.conns)
	}
}

// A process that connects, asks and goes, again and again, is one process: what it asked
// for before counts.
func TestFairQueueKnowsAProcessThatReconnects(t *testing.T) {
	f := newFairRig(t)
	honest := f.join(2, 20, 1_000)
	for range 20_000 {
		p := f.join(1, 10, 1_000)
		f.ask(p, 0, 2)
		if honest.len() == 0 {
			f.ask(honest, 0, 16)
		}
		f.next()
		f.q.leave(p)
	}
	f.share("the user with one connection", f.used[honest], 0.5)
}

// A sender that is idle again as soon as it was served does not go before the others each
// time.
func TestFairQueueGivesASenderThatIsOftenIdleItsPart(t *testing.T) {
	f := newFairRig(t)
	const others = 9
	for uid := range int64(others) {
		f.ask(f.join(1+uid, 10+uid, 1_000), 0, 1000)
	}
	idle := f.join(100, 100, 1_000)
	for i := range 1000 {
		if i%2 == 0 && idle.len() == 0 {
			f.ask(idle, 0, 1)
		}
		f.next()
	}
	if n, part := f.used[idle]/f.cost[idle], int64(1000/(others+1)); n > part {
		t.Errorf("%d of 1000 requests were its own, its part is %d", n, part)
	}
}

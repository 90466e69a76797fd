package sidecar_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
)

// gate stands between a sidecar and its Redis. While it is shut, nothing passes to Redis,
// and what was sent waits.
type gate struct {
	redis string // host and port
	l     net.Listener
	wg    sync.WaitGroup

	mu     sync.Mutex // guards what follows
	opened *sync.Cond
	isShut bool
	conns  []net.Conn
	closed bool
}

// newGate returns an open gate before the Redis of a URL, and the URL that leads through
// it.
func newGate(t *testing.T, redis string) (*gate, string) {
	t.Helper()
	u, err := url.Parse(redis)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{redis: u.Host, l: l}
	g.opened = sync.NewCond(&g.mu)
	g.wg.Go(g.accept)
	t.Cleanup(func() {
		l.Close()
		g.mu.Lock()
		g.isShut, g.closed = false, true
		for _, c := range g.conns {
			c.Close()
		}
		g.opened.Broadcast()
		g.mu.Unlock()
		g.wg.Wait()
	})
	u.Host = l.Addr().String()
	return g, u.String()
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isShut = shut
	g.opened.Broadcast()
}

func (g *gate) accept() {
	for {
		down, err := g.l.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", g.redis)
		if err != nil {
			down.Close()
			continue
		}
		g.mu.Lock()
		g.conns = append(g.conns, down, up)
		if g.closed {
			down.Close()
			up.Close()
		}
		g.mu.Unlock()
		g.wg.Go(func() {
			_, _ = io.Copy(passage{g, up}, down)
			up.Close()
		})
		g.wg.Go(func() {
			_, _ = io.Copy(down, up)
			down.Close()
		})
	}
}

// passage writes to Redis while the gate is open.
type passage struct {
	gate *gate
	to   net.Conn
}

func (p passage) Write(b []byte) (int, error) {
	g := p.gate
	g.mu.Lock()
	for g.isShut {
		g.opened.Wait()
	}
	g.mu.Unlock()
	return p.to.Write(b)
}

// twoHouses returns a sidecar behind a gate, and another one with the same Redis.
func twoHouses(t *testing.T, change func(*sidecar.Config)) (here, there *house, g *gate) {
	t.Helper()
	var redis string
	here = newHouse(t, func(c *sidecar.Config) {
		redis = c.Redis
		g, c.Redis = newGate(t, redis)
		if change != nil {
			change(c)
		}
	})
	there = newHouse(t, func(c *sidecar.Config) { c.Redis = redis })
	return here, there, g
}

// release releases a hold and returns when that is answered.
func (c *wire) release(hold uint64) {
	c.Helper()
	c.id++
	c.send(protocol.Release{ID: c.id, Hold: hold})
	c.answer(c.id, new(protocol.ReleaseOK))
}

// confirm sends a confirm, and returns its id.
func (c *wire) confirm(name string) uint64 {
	c.Helper()
	c.id++
	c.send(protocol.Confirm{ID: c.id, Name: name})
	return c.id
}

// ping returns when the sidecar has handled what was sent before.
func (c *wire) ping() {
	c.Helper()
	c.id++
	c.send(protocol.Ping{ID: c.id})
	c.answer(c.id, new(protocol.PingOK))
}

// Shows docs/guarantees.md: A release returns before Redis has executed it, unless it is confirmed.
func TestConfirmIsAnsweredAfterRedisHasExecutedTheRelease(t *testing.T) {
	here, there, g := twoHouses(t, nil)
	for _, answered := range []bool{true, false} {
		a, b := greeted(t, here.cfg.Socket), greeted(t, there.cfg.Socket)
		held := a.hold("x")
		g.set(true)
		if answered {
			a.release(held.Hold)
		} else {
			a.send(protocol.Release{Hold: held.Hold})
		}
		id := a.confirm("x")
		a.ping()
		b.refused(b.try("x"), protocol.Timeout, "") // the answer to the release says nothing of Redis
		a.ping()
		g.set(false)
		a.answer(id, new(protocol.ConfirmOK))
		var got protocol.AcquireOK
		b.answer(b.try("x"), &got)
		b.release(got.Hold)
		b.answer(b.confirm("x"), new(protocol.ConfirmOK))
	}
}

// Shows docs/guarantees.md: A release returns before Redis has executed it, unless it is confirmed.
func TestConfirmWithNothingToWaitForIsAnsweredAtOnce(t *testing.T) {
	here, _, g := twoHouses(t, nil)
	a, b := greeted(t, here.cfg.Socket), greeted(t, here.cfg.Socket)
	held := a.hold("held")
	twice := func() protocol.AcquireOK {
		var m protocol.AcquireOK
		a.id++
		a.ask(protocol.Acquire{ID: a.id, Name: "entered twice", Owner: 7, WaitMS: protocol.Forever}, &m)
		return m
	}
	twice()
	entered := twice()
	g.set(true)
	a.answer(a.confirm("never seen"), new(protocol.ConfirmOK))
	a.answer(a.confirm("held"), new(protocol.ConfirmOK))
	a.release(entered.Hold)
	a.answer(a.confirm("entered twice"), new(protocol.ConfirmOK))

	// A local waiter gets the lock when it is released.
	g.set(false)
	waiting := b.acquire("held", protocol.Forever)
	b.ping()
	a.release(held.Hold)
	a.answer(a.confirm("held"), new(protocol.ConfirmOK))
	b.answer(waiting, new(protocol.AcquireOK))
}

func TestConfirmsCountAmongTheWaitersOfASession(t *testing.T) {
	here, _, g := twoHouses(t, func(c *sidecar.Config) { c.MaxWaiters = 1 })
	a := greeted(t, here.cfg.Socket)
	x, y := a.hold("x"), a.hold("y")
	g.set(true)
	a.release(x.Hold)
	a.release(y.Hold)
	first := a.confirm("x")
	a.refused(a.confirm("y"), protocol.Limit, "max-waiters")
	a.refused(a.acquire("z", protocol.Forever), protocol.Limit, "max-waiters")
	a.id++
	a.send(protocol.Confirm{ID: a.id, Name: "never seen"}) // which waits for nothing
	a.answer(a.id, new(protocol.ConfirmOK))
	g.set(false)
	a.answer(first, new(protocol.ConfirmOK))
	a.answer(a.confirm("y"), new(protocol.ConfirmOK))
}

// A client sends its confirm again to the successor, which executes what its predecessor
// did not execute. It has ended a session that holds nothing more, and has the same uuid.
//
// Shows docs/guarantees.md: A confirmed release that the dead daemon had not executed.
func TestConfirmIsAnsweredBySuccessor(t *testing.T) {
	for _, holdsMore := range []bool{true, false} {
		here, there, g := twoHouses(t, nil)
		a, first := here.hello(true, "")
		var claims []protocol.ClaimedHold
		if holdsMore {
			claims = append(claims, protocol.ClaimedHold{Hold: a.hold("y").Hold, Entries: 1})
		}
		held := a.hold("x")
		g.set(true)
		a.release(held.Hold)
		a.confirm("x")
		a.ping()
		stopped := make(chan struct{})
		go func() { defer close(stopped); here.stop() }()
		a.refused(0, protocol.Unavailable, "come back")
		a.ended()
		g.set(false)
		<-stopped
		here.start()

		a, second := here.hello(true, first.Ticket)
		if second.Resumed != holdsMore || second.Sidecar != first.Sidecar {
			t.Errorf("resumed %v by sidecar %s, which was %s", second.Resumed, second.Sidecar, first.Sidecar)
		}
		if second.Resumed {
			if lost := a.claim(claims...); len(lost) != 0 {
				t.Errorf("lost %v", lost)
			}
		}
		if row := a.row("x"); row != nil && row.Hold == held.Hold {
			t.Errorf("what was released is held: %+v", row)
		}
		a.id++
		a.ask(protocol.Confirm{ID: a.id, Name: "x"}, new(protocol.ConfirmOK))
		b := greeted(t, there.cfg.Socket)
		b.answer(b.try("x"), new(protocol.AcquireOK))
	}
}

func TestConfirmBeforeTheLastClaimIsABrokenFrame(t *testing.T) {
	h := newHouse(t, nil)
	a, first := h.hello(true, "")
	a.hold("y")
	h.restart()
	a = h.resumed(first.Ticket)
	a.confirm("x")
	a.refused(0, protocol.BadFrame, "claims are due")
	a.ended()
}

// A stop that has begun waits for the answer to a release, and notices when it comes.
func TestStopNoticesTheAnswerToARelease(t *testing.T) {
	var log bytes.Buffer
	here, _, g := twoHouses(t, func(c *sidecar.Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	a := greeted(t, here.cfg.Socket)
	h := a.hold("x")
	g.set(true)
	a.release(h.Hold)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		here.stop()
	}()
	for {
		if _, err := a.frames.Next(); err != nil {
			break // the stop has begun
		}
	}
	g.set(false)
	<-stopped
	if strings.Contains(log.String(), "did not reach Redis") {
		t.Errorf("a release that Redis has executed is said not to have reached it:\n%s", log.String())
	}
}

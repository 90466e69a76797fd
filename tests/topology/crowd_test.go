package topology

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
	"github.com/locksidecar/locksidecar/tests/history"
)

// A crowd is clients of several hosts that take and release several locks, and record what they observe.
// The history checker judges it at the end.
type crowd struct {
	t       *testing.T
	lease   time.Duration
	daemons []*harness.Daemon
	seed    uint64

	dir       string // of the logs
	conductor *history.Recorder
	clients   []*contender
	faults    int // numbers them
	ctx       context.Context
	stop      context.CancelFunc
	wg        sync.WaitGroup
}

// startCrowd makes a crowd of no clients. The lease is that of the daemons.
func startCrowd(t *testing.T, lease time.Duration, daemons ...*harness.Daemon) *crowd {
	t.Helper()
	c := &crowd{t: t, lease: lease, daemons: daemons, seed: harness.Seed(t), dir: t.TempDir()}
	c.ctx, c.stop = context.WithCancel(t.Context())
	c.conductor = c.record("conductor")
	t.Cleanup(func() { // also if the test does not reach end
		c.stop()
		c.wg.Wait()
		for _, w := range c.clients {
			w.log.Close()
		}
		c.conductor.Close()
	})
	return c
}

func (c *crowd) record(client string) *history.Recorder {
	c.t.Helper()
	log, err := history.Record(c.dir, client)
	if err != nil {
		c.t.Fatal(err)
	}
	return log
}

// A group is locks for which the same clients of a crowd contend, and how they are served.
type group struct {
	*crowd
	names []string

	mu      sync.Mutex // guards what follows
	served  map[string]*service
	last    time.Time     // the last grant of any of them
	longest time.Duration // between two grants of any of them, since watch
}

// A service is how one lock was served.
type service struct {
	grants    int
	crossings int // the next grant was to another host's client
	host      int // of the last grant
}

// contend starts so many clients on each host, which take the locks of a group in a random order.
func (c *crowd) contend(perHost int, names ...string) *group {
	c.t.Helper()
	g := &group{crowd: c, names: names, served: map[string]*service{}, last: time.Now()}
	for _, name := range names {
		g.served[name] = &service{}
	}
	for host := range c.daemons {
		for range perHost {
			w := c.newContender(host)
			c.wg.Go(func() { w.contend(g) })
		}
	}
	return g
}

// onGrant notes that a host's client has a lock of the group.
func (g *group) onGrant(name string, host int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.longest = max(g.longest, time.Since(g.last))
	g.last = time.Now()
	s := g.served[name]
	s.grants++
	if s.grants > 1 && s.host != host {
		s.crossings++
	}
	s.host = host
}

// each returns what f returns for each lock.
func (g *group) each(f func(*service) int) (numbers []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range g.names {
		numbers = append(numbers, f(g.served[name]))
	}
	return numbers
}

func (g *group) grants() []int { return g.each(func(s *service) int { return s.grants }) }

func (g *group) crossings() []int { return g.each(func(s *service) int { return s.crossings }) }

// await waits until each lock of the group has been granted three times more.
func (g *group) await(what string) {
	g.t.Helper()
	before := g.grants()
	harness.Eventually(g.t, what, func() bool {
		for i, n := range g.grants() {
			if n < before[i]+3 {
				return false
			}
		}
		return true
	})
}

// watch begins to measure the longest time without a grant of any lock of the group. The returned
// function ends that.
func (g *group) watch() (end func() time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.longest, g.last = 0, time.Now()
	return func() time.Duration {
		g.mu.Lock()
		defer g.mu.Unlock()
		return max(g.longest, time.Since(g.last))
	}
}

// fault records that a fault begins, which affects these locks. The returned function records its end.
// A fault with history.LosesData excuses two holders of these locks until the deadline of the
// older hold.
func (c *crowd) fault(what string, names []string, effects ...history.Effect) (mended func()) {
	first := c.faults + 1
	for _, name := range names {
		c.faults++
		c.conductor.Write(history.Event{Kind: history.Fault, At: protocol.Now(), ID: c.faults, Fault: what, Lock: name, Effects: effects})
	}
	last := c.faults
	return func() {
		for id := first; id <= last; id++ {
			c.conductor.Write(history.Event{Kind: history.Mended, At: protocol.Now(), ID: id, Fault: what})
		}
	}
}

// end stops the clients and checks what they recorded.
func (c *crowd) end() *history.Report {
	c.t.Helper()
	c.stop()
	c.wg.Wait()
	events, err := history.Load(c.dir)
	if err != nil {
		c.t.Fatal(err)
	}
	report := history.Check(events, history.Rules{
		Lease:  c.lease,
		Outage: c.lease / 2,
		Settle: c.lease + 8*time.Second,
		Wake:   10 * time.Second, // a poll, and as much again for a machine that is busy
		Answer: 12 * time.Second,
		Errors: []string{"canceled", "timeout", "held", "unavailable"},
	})
	const most = 5
	for i, v := range report.Violations {
		if i == most {
			c.t.Errorf("and %d violations more", len(report.Violations)-most)
			break
		}
		c.t.Error(v.Describe(report.Begin))
	}
	c.t.Logf("%d grants, %d to another host; longest wait %v, of a free lock %v; refused %v, lost %v; %d overlaps and %d smaller tokens that a fault excuses",
		report.Grants, report.Crossings, report.LongestWait, report.LongestFreeWait, report.Refused, report.Lost, report.Overlaps, report.Regressions)
	if report.Grants == 0 {
		c.t.Error("no lock was granted")
	}
	return report
}

// A contender is a client of a crowd, with a log of its own.
type contender struct {
	*locksidecar.Client
	crowd  *crowd
	host   int
	random *rand.Rand // for contend, which is one goroutine
	log    *history.Recorder
	lastOp atomic.Int64
}

func (c *crowd) newContender(host int) *contender {
	c.t.Helper()
	name := fmt.Sprintf("client%d", len(c.clients)+1)
	w := &contender{Client: harness.Dial(c.t, c.daemons[host]), crowd: c, host: host, log: c.record(name),
		random: rand.New(rand.NewPCG(c.seed, uint64(len(c.clients))))}
	c.conductor.Write(history.Event{Kind: history.Start, At: protocol.Now(), Client: name, Host: fmt.Sprint("host", host)})
	c.clients = append(c.clients, w)
	return w
}

// contend takes and releases the locks of a group until the crowd stops.
func (w *contender) contend(g *group) {
	for w.crowd.ctx.Err() == nil {
		name := g.names[w.random.IntN(len(g.names))]
		var h *heldLock
		if w.random.IntN(6) == 0 {
			h = w.acquire(w.TryLock, history.Event{Lock: name, WaitMS: 3000})
		} else {
			h = w.acquire(w.Lock, history.Event{Lock: name})
		}
		if h == nil {
			w.pause(time.Millisecond)
			continue
		}
		g.onGrant(name, w.host)
		w.pause(time.Duration(w.random.Int64N(int64(3 * time.Millisecond)))) // the section that the lock guards
		h.check()
		h.release()
	}
}

// pause waits, but not after the crowd has stopped.
func (w *contender) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.crowd.ctx.Done():
	}
}

// A heldLock is a lock that a contender was granted.
type heldLock struct {
	*locksidecar.Lock
	w  *contender
	op int64

	lost bool // reported to the log
}

// acquire acquires a lock and records the result; nil: not granted.
func (w *contender) acquire(
	how func(context.Context, string, ...locksidecar.Option) (*locksidecar.Lock, error), request history.Event,
) *heldLock {
	ctx := w.crowd.ctx
	if request.WaitMS != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(request.WaitMS)*time.Millisecond)
		defer cancel()
	}
	op := w.lastOp.Add(1)
	request.Kind, request.Op, request.At = history.Invoke, op, protocol.Now()
	w.log.Write(request)
	lock, err := how(ctx, request.Lock)
	now := protocol.Now()
	if err != nil {
		kind, _ := kindOf(err)
		w.log.Write(history.Event{Kind: history.Error, At: now, Op: op, Err: kind, Msg: err.Error()})
		return nil
	}
	w.log.Write(history.Event{Kind: history.Grant, At: now, Op: op, Token: lock.Token(), Until: deadline(lock)})
	return &heldLock{Lock: lock, w: w, op: op}
}

// deadline returns the deadline of a lock on CLOCK_BOOTTIME. It is too early by the time between
// two readings of the clock.
func deadline(lock *locksidecar.Lock) int64 {
	until := lock.Deadline()
	now := protocol.Now()
	return now + int64(time.Until(until))
}

// check records whether the lock is held.
func (h *heldLock) check() bool {
	before := protocol.Now()
	err := h.Err()
	if err == nil {
		until := deadline(h.Lock)
		h.w.log.Write(history.Event{Kind: history.Checked, Before: before, At: protocol.Now(), Op: h.op, Until: until})
		return true
	}
	if !h.lost {
		h.lost = true
		_, reason := kindOf(err)
		h.w.log.Write(history.Event{Kind: history.Lost, Before: before, At: protocol.Now(), Op: h.op, Reason: reason, Msg: err.Error()})
	}
	return false
}

// release releases the lock, also if it is lost.
func (h *heldLock) release() {
	before := protocol.Now()
	h.w.log.Write(history.Event{Kind: history.Release, At: before, Op: h.op})
	done := history.Event{Kind: history.Released, Before: before, Op: h.op}
	err := h.Unlock()
	done.At = protocol.Now()
	if err != nil {
		done.Err, done.Reason = kindOf(err)
		done.Msg = err.Error()
	}
	h.w.log.Write(done)
}

// hold has a client of a host take these locks, and keep them until the returned function is called,
// which fails the test for each that was lost.
func (c *crowd) hold(host int, names ...string) (end func()) {
	c.t.Helper()
	w := c.newContender(host)
	var held []*heldLock
	for _, name := range names {
		h := w.acquire(w.Lock, history.Event{Lock: name})
		if h == nil {
			c.t.Fatalf("%s is not granted", name)
		}
		held = append(held, h)
	}
	return func() {
		c.t.Helper()
		for _, h := range held {
			if !h.check() {
				c.t.Errorf("%s was lost: %v", h.Name(), h.Err())
			}
			h.release()
		}
	}
}

// kindOf returns the kind of an error, as the rules name it, and the reason of a loss.
func kindOf(err error) (kind, reason string) {
	if lost := (*locksidecar.LostError)(nil); errors.As(err, &lost) {
		return history.LostErr, string(lost.Reason)
	}
	for _, k := range []struct {
		is   error
		name string
	}{
		{context.Canceled, "canceled"}, {locksidecar.ErrTimeout, "timeout"}, {locksidecar.ErrHeld, "held"},
		{locksidecar.ErrUnavailable, "unavailable"},
	} {
		if errors.Is(err, k.is) {
			return k.name, ""
		}
	}
	return err.Error(), ""
}

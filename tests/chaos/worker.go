package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/history"
)

// goWorker is a process that uses the Go SDK like an application, and records what it observes.
// worker.py does the same.
type goWorker struct {
	workerConfig
	client    *locksidecar.Client
	log       *history.Recorder
	lastOp    atomic.Int64
	owners    atomic.Uint64
	finishing chan struct{} // closed when the worker has to finish: it begins no new section

	queueing sync.Mutex // held by the actor that runs queue
}

// runWorker is the main function of a worker.
func runWorker(config string) error {
	w := &goWorker{finishing: make(chan struct{})}
	if err := json.Unmarshal([]byte(config), &w.workerConfig); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(w.finishing)
	}()
	var err error
	if w.log, err = history.Record(w.Logs, w.Client); err != nil {
		return err
	}
	defer w.log.Close()
	if w.Kind == plainKind {
		w.runPlain()
		return nil
	}
	// The daemon may be restarting.
	for w.client == nil {
		if w.client, err = locksidecar.Dial(context.Background(), w.Socket); err != nil && w.isFinishing() {
			return nil
		}
	}
	defer w.client.Close()
	var wg sync.WaitGroup
	for i := range w.Actors {
		wg.Go(func() {
			a := &actor{goWorker: w, dice: rand.New(rand.NewPCG(w.Seed, uint64(i)))}
			a.act()
		})
	}
	wg.Wait()
	return nil
}

func (w *goWorker) isFinishing() bool {
	select {
	case <-w.finishing:
		return true
	default:
		return false
	}
}

// An actor executes activities, one at a time. Apart from re-entries it holds one lock at a time,
// so that actors do not deadlock.
type actor struct {
	*goWorker
	dice *rand.Rand
	fd   net.Conn // to the register; nil: not connected
	in   *json.Decoder
}

// activities are those of an actor with their weights, as in worker.py.
var activities = []struct {
	weight int
	play   func(*actor)
}{
	{50, (*actor).short}, {3, (*actor).long}, {10, (*actor).reenter}, {15, (*actor).try}, {10, (*actor).tryFor},
	{4, (*actor).fixedLease}, {3, (*actor).maxHold}, {5, (*actor).cancelled}, {3, (*actor).queue},
	{10, (*actor).permits},
}

var permitActivities = activities[len(activities)-1:]

func (a *actor) act() {
	activities, sum := activities, 0
	if a.Hot == 0 {
		activities = permitActivities
	}
	for _, p := range activities {
		sum += p.weight
	}
	for !a.isFinishing() {
		a.wait(a.randomTime(2 * time.Duration(a.ThinkMS) * time.Millisecond))
		n, i := a.dice.IntN(sum), 0
		for ; n >= activities[i].weight; i++ {
			n -= activities[i].weight
		}
		activities[i].play(a)
	}
	a.closeRegister()
}

// closeRegister closes the connection to the register.
func (a *actor) closeRegister() {
	if a.fd != nil {
		a.fd.Close()
		a.fd = nil
	}
}

// randomTime draws a duration from 0 to d.
func (a *actor) randomTime(d time.Duration) time.Duration {
	return time.Duration(a.dice.Float64() * float64(d))
}

func (a *actor) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.finishing:
	}
}

func (a *actor) hotLock() string  { return fmt.Sprintf("hot:%d", a.dice.IntN(a.Hot)) }
func (a *actor) coolLock() string { return fmt.Sprintf("cool:%d", a.dice.IntN(a.Cool)) }

func (a *actor) anyLock() string {
	if a.dice.IntN(4) == 0 {
		return a.coolLock()
	}
	return a.hotLock()
}

// ---- sections -----------------------------------------------------------------

// A section is one acquire that was granted.
type section struct {
	*actor
	op      int64
	l       handle
	granted int64
	lost    bool
}

// A handle is a lock, or permits.
type handle interface {
	Name() string
	Token() uint64
	Deadline() time.Time
	Err() error
	Done() <-chan struct{}
	release() error
}

type lockHandle struct{ *locksidecar.Lock }

func (h lockHandle) release() error { return h.Unlock() }

type permitHandle struct{ *locksidecar.Permit }

func (h permitHandle) release() error { return h.Release() }

// acquire acquires a lock, and waits for it.
func (a *actor) acquire(ctx context.Context, request history.Event, options ...locksidecar.Option) *section {
	return a.acquireBy(a.client.Lock, ctx, request, options...)
}

// acquireBy acquires a lock with this function.
func (a *actor) acquireBy(
	acquire func(context.Context, string, ...locksidecar.Option) (*locksidecar.Lock, error),
	ctx context.Context, request history.Event, options ...locksidecar.Option,
) *section {
	return a.record(ctx, request, func(ctx context.Context) (handle, error) {
		l, err := acquire(ctx, request.Lock, options...)
		return lockHandle{l}, err
	})
}

// semaphore is the name of the one of which workers acquire permits.
const semaphore = "permits"

// acquirePermits acquires n permits of the semaphore.
func (a *actor) acquirePermits(ctx context.Context, n int, request history.Event) *section {
	request.Lock, request.Permits, request.Of = semaphore, n, a.Of
	return a.record(ctx, request, func(ctx context.Context) (handle, error) {
		p, err := a.client.Semaphore(request.Lock, a.Of).Acquire(ctx, n)
		return permitHandle{p}, err
	})
}

// record records an acquire and its result; nil: not granted. The request is an event of the history.
func (a *actor) record(ctx context.Context, request history.Event, acquire func(context.Context) (handle, error)) *section {
	request.Kind = history.Invoke
	if request.Op == 0 {
		request.Op = a.lastOp.Add(1)
	}
	op := request.Op
	if request.WaitMS != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(request.WaitMS)*time.Millisecond)
		defer cancel()
	}
	request.At = protocol.Now()
	a.log.Write(request)
	l, err := acquire(ctx)
	now := protocol.Now()
	if err != nil {
		kind := kindOf(err)
		a.log.Write(history.Event{Kind: history.Error, At: now, Op: op, Err: kind, Msg: errorText(kind, err)})
		if kind == "unavailable" {
			a.wait(50 * time.Millisecond)
		}
		return nil
	}
	a.log.Write(history.Event{Kind: history.Grant, At: now, Op: op, Token: l.Token(), Until: deadline(l)})
	return &section{actor: a, op: op, l: l, granted: now}
}

// deadline returns the deadline of a lock on CLOCK_BOOTTIME. It is too early by the time between
// two readings of the clock.
func deadline(l handle) int64 {
	d := l.Deadline()
	now := protocol.Now()
	return now + int64(time.Until(d))
}

// check checks whether the lock is still held, and records the result.
func (s *section) check() bool {
	before := protocol.Now()
	err := s.l.Err()
	if err == nil {
		until := deadline(s.l)
		s.log.Write(history.Event{Kind: history.Checked, Before: before, At: protocol.Now(), Op: s.op, Until: until})
		return true
	}
	if !s.lost {
		s.lost = true
		s.log.Write(history.Event{Kind: history.Lost, Before: before, At: protocol.Now(), Op: s.op, Reason: reasonOf(err), Msg: err.Error()})
	}
	return false
}

// release releases the lock like a deferred Unlock, also if it is lost.
func (s *section) release() {
	before := protocol.Now()
	s.log.Write(history.Event{Kind: history.Release, At: before, Op: s.op})
	err := s.l.release()
	s.log.Write(history.Event{
		Kind: history.Released, Before: before, At: protocol.Now(), Op: s.op,
		Err: kindOf(err), Reason: reasonOf(err), Msg: errorText(kindOf(err), err),
	})
}

// hold holds the lock for a while, or until it is lost.
func (s *section) hold(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.l.Done():
		s.check()
	case <-s.finishing:
	}
}

// write writes to the register.
func (s *section) write() { s.writeRegister(s.op, s.l.Name(), s.l.Token()) }

// writeRegister writes to the register of a lock with a token, and records the result.
func (a *actor) writeRegister(op int64, lock string, token uint64) {
	if a.fd == nil {
		var err error
		if a.fd, err = net.Dial("unix", a.Register); err != nil {
			a.fd = nil
			return
		}
		a.in = json.NewDecoder(a.fd)
	}
	w := writeRequest{Lock: lock, Token: token}
	before := protocol.Now()
	w.Value = fmt.Sprintf("%s/%d/%d", a.Client, op, before)
	var done writeAnswer
	err := json.NewEncoder(a.fd).Encode(w)
	if err == nil {
		err = a.in.Decode(&done)
	}
	if err != nil { // the run has ended
		a.closeRegister()
		return
	}
	a.log.Write(history.Event{
		Kind: history.Write, Before: before, At: protocol.Now(), Op: op, Token: w.Token, Value: w.Value,
		Refused: done.Refused, PrevToken: done.PrevToken, PrevValue: done.PrevValue,
	})
}

// ---- activities --------------------------------------------------------------------

func (a *actor) short() {
	if s := a.acquire(context.Background(), history.Event{Lock: a.anyLock()}); s != nil {
		s.runShort()
	}
}

// runShort runs a short section.
func (s *section) runShort() {
	s.write()
	s.hold(s.randomTime(5 * time.Millisecond))
	s.check()
	s.release()
}

// long holds a lock over several renewals, and checks it now and then.
func (a *actor) long() {
	if s := a.acquire(context.Background(), history.Event{Lock: a.coolLock()}); s != nil {
		s.runLong(a.randomTime(3 * time.Duration(a.LeaseMS) * time.Millisecond / 2))
	}
}

func (s *section) runLong(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end) && !s.isFinishing(); {
		s.write()
		s.hold(50*time.Millisecond + s.randomTime(200*time.Millisecond))
		if !s.check() {
			break
		}
	}
	if s.lost && s.dice.IntN(2) == 0 {
		s.write() // too late: the fence has to refuse it
	}
	s.release()
}

func (a *actor) reenter() {
	ctx := locksidecar.NewOwner(context.Background())
	slow := a.dice.IntN(8) == 0 // so that a fault may occur between the two acquires
	request := history.Event{Lock: a.anyLock(), Owner: a.owners.Add(1)}
	if slow {
		request.Lock = a.coolLock()
	}
	outer := a.acquire(ctx, request)
	if outer == nil {
		return
	}
	if slow {
		outer.hold(a.randomTime(time.Duration(a.LeaseMS) * time.Millisecond / 2))
	}
	if inner := a.acquire(ctx, request); inner != nil {
		inner.runShort()
	}
	outer.check()
	outer.release()
}

// try acquires a lock without waiting; it takes long only if Redis does not answer.
func (a *actor) try() {
	request := history.Event{Lock: a.anyLock(), WaitMS: 3000}
	if s := a.acquireBy(a.client.TryLock, context.Background(), request); s != nil {
		s.runShort()
	}
}

func (a *actor) tryFor() {
	wait := 1 + a.randomTime(500*time.Millisecond).Milliseconds()
	if s := a.acquire(context.Background(), history.Event{Lock: a.anyLock(), WaitMS: wait}); s != nil {
		s.runShort()
	}
}

// fixedLease holds a lock with a fixed lease, sometimes beyond its end.
func (a *actor) fixedLease() {
	lease := 300 + a.randomTime(1200*time.Millisecond).Milliseconds()
	s := a.acquire(context.Background(), history.Event{Lock: a.coolLock(), LeaseMS: lease}, locksidecar.WithLease(time.Duration(lease)*time.Millisecond))
	if s != nil {
		s.runLong(a.randomTime(3 * time.Duration(lease) * time.Millisecond / 2))
	}
}

func (a *actor) maxHold() {
	most := 100 + a.randomTime(500*time.Millisecond).Milliseconds()
	s := a.acquire(context.Background(), history.Event{Lock: a.coolLock(), MaxHoldMS: most}, locksidecar.WithMaxHold(time.Duration(most)*time.Millisecond))
	if s != nil {
		s.runLong(a.randomTime(3 * time.Duration(most) * time.Millisecond / 2))
	}
}

func (a *actor) cancelled() {
	ctx, cancel := a.cancelSoon()
	defer cancel()
	if s := a.acquire(ctx, history.Event{Lock: a.anyLock()}); s != nil {
		s.runShort()
	}
}

// cancelSoon returns a context that is cancelled within 100 ms, and a function that does it at once.
func (a *actor) cancelSoon() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(a.randomTime(100*time.Millisecond), cancel)
	return ctx, func() {
		timer.Stop()
		cancel()
	}
}

// queue holds a lock while other acquires of this client wait for it. Each begins when the one
// before is known to wait.
func (a *actor) queue() {
	if !a.queueing.TryLock() {
		return
	}
	defer a.queueing.Unlock()
	lock := "queue:" + fmt.Sprint(a.dice.IntN(2))
	s := a.acquire(context.Background(), history.Event{Lock: lock})
	if s == nil {
		return
	}
	var wg sync.WaitGroup
	previous := int64(0)
	for i := range 3 {
		request := history.Event{Lock: lock, Op: a.lastOp.Add(1), AfterOp: previous}
		other := &actor{goWorker: a.goWorker, dice: rand.New(rand.NewPCG(a.dice.Uint64(), 0))}
		wg.Go(func() {
			defer other.closeRegister()
			if s := other.acquire(context.Background(), request); s != nil {
				s.runShort()
			}
		})
		previous = 0
		if a.awaitWaiters(lock, i+1) {
			previous = request.Op
		}
	}
	s.check()
	s.release()
	wg.Wait()
}

// mostPermits is how many permits an actor acquires at most.
const mostPermits = 3

// shortHold is for how long most of them are held at most.
const shortHold = 40 * time.Millisecond

// permits holds permits of the semaphore, now and then over several renewals.
func (a *actor) permits() {
	if a.Of == 0 {
		a.short()
		return
	}
	ctx, request := context.Background(), history.Event{}
	switch a.dice.IntN(8) {
	case 0:
		request.WaitMS = 1 + a.randomTime(500*time.Millisecond).Milliseconds()
	case 1:
		cancelled, cancel := a.cancelSoon()
		defer cancel()
		ctx = cancelled
	}
	s := a.acquirePermits(ctx, 1+a.dice.IntN(mostPermits), request)
	if s == nil {
		return
	}
	d := a.randomTime(shortHold)
	if a.dice.IntN(30) == 0 {
		d = a.randomTime(min(3*time.Duration(a.LeaseMS)*time.Millisecond/2, 3*time.Second))
	}
	for end := time.Now().Add(d); ; {
		s.hold(min(time.Until(end), 100*time.Millisecond))
		if !s.check() || !time.Now().Before(end) || s.isFinishing() {
			break
		}
	}
	s.release()
}

// awaitWaiters waits until n waiters of this process are in the queue; false: not known.
func (a *actor) awaitWaiters(lock string, n int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for ctx.Err() == nil {
		row, _, err := a.client.Info(ctx, lock)
		if err != nil {
			return false
		}
		mine := 0
		for _, w := range row.Waiters {
			if w.PID == os.Getpid() {
				mine++
			}
		}
		if mine >= n {
			return true
		}
		a.wait(2 * time.Millisecond)
		if a.isFinishing() {
			return false
		}
	}
	return false
}

// ---- errors -------------------------------------------------------------------

// kindOf returns the kind of an error; "": none. The cancellation by the caller comes first,
// because such an error may have another kind, too.
func kindOf(err error) string {
	if err == nil {
		return ""
	}
	for _, k := range []struct {
		is   error
		name string
	}{
		{context.Canceled, "canceled"}, {locksidecar.ErrTimeout, "timeout"},
		{locksidecar.ErrHeld, "held"}, {locksidecar.ErrLost, history.LostErr}, {locksidecar.ErrNotHeld, "not_held"},
		{locksidecar.ErrDeadlock, "deadlock"}, {locksidecar.ErrUnavailable, "unavailable"}, {locksidecar.ErrLimit, "limit"},
		{locksidecar.ErrClosed, "closed"}, {locksidecar.ErrDenied, "denied"},
	} {
		if errors.Is(err, k.is) {
			return k.name
		}
	}
	return "other"
}

func reasonOf(err error) string {
	if lost := (*locksidecar.LostError)(nil); errors.As(err, &lost) {
		return string(lost.Reason)
	}
	return ""
}

// errorText returns the text of an error, unless errors of its kind are frequent.
func errorText(kind string, err error) string {
	switch kind {
	case "", "held", "timeout", "canceled", history.LostErr:
		return ""
	}
	return err.Error()
}

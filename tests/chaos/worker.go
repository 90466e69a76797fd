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

// goWorker is a process that uses the Go SDK as a program would, and writes down
// what it sees. worker.py does the same.
type goWorker struct {
	orders
	client *locksidecar.Client
	log    *history.Recorder
	lastOp atomic.Int64
	owners atomic.Uint64
	over   chan struct{} // closed when no new section is to be begun

	queueing sync.Mutex // held by the actor that forms a queue
}

// runWorker is the main function of a worker.
func runWorker(told string) error {
	w := &goWorker{over: make(chan struct{})}
	if err := json.Unmarshal([]byte(told), &w.orders); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(w.over)
	}()
	var err error
	if w.log, err = history.Record(w.Logs, w.Client); err != nil {
		return err
	}
	defer w.log.Close()
	// The daemon may be away just now: that is an error like any other later on.
	for w.client == nil {
		if w.client, err = locksidecar.Dial(context.Background(), w.Socket); err != nil && w.isOver() {
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

func (w *goWorker) isOver() bool {
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

// An actor does one thing after the other. Its re-entries aside it holds one lock
// at a time, so that actors do not wait in circles.
type actor struct {
	*goWorker
	dice *rand.Rand
	fd   net.Conn // to the register; nil: not connected
	in   *json.Decoder
}

// parts are what an actor does, and how often: the mix of worker.py too.
var parts = []struct {
	weight int
	play   func(*actor)
}{
	{50, (*actor).short}, {3, (*actor).long}, {10, (*actor).reenter}, {15, (*actor).try}, {10, (*actor).limited},
	{4, (*actor).fixedLease}, {3, (*actor).maxHold}, {5, (*actor).cancelled}, {3, (*actor).queue},
}

func (a *actor) act() {
	sum := 0
	for _, p := range parts {
		sum += p.weight
	}
	for !a.isOver() {
		a.wait(a.upTo(2 * time.Duration(a.ThinkMS) * time.Millisecond))
		n, i := a.dice.IntN(sum), 0
		for ; n >= parts[i].weight; i++ {
			n -= parts[i].weight
		}
		parts[i].play(a)
	}
	a.hangUp()
}

// hangUp ends the connection to the register.
func (a *actor) hangUp() {
	if a.fd != nil {
		a.fd.Close()
		a.fd = nil
	}
}

// upTo draws a time.
func (a *actor) upTo(d time.Duration) time.Duration {
	return time.Duration(a.dice.Float64() * float64(d))
}

func (a *actor) wait(d time.Duration) {
	select {
	case <-time.After(d):
	case <-a.over:
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
	l       *locksidecar.Lock
	granted int64
	lost    bool
}

// enter acquires, and waits for it.
func (a *actor) enter(ctx context.Context, asked history.Event, options ...locksidecar.Option) *section {
	return a.enterBy(a.client.Lock, ctx, asked, options...)
}

// enterBy acquires, and writes down what came of it; nil: not granted. asked says
// what is asked for, as the history has it.
func (a *actor) enterBy(
	acquire func(context.Context, string, ...locksidecar.Option) (*locksidecar.Lock, error),
	ctx context.Context, asked history.Event, options ...locksidecar.Option,
) *section {
	asked.Kind = history.Invoke
	if asked.Op == 0 {
		asked.Op = a.lastOp.Add(1)
	}
	op := asked.Op
	if asked.WaitMS != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(asked.WaitMS)*time.Millisecond)
		defer cancel()
	}
	asked.At = protocol.Now()
	a.log.Write(asked)
	l, err := acquire(ctx, asked.Lock, options...)
	now := protocol.Now()
	if err != nil {
		kind := kindOf(err)
		a.log.Write(history.Event{Kind: history.Error, At: now, Op: op, Err: kind, Msg: unusual(kind, err)})
		if kind == "unavailable" {
			a.wait(50 * time.Millisecond)
		}
		return nil
	}
	a.log.Write(history.Event{Kind: history.Grant, At: now, Op: op, Token: l.Token(), Until: deadline(l)})
	return &section{actor: a, op: op, l: l, granted: now}
}

// deadline returns until when the SDK believes in a lock, on CLOCK_BOOTTIME, and
// less by what passes between two looks at the clock.
func deadline(l *locksidecar.Lock) int64 {
	d := l.Deadline()
	now := protocol.Now()
	return now + int64(time.Until(d))
}

// check asks whether the lock is still held.
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

// leave releases, as a deferred Unlock would: also what is lost.
func (s *section) leave() {
	before := protocol.Now()
	s.log.Write(history.Event{Kind: history.Release, At: before, Op: s.op})
	err := s.l.Unlock()
	s.log.Write(history.Event{
		Kind: history.Released, Before: before, At: protocol.Now(), Op: s.op,
		Err: kindOf(err), Reason: reasonOf(err), Msg: unusual(kindOf(err), err),
	})
}

// stay holds the lock for a while, or until it is lost.
func (s *section) stay(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.l.Done():
		s.check()
	case <-s.over:
	}
}

// write writes to what the lock guards.
func (s *section) write() {
	if s.fd == nil {
		var err error
		if s.fd, err = net.Dial("unix", s.Register); err != nil {
			s.fd = nil
			return
		}
		s.in = json.NewDecoder(s.fd)
	}
	w := writing{Lock: s.l.Name(), Token: s.l.Token()}
	before := protocol.Now()
	w.Value = fmt.Sprintf("%s/%d/%d", s.Client, s.op, before)
	var done writingDone
	err := json.NewEncoder(s.fd).Encode(w)
	if err == nil {
		err = s.in.Decode(&done)
	}
	if err != nil { // the run is over
		s.hangUp()
		return
	}
	s.log.Write(history.Event{
		Kind: history.Write, Before: before, At: protocol.Now(), Op: s.op, Token: w.Token, Value: w.Value,
		Refused: done.Refused, PrevToken: done.PrevToken, PrevValue: done.PrevValue,
	})
}

// ---- parts --------------------------------------------------------------------

func (a *actor) short() {
	if s := a.enter(context.Background(), history.Event{Lock: a.anyLock()}); s != nil {
		s.brief()
	}
}

// brief is a section that lasts for moments.
func (s *section) brief() {
	s.write()
	s.stay(s.upTo(5 * time.Millisecond))
	s.check()
	s.leave()
}

// long holds a lock over several renewals, and looks after it.
func (a *actor) long() {
	if s := a.enter(context.Background(), history.Event{Lock: a.coolLock()}); s != nil {
		s.lasting(a.upTo(3 * time.Duration(a.LeaseMS) * time.Millisecond / 2))
	}
}

func (s *section) lasting(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end) && !s.isOver(); {
		s.write()
		s.stay(50*time.Millisecond + s.upTo(200*time.Millisecond))
		if !s.check() {
			break
		}
	}
	if s.lost && s.dice.IntN(2) == 0 {
		s.write() // too late; the token tells
	}
	s.leave()
}

func (a *actor) reenter() {
	ctx := locksidecar.WithOwner(context.Background())
	slow := a.dice.IntN(8) == 0 // time for something to happen in between
	asked := history.Event{Lock: a.anyLock(), Owner: a.owners.Add(1)}
	if slow {
		asked.Lock = a.coolLock()
	}
	outer := a.enter(ctx, asked)
	if outer == nil {
		return
	}
	if slow {
		outer.stay(a.upTo(time.Duration(a.LeaseMS) * time.Millisecond / 2))
	}
	if inner := a.enter(ctx, asked); inner != nil {
		inner.brief()
	}
	outer.check()
	outer.leave()
}

// try asks once; it takes a while only if Redis is away.
func (a *actor) try() {
	asked := history.Event{Lock: a.anyLock(), WaitMS: 3000}
	if s := a.enterBy(a.client.TryLock, context.Background(), asked); s != nil {
		s.brief()
	}
}

func (a *actor) limited() {
	wait := 1 + a.upTo(500*time.Millisecond).Milliseconds()
	if s := a.enter(context.Background(), history.Event{Lock: a.anyLock(), WaitMS: wait}); s != nil {
		s.brief()
	}
}

// fixedLease holds a lock that nobody renews, sometimes for too long.
func (a *actor) fixedLease() {
	lease := 300 + a.upTo(1200*time.Millisecond).Milliseconds()
	s := a.enter(context.Background(), history.Event{Lock: a.coolLock(), LeaseMS: lease}, locksidecar.WithLease(time.Duration(lease)*time.Millisecond))
	if s != nil {
		s.lasting(a.upTo(3 * time.Duration(lease) * time.Millisecond / 2))
	}
}

func (a *actor) maxHold() {
	most := 100 + a.upTo(500*time.Millisecond).Milliseconds()
	s := a.enter(context.Background(), history.Event{Lock: a.coolLock(), MaxHoldMS: most}, locksidecar.WithMaxHold(time.Duration(most)*time.Millisecond))
	if s != nil {
		s.lasting(a.upTo(3 * time.Duration(most) * time.Millisecond / 2))
	}
}

func (a *actor) cancelled() {
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(a.upTo(100*time.Millisecond), cancel)
	defer timer.Stop()
	defer cancel()
	if s := a.enter(ctx, history.Event{Lock: a.anyLock()}); s != nil {
		s.brief()
	}
}

// queue holds a lock while others of this client come to stand in its queue, each
// when the one before is known to stand there.
func (a *actor) queue() {
	if !a.queueing.TryLock() {
		return
	}
	defer a.queueing.Unlock()
	lock := "queue:" + fmt.Sprint(a.dice.IntN(2))
	s := a.enter(context.Background(), history.Event{Lock: lock})
	if s == nil {
		return
	}
	var wg sync.WaitGroup
	behind := int64(0)
	for i := range 3 {
		asked := history.Event{Lock: lock, Op: a.lastOp.Add(1), AfterOp: behind}
		other := &actor{goWorker: a.goWorker, dice: rand.New(rand.NewPCG(a.dice.Uint64(), 0))}
		wg.Go(func() {
			defer other.hangUp()
			if s := other.enter(context.Background(), asked); s != nil {
				s.brief()
			}
		})
		behind = 0
		if a.stands(lock, i+1) {
			behind = asked.Op
		}
	}
	s.check()
	s.leave()
	wg.Wait()
}

// stands tells whether n waiters of this process are known to stand in the queue.
func (a *actor) stands(lock string, n int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for ctx.Err() == nil {
		row, _, err := a.client.Info(ctx, lock)
		if err != nil {
			return false
		}
		mine := 0
		for _, w := range row.Waiters {
			if w.PID == int64(os.Getpid()) {
				mine++
			}
		}
		if mine >= n {
			return true
		}
		a.wait(2 * time.Millisecond)
		if a.isOver() {
			return false
		}
	}
	return false
}

// ---- errors -------------------------------------------------------------------

// kindOf names the kind of an error; "": none. What the caller itself ended is
// that, whatever it waited for when it did.
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

// unusual returns the text of an error that is not everyday.
func unusual(kind string, err error) string {
	switch kind {
	case "", "held", "timeout", "canceled", history.LostErr:
		return ""
	}
	return err.Error()
}

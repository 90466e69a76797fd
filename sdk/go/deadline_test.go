//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// withRecorder runs a test in a synctest bubble, with a Client and the sidecar's end of its
// connection, which records requests.
func withRecorder(t *testing.T, test func(t *testing.T, c *Client, p *recorder)) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		p := &recorder{peer: newPeer(t, theirs)}
		clock := func() int64 { return time.Now().UnixNano() + p.suspended.Load() }
		p.clock = clock
		first := true
		c := newClient(dialer{path: "pipe", name: "test", clock: clock, watchPeriod: time.Hour})
		c.dialer.connect = func(context.Context, string) (net.Conn, error) {
			if !first {
				return nil, errors.New("only one connection")
			}
			first = false
			return ours, nil
		}
		go p.record()
		if err := c.dial(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, c, p)
		c.Close()
		<-c.current.Load().done
		theirs.Close()
		synctest.Wait()
	})
}

// recorder is a sidecar that answers a test as its fields say.
type recorder struct {
	*peer
	suspended atomic.Int64 // ns that the clock has counted, and timers have not

	mu           sync.Mutex
	deadline     int64          // of the next grant; 0: nothing is granted
	end          int64          // of its max_hold; 0: it has none
	refusalDelay time.Duration  // from the end of a wait to its refusal; 0: nothing is refused
	bye          protocol.Reply // the answer to bye; nil: ByeOK
	lockState    string         // in the answers to info; "": info is not answered
	reentries    uint32         // of the last hold, with the next grant; 0: the next grant is another hold
	holds        uint64
	got          []protocol.Request // acquires, releases and cancels since the last sent
}

func (p *recorder) record() {
	for {
		body, err := p.frames.Next()
		if err != nil {
			return
		}
		m, err := p.decoder.Decode(body)
		if err != nil {
			p.t.Error(err)
			return
		}
		p.mu.Lock()
		switch m := m.(type) {
		case *protocol.Hello:
			p.send(protocol.HelloOK{ID: m.ID, V: 1, Sidecar: "fake", NowNS: p.clock()})
		case *protocol.Acquire:
			p.got = append(p.got, *m)
			if p.refusalDelay != 0 {
				refusal := protocol.Err{ID: m.ID, Code: protocol.Timeout, Msg: "pid 7 holds it"}
				time.AfterFunc(time.Duration(m.WaitMS)*time.Millisecond+p.refusalDelay, func() { p.send(refusal) })
			}
			if p.deadline != 0 {
				count := p.reentries + 1
				if count == 1 {
					p.holds++
				}
				p.send(protocol.AcquireOK{ID: m.ID, Token: p.holds, Hold: p.holds, Count: count, DeadlineNS: p.deadline, EndNS: p.end})
			}
		case *protocol.Bye:
			answer := p.bye
			if answer == nil {
				answer = protocol.ByeOK{ID: m.ID}
			}
			_, _ = p.nc.Write(answer.Append(nil)) // the connection may have ended
		case *protocol.Info:
			if p.lockState != "" {
				p.send(protocol.InfoOK{ID: m.ID, Lock: &protocol.LockRow{Name: m.Name, State: p.lockState}})
			}
		case *protocol.Release:
			p.got = append(p.got, *m)
		case *protocol.Cancel:
			p.got = append(p.got, *m)
		}
		p.mu.Unlock()
	}
}

// lock acquires a lock that is granted with that lease.
func (p *recorder) lock(c *Client, name string, lease time.Duration, options ...Option) *Lock {
	p.t.Helper()
	p.mu.Lock()
	p.deadline = p.clock() + int64(lease)
	p.mu.Unlock()
	l, err := c.Lock(context.Background(), name, options...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.sent() // the acquire
	return l
}

// sent returns what was sent since the last call.
func (p *recorder) sent() []protocol.Request {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	got := p.got
	p.got = nil
	return got
}

// untilDone waits until the lock is not held any more, and returns how long that took.
func untilDone(l *Lock) time.Duration {
	start := time.Now()
	<-l.Done()
	return time.Since(start)
}

func TestLockIsLostAtItsDeadline(t *testing.T) {
	for name, gone := range map[string]bool{"the sidecar is silent": false, "the sidecar is gone": true} {
		t.Run(name, func(t *testing.T) {
			withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
				l := p.lock(c, "a", 10*time.Second)
				silent := p.lock(c, "b", 10*time.Second)
				late := p.lock(c, "c", 10*time.Second)
				ctx, stop := l.Context(context.Background())
				defer stop()
				if gone {
					p.nc.Close()
					synctest.Wait()
				}
				done := l.Done()
				time.Sleep(10*time.Second - time.Nanosecond)
				select {
				case <-done:
					t.Error("Done was closed too early")
				default:
				}
				if l.Err() != nil || silent.Err() != nil || ctx.Err() != nil {
					t.Error("it was lost too early")
				}
				if until := time.Until(l.Deadline()); until != time.Nanosecond {
					t.Errorf("a nanosecond before its deadline it is valid for %v", until)
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				<-done
				<-ctx.Done()
				for _, err := range []error{l.Err(), silent.Err(), context.Cause(ctx), l.Unlock(), late.Unlock()} {
					var lost *LostError
					if !errors.As(err, &lost) || lost.Reason != ReasonExpired {
						t.Errorf("the error is %v", err)
					}
				}
				wantKind(t, late.Unlock(), ErrNotHeld)
				// The sidecar may have renewed all three.
				sent := p.sent()
				if gone && len(sent) != 0 {
					t.Errorf("sent %v over a connection that has ended", sent)
				}
				if !gone && len(sent) != 3 {
					t.Errorf("sent %v, want three releases", sent)
				}
				for _, m := range sent {
					if r, ok := m.(protocol.Release); !ok || r.ID != 0 {
						t.Errorf("sent %+v, want a release without an id", m)
					}
				}
				// The event arrives after the locks were lost.
				if !gone {
					p.send(protocol.LostEvent{Hold: 1, Reason: protocol.Expired})
				}
				synctest.Wait()
				if until := time.Until(l.Deadline()); until != 0 {
					t.Errorf("after its deadline it is valid for %v", until)
				}
			})
		})
	}
}

// reenter enters the last hold again, which is granted with that lease.
func (p *recorder) reenter(ctx context.Context, c *Client, name string, lease time.Duration) *Lock {
	p.t.Helper()
	p.mu.Lock()
	p.reentries++
	p.deadline = p.clock() + int64(lease)
	p.mu.Unlock()
	l, err := c.Lock(ctx, name)
	if err != nil {
		p.t.Fatal(err)
	}
	p.sent() // the acquire
	return l
}

// The sidecar counts entries. If it renewed a hold that is lost here, it keeps the lock until each
// of them is released.
func TestExpiredHoldIsReleasedOncePerEntry(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		ctx := NewOwner(context.Background())
		p.mu.Lock()
		p.deadline = p.clock() + int64(10*time.Second)
		p.mu.Unlock()
		outer, err := c.Lock(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		p.sent() // the acquire
		p.reenter(ctx, c, "a", 10*time.Second)
		inner := p.reenter(ctx, c, "a", 10*time.Second)
		if err := inner.Unlock(); err != nil {
			t.Fatal(err)
		}
		p.sent() // its release
		if d := untilDone(outer); d != 10*time.Second {
			t.Errorf("it ended after %v, want 10s", d)
		}
		sent := p.sent()
		for _, m := range sent {
			if m != (protocol.Release{Hold: 1}) {
				t.Errorf("sent %+v, want a release of 1 without an id", m)
			}
		}
		if len(sent) != 2 {
			t.Errorf("sent %v for two entries", sent)
		}
	})
}

// The answer to a re-entry has the deadline that the sidecar knew when it sent it. A lease event
// may have moved it before, and does not come again.
func TestReentryLowersNoDeadline(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		ctx := NewOwner(context.Background())
		p.mu.Lock()
		p.deadline = p.clock() + int64(10*time.Second)
		p.mu.Unlock()
		outer, err := c.Lock(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		inner := p.reenter(ctx, c, "a", 5*time.Second)
		if got := time.Until(outer.Deadline()); got != 10*time.Second {
			t.Errorf("after a re-entry it is valid for %v, want 10s", got)
		}
		p.send(protocol.LeaseEvent{DeadlineNS: p.clock() + int64(20*time.Second)})
		synctest.Wait()
		p.reenter(ctx, c, "a", 15*time.Second)
		if d := untilDone(inner); d != 20*time.Second {
			t.Errorf("after a renewal and a re-entry it ended after %v, want 20s", d)
		}
	})
}

func TestMaxHoldEndsLockDespiteRenewals(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		p.mu.Lock()
		p.end = p.clock() + int64(15*time.Second)
		p.mu.Unlock()
		l := p.lock(c, "a", 10*time.Second, WithMaxHold(15*time.Second))
		l.Done()
		time.Sleep(5 * time.Second)
		p.send(protocol.LeaseEvent{DeadlineNS: p.clock() + int64(20*time.Second)})
		synctest.Wait()
		if got := time.Until(l.Deadline()); got != 10*time.Second {
			t.Errorf("it is valid for %v, want 10s", got)
		}
		if d := untilDone(l); d != 10*time.Second {
			t.Errorf("it ended after %v, want 10s", d)
		}
		var lost *LostError
		if !errors.As(l.Err(), &lost) || lost.Reason != ReasonMaxHold {
			t.Errorf("Err: %v", l.Err())
		}
	})
}

func TestLeaseEventsMoveDeadlines(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		renewed := p.lock(c, "a", 10*time.Second)
		unwatched := p.lock(c, "b", 10*time.Second)
		fixed := p.lock(c, "c", 10*time.Second, WithLease(10*time.Second))
		longer := p.lock(c, "d", 40*time.Second)
		renewed.Done()
		fixed.Done()
		time.Sleep(5 * time.Second)
		p.send(protocol.LeaseEvent{DeadlineNS: p.clock() + int64(20*time.Second)})
		synctest.Wait()
		later := p.lock(c, "e", 10*time.Second) // the event does not concern it

		for l, want := range map[*Lock]time.Duration{renewed: 20 * time.Second, unwatched: 20 * time.Second, fixed: 5 * time.Second, longer: 35 * time.Second, later: 10 * time.Second} {
			if got := time.Until(l.Deadline()); got != want {
				t.Errorf("%s is valid for %v, want %v", l.Name(), got, want)
			}
		}
		if d := untilDone(fixed); d != 5*time.Second {
			t.Errorf("the fixed lease ended after %v", d)
		}
		if d := untilDone(later); d != 5*time.Second {
			t.Errorf("the later lock ended after %v", d)
		}
		// An event with an earlier deadline takes nothing from the holds that have a later
		// one, and moves those that were granted since with a still earlier one.
		young := p.lock(c, "f", 4*time.Second)
		p.send(protocol.LeaseEvent{DeadlineNS: p.clock() + int64(8*time.Second)})
		synctest.Wait()
		if d := untilDone(young); d != 8*time.Second {
			t.Errorf("the young lock ended after %v", d)
		}
		if d := untilDone(renewed); d != 2*time.Second {
			t.Errorf("the renewed lock ended after another %v", d)
		}
		wantKind(t, unwatched.Err(), ErrLost)
		if err := longer.Unlock(); err != nil {
			t.Error(err)
		}
	})
}

func TestObservedLockIsRenewedManyTimes(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		l := p.lock(c, "a", 30*time.Second)
		done := l.Done()
		for range 100 {
			time.Sleep(10 * time.Second)
			p.send(protocol.LeaseEvent{DeadlineNS: p.clock() + int64(30*time.Second)})
			synctest.Wait()
		}
		select {
		case <-done:
			t.Fatalf("it ended: %v", l.Err())
		default:
		}
		if d := untilDone(l); d != 30*time.Second {
			t.Errorf("without renewals it ended after %v", d)
		}
	})
}

func TestCloseReturnsWhenSidecarReportsProtocolError(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		p.lock(c, "a", time.Minute)
		p.bye = protocol.Err{Code: protocol.BadFrame, Msg: "the frame is odd"}
		start := time.Now()
		c.Close()
		if d := time.Since(start); d != 0 {
			t.Errorf("Close took %v", d)
		}
		<-c.current.Load().done
		checkInvariants(t, c)
	})
}

// While a host is suspended no timer runs, and the clock goes on.
//
// Shows docs/guarantees.md: Its host is suspended.
func TestSuspendedHostFindsItsLocksLost(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		l := p.lock(c, "a", time.Minute)
		done := l.Done()
		time.Sleep(time.Second + time.Millisecond)
		p.suspended.Store(int64(time.Hour))
		resumed := time.Now()
		<-done
		if d := time.Since(resumed); d > maxAlarmSleep {
			t.Errorf("the loss was reported %v after the suspend", d)
		}
		wantKind(t, l.Err(), ErrLost)
	})
}

func TestObserversAreNotifiedInOrderOfDeadlines(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		s := c.current.Load()
		var locks []*Lock
		for i := range 50 {
			l := p.lock(c, "a", time.Duration(1+i*37%50)*time.Minute, WithLease(time.Hour))
			l.Done()
			locks = append(locks, l)
		}
		for i, l := range locks {
			if i%3 == 0 {
				if err := l.Unlock(); err != nil {
					t.Error(err)
				}
			}
		}
		for minute := range 51 {
			for i, l := range locks {
				want := i%3 == 0 || minute >= 1+i*37%50
				select {
				case <-l.Done():
					if !want {
						t.Errorf("lock %d ended before minute %d", i, minute)
					}
				default:
					if want {
						t.Errorf("lock %d is held at minute %d", i, minute)
					}
				}
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if len(s.alarm.queue) != 0 || len(s.holds) != 0 {
			t.Errorf("%d holds in the alarm and %d holds are left", len(s.alarm.queue), len(s.holds))
		}
	})
}

func TestContextEndsCallOfSilentSidecar(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		for _, tt := range []struct {
			do   func(ctx context.Context) error
			want time.Duration
			sent int
			kind error
		}{
			{func(ctx context.Context) error { return errOf(c.Lock(ctx, "a")) }, time.Second + answerGrace + infoGrace, 2, ErrTimeout},
			{func(ctx context.Context) error { return errOf(c.TryLock(ctx, "a")) }, time.Second, 2, ErrUnavailable},
			{func(ctx context.Context) error { return errOf(c.Ping(ctx)) }, time.Second, 0, ErrUnavailable},
			{func(ctx context.Context) error { return errOf(c.List(ctx)) }, time.Second, 0, ErrUnavailable},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			err := tt.do(ctx)
			wantKind(t, err, tt.kind, context.DeadlineExceeded)
			if d := time.Since(start); d != tt.want {
				t.Errorf("returned after %v: %v", d, err)
			}
			if sent := p.sent(); len(sent) != tt.sent {
				t.Errorf("sent %+v", sent)
			}
			cancel()
		}
	})
}

// The sidecar waits for Redis until 500 ms after an acquire, and answers only then.
func TestShortDeadlineReportsSilenceOfRedis(t *testing.T) {
	for state, want := range map[string]struct {
		isUnavailable bool
		after         time.Duration // the deadline
	}{
		protocol.StateBusy:      {true, answerGrace},
		protocol.StateHeld:      {false, answerGrace + infoGrace},
		protocol.StateRemote:    {false, answerGrace + infoGrace},
		protocol.StateLingering: {false, answerGrace + infoGrace},
		protocol.StateFree:      {false, answerGrace + infoGrace},
		"":                      {false, answerGrace + infoGrace}, // the sidecar is silent itself
	} {
		withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
			p.lockState = state
			const wait = 100 * time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			start := time.Now()
			_, err := c.Lock(ctx, "a")
			wantKind(t, err, ErrTimeout, context.DeadlineExceeded)
			if errors.Is(err, ErrUnavailable) != want.isUnavailable {
				t.Errorf("%q: the error is %v", state, err)
			}
			if want.isUnavailable {
				wantText(t, err, `cannot lock "a"`, "Redis has not answered", "is not known")
			}
			if d := time.Since(start); d != wait+want.after {
				t.Errorf("%q: returned after %v", state, d)
			}
			if sent := p.sent(); len(sent) != 2 {
				t.Errorf("%q: sent %+v, want an acquire and a cancel", state, sent)
			}
			checkInvariants(t, c)
			if s := c.current.Load(); len(s.calls) != 1 {
				t.Errorf("%q: %d calls wait, want the cancelled acquire", state, len(s.calls))
			}
		})
	}
}

// The answer may come while the client asks what the sidecar waits for.
func TestAnswerAfterQuestionForSilenceCounts(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		p.lockState, p.refusalDelay = protocol.StateHeld, answerGrace+infoGrace/2
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := c.Lock(ctx, "a")
		wantKind(t, err, ErrTimeout)
		wantText(t, err, "pid 7")
	})
}

func TestTimeoutErrorNamesHolder(t *testing.T) {
	withRecorder(t, func(t *testing.T, c *Client, p *recorder) {
		for _, wait := range []time.Duration{time.Nanosecond, 2*time.Second + time.Microsecond} {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			p.refusalDelay = 15 * time.Millisecond
			_, err := c.Lock(ctx, "a")
			wantKind(t, err, ErrTimeout, context.DeadlineExceeded)
			wantText(t, err, "pid 7")
			if errors.Is(err, ErrUnavailable) {
				t.Errorf("%v is ErrUnavailable", err)
			}
			var timeout interface{ Timeout() bool }
			if !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("%v is no timeout", err)
			}
			sent := p.sent()
			if a, ok := sent[0].(protocol.Acquire); len(sent) != 1 || !ok || a.WaitMS != max(1, wait.Milliseconds()) {
				t.Errorf("sent %+v", sent)
			}
			cancel()
		}
	})
}

func TestDialErrorHasLastFailureWhenContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dialer{path: "/nowhere", clock: protocol.Now}
		d.connect = func(context.Context, string) (net.Conn, error) { return nil, os.ErrNotExist }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		_, err := d.dialFirst(ctx, time.Hour)
		wantKind(t, err, ErrUnavailable, context.DeadlineExceeded)
		wantText(t, err, "/nowhere", "no socket")
		if d := time.Since(start); d != time.Minute {
			t.Errorf("returned after %v", d)
		}

		start = time.Now()
		wantKind(t, errOf(d.dialFirst(t.Context(), 2*time.Second)), ErrUnavailable, os.ErrNotExist)
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("the patience of 2 s ended after %v", d)
		}
	})
}

func TestDialFailsIfHelloIsNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go func() { _, _ = theirs.Read(make([]byte, 1000)) }()
		d := dialer{path: "pipe", name: "test", clock: protocol.Now, connect: func(context.Context, string) (net.Conn, error) { return ours, nil }}
		start := time.Now()
		_, err := d.dialFirst(t.Context(), 0)
		wantKind(t, err, ErrUnavailable)
		if d := time.Since(start); d != protocol.HelloTimeout {
			t.Errorf("returned after %v: %v", d, err)
		}
	})
}

// A lease event concerns every hold that was granted before it, also if its deadline is that of
// the event before, or earlier; and it takes nothing from a hold that has a later deadline.
func TestLeaseEventMayLowerDeadlineOfNewerHolds(t *testing.T) {
	s := &session{holds: map[uint64]*hold{}, calls: map[uint64]*call{}}
	granted := func(num uint64, deadline int64) *hold {
		return s.enterHoldLocked(&wanted{AcquirePermits: protocol.AcquirePermits{Acquire: protocol.Acquire{Name: "x"}}}, &protocol.AcquireOK{Hold: num, Count: 1, DeadlineNS: deadline}).hold
	}
	onLease := func(deadline int64) {
		if err := s.onMessage(nil, &protocol.LeaseEvent{DeadlineNS: deadline}); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(h *hold, until int64) {
		t.Helper()
		if got := h.deadlineLocked(); got != until {
			t.Errorf("hold %d is valid until %d, want %d", h.id, got, until)
		}
	}
	old := granted(1, 50)
	onLease(100)
	handed := granted(2, 60)
	onLease(100)
	wants(handed, 100)
	late := granted(3, 70)
	onLease(90)
	wants(old, 100)
	wants(handed, 100)
	wants(late, 90)
	onLease(95)
	wants(old, 100)
	wants(late, 95)
	onLease(110)
	for _, h := range []*hold{old, handed, late} {
		wants(h, 110)
	}
}

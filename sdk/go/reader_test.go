//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// awaitTurn returns when the turn to read is taken, or is free.
func awaitTurn(t *testing.T, c *Client, phase turnPhase) {
	t.Helper()
	s := c.current.Load()
	s.mu.Lock()
	in := s.conn.in
	s.mu.Unlock()
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); runtime.Gosched() {
		in.mu.Lock()
		now := in.phase
		in.mu.Unlock()
		if now == phase {
			return
		}
	}
	t.Fatalf("the turn does not get into phase %d", phase)
}

// lockWhileReading calls Lock, and returns when that call has the turn to read.
func lockWhileReading(t *testing.T, ctx context.Context, c *Client, p *peer, name string) (protocol.Acquire, func() (*Lock, error)) {
	t.Helper()
	awaitTurn(t, c, turnFree)
	locked := async(func() (*Lock, error) { return c.Lock(ctx, name) })
	a := expect[protocol.Acquire](p)
	awaitTurn(t, c, turnTaken)
	return a, locked
}

func TestCanceledCallerPassesReadingOn(t *testing.T) {
	c, p := listen(t).dial()
	ctx, cancel := context.WithCancel(context.Background())
	_, locked := lockWhileReading(t, ctx, c, p, "a")
	others := make(map[string]func() (*Lock, error))
	asked := make(map[string]uint64)
	for _, name := range []string{"b", "c"} {
		others[name] = async(func() (*Lock, error) { return c.Lock(context.Background(), name) })
		asked[name] = expect[protocol.Acquire](p).ID
	}
	cancel()
	wantKind(t, errOf(locked()), context.Canceled)
	expect[protocol.Cancel](p)
	for i, name := range []string{"c", "b"} {
		p.send(protocol.AcquireOK{ID: asked[name], Token: 1, Hold: uint64(10 + i), Count: 1, DeadlineNS: inOneHour()})
		if _, err := others[name](); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// manualDeadline is a context whose deadline passes when the test says so.
type manualDeadline struct {
	context.Context
	passed chan struct{}
}

func (manualDeadline) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }
func (c manualDeadline) Done() <-chan struct{}     { return c.passed }

func (c manualDeadline) Err() error {
	select {
	case <-c.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestDeadlineEndsReadingCaller(t *testing.T) {
	c, p := listen(t).dial()
	ctx := manualDeadline{context.Background(), make(chan struct{})}
	a, locked := lockWhileReading(t, ctx, c, p, "a")
	close(ctx.passed)
	wantKind(t, errOf(locked()), ErrTimeout)
	if got := expect[protocol.Cancel](p); got.Target != a.ID {
		t.Errorf("sent %+v, want a cancel of %d", got, a.ID)
	}
	p.expectNothing(c)
}

func TestCloseWhileCallerReads(t *testing.T) {
	c, p := listen(t).dial()
	_, locked := lockWhileReading(t, context.Background(), c, p, "a")
	closed := async(func() (any, error) { return nil, c.Close() })
	bye := expect[protocol.Bye](p)
	wantKind(t, errOf(locked()), ErrClosed) // before the sidecar answers
	p.send(protocol.ByeOK(bye))
	if _, err := closed(); err != nil {
		t.Error(err)
	}
	select {
	case <-c.current.Load().done:
	case <-time.After(10 * time.Second):
		t.Error("the session does not end")
	}
}

// The sidecar has nothing of this client and sends nothing. No goroutine reads, and the notifier
// does not report that this side has closed the connection.
func TestCloseWhileTurnIsFree(t *testing.T) {
	c, p := listen(t).dial()
	awaitTurn(t, c, turnFree)
	closed := async(func() (any, error) { return nil, c.Close() })
	expect[protocol.Bye](p)
	if _, err := closed(); err != nil {
		t.Error(err)
	}
	<-c.current.Load().done
}

func TestDisconnectWhileCallerReads(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, inOneHour())
	_, locked := lockWhileReading(t, context.Background(), c, p, "a")
	p.nc.Close()
	p = s.acceptResumed()
	claim, holds := p.expectClaim()
	if len(holds) != 1 {
		t.Errorf("claimed %v", holds)
	}
	p.send(protocol.ClaimOK{ID: claim})
	p.grant(2, inOneHour())
	l, err := locked()
	if err != nil {
		t.Fatal(err)
	}
	if held.Err() != nil || l.Err() != nil || l.Token() != 1002 {
		t.Errorf("%v, %v; token %d", held.Err(), l.Err(), l.Token())
	}
}

func TestInvalidFrameReadByCallerEndsSession(t *testing.T) {
	c, p := listen(t).dial()
	_, locked := lockWhileReading(t, context.Background(), c, p, "a")
	if _, err := p.nc.Write([]byte("\xff\xff\xff\xff")); err != nil {
		t.Error(err)
	}
	_, err := locked()
	wantKind(t, err, ErrUnavailable)
	wantText(t, err, "cannot be understood")
}

// The danger: each of the callers that one read has woken pays for a write of its own.
func TestCallersThatOneReadWokeWriteTogether(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // all of them are woken before the first one runs
	const n = 8
	c, p := listen(t).dial()
	out, writes := c.current.Load().conn.out, 0
	var callers sync.WaitGroup
	for i := range n {
		callers.Go(func() {
			for _, name := range []string{"first", "second"} {
				if _, err := c.Lock(context.Background(), fmt.Sprint(name, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, hold := range []uint64{1, 101} {
		var grants []byte
		for i := range uint64(n) {
			grants = protocol.AcquireOK{ID: expect[protocol.Acquire](p).ID, Token: hold + i, Hold: hold + i, Count: 1, DeadlineNS: inOneHour()}.Append(grants)
		}
		out.mu.Lock()
		if hold > 1 && writes > n/2 {
			t.Errorf("%d requests took %d writes", n, writes)
		}
		writes = 0
		out.w.OnWrite = func() { writes++ }
		out.mu.Unlock()
		if _, err := p.nc.Write(grants); err != nil {
			t.Fatal(err)
		}
	}
	callers.Wait()
}

func TestCallersThatHaveRunAreNotWaitedFor(t *testing.T) {
	_, c := dialFakeSidecar(t)
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for range 100 {
				ctx, cancel := context.WithCancel(context.Background())
				go cancel()
				if l, err := c.Lock(ctx, fmt.Sprint("lock ", i/2)); err == nil {
					_ = l.Unlock()
				}
			}
		})
	}
	callers.Wait()
	if n := c.current.Load().woken.Load(); n != 0 {
		t.Errorf("%d callers are waited for, and all have run", n)
	}
}

// While no caller reads, only the notifier reports that frames arrive.
func TestEventsAreHandledWhileNoCallerReads(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	for hold := uint64(1); hold <= 3; hold++ {
		l := p.lock(c, "a", hold, inOneHour())
		done := l.Done()
		p.send(protocol.LostEvent{Hold: hold, Reason: protocol.ByForce})
		<-done
		wantKind(t, l.Err(), ErrLost)
	}
	held := p.lock(c, "b", 9, inOneHour())
	p.nc.Close()
	p = s.acceptResumed()
	claim, holds := p.expectClaim()
	if holds[9] != 1 {
		t.Errorf("claimed %v", holds)
	}
	p.send(protocol.ClaimOK{ID: claim})
	p.expectNothing(c)
	if err := held.Err(); err != nil {
		t.Error(err)
	}
}

func TestFramesAfterAnswerAreHandled(t *testing.T) {
	c, p := listen(t).dial()
	first := p.lock(c, "first", 1, inOneHour())
	a, locked := lockWhileReading(t, context.Background(), c, p, "a")
	// One write: an answer, a whole event, and half of another one.
	lost := func(hold uint64) []byte {
		return protocol.LostEvent{Hold: hold, Reason: protocol.Stolen}.Append(nil)
	}
	frames := protocol.AcquireOK{ID: a.ID, Token: 7, Hold: 7, Count: 1, DeadlineNS: inOneHour()}.Append(nil)
	frames = append(frames, lost(1)...)
	half := len(lost(7)) / 2
	if _, err := p.nc.Write(append(frames, lost(7)[:half]...)); err != nil {
		t.Fatal(err)
	}
	l, err := locked()
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, first.Err(), ErrLost) // it came after the answer
	if l.Err() != nil {
		t.Error("half of an event was handled")
	}
	done := l.Done()
	if _, err := p.nc.Write(lost(7)[half:]); err != nil {
		t.Fatal(err)
	}
	<-done
	wantKind(t, l.Err(), ErrLost)
}

// Callers that lock, that ping and that give up read for each other.
func TestCallersTakeTurnsReading(t *testing.T) {
	_, c := dialFakeSidecar(t)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			name := fmt.Sprint("lock ", g/2) // two goroutines for each lock
			last := uint64(0)
			for i := range 200 {
				ctx, cancel := context.WithCancel(context.Background())
				if i%3 == 0 {
					go cancel()
				}
				l, err := c.Lock(ctx, name)
				switch {
				case err == nil:
					if l.Name() != name || l.Token() <= last {
						t.Errorf("%q has token %d, after %d of %q", l.Name(), l.Token(), last, name)
					}
					last = l.Token()
					if err := l.Unlock(); err != nil {
						t.Error(err)
					}
				case !errors.Is(err, context.Canceled):
					t.Error(err)
				}
				cancel()
				if i%7 == 0 {
					if _, err := c.Ping(context.Background()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
}

// Callers take the turn and leave it, some of them before they are answered. Then there are no
// calls any more. All losses are reported, before and after that.
func TestLostEventsAreHandledWhileReadersChange(t *testing.T) {
	sidecar, c := dialFakeSidecar(t)
	const n = 8
	for round := range 50 {
		var lost [n]<-chan struct{}
		for i := range lost {
			l, err := c.Lock(context.Background(), fmt.Sprint("lock ", i))
			if err != nil {
				t.Fatal(err)
			}
			lost[i] = l.Done()
		}
		stop := make(chan struct{})
		var callers sync.WaitGroup
		for g := range 4 {
			callers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					ctx, cancel := context.WithCancel(context.Background())
					if i%2 == 0 {
						go cancel()
					}
					if l, err := c.Lock(ctx, fmt.Sprint("of callers ", g/2)); err == nil {
						_ = l.Unlock()
					}
					cancel()
				}
			})
		}
		for i := range lost {
			if i == n/2 {
				close(stop)
			}
			if !sidecar.steal(fmt.Sprint("lock ", i)) {
				t.Fatalf("lock %d is not held", i)
			}
		}
		for i := range lost {
			select {
			case <-lost[i]:
			case <-time.After(10 * time.Second):
				t.Fatalf("round %d: the loss of lock %d was not reported", round, i)
			}
		}
		callers.Wait()
	}
}

// Clients are closed, by two goroutines at once, and their connections end, while other
// goroutines call: every call returns, and no descriptor and no goroutine (see TestMain) is
// left.
func TestCloseAtAnyMomentLeaksNothing(t *testing.T) {
	sidecar := startFakeSidecar(filepath.Join(shortDir(t), "s"))
	descriptors := func() int {
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(open)
	}
	before := descriptors()
	for round := range 40 {
		var users sync.WaitGroup
		var clients []*Client
		for range 3 {
			c, err := Dial(context.Background(), sidecar.path)
			if err != nil {
				t.Fatal(err)
			}
			clients = append(clients, c)
			for g := range 4 {
				users.Go(func() {
					for i := 0; ; i++ {
						if i == round && g < 2 {
							users.Go(func() { c.Close() })
						}
						l, err := c.Lock(context.Background(), fmt.Sprint("lock ", g/2))
						if err == nil {
							err = l.Unlock()
						}
						if err != nil {
							wantKind(t, err, ErrClosed)
							return
						}
					}
				})
			}
		}
		if round%4 == 3 {
			sidecar.disconnectAll()
		}
		users.Wait()
		for _, c := range clients {
			<-c.current.Load().done
		}
	}
	sidecar.stop()
	if sidecar.violation != "" {
		t.Error(sidecar.violation)
	}
	if n := descriptors(); n > before {
		t.Errorf("%d descriptors are open, %d were", n, before)
	}
}

// Two libraries of one program may have a Client each. The race detector sees that the lock
// guards n.
func TestRaceDetectorSeesLockAsSynchronization(t *testing.T) {
	sidecar, one := dialFakeSidecar(t)
	two, err := Dial(context.Background(), sidecar.path)
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	n := 0
	var wg sync.WaitGroup
	for _, c := range []*Client{one, two} {
		wg.Go(func() {
			for range 100 {
				l, err := c.Lock(context.Background(), "n")
				if err != nil {
					t.Error(err)
					return
				}
				n++
				_ = l.Unlock()
			}
		})
	}
	wg.Wait()
	if n != 200 {
		t.Errorf("n is %d", n)
	}
}

// pair returns the two ends of a connection, and the descriptor of the first.
func pair(t *testing.T) (ours, theirs net.Conn, raw syscall.RawConn) {
	t.Helper()
	l, err := net.Listen("unix", shortDir(t)+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if ours, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	if theirs, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	raw, err = ours.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return ours, theirs, raw
}

// A process may have no descriptor left for a notifier.
func TestWithoutNotifierOnlyBackgroundGoroutineReads(t *testing.T) {
	ours, _, raw := pair(t)
	ours.Close()
	in := newSharedReader(ours, raw)
	if in.share() {
		t.Error("there is a notifier for a connection that is closed")
	}
	if in.take() {
		t.Error("a caller can have the turn")
	}
	in.interrupt()
	in.hangUp()
	in.close()
}

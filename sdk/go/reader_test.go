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

// turn returns when somebody has the turn to read what comes from the sidecar, or
// nobody has.
func turn(t *testing.T, c *Client, taken bool) {
	t.Helper()
	s := c.current.Load()
	s.mu.Lock()
	in := s.conn.in
	s.mu.Unlock()
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); runtime.Gosched() {
		in.mu.Lock()
		now := in.phase == turnTaken
		in.mu.Unlock()
		if now == taken {
			return
		}
	}
	t.Fatalf("it is not so that somebody has the turn: %v", taken)
}

// waiting has the client wait for a lock, and read meanwhile.
func waiting(t *testing.T, ctx context.Context, c *Client, p *peer, name string) (protocol.Acquire, func() (*Lock, error)) {
	t.Helper()
	turn(t, c, false)
	locked := async(func() (*Lock, error) { return c.Lock(ctx, name) })
	a := expect[protocol.Acquire](p)
	turn(t, c, true)
	return a, locked
}

func TestACancelledReaderReturnsAndTheOthersAreAnswered(t *testing.T) {
	c, p := listen(t).dial()
	ctx, cancel := context.WithCancel(context.Background())
	_, locked := waiting(t, ctx, c, p, "a")
	others := make(map[string]func() (*Lock, error))
	asked := make(map[string]uint64)
	for _, name := range []string{"b", "c"} {
		others[name] = async(func() (*Lock, error) { return c.Lock(context.Background(), name) })
		asked[name] = expect[protocol.Acquire](p).ID
	}
	cancel()
	mustBe(t, second(locked()), context.Canceled)
	expect[protocol.Cancel](p)
	for i, name := range []string{"c", "b"} {
		p.say(protocol.AcquireOK{ID: asked[name], Token: 1, Hold: uint64(10 + i), Count: 1, DeadlineNS: far()})
		if _, err := others[name](); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// timed is a context whose deadline passes when the test says so.
type timed struct {
	context.Context
	passed chan struct{}
}

func (timed) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }
func (c timed) Done() <-chan struct{}     { return c.passed }

func (c timed) Err() error {
	select {
	case <-c.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestAReaderWhoseTimeIsUpReturns(t *testing.T) {
	c, p := listen(t).dial()
	ctx := timed{context.Background(), make(chan struct{})}
	a, locked := waiting(t, ctx, c, p, "a")
	close(ctx.passed)
	mustBe(t, second(locked()), ErrTimeout)
	if got := expect[protocol.Cancel](p); got.Target != a.ID {
		t.Errorf("sent %+v, want a cancel of %d", got, a.ID)
	}
	p.expectNothing(c)
}

func TestCloseWhileACallerReads(t *testing.T) {
	c, p := listen(t).dial()
	_, locked := waiting(t, context.Background(), c, p, "a")
	closed := async(func() (any, error) { return nil, c.Close() })
	bye := expect[protocol.Bye](p)
	mustBe(t, second(locked()), ErrClosed) // before the sidecar says a word
	p.say(protocol.ByeOK(bye))
	if _, err := closed(); err != nil {
		t.Error(err)
	}
	select {
	case <-c.current.Load().done:
	case <-time.After(10 * time.Second):
		t.Error("the session goes on")
	}
}

// The sidecar has nothing of this client and says nothing: nobody reads, and what is
// closed from here makes no sound by itself.
func TestCloseWhileNobodyReads(t *testing.T) {
	c, p := listen(t).dial()
	turn(t, c, false)
	closed := async(func() (any, error) { return nil, c.Close() })
	expect[protocol.Bye](p)
	if _, err := closed(); err != nil {
		t.Error(err)
	}
	<-c.current.Load().done
}

func TestAConnectionIsCutWhileACallerReads(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, far())
	_, locked := waiting(t, context.Background(), c, p, "a")
	p.nc.Close()
	p = s.again()
	claim, holds := p.claimed()
	if len(holds) != 1 {
		t.Errorf("claimed %v", holds)
	}
	p.say(protocol.ClaimOK{ID: claim})
	p.grant(2, far())
	l, err := locked()
	if err != nil {
		t.Fatal(err)
	}
	if held.Err() != nil || l.Err() != nil || l.Token() != 1002 {
		t.Errorf("%v, %v; token %d", held.Err(), l.Err(), l.Token())
	}
}

func TestWhatACallerReadsEndsTheSessionForAll(t *testing.T) {
	c, p := listen(t).dial()
	_, locked := waiting(t, context.Background(), c, p, "a")
	if _, err := p.nc.Write([]byte("\xff\xff\xff\xff")); err != nil {
		t.Error(err)
	}
	_, err := locked()
	mustBe(t, err, ErrUnavailable)
	says(t, err, "cannot be understood")
}

// Between two calls only the notifier reports that frames arrive.
func TestWhatComesWhileNobodyCallsIsHeard(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	for hold := uint64(1); hold <= 3; hold++ {
		l := p.lock(c, "a", hold, far())
		done := l.Done()
		p.say(protocol.LostEvent{Hold: hold, Reason: protocol.ByForce})
		<-done
		mustBe(t, l.Err(), ErrLost)
	}
	held := p.lock(c, "b", 9, far())
	p.nc.Close()
	p = s.again()
	claim, holds := p.claimed()
	if holds[9] != 1 {
		t.Errorf("claimed %v", holds)
	}
	p.say(protocol.ClaimOK{ID: claim})
	p.expectNothing(c)
	if err := held.Err(); err != nil {
		t.Error(err)
	}
}

func TestWhatCameWithAnAnswerIsBooked(t *testing.T) {
	c, p := listen(t).dial()
	first := p.lock(c, "first", 1, far())
	a, locked := waiting(t, context.Background(), c, p, "a")
	// One write: an answer, a whole event, and half of another one.
	lost := func(hold uint64) []byte {
		return protocol.LostEvent{Hold: hold, Reason: protocol.Stolen}.Append(nil)
	}
	said := protocol.AcquireOK{ID: a.ID, Token: 7, Hold: 7, Count: 1, DeadlineNS: far()}.Append(nil)
	said = append(said, lost(1)...)
	half := len(lost(7)) / 2
	if _, err := p.nc.Write(append(said, lost(7)[:half]...)); err != nil {
		t.Fatal(err)
	}
	l, err := locked()
	if err != nil {
		t.Fatal(err)
	}
	mustBe(t, first.Err(), ErrLost) // nobody read after the answer
	if l.Err() != nil {
		t.Error("half of an event was booked")
	}
	done := l.Done()
	if _, err := p.nc.Write(lost(7)[half:]); err != nil {
		t.Fatal(err)
	}
	<-done
	mustBe(t, l.Err(), ErrLost)
}

// The turn goes round among callers that lock, that ask, and that give up.
func TestTheTurnGoesRound(t *testing.T) {
	_, c := toySidecar(t)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			name := fmt.Sprint("lock ", g/2) // two want each
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

// Callers come, read and go, some of them before they are answered; then nobody calls
// any more. What is lost meanwhile and after that is heard.
func TestWhatIsLostIsHeardWhoeverReads(t *testing.T) {
	toy, c := toySidecar(t)
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
		quiet := make(chan struct{})
		var callers sync.WaitGroup
		for g := range 4 {
			callers.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-quiet:
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
				close(quiet)
			}
			if !toy.rob(fmt.Sprint("lock ", i)) {
				t.Fatalf("lock %d is not held", i)
			}
		}
		for i := range lost {
			select {
			case <-lost[i]:
			case <-time.After(10 * time.Second):
				t.Fatalf("round %d: nobody heard that lock %d was lost", round, i)
			}
		}
		callers.Wait()
	}
}

// Clients are closed, by two at once, and their connections cut, while others call:
// everybody is told, and neither descriptors nor, as TestMain sees, goroutines are left.
func TestClientsAreClosedAtAnyMoment(t *testing.T) {
	toy := startToy(filepath.Join(shortDir(t), "s"))
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
			c, err := Dial(context.Background(), toy.path)
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
							mustBe(t, err, ErrClosed)
							return
						}
					}
				})
			}
		}
		if round%4 == 3 {
			toy.cut()
		}
		users.Wait()
		for _, c := range clients {
			<-c.current.Load().done
		}
	}
	toy.stop()
	if toy.fault != "" {
		t.Error(toy.fault)
	}
	if n := descriptors(); n > before {
		t.Errorf("%d descriptors are open, %d were", n, before)
	}
}

// Two libraries of one program may have a client each: the race detector sees that the
// lock guards n.
func TestTheRaceDetectorSeesWhatALockGuards(t *testing.T) {
	toy, one := toySidecar(t)
	two, err := Dial(context.Background(), toy.path)
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

// pair returns two ends of a connection, and how the first one is waited for.
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

// The process may have no descriptor left for a notifier.
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

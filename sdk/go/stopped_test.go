//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// stoppedClient is a Client that does not read, as while its process is stopped, and whose
// clock goes on meanwhile.
type stoppedClient struct {
	c       *Client
	p       *peer
	stopped atomic.Int64 // for how long
}

// stopClient dials a Client, acquires locks with that lease, and takes the turn to read.
func stopClient(t *testing.T, lease time.Duration, names ...string) (*stoppedClient, []*Lock) {
	s := &stoppedClient{}
	sidecar := listen(t)
	s.c = newClient(dialer{path: sidecar.path, name: "test", connect: connectUnix, clock: s.clock, watchPeriod: time.Hour})
	peers := make(chan *peer, 1)
	go func() {
		p := sidecar.accept()
		p.answerHello()
		peers <- p
	}()
	if err := s.c.dial(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.p = <-peers
	t.Cleanup(func() { sidecar.closeClient(s.c) })
	var locks []*Lock
	for i, name := range names {
		locks = append(locks, s.p.lock(s.c, name, uint64(i+1), protocol.Now()+int64(lease)))
	}
	in := s.reader()
	for !in.take() {
		runtime.Gosched() // until the caller of the last Lock has left the turn
	}
	return s, locks
}

func (s *stoppedClient) clock() int64 { return protocol.Now() + s.stopped.Load() }

func (s *stoppedClient) reader() *sharedReader {
	session := s.c.current.Load()
	session.mu.Lock()
	defer session.mu.Unlock()
	return session.conn.in
}

// checks are all operations that may find that a deadline has passed. Each returns nil if the
// lock is held.
var checks = map[string]func(s *stoppedClient, l *Lock) error{
	"Err":    func(_ *stoppedClient, l *Lock) error { return l.Err() },
	"Unlock": func(_ *stoppedClient, l *Lock) error { return l.Unlock() },
	"Done": func(s *stoppedClient, l *Lock) error {
		select {
		case <-l.Done():
			return errors.New("Done is closed")
		default:
			return nil
		}
	},
	"Context": func(_ *stoppedClient, l *Lock) error {
		ctx, stop := l.Context(context.Background())
		defer stop()
		return context.Cause(ctx)
	},
	"Deadline": func(s *stoppedClient, l *Lock) error {
		if left := time.Until(l.Deadline()); left <= 0 {
			return errors.New("the deadline has passed")
		}
		return nil
	},
	"the alarm": func(s *stoppedClient, l *Lock) error {
		s.c.current.Load().onAlarm()
		return l.hold.cause
	},
}

// A client that was stopped until after a deadline reads what has arrived before it decides.
func TestStoppedClientReadsBeforeLockExpires(t *testing.T) {
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			s, locks := stopClient(t, time.Minute, "renewed", "lost", "not renewed")
			done := locks[0].Done()
			s.stopped.Store(int64(2 * time.Minute))
			s.p.send(protocol.LostEvent{Hold: 2, Reason: protocol.Deleted})
			s.p.send(protocol.LeaseEvent{DeadlineNS: s.clock() + int64(time.Minute)})
			result := async(func() (struct{}, error) { return struct{}{}, check(s, locks[0]) })
			s.reader().leave() // the process goes on
			if _, err := result(); err != nil {
				t.Errorf("a lock that was renewed meanwhile: %v", err)
			}
			var lost *LostError
			if err := locks[1].Err(); !errors.As(err, &lost) || lost.Reason != ReasonDeleted {
				t.Errorf("a lock that was lost meanwhile: %v", err)
			}
			if name != "Unlock" {
				select {
				case <-done:
					t.Error("the loss of a lock that is held was reported")
				default:
				}
			}
		})
	}
}

// If nothing has arrived the lock is lost, and nothing that arrives later changes that.
func TestStoppedClientLosesLockThatWasNotRenewed(t *testing.T) {
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			s, locks := stopClient(t, time.Minute, "a")
			done := locks[0].Done()
			s.stopped.Store(int64(2 * time.Minute))
			result := async(func() (struct{}, error) { return struct{}{}, check(s, locks[0]) })
			s.reader().leave()
			if _, err := result(); err == nil {
				t.Error("the lock is held")
			}
			// What arrives now is too late.
			if name != "Deadline" { // which does not end the hold
				s.p.send(protocol.LeaseEvent{DeadlineNS: s.clock() + int64(time.Minute)})
			}
			var lost *LostError
			if err := locks[0].Err(); !errors.As(err, &lost) || lost.Reason != ReasonExpired {
				t.Errorf("the error is %v", err)
			}
			<-done
		})
	}
}

// A grant whose caller has left is released by the goroutine that reads it, which cannot read
// more meanwhile.
func TestLateGrantIsReleasedAfterItsDeadline(t *testing.T) {
	c, p := listen(t).dial()
	ctx, cancel := context.WithCancel(context.Background())
	_, locked := lockWhileReading(t, ctx, c, p, "a")
	cancel()
	wantKind(t, errOf(locked()), context.Canceled)
	target := expect[protocol.Cancel](p).Target
	p.send(protocol.AcquireOK{ID: target, Token: 1, Hold: 7, Count: 1, DeadlineNS: protocol.Now() - 1})
	if r := expect[protocol.Release](p); r.Hold != 7 {
		t.Errorf("released %d", r.Hold)
	}
}

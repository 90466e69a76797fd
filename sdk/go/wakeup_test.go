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

// stopped is a Client that does not read, as while its process is stopped, and a clock that
// goes on meanwhile.
type stopped struct {
	t      *testing.T
	c      *Client
	p      *peer
	asleep atomic.Int64
}

// stop dials a Client, has it hold locks with that lease, and takes the turn to read from it.
func stop(t *testing.T, lease time.Duration, names ...string) (*stopped, []*Lock) {
	s := &stopped{t: t}
	script := listen(t)
	s.c = &Client{dialer: dialer{path: script.path, name: "test", connect: connectUnix, clock: s.clock}, patience: defaultPatience}
	peers := make(chan *peer, 1)
	go func() {
		p := script.accept()
		p.greet()
		peers <- p
	}()
	if err := s.c.dial(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.p = <-peers
	t.Cleanup(func() { script.bury(s.c) })
	var locks []*Lock
	for i, name := range names {
		locks = append(locks, s.p.lock(s.c, name, uint64(i+1), protocol.Now()+int64(lease)))
	}
	in := s.inbox()
	for !in.take() {
		runtime.Gosched() // until the reader of the last grant has left
	}
	return s, locks
}

func (s *stopped) clock() int64 { return protocol.Now() + s.asleep.Load() }

func (s *stopped) inbox() *sharedReader {
	session := s.c.current.Load()
	session.mu.Lock()
	defer session.mu.Unlock()
	return session.conn.in
}

// checks are all that may find that a deadline has passed. Each returns nil if the lock is
// held.
var checks = map[string]func(s *stopped, l *Lock) error{
	"Err":    func(_ *stopped, l *Lock) error { return l.Err() },
	"Unlock": func(_ *stopped, l *Lock) error { return l.Unlock() },
	"Done": func(s *stopped, l *Lock) error {
		select {
		case <-l.Done():
			return errors.New("Done is closed")
		default:
			return nil
		}
	},
	"Context": func(_ *stopped, l *Lock) error {
		ctx, stop := l.Context(context.Background())
		defer stop()
		return context.Cause(ctx)
	},
	"Deadline": func(s *stopped, l *Lock) error {
		if left := time.Until(l.Deadline()); left <= 0 {
			return errors.New("the deadline has passed")
		}
		return nil
	},
	"the alarm": func(s *stopped, l *Lock) error {
		s.c.current.Load().onAlarm()
		return l.hold.cause
	},
}

// A client that was stopped past a deadline reads what has arrived before the deadline counts.
func TestStoppedClientReadsBeforeItsDeadlineCounts(t *testing.T) {
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			s, locks := stop(t, time.Minute, "renewed", "lost", "fixed by now")
			watch := locks[0].Done()
			s.asleep.Store(int64(2 * time.Minute))
			s.p.say(protocol.LostEvent{Hold: 2, Reason: protocol.Deleted})
			s.p.say(protocol.LeaseEvent{DeadlineNS: s.clock() + int64(time.Minute)})
			result := async(func() (struct{}, error) { return struct{}{}, check(s, locks[0]) })
			in := s.inbox()
			in.leave() // it goes on
			if _, err := result(); err != nil {
				t.Errorf("a lock that was renewed meanwhile: %v", err)
			}
			var lost *LostError
			if err := locks[1].Err(); !errors.As(err, &lost) || lost.Reason != ReasonDeleted {
				t.Errorf("a lock that was lost meanwhile: %v", err)
			}
			if name != "Unlock" {
				select {
				case <-watch:
					t.Error("the loss of a lock that is held was reported")
				default:
				}
			}
		})
	}
}

// If nothing has arrived, the deadline counts, once and for all.
func TestStoppedClientLosesWhatWasNotRenewed(t *testing.T) {
	for name, check := range checks {
		t.Run(name, func(t *testing.T) {
			s, locks := stop(t, time.Minute, "a")
			watch := locks[0].Done()
			s.asleep.Store(int64(2 * time.Minute))
			result := async(func() (struct{}, error) { return struct{}{}, check(s, locks[0]) })
			s.inbox().leave()
			if _, err := result(); err == nil {
				t.Error("it is held")
			}
			// What arrives now is too late.
			if name != "Deadline" { // which does not end the hold
				s.p.say(protocol.LeaseEvent{DeadlineNS: s.clock() + int64(time.Minute)})
			}
			var lost *LostError
			if err := locks[0].Err(); !errors.As(err, &lost) || lost.Reason != ReasonExpired {
				t.Errorf("it ended with %v", err)
			}
			<-watch
		})
	}
}

// A grant whose caller has given up is released by the goroutine that reads it, which cannot
// read more meanwhile.
func TestLateGrantIsGivenBackThoughItsDeadlineHasPassed(t *testing.T) {
	c, p := listen(t).dial()
	ctx, cancel := context.WithCancel(context.Background())
	_, locked := waiting(t, ctx, c, p, "a")
	cancel()
	mustBe(t, second(locked()), context.Canceled)
	cancelled := expect[protocol.Cancel](p)
	p.say(protocol.AcquireOK{ID: cancelled.Target, Token: 1, Hold: 7, Count: 1, DeadlineNS: protocol.Now() - 1})
	if r := expect[protocol.Release](p); r.Hold != 7 {
		t.Errorf("released %d", r.Hold)
	}
}

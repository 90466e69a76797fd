package main

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
)

// An op takes or drops one lock.
type op struct {
	drop bool
	name string
	num  uint64 // of the hold
}

// locks is one way to have Redis carry out operations.
type locks interface {
	// do returns when the operation of a caller is carried out. A caller has one
	// operation at a time.
	do(caller int, o op) error
	close()
}

// load is callers that take and drop locks, one operation after the other.
type load struct {
	locks   locks
	callers int
	ops     atomic.Int64 // carried out
	stopped atomic.Bool
	running sync.WaitGroup
	failed  chan error // room for one of each caller
}

// lockName is the lock of a caller.
func lockName(caller int) string { return "clients:" + strconv.Itoa(caller) }

func newLoad(l locks, callers int) *load {
	return &load{locks: l, callers: callers, failed: make(chan error, callers)}
}

func (l *load) start() {
	for caller := range l.callers {
		l.running.Go(func() {
			if err := l.run(caller); err != nil {
				l.failed <- err
			}
		})
	}
}

func (l *load) run(caller int) error {
	name := lockName(caller)
	for num := uint64(1); !l.stopped.Load(); num++ {
		for _, drop := range []bool{false, true} {
			if err := l.locks.do(caller, op{drop, name, num}); err != nil {
				return fmt.Errorf("drop %v of hold %d of %s: %w", drop, num, name, err)
			}
			l.ops.Add(1)
		}
	}
	return nil
}

// stop returns when all callers have ended.
func (l *load) stop() error {
	l.stopped.Store(true)
	l.running.Wait()
	close(l.failed)
	var all []error
	for err := range l.failed {
		all = append(all, err)
	}
	return errors.Join(all...)
}

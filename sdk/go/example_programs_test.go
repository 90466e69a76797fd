//go:build linux

package locksidecar_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// A pool of workers, here or on several hosts, that may be given one job twice. A worker skips
// a job that another one has, and does not wait for it.
func Example_workerPool() {
	c, err := locksidecar.Dial(context.Background(), "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	var atWork, done, skipped atomic.Int32
	work := func(ctx context.Context, job int) (err error) {
		l, err := c.TryLock(ctx, fmt.Sprintf("job:%d", job))
		if errors.Is(err, locksidecar.ErrHeld) {
			skipped.Add(1)
			return nil
		}
		if err != nil {
			return err // it is not known whether another worker has it: the queue delivers it again
		}
		defer func() { err = errors.Join(err, l.Unlock()) }() // ErrLost, if it was lost
		ctx, stop := l.Context(ctx)                           // ends when the lock is lost
		defer stop()
		if atWork.Add(1) != 1 {
			fmt.Println("two workers have the job")
		}
		defer atWork.Add(-1)
		// The database gets l.Token() before anything is read, and checks it in each later write. It
		// also has which jobs are done: a lock is free again after the work.
		done.Add(1)
		return ctx.Err()
	}

	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			if err := work(context.Background(), 7); err != nil {
				fmt.Println(err)
			}
		})
	}
	workers.Wait()
	fmt.Println(done.Load() >= 1, done.Load()+skipped.Load())
	// Output: true 4
}

// A job that cron starts on every host at one time, and that only one of them runs. The lock
// stays held for ten minutes, also after Unlock and after the program has ended. Without that, a
// host whose clock is behind would find the lock free again.
func Example_cronJob() {
	c, err := locksidecar.Dial(context.Background(), "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	runOnce := func(ctx context.Context, name string, job func(context.Context) error) error {
		const window = 10 * time.Minute // longer than the clocks differ, shorter than the interval
		l, err := c.TryLock(ctx, "cron:"+name, locksidecar.WithKeep(window))
		if errors.Is(err, locksidecar.ErrHeld) {
			fmt.Println("another host runs", name)
			return nil
		}
		if err != nil {
			return err
		}
		ctx, stop := l.Context(ctx) // a job that loses the lock is cancelled
		defer stop()
		return errors.Join(job(ctx), l.Unlock())
	}

	report := func(context.Context) error { fmt.Println("reporting"); return nil }
	for range 2 { // as on two hosts
		if err := runOnce(context.Background(), "report", report); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// reporting
	// another host runs report
}

// One leader among the programs of all hosts. When it dies, another one leads within
// milliseconds. A leader that loses the lock stops to lead and waits for it again.
func Example_leader() {
	c, err := locksidecar.Dial(context.Background(), "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	campaign := func(ctx context.Context, lead func(ctx context.Context, term uint64)) error {
		for {
			l, err := c.Lock(ctx, "leader")
			switch {
			case ctx.Err() != nil:
				if err == nil {
					err = l.Unlock()
				}
				return err
			case errors.Is(err, locksidecar.ErrUnavailable):
				continue // Lock has waited for the sidecar, or for Redis
			case err != nil:
				return err
			}
			leading, stop := l.Context(ctx)
			lead(leading, l.Token())
			stop()
			// A leader that was lost is replaced already; one that has given up lets another
			// one lead.
			if err := l.Unlock(); err != nil && !errors.Is(err, locksidecar.ErrLost) {
				return err
			}
		}
	}

	ctx, shutDown := context.WithCancel(context.Background())
	terms := 0
	var last uint64
	err = campaign(ctx, func(ctx context.Context, term uint64) {
		fmt.Println("leading, with a larger term:", term > last)
		last = term
		if terms++; terms == 1 {
			_, _ = c.ForceRelease(context.Background(), "leader") // an operator ends the term
		} else {
			shutDown()
		}
		<-ctx.Done()
	})
	fmt.Println(errors.Is(err, context.Canceled))
	// Output:
	// leading, with a larger term: true
	// leading, with a larger term: true
	// true
}

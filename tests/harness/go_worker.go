package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// workerRole is the role of a worker that uses the Go SDK.
const workerRole = "worker"

// goWorker is the state of the worker process that uses the Go SDK.
type goWorker struct {
	client *locksidecar.Client

	mu       sync.Mutex // guards what follows
	locks    map[string]*locksidecar.Lock
	stopPoll context.CancelFunc // ends the last poll
	out      *json.Encoder
}

func runWorker() int {
	client, err := locksidecar.Dial(context.Background(), "")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	w := &goWorker{client: client, locks: map[string]*locksidecar.Lock{}, out: json.NewEncoder(os.Stdout)}
	in := json.NewDecoder(os.Stdin)
	for {
		var c Command
		if err := in.Decode(&c); err != nil {
			return 0 // the test has ended
		}
		go func() {
			a := w.do(c)
			a.N = c.N
			w.mu.Lock()
			defer w.mu.Unlock()
			w.out.Encode(a)
		}()
	}
}

func (w *goWorker) do(c Command) Answer {
	ctx := context.Background()
	switch c.Do {
	case "lock":
		l, err := w.lock(ctx, c, c.Name)
		if err != nil {
			return failed(err)
		}
		w.mu.Lock()
		w.locks[c.As] = l
		w.mu.Unlock()
		return Answer{Token: l.Token(), AtNS: protocol.Now()}
	case "unlock":
		var options []locksidecar.UnlockOption
		if c.Confirm {
			options = append(options, locksidecar.Confirmed(ctx))
		}
		return failed(w.handle(c.As).Unlock(options...))
	case "check":
		return failed(w.handle(c.As).Err())
	case "lost":
		l := w.handle(c.As)
		<-l.Done()
		a := failed(l.Err())
		a.AtNS = protocol.Now()
		a.DeadlineNS = a.AtNS + int64(time.Until(l.Deadline()))
		return a
	case "lock_many":
		for i := range c.Count {
			name := fmt.Sprintf("%s%d", c.Name, i)
			l, err := w.lock(ctx, c, name)
			if err != nil {
				return failed(err)
			}
			w.mu.Lock()
			w.locks[name] = l
			w.mu.Unlock()
		}
		return Answer{}
	case "hammer":
		return w.hammer(ctx, c)
	case "hammer_forever":
		for {
			l, err := w.client.Lock(ctx, c.Name)
			if err != nil {
				return failed(err)
			}
			if err := l.Unlock(); err != nil {
				return failed(err)
			}
		}
	case "poll":
		return w.poll(ctx, c)
	case "stop":
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopPoll()
		return Answer{}
	case "pairs":
		return w.pairs(ctx, c)
	}
	return Answer{Err: "unknown", Msg: c.Do}
}

// poll acquires and releases. After a refusal it tries again a millisecond later.
func (w *goWorker) poll(ctx context.Context, c Command) Answer {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.ForMS)*time.Millisecond)
	defer cancel()
	w.mu.Lock()
	w.stopPoll = cancel
	w.mu.Unlock()
	var a Answer
	asked := time.Now()
	for ctx.Err() == nil && (c.Count == 0 || a.Grants < c.Count) {
		a.Tries++
		l, err := w.lock(ctx, c, c.Name)
		switch {
		case err == nil:
			a.LongestNS = max(a.LongestNS, int64(time.Since(asked)))
			a.Grants++
			if err := l.Unlock(); err != nil {
				return failed(err)
			}
			time.Sleep(time.Duration(c.Pause) * time.Millisecond)
			asked = time.Now()
		case ctx.Err() == nil && !errors.Is(err, locksidecar.ErrHeld) && !errors.Is(err, locksidecar.ErrTimeout) && !isUnanswered(c, err):
			return failed(err)
		default:
			time.Sleep(time.Millisecond)
		}
	}
	a.LongestNS = max(a.LongestNS, int64(time.Since(asked)))
	return a
}

// isUnanswered reports whether Redis was silent for as long as a try waits.
func isUnanswered(c Command, err error) bool {
	return c.WaitMS == 0 && errors.Is(err, locksidecar.ErrUnavailable)
}

// pairs acquires and releases with Count goroutines, for WaitMS.
func (w *goWorker) pairs(ctx context.Context, c Command) Answer {
	end := time.Now().Add(time.Duration(c.WaitMS) * time.Millisecond)
	each := make([][]int64, c.Count)
	errs := make([]error, c.Count)
	var wg sync.WaitGroup
	for i := range c.Count {
		name := c.Name
		if !c.Shared {
			name += fmt.Sprintf(":%d", i)
		}
		wg.Go(func() {
			names := []string{name}
			for n := 1; c.Many && n < 100; n++ {
				names = append(names, fmt.Sprintf("%s:%d", name, n))
			}
			for asked, n := time.Now(), 0; asked.Before(end); asked, n = time.Now(), n+1 {
				l, err := w.client.Lock(ctx, names[n%len(names)])
				if err == nil {
					each[i] = append(each[i], int64(time.Since(asked)))
					err = l.Unlock()
				}
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	a := failed(errors.Join(errs...))
	a.Waits = slices.Concat(each...)
	return a
}

func (w *goWorker) lock(ctx context.Context, c Command, name string) (*locksidecar.Lock, error) {
	var opts []locksidecar.Option
	if c.Lease > 0 {
		opts = append(opts, locksidecar.WithLease(time.Duration(c.Lease)*time.Millisecond))
	}
	if c.Hold > 0 {
		opts = append(opts, locksidecar.WithMaxHold(time.Duration(c.Hold)*time.Millisecond))
	}
	switch {
	case c.WaitMS == 0:
		return w.client.TryLock(ctx, name, opts...)
	case c.WaitMS > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.WaitMS)*time.Millisecond)
		defer cancel()
	}
	return w.client.Lock(ctx, name, opts...)
}

func (w *goWorker) handle(as string) *locksidecar.Lock {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.locks[as]
}

// hammer increments a counter Count times by reading it and writing the value plus one.
// Without mutual exclusion, increments are lost.
func (w *goWorker) hammer(ctx context.Context, c Command) Answer {
	counter := redis.NewClient(&redis.Options{Network: "unix", Addr: c.Redis, ClientName: "counter", PoolSize: 1})
	defer counter.Close()
	var a Answer
	for range c.Count {
		l, err := w.lock(ctx, c, c.Name)
		if err != nil {
			return failed(err)
		}
		n, err := counter.Get(ctx, c.Key).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return failed(err)
		}
		if err := counter.Set(ctx, c.Key, n+1, 0).Err(); err != nil {
			return failed(err)
		}
		a.Rounds = append(a.Rounds, Round{Value: n, Token: l.Token()})
		if err := l.Unlock(); err != nil {
			return failed(err)
		}
	}
	return a
}

// failed returns the answer for an error; nil: the command has succeeded.
func failed(err error) Answer {
	if err == nil {
		return Answer{}
	}
	a := Answer{Err: "other", Msg: err.Error()}
	if lost := (*locksidecar.LostError)(nil); errors.As(err, &lost) {
		a.Reason = string(lost.Reason)
	}
	for _, e := range []struct {
		is   error
		name string
	}{
		{locksidecar.ErrUnconfirmed, "unconfirmed"}, {locksidecar.ErrHeld, "held"}, {locksidecar.ErrLost, "lost"}, {locksidecar.ErrNotHeld, "not_held"},
		{locksidecar.ErrDeadlock, "deadlock"}, {locksidecar.ErrUnavailable, "unavailable"},
		{locksidecar.ErrClosed, "closed"}, {locksidecar.ErrDenied, "denied"}, {locksidecar.ErrTimeout, "timeout"},
	} {
		if errors.Is(err, e.is) {
			a.Err = e.name
			break
		}
	}
	return a
}

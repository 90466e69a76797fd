// Command driver lets `locksidecar conform` play its scenes to the Go SDK. docs/conformance.md
// describes what it reads and writes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type command struct {
	N            int    `json:"n"`
	Do           string `json:"do"`
	Socket       string `json:"socket"`
	As           string `json:"as"`
	Name         string `json:"name"`
	WaitMS       *int64 `json:"wait_ms"`
	LeaseMS      int64  `json:"lease_ms"`
	MaxHoldMS    int64  `json:"max_hold_ms"`
	CrashDelayMS int64  `json:"crash_delay_ms"`
	KeepMS       int64  `json:"keep_ms"`
	Owner        int    `json:"owner"`
	Mode         string `json:"mode"`
	Permits      int    `json:"permits"`
	Of           int    `json:"of"`
	Target       int    `json:"target"`
	Confirm      bool   `json:"confirm"`
}

type object map[string]any

var output sync.Mutex

func print(o object) {
	line, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	fmt.Printf("%s\n", line)
}

// driver is a client, from open to close, with its handles.
type driver struct {
	client *locksidecar.Client

	mu      sync.Mutex
	handles map[string]handle
	owners  map[int]context.Context
	cancels map[int]context.CancelFunc
	ended   bool // another scene has begun
}

// handle is a Lock or a Permit.
type handle interface {
	Done() <-chan struct{}
	Err() error
}

func newDriver() *driver {
	return &driver{handles: map[string]handle{}, owners: map[int]context.Context{}, cancels: map[int]context.CancelFunc{}}
}

func main() {
	print(object{"driver": "go/" + locksidecar.Version, "features": []string{
		"resume", "owners", "concurrent", "cancel", "limit", "confirm", "lease", "max_hold", "crash_delay", "keep", "read_write", "permits", "notify",
	}})
	d := newDriver()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, "driver:", err)
			os.Exit(64)
		}
		switch c.Do {
		case "open":
			d.end()
			d = newDriver()
			d.open(c)
		case "close":
			go d.close(c)
		case "acquire":
			ctx := d.contextOf(c)
			go d.acquire(ctx, c)
		case "cancel":
			d.mu.Lock()
			cancel := d.cancels[c.Target]
			d.mu.Unlock()
			cancel()
			print(object{"n": c.N, "ok": true})
		case "downgrade":
			go d.downgrade(c)
		case "release":
			go d.release(c)
		case "check":
			go d.check(c)
		}
	}
}

// end keeps the losses of this scene out of the next one: their goroutines may still wait for a processor.
func (d *driver) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
}

func (d *driver) open(c command) {
	client, err := locksidecar.Dial(context.Background(), c.Socket)
	if err != nil {
		print(failure(c.N, err))
		return
	}
	d.client = client
	print(object{"n": c.N, "ok": true})
}

func (d *driver) close(c command) {
	_ = d.client.Close()
	print(object{"n": c.N, "ok": true})
}

// contextOf returns the context of an acquire: with its owner, its limit, and its cancel.
func (d *driver) contextOf(c command) context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx := context.Background()
	if c.Owner != 0 {
		if d.owners[c.Owner] == nil {
			d.owners[c.Owner] = locksidecar.NewOwner(ctx)
		}
		ctx = d.owners[c.Owner]
	}
	var cancel context.CancelFunc
	if c.WaitMS != nil && *c.WaitMS > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*c.WaitMS)*time.Millisecond)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	d.cancels[c.N] = cancel
	return ctx
}

func (d *driver) acquire(ctx context.Context, c command) {
	var options []locksidecar.Option
	if c.LeaseMS != 0 {
		options = append(options, locksidecar.WithLease(time.Duration(c.LeaseMS)*time.Millisecond))
	}
	if c.MaxHoldMS != 0 {
		options = append(options, locksidecar.WithMaxHold(time.Duration(c.MaxHoldMS)*time.Millisecond))
	}
	if c.KeepMS != 0 {
		options = append(options, locksidecar.WithKeep(time.Duration(c.KeepMS)*time.Millisecond))
	}
	if c.CrashDelayMS != 0 {
		options = append(options, locksidecar.WithCrashDelay(time.Duration(c.CrashDelayMS)*time.Millisecond))
	}
	h, answer, err := d.acquireHandle(ctx, c, options)
	if err != nil {
		print(failure(c.N, err))
		return
	}
	d.mu.Lock()
	d.handles[c.As] = h
	d.mu.Unlock()
	done := h.Done()
	print(answer)
	<-done
	d.mu.Lock()
	defer d.mu.Unlock()
	var lost *locksidecar.LostError
	if errors.As(h.Err(), &lost) && !d.ended {
		print(object{"lost": c.As, "reason": lost.Reason})
	}
}

// acquireHandle acquires a lock, or permits, and returns the answer to the command.
func (d *driver) acquireHandle(ctx context.Context, c command, options []locksidecar.Option) (handle, object, error) {
	isTry := c.WaitMS != nil && *c.WaitMS == 0
	answer := object{"n": c.N, "ok": true}
	if c.Of != 0 {
		semaphore := d.client.Semaphore(c.Name, c.Of)
		acquire := semaphore.Acquire
		if isTry {
			acquire = semaphore.TryAcquire
		}
		p, err := acquire(ctx, max(c.Permits, 1), options...)
		return p, answer, err
	}
	acquire, try := d.client.Lock, d.client.TryLock
	switch c.Mode {
	case "shared":
		acquire, try = d.client.RLock, d.client.TryRLock
	case "exclusive":
		acquire, try = d.client.WLock, d.client.TryWLock
	}
	if isTry {
		acquire = try
	}
	l, err := acquire(ctx, c.Name, options...)
	if err == nil {
		answer["token"] = fmt.Sprint(l.Token())
		if c.Mode != "" {
			answer["shared"] = l.Shared()
		}
	}
	return l, answer, err
}

func (d *driver) handle(c command) handle {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.handles[c.As]
}

func (d *driver) downgrade(c command) {
	l, _ := d.handle(c).(*locksidecar.Lock)
	if err := l.Downgrade(context.Background()); err != nil {
		print(failure(c.N, err))
		return
	}
	print(object{"n": c.N, "ok": true})
}

func (d *driver) release(c command) {
	var options []locksidecar.UnlockOption
	if c.Confirm {
		options = append(options, locksidecar.Confirmed(context.Background()))
	}
	var err error
	switch h := d.handle(c).(type) {
	case *locksidecar.Lock:
		err = h.Unlock(options...)
	case *locksidecar.Permit:
		err = h.Release(options...)
	}
	if err != nil {
		print(failure(c.N, err))
		return
	}
	print(object{"n": c.N, "ok": true})
}

func (d *driver) check(c command) {
	err := d.handle(c).Err()
	if err == nil {
		print(object{"n": c.N, "held": true})
		return
	}
	f := failure(c.N, err)
	f["held"] = false
	print(f)
}

// failure is the answer to a command that failed. The first kind that fits counts: an
// unconfirmed release has its cause, too.
func failure(n int, err error) object {
	o := object{"n": n, "error": "other", "msg": err.Error()}
	for _, kind := range []struct {
		err  error
		name string
	}{
		{locksidecar.ErrUnconfirmed, "unconfirmed"}, {locksidecar.ErrUnavailable, "unavailable"},
		{locksidecar.ErrHeld, "timeout"}, {locksidecar.ErrTimeout, "timeout"}, {context.Canceled, "canceled"},
		{locksidecar.ErrDeadlock, "deadlock"}, {locksidecar.ErrDenied, "denied"}, {locksidecar.ErrLimit, "limit"},
		{locksidecar.ErrUnsupported, "unsupported"}, {locksidecar.ErrLost, "lost"}, {locksidecar.ErrNotHeld, "not_held"},
		{locksidecar.ErrClosed, "closed"},
	} {
		if errors.Is(err, kind.err) {
			o["error"] = kind.name
			break
		}
	}
	var lost *locksidecar.LostError
	if errors.As(err, &lost) {
		o["reason"] = lost.Reason
	}
	return o
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// lockFlags are the lock, or the permits, and how they are acquired: what the commands that hold
// them have in common.
type lockFlags struct {
	socketFlag
	RW         bool           `name:"rw" help:"Take a read/write lock exclusive, to write."`
	Shared     bool           `help:"Take a read/write lock shared, to read beside others."`
	Of         *int           `help:"Take permits of a semaphore that has this many over all hosts, not a lock." placeholder:"N"`
	Permits    *int           `help:"How many permits to take, with --of (default: 1)." placeholder:"N"`
	Wait       *time.Duration `help:"How long to wait for the lock; 0: try once (default: forever)." placeholder:"DURATION"`
	Lease      time.Duration  `help:"Hold the lock for at most this long, unrenewed (default: renewed until it is released)." placeholder:"DURATION"`
	MaxHold    time.Duration  `help:"End the hold when it has lasted this long." placeholder:"DURATION"`
	CrashDelay time.Duration  `help:"If this program is killed, keep the lock this much longer." placeholder:"DURATION"`
	Keep       time.Duration  `help:"Keep the lock held until this long after it was acquired, however this program ends: for a job that all hosts start at one time." placeholder:"DURATION"`
	Fair       bool           `help:"Strict order between hosts: such commands get the lock in the order in which their requests reach Redis."`

	Name string `arg:"" help:"The lock, the read/write lock, or the semaphore."`
}

// held is the lock, or the permits, that a command holds.
type held struct {
	handle
	what    string // in messages
	release func(...locksidecar.UnlockOption) error
}

// handle is what locksidecar.Lock and locksidecar.Permit have in common.
type handle interface {
	Token() uint64
	Deadline() time.Time
	Err() error
	Done() <-chan struct{}
}

const longestDuration = protocol.MaxDurationMS * time.Millisecond

func (c *lockFlags) Validate() error {
	if err := cmp.Or(
		checkDuration("lease", c.Lease, protocol.MinLeaseMS*time.Millisecond, longestDuration),
		checkDuration("max-hold", c.MaxHold, time.Millisecond, longestDuration),
		checkDuration("crash-delay", c.CrashDelay, 0, protocol.MaxCrashDelayMS*time.Millisecond),
		checkDuration("keep", c.Keep, 0, protocol.MaxKeepMS*time.Millisecond),
		c.checkReadWrite(),
		c.checkPermits(),
		protocol.CheckName(c.Name),
	); err != nil {
		return err
	}
	if c.Wait != nil && *c.Wait < 0 {
		return errors.New("--wait must not be negative; leave it out to wait forever")
	}
	return nil
}

// checkReadWrite returns an error if the flags of a read/write lock do not fit the others.
func (c *lockFlags) checkReadWrite() error {
	switch {
	case c.RW && c.Shared:
		return errors.New("--rw takes the lock to write, and --shared to read: leave one out")
	case (c.RW || c.Shared) && (c.Of != nil || c.Permits != nil):
		return errors.New("--rw and --shared are for a read/write lock, and --of and --permits for a semaphore: a name is one of them")
	case c.Shared && c.Keep > 0:
		return errors.New("--keep is for exclusive locks, and shared ones end with their hold; leave it or --shared out")
	}
	return nil
}

// checkPermits returns an error if the flags of a semaphore do not fit each other, or those of locks.
func (c *lockFlags) checkPermits() error {
	switch {
	case c.Of == nil && c.Permits == nil:
	case c.Of == nil:
		return errors.New("--permits is for a semaphore: add --of, which is how many permits it has over all hosts")
	case *c.Of < 1 || *c.Of > protocol.MaxPermits:
		return fmt.Errorf("--of %d: choose 1 to %d", *c.Of, protocol.MaxPermits)
	case c.permits() < 1 || c.permits() > *c.Of:
		return fmt.Errorf("--permits %d: choose 1 to %d, which is --of", c.permits(), *c.Of)
	case c.Keep > 0:
		return errors.New("--keep is for locks, and permits end with their hold; leave it or --of out")
	case c.Fair:
		return errors.New("--fair is for locks, and permits are always granted in the order of their requests; leave it out")
	}
	return nil
}

// permits returns how many permits to take; 0: a lock.
func (c *lockFlags) permits() int {
	switch {
	case c.Of == nil:
		return 0
	case c.Permits == nil:
		return 1
	}
	return *c.Permits
}

// what is what is acquired, in messages.
func (c *lockFlags) what() string {
	if n := c.permits(); n != 0 {
		return fmt.Sprintf("%d of the %d permits of %q", n, *c.Of, c.Name)
	}
	return fmt.Sprintf("the lock %q", c.Name)
}

// checkDuration returns an error if the value of a flag is not from min to max. 0 is the
// default, and always allowed.
func checkDuration(flag string, value, min, max time.Duration) error {
	switch {
	case value < 0:
		return fmt.Errorf("--%s must not be negative", flag)
	case value > max, value != 0 && value < min:
		return fmt.Errorf("--%s %v: choose %v to %v", flag, value, min, max)
	}
	return nil
}

// acquire returns what is held, or an error that has the exit code of the failure. A signal ends
// the wait, and so does inputEnded, if it is not nil.
func (c *lockFlags) acquire(ctx context.Context, signals <-chan os.Signal, inputEnded <-chan struct{}) (*locksidecar.Client, *held, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		client *locksidecar.Client
		held   *held
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		ctx, cancel := c.withWait(ctx)
		defer cancel()
		if o.client, o.err = c.dial(ctx); o.err == nil {
			explained := make(chan struct{})
			looking, stop := context.WithCancel(ctx)
			go func() {
				defer close(explained)
				if c.Wait == nil || *c.Wait > 0 {
					c.explainWait(looking, o.client)
				}
			}()
			o.held, o.err = c.hold(ctx, o.client)
			stop()
			<-explained
			if o.err != nil {
				if errors.Is(o.err, locksidecar.ErrTimeout) && !c.answers(o.client) {
					o.err = c.silent()
				}
				o.client.Close()
			}
		}
		done <- o
	}()
	var ended error
	select {
	case o := <-done:
		if o.err != nil {
			return nil, nil, c.notAcquired(o.err)
		}
		return o.client, o.held, nil
	case sig := <-signals:
		ended = exitStatus(exitSignal + int(sig.(syscall.Signal)))
	case <-inputEnded:
		ended = coded{exitNotAcquired, fmt.Errorf("standard input ended before this program got %s", c.what())}
	}
	cancel()
	if o := <-done; o.err == nil {
		_ = o.held.release() // closing the session releases it in any case
		o.client.Close()
	}
	return nil, nil, ended
}

// hold acquires the lock, or the permits.
func (c *lockFlags) hold(ctx context.Context, client *locksidecar.Client) (*held, error) {
	var opts []locksidecar.Option
	if c.Lease > 0 {
		opts = append(opts, locksidecar.WithLease(c.Lease))
	}
	if c.MaxHold > 0 {
		opts = append(opts, locksidecar.WithMaxHold(c.MaxHold))
	}
	if c.CrashDelay > 0 {
		opts = append(opts, locksidecar.WithCrashDelay(c.CrashDelay))
	}
	if c.Keep > 0 {
		opts = append(opts, locksidecar.WithKeep(c.Keep))
	}
	if c.Fair {
		opts = append(opts, locksidecar.Fair())
	}
	isOnce := c.Wait != nil && *c.Wait == 0
	if n := c.permits(); n != 0 {
		sem := client.Semaphore(c.Name, *c.Of)
		acquire := sem.Acquire
		if isOnce {
			acquire = sem.TryAcquire
		}
		p, err := acquire(ctx, n, opts...)
		if err != nil {
			return nil, err
		}
		return &held{p, fmt.Sprintf("the hold of %q", c.Name), p.Release}, nil
	}
	acquire, try := client.Lock, client.TryLock
	switch {
	case c.Shared:
		acquire, try = client.RLock, client.TryRLock
	case c.RW:
		acquire, try = client.WLock, client.TryWLock
	}
	if isOnce {
		acquire = try
	}
	l, err := acquire(ctx, c.Name, opts...)
	if err != nil {
		return nil, err
	}
	return &held{l, c.what(), l.Unlock}, nil
}

// withWait returns a context that ends when --wait has passed.
func (c *lockFlags) withWait(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.Wait == nil || *c.Wait == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, *c.Wait)
}

// dial connects. If a sidecar listens and does not answer, because it is stopped or its host
// is overloaded, dial waits for it as it would for the lock.
func (c *lockFlags) dial(ctx context.Context) (*locksidecar.Client, error) {
	for reported := false; ; reported = true {
		client, err := locksidecar.Dial(ctx, c.Socket)
		switch {
		case errors.Is(err, locksidecar.ErrTimeout): // --wait has passed
			return nil, c.silent()
		case !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil || c.Wait != nil && *c.Wait == 0:
			return client, err
		case !reported:
			printErr("%v; waiting for it", err)
		}
	}
}

// silenceTimeout is how long a sidecar is waited for that has not answered an acquire in time.
const silenceTimeout = 2 * time.Second

// answers reports whether the sidecar answers, after it did not answer an acquire: it may be stopped or hang.
func (c *lockFlags) answers(client *locksidecar.Client) bool {
	ctx, cancel := context.WithTimeout(context.Background(), silenceTimeout)
	defer cancel()
	_, err := client.Health(ctx)
	return err == nil || ctx.Err() == nil
}

// silent is the error of an acquire that the sidecar has not answered.
func (c *lockFlags) silent() error {
	path := c.Socket
	if path == "" {
		path = protocol.DefaultSocket()
	}
	isFree := fmt.Sprintf("whether the lock %q is free", c.Name)
	if c.Of != nil {
		isFree = fmt.Sprintf("how many permits of %q are free", c.Name)
	}
	return coded{exitUnavailable, fmt.Errorf("the sidecar at %s did not answer within %v, and %s is not known; is it stopped, or overloaded?", path, *c.Wait, isFree)}
}

func (c *lockFlags) notAcquired(err error) error {
	var silent coded
	switch {
	case errors.As(err, &silent):
		return err
	case errors.Is(err, locksidecar.ErrUnavailable): // before ErrTimeout: an error that is both names the cause here
		return err
	case c.Of != nil && errors.Is(err, locksidecar.ErrHeld):
		return coded{exitNotAcquired, fmt.Errorf("cannot get %s now; %s shows who has them", c.what(), whoCommand(c.Name))}
	case c.Of != nil && errors.Is(err, locksidecar.ErrTimeout):
		return coded{exitNotAcquired, fmt.Errorf("cannot get %s within %v; %s shows who has them", c.what(), *c.Wait, whoCommand(c.Name))}
	case errors.Is(err, locksidecar.ErrHeld):
		return coded{exitNotAcquired, fmt.Errorf("the lock %q is held by another process or host; %s shows by which", c.Name, whoCommand(c.Name))}
	case errors.Is(err, locksidecar.ErrTimeout):
		return coded{exitNotAcquired, fmt.Errorf("the lock %q was not free within %v; %s shows who holds it", c.Name, *c.Wait, whoCommand(c.Name))}
	default:
		return err
	}
}

// confirmWait is how long run waits for Redis to execute the release.
const confirmWait = 2 * time.Second

// releaseConfirmed releases what is held and waits for the confirmation, until one of endingSignals
// arrives or confirmWait has passed.
func (h *held) releaseConfirmed(ctx context.Context, signals <-chan os.Signal) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ctx, stop := context.WithTimeoutCause(ctx, confirmWait, fmt.Errorf("no confirmation within %v (is Redis slow or away?)", confirmWait))
	defer stop()
	go func() {
		for {
			select {
			case sig := <-signals:
				if slices.Contains(endingSignals, sig) {
					cancel(fmt.Errorf("the wait was ended by signal %d (%v)", sig, sig))
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return h.release(locksidecar.Confirmed(ctx))
}

// relay sends signals to c. A signal that the parent of this process had it ignore (nohup)
// stays ignored.
func relay(c chan<- os.Signal, signals ...os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(c, s)
		}
	}
}

var (
	// endingSignals end a wait for the lock, and are forwarded to the command once it runs.
	endingSignals = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT}

	// forwardedSignals are forwarded to the command. While this program waits for the lock
	// they have their usual effect on it.
	forwardedSignals = []os.Signal{unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT}
)

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type runCmd struct {
	socketFlag
	Wait       *time.Duration `help:"How long to wait for the lock; 0: try once (default: forever)." placeholder:"DURATION"`
	Lease      time.Duration  `help:"Hold the lock for at most this long, unrenewed (default: renewed as long as the command runs)." placeholder:"DURATION"`
	MaxHold    time.Duration  `help:"End the command when it has held the lock this long." placeholder:"DURATION"`
	CrashDelay time.Duration  `help:"If this program is killed, keep the lock this much longer." placeholder:"DURATION"`
	Fair       bool           `help:"Strict order between hosts: such commands run in the order in which their requests reach Redis."`
	KillAfter  time.Duration  `help:"From SIGTERM to SIGKILL when the command is ended (default: ${default})." default:"5s" placeholder:"DURATION"`

	Name    string   `arg:"" help:"The lock."`
	Command []string `arg:"" passthrough:"partial" name:"command" help:"The command and its arguments, best behind --."`
}

func (runCmd) Help() string {
	return `Waits for the lock, runs the command in a process group of its own, and releases the lock when
the command has ended. The command finds $LOCKSIDECAR_NAME and the fencing token $LOCKSIDECAR_TOKEN.

SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP and SIGCONT are passed on to the group.
The group never goes on without the lock. If the lock is lost, it gets SIGTERM and --kill-after later
SIGKILL. If the end of the lock can be foreseen (--lease, --max-hold, Redis unreachable), SIGTERM comes
that much before it. If this program is killed, the group is killed with it, by a second process, locksidecar-guard.
Processes that the command leaves in its group when it ends are ended too, before the lock is released; setsid(1)
starts one that goes on.

A command that changes its user, such as sudo, cannot be signalled by this program unless root runs it, and goes on
when the lock is lost or this program is killed. Have root hold the lock: sudo locksidecar run NAME -- COMMAND.

When the command has ended this program waits until Redis has executed the release, for at most 2 s, so that
another host finds the lock free once this program has ended. SIGINT, SIGTERM, SIGHUP and SIGQUIT end the wait.
If the release could not be confirmed, a warning says why. The exit code is the command's in any case.

Examples:

    locksidecar run nightly-report -- ./report.sh --date today
    locksidecar run --wait 0 deploy -- make deploy || echo "another deployment runs"
    locksidecar run stock:42 --wait 30s --max-hold 5m -- sh -c 'sell --fence "$LOCKSIDECAR_TOKEN"'
    locksidecar run roll -- ./upgrade.sh && ssh next locksidecar run --wait 0 roll -- ./upgrade.sh

Exit codes:

    the command's own, or 128 + n if signal n ended it
    64        wrong usage
    69        the sidecar cannot be reached, or Redis could not before --wait passed
    75        not acquired: --wait passed
    77        not permitted
    79        the lock was lost, or about to be, and the command was told to end
    126, 127  the command cannot be run, is not found
    128 + n   signal n came while waiting`
}

func (c *runCmd) Validate() error {
	const longest = protocol.MaxDurationMS * time.Millisecond
	for _, d := range []struct {
		flag            string
		value, min, max time.Duration // 0 is the default, too
	}{
		{"lease", c.Lease, protocol.MinLeaseMS * time.Millisecond, longest},
		{"max-hold", c.MaxHold, time.Millisecond, longest},
		{"crash-delay", c.CrashDelay, 0, protocol.MaxCrashDelayMS * time.Millisecond},
		{"kill-after", c.KillAfter, 0, longest},
	} {
		switch {
		case d.value < 0:
			return fmt.Errorf("--%s must not be negative", d.flag)
		case d.value > d.max, d.value != 0 && d.value < d.min:
			return fmt.Errorf("--%s %v: choose %v to %v", d.flag, d.value, d.min, d.max)
		}
	}
	if err := protocol.CheckName(c.Name); err != nil {
		return err
	}
	if c.Wait != nil && *c.Wait < 0 {
		return errors.New("--wait must not be negative; leave it out to wait forever")
	}
	return nil
}

func (c *runCmd) Run(ctx context.Context) error {
	argv := c.Command
	if argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return coded{exitUsage, errors.New("no command; write: locksidecar run NAME -- COMMAND")}
	}
	path, err := exec.LookPath(argv[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		return cannotRun(argv[0], err)
	}

	signals := make(chan os.Signal, 64)
	relay(signals, endingSignals...)
	sidecar, lock, err := c.acquire(ctx, signals)
	if err != nil {
		return err
	}
	defer sidecar.Close()
	granted := time.Now()

	relay(signals, forwardedSignals...) // before the command starts, so that it misses none
	tty := openTerminal()
	env := append(os.Environ(),
		"LOCKSIDECAR_NAME="+c.Name,
		"LOCKSIDECAR_TOKEN="+strconv.FormatUint(lock.Token(), 10))
	g, err := startGroup(path, argv, env, tty)
	if err != nil {
		_ = lock.Unlock() // the command did not run, so the exit code is that of err in any case
		return cannotRun(argv[0], err)
	}

	s := supervisor{lock: lock, group: g, tty: tty, signals: signals, killAfter: c.KillAfter}
	if c.MaxHold > 0 {
		s.maxEnd = granted.Add(c.MaxHold)
	}
	s.run()
	tty.restore(g.id)

	if s.lost == nil {
		err = unlockConfirmed(ctx, lock, signals)
	} else {
		err = lock.Unlock() // not confirmed: exit code 79 promises nothing about the lock
	}
	if s.lost == nil && errors.Is(err, locksidecar.ErrLost) {
		s.lost = err
		printErr("while the command ended: %v", err)
	}
	if s.lost != nil {
		return exitStatus(exitLost)
	}
	switch {
	case errors.Is(err, locksidecar.ErrUnconfirmed):
		printErr("warning: %v", err)
	case err != nil:
		printErr("the command has ended, but its lock is kept until its lease ends: %v", err)
	}
	if !s.status.Signaled() {
		return exitStatus(s.status.ExitStatus())
	}
	sig := s.status.Signal()
	if sig == unix.SIGINT && tty != nil {
		// Ctrl-C: a shell ends its loop or script only if the signal ended this process. Its
		// $? is 130 as well.
		signal.Reset(unix.SIGINT)
		raise(unix.SIGINT)
	}
	return exitStatus(exitSignal + int(sig))
}

// confirmWait is how long run waits for Redis to execute the release of its lock.
const confirmWait = 2 * time.Second

// unlockConfirmed releases the lock and waits for the confirmation, until one of endingSignals
// arrives or confirmWait has passed.
func unlockConfirmed(ctx context.Context, lock *locksidecar.Lock, signals <-chan os.Signal) error {
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
	return lock.Unlock(locksidecar.Confirmed(ctx))
}

// acquire returns the lock, or an error that has the exit code of the failure. A signal ends
// the wait.
func (c *runCmd) acquire(ctx context.Context, signals <-chan os.Signal) (*locksidecar.Client, *locksidecar.Lock, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		client *locksidecar.Client
		lock   *locksidecar.Lock
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
					explainWait(looking, o.client, c.Name)
				}
			}()
			o.lock, o.err = c.lock(ctx, o.client)
			stop()
			<-explained
			if o.err != nil {
				o.client.Close()
			}
		}
		done <- o
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, nil, c.notAcquired(o.err)
		}
		return o.client, o.lock, nil
	case sig := <-signals:
		cancel()
		if o := <-done; o.err == nil {
			_ = o.lock.Unlock() // closing the session releases it in any case
			o.client.Close()
		}
		return nil, nil, exitStatus(exitSignal + int(sig.(syscall.Signal)))
	}
}

func (c *runCmd) lock(ctx context.Context, client *locksidecar.Client) (*locksidecar.Lock, error) {
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
	if c.Fair {
		opts = append(opts, locksidecar.Fair())
	}
	if c.Wait != nil && *c.Wait == 0 {
		return client.TryLock(ctx, c.Name, opts...)
	}
	return client.Lock(ctx, c.Name, opts...)
}

// withWait returns a context that ends when --wait has passed.
func (c *runCmd) withWait(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.Wait == nil || *c.Wait == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, *c.Wait)
}

// dial connects. If a sidecar listens and does not answer, because it is stopped or its host
// is overloaded, dial waits for it as it would for the lock.
func (c *runCmd) dial(ctx context.Context) (*locksidecar.Client, error) {
	for reported := false; ; reported = true {
		client, err := locksidecar.Dial(ctx, c.Socket)
		switch {
		case errors.Is(err, locksidecar.ErrTimeout): // --wait has passed
			return nil, coded{exitUnavailable, err}
		case !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil || c.Wait != nil && *c.Wait == 0:
			return client, err
		case !reported:
			printErr("%v; waiting for it", err)
		}
	}
}

func (c *runCmd) notAcquired(err error) error {
	switch {
	case errors.Is(err, locksidecar.ErrUnavailable): // before ErrTimeout: an error that is both names the cause here
		return err
	case errors.Is(err, locksidecar.ErrHeld):
		return coded{exitNotAcquired, fmt.Errorf("the lock %q is held by another process or host; locksidecar ls %[1]q shows by which", c.Name)}
	case errors.Is(err, locksidecar.ErrTimeout):
		return coded{exitNotAcquired, fmt.Errorf("the lock %q was not free within %v; locksidecar ls %[1]q shows who holds it", c.Name, *c.Wait)}
	default:
		return err
	}
}

// cannotRun returns an error with the exit code that shells use for it.
func cannotRun(command string, err error) error {
	code := exitCannotRun
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	// Only the cause: the message below names the command.
	var execErr *exec.Error
	if errors.As(err, &execErr) {
		err = execErr.Err
	}
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	return coded{code, fmt.Errorf("cannot run %s: %w", command, err)}
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

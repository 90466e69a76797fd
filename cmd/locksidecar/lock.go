package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type lockCmd struct {
	lockFlags
}

func (lockCmd) Help() string {
	return `Waits for the lock, prints its fencing token and a line feed, and holds the lock until standard input ends.
This is for shell scripts and other programs that hold a lock while they go on, and keep the other end of a pipe open:
if such a program ends, even by kill -9, standard input ends, and the lock is released. Processes that inherit that end
keep the lock as well. To run one command under a lock, use locksidecar run.

If the lock is lost, this program ends at once with code 79. examples/shell/lock.sh has the functions lock and unlock.
When standard input has ended, this program waits until Redis has executed the release, for at most 2 s.

With --rw or --shared, it holds a read/write lock, and with --of permits of a semaphore: see locksidecar run --help. The token of permits is no fence.

Examples:

    mkfifo hold && locksidecar lock nightly-report <hold >token & exec 8>hold
    exec 8>&-                                        # releases it
    locksidecar lock --wait 0 deploy || echo "another deployment runs"    # in a terminal: Ctrl-D releases it
    locksidecar lock --permits 2 --of 10 partner-api

Exit codes:

    0        released
    64       wrong usage
    69       the sidecar cannot be reached, a limit refuses the lock, or Redis could not be reached before --wait passed
    75       not acquired: --wait passed, or standard input ended first
    77       not permitted
    79       the lock was lost
    128 + n  signal n came; a lock that was held is released`
}

func (c *lockCmd) Run(ctx context.Context, out io.Writer) error {
	signals := make(chan os.Signal, 64)
	relay(signals, endingSignals...)
	inputEnded := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error ends the input, too
		close(inputEnded)
	}()
	sidecar, held, err := c.acquire(ctx, signals, inputEnded)
	if err != nil {
		return err
	}
	defer sidecar.Close()
	if _, err := fmt.Fprintln(out, held.Token()); err != nil {
		_ = held.release() // the reader of the token does not know that it has the lock
		return fmt.Errorf("cannot print the token: %w", err)
	}

	var end error
	select {
	case <-held.Done():
		return held.Err()
	case sig := <-signals:
		end = exitStatus(exitSignal + int(sig.(syscall.Signal)))
	case <-inputEnded:
	}
	switch err := held.releaseConfirmed(ctx, signals); {
	case errors.Is(err, locksidecar.ErrLost):
		return err
	case errors.Is(err, locksidecar.ErrUnconfirmed):
		printErr("warning: %v", err)
	case err != nil:
		printErr("%s is kept until its lease ends: %v", held.what, err)
	}
	return end
}

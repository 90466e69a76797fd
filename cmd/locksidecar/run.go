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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type runCmd struct {
	lockFlags
	KillAfter time.Duration `help:"From SIGTERM to SIGKILL when the command is ended (default: ${default})." default:"5s" placeholder:"DURATION"`
	Command   []string      `arg:"" passthrough:"partial" name:"command" help:"The command and its arguments, best behind --."`
}

func (runCmd) Help() string {
	return `Waits for the lock, runs the command in a process group of its own, and releases the lock when
the command has ended. The command finds $LOCKSIDECAR_NAME and the fencing token $LOCKSIDECAR_TOKEN.

With --of N, NAME is a semaphore: of all hosts together, commands with N permits run at one time. --permits is how
many of them this command takes, and $LOCKSIDECAR_PERMITS has it. Their token is no fence.

With --rw or --shared, NAME is a read/write lock: of all hosts together, one command with --rw runs, or any number of
commands with --shared.

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

With --keep, the lock stays held until that long after it was acquired: when the command has ended, and also if this
program, the daemon or the host dies. So of all hosts whose cron starts run --wait 0 --keep at one time, one runs
the command, and the others end with 75.

Examples:

    locksidecar run nightly-report -- ./report.sh --date today
    locksidecar run --wait 0 deploy -- make deploy || echo "another deployment runs"
    locksidecar run --wait 0 --keep 50s nightly-report -- ./report.sh    # in the crontab of each host
    locksidecar run stock:42 --wait 30s --max-hold 5m -- sh -c 'sell --fence "$LOCKSIDECAR_TOKEN"'
    locksidecar run --of 3 restore -- ./restore.sh db-7                  # at most 3 of all hosts at one time
    locksidecar run --permits 2 --of 10 partner-api -- ./import.sh
    locksidecar run --shared catalog -- ./serve.sh                       # beside others, but not beside --rw catalog
    locksidecar run roll -- ./upgrade.sh && ssh next locksidecar run --wait 0 roll -- ./upgrade.sh

Exit codes:

    the command's own, or 128 + n if signal n ended it
    64        wrong usage
    69        the sidecar cannot be reached, a limit refuses the lock, or Redis could not be reached before --wait passed
    75        not acquired: --wait passed
    77        not permitted
    79        the lock was lost, or about to be, and the command was told to end
    126, 127  the command cannot be run, is not found
    128 + n   signal n came while waiting`
}

func (c *runCmd) Validate() error {
	if err := checkDuration("kill-after", c.KillAfter, 0, longestDuration); err != nil {
		return err
	}
	return c.lockFlags.Validate()
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
	sidecar, held, err := c.acquire(ctx, signals, nil)
	if err != nil {
		return err
	}
	defer sidecar.Close()
	granted := time.Now()

	relay(signals, forwardedSignals...) // before the command starts, so that it misses none
	tty := openTerminal()
	env := append(slices.DeleteFunc(os.Environ(), isOfOuterRun),
		"LOCKSIDECAR_NAME="+c.Name,
		"LOCKSIDECAR_TOKEN="+strconv.FormatUint(held.Token(), 10))
	if n := c.permits(); n != 0 {
		env = append(env, permitsEnv+"="+strconv.Itoa(n))
	}
	g, err := startGroup(path, argv, env, tty)
	if err != nil {
		_ = held.release() // the command did not run, so the exit code is that of err in any case
		return cannotRun(argv[0], err)
	}

	s := supervisor{held: held, group: g, tty: tty, signals: signals, killAfter: c.KillAfter}
	if c.MaxHold > 0 {
		s.maxEnd = granted.Add(c.MaxHold)
	}
	s.run()
	tty.restore(g.id)

	if s.lost == nil {
		err = held.releaseConfirmed(ctx, signals)
	} else {
		// Not confirmed: exit code 79 promises nothing about the lock.
		var options []locksidecar.UnlockOption
		if s.isCutShort {
			options = append(options, locksidecar.CutShort())
		}
		err = held.release(options...)
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
		printErr("the command has ended, but %s is kept until its lease ends: %v", held.what, err)
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

// isOfOuterRun reports whether a variable is what another run has told this one, and not what this one tells its command.
func isOfOuterRun(variable string) bool { return strings.HasPrefix(variable, permitsEnv+"=") }

// permitsEnv has the number of permits that run holds. A lock has none.
const permitsEnv = "LOCKSIDECAR_PERMITS"

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

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type forceReleaseCmd struct {
	socketFlag
	Host     string  `placeholder:"HOST" help:"End the hold of a process of this other host: its name, or the uuid of its daemon."`
	Orphaned bool    `help:"Free a lock whose daemon is gone for good, on whatever host it was, or all permits of such a daemon."`
	Sidecar  string  `placeholder:"UUID" help:"With --orphaned: the daemon that is gone, if several other hosts have permits of the semaphore. who shows them."`
	Hold     *uint64 `placeholder:"N" help:"End only the hold with this number, which who and ls --json show: of several of a semaphore, or of a lock that may have passed on."`
	Name     string  `arg:"" complete:"locks" help:"The lock, or the semaphore."`
}

func (forceReleaseCmd) Help() string {
	return `Ends the hold that a process of this host has on the lock, or all holds that such processes have of the semaphore.
With --hold, it ends that one alone. The process is notified that it lost the lock,
but nothing stops it: make sure that it no longer works. The next waiter gets the lock at once.
Allowed for root, the sidecar's user and the user of each holder.

With --host, the daemon of this host asks that of the other one, through Redis. Allowed for root and the sidecar's
user, where the setting other_hosts of the other daemon is "force-release". locksidecar who NAME shows which host
holds a lock, and ls --all the hosts.

With --orphaned, the daemon of this host frees a lock in Redis whose own daemon is gone for good: its host died, and
the lock has a long lease or a keep. Of a semaphore it frees all permits of that daemon. Allowed for root and the
sidecar's user. It is refused while there is a sign of life: while a daemon is connected to Redis for that lock, even
one that does not answer, and for 3 minutes after it was. The next waiter gets the lock at once. A daemon that comes
back notifies its processes that they lost it.

RISK: a host that is only cut off from Redis looks like a dead one. Its processes use the lock until its lease ends,
together with the next holder. Make sure that the host is down, or that nothing on it still works.

Examples:

    locksidecar force-release invoice:42
    locksidecar force-release --host db-7 invoice:42
    locksidecar force-release --hold 1207 partner-api
    locksidecar force-release --orphaned invoice:42
    locksidecar force-release --orphaned --sidecar 285475da-9152-8c83-822a-67ee2f116a79 partner-api

` + exitTable
}

func (c *forceReleaseCmd) Validate() error {
	if c.Orphaned && c.Host != "" {
		return errors.New("--orphaned and --host exclude each other: a lock is orphaned if no daemon can end its hold")
	}
	if c.Hold != nil && c.Orphaned {
		return errors.New("--orphaned and --hold exclude each other: an orphaned lock has one hold, and of a semaphore all permits of the daemon become free")
	}
	if c.Sidecar != "" && !c.Orphaned {
		return errors.New("--sidecar is for --orphaned; --host takes the uuid of a daemon that runs")
	}
	if c.Hold != nil && *c.Hold == 0 {
		return errors.New("--hold 0: holds have numbers from 1; leave it out to end all")
	}
	return protocol.CheckName(c.Name)
}

func (c *forceReleaseCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, sidecar, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	var options []locksidecar.ForceOption
	if c.Hold != nil {
		options = append(options, locksidecar.OnlyHold(*c.Hold))
	}
	if c.Host != "" {
		forced, err := sidecar.ForceReleaseOn(ctx, c.Host, c.Name, options...)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "ended %s of %q on host %s\n", describeForced(&forced), c.Name, c.Host)
		return err
	}
	if c.Orphaned {
		freed, err := sidecar.ForceReleaseOrphaned(ctx, c.Name, locksidecar.OfSidecar(c.Sidecar))
		if errors.Is(err, locksidecar.ErrUnsupported) {
			return fmt.Errorf("the daemon of this host is older than this command: upgrade it and restart it, or ask on another host: %w", err)
		}
		switch {
		case errors.Is(err, locksidecar.ErrNotHeld):
			return fmt.Errorf("%w; %s shows who holds it", err, whoCommand(c.Name))
		case errors.Is(err, locksidecar.ErrUnavailable):
			return fmt.Errorf("%w; when Redis answers, %s shows who holds it", err, whoCommand(c.Name))
		case err != nil:
			return err
		}
		_, err = fmt.Fprint(out, describeFreed(c.Name, &freed, time.Now()))
		return err
	}
	forced, err := sidecar.ForceRelease(ctx, c.Name, options...)
	if errors.Is(err, locksidecar.ErrNotHeld) && c.Hold != nil {
		return fmt.Errorf("no process of this host has hold %d of %q; %s shows the holds", *c.Hold, c.Name, whoCommand(c.Name))
	}
	if errors.Is(err, locksidecar.ErrNotHeld) {
		return fmt.Errorf("no process of this host holds the lock %q; %s shows who holds it", c.Name, whoCommand(c.Name))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "ended %s of %q\n", describeForced(&forced), c.Name)
	return err
}

// describeForced names the holds that were ended.
func describeForced(forced *locksidecar.ForcedRelease) string {
	if forced.Count > 1 {
		return fmt.Sprintf("%d holds", forced.Count)
	}
	return fmt.Sprintf("hold %d", forced.Hold)
}

// describeFreed confirms that an orphaned lock was freed, and names the risk that is left.
func describeFreed(name string, freed *locksidecar.OrphanedLock, now time.Time) string {
	next := "the lock is free"
	if freed.Passed {
		next = "the first host that waited has the lock"
	}
	text := fmt.Sprintf("freed the orphaned lock %q: deleted hold %d of sidecar %s; %s\n", name, freed.Hold, freed.Sidecar, next)
	if freed.Permits > 0 {
		text = fmt.Sprintf("freed orphaned permits of %q: %d of sidecar %s; hosts that wait get what is free\n", name, freed.Permits, freed.Sidecar)
	}
	until := "and their lease had no end"
	if !freed.Persistent {
		until = fmt.Sprintf("at most until %s (%s from now)", now.Add(freed.TTL).Format("2006-01-02 15:04:05"), display.Duration(freed.TTL))
	}
	what := "the lock"
	if freed.Permits > 0 {
		what = "the permits"
	}
	return text + "if its host is only cut off from Redis, processes there may still use " + what + ", " + until + "\n"
}

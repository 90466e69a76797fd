package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type forceReleaseCmd struct {
	socketFlag
	Host string `placeholder:"HOST" help:"End the hold of a process of this other host: its name, or the uuid of its daemon."`
	Name string `arg:"" help:"The lock."`
}

func (forceReleaseCmd) Help() string {
	return `Ends the hold that a process of this host has on the lock. The process is told that it lost the lock,
but nothing stops it: make sure that it no longer works. The next waiter gets the lock at once.
Allowed for root, the sidecar's user and the holder's user.

With --host, the daemon of this host asks that of the other one, through Redis. Allowed for root and the sidecar's
user, where the setting other_hosts of the other daemon is "force-release". locksidecar who NAME shows which host
holds a lock, and ls --all the hosts.

Examples:

    locksidecar force-release invoice:42
    locksidecar force-release --host db-7 invoice:42

` + exitTable
}

func (c *forceReleaseCmd) Validate() error { return protocol.CheckName(c.Name) }

func (c *forceReleaseCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, sidecar, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	if c.Host != "" {
		hold, err := sidecar.ForceReleaseOn(ctx, c.Host, c.Name)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "ended hold %d of %q on host %s\n", hold, c.Name, c.Host)
		return err
	}
	hold, err := sidecar.ForceRelease(ctx, c.Name)
	if errors.Is(err, locksidecar.ErrNotHeld) {
		return fmt.Errorf("no process of this host holds the lock %q; %s shows who holds it", c.Name, whoCommand(c.Name))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "ended hold %d of %q\n", hold, c.Name)
	return err
}

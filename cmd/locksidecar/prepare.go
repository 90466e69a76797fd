package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// prepareCmd makes the directory of the socket for a daemon that is not root. systemd does it
// for a unit (RuntimeDirectory=), and no container engine does it for a directory of the host.
type prepareCmd struct {
	UID int    `required:"" placeholder:"N" help:"User of the daemon."`
	GID int    `required:"" placeholder:"N" help:"Group of the daemon."`
	Dir string `arg:"" placeholder:"DIR" help:"The directory of the socket and the state."`
}

func (prepareCmd) Help() string {
	return `For an init container that is root: makes the directory if it does not exist, and gives it to the user of
the daemon. It refuses a directory of another user: then a daemon of another installation serves this host.

Example:

    locksidecar prepare --uid 65532 --gid 65532 /run/locksidecar

` + exitTable
}

func (c *prepareCmd) Validate() error {
	if c.UID < 0 || c.GID < 0 {
		return errors.New("--uid and --gid are numbers from 0")
	}
	return nil
}

func (c *prepareCmd) Run() error {
	if err := os.Mkdir(c.Dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// All that follows is done to one directory, whatever its name refers to meanwhile.
	dir, err := os.OpenFile(c.Dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		return err
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if owner != c.UID && owner != 0 {
		return fmt.Errorf("%s belongs to the user %d, not to root or %d: is locksidecar installed on this host as a service, too?", c.Dir, owner, c.UID)
	}
	if err := dir.Chown(c.UID, c.GID); err != nil {
		return err
	}
	// Clients enter it to reach the socket; only the daemon may write.
	return dir.Chmod(0o755)
}

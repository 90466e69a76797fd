package state

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Check returns why Open would refuse a path, as far as that can be found out without a
// change to any file, and while another sidecar has the state. nil: nothing was found.
func Check(path string) error {
	for _, f := range []struct {
		what, path string
		magic      uint64
	}{{"state file", path, magic}, {"sequence file", path + ".seq", sequenceMagic}} {
		fd, st, err := openOwn(f.what, f.path, unix.O_RDONLY)
		if errors.Is(err, unix.ENOENT) {
			dir := filepath.Dir(f.path)
			if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
				return fmt.Errorf("%s %s: its directory %s: %w; make it for the user of the sidecar, or choose another path", f.what, f.path, dir, err)
			}
			continue
		}
		if err != nil {
			return err
		}
		foreign := st.Size > 0 && !hasMagic(fd, f.magic)
		unix.Close(fd)
		if foreign {
			return fmt.Errorf("%s is not a %s; remove it, or choose another path for the state", f.path, f.what)
		}
	}
	return nil
}

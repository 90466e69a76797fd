package state

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// location is where a successor looks for a file.
type location struct {
	path       string
	dev, inode uint64
}

// Unidentified returns a sentence if no successor can take this state over, because nothing
// shows that it is from the same boot; "": one can.
func (f *File) Unidentified() string {
	if f.host.boot == ([16]byte{}) {
		return "the boot id of this host cannot be read, so that a restart of the sidecar ends all locks of this host at their deadlines; let the sidecar read /proc/sys/kernel/random/boot_id (leave ProcSubset=pid out of its unit)"
	}
	return ""
}

// Misplaced returns a sentence if a successor would not find the two files, because they
// were removed or replaced; "": they are where they were made. Unlike the other methods
// it may be called by any goroutine, before Close and while no Renew runs.
func (f *File) Misplaced() string {
	for _, p := range f.locations {
		var st unix.Stat_t
		if err := unix.Lstat(p.path, &st); err != nil || uint64(st.Dev) != p.dev || st.Ino != p.inode {
			return fmt.Sprintf("the file %s was removed or replaced, without which a restart of the sidecar ends all locks of this host at their deadlines", p.path)
		}
	}
	return ""
}

package locksidecar

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// socketPermissions says which users may connect to a socket, and what a user can do about
// it, as far as this process may see that.
func socketPermissions(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "; ask for access to its directory"
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	group := strconv.FormatUint(uint64(stat.Gid), 10)
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	if info.Mode().Perm()&0o020 == 0 {
		return fmt.Sprintf(" (mode %04o); run as its user, or configure the sidecar's socket mode", info.Mode().Perm())
	}
	return fmt.Sprintf(" (mode %04o, group %s); join that group and log in again", info.Mode().Perm(), group)
}

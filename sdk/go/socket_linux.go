package locksidecar

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
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
	groups, _ := os.Getgroups()
	isMember := slices.Contains(append(groups, os.Getegid()), int(stat.Gid))
	return permissionHint(info.Mode().Perm(), stat.Gid, group, isMember)
}

// permissionHint is what to do about a socket with this mode and group if a connect was refused.
// A connect needs the permission to write.
func permissionHint(mode fs.FileMode, gid uint32, group string, isMember bool) string {
	switch {
	case mode&0o002 != 0, mode&0o020 != 0 && isMember:
		return fmt.Sprintf(" (mode %04o, group %s): the mode permits it, so a security module of the system (AppArmor, SELinux) forbids it", mode, group)
	case mode&0o020 == 0:
		return fmt.Sprintf(" (mode %04o); run as its user, or configure the sidecar's socket mode", mode)
	case gid == 0:
		return fmt.Sprintf(" (mode %04o, group %s); set socket_group of the sidecar to a group of this process", mode, group)
	}
	return fmt.Sprintf(" (mode %04o, group %s); join that group and log in again", mode, group)
}

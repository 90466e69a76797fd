package display

import (
	"os/user"
	"strconv"
	"strings"
)

// UserNames maps the uids of users of this host to their names. It keeps each name that Name has
// looked up. One goroutine at a time may use it.
//
// A nil UserNames is for the uids of another host: it looks up no names.
type UserNames map[int]string

// Shown returns the text for a user, by what Name returned: the uid 0 is root on every host, and another uid without
// a name is shown as one.
func Shown(name string) string {
	if name == "0" {
		return "root"
	}
	if _, err := strconv.ParseUint(name, 10, 32); err == nil {
		return "uid " + name
	}
	return name
}

// Name returns the name of the user with this uid. If the host has no such user, or u is nil, it
// returns the uid in decimal.
func (u UserNames) Name(uid int) string {
	if name, ok := u[uid]; ok {
		return name
	}
	name := strconv.Itoa(uid)
	if u == nil {
		return name
	}
	if found, err := user.LookupId(name); err == nil {
		name = found.Username
	}
	u[uid] = name
	return name
}

// Named returns the daemon's description of a process, which ends with its uid, with the name of the user instead.
func (u UserNames) Named(process string) string {
	const mark = " of uid "
	if i := strings.LastIndex(process, mark); i >= 0 {
		if uid, err := strconv.Atoi(process[i+len(mark):]); err == nil {
			return process[:i] + " of " + Shown(u.Name(uid))
		}
	}
	return process
}

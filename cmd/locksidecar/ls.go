package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type lsCmd struct {
	socketFlag
	Name namePattern `arg:"" optional:"" complete:"locks" help:"Only the lock with this name; with * at the end, the locks whose names start so."`
	Slot *int        `placeholder:"N" help:"Only locks of this slot of a Redis Cluster, 0 to 16383."`
	All  bool        `help:"Every host that uses the same Redis, each with its locks."`
	By   string      `enum:",process,user,name-pattern" default:"" placeholder:"WHAT" help:"Count what each process, user or name-pattern holds and waits for, the most holds first."`
	JSON bool        `help:"Print a JSON array, sorted by name."`
}

func (lsCmd) Help() string {
	return `Lists the locks that processes of this host hold or wait for, and below each lock its waiters in
the order in which they will get it. locksidecar who NAME asks about one lock, on all hosts.

FOR is how long the holder has held or the waiter has waited; a wait counts from the start of the daemon if that was
later. LEFT is how long the lock would stay held
without a renewal; "fixed" means that it is not renewed. STATE is held, absent (held; its process lives
and has not come back since the daemon was restarted), orphan (its process is gone, and the lock is held
a little longer), kept (released, or its process is gone, and --keep has it held until LEFT has passed), remote (held elsewhere), busy (being asked of Redis), lingering (released, and kept in Redis
for this host for a few milliseconds) or free. For a remote lock, the daemon of its host is asked for the process,
for at most a second in all.

A semaphore has in place of a state how many permits processes of this host have, of how many: "7 of 10". Its row is that
of the oldest holder, with the permits that it has and how many more holds there are: "has 2, +4 more". "wants 2" is
what a waiter waits for. locksidecar who NAME lists the holders.

--by finds what holds too much. The names of one pattern are alike up to their first colon, slash or digit. Of the
waiters of a lock, the first sixteen have a process and a user. So have the oldest sixteen holds of a semaphore; the
others are counted for the user "?".

--all asks the daemons of all hosts, through Redis, for at most ten seconds in all. A host is listed until three
minutes after its daemon ended; one that did not answer is shown as such.

Examples:

    locksidecar ls
    locksidecar ls invoice:42
    locksidecar ls 'invoice:*'
    locksidecar ls --all
    locksidecar ls --slot 7629
    locksidecar ls --by process
    locksidecar ls --by name-pattern --all
    locksidecar ls --json | jq '.[] | select(.waiting > 10) | .name'

Fields of --json; those in brackets are absent where they do not apply:

    name, state, waiting, waiters[], [grants]
    [hold, token, count, owner, session, pid, uid, user, cmd, held_ms, left_ms, lease_ms, absent,
     absent_ms, absent_left_ms, orphan, keep_left_ms: of several holds those of the oldest]
    [kind: rw (a read/write lock), permits (a semaphore); absent: a lock]
    [holds, shared: of a read/write lock, the holds of this host, and how many of them are shared]
    [holds, permits, of: of a semaphore, the holds of this host, their permits, and how many there are]
    [holders[]: the oldest 16 of these: hold, token, session, pid, uid, user, cmd, held_ms, [shared, permits, absent,
     orphan]]
    [remote_field, remote_ttl_ms, remote_host, remote_pid, remote_cmd]
    [slot, shard: of a Redis Cluster; the address of the master that has the slot, if one has it]
    of a waiter: session, pid, uid, user, cmd, waited_ms, [owner, shared, permits]

With --all, the array is of hosts, sorted by name. user is then a number:

    host, sidecar, version, pid, started, locks[]
    [error]

With --by, the array is of processes, users or patterns:

    held, waiting, [host, pattern, pid, uid, user, cmd, oldest_held_ms, oldest_held, oldest_waited_ms, oldest_wait]
    uid -1: holds whose processes are not known

` + exitTable
}

func (c *lsCmd) Validate() error {
	if c.Slot != nil && (*c.Slot < 0 || *c.Slot > protocol.MaxSlot) {
		return fmt.Errorf("--slot is %d; a Redis Cluster has the slots 0 to %d", *c.Slot, protocol.MaxSlot)
	}
	return nil
}

// filter returns which locks are to be listed.
func (c *lsCmd) filter() lockFilter { return lockFilter{c.Name, c.Slot} }

// lockFilter selects locks by name, and by slot.
type lockFilter struct {
	name namePattern
	slot *int // nil: any
}

func (f lockFilter) matches(row *locksidecar.LockInfo) bool {
	return f.name.matches(row.Name) && (f.slot == nil || row.InCluster && row.Slot == *f.slot)
}

func (c *lsCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, sidecar, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	if c.All {
		return c.listHosts(ctx, sidecar, out)
	}
	rows, err := sidecar.List(ctx)
	if err != nil {
		return err
	}
	locks := viewLocks(rows, c.filter(), make(display.UserNames))
	if c.By != "" {
		return c.printShares(out, []hostView{{Locks: locks}})
	}
	findHolders(ctx, sidecar, locks)
	if c.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(locks)
	}
	if len(locks) == 0 {
		_, err = fmt.Fprintln(out, nothingListed(c.filter(), rows))
		return err
	}
	_, err = io.WriteString(out, lockTable(locks, width(out)))
	return err
}

// nothingListed says that none of the locks of this host match a filter, and which command would
// find what was meant.
func nothingListed(filter lockFilter, rows []locksidecar.LockInfo) string {
	pattern := filter.name
	if filter.slot != nil {
		return noneInSlot(filter, rows)
	}
	if pattern == "" {
		return "no process of this host holds a lock or waits for one"
	}
	longer := pattern.withStar()
	if pattern == longer {
		return fmt.Sprintf("no process of this host holds a lock whose name starts with %q, or waits for one; locksidecar ls --all %s asks all hosts", strings.TrimSuffix(string(pattern), "*"), quoteForShell(string(pattern)))
	}
	text := fmt.Sprintf("no process of this host holds the lock %q or waits for it; %s asks Redis and other hosts", string(pattern), whoCommand(string(pattern)))
	if n := len(viewLocks(rows, lockFilter{name: longer}, nil)); n > 0 {
		text += fmt.Sprintf("\nnames that start so: %d; locksidecar ls %s lists them", n, quoteForShell(string(longer)))
	}
	return text
}

// noneInSlot is nothingListed for a filter with a slot.
func noneInSlot(filter lockFilter, rows []locksidecar.LockInfo) string {
	text := fmt.Sprintf("no process of this host holds a lock of slot %d, or waits for one", *filter.slot)
	if filter.name != "" {
		text = fmt.Sprintf("no process of this host holds a lock of slot %d that matches %q, or waits for one", *filter.slot, string(filter.name))
	}
	if len(rows) > 0 && !slices.ContainsFunc(rows, func(r locksidecar.LockInfo) bool { return r.InCluster }) {
		text += "; its locks have no slots: Redis is no Cluster, or the sidecar is of an older version"
	}
	return text
}

// viewLocks returns the locks that a filter matches, sorted by name. users is nil for locks of
// another host, whose users are not those of this one.
func viewLocks(rows []locksidecar.LockInfo, filter lockFilter, users display.UserNames) []lockView {
	now := time.Now()
	locks := make([]lockView, 0, len(rows))
	for _, row := range rows {
		if filter.matches(&row) {
			locks = append(locks, viewLock(&row, now, users))
		}
	}
	slices.SortFunc(locks, func(a, b lockView) int { return strings.Compare(a.Name, b.Name) })
	return locks
}

// lockView is a lock as --json prints it. The help documents its field names, which do not
// change.
type lockView struct {
	Name        string                `json:"name"`
	Kind        locksidecar.LockKind  `json:"kind,omitempty"`
	State       locksidecar.LockState `json:"state"`
	Hold        uint64                `json:"hold,omitempty"`
	Token       uint64                `json:"token,omitempty"`
	Count       int                   `json:"count,omitempty"`
	Owner       uint64                `json:"owner,omitempty"`
	Session     uint64                `json:"session,omitempty"`
	PID         int                   `json:"pid,omitempty"`
	UID         *int                  `json:"uid,omitempty"`
	User        string                `json:"user,omitempty"`
	Cmd         string                `json:"cmd,omitempty"`
	HeldMS      *int64                `json:"held_ms,omitempty"`
	LeftMS      *int64                `json:"left_ms,omitempty"`
	LeaseMS     int64                 `json:"lease_ms,omitempty"`
	Absent      bool                  `json:"absent,omitempty"`
	AbsentMS    int64                 `json:"absent_ms,omitempty"`
	AbsentLeft  int64                 `json:"absent_left_ms,omitempty"`
	Orphan      bool                  `json:"orphan,omitempty"`
	KeepLeftMS  int64                 `json:"keep_left_ms,omitempty"`
	Holds       *int                  `json:"holds,omitempty"`
	Shared      int                   `json:"shared,omitempty"`
	Permits     *int                  `json:"permits,omitempty"`
	Of          int                   `json:"of,omitempty"`
	Holders     []holdView            `json:"holders,omitempty"`
	RemoteField string                `json:"remote_field,omitempty"`
	RemoteTTLMS *int64                `json:"remote_ttl_ms,omitempty"`
	Slot        *int                  `json:"slot,omitempty"`
	Shard       string                `json:"shard,omitempty"`
	Grants      uint64                `json:"grants,omitempty"`
	RemoteHost  string                `json:"remote_host,omitempty"`
	RemotePID   int                   `json:"remote_pid,omitempty"`
	RemoteCmd   string                `json:"remote_cmd,omitempty"`
	Waiting     int                   `json:"waiting"`
	Waiters     []waiterView          `json:"waiters"`

	isHidden    bool // the holder, or the oldest of several, by the policy
	isKeptThere bool // on RemoteHost
}

type waiterView struct {
	Session  uint64 `json:"session"`
	PID      int    `json:"pid"`
	UID      int    `json:"uid"`
	User     string `json:"user"`
	Cmd      string `json:"cmd"`
	Owner    uint64 `json:"owner,omitempty"`
	Shared   bool   `json:"shared,omitempty"`
	Permits  int    `json:"permits,omitempty"`
	WaitedMS int64  `json:"waited_ms"`
}

func viewLock(row *locksidecar.LockInfo, now time.Time, users display.UserNames) lockView {
	v := lockView{Name: row.Name, Kind: row.Kind, State: row.State, Grants: row.Grants, Waiting: row.Waiting, Waiters: []waiterView{}}
	if row.InCluster {
		slot := row.Slot
		v.Slot, v.Shard = &slot, row.Shard
	}
	switch holds, permits := row.Holds, row.Permits; row.Kind {
	case locksidecar.KindReadWrite:
		v.Holds, v.Shared, v.Holders = &holds, row.Shared, viewHolds(row.Holders, users)
	case locksidecar.KindPermits:
		v.Holds, v.Permits, v.Of, v.Holders = &holds, &permits, row.Of, viewHolds(row.Holders, users)
	}
	switch row.State {
	case locksidecar.LockHeld:
		held, left := row.Held.Milliseconds(), max(0, row.Deadline.Sub(now).Milliseconds())
		v.Hold, v.Token, v.Count, v.Owner, v.Session = row.Hold, row.Token, row.Count, row.Owner, row.Session
		if v.isHidden = isHolderHidden(row); !v.isHidden {
			v.PID, v.UID, v.User, v.Cmd = row.PID, &row.UID, users.Name(row.UID), row.Cmd
		}
		if state(row) == stateKept {
			v.PID = 0 // it may be that of another process by now
		}
		v.HeldMS, v.LeftMS, v.LeaseMS, v.Absent, v.Orphan = &held, &left, row.Lease.Milliseconds(), row.Absent, row.Orphan
		v.AbsentMS, v.AbsentLeft = row.AbsentFor.Milliseconds(), row.AbsentLeft.Milliseconds()
		v.KeepLeftMS = row.KeepLeft.Milliseconds()
	case locksidecar.LockRemote:
		ttl := row.RemoteTTL.Milliseconds()
		if row.RemotePersistent {
			ttl = -1 // as PTTL
		}
		v.RemoteField, v.RemoteHost, v.RemoteTTLMS = row.RemoteField, row.RemoteHost, &ttl
	}
	for _, w := range row.Waiters {
		v.Waiters = append(v.Waiters, waiterView{w.Session, w.PID, w.UID, users.Name(w.UID), w.Cmd, w.Owner, w.Shared, w.Permits, w.Waited.Milliseconds()})
	}
	return v
}

// hiddenHolder stands for the command of a holder that the policy hides.
const hiddenHolder = "a process of another user, which the policy hides"

// isHolderHidden reports whether the policy hides the holder of a lock from this process: or else the
// holder would be shown as a process of root, whose uid is 0.
func isHolderHidden(row *locksidecar.LockInfo) bool {
	return row.State == locksidecar.LockHeld && row.Session == 0 && row.PID == 0 && row.UID == 0
}

// holderOf returns the user and the command of the process that holds the lock, for people.
func (v *lockView) holderOf() (user, cmd string) {
	if v.isHidden {
		return "?", hiddenHolder
	}
	return v.User, v.Cmd
}

// width returns the width of the terminal out; 0: out is not a terminal.
func width(out io.Writer) int {
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

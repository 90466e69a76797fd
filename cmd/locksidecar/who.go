package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type whoCmd struct {
	socketFlag
	JSON bool   `help:"Print a JSON object."`
	Name string `arg:"" complete:"locks" help:"The lock, or the semaphore: its whole name."`
}

func (whoCmd) Help() string {
	return `Says who has a lock and who waits for it, on all hosts: the process that holds it, with its host, since when,
its fencing token and its lease; the processes of this host that wait; and the hosts that wait, in the order in
which they get the lock. It also says what Redis has of other programs: the owner field of a foreign client,
such as a Redisson program, a read-write lock, or another structure.

Of a semaphore, it says how many permits are held and how many are free, over all hosts; which hosts have them, and
which of their processes, with the number of each hold for locksidecar force-release --hold; and what waiters want.
The oldest 16 holders of this host are shown, and of each other host the oldest 4, up to 16 in all.

The daemon of this host reads the key of the lock in Redis once, and asks the daemon of the holder's host, or of a
semaphore those of eight hosts. That takes a second at most, however many hosts there are. If the other daemon does not
answer, the output says so, and when the key expires. If Redis does not answer, it has what this host knows, which may be out of date.

Examples:

    locksidecar who invoice:42
    locksidecar who --json invoice:42 | jq .holder.pid
    locksidecar who --json partner-api | jq .free

Fields of --json; those in brackets are absent where they do not apply. Times are RFC 3339:

    name, redis ("ok", or why Redis was not read), owners[], queue[], queued
    [key (free, lock, permits, read_write or other), message, ttl_ms (-1: no expiry), expires]
    [holder, since, here, trouble (why there is no holder)]
    [permits, of, free: of a semaphore, on all hosts; without of and free, how many it has is not known]
    holder, here: as a lock of ls --json; holder is that of the owner's host, here that of this host
    of an owner: field, [sidecar, host, entries; of a semaphore permits, holds, holders[]: as in ls --json]
    of a place in the queue: field, [sidecar, host, permits], waited_ms

Exit codes:

    0    Redis was read, also if no one has the lock
    1    failed, see the message
    64   wrong usage
    69   the sidecar cannot be reached; or Redis was not read, and what is printed may be out of date
    77   not permitted`
}

func (c *whoCmd) Validate() error { return protocol.CheckName(c.Name) }

func (c *whoCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, sidecar, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	found, err := sidecar.Who(ctx, c.Name)
	if err != nil {
		return err
	}
	v := viewOwnership(c.Name, &found, time.Now(), make(display.UserNames))
	if c.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(v)
	} else {
		_, err = io.WriteString(out, v.text(time.Now(), time.Local))
	}
	if err == nil && !v.isRead() {
		return exitStatus(exitUnavailable)
	}
	return err
}

// whoView is what --json prints. The help documents its field names, which do not change.
type whoView struct {
	Name    string               `json:"name"`
	Redis   string               `json:"redis"`
	Key     locksidecar.KeyState `json:"key,omitempty"`
	Message string               `json:"message,omitempty"`
	TTLMS   *int64               `json:"ttl_ms,omitempty"`
	Expires *time.Time           `json:"expires,omitempty"`
	Permits *int                 `json:"permits,omitempty"`
	Of      int                  `json:"of,omitempty"`
	Free    *int                 `json:"free,omitempty"`
	Owners  []ownerView          `json:"owners"`
	Holder  *lockView            `json:"holder,omitempty"`
	Since   *time.Time           `json:"since,omitempty"`
	Trouble string               `json:"trouble,omitempty"`
	Queue   []placeView          `json:"queue"`
	Queued  int                  `json:"queued"`
	Here    *lockView            `json:"here,omitempty"`

	isHere bool // the holder is a process of this host
}

type ownerView struct {
	Field   string `json:"field"`
	Sidecar string `json:"sidecar,omitempty"`
	Host    string `json:"host,omitempty"`
	Entries int    `json:"entries,omitempty"`

	// Of a semaphore.
	Permits int        `json:"permits,omitempty"`
	Holds   int        `json:"holds,omitempty"`
	Holders []holdView `json:"holders,omitempty"`

	isHere bool // it is the sidecar of this host
}

type placeView struct {
	Field    string `json:"field"`
	Sidecar  string `json:"sidecar,omitempty"`
	Host     string `json:"host,omitempty"`
	Permits  int    `json:"permits,omitempty"`
	WaitedMS int64  `json:"waited_ms"`
}

func viewOwnership(name string, o *locksidecar.Ownership, now time.Time, users display.UserNames) *whoView {
	v := &whoView{
		Name: name, Redis: o.Redis, Key: o.Key, Message: o.Message, Owners: []ownerView{}, Trouble: o.Trouble,
		Queue: []placeView{}, Queued: o.Queued,
	}
	if o.Key != "" && o.Key != locksidecar.KeyFree {
		ttl := o.TTL.Milliseconds()
		if o.Persistent {
			ttl = -1 // as PTTL
		} else {
			expires := now.Add(o.TTL).UTC()
			v.Expires = &expires
		}
		v.TTLMS = &ttl
	}
	for _, owner := range o.Owners {
		v.Owners = append(v.Owners, ownerView{Field: owner.Field, Sidecar: owner.Sidecar, Host: owner.Host, Entries: owner.Entries})
	}
	for _, p := range o.Queue {
		v.Queue = append(v.Queue, placeView{p.Field, p.Sidecar, p.Host, p.Permits, p.Waited.Milliseconds()})
	}
	if o.Lock != nil {
		here := viewLock(o.Lock, now, users)
		v.Here = &here
	}
	if o.Key == locksidecar.KeyPermits {
		v.viewPermits(o, users)
	}
	if o.Holder == nil {
		return v
	}
	// Two hosts do not hold a lock at one time, and only the one that has it keeps it after a release.
	v.isHere = o.Lock != nil && o.Lock.State == o.Holder.State && o.Lock.Hold == o.Holder.Hold &&
		(o.Lock.State == locksidecar.LockHeld || o.Lock.State == locksidecar.LockLingering)
	if v.isHere && len(v.Owners) > 0 {
		v.Owners[0].isHere = true
	}
	if !v.isHere {
		users = nil
	}
	holder := viewLock(o.Holder, now, users)
	v.Holder = &holder
	if o.Holder.State == locksidecar.LockHeld {
		since := now.Add(-o.Holder.Held).UTC()
		v.Since = &since
	}
	return v
}

// namedUser returns the name of a user; that of another host is a uid, of which 0 is root everywhere.
func namedUser(name string) string {
	if name == "0" {
		return display.Shown(name)
	}
	return name
}

// isRead reports whether Redis was read, so that the answer is certain.
func (v *whoView) isRead() bool { return v.Key != "" }

// text describes what was found, with times of a zone.
func (v *whoView) text(now time.Time, zone *time.Location) string {
	var b strings.Builder
	fmt.Fprintf(&b, "LOCK    %s\n", display.Printable(v.Name))
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-7s %s\n", label, display.Printable(fmt.Sprintf(format, args...)))
	}
	clock := func(t time.Time) string {
		t = t.In(zone)
		if t.Format(time.DateOnly) == now.In(zone).Format(time.DateOnly) {
			return t.Format(time.TimeOnly)
		}
		return t.Format(time.DateTime)
	}
	since := func(heldMS int64) string {
		return clock(now.Add(-ms(heldMS))) + ", for " + display.Duration(ms(heldMS))
	}
	line("STATE", "%s", v.state())
	if l := cmp.Or(v.Here, v.Holder); l != nil && l.Slot != nil {
		if l.Shard == "" {
			line("SLOT", "%d, which no master of the Cluster has", *l.Slot)
		} else {
			line("SLOT", "%d, of the master at %s", *l.Slot, l.Shard)
		}
	}
	switch h := v.Holder; {
	case !v.isRead():
		line("", "Redis was not read, so this may be out of date: %s", v.Redis)
		if h := v.Here; h != nil && h.Kind == locksidecar.KindPermits {
			v.textPermits(line, since)
		} else if h != nil && h.HeldMS != nil {
			line("SINCE", "%s", since(*h.HeldMS))
			line("TOKEN", "%d", h.Token)
			line("LEASE", "%s left, until %s, unless it is renewed", display.Duration(ms(*h.LeftMS)), clock(now.Add(ms(*h.LeftMS))))
		}
	case v.Permits != nil, v.Key == locksidecar.KeyFree && v.Here != nil && v.Here.Kind == locksidecar.KindPermits:
		v.textPermits(line, since)
	case h != nil && h.HeldMS != nil:
		user, cmd := h.holderOf()
		if h.state() == stateKept {
			line("HOLDER", "none any more: a process of user %s had it", namedUser(user))
		} else {
			line("HOLDER", "pid %s, user %s: %s", pid(h.PID), namedUser(user), cmp.Or(cmd, "?"))
		}
		line("SINCE", "%s", since(*h.HeldMS))
		line("TOKEN", "%d", h.Token)
		until := clock(now.Add(ms(*h.LeftMS)))
		switch {
		case h.state() == stateKept:
			line("KEPT", "for another %s, until %s: the hold has ended, and asked for it (--keep)", display.Duration(ms(h.KeepLeftMS)), clock(now.Add(ms(h.KeepLeftMS))))
		case h.LeaseMS > 0:
			line("LEASE", "%s left, until %s; fixed: it is not renewed", display.Duration(ms(*h.LeftMS)), until)
		default:
			line("LEASE", "%s left, until %s; the daemon renews it", display.Duration(ms(*h.LeftMS)), until)
		}
		switch {
		case h.state() == stateKept:
		case h.Orphan:
			line("", "its process is gone, and the lock is kept a little longer")
		case h.Absent:
			explainAbsence(line, absence(h), commandFor("force-release", v.Name), v.isHere)
		}
		if !v.isHere && h.Waiting > 0 {
			line("WAITING", "%d on the host of the holder", h.Waiting)
		}
	default:
		if v.Trouble != "" {
			line("", "%s", v.Trouble)
		}
		if v.Key == locksidecar.KeyReadWrite {
			for _, o := range v.Owners {
				line("OWNER", "%s", o.Field)
			}
		}
		if h := v.Here; h != nil && h.Kind == locksidecar.KindReadWrite {
			h.textReadWrite(line, since)
		}
		switch {
		case v.Expires != nil:
			line("EXPIRES", "in %s, at %s, unless it is renewed", display.Duration(ms(*v.TTLMS)), clock(*v.Expires))
		case v.TTLMS != nil:
			line("EXPIRES", "never: its key has no time to live")
		}
	}
	v.waits(line)
	return b.String()
}

// textReadWrite describes the holds of this host of a read/write lock.
func (l *lockView) textReadWrite(line func(label, format string, args ...any), since func(heldMS int64) string) {
	for i, h := range l.Holders {
		label, does := "", "writes"
		if i == 0 {
			label = "HERE"
		}
		if h.Shared {
			does = "reads"
		}
		line(label, "hold %d %s: pid %s, user %s, since %s: %s", h.Hold, does, pid(h.PID), namedUser(h.User), since(h.HeldMS), h.Cmd)
	}
	if more := l.held() - len(l.Holders); more > 0 {
		line("", "… %s", display.Count(more, "more hold"))
	}
}

// explainAbsence describes a hold whose process is absent, and the command that ends it.
func explainAbsence(line func(label, format string, args ...any), absence, command string, isHere bool) {
	line("ABSENT", "%s", absence)
	line("", "a program that is busy or idle comes back with its next use of a lock; one that has replaced the holder (exec) does not")
	there := ""
	if !isHere {
		there = "on its host "
	}
	line("", "to end the hold, end the process, or use %s%s", there, command)
}

// state says in a few words who has the lock.
func (v *whoView) state() string {
	switch v.Key {
	case "":
		return v.stateHere()
	case locksidecar.KeyFree:
		if v.Here != nil && v.Here.State == locksidecar.LockHeld {
			if v.Here.Kind == locksidecar.KindPermits {
				return fmt.Sprintf("free in Redis, although processes of this host have %s: the key was deleted, or is on its way", v.Here.permits())
			}
			return fmt.Sprintf("free in Redis, although pid %s of this host holds it: the key was deleted, or is on its way", pid(v.Here.PID))
		}
		return "free"
	case locksidecar.KeyReadWrite:
		if v.Here != nil && v.Here.Kind == locksidecar.KindReadWrite {
			return fmt.Sprintf("a read/write lock, in mode %s", v.Message)
		}
		return fmt.Sprintf("a read-write lock of a foreign client, in mode %s", v.Message)
	case locksidecar.KeyOther:
		return "no lock: Redis has " + v.Message + " under this name"
	case locksidecar.KeyPermits:
		return v.statePermits()
	case locksidecar.KeyLock:
	default:
		return string(v.Key)
	}
	if len(v.Owners) == 0 {
		return "held"
	}
	o := &v.Owners[0]
	if o.Sidecar == "" {
		return fmt.Sprintf("held by a foreign client (or a sidecar of an old version that has ended), whose owner field is %s", o.Field)
	}
	where := o.where()
	switch {
	case v.Holder == nil:
		return "held by " + where + "; by which process is not known"
	case v.Holder.State == locksidecar.LockHeld:
		return "held on " + where
	case v.Holder.State == locksidecar.LockLingering:
		return "released, and kept for a moment by " + where
	}
	return "on its way: Redis has it for " + where + ", whose daemon has not granted it yet; ask again"
}

// where names the host of the sidecar of an owner.
func (o *ownerView) where() string {
	where := "host " + o.Host
	switch {
	case o.isHere && o.Host == "":
		where = "this host"
	case o.isHere:
		where = "this host, " + o.Host
	case o.Host == "":
		where = "a host whose name is not known"
	}
	return where + " (sidecar " + o.Sidecar + ")"
}

// stateHere says what this host knows.
func (v *whoView) stateHere() string {
	h := v.Here
	switch {
	case h == nil, h.State == locksidecar.LockFree && h.Waiting == 0: // which says nothing of other hosts
		return "not known: no process of this host holds it or waits for it"
	case h.state() == stateKept:
		return fmt.Sprintf("kept on this host for another %s: %s", display.Duration(ms(h.KeepLeftMS)), keptCommand)
	case h.HeldMS != nil && h.Kind == locksidecar.KindPermits:
		return fmt.Sprintf("held on this host: %s; what other hosts have is not known", h.permits())
	case h.HeldMS != nil:
		user, cmd := h.holderOf()
		return fmt.Sprintf("held on this host by pid %s, user %s: %s", pid(h.PID), namedUser(user), cmd)
	case h.RemoteTTLMS != nil:
		return "when Redis last answered: " + elsewhere(h)
	}
	return "when Redis last answered: " + string(h.State)
}

// waits prints who waits: on this host, and which hosts.
func (v *whoView) waits(line func(label, format string, args ...any)) {
	if v.Here != nil {
		for i, w := range v.Here.Waiters {
			label := ""
			if i == 0 {
				label = "WAITING"
			}
			line(label, "here: pid %s, user %s, %s: %s", pid(w.PID), namedUser(w.User), waits(ms(w.WaitedMS), w.Permits, w.Shared), w.Cmd)
		}
		switch more := v.Here.Waiting - len(v.Here.Waiters); {
		case more > 0 && len(v.Here.Waiters) == 0:
			line("WAITING", "here: %d", more)
		case more > 0:
			line("", "here: %d more", more)
		}
	}
	for i, p := range v.Queue {
		label := ""
		if i == 0 {
			label = "QUEUE"
		}
		line(label, "%d. %s, %s", i+1, placeName(&p), waits(ms(p.WaitedMS), p.Permits, false))
	}
	if more := v.Queued - len(v.Queue); more > 0 {
		line("", "… %s", display.Count(more, "more host"))
	}
}

func placeName(p *placeView) string {
	if p.Host != "" {
		return "host " + p.Host
	}
	return "sidecar " + cmp.Or(p.Sidecar, p.Field)
}

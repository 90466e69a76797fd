package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type statusCmd struct {
	socketFlag
	JSON bool `help:"Print a JSON object."`
}

func (statusCmd) Help() string {
	return `Prints how the sidecar and its locks are: since when it runs, how Redis is and how long its last round trip took,
the oldest waiter and the oldest hold with their processes, renewals that are late, the losses of the last hour, and what
the last restart took over; of a Redis Cluster also how each master is, those in trouble first. If a policy hides locks from you, the oldest are those that you may see. Exit code 0 means
that the sidecar answered; locksidecar ping is a health check.

Example:

    locksidecar status

Fields of --json; those in brackets are absent where they do not apply:

    version, started, redis ("ok", or a sentence), [degraded,] redis_address, [redis_run_id, redis_risk, key_prefix, roundtrip_us, trouble, hidden]
    sessions, held, waiting, renewals_late, lost_last_hour: an object with the reasons and their counts
    [oldest_hold, oldest_waiter: name, session, pid, uid, user, cmd, age_ms; of a waiter also held_by: [kind,] state, [permits, of,] pid, …]
    [restart: reason, held, sessions, ended, back, away]
    [shards, shard_count: the masters of a Redis Cluster, those in trouble first, 64 at most, and how many there are:
     [address (absent: no master has these slots),] slots, redis, [degraded, roundtrip_us,] held, waiting, unsent]

` + exitTable
}

func (c *statusCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, sidecar, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	status, err := sidecar.Status(ctx)
	if err != nil {
		return err
	}
	users := make(display.UserNames)
	v := viewStatus(&status, time.Now(), users)
	if v.Hidden != "" {
		if err := v.findOldest(ctx, sidecar, users); err != nil {
			return err
		}
	}
	if w := v.OldestWaiter; w != nil {
		row, ok, err := sidecar.Info(ctx, w.Name)
		if err != nil {
			return err
		}
		if ok {
			w.HeldBy = viewHolder(&row, users)
		}
	}
	if c.JSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		v.Started = v.Started.UTC()
		return e.Encode(v)
	}
	_, err = io.WriteString(out, v.text())
	return err
}

// statusView is the status as --json prints it. The help documents its field names, which do not
// change.
type statusView struct {
	Version      string         `json:"version"`
	Started      time.Time      `json:"started"`
	Redis        string         `json:"redis"`
	Degraded     bool           `json:"degraded,omitempty"`
	RedisAddress string         `json:"redis_address"`
	RedisRunID   string         `json:"redis_run_id,omitempty"`
	RedisRisk    string         `json:"redis_risk,omitempty"`
	KeyPrefix    string         `json:"key_prefix,omitempty"`
	RoundTripUS  *int64         `json:"roundtrip_us,omitempty"`
	Trouble      string         `json:"trouble,omitempty"`
	Hidden       string         `json:"hidden,omitempty"`
	Sessions     int            `json:"sessions"`
	Held         int            `json:"held"`
	Waiting      int            `json:"waiting"`
	RenewalsLate int            `json:"renewals_late"`
	LostLastHour map[string]int `json:"lost_last_hour"`
	OldestHold   *oldestView    `json:"oldest_hold,omitempty"`
	OldestWaiter *oldestView    `json:"oldest_waiter,omitempty"`
	Restart      *restartView   `json:"restart,omitempty"`
	Shards       []shardView    `json:"shards,omitempty"`
	ShardCount   int            `json:"shard_count,omitempty"`
	lost         []locksidecar.LossCount
	runsFor      time.Duration
}

type oldestView struct {
	Name    string      `json:"name"`
	Session uint64      `json:"session"`
	PID     int         `json:"pid"`
	UID     int         `json:"uid"`
	User    string      `json:"user"`
	Cmd     string      `json:"cmd"`
	AgeMS   int64       `json:"age_ms"`
	HeldBy  *holderView `json:"held_by,omitempty"`
}

// holderView is the holder of the lock that the oldest waiter waits for, or the oldest holder of a semaphore.
type holderView struct {
	Kind        locksidecar.LockKind  `json:"kind,omitempty"`
	State       locksidecar.LockState `json:"state"`
	Permits     *int                  `json:"permits,omitempty"`
	Of          int                   `json:"of,omitempty"`
	PID         int                   `json:"pid,omitempty"`
	User        string                `json:"user,omitempty"`
	Cmd         string                `json:"cmd,omitempty"`
	HeldMS      int64                 `json:"held_ms,omitempty"`
	KeepLeftMS  int64                 `json:"keep_left_ms,omitempty"`
	RemoteField string                `json:"remote_field,omitempty"`
	RemoteHost  string                `json:"remote_host,omitempty"`
	isHidden    bool
}

// shardView is a master of a Cluster, or the slots that have none.
type shardView struct {
	Address     string `json:"address,omitempty"`
	Slots       int    `json:"slots"`
	Redis       string `json:"redis"`
	Degraded    bool   `json:"degraded,omitempty"`
	RoundTripUS *int64 `json:"roundtrip_us,omitempty"`
	Held        int    `json:"held"`
	Waiting     int    `json:"waiting"`
	Unsent      int    `json:"unsent"`
}

type restartView struct {
	Reason   string `json:"reason,omitempty"`
	Held     int    `json:"held"`
	Sessions int    `json:"sessions"`
	Ended    int    `json:"ended"`
	Back     int    `json:"back"`
	Away     int    `json:"away"`
}

// viewStatus views a status of the time now.
func viewStatus(s *locksidecar.Status, now time.Time, users display.UserNames) *statusView {
	v := &statusView{
		Version: s.Version, Redis: s.Redis, Degraded: s.Degraded, RedisAddress: s.RedisAddress, RedisRunID: s.RedisRunID, RedisRisk: s.RedisRisk, KeyPrefix: s.KeyPrefix, Trouble: s.Trouble, Hidden: s.Hidden,
		Sessions: s.Sessions, Held: s.Held, Waiting: s.Waiting, RenewalsLate: s.RenewalsLate,
		OldestHold: viewOldest(s.OldestHold, users), OldestWaiter: viewOldest(s.OldestWaiter, users), Restart: (*restartView)(s.Restart),
		LostLastHour: make(map[string]int), lost: s.Lost, Started: s.Started, runsFor: now.Sub(s.Started),
	}
	v.RoundTripUS, v.ShardCount = microsOf(s.RoundTrip), s.ShardCount
	for _, r := range s.Shards {
		v.Shards = append(v.Shards, shardView{r.Address, r.Slots, r.Redis, r.Degraded, microsOf(r.RoundTrip), r.Held, r.Waiting, r.Unsent})
	}
	for _, l := range s.Lost {
		v.LostLastHour[string(l.Reason)] = l.Count
	}
	return v
}

// microsOf returns a round trip in microseconds; nil: there was none.
func microsOf(roundTrip time.Duration) *int64 {
	if roundTrip == 0 {
		return nil
	}
	us := roundTrip.Microseconds()
	return &us
}

func viewOldest(r *locksidecar.Oldest, users display.UserNames) *oldestView {
	if r == nil {
		return nil
	}
	return &oldestView{Name: r.Name, Session: r.Session, PID: r.PID, UID: r.UID, User: users.Name(r.UID), Cmd: r.Cmd, AgeMS: r.Age.Milliseconds()}
}

func viewHolder(row *locksidecar.LockInfo, users display.UserNames) *holderView {
	v := &holderView{Kind: row.Kind, State: row.State, RemoteField: row.RemoteField, RemoteHost: row.RemoteHost}
	if row.Kind == locksidecar.KindPermits {
		permits := row.Permits
		v.Permits, v.Of = &permits, row.Of
	}
	switch {
	case state(row) == stateKept:
		v.KeepLeftMS = row.KeepLeft.Milliseconds()
	case isHolderHidden(row):
		v.HeldMS, v.isHidden = row.Held.Milliseconds(), true
	case row.State == locksidecar.LockHeld:
		v.PID, v.User, v.Cmd, v.HeldMS = row.PID, users.Name(row.UID), row.Cmd, row.Held.Milliseconds()
	}
	return v
}

// text renders the status for people.
func (v *statusView) text() string {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-9s %s\n", label, display.Printable(fmt.Sprintf(format, args...)))
	}
	line("sidecar", "%s, for %s, since %s", v.Version, display.Duration(v.runsFor), v.Started.Format("Mon Jan _2 15:04:05"))
	if v.Trouble != "" {
		line("TROUBLE", "%s", v.Trouble)
	}
	place := cmp.Or(v.RedisAddress, "unknown address")
	if v.KeyPrefix != "" {
		place += fmt.Sprintf(", key prefix %q", v.KeyPrefix)
	}
	switch {
	case v.Degraded && v.ShardCount > 1:
		line("REDIS", "degraded, it refuses what some locks need: %s (%s)", v.Redis, place)
	case v.Degraded:
		line("REDIS", "degraded, it refuses what locks need: %s (%s)", v.Redis, place)
	case v.Redis != "ok":
		line("REDIS", "does not serve: %s (%s)", v.Redis, place)
	case v.RoundTripUS == nil:
		line("redis", "serves; no round trip yet (%s)", place)
	default:
		line("redis", "serves; the last round trip took %s (%s)", describeMicros(*v.RoundTripUS), place)
	}
	if v.RedisRisk != "" {
		line("RISK", "%s", v.RedisRisk)
	}
	b.WriteString(v.shardTable())
	which := ""
	if v.Hidden != "" {
		line("HIDDEN", "%s; the numbers count those of all users", v.Hidden)
		which = " that you may see"
	}
	line("sessions", "%d", v.Sessions)
	if o := v.OldestHold; o == nil {
		line("held", "%d%s", v.Held, v.noneSeen(v.Held))
	} else {
		line("held", "%d; the oldest"+which+", %s, has been held for %s by %s", v.Held, quoted(o.Name), display.Duration(ms(o.AgeMS)), display.Client(o.PID, o.Cmd, o.User))
	}
	if o := v.OldestWaiter; o == nil {
		line("waiting", "%d%s", v.Waiting, v.noneSeen(v.Waiting))
	} else {
		line("waiting", "%d; the oldest"+which+", %s, has waited %s for %s", v.Waiting, display.Client(o.PID, o.Cmd, o.User), display.Duration(ms(o.AgeMS)), quoted(o.Name))
		if h := o.HeldBy; h != nil {
			line("", "%s is %s", quoted(o.Name), h.describe())
		}
	}
	if v.RenewalsLate > 0 {
		line("RENEWALS", "%d late: less than half of their lease is left", v.RenewalsLate)
	} else {
		line("renewals", "in time")
	}
	if len(v.lost) == 0 {
		line("lost", "none in the last hour")
	} else {
		var parts []string
		for _, l := range v.lost {
			parts = append(parts, fmt.Sprintf("%d %s", l.Count, string(l.Reason)))
		}
		line("LOST", "in the last hour: %s; locksidecar events has the names", strings.Join(parts, ", "))
	}
	if v.Restart == nil {
		line("restart", "there was no sidecar before this one, or it had no locks")
	} else {
		label, text := v.Restart.describe()
		line(label, "%s", text)
	}
	return b.String()
}

// maxShardLines is how many shards are printed at most, besides those in trouble.
const maxShardLines = 12

var shardHeader = []string{"MASTER", "SLOTS", "ROUND TRIP", "HELD", "WAITING", "UNSENT", "REDIS"}

// shardTable renders the masters of a Cluster, below the line about Redis; "": it is none.
func (v *statusView) shardTable() string {
	if len(v.Shards) == 0 {
		return ""
	}
	rows := [][]string{shardHeader}
	for i := range v.Shards {
		s := &v.Shards[i]
		if i >= maxShardLines && s.Redis == "ok" {
			break
		}
		trip := "none yet"
		if s.RoundTripUS != nil {
			trip = describeMicros(*s.RoundTripUS)
		}
		if s.Address == "" {
			trip = ""
		}
		rows = append(rows, []string{
			cmp.Or(s.Address, "none"), strconv.Itoa(s.Slots), trip, strconv.Itoa(s.Held), strconv.Itoa(s.Waiting), strconv.Itoa(s.Unsent), s.Redis,
		})
	}
	var b strings.Builder
	for text := range strings.Lines(alignRows(rows, 0)) {
		fmt.Fprintf(&b, "%-9s %s", "", text)
	}
	if more := v.ShardCount - (len(rows) - 1); more > 0 {
		fmt.Fprintf(&b, "%-9s … %d more\n", "", more)
	}
	return b.String()
}

// noneSeen says that this process may see none of so many holds or waiters, if the policy hides some.
func (v *statusView) noneSeen(n int) string {
	if v.Hidden == "" || n == 0 {
		return ""
	}
	return "; you may see none of them"
}

// findOldest finds the oldest hold and the oldest waiter that this process may see, if the oldest of all
// are hidden from it: the sidecar does not look for them, because each process may see others.
func (v *statusView) findOldest(ctx context.Context, sidecar *locksidecar.Client, users display.UserNames) error {
	if v.OldestHold != nil && v.OldestWaiter != nil {
		return nil
	}
	rows, err := sidecar.List(ctx)
	if errors.Is(err, locksidecar.ErrDenied) {
		return nil // it may see none
	} else if err != nil {
		return err
	}
	var hold, waiter *locksidecar.Oldest
	for i := range rows {
		r := &rows[i]
		v := viewLock(r, time.Time{}, users)
		if holders := v.holders(); len(holders) > 0 && v.state() != stateKept && (hold == nil || ms(holders[0].HeldMS) > hold.Age) {
			h := &holders[0]
			hold = &locksidecar.Oldest{Name: r.Name, Session: h.Session, PID: h.PID, UID: h.UID, Cmd: h.Cmd, Age: ms(h.HeldMS)}
		}
		if len(r.Waiters) == 0 {
			continue
		}
		if w := &r.Waiters[0]; waiter == nil || w.Waited > waiter.Age {
			waiter = &locksidecar.Oldest{Name: r.Name, Session: w.Session, PID: w.PID, UID: w.UID, Cmd: w.Cmd, Age: w.Waited}
		}
	}
	if v.OldestHold == nil {
		v.OldestHold = viewOldest(hold, users)
	}
	if v.OldestWaiter == nil {
		v.OldestWaiter = viewOldest(waiter, users)
	}
	return nil
}

func (h *holderView) describe() string {
	holder := display.Client(h.PID, h.Cmd, h.User)
	if h.isHidden {
		holder = hiddenHolder
	}
	remote := remoteHolder(h.Kind, h.RemoteHost, h.RemoteField)
	if h.Kind == locksidecar.KindPermits {
		text := "a semaphore, of which processes of this host have " + display.Permits(*h.Permits, h.Of)
		switch h.State {
		case locksidecar.LockHeld:
			text += fmt.Sprintf("; the oldest holder, for %s, is %s", display.Duration(ms(h.HeldMS)), holder)
		case locksidecar.LockRemote:
			text += "; " + remote
		}
		return text
	}
	switch {
	case h.KeepLeftMS > 0:
		return fmt.Sprintf("kept for another %s: %s", display.Duration(ms(h.KeepLeftMS)), keptCommand)
	case h.State == locksidecar.LockHeld:
		return fmt.Sprintf("held for %s by %s", display.Duration(ms(h.HeldMS)), holder)
	case h.State == locksidecar.LockRemote:
		return remote
	case h.State == locksidecar.LockFree: // it is waited for, so it is not
		return "held by an owner that is not known here; locksidecar who asks all hosts"
	}
	return string(h.State)
}

// describe describes the last restart, with the label of its line.
func (r *restartView) describe() (label, text string) {
	if r.Reason != "" {
		return "RESTART", "the state of the sidecar before could not be used, and its locks ended with their leases: " + r.Reason
	}
	text = fmt.Sprintf("took over %s of %s: %d back, %d away", display.Count(r.Held, "held lock"), display.Count(r.Sessions, "client"), r.Back, r.Away)
	if r.Ended > 0 {
		text += fmt.Sprintf("; the processes of %d had ended, and their locks were released", r.Ended)
	}
	return "restart", text
}

func quoted(name string) string { return fmt.Sprintf("%q", name) }

func describeMicros(us int64) string {
	return (time.Duration(us) * time.Microsecond).String()
}

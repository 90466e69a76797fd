package protocol

// Reply is a message from a sidecar: an answer, an error or an event.
type Reply interface {
	// Append appends the reply to dst as one whole frame.
	Append(dst []byte) []byte
	reply()
}

// HelloOK answers Hello.
type HelloOK struct {
	ID      uint64
	V       int64  // protocol version of this connection
	Sidecar string // uuid of the sidecar; it changes with a restart that finds no state
	Version string // of the sidecar's software
	Session uint64
	LeaseMS int64 // of the watchdog
	NowNS   int64
	Ticket  string // resumes this session; empty: it cannot be resumed
	Resumed bool   // this is the session of Hello.Resume, and the client has to claim its holds
	Msg     string // why the session of Hello.Resume was ended; empty: it was not
}

// AcquireOK grants a lock, a read/write lock, or permits.
type AcquireOK struct {
	ID         uint64
	Token      uint64
	Hold       uint64
	Count      uint32
	DeadlineNS int64
	EndNS      int64 // end of max_hold_ms; 0: it has none
	Shared     bool  // of a read/write lock: other holds may be shared beside it

	// Of a semaphore.
	Permits uint16 // of the hold
	Of      uint16 // how many the semaphore has for this request: fewer than it named, if a policy says so
}

// DowngradeOK answers Downgrade: the hold is shared from now on.
type DowngradeOK struct {
	ID         uint64
	DeadlineNS int64
}

// ReleaseOK answers Release with the number of entries left.
type ReleaseOK struct {
	ID    uint64
	Count uint32
}

// ConfirmOK answers Confirm: Redis has executed the releases.
type ConfirmOK struct{ ID uint64 }

// CancelOK answers Cancel; Canceled: the acquire was waiting.
type CancelOK struct {
	ID       uint64
	Canceled bool
}

// InfoOK answers Info; Lock is nil if this sidecar has no lock of that name.
type InfoOK struct {
	ID   uint64
	Lock *LockRow
}

// ListOK answers List with a page; Next is 0 for the last page. The sum of the sizes of its rows
// is at most ListRoom.
type ListOK struct {
	ID    uint64
	Locks []LockRow
	Next  uint64
}

// ForceReleaseOK answers ForceRelease with the holds that were ended.
type ForceReleaseOK struct {
	ID    uint64
	Hold  uint64 // of several, the newest
	Count uint32 // how many; 0: one
}

// MetricsOK answers Metrics with whole metrics in the text format of Prometheus. Next is 0 for the
// last page.
type MetricsOK struct {
	ID   uint64
	Text string // truncated to MetricsRoom bytes
	Next uint64
}

// MetricsRoom is how many bytes of text a MetricsOK has room for.
const MetricsRoom = MaxFrame - 64

// EventsOK answers Events with a page. The sum of the sizes of its rows is at most ListRoom.
type EventsOK struct {
	ID     uint64
	Events []EventRow // in the order in which they happened
	Next   uint64     // the number of the last of them, for the next request
	Missed uint64     // events before Next that the sidecar does not have any more
	Hidden string     // which events the policy hides from the client, in one sentence; "": none
}

// EventRow shows operators what happened to one lock. Fields that do not apply to its Kind are
// zero.
type EventRow struct {
	AtNS int64  // CLOCK_BOOTTIME
	Kind string // EventGranted, for instance; of a later sidecar perhaps another one
	Name string

	Hold, Token uint64
	Shared      bool   // the hold is a shared one of a read/write lock
	Permits     uint16 // of the hold, of a semaphore
	Session     uint64 // the holder; of EventForced the client that forced it; of EventDeadlock the one that was refused
	PID, UID    int64
	Cmd         string // truncated to MaxCmd bytes
	WaitedMS    int64  // of EventGranted
	HeldMS      int64  // of EventLost, EventReleased and EventCrashed

	Reason      Reason // of EventLost
	RemoteField string // of EventLost, if it is Stolen: what Redis has; of EventGranted: what it had; truncated to MaxField bytes
	RemoteHost  string // name of the host of the sidecar that has it; "": not known, or a foreign client has it
	Count       uint32 // of EventTakeover: the holds that were taken over; of EventReleased and EventCrashed: the waiters; of EventDeadlock and EventRefused: how often, if more than once
	Msg         string // of most kinds: one sentence, truncated to MaxMessage bytes
}

// StatusOK answers Status.
type StatusOK struct {
	ID uint64
	StatusRow
}

// StatusRow shows operators how a sidecar and its locks are.
type StatusRow struct {
	NowNS     int64 // CLOCK_BOOTTIME
	StartedNS int64 // the same, when the daemon was started
	Version   string
	Build     string // the commit that it was built from; "": it is not known

	Redis        string // as in PingOK
	Degraded     bool   // as in PingOK
	RedisAddress string
	RedisRunID   string
	RedisRisk    string // as in PingOK
	KeyPrefix    string
	RoundTripNS  int64  // of the last command that Redis answered, of several shards the longest; 0: there was none
	Trouble      string // why clients cannot connect, or why a restart would end their locks; "": neither is the case

	Sessions, Held, Waiting int
	OldestWaiter            *AgeRow // nil: no request waits
	OldestHold              *AgeRow // nil: there is none
	RenewalsLate            int     // holds of the watchdog with less than half of their lease left
	Lost                    []LossRow
	Restart                 *RestartRow // nil: no sidecar before this one left its state
	Hidden                  string      // what the policy hides from the client, in one sentence; "": nothing

	Shards     []ShardRow // of a Cluster, those in trouble first; the first MaxShards of them
	ShardCount int        // how many there are; 0: Redis is no Cluster
}

// ShardRow is one master of a Cluster that has slots, or the slots that have no master.
type ShardRow struct {
	Address     string // host and port; "": these slots have no master
	Slots       int
	Redis       string // "ok", or one sentence that says what is wrong; truncated to MaxReason bytes
	Degraded    bool   // the master is connected, but refuses what locks need
	RoundTripNS int64  // of the last command that it answered; 0: there was none
	Held        int    // holds of locks of these slots
	Waiting     int    // requests that wait for such locks
	Unsent      int    // operations that wait to be sent to it
}

// AgeRow is the oldest waiter or hold of a StatusRow.
type AgeRow struct {
	Name     string
	Session  uint64
	PID, UID int64
	Cmd      string
	AgeMS    int64
}

// LossRow is how many holds were lost in the last hour for a Reason.
type LossRow struct {
	Reason Reason
	Count  uint32
}

// RestartRow is what the daemon found of its predecessor when it was started.
type RestartRow struct {
	Reason   string // why the state could not be used, and nothing was taken over; "": it was used
	Held     int    // holds that were taken over
	Sessions int    // whose clients may come back; those with holds
	Ended    int    // sessions whose processes had ended
	Back     int    // sessions whose clients have come back
	Away     int    // sessions whose clients have not come back
}

// HostsOK answers Hosts with a page; More: there is another one.
type HostsOK struct {
	ID    uint64
	Hosts []HostRow
	More  bool
}

// HostRow shows operators one sidecar.
type HostRow struct {
	Sidecar string // its uuid
	Host    string // name of its host
	Version string
	PID     int64
	Started int64 // Unix time, ms
}

// HostInfoOK, HostListOK, HostStatusOK and HostForceReleaseOK answer as InfoOK, ListOK, StatusOK and ForceReleaseOK do on
// the other host. The deadlines in their rows are times of this host.
type (
	HostInfoOK         InfoOK
	HostListOK         ListOK
	HostStatusOK       StatusOK
	HostForceReleaseOK ForceReleaseOK
)

// ForceReleaseOrphanedOK answers ForceReleaseOrphaned. Sidecar and Hold are what the owner field
// was that Redis had; of permits, Hold is the number of its claim.
type ForceReleaseOrphanedOK struct {
	ID      uint64
	Sidecar string // uuid
	Hold    uint64
	TTLMS   int64 // how much longer Redis would have had the lock; -1: for good
	Passed  bool  // the lock passed to a sidecar that waited for it
	Permits int   // of a semaphore: that the sidecar had; of a lock 0
}

// PingOK answers Ping. Redis is "ok", or a sentence that says what is wrong. Degraded: Redis is
// connected, but refuses what locks need. RedisAddress is the address of Redis with the number of the database. RedisRunID is the run id of the Redis
// server; "" while there is no connection, or if it is not known. RedisRisk is what endangers locks while Redis
// serves, such as settings with which two owners may have one lock after a failover; "": nothing is known.
// KeyPrefix stands before the names of locks in Redis. Trouble is that of StatusRow.
type PingOK struct {
	ID    uint64
	NowNS int64
	Redis string

	Degraded     bool
	RedisAddress string
	RedisRunID   string
	RedisRisk    string
	KeyPrefix    string
	Trouble      string
}

// ByeOK answers Bye, as the last frame of the connection.
type ByeOK struct{ ID uint64 }

// ClaimOK answers Claim, after a LostEvent for each claimed hold that the session does not have.
type ClaimOK struct{ ID uint64 }

// WhoOK answers Who.
type WhoOK struct {
	ID uint64
	WhoRow
}

// Err is the answer to a request that failed. Without an ID it is the last frame of a connection
// that the sidecar closes.
type Err struct {
	ID   uint64
	Code Code
	Msg  string // one sentence for people, truncated to MaxMessage bytes
}

// LostEvent says that a hold ended without a release.
type LostEvent struct {
	Hold   uint64
	Reason Reason
}

// LeaseEvent is the deadline of every watchdog hold of the session that was granted before the
// event.
type LeaseEvent struct{ DeadlineNS int64 }

// LockRow shows operators one lock. Fields that do not apply to its State are zero.
type LockRow struct {
	Name  string
	Kind  string // "": a lock; KindReadWrite or KindPermits; of a later sidecar perhaps another one
	State string // StateHeld, StateRemote, StateBusy, StateLingering or StateFree; of a later sidecar perhaps another one

	// Held. If there are Holders, those up to KeepLeftMS are of the first of them.
	Hold, Token  uint64
	Count        uint32
	Owner        uint64
	Session      uint64
	PID, UID     int64
	Cmd          string // truncated to MaxCmd bytes
	HeldMS       int64
	DeadlineNS   int64
	LeaseMS      int64 // 0: the watchdog's
	Absent       bool  // the sidecar was restarted, and the client has not resumed its session yet
	AbsentMS     int64 // for how long it has been so
	AbsentLeftMS int64 // how much longer its holds are renewed, in ms; 0: they are not
	Orphan       bool  // no client has the hold any more, and it lasts for its crash_delay, for its keep, or until its deadline
	KeepLeftMS   int64 // how much longer its keep lasts; 0: it has none, or it is over

	// Of a name whose kind admits many holds.
	Held    int         // how many there are
	Shared  int         // of a read/write lock: how many of them are shared
	Permits int         // of a semaphore: of all holds
	Of      uint16      // of a semaphore: the largest number that a holder or the first waiter here has named
	Holders []HolderRow // the oldest MaxWaiters of them

	// Remote.
	RemoteField string // truncated to MaxField bytes
	RemoteHost  string // name of the host of the sidecar that has it; "": not known, or no sidecar has it
	RemoteTTLMS int64  // -1: the key does not expire

	InCluster bool   // Redis is a Cluster
	Slot      uint16 // of the name, InCluster
	Shard     string // address of the master that has the slot; "": none has it, or not InCluster

	Grants  uint32      // first entries of local owners since the sidecar knows the name
	Waiting int         // local waiters
	Waiters []WaiterRow // the first MaxWaiters of them
}

// WhoRow is who has a lock and who waits for it, on all hosts.
type WhoRow struct {
	Lock *LockRow // as this sidecar knows the lock; nil: it does not know it

	Redis   string     // "ok", or one sentence about why Redis was not read: then Key to Queued are empty
	Key     string     // KeyFree, KeyLock, KeyPermits, KeyReadWrite or KeyOther; of a later sidecar perhaps another one
	Msg     string     // KeyReadWrite: its mode; KeyOther: what the key is
	TTLMS   int64      // -1: the key does not expire
	Owners  []OwnerRow // KeyLock: one; KeyPermits, KeyReadWrite: the first of them
	Queue   []OwnerRow // the sidecars that wait, in the order in which they get the lock; the first of them
	Queued  int        // how many there are
	Permits int        // KeyPermits: those that the sidecars have
	Of      uint16     // of a semaphore: the largest number that a holder or waiter has named whose host answered

	Holder  *LockRow // as the sidecar of the owner knows the lock; nil: it did not say
	Trouble string   // one sentence about why Holder is nil; "": there is nothing to ask
}

// OwnerRow is an owner of a key in Redis, or a place in its queue.
type OwnerRow struct {
	Field    string // truncated to MaxField bytes
	Sidecar  string // uuid of the sidecar; "": of another program, or of a sidecar that has ended
	Host     string // name of its host; "": not known
	Entries  int64  // of an owner
	Permits  int    // of a semaphore: that the sidecar has, or that its first waiter wants
	WaitedMS int64  // of a place

	Holders []HolderRow // KeyPermits: the oldest MaxPerHost holds of the sidecar, if it said so; of all rows together MaxWaiters, with shorter commands
	Held    int         // how many it has
}

// What Redis has under the key of a lock.
const (
	KeyFree      = "free"       // nothing
	KeyLock      = "lock"       // a lock with one owner
	KeyPermits   = "permits"    // a semaphore
	KeyReadWrite = "read_write" // a read-write lock of another program
	KeyOther     = "other"      // no lock
)

// HolderRow is one hold of a LockRow that may have many.
type HolderRow struct {
	Hold, Token uint64
	Shared      bool   // of a read/write lock
	Permits     uint16 // of a semaphore
	Session     uint64
	PID, UID    int64
	Cmd         string
	HeldMS      int64
	Absent      bool // as in LockRow
	Orphan      bool // as in LockRow
}

// WaiterRow is one waiter of a LockRow.
type WaiterRow struct {
	Session  uint64
	PID, UID int64
	Cmd      string
	Owner    uint64
	Shared   bool   // it wants a shared hold, of a read/write lock
	Permits  uint16 // that it wants, of a semaphore
	WaitedMS int64
}

func (HelloOK) reply()                {}
func (AcquireOK) reply()              {}
func (DowngradeOK) reply()            {}
func (ReleaseOK) reply()              {}
func (CancelOK) reply()               {}
func (InfoOK) reply()                 {}
func (ListOK) reply()                 {}
func (ForceReleaseOK) reply()         {}
func (MetricsOK) reply()              {}
func (PingOK) reply()                 {}
func (ByeOK) reply()                  {}
func (ClaimOK) reply()                {}
func (ConfirmOK) reply()              {}
func (Err) reply()                    {}
func (LostEvent) reply()              {}
func (LeaseEvent) reply()             {}
func (HostsOK) reply()                {}
func (HostInfoOK) reply()             {}
func (HostListOK) reply()             {}
func (HostStatusOK) reply()           {}
func (HostForceReleaseOK) reply()     {}
func (ForceReleaseOrphanedOK) reply() {}
func (WhoOK) reply()                  {}
func (EventsOK) reply()               {}
func (StatusOK) reply()               {}

func (m HelloOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.int("v", m.V)
	w.text("sidecar", m.Sidecar, MaxClient)
	w.text("version", m.Version, MaxClient)
	w.uint("session", m.Session)
	w.int("lease_ms", m.LeaseMS)
	w.int("now_ns", m.NowNS)
	w.ticketIf("ticket", m.Ticket)
	w.boolIf("resumed", m.Resumed)
	w.textIf("msg", m.Msg, MaxMessage)
	return w.finish()
}

func (m AcquireOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.uint("token", m.Token)
	w.uint("hold", m.Hold)
	w.uint("count", uint64(m.Count))
	w.int("deadline_ns", m.DeadlineNS)
	w.intIf("end_ns", m.EndNS)
	w.boolIf("shared", m.Shared)
	w.uintIf("permits", uint64(m.Permits))
	w.uintIf("of", uint64(m.Of))
	return w.finish()
}

func (m DowngradeOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.int("deadline_ns", m.DeadlineNS)
	return w.finish()
}

func (m ReleaseOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.uint("count", uint64(m.Count))
	return w.finish()
}

func (m CancelOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.bool("canceled", m.Canceled)
	return w.finish()
}

func (m InfoOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.rowIf("lock", m.Lock)
	return w.finish()
}

func (m ListOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.array("locks", len(m.Locks))
	for i := range m.Locks {
		w.row(&m.Locks[i])
	}
	w.uintIf("next", m.Next)
	return w.finish()
}

func (m ForceReleaseOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.uint("hold", m.Hold)
	w.uintIf("count", uint64(m.Count))
	return w.finish()
}

func (m MetricsOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.text("text", m.Text, MetricsRoom)
	w.uintIf("next", m.Next)
	return w.finish()
}

func (m EventsOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.array("events", len(m.Events))
	for i := range m.Events {
		w.event(&m.Events[i])
	}
	w.uint("next", m.Next)
	w.uintIf("missed", m.Missed)
	w.textIf("hidden", m.Hidden, MaxMessage)
	return w.finish()
}

func (m StatusOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.int("now_ns", m.NowNS)
	w.int("started_ns", m.StartedNS)
	w.text("version", m.Version, MaxClient)
	w.textIf("build", m.Build, MaxClient)
	w.text("redis", m.Redis, MaxMessage)
	w.boolIf("degraded", m.Degraded)
	w.textIf("redis_address", m.RedisAddress, MaxField)
	w.textIf("redis_run_id", m.RedisRunID, MaxField)
	w.textIf("redis_risk", m.RedisRisk, MaxMessage)
	w.textIf("key_prefix", m.KeyPrefix, MaxField)
	w.intIf("roundtrip_ns", m.RoundTripNS)
	w.textIf("trouble", m.Trouble, MaxMessage)
	w.int("sessions", int64(m.Sessions))
	w.int("held", int64(m.Held))
	w.int("waiting", int64(m.Waiting))
	w.age("oldest_waiter", m.OldestWaiter)
	w.age("oldest_hold", m.OldestHold)
	w.intIf("renewals_late", int64(m.RenewalsLate))
	if len(m.Lost) > 0 {
		w.array("lost", len(m.Lost))
		for _, l := range m.Lost {
			outer := w.beginMap()
			w.text("reason", string(l.Reason), MaxClient)
			w.uint("count", uint64(l.Count))
			w.endMap(outer)
		}
	}
	if r := m.Restart; r != nil {
		w.key("restart")
		outer := w.beginMap()
		w.textIf("reason", r.Reason, MaxMessage)
		w.intIf("held", int64(r.Held))
		w.intIf("sessions", int64(r.Sessions))
		w.intIf("ended", int64(r.Ended))
		w.intIf("back", int64(r.Back))
		w.intIf("away", int64(r.Away))
		w.endMap(outer)
	}
	w.textIf("hidden", m.Hidden, MaxMessage)
	if n := min(len(m.Shards), MaxShards); n > 0 {
		w.array("shards", n)
		for i := range m.Shards[:n] {
			w.shard(&m.Shards[i])
		}
	}
	w.intIf("shard_count", int64(m.ShardCount))
	return w.finish()
}

func (w *writer) shard(r *ShardRow) {
	outer := w.beginMap()
	w.textIf("address", r.Address, MaxField)
	w.int("slots", int64(r.Slots))
	w.text("redis", r.Redis, MaxReason)
	w.boolIf("degraded", r.Degraded)
	w.intIf("roundtrip_ns", r.RoundTripNS)
	w.intIf("held", int64(r.Held))
	w.intIf("waiting", int64(r.Waiting))
	w.intIf("unsent", int64(r.Unsent))
	w.endMap(outer)
}

func (w *writer) age(k string, r *AgeRow) {
	if r == nil {
		return
	}
	w.key(k)
	outer := w.beginMap()
	w.str("name", r.Name)
	w.uintIf("session", r.Session)
	w.intIf("pid", r.PID)
	w.intIf("uid", r.UID)
	w.textIf("cmd", r.Cmd, MaxCmd)
	w.intIf("age_ms", r.AgeMS)
	w.endMap(outer)
}

func (m HostsOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.array("hosts", len(m.Hosts))
	for i := range m.Hosts {
		r := &m.Hosts[i]
		outer := w.beginMap()
		w.text("sidecar", r.Sidecar, MaxClient)
		w.text("host", r.Host, MaxClient)
		w.textIf("version", r.Version, MaxClient)
		w.intIf("pid", r.PID)
		w.intIf("started_ms", r.Started)
		w.endMap(outer)
	}
	w.boolIf("more", m.More)
	return w.finish()
}

func (m HostInfoOK) Append(dst []byte) []byte         { return InfoOK(m).Append(dst) }
func (m HostListOK) Append(dst []byte) []byte         { return ListOK(m).Append(dst) }
func (m HostStatusOK) Append(dst []byte) []byte       { return StatusOK(m).Append(dst) }
func (m HostForceReleaseOK) Append(dst []byte) []byte { return ForceReleaseOK(m).Append(dst) }

func (m ForceReleaseOrphanedOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.text("sidecar", m.Sidecar, MaxClient)
	w.uint("hold", m.Hold)
	w.intIf("ttl_ms", m.TTLMS)
	w.boolIf("passed", m.Passed)
	w.intIf("permits", int64(m.Permits))
	return w.finish()
}

func (m WhoOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.rowIf("lock", m.Lock)
	w.text("redis", m.Redis, MaxMessage)
	w.textIf("key", m.Key, MaxClient)
	w.textIf("msg", m.Msg, MaxMessage)
	w.intIf("ttl_ms", m.TTLMS)
	w.owners("owners", m.Owners, MaxWaiters)
	w.owners("queue", m.Queue, 0)
	w.intIf("queued", int64(m.Queued))
	w.intIf("permits", int64(m.Permits))
	w.uintIf("of", uint64(m.Of))
	w.rowIf("holder", m.Holder)
	w.textIf("trouble", m.Trouble, MaxMessage)
	return w.finish()
}

func (w *writer) rowIf(k string, r *LockRow) {
	if r != nil {
		w.key(k)
		w.row(r)
	}
}

// maxUUID bounds the sidecar of an owner: a uuid has 36 bytes.
const maxUUID = 64

// owners writes the first rows, and so many of their holders in all.
func (w *writer) owners(k string, rows []OwnerRow, holders int) {
	if len(rows) == 0 {
		return
	}
	rows = rows[:min(len(rows), MaxOwners)]
	w.array(k, len(rows))
	for i := range rows {
		r := &rows[i]
		shown := r.Holders[:min(len(r.Holders), MaxPerHost, holders)]
		holders -= len(shown)
		outer := w.beginMap()
		w.text("field", r.Field, MaxField)
		w.textIf("sidecar", r.Sidecar, maxUUID)
		w.textIf("host", r.Host, MaxClient)
		w.intIf("entries", r.Entries)
		w.intIf("permits", int64(r.Permits))
		w.intIf("waited_ms", r.WaitedMS)
		w.holders(shown, MaxClient)
		w.intIf("held", int64(r.Held))
		w.endMap(outer)
	}
}

func (m PingOK) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.int("now_ns", m.NowNS)
	w.text("redis", m.Redis, MaxMessage)
	w.boolIf("degraded", m.Degraded)
	w.textIf("redis_address", m.RedisAddress, MaxField)
	w.textIf("redis_run_id", m.RedisRunID, MaxField)
	w.textIf("redis_risk", m.RedisRisk, MaxMessage)
	w.textIf("key_prefix", m.KeyPrefix, MaxField)
	w.textIf("trouble", m.Trouble, MaxMessage)
	return w.finish()
}

func (m ByeOK) Append(dst []byte) []byte {
	return begin(dst, "", m.ID).finish()
}

func (m ConfirmOK) Append(dst []byte) []byte {
	return begin(dst, "", m.ID).finish()
}

func (m ClaimOK) Append(dst []byte) []byte {
	return begin(dst, "", m.ID).finish()
}

func (m Err) Append(dst []byte) []byte {
	w := begin(dst, "", m.ID)
	w.key("err")
	outer := w.beginMap()
	w.text("code", string(m.Code), MaxClient)
	w.text("msg", m.Msg, MaxMessage)
	w.endMap(outer)
	return w.finish()
}

func (m LostEvent) Append(dst []byte) []byte {
	w := begin(dst, "", 0)
	w.str("ev", "lost")
	w.uint("hold", m.Hold)
	w.text("reason", string(m.Reason), MaxClient)
	return w.finish()
}

func (m LeaseEvent) Append(dst []byte) []byte {
	w := begin(dst, "", 0)
	w.str("ev", "lease")
	w.int("deadline_ns", m.DeadlineNS)
	return w.finish()
}

// ListRoom is the largest sum of the sizes of the rows of a ListOK or an EventsOK.
const ListRoom = MaxFrame - 64

// Size returns the number of bytes of the row in a frame.
func (r *LockRow) Size() int {
	w := newWriter(nil)
	defer w.free()
	w.row(r)
	return len(w.buf)
}

func (w *writer) row(r *LockRow) {
	outer := w.beginMap()
	w.str("name", r.Name)
	w.textIf("kind", r.Kind, MaxClient)
	w.str("state", r.State)
	w.uintIf("hold", r.Hold)
	w.uintIf("token", r.Token)
	w.uintIf("count", uint64(r.Count))
	w.uintIf("owner", r.Owner)
	w.uintIf("session", r.Session)
	w.intIf("pid", r.PID)
	w.intIf("uid", r.UID)
	w.textIf("cmd", r.Cmd, MaxCmd)
	w.intIf("held_ms", r.HeldMS)
	w.intIf("deadline_ns", r.DeadlineNS)
	w.intIf("lease_ms", r.LeaseMS)
	w.boolIf("absent", r.Absent)
	w.intIf("absent_ms", r.AbsentMS)
	w.intIf("absent_left_ms", r.AbsentLeftMS)
	w.boolIf("orphan", r.Orphan)
	w.intIf("keep_left_ms", r.KeepLeftMS)
	w.intIf("held", int64(r.Held))
	w.intIf("shared", int64(r.Shared))
	w.intIf("permits", int64(r.Permits))
	w.uintIf("of", uint64(r.Of))
	w.holders(r.Holders[:min(len(r.Holders), MaxWaiters)], MaxCmd)
	w.textIf("remote_field", r.RemoteField, MaxField)
	w.textIf("remote_host", r.RemoteHost, MaxClient)
	w.intIf("remote_ttl_ms", r.RemoteTTLMS)
	if r.InCluster {
		w.uint("slot", uint64(r.Slot))
		w.textIf("shard", r.Shard, MaxField)
	}
	w.uintIf("grants", uint64(r.Grants))
	w.intIf("waiting", int64(r.Waiting))
	if n := min(len(r.Waiters), MaxWaiters); n > 0 {
		w.array("waiters", n)
		for i := range r.Waiters[:n] {
			w.waiter(&r.Waiters[i])
		}
	}
	w.endMap(outer)
}

func (w *writer) holders(rows []HolderRow, maxCmd int) {
	if len(rows) == 0 {
		return
	}
	w.array("holders", len(rows))
	for i := range rows {
		r := &rows[i]
		outer := w.beginMap()
		w.uintIf("hold", r.Hold)
		w.uintIf("token", r.Token)
		w.boolIf("shared", r.Shared)
		w.uintIf("permits", uint64(r.Permits))
		w.uintIf("session", r.Session)
		w.intIf("pid", r.PID)
		w.intIf("uid", r.UID)
		w.textIf("cmd", r.Cmd, maxCmd)
		w.intIf("held_ms", r.HeldMS)
		w.boolIf("absent", r.Absent)
		w.boolIf("orphan", r.Orphan)
		w.endMap(outer)
	}
}

func (w *writer) waiter(r *WaiterRow) {
	outer := w.beginMap()
	w.uintIf("session", r.Session)
	w.intIf("pid", r.PID)
	w.intIf("uid", r.UID)
	w.textIf("cmd", r.Cmd, MaxCmd)
	w.uintIf("owner", r.Owner)
	w.boolIf("shared", r.Shared)
	w.uintIf("permits", uint64(r.Permits))
	w.intIf("waited_ms", r.WaitedMS)
	w.endMap(outer)
}

// Size returns the number of bytes of the row in a frame.
func (r *EventRow) Size() int {
	w := newWriter(nil)
	defer w.free()
	w.event(r)
	return len(w.buf)
}

func (w *writer) event(r *EventRow) {
	outer := w.beginMap()
	w.int("at_ns", r.AtNS)
	w.text("kind", r.Kind, MaxClient)
	if r.Name != "" {
		w.str("name", r.Name)
	}
	w.uintIf("hold", r.Hold)
	w.uintIf("token", r.Token)
	w.boolIf("shared", r.Shared)
	w.uintIf("permits", uint64(r.Permits))
	w.uintIf("session", r.Session)
	w.intIf("pid", r.PID)
	w.intIf("uid", r.UID)
	w.textIf("cmd", r.Cmd, MaxCmd)
	w.intIf("waited_ms", r.WaitedMS)
	w.intIf("held_ms", r.HeldMS)
	w.textIf("reason", string(r.Reason), MaxClient)
	w.textIf("remote_field", r.RemoteField, MaxField)
	w.textIf("remote_host", r.RemoteHost, MaxClient)
	w.uintIf("count", uint64(r.Count))
	w.textIf("msg", r.Msg, MaxMessage)
	w.endMap(outer)
}

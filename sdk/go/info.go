package locksidecar

import (
	"math"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// LockInfo describes one lock, read/write lock or semaphore, as a sidecar knows it. Fields that do not apply to its
// Kind or its State are zero.
type LockInfo struct {
	Name  string
	Kind  LockKind
	State LockState

	// Of LockHeld. If it has Holders they are those of the first.
	Hold     uint64        // number of the hold; the sidecar gives each hold another one
	Token    uint64        // fencing token, as [Lock.Token] returns it
	Count    int           // how often its owner has entered it and not unlocked it
	Owner    uint64        // of NewOwner, in its session; 0: the holder cannot re-enter the lock
	Session  uint64        // number of the holder's session
	PID      int           // process of the holder; 0: it is not visible to the sidecar
	UID      int           // user of the holder, as os.Getuid returns it
	Cmd      string        // command line of the holder, up to 256 bytes
	Held     time.Duration // for how long it has been held
	Deadline time.Time     // until when it is known to be held; renewals move it
	Lease    time.Duration // of WithLease; 0: the sidecar renews the hold
	Absent   bool          // the sidecar was restarted, and the holder has not connected to it yet
	// If it is absent: for how long, which is since the restart; and how much longer the sidecar renews the
	// hold, 0: it does not.
	AbsentFor, AbsentLeft time.Duration
	Orphan                bool          // no client has the hold any more: WithCrashDelay or WithKeep keeps the lock
	KeepLeft              time.Duration // how much longer WithKeep keeps the lock; 0: it does not

	// Of KindReadWrite and KindPermits.
	Holds   int          // holds of processes of this host
	Shared  int          // of KindReadWrite: how many of them are shared
	Permits int          // of KindPermits: of these holds together
	Of      int          // of KindPermits: the largest capacity that they or requests that wait have named
	Holders []HolderInfo // the oldest 16 of these holds

	// Of LockRemote.
	RemoteField      string        // owner field in Redis; that of a sidecar begins with its uuid
	RemoteHost       string        // host whose sidecar has the lock; "": not known, or a foreign client has it
	RemoteTTL        time.Duration // after which Redis deletes the key, unless it is renewed
	RemotePersistent bool          // the key has no time to live: Redis does not delete it

	// Where Redis has the lock, if it is a Cluster.
	InCluster bool   // Redis is a Cluster
	Slot      int    // slot of the name
	Shard     string // host and port of the master that has the slot; "": none has it

	Grants  uint64       // first entries of owners of this host since the sidecar knows the lock
	Waiting int          // requests of this host that wait for the lock
	Waiters []WaiterInfo // the first 16 of them, in the order in which they will get it
}

// LockKind is what a name is. A newer sidecar may send other kinds.
type LockKind string

const (
	KindLock      LockKind = ""                     // a lock
	KindReadWrite LockKind = protocol.KindReadWrite // a read/write lock
	KindPermits   LockKind = protocol.KindPermits   // a semaphore
)

// LockState is the state of a lock in a LockInfo. A newer sidecar may send other states.
type LockState string

const (
	LockHeld      LockState = "held"      // a process of the sidecar's host holds it
	LockRemote    LockState = "remote"    // another host or a foreign client holds it, and processes wait
	LockBusy      LockState = "busy"      // the sidecar waits for an answer of Redis about it
	LockLingering LockState = "lingering" // released, and kept in Redis for this host for a moment
	LockFree      LockState = "free"      // none of these
)

// HolderInfo describes one hold of a read/write lock, or of a semaphore.
type HolderInfo struct {
	Hold    uint64        // number of the hold
	Token   uint64        // as Lock.Token and Permit.Token return it
	Shared  bool          // of a read/write lock
	Permits int           // of the hold
	Session uint64        // number of the holder's session
	PID     int           // process of the holder; 0: it is not visible to the sidecar
	UID     int           // user of the holder
	Cmd     string        // command line of the holder, up to 256 bytes
	Held    time.Duration // for how long they have been held
	Absent  bool          // as in LockInfo
	Orphan  bool          // as in LockInfo
}

// WaiterInfo describes one request that waits for a lock, or for permits.
type WaiterInfo struct {
	Session uint64        // number of the client's session
	PID     int           // process of the client; 0: it is not visible to the sidecar
	UID     int           // user of the client
	Cmd     string        // command line of the client, up to 256 bytes
	Owner   uint64        // of NewOwner, in its session; 0: none
	Shared  bool          // it requests a shared hold, of a read/write lock
	Permits int           // that it requests, of a semaphore
	Waited  time.Duration // for how long it has waited
}

// Event is what happened to a lock. Fields that do not apply to its Kind are zero.
type Event struct {
	At   time.Time
	Kind EventKind
	Name string // of the lock; "" for EventTakeover

	Hold    uint64        // number of the hold
	Token   uint64        // fencing token of the hold
	Shared  bool          // the hold is a shared one of a read/write lock
	Permits int           // of the hold, of a semaphore
	Session uint64        // session of the holder; of EventForced, EventRefused and EventDeadlock: of the client that asked
	PID     int           // process of that session; 0: it is not visible to the sidecar
	UID     int           // user of that session
	Cmd     string        // command line of that process, up to 256 bytes
	Waited  time.Duration // of EventGranted: how long the request had waited
	Held    time.Duration // of EventLost: how long the lock was held

	Reason      Reason // of EventLost
	RemoteField string // of EventLost with ReasonStolen: the owner field that Redis has
	RemoteHost  string // of EventLost with ReasonStolen: the host of that owner; of EventForced and EventRefused: of the client; "": this one, or not known
	Count       int    // of EventTakeover: holds that were taken over; of EventReleased and EventCrashed: requests that waited; of EventDeadlock and EventRefused: how often, if more than once
	Message     string // for people
}

// EventKind is the kind of an Event. A newer sidecar may send other kinds.
type EventKind string

const (
	EventGranted  EventKind = "granted"       // a request that had waited for at least 10 ms was granted
	EventReleased EventKind = "released"      // a hold of at least 1 s ended, or one of at least 10 ms while requests waited
	EventCrashed  EventKind = "crashed"       // a client ended, or left, with a hold
	EventLost     EventKind = "lost"          // a hold ended without a release
	EventForced   EventKind = "forced"        // a client ended a hold by force
	EventRefused  EventKind = "force_refused" // a client was not permitted to end a hold by force
	EventDeadlock EventKind = "deadlock"      // a request was refused, because it would have closed a wait cycle
	EventTakeover EventKind = "takeover"      // the sidecar was restarted, and continues with the holds of its predecessor

	EventRedisDown     EventKind = "redis_down"     // the connection to Redis ended, or cannot be made for another reason than before
	EventRedisDegraded EventKind = "redis_degraded" // Redis is connected, and refuses what locks need, or does so for another reason
	EventRedisUp       EventKind = "redis_up"       // that has ended: Redis can be used again
	EventDataLost      EventKind = "data_lost"      // Redis may have lost data
	EventSlotsOpen     EventKind = "slots_open"     // slots of a Redis Cluster stay open, or others are
	EventSlotsClosed   EventKind = "slots_closed"   // none is any more
)

// Status is how a sidecar and its locks are.
type Status struct {
	Started time.Time // when the sidecar's process was started
	Version string    // of the sidecar
	Build   string    // the commit that it was built from; "": it is not known

	Redis        string        // "ok", or one sentence about what is wrong
	Degraded     bool          // Redis is connected, but refuses what locks, or some of them, need; Redis says why
	RedisAddress string        // where the sidecar connects to Redis, and the number of the database
	RedisRunID   string        // of the Redis server; "": not connected, or Redis does not report it
	RedisRisk    string        // what endangers locks while Redis serves, such as settings with which two owners may have one lock after a failover; "": nothing is known
	KeyPrefix    string        // what stands before the names of locks in Redis
	RoundTrip    time.Duration // of the last command that Redis answered; 0: it has answered none
	Trouble      string        // why clients cannot connect, or a restart would end their locks; "": neither

	Sessions     int          // connected clients, and those that may resume
	Held         int          // locks that processes of this host hold
	Waiting      int          // requests that wait for a lock
	OldestWaiter *Oldest      // the request that has waited longest; nil: none waits
	OldestHold   *Oldest      // the hold that has lasted longest; nil: there is none
	RenewalsLate int          // renewed holds with less than half of their lease left
	Lost         []LossCount  // losses of the last hour
	Restart      *RestartInfo // what the sidecar took over; nil: it found no state of a predecessor
	Hidden       string       // what the policy hides from this process, in one sentence; "": nothing

	Shards     []ShardStatus // masters of a Redis Cluster, those in trouble first, 64 at most; nil: Redis is no Cluster
	ShardCount int           // how many there are; 0: Redis is no Cluster
}

// ShardStatus is one master of a Redis Cluster that has slots, or the slots that have no master.
type ShardStatus struct {
	Address   string        // host and port; "": no master has these slots
	Slots     int           // of the 16,384 slots of the Cluster
	Redis     string        // "ok", or one sentence about what is wrong
	Degraded  bool          // the master is connected, but refuses what locks need; Redis says why
	RoundTrip time.Duration // of the last command that the master answered; 0: it has answered none
	Held      int           // locks of these slots that processes of this host hold
	Waiting   int           // requests that wait for such locks
	Unsent    int           // operations that wait to be sent to the master
}

// Oldest is the oldest request or hold of a Status.
type Oldest struct {
	Name    string        // of the lock
	Session uint64        // number of the client's session
	PID     int           // process of the client; 0: it is not visible to the sidecar
	UID     int           // user of the client
	Cmd     string        // command line of the client, up to 256 bytes
	Age     time.Duration // since the request or the grant
}

// LossCount is how many holds were lost in the last hour for one reason.
type LossCount struct {
	Reason Reason
	Count  int
}

// RestartInfo is what a sidecar found of its predecessor when it was started.
type RestartInfo struct {
	Reason   string // why nothing could be taken over; "": the state was used
	Held     int    // holds that were taken over
	Sessions int    // sessions with holds, whose clients may resume them
	Ended    int    // sessions whose processes had ended
	Back     int    // sessions that their clients have resumed
	Away     int    // sessions that their clients have not resumed yet
}

// HostInfo describes one sidecar that uses the same Redis with the same key prefix.
type HostInfo struct {
	Sidecar string    // uuid of the sidecar, with which its owner fields in Redis begin
	Host    string    // name of its host
	Version string    // of the sidecar
	PID     int       // its process, on that host
	Started time.Time // by the clock of that host
}

// Ownership is who has a lock and who waits for it, on all hosts. Its parts are of different
// moments: the lock may pass on while the sidecar reads Redis and asks the holder's host.
type Ownership struct {
	Lock *LockInfo // as the sidecar of this host knows the lock; nil: it does not know it

	Redis      string        // "ok", or one sentence about why Redis was not read: then Key to Queued are empty
	Key        KeyState      // what Redis has
	Message    string        // of KeyReadWrite: "read" or "write"; of KeyOther: what it is
	TTL        time.Duration // after which Redis deletes the key, unless it is renewed
	Persistent bool          // the key has no time to live: Redis does not delete it
	Owners     []LockOwner   // of KeyLock one; of KeyPermits and KeyReadWrite the first 32
	Permits    int           // of KeyPermits: those that all hosts have
	Of         int           // of KeyPermits: the largest capacity that the sidecars have named
	Queue      []LockOwner   // the first 32 hosts that wait, in the order in which they get the lock
	Queued     int           // hosts that wait

	Holder  *LockInfo // as the sidecar of the owner knows the lock; nil: it did not answer, or there is none
	Trouble string    // one sentence about why Holder is nil, although a sidecar owns the key
}

// OrphanedLock is a lock that ForceReleaseOrphaned has freed, or the permits of one sidecar.
type OrphanedLock struct {
	Sidecar    string        // uuid of the sidecar that had it
	Hold       uint64        // number of that sidecar's hold; of permits, of its claim
	TTL        time.Duration // after which Redis would have freed it
	Persistent bool          // the key had no time to live
	Passed     bool          // it passed to a host that waited; false: it became free
	Permits    int           // of a semaphore: those that became free, or passed to hosts that waited; of a lock 0
}

// KeyState is what Redis has for a lock. A newer sidecar may send other states.
type KeyState string

const (
	KeyFree      KeyState = protocol.KeyFree      // nothing
	KeyLock      KeyState = protocol.KeyLock      // a lock with one owner, of a sidecar or of a foreign client
	KeyPermits   KeyState = protocol.KeyPermits   // a semaphore
	KeyReadWrite KeyState = protocol.KeyReadWrite // a read-write lock of a foreign client
	KeyOther     KeyState = protocol.KeyOther     // no lock
)

// LockOwner is an owner of a lock in Redis, or a host in its queue.
type LockOwner struct {
	Field   string        // owner field in Redis
	Sidecar string        // uuid of the sidecar; "": a foreign client
	Host    string        // name of the sidecar's host; "": not known
	Entries int           // of an owner: how often it has entered the lock
	Waited  time.Duration // of a host in the queue: for how long it has waited

	Permits int          // of a semaphore: those that the sidecar has, or that its first request waits for
	Holds   int          // of a semaphore: holds of processes of that host
	Holders []HolderInfo // of KeyPermits: the oldest 4 of these holds, of all hosts 16, if the sidecar answered
}

// clockReading is one moment on both clocks. The sidecar of this host sends times of
// CLOCK_BOOTTIME.
type clockReading struct {
	boot int64 // ns
	wall time.Time
}

// readClocks reads the clock of the protocol and the wall clock.
func (c *Client) readClocks() clockReading { return clockReading{c.dialer.clock(), time.Now()} }

// timeOf converts a time of CLOCK_BOOTTIME. A row has 0 if it has no such time.
func (r clockReading) timeOf(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return r.wall.Add(time.Duration(ns - r.boot))
}

// durationOf converts milliseconds. What does not fit is the longest duration.
func durationOf(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

func newLockInfo(row *protocol.LockRow, now clockReading) LockInfo {
	info := LockInfo{
		Name: row.Name, Kind: LockKind(row.Kind), State: LockState(row.State),
		Hold: row.Hold, Token: row.Token, Count: int(row.Count), Owner: row.Owner,
		Session: row.Session, PID: int(row.PID), UID: int(row.UID), Cmd: row.Cmd,
		Held: durationOf(row.HeldMS), Deadline: now.timeOf(row.DeadlineNS), Lease: durationOf(row.LeaseMS),
		Absent: row.Absent, AbsentFor: durationOf(row.AbsentMS), AbsentLeft: durationOf(row.AbsentLeftMS), Orphan: row.Orphan, KeepLeft: durationOf(row.KeepLeftMS),
		Holds: row.Held, Shared: row.Shared, Permits: row.Permits, Of: int(row.Of), Holders: convertRows(row.Holders, now, newHolderInfo),
		RemoteField: row.RemoteField, RemoteHost: row.RemoteHost,
		InCluster: row.InCluster, Slot: int(row.Slot), Shard: row.Shard,
		Grants: uint64(row.Grants), Waiting: row.Waiting, Waiters: convertRows(row.Waiters, now, newWaiterInfo),
	}
	if row.RemoteTTLMS < 0 {
		info.RemotePersistent = true
	} else {
		info.RemoteTTL = durationOf(row.RemoteTTLMS)
	}
	return info
}

func newHolderInfo(row *protocol.HolderRow, _ clockReading) HolderInfo {
	return HolderInfo{
		Hold: row.Hold, Token: row.Token, Shared: row.Shared, Permits: int(row.Permits), Session: row.Session, PID: int(row.PID), UID: int(row.UID), Cmd: row.Cmd,
		Held: durationOf(row.HeldMS), Absent: row.Absent, Orphan: row.Orphan,
	}
}

func newWaiterInfo(row *protocol.WaiterRow, _ clockReading) WaiterInfo {
	return WaiterInfo{
		Session: row.Session, PID: int(row.PID), UID: int(row.UID), Cmd: row.Cmd,
		Owner: row.Owner, Shared: row.Shared, Permits: int(row.Permits), Waited: durationOf(row.WaitedMS),
	}
}

func newEvent(row *protocol.EventRow, now clockReading) Event {
	return Event{
		At: now.timeOf(row.AtNS), Kind: EventKind(row.Kind), Name: row.Name,
		Hold: row.Hold, Token: row.Token, Shared: row.Shared, Permits: int(row.Permits), Session: row.Session, PID: int(row.PID), UID: int(row.UID), Cmd: row.Cmd,
		Waited: durationOf(row.WaitedMS), Held: durationOf(row.HeldMS),
		Reason: Reason(row.Reason), RemoteField: row.RemoteField, RemoteHost: row.RemoteHost, Count: int(row.Count), Message: row.Msg,
	}
}

// newStatus converts a status. Its times are relative to the moment at which the sidecar made it.
func newStatus(row *protocol.StatusRow, now clockReading) Status {
	now.boot = row.NowNS
	return Status{
		Started: now.timeOf(row.StartedNS), Version: row.Version, Build: row.Build,
		Redis: row.Redis, Degraded: row.Degraded, RedisAddress: row.RedisAddress, RedisRunID: row.RedisRunID, RedisRisk: row.RedisRisk, KeyPrefix: row.KeyPrefix,
		RoundTrip: time.Duration(row.RoundTripNS), Trouble: row.Trouble,
		Sessions: row.Sessions, Held: row.Held, Waiting: row.Waiting,
		OldestWaiter: newOldest(row.OldestWaiter), OldestHold: newOldest(row.OldestHold),
		RenewalsLate: row.RenewalsLate, Lost: convertRows(row.Lost, now, newLossCount), Restart: newRestartInfo(row.Restart),
		Hidden: row.Hidden, Shards: convertRows(row.Shards, now, newShardStatus), ShardCount: row.ShardCount,
	}
}

func newShardStatus(row *protocol.ShardRow, _ clockReading) ShardStatus {
	return ShardStatus{
		Address: row.Address, Slots: row.Slots, Redis: row.Redis, Degraded: row.Degraded, RoundTrip: time.Duration(row.RoundTripNS),
		Held: row.Held, Waiting: row.Waiting, Unsent: row.Unsent,
	}
}

func newOldest(row *protocol.AgeRow) *Oldest {
	if row == nil {
		return nil
	}
	return &Oldest{
		Name: row.Name, Session: row.Session, PID: int(row.PID), UID: int(row.UID), Cmd: row.Cmd, Age: durationOf(row.AgeMS),
	}
}

func newLossCount(row *protocol.LossRow, _ clockReading) LossCount {
	return LossCount{Reason: Reason(row.Reason), Count: int(row.Count)}
}

func newRestartInfo(row *protocol.RestartRow) *RestartInfo {
	if row == nil {
		return nil
	}
	return &RestartInfo{
		Reason: row.Reason, Held: row.Held, Sessions: row.Sessions, Ended: row.Ended, Back: row.Back, Away: row.Away,
	}
}

func newHostInfo(row *protocol.HostRow, _ clockReading) HostInfo {
	return HostInfo{
		Sidecar: row.Sidecar, Host: row.Host, Version: row.Version, PID: int(row.PID), Started: time.UnixMilli(row.Started),
	}
}

func newOwnership(row *protocol.WhoRow, now clockReading) Ownership {
	o := Ownership{
		Lock: newLockInfoOrNil(row.Lock, now), Redis: row.Redis, Key: KeyState(row.Key), Message: row.Msg,
		Owners: convertRows(row.Owners, now, newLockOwner), Permits: row.Permits, Of: int(row.Of), Queue: convertRows(row.Queue, now, newLockOwner), Queued: row.Queued,
		Holder: newLockInfoOrNil(row.Holder, now), Trouble: row.Trouble,
	}
	if row.TTLMS < 0 {
		o.Persistent = true
	} else {
		o.TTL = durationOf(row.TTLMS)
	}
	return o
}

func newOrphanedLock(ok *protocol.ForceReleaseOrphanedOK) OrphanedLock {
	return OrphanedLock{
		Sidecar: ok.Sidecar, Hold: ok.Hold, TTL: durationOf(max(ok.TTLMS, 0)), Persistent: ok.TTLMS < 0, Passed: ok.Passed, Permits: ok.Permits,
	}
}

func newLockInfoOrNil(row *protocol.LockRow, now clockReading) *LockInfo {
	if row == nil {
		return nil
	}
	info := newLockInfo(row, now)
	return &info
}

func newLockOwner(row *protocol.OwnerRow, now clockReading) LockOwner {
	return LockOwner{
		Field: row.Field, Sidecar: row.Sidecar, Host: row.Host, Entries: int(row.Entries), Waited: durationOf(row.WaitedMS),
		Permits: row.Permits, Holds: row.Held, Holders: convertRows(row.Holders, now, newHolderInfo),
	}
}

// convertRows converts the rows of a page; nil: there are none.
func convertRows[Row, Info any](rows []Row, now clockReading, convert func(*Row, clockReading) Info) []Info {
	if len(rows) == 0 {
		return nil
	}
	infos := make([]Info, len(rows))
	for i := range rows {
		infos[i] = convert(&rows[i], now)
	}
	return infos
}

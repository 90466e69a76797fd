package locktable

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/claim"
	"github.com/locksidecar/locksidecar/sidecar/locktable/contest"
	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/wheel"
)

// Table is the lock table of one sidecar. One goroutine owns it.
type Table struct {
	cfg      Config
	leaseMS  uint32
	contests contest.Shared
	wheel    *wheel.Wheel[timed]
	out      []Effect

	sessions map[SessionID]*session
	users    map[int64]*user // by uid
	byName   map[string]*lock
	byHold   map[uint64]*hold

	keeps map[uint64]int64 // until when holds with a keep exclude others, by hold number: few have one
	many  map[*lock]*many  // the holds of locks that may have more than one: few locks may

	locks   []*lock // every lock, in no order; lock.index is its index
	cells   int     // that the locks take of MaxLocks: see Cells
	waiting int     // waiters in all

	ends     ends // of holds of locks that may have many, in the step that is under way
	budget   int  // of the call of Work that is under way: locks and waiters. Outside of Work it means nothing
	requests pool[request]
	queues   pool[queue]
	unused   pool[lock] // locks that are forgotten
	holds    pool[hold]
	windows  claim.Windows

	visiting   visit // the reconcile that is under way. Outside of it it means nothing
	isStopping bool  // no lock lingers any more

	searches uint64 // for wait cycles, so far
	path     []step // emptied, for the next search

	lastNum     uint64 // last hold id used
	renewalSeed uint64 // of the offsets of renewal groups
	renewals    renewalPace
	dirty       dirtySet        // what is not in the journal yet
	shards      []shard         // by redisop.Shard
	routes      []redisop.Shard // by slot; nil: there is one shard
	leaseQueue  []*session      // that may need a lease event
	now         int64           // of the last change
	stats       Stats           // without what there is at one moment
}

// timed is what a timer of the wheel belongs to: a lock, a request, or a session that is over and has
// requests or holds left.
type timed interface {
	due(t *Table, now int64)
}

const (
	wheelTick  = 2 * time.Millisecond
	wheelSlots = 4096
)

// lock is one name. Three parts of it have one job each: claim is what Redis has for this
// host; holders and the waiters in queue are what local clients have and want; the contest in
// queue decides between this host and others.
//
// There may be a hundred thousand of these: the fields are in an order that leaves no gaps.
type lock struct {
	name   string
	timer  wheel.Timer[timed] // the next time at which anything here is due
	user   *user              // as whose it counts; nil: it counts for no user
	index  uint32             // in Table.locks
	slot   uint32             // of the journal; 0: none
	memory contest.Memory
	lockMarks
	group uint8 // in which it counts: see groupOf
	shard redisop.Shard

	claim   claim.Claim
	holders holders
	queue   *queue // nil while there are no waiters and no subscription
}

// lockMarks are whether a lock is in dirtySet.locks, and its kind, in one byte: there is no room for two.
type lockMarks uint8

const (
	lockIsDirty lockMarks = 1 << iota
	lockKind              // from this bit
)

func (m lockMarks) isDirty() bool { return m&lockIsDirty != 0 }

func (m *lockMarks) setDirty(is bool) {
	*m &^= lockIsDirty
	if is {
		*m |= lockIsDirty
	}
}

func (m lockMarks) kind() redisop.LockKind { return redisop.LockKind(m / lockKind) }

func (m *lockMarks) setKind(k redisop.LockKind) { *m = *m&lockIsDirty | lockMarks(k)*lockKind }

// holders are the holds of a lock: see holders.go.
type holders struct {
	newest *hold // of several, the one that was granted last; nil: there is none
}

// many is what the table knows of the holds of a lock that may have more than one. What is asked at each
// acquire and release is counted: these do not walk a thousand holds.
type many struct {
	holds []numbered      // by number, which is the order of their grants; with gaps
	gaps  int             // holds that have ended: add takes the gaps away when it needs room
	owned map[owner]*hold // by which an owner enters again: those with an owner that a session still has
	twins map[owner]int   // holds of an owner beside that; nil: there are none

	renewed, refused, orphans int // those that the watchdog renews; of these, those that Redis refused to renew; and those that no session has

	users  tally[int64] // holds by the uid of their process
	forced uint64       // holds up to this number are to end by force

	dueAt    int64 // no hold is due before
	lookedAt int64 // when the renewal was due for which all were looked at last

	validUntil int64  // of the claim, to those that the watchdog renews: see Table.validUntil
	bucket     int64  // in which the deadlines of all were counted last: see trackDeadlines
	latest     int64  // those that are not renewed, and keeps, last no longer
	askedAt    int64  // when the operation was sent that gave the key its lease; 0: it is not known
	askedMS    uint32 // that lease

	permitsOf

	changed     []uint64 // numbers of holds that the journal does not have as they are
	inDoubt     bool     // as the journal has it: see HoldRecord.InDoubt
	storedUntil int64    // validUntil when orphans were stored last
}

// permitsOf is what the table knows of the permits of a semaphore.
type permitsOf struct {
	units     uint32 // permits of all holds. What the claim has beyond is idle
	came      uint32 // permits that came for waiters, and were not granted
	met       uint32 // permits that the operation in flight asks for, of requests that were granted idle ones meanwhile
	idleSince int64  // since when there are idle ones; 0: there are none

	capacities tally[uint16] // holds by the capacity that their requests named
}

// numbered is a hold with its number, and of a semaphore the capacity that its request named; nil: it has ended.
type numbered struct {
	id   uint64
	hold *hold
	of   uint16
}

// owner is an owner of a session.
type owner struct {
	session SessionID
	id      uint64
}

// hold is one granted request, until it is released or lost.
//
// There may be a hundred thousand of these: the fields are in an order that leaves no
// gaps, and holds that ended are used again.
type hold struct {
	id    uint64 // the number in its field in Redis; never used again
	token uint64
	owner uint64 // 0: anonymous
	lock  *lock
	next  *hold // another one of dirtySet.ended

	session   *session
	inSession links[hold] // the other holds of the session, newest first; not if isOrphan

	granted  int64
	deadline int64 // as its client knows it from the grant; see Table.deadline
	endAt    int64 // its max_hold, or the end of its crash delay, whichever comes first; 0: never
	bucket   int64 // of session.deadlineBuckets, if isTracked

	slot           uint32 // of the journal; 0: none
	entries        uint32
	claimedEntries uint32 // that its client claimed when it resumed the session
	leaseSeq       uint32 // session.leaseSeq at the grant
	leaseMS        uint32 // see leaseOf
	crashDelayMS   uint32
	lease          LeaseKind
	phase          HoldPhase // see setPhase
	mode           Mode
	isTracked      bool   // its deadline counts in session.deadlineBuckets
	isCounted      bool   // it counts for a quota of its session: see Terms
	hasKeep        bool   // see Table.keeps
	permits        uint16 // of a semaphore; of other locks 0
}

// request is one acquire that has not been answered. It waits in the queue of each of its
// locks; so far there is one.
type request struct {
	timer     wheel.Timer[timed]
	session   *session
	inSession links[request] // the other requests of the session, in the order of their arrival
	ofOwner   links[request] // the other requests of its owner; not for owner 0
	at        waiter

	id    uint64
	owner uint64
	since int64

	arrived uint64 // by Redis's clock, µs; 0: it is not known; see contest/order.go

	leaseMS, maxHoldMS, crashDelayMS, keepMS uint32

	lease        LeaseKind
	mode         Mode // of the hold that it becomes
	phase        requestPhase
	isAlone      bool // when it came, no client here waited for the lock or had a hold that excludes it
	notReentrant bool
	isFair       bool // it wants strict order
	isOfPhase    bool // to read, and it came before the read phase that is under way

	permits, capacity uint16 // of a semaphore: that it wants, and of how many; of other locks 0
}

// waiter is the place of a request in the queue of a lock.
type waiter struct {
	request *request
	lock    *lock
	inQueue links[waiter]
}

// queue is what a lock needs while it is contended: its local waiters in the order of
// their arrival, the confirmations that clients wait for, and the contest with other hosts.
type queue struct {
	waiters  list[waiter]
	newcomer *waiter // the first waiter whose arrival is not known, as those after it; nil: there is none
	fair     int     // waiters that want strict order
	writers  int     // waiters for holds that exclude all others
	contest  contest.Contest

	drawAt    int64  // no tokens are reserved for the waiters before, after an attempt failed
	searched  uint64 // the last search for a wait cycle that met this lock
	lastError string // of Redis, if its last result was one
	denial    string // why Redis denies the lock: all waiters are refused; "": it does not

	blocker  blocker
	confirms []confirm
	refusal  string // why Redis refuses the release that confirms wait for; "": it does not
}

// blocker is the client that had the lock last for at least BlockingHold while it was contended.
// Nothing that the table decides depends on it.
type blocker struct {
	peer    *Peer // nil: there was none
	endedAt int64 // of its hold
}

// confirm is a confirmation that was asked for. It stays when its session has ended, and
// counts as a waiter of its user, so that no user can have more of them than it may have
// of those.
type confirm struct {
	session SessionID
	user    *user
	id      uint64
}

// session is one client: its holds, its requests, and what it was sent about its
// watchdog deadlines.
type session struct {
	id    SessionID
	peer  Peer
	user  *user
	terms *Terms // nil: the policy says nothing about it
	phase SessionPhase

	isDirty bool // in dirtySet.sessions

	timer   wheel.Timer[timed] // in the backlog of the wheel, while it is over and has requests or holds left
	endedAt int64

	holds    list[hold]
	confirms map[uint64]struct{} // ids of its confirms that are not answered; nil: it has sent none

	requests map[uint64]*request       // by id
	byAge    list[request]             // the same in the order of their arrival
	owners   map[uint64]*list[request] // the same by owner, without those of owner 0

	leaseEvents
}

// leaseEvents is what a session was sent of its deadlines, and what it is to be sent.
type leaseEvents struct {
	// Deadlines of its watchdog holds, counted in buckets of a sixteenth of the lease.
	deadlineBuckets map[int64]int32
	minBucket       int64 // no bucket below it is in deadlineBuckets

	leaseSent          int64  // deadline of the last lease event
	leaseSentEstimated bool   // none was sent yet: leaseSent is the earliest deadline among its watchdog holds, rounded down to a bucket
	leaseSeq           uint32 // lease events so far
	minUncovered       int64  // earliest deadline, below leaseSent, of a hold that was granted since then

	isQueued bool // in Table.leaseQueue
}

// user is what the clients of one user have in the table.
type user struct {
	uid      int64
	sessions int
	waiters  int
	cells    int // of the locks that count as this user's: see charge

	// When the names that it gave would have been given at the rate of NewNames: the
	// generic cell rate algorithm.
	namesUntil int64
}

// dirtySet is what has changed and is not in the journal yet.
type dirtySet struct {
	locks      []*lock
	sessions   []*session
	lastHoldID uint64

	// Passed to the journal by reference, which would make each of them escape.
	lock LockRecord
	hold HoldRecord

	ended *hold // that have ended, and whose records are still in the journal, linked by hold.next

	unstored   []*lock       // of which the journal lacks something
	unstoredAt map[*lock]int // their indices in it
	retry      bool          // RetryJournal was called
}

// renewalPace spreads the renewals that are due at one moment over the ticks after it.
type renewalPace struct {
	tick      int64 // of the last renewal that was due
	begun     int   // in that tick
	postponed int   // in that tick, to later ones
}

// visit is one pass of reconcile over a lock. What the contest decides about the lock is decided once,
// when it is first needed, and again after the lock has changed.
type visit struct {
	moment.Alarm // when a rule applies that does not yet
	lock         *lock
	hasMore      bool // it has more requests to answer than one step may
	grants       int  // in this visit

	lingerUntil int64 // the owner of a hot lock has just released it: it may linger until then; 0: otherwise

	isDecided bool // view and verdict are of the lock as it is
	view      contest.View
	verdict   contest.Verdict
}

// step is one step of a search for a wait cycle.
type step struct {
	lock *lock // a request waits for it
	from int   // index of the step that led here; −1: the new request's own
	hold *hold // of the lock of that step, whose owner waits for this one; nil: the new request's owner does
}

func inQueue(w *waiter) *links[waiter] { return &w.inQueue }

func inSession(r *request) *links[request] { return &r.inSession }

func ofOwner(r *request) *links[request] { return &r.ofOwner }

func holdLinks(h *hold) *links[hold] { return &h.inSession }

package sim

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/server"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// process is the state of a host's sidecar.
type process uint8

const (
	serving   process = iota // it runs
	stopping                 // it was told to stop and reads no more; it ends with evExit
	down                     // there is no process; the next one starts with evStart
	abandoned                // the same, and there will never be one: its state is lost
)

// host is one sidecar: its table, its connection, its clients, and what the checker
// knows about it.
type host struct {
	hostClock
	index   int
	process process
	dying   bool // it is given its last inputs; whether anything gets their effects is open
	life    int  // processes before this one
	journal *journal
	lease   int64 // configured
	longest int64 // lease that was ever configured
	table   lockTable

	mayNotSubscribe bool
	suspended       bool  // until resumeAt; events of the host are deferred until then
	resumedAt       int64 // world time: when it last was resumed
	resumeAt        int64
	deferred        []event

	// When the table is advanced next.
	asleep bool  // it has no timer
	wakeAt int64 // otherwise
	nextAt int64 // host clock: what the table said
	spins  int   // times that it was woken at this time

	undrained  bool                    // the table has effects that were not carried out yet
	hasRevoked bool                    // a lock has tokens that were revoked since
	topology   topology                // of a Cluster
	conns      [maxConns]connection    // by the shard that they lead to; of no Cluster, the first one
	shards     redisop.Shard           // above all of them
	routes     [maxNames]redisop.Shard // which shard has the slot of a lock, as the table was told
	floor      tokenFloor              // what the host has seen of tokens
	raised     tokenFloor              // what its store knows of them, over all shards
	user       *server.User
	sessions   []session
	locks      [maxNames]lockOnHost
	permits    permitsOnHost

	usedHolds map[uint64]bool // hold numbers
	noWait    int             // acquires with wait 0 that have no answer
	closing   int             // sessions that were closed, and of which something is left in the table
	detaching bool            // a session was detached, and its requests may be left in the table
	troubleAt int64           // when the host itself last failed, with all its connections
}

// isDown reports whether no process runs.
func (h *host) isDown() bool { return h.process >= down }

func (w *world) addHost() *host {
	h := &host{index: len(w.hosts)}
	h.offset = w.random.between(0, 1<<50)
	if w.plan.clockDrift {
		h.rate = w.random.between(-4, 4)
	}
	h.mayNotSubscribe = w.plan.deafHost && h.index == 0
	h.user = w.newUser(h)
	h.lease = int64(w.plan.table.Lease)
	h.longest = h.lease
	h.usedHolds = make(map[uint64]bool)
	h.journal = newJournal(w, h)
	w.hosts = append(w.hosts, h)
	w.boot(h)
	h.sessions = make([]session, w.plan.sessions)
	for i := range h.sessions {
		w.after(w.random.below(10*ms), event{kind: evOpen, host: int16(h.index), arg: int32(i)})
	}
	return h
}

// newUser is what the ACL denies a host.
func (w *world) newUser(h *host) *server.User {
	return &server.User{
		Commands: map[string]bool{"script|load": !w.plan.loads},
		Lock:     func(name string) bool { return !wire.IsProbeLock(name) && w.redis.names[nameIndex(name)].denied },
		Channel: func(channel string) bool {
			n := slices.Index(w.channels[:], channel)
			return h.mayNotSubscribe || n >= 0 && w.redis.names[n].deniedChannel
		},
	}
}

// boot starts a sidecar.
func (w *world) boot(h *host) {
	cfg := w.plan.table
	cfg.Lease = time.Duration(h.lease)
	cfg.Seed += uint64(h.index) + uint64(h.life)<<8
	cfg.Journal = h.journal
	if w.plan.cluster {
		cfg.SlotOf = w.slotOf
	}
	if w.newTable != nil {
		h.table = w.newTable(cfg, h.clock(w.now))
	} else {
		h.table = locktable.New(cfg, h.clock(w.now))
	}
	for n := range h.locks {
		h.locks[n].inFlight, h.locks[n].dropPending, h.locks[n].arriving, h.locks[n].unconfirmed = noOp, noOp, noOp, true
	}
	h.asleep = true
	w.bootConnections(h)
}

// wake advances the table of a host, which wanted that about now.
func (w *world) wake(h *host) {
	now := h.clock(w.now)
	if w.trace.on {
		w.trace.add(w, -1, h, "advance")
	}
	if h.wakeAt == w.check.lastWake && w.check.lastWakeHost == h.index {
		if h.spins++; h.spins > 1000 {
			w.violation(invariant.Rest, -1, "the table of host %d wants to be advanced again and again at the same time", h.index)
		}
	} else {
		h.spins = 0
	}
	w.check.lastWake, w.check.lastWakeHost = h.wakeAt, h.index
	h.table.Advance(now)
	h.table.Work(now)
	h.nextAt = -1
	w.afterInput(h)
}

// afterInput follows every input of a table that is not a client's. Its effects are
// carried out now, or, as a loop does that reads several inputs at once, after the next
// input.
func (w *world) afterInput(h *host) {
	if w.plan.batchedInputs && !h.undrained && w.random.oneIn(4) {
		h.undrained = true
		h.asleep = false
		h.wakeAt = w.now
		h.nextAt = -1
		return
	}
	w.drain(h)
}

// drainDeferred carries out the effects that afterInput has deferred.
func (w *world) drainDeferred(h *host) {
	if h.undrained {
		w.drain(h)
	}
}

// drain carries out the effects of a table, and notes when to advance it.
func (w *world) drain(h *host) {
	h.undrained = h.dying
	if h.dying {
		return
	}
	h.journal.growRoom(h.table)
	effects := h.table.Effects()
	h.journal.checkRoom(h.table)
	h.journal.run, h.journal.floor = h.conns[0].run, h.raised
	for i := range effects {
		w.apply(h, &effects[i])
	}
	w.giveOps(h)
	w.checkRevoked(h)
	w.endExcuses(h)
	w.endPermitsExcuse(h)
	w.endRuns(h)
	if h.noWait > 0 {
		w.checkNoWait(h)
	}
	next, ok := h.table.Next()
	if h.table.Busy() {
		next, ok = h.clock(w.now)-ms, true // now, however a clock rounds
	} else {
		h.detaching = false
	}
	if !ok {
		h.asleep = true
		return
	}
	if !h.asleep && next == h.nextAt {
		return
	}
	h.asleep = false
	h.nextAt = next
	h.wakeAt = max(h.worldTime(next), w.now, h.resumeAt)
	if w.plan.lateWakeups && w.phase == faulty && h.wakeAt > w.now && w.random.oneIn(4) {
		h.wakeAt += w.random.below(maxLateness)
	}
}

// suspend suspends a host: nothing runs there, and its clock continues.
func (w *world) suspend(h *host, d int64) {
	if !h.isDown() {
		w.drainDeferred(h)
	}
	if w.trace.on {
		w.trace.add(w, -1, h, "suspended for %s", time.Duration(d))
	}
	w.check.meetIf(SuspendedPastLease, d > h.lease)
	h.suspended, h.resumeAt = true, w.now+d
	h.wakeAt = max(h.wakeAt, h.resumeAt)
	w.after(d, event{kind: evResume, host: int16(h.index)})
}

func (w *world) resume(h *host) {
	if !h.suspended {
		return
	}
	h.suspended, h.resumeAt, h.resumedAt = false, 0, w.now
	w.first(h.deferred)
	h.deferred = h.deferred[:0]
	if w.trace.on {
		w.trace.add(w, -1, h, "resumes")
	}
	h.troubleAt = w.now
	if h.isDown() {
		return
	}
	h.table.Advance(h.clock(w.now)) // timers come first
	h.table.Work(h.clock(w.now))
	h.nextAt = -1
	w.drain(h)
}

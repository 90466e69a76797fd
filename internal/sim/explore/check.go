package explore

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// onGranted notes that a client is granted the lock.
func (w *world) onGranted(h *host, cl *client, e *locktable.Effect) {
	if cl.phase != waiting && cl.phase != trying || e.ID != cl.request {
		w.violated(invariant.Answers, "a client of host %d is granted what it did not ask for", h.index)
	}
	cl.excused = w.hasLost && h.route != w.owner
	if e.Token <= w.granted && !cl.excused && !w.plan.Permits {
		w.violated(invariant.TokensGrow, "a client of host %d is granted token %d after token %d", h.index, e.Token, w.granted)
	}
	w.granted = max(w.granted, e.Token)
	w.checkOrder(h, cl)
	cl.phase, cl.hold, cl.token, cl.deadline = believes, e.Hold, e.Token, e.Deadline
}

// isOrdered reports whether acquires that wait are granted in the order of their arrival: all of
// them want it, no fault has happened, and Redis's clock was not set back. Requests that arrive while
// it is behind the last ticket all arrive 1 µs after that one. A lease that ends frees a lock for which its host has no
// place in the queue, and a ticket that is too old loses its place. A failover may lose the queue. A host that
// learns of the move between two holds asks for the lock again, and finds that Redis still has it for this host: see isUnfair.
func (w *world) isOrdered() bool {
	return w.plan.Fair == allFair && w.faults == 0 && !w.wasSetBack && !w.hasLapsed && !w.hasLost && !w.isUnfair
}

// noteArrival notes, for the acquires of a host, that Redis has executed an operation. An acquire
// arrives with the first operation for its lock that was sent after it came. A Take that is done is
// the arrival of those that came before it as long as the lock stays there: the table does not know
// its time, so that they arrive again with a later operation.
func (w *world) noteArrival(h *host, r *request, reply *redis.Reply) {
	isKnown := reply.Arrived != 0
	if isTaken := r.op.Kind == redisop.Take && reply.Outcome == redisop.Done && !r.op.Has(redisop.RequireExisting); !isKnown && !isTaken || !w.isOrdered() {
		return
	}
	for c := range h.clients {
		cl := &h.clients[c]
		if cl.phase != waiting || cl.since > r.sent || cl.isArrivalKnown {
			continue
		}
		if cl.reached, cl.isArrivalKnown = uint64(w.order()), isKnown; cl.reachedFirst == 0 {
			cl.reachedFirst = cl.reached
		}
	}
}

// checkOrder checks that no other acquire that waits arrived at Redis before the one that is granted.
func (w *world) checkOrder(h *host, cl *client) {
	if !w.isOrdered() || cl.phase != waiting {
		return
	}
	for _, g := range w.hosts {
		for c := range g.clients {
			other := &g.clients[c]
			if other == cl || other.phase != waiting || other.reached == 0 || cl.reached != 0 && other.reached >= cl.reachedFirst {
				continue
			}
			w.violated(invariant.StrictOrder, "out of order: host %d grants an acquire that %s, and client %d of host %d waits, whose acquire %s",
				h.index, cmp.Or(arrivedText("", cl.reachedFirst), "has not arrived"), c, g.index, arrivedText("", other.reached))
		}
	}
}

// check checks what must be true in every state.
func (w *world) check() {
	w.endExcuses()
	if w.plan.Permits {
		w.checkPermits()
		return
	}
	var holder *client
	for _, h := range w.hosts {
		for c := range h.clients {
			cl := &h.clients[c]
			if cl.phase != believes || w.now >= cl.deadline || cl.excused {
				continue
			}
			if holder != nil {
				w.violated(invariant.Exclusion, "two clients believe that they have the lock: in tokens %d and %d", holder.token, cl.token)
			}
			holder = cl
			switch k := &w.key; {
			case int(k.Owner) != h.index:
				w.violated(invariant.KeysCoverHolds, "client %d of host %d believes in hold %d for %d ms, and the key is not of its host", c, h.index, cl.hold, (cl.deadline-w.now)/ms)
			case k.ExpireAt < cl.deadline:
				w.violated(invariant.KeysCoverHolds, "client %d of host %d believes in hold %d for %d ms, and the key expires in %d ms", c, h.index, cl.hold, (cl.deadline-w.now)/ms, (k.ExpireAt-w.now)/ms)
			}
		}
	}
}

// When faults have ended, and every client releases what it is granted, each request is answered
// within settleWithin: until a host with a ticket asks again. If no fault has happened, no
// failover has lost anything, and nothing was late, no host needs to ask again: there is a pause at most, in which the lock is
// left free.
const (
	settleWithin          = lease/6 + 2*tick
	settleWithinFaultless = tick
)

// A world that is run fairly comes to rest within settleSteps.
const settleSteps = 1000

// A key that no client has or waits for is deleted within keptWithin: it may linger.
const keptWithin = lingerFor

// settle ends all faults and runs the world fairly: what is on the way arrives, and each client
// that is granted the lock releases it. It returns the world in which nothing is left, how long
// that took, and the longest time after which a client got an answer.
func (w *world) settle() (last *world, longest int64) {
	return w.settleWith(func(*world, action) {})
}

func (w *world) settleWith(each func(*world, action)) (last *world, longest int64) {
	n := w.clone()
	defer func() {
		if p := recover(); p != nil {
			n.violated(invariant.NoPanic, "the table panics: %v", p)
			last = n
		}
	}()
	start, within := n.now, settleWithin
	if n.faults == 0 && n.jumps == 0 && !n.wasLate && !n.hasLost {
		within = settleWithinFaultless
	}
	if w.plan.Permits && n.faults > 0 {
		within += lease // of a claim that no table knows of
	}
	unused := int64(-1) // since when there is a key that no client has or waits for
	for steps := 0; n.violation == ""; steps++ {
		waits := n.waits()
		if steps > settleSteps {
			n.violated(invariant.WakeUps, "the world does not come to rest: waits=%v, %d steps, %d ms", waits, steps, (n.now-start)/ms)
			break
		}
		a, ok := n.nextFair()
		if !ok {
			at, more := n.nextTick()
			if !more {
				break
			}
			if waits && at-start > within || at-start > 8*lease {
				n.violated(invariant.WakeUps, "the world does not come to rest: waits=%v, %d steps, %d ms", waits, steps, (at-start)/ms)
				break
			}
			switch {
			case waits || !n.key.Exists() || n.isGhost():
				unused = -1
			case unused < 0:
				unused = n.now
			}
			if unused >= 0 && at-unused > keptWithin {
				n.violated(invariant.NothingLeft, "host %d keeps key %d, which no client has or waits for, for more than %d ms", n.key.Owner, n.key.Num, keptWithin/ms)
				break
			}
			a = actionOf(passTime, 0, 0)
		}
		each(n, a)
		faults := n.faults
		n = n.step(a)
		n.clients, n.faults, n.ticks = 0, faults, 0
		if waits {
			longest = n.now - start
		}
	}
	if n.violation == "" {
		n.checkRest()
	}
	return n, longest
}

// isGhost reports whether the table of its host does not know of the key. An operation of a connection that was
// given up made it, or a failover brought it back; or it passed to a ticket that was made or brought back so, or
// that a process left which died, and no message of that was read. It stays until another host wants the lock, or
// its lease ends.
func (w *world) isGhost() bool { return slices.Contains(w.hosts[w.key.Owner].ghosts, w.key.Num) }

// noteGhost notes the number of a key or of a ticket that may be a ghost.
func (h *host) noteGhost(num uint64) {
	if !slices.Contains(h.ghosts, num) {
		h.ghosts = push(h.ghosts, num)
	}
}

func (w *world) waits() bool {
	for _, h := range w.hosts {
		for c := range h.clients {
			if p := h.clients[c].phase; p == waiting || p == trying {
				return true
			}
		}
	}
	return false
}

// nextFair is what happens next in a world that is run fairly; false: time passes.
func (w *world) nextFair() (action, bool) {
	for i, h := range w.hosts {
		for s := range w.sides() {
			switch old := h.olds[s]; {
			case old != nil && len(old.requests) > 0:
				return actionOf(executeOld, i, int(s)), true
			case old != nil:
				return actionOf(closeOld, i, int(s)), true
			}
		}
		switch {
		case h.process == nil:
			return actionOf(restart, i, 0), true
		case h.stalled:
			return actionOf(resume, i, 0), true
		case w.plan.Cluster && h.route == 0:
			return actionOf(learn, i, 0), true
		}
		for s := range w.sides() {
			switch c := &h.conns[s]; {
			case !c.isOpen && w.isWanted(h, s):
				return actionOf(reconnect, i, int(s)), true
			case c.isOpen && !c.isServed && len(c.frames) == 0:
				return actionOf(giveUp, i, int(s)), true
			}
		}
	}
	// The one for which more is on the way is first.
	first, at, length := -1, side(0), 0
	for i, h := range w.hosts {
		for s := range w.sides() {
			if n := len(h.conns[s].requests) + len(h.conns[s].frames); n > length {
				first, at, length = i, s, n
			}
		}
	}
	if first >= 0 {
		if len(w.hosts[first].conns[at].frames) > 0 {
			return actionOf(deliver, first, int(at)), true
		}
		return actionOf(execute, first, int(at)), true
	}
	for i, h := range w.hosts {
		for s := range w.sides() {
			if len(h.bus[s]) > 0 {
				return actionOf(passOn, i, int(s)), true
			}
		}
		if h.route != w.owner {
			return actionOf(learn, i, 0), true
		}
	}
	for i, h := range w.hosts {
		for c := range h.clients {
			switch cl := &h.clients[c]; {
			case cl.away:
				return actionOf(claim, i, c), true
			case cl.phase == believes:
				return actionOf(release, i, c), true
			}
		}
	}
	return 0, false
}

// checkRest checks a world in which nothing will happen any more.
func (w *world) checkRest() {
	if w.key.Exists() {
		w.violated(invariant.NothingLeft, "host %d keeps the lock, which no client has or waits for", w.key.Owner)
	}
	// A ticket that an operation of a dead connection or process has made stays until it is met,
	// or expires.
	if n := len(w.queue.Tickets); n > 0 && w.faults == 0 && !w.hasLost {
		w.violated(invariant.NothingLeft, "%d tickets are left in the queue", n)
	}
	if s := w.semaphore; w.faults == 0 && (s.Exists || len(s.Places) > 0) {
		w.violated(invariant.Leaks, "permits that no client has are left, or places: %+v", *s)
	}
	for i, h := range w.hosts {
		for c := range h.clients {
			if p := h.clients[c].phase; p != idle {
				w.violated(invariant.WakeUps, "client %d of host %d is in phase %d at the end: a wake-up is lost", c, i, p)
			}
		}
		if _, ok := h.process.table.Info(w.now, lockName); ok {
			w.violated(invariant.NothingLeft, "the table of host %d does not forget the lock", i)
		}
		if h.journal.lock.Name != "" {
			w.violated(invariant.NothingLeft, "the journal of host %d still has the lock", i)
		}
	}
}

package explore

import (
	"fmt"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/protocol"
)

// action is one step of a world: what happens, in the higher bits, the host, and the client; or, if it is
// about a connection, the side.
type action uint8

type actionKind uint8

const (
	// Of a client.
	acquire     actionKind = iota
	acquireFair            // it asks for strict order; of a semaphore: for two permits
	try
	cancel
	release
	die
	claim

	// Of a host, and of Redis.
	execute    // Redis executes what is next on the connection of the host
	executeOld // the same, on the connection that the host has given up
	deliver    // the host reads the next result or message
	giveUp     // the host gives up its connection; a fault, unless Redis has ended it
	reconnect
	closeOld // Redis notices that the host has given up a connection
	restart  // the successor of a dead process starts
	resume   // a process that stands still continues

	// Faults.
	cut        // Redis ends the connection
	crash      // the process dies
	dieBefore  // it dies in the next input, before it sends anything
	dieBetween // the same, when it has sent operations and has answered no client
	stall      // it stands still

	// Of a Cluster.
	learn     // the host learns which shard has the slot
	passOn    // a shard sends to the host what was published at the other one
	migrate   // the slot moves to shard 2, with its data
	failOver  // the server of shard 1 dies, and shard 2 takes over with what there was before the last write
	loseSince // the same, with what there was at the root

	passTime    // time passes until something is due
	setBack     // Redis's clock is set back
	setForward  // Redis's clock is set forward
	actionKinds = iota
)

var actionNames = [actionKinds]string{
	"acquires", "acquires in strict order", "tries", "cancels", "releases", "dies", "claims",
	"Redis executes the next operation of", "Redis executes, on the connection that was given up, the next operation of",
	"the next result or message reaches", "the connection is given up by", "reconnects", "Redis notices the connection that was given up by", "restarts", "continues",
	"Redis ends the connection of", "crashes", "will crash in the next input, before its effects,", "will crash in the next input, after its operations,", "stands still",
	"learns which shard has the slot", "a copy of what was published at the other shard reaches the connection of", "the slot is migrated to shard 2",
	"shard 2 takes over without the last write", "shard 2 takes over without all writes", "time passes",
	"Redis's clock is set back", "Redis's clock is set forward",
}

func actionOf(k actionKind, i, c int) action { return action(k)<<2 | action(i)<<1 | action(c) }

func (a action) kind() actionKind { return actionKind(a >> 2) }
func (a action) host() int        { return int(a >> 1 & 1) }
func (a action) client() int      { return int(a & 1) }
func (a action) side() side       { return side(a & 1) }

func (a action) String() string {
	k := a.kind()
	switch {
	case k <= claim:
		return fmt.Sprintf("client %d of host %d %s", a.client(), a.host(), actionNames[k])
	case k >= migrate:
		return actionNames[k]
	}
	at := ""
	if a.side() != 0 {
		at = " (shard 2)"
	}
	switch k {
	case reconnect, restart, resume, crash, dieBefore, dieBetween, stall, learn:
		return fmt.Sprintf("host %d %s%s", a.host(), actionNames[k], at)
	}
	return fmt.Sprintf("%s host %d%s", actionNames[k], a.host(), at)
}

// actions appends what can happen next.
func (w *world) actions(to []action) []action {
	mayAct, mayFail := int(w.clients) < w.plan.Clients, int(w.faults) < w.plan.Faults
	for i, h := range w.hosts {
		add := func(k actionKind) { to = append(to, actionOf(k, i, 0)) }
		runs := h.process != nil && !h.stalled
		a, b := &h.clients[0], &h.clients[1]
		alike := a.phase == idle && b.phase == idle && a.away == b.away && a.dead == b.dead
		for c := range h.clients {
			cl := &h.clients[c]
			if alike && c > 0 {
				continue
			}
			if runs && cl.away {
				to = append(to, actionOf(claim, i, c))
			} else if runs && mayAct {
				switch cl.phase {
				case idle:
					to = append(to, actionOf(acquire, i, c))
					if w.plan.Fair == someFair || w.plan.Permits {
						to = append(to, actionOf(acquireFair, i, c))
					}
					to = append(to, actionOf(try, i, c))
				case waiting:
					to = append(to, actionOf(cancel, i, c))
				case believes:
					to = append(to, actionOf(release, i, c))
				}
			}
			if cl.phase != idle && !cl.dead && !h.stalled && mayAct {
				to = append(to, actionOf(die, i, c))
			}
		}
		for s := range w.sides() {
			addAt := func(k actionKind) { to = append(to, actionOf(k, i, int(s))) }
			if c := &h.conns[s]; c.isServed && len(c.requests) > 0 {
				addAt(execute)
			}
			if old := h.olds[s]; old != nil {
				if len(old.requests) > 0 {
					addAt(executeOld)
				}
				addAt(closeOld)
			}
			if len(h.bus[s]) > 0 {
				addAt(passOn)
			}
		}
		if h.process == nil {
			add(restart)
			continue
		}
		if h.stalled {
			add(resume)
			continue
		}
		for s := range w.sides() {
			addAt := func(k actionKind) { to = append(to, actionOf(k, i, int(s))) }
			c := &h.conns[s]
			if c.isOpen {
				if len(c.frames) > 0 {
					addAt(deliver)
				}
				if !c.isServed || mayFail {
					addAt(giveUp)
				}
			} else if w.isWanted(h, s) {
				addAt(reconnect)
			}
			if mayFail && c.isServed {
				addAt(cut)
			}
		}
		if h.route != w.owner {
			add(learn)
		}
		if mayFail {
			add(crash)
			if h.doom == noDoom {
				add(dieBefore)
				add(dieBetween)
			}
			add(stall)
		}
	}
	if _, ok := w.nextTick(); ok && int(w.ticks) < w.plan.Ticks {
		to = append(to, actionOf(passTime, 0, 0))
	}
	to = w.moves(to)
	if int(w.jumps) < w.plan.Jumps {
		to = append(to, actionOf(setBack, 0, 0), actionOf(setForward, 0, 0))
	}
	return to
}

// step returns the world after an action. It checks the rules of every state.
func (w *world) step(a action) (next *world) {
	n := w.clone()
	defer func() {
		if p := recover(); p != nil {
			n.violated(invariant.NoPanic, "the table panics: %v", p)
			next = n
		}
	}()
	i, c, s := a.host(), a.client(), a.side()
	switch k := a.kind(); {
	case k <= die:
		n.clients++
	case k >= cut && k < learn, k == giveUp && n.hosts[i].conns[s].isServed:
		n.faults++
	case k == passTime:
		n.ticks++
	case k > passTime:
		n.jumps++
	}
	switch a.kind() {
	case acquire:
		n.acquire(i, c, protocol.Forever, false)
	case acquireFair:
		n.acquire(i, c, protocol.Forever, true)
	case try:
		n.acquire(i, c, 0, false)
	case cancel:
		n.cancel(i, c)
	case release:
		n.release(i, c)
	case die:
		n.die(i, c)
	case claim:
		n.claim(i, c)
	case execute:
		n.execute(i, s, false)
	case executeOld:
		n.execute(i, s, true)
	case deliver:
		n.deliver(i, s)
	case giveUp:
		n.giveUp(i, s)
	case reconnect:
		n.reconnect(i, s)
	case closeOld:
		n.closeOld(i, s)
	case restart:
		n.restart(i)
	case resume:
		n.resume(i)
	case cut:
		n.cut(i, s)
	case crash:
		n.crash(i)
	case dieBefore:
		n.change(i).doom = doomBefore
	case dieBetween:
		n.change(i).doom = doomBetween
	case stall:
		n.change(i).stalled = true
	case learn:
		n.learn(n.changeTable(i))
	case passOn:
		n.deliverCopy(i, s)
	case migrate:
		n.migrate()
	case failOver:
		n.failOver(n.before)
	case loseSince:
		n.failOver(n.first)
	case passTime:
		n.advance()
	case setBack:
		n.shift, n.wasSetBack = n.shift-back, true
	case setForward:
		n.shift += forward
	}
	n.check()
	return n
}

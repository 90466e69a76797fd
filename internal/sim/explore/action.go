package explore

import (
	"fmt"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/protocol"
)

// action is one step of a world: what happens, in the higher bits, the host, and the client.
type action uint8

type actionKind uint8

const (
	// Of a client.
	acquire     actionKind = iota
	acquireFair            // it asks for strict order
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
	cut         // Redis ends the connection
	crash       // the process dies
	dieBefore   // it dies in the next input, before it sends anything
	dieBetween  // the same, when it has sent operations and has answered no client
	stall       // it stands still
	passTime    // time passes until something is due
	setBack     // Redis's clock is set back
	setForward  // Redis's clock is set forward
	actionKinds = iota
)

var actionNames = [actionKinds]string{
	"acquires", "acquires in strict order", "tries", "cancels", "releases", "dies", "claims",
	"Redis executes the next operation of", "Redis executes, on the connection that was given up, the next operation of",
	"the next result or message reaches", "the connection is given up by", "reconnects", "Redis notices the connection that was given up by", "restarts", "continues",
	"Redis ends the connection of", "crashes", "will crash in the next input, before its effects,", "will crash in the next input, after its operations,", "stands still", "time passes",
	"Redis's clock is set back", "Redis's clock is set forward",
}

func actionOf(k actionKind, i, c int) action { return action(k)<<2 | action(i)<<1 | action(c) }

func (a action) kind() actionKind { return actionKind(a >> 2) }
func (a action) host() int        { return int(a >> 1 & 1) }
func (a action) client() int      { return int(a & 1) }

func (a action) String() string {
	k := a.kind()
	switch {
	case k <= claim:
		return fmt.Sprintf("client %d of host %d %s", a.client(), a.host(), actionNames[k])
	case k >= passTime:
		return actionNames[k]
	}
	switch k {
	case reconnect, restart, resume, crash, dieBefore, dieBetween, stall:
		return fmt.Sprintf("host %d %s", a.host(), actionNames[k])
	}
	return fmt.Sprintf("%s host %d", actionNames[k], a.host())
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
					if w.plan.Fair == someFair {
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
		if h.conn.isServed && len(h.conn.requests) > 0 {
			add(execute)
		}
		if h.old != nil {
			if len(h.old.requests) > 0 {
				add(executeOld)
			}
			add(closeOld)
		}
		if h.process == nil {
			add(restart)
			continue
		}
		if h.stalled {
			add(resume)
			continue
		}
		if h.conn.isOpen {
			if len(h.conn.frames) > 0 {
				add(deliver)
			}
			if !h.conn.isServed || mayFail {
				add(giveUp)
			}
		} else {
			add(reconnect)
		}
		if mayFail {
			if h.conn.isServed {
				add(cut)
			}
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
	i, c := a.host(), a.client()
	switch k := a.kind(); {
	case k <= die:
		n.clients++
	case k >= cut && k < passTime, k == giveUp && n.hosts[i].conn.isServed:
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
		n.execute(i, false)
	case executeOld:
		n.execute(i, true)
	case deliver:
		n.deliver(i)
	case giveUp:
		n.giveUp(i)
	case reconnect:
		n.reconnect(i)
	case closeOld:
		n.closeOld(i)
	case restart:
		n.restart(i)
	case resume:
		n.resume(i)
	case cut:
		n.cut(i)
	case crash:
		n.crash(i)
	case dieBefore:
		n.change(i).doom = doomBefore
	case dieBetween:
		n.change(i).doom = doomBetween
	case stall:
		n.change(i).stalled = true
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

package cluster

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// --- Inputs. Each takes the time: CLOCK_BOOTTIME in ns. ---

// Learned takes in what a node knows. why: it is not taken, if the node knows less than half of the masters, as one does
// that was just added or reset, or is of another Cluster.
func (m *Map) Learned(now int64, t *Topology, from string) (why string) {
	if m.isClosed {
		return ""
	}
	known, all := 0, 0
	for _, s := range m.withSlots() {
		if all++; t.has(s.address) {
			known++
		}
	}
	if t.Covered < m.cfg.Slots && 2*known <= all && all > 0 || t.Covered == 0 {
		return fmt.Sprintf("it knows masters of %d of the %d slots only", t.Covered, m.cfg.Slots)
	}
	if !m.isSame(t, from) {
		return fmt.Sprintf("Redis at %s is a node of another Cluster by now", from)
	}
	m.id, m.nodes, m.aliases, m.replicas = t.ID, t.Nodes, t.aliases, t.replicas
	for slot := range m.owners {
		address := t.owner(slot)
		epoch := t.Masters[address]
		owner := m.Owner(uint16(slot))
		if s := m.get(owner); s != nil && s.isUp && epoch < m.epochs[slot] || m.moves[slot].last > t.askedAt {
			continue
		}
		n := redisop.Shard(0)
		if address != "" {
			n = m.shardAt(now, address)
		}
		if was := m.epochs[slot]; n == owner && was != 0 && epoch > was { // 0: of a MOVED
			m.lift(n) // the slot may have been elsewhere meanwhile
		}
		m.epochs[slot] = epoch
		if n != owner {
			m.setOwner(uint16(slot), n)
		}
	}
	m.endGone(t)
	m.note("")
	m.schedule.isLearned = true
	return ""
}

// isSame reports whether an answer is of the same Cluster: most nodes of the smaller answer are in both.
// A master that was removed can have become a node of another Cluster, with the same id, and its address
// another server's. If no master is connected, a node of the URL is believed.
func (m *Map) isSame(t *Topology, asked string) bool {
	common := 0
	for id := range t.Nodes {
		if m.nodes[id] {
			common++
		}
	}
	if len(m.nodes) == 0 || 2*common > min(len(t.Nodes), len(m.nodes)) {
		return true
	}
	isConnected := slices.ContainsFunc(m.withSlots(), func(s *shard) bool { return s.isUp })
	return !isConnected && slices.Contains(m.seeds, asked)
}

// NotLearned takes in why no node could be asked.
func (m *Map) NotLearned(why string) {
	m.note(fmt.Sprintf("no node of the Cluster at %s says which master has which slot: %s", m.cfg.Place, why))
}

// note notes why no node can be asked; "": one was. Locks of slots without a master are refused with it.
func (m *Map) note(why string) {
	if m.trouble == why {
		return
	}
	m.trouble = why
	if why == "" {
		m.troubles = append(m.troubles, Effect{Kind: Trouble, IsKnown: true, Text: fmt.Sprintf("no master of the Cluster at %s has the slot of this lock; see CLUSTER NODES, and assign it", m.cfg.Place)})
	} else {
		m.troubles = append(m.troubles, Effect{Kind: Trouble, Text: why})
	}
}

// endGone ends the shards whose nodes have left the Cluster: they are not connected, have no slots, and the
// Cluster does not know them as nodes that work, nor has any named them for goneAfter. Their numbers are used
// again. Otherwise a Cluster whose nodes get new addresses, as in Kubernetes, would use up MaxShards.
func (m *Map) endGone(t *Topology) {
	for n, s := range m.shards {
		if s == nil || s.slots > 0 || s.namedAt > t.askedAt-goneAfter || s.isUp || slices.Contains(t.replicas, s.address) || t.has(s.address) {
			continue
		}
		m.gone = append(m.gone, Effect{Kind: End, Shard: redisop.Shard(n)})
		m.shards[n] = nil
		delete(m.byAddress, s.address)
	}
}

// Ended has the number of a shard be used again.
func (m *Map) Ended(n redisop.Shard) { m.free = append(m.free, n) }

// Moved takes in that a node does not serve a slot, and which one does as far as it knows.
func (m *Map) Moved(now int64, r wire.Redirect) {
	n := m.shardAt(now, m.named(r.Address))
	moves := &m.moves[r.Slot]
	if now-moves.begun > movesWindow {
		*moves = slotMoves{begun: now}
	}
	// Several operations that were under way have the same answer.
	if n != 0 && n != m.Owner(r.Slot) && moves.n < maxMoves {
		moves.n++
		moves.last = now
		m.epochs[r.Slot] = 0 // the node that it names may not know of that itself yet
		m.setOwner(r.Slot, n)
	}
	if s := m.get(n); s != nil && s.isUp {
		m.later(now) // the answer says all that matters now
	} else {
		m.soon(now)
	}
}

// Asked takes in that a node answered ASK, and returns the shard of the node that has the keys already; 0: there is no
// room for one.
func (m *Map) Asked(now int64, r wire.Redirect) redisop.Shard {
	m.noteOpen(now, r.Slot, r.Address, false)
	return m.At(now, r.Address)
}

// Blocked takes in that a node answered TRYAGAIN.
func (m *Map) Blocked(now int64, slot uint16) { m.noteOpen(now, slot, "", true) }

// noteOpen notes a sign that a slot is open, and has its master asked.
func (m *Map) noteOpen(now int64, slot uint16, to string, isBlocking bool) {
	if m.open.note(now, slot, m.masterOf(slot), to, isBlocking) {
		m.later(now)
	}
}

// At returns the shard of the node at an address; 0: there is no room for one.
func (m *Map) At(now int64, address string) redisop.Shard { return m.shardAt(now, m.named(address)) }

// Confirmed takes in which slots a node moves away, as it says itself.
func (m *Map) Confirmed(now int64, t *Topology, node string) { m.open.confirm(now, node, t.moving) }

// SlotLeft takes in that a node ended a subscription, because its slot has left it.
func (m *Map) SlotLeft(now int64) { m.soon(now) }

// Up takes in that a shard can be asked, and its floor of tokens. It returns the identity that a successor is to know.
// That has the floor of tokens, and nothing of a node: the successor does not know which node had which slot, and asserts
// what it holds.
func (m *Map) Up(now int64, n redisop.Shard, id *wire.Identity) wire.Identity {
	m.setUp(n, true)
	return m.Raised(now, id)
}

// Down takes in that a shard cannot be asked.
func (m *Map) Down(now int64, n redisop.Shard) {
	m.setUp(n, false)
	m.later(now)
}

func (m *Map) setUp(n redisop.Shard, isUp bool) {
	if s := m.get(n); s != nil {
		s.isUp = isUp
	}
}

// Raised takes in the floor of tokens of a node, and returns what a successor is to know.
func (m *Map) Raised(now int64, id *wire.Identity) wire.Identity {
	if floor := id.Above(now); !m.floor.Known() || floor > m.floor.Above(now) {
		m.floor = wire.Identity{Floor: floor, FloorAt: now}
	}
	raised := m.floor
	raised.RunID = m.id
	return raised
}

// Drew takes in that a shard drew a token of a lock that another shard has by now: the tokens of that one are to be above
// it. It came after the route.
func (m *Map) Drew(now int64, n redisop.Shard, name string, token uint64) {
	if owner := m.Owner(m.cfg.SlotOf(name)); owner != n && m.get(owner) != nil {
		m.lifts = append(m.lifts, Effect{Kind: Lift, Shard: owner, Floor: wire.Identity{Floor: int64(token), FloorAt: now}})
	}
}

// Seeds are the nodes of a URL that was read again.
func (m *Map) Seeds(nodes []string) { m.seeds = nodes }

// Hosts takes in how many hosts use this Cluster with the same key prefix; 0: it is not known.
func (m *Map) Hosts(n int) { m.schedule.hosts = n }

// Close has no shard be added any more.
func (m *Map) Close() { m.isClosed = true }

// IsClosed reports whether Close was called.
func (m *Map) IsClosed() bool { return m.isClosed }

// --- Outputs ---

// FloorAt is the largest floor of all nodes at a time, µs; 0: none is known.
func (m *Map) FloorAt(now int64) int64 {
	if !m.floor.Known() {
		return 0
	}
	return m.floor.Above(now)
}

// Trouble is why no node can be asked; "": one was.
func (m *Map) Trouble() string { return m.trouble }

// Changes is how often slots got other masters, the first time included.
func (m *Map) Changes() uint64 { return m.changes }

// Knows reports whether a node of this Cluster has an address.
func (m *Map) Knows(address string) bool {
	_, isShard := m.byAddress[address]
	return isShard || slices.Contains(m.seeds, address) || slices.Contains(m.replicas, address)
}

// ShardOf returns the shard of the node at an address; 0: there is none.
func (m *Map) ShardOf(address string) redisop.Shard { return m.byAddress[address] }

// OpenSlots returns the slots that are open for too long, the smallest first.
func (m *Map) OpenSlots(now int64) []OpenSlot {
	open, _ := m.open.long(now)
	return open
}

// A Master is a shard that has slots, or the slots that have none.
type Master struct {
	Shard   redisop.Shard
	Address string // "": these slots have no master that is known
	Slots   int    // more than 0
}

// Masters returns the masters that have slots, and the slots that have none, by their shards.
func (m *Map) Masters() (masters []Master) {
	left := m.cfg.Slots
	for n, s := range m.shards {
		if s != nil && s.slots > 0 {
			left -= s.slots
			masters = append(masters, Master{redisop.Shard(n), s.address, s.slots})
		}
	}
	if left > 0 {
		masters = slices.Insert(masters, 0, Master{Slots: left})
	}
	return masters
}

// Effects returns what is to be done since the last call, in its order.
func (m *Map) Effects() []Effect {
	effects := m.opened
	if len(m.routes) > 0 {
		m.changes++
		for _, r := range m.routes {
			m.lift(r.Shard)
		}
	}
	for _, e := range m.lifts {
		m.shards[e.Shard].isLifted = false
	}
	effects = append(effects, m.lifts...)
	if len(m.routes) > 0 {
		for n, s := range m.shards {
			if s == nil {
				continue
			}
			switch {
			case s.had == 0 && s.slots > 0:
				effects = append(effects, Effect{Kind: ConnectNow, Shard: redisop.Shard(n)})
			case s.had > 0 && s.slots == 0:
				effects = append(effects, Effect{Kind: Idle, Shard: redisop.Shard(n)})
			}
			s.had = s.slots
			if lock := m.chooseProbeLock(redisop.Shard(n)); lock != s.probeLock {
				s.probeLock = lock
				effects = append(effects, Effect{Kind: ProbeLock, Shard: redisop.Shard(n), Name: lock})
			}
		}
		effects = append(effects, Effect{Kind: Route, Routes: m.routes})
	}
	effects = append(append(effects, m.gone...), m.troubles...)
	m.opened, m.lifts, m.routes, m.gone, m.troubles = nil, nil, nil, nil, nil
	return effects
}

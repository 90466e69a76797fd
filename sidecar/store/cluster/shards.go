package cluster

import (
	"strconv"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Owner returns the shard that has a slot; 0: none has. It may be called at any time, from any goroutine.
func (m *Map) Owner(slot uint16) redisop.Shard { return redisop.Shard(m.owners[slot].Load()) }

// get returns a shard; nil: it is none.
func (m *Map) get(n redisop.Shard) *shard {
	if int(n) < len(m.shards) {
		return m.shards[n]
	}
	return nil
}

// withSlots returns the shards that have slots.
func (m *Map) withSlots() (shards []*shard) {
	for _, s := range m.shards {
		if s != nil && s.slots > 0 {
			shards = append(shards, s)
		}
	}
	return shards
}

// OthersServe reports whether more than one master has slots.
func (m *Map) OthersServe() bool { return len(m.withSlots()) > 1 }

// shardAt returns the shard of the node at an address, which is to be connected; 0: there are too many. A
// shard stays until its node has left the Cluster (endGone), also if it has no slots any more: then it is
// connected now and then.
func (m *Map) shardAt(now int64, address string) redisop.Shard {
	if n, ok := m.byAddress[address]; ok {
		m.shards[n].namedAt = now
		return n
	}
	n := redisop.Shard(len(m.shards))
	switch last := len(m.free) - 1; {
	case m.isClosed:
		return 0
	case last >= 0:
		n, m.free = m.free[last], m.free[:last]
	case len(m.shards) > MaxShards:
		if !m.isTooLarge {
			m.isTooLarge = true
			m.opened = append(m.opened, Effect{Kind: TooLarge})
		}
		return 0
	default:
		m.shards = append(m.shards, nil)
	}
	m.shards[n] = &shard{address: address, namedAt: now}
	m.byAddress[address] = n
	m.opened = append(m.opened, Effect{Kind: Open, Shard: n, Address: address})
	return n
}

// named returns the address under which a node is known. MOVED and ASK may have its host name, and CLUSTER
// NODES has its IP address.
func (m *Map) named(address string) string {
	if known, ok := m.aliases[address]; ok {
		return known
	}
	return address
}

// setOwner notes that a shard has a slot.
func (m *Map) setOwner(slot uint16, n redisop.Shard) {
	if s := m.get(m.Owner(slot)); s != nil {
		s.slots--
	}
	if s := m.get(n); s != nil {
		s.slots++
	}
	m.owners[slot].Store(uint32(n))
	if last := len(m.routes) - 1; last >= 0 && m.routes[last].Shard == n && m.routes[last].Last+1 == slot {
		m.routes[last].Last = slot
		return
	}
	m.routes = append(m.routes, redisop.SlotRange{First: slot, Last: slot, Shard: n})
}

// masterOf returns the address of the master that has a slot; "": none has.
func (m *Map) masterOf(slot uint16) string {
	if s := m.get(m.Owner(slot)); s != nil {
		return s.address
	}
	return ""
}

// lift has the tokens of a shard be above the largest floor, and its clock asked for, once for an input.
func (m *Map) lift(n redisop.Shard) {
	if s := m.get(n); s != nil && !s.isLifted {
		s.isLifted = true
		m.lifts = append(m.lifts, Effect{Kind: Lift, Shard: n, Floor: m.floor, AsksClock: true})
	}
}

// chooseProbeLock returns the lock that probes of a shard take: its name has a number, with which its slot is one of
// those of the shard; "": the shard has no slot for one.
func (m *Map) chooseProbeLock(n redisop.Shard) string {
	s := m.shards[n]
	has := func(name string) bool { return name != "" && m.Owner(m.cfg.SlotOf(name)) == n }
	switch {
	case s.slots == 0:
		return ""
	case has(s.probeLock):
		return s.probeLock
	case has(wire.ProbeLock):
		return wire.ProbeLock
	case m.cfg.Tagged:
		return "" // all names are in the slot of the tag, at another master
	}
	for i := range 4 * m.cfg.Slots {
		if name := wire.ProbeLock + strconv.Itoa(i); has(name) {
			return name
		}
	}
	return ""
}

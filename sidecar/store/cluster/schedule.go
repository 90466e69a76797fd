package cluster

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A node is asked which master has which slot each topologyInterval; while a slot has no master, or one
// that is not connected, each redisop.TopologyRetry; while a slot is open, each openInterval.
const (
	topologyInterval = time.Minute

	// topologyPause is the time between two questions.
	topologyPause = 100 * time.Millisecond
)

// Due returns the addresses of the nodes that are to be asked one after the other, until Learned accepts the answer of
// one, if that is due. Rest follows. They are in random order, those that are connected first.
func (m *Map) Due(now int64) (askable []string) {
	c := &m.schedule
	if c.isAsking || now < c.next {
		return nil
	}
	c.isAsking, c.isLearned, c.begun = true, false, now
	return m.Askable()
}

// Askable returns the addresses of the nodes that may be asked.
func (m *Map) Askable() []string {
	var connected []string
	others := slices.Concat(m.replicas, m.seeds)
	for n, s := range m.shards {
		switch {
		case s == nil:
		case s.slots == 0: // it may be a node of another Cluster by now
		case s.isUp:
			connected = append(connected, m.shards[n].address)
		default:
			others = append(others, m.shards[n].address)
		}
	}
	for _, list := range [][]string{connected, others} {
		m.cfg.Rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	}
	all := append(connected, others...)
	seen := make(map[string]bool)
	return slices.DeleteFunc(all, func(address string) bool {
		defer func() { seen[address] = true }()
		return seen[address]
	})
}

// OpenMasters returns the addresses of the masters of open slots, which are to be asked after the others, and what they
// answer given to Confirmed. One that is not connected may be replaced soon, and has its slots as before.
func (m *Map) OpenMasters() []string {
	return slices.DeleteFunc(m.open.masters(m.masterOf), func(address string) bool { return !m.get(m.byAddress[address]).isUp })
}

// Rest ends a round of questions.
func (m *Map) Rest(now int64) {
	if why, isBlocking, isChanged := m.open.change(now); isChanged {
		m.troubles = append(m.troubles, Effect{Kind: Stays, Text: why, IsBlocking: isBlocking})
	}
	c := &m.schedule
	c.retry = m.Retry()
	wait := c.retry*9/10 + m.upTo(c.retry/5)
	switch isSettled := c.isLearned && m.isSettled(); { // the hosts of a Cluster do not ask in step
	case isSettled && len(m.open.slots) > 0:
		wait = openInterval*3/4 + m.upTo(openInterval/2)
	case isSettled:
		wait = topologyInterval*3/4 + m.upTo(topologyInterval/2)
	}
	c.isAsking, c.isEarlier, c.next = false, false, now+int64(wait)
	if c.isLater {
		c.isLater = false
		m.later(now)
	}
	if c.isSoon {
		c.isSoon = false
		m.soon(now)
	}
}

// Next is when Due has something.
func (m *Map) Next() int64 { return m.schedule.next }

// later has a node asked within redisop.TopologyRetry: when slots move one by one, each host gets many MOVED; and when a
// master fails, all hosts notice at once, and no node knows of another one so soon.
func (m *Map) later(now int64) {
	c := &m.schedule
	if c.isAsking || c.isEarlier {
		c.isLater = true
		return
	}
	c.isEarlier = true
	c.next = min(c.next, now+int64(c.retry/2+m.upTo(c.retry/2))) // hosts that have a reason at one moment do not ask in step
}

// soon has a node asked.
func (m *Map) soon(now int64) {
	c := &m.schedule
	if c.isAsking {
		c.isSoon = true
		return
	}
	pause := max(topologyPause-time.Duration(now-c.begun), topologyPause/4)
	c.next = min(c.next, now+int64(pause*3/4+m.upTo(pause/2)))
}

// Retry is how often a node is asked while a slot has no master that is connected.
func (m *Map) Retry() time.Duration {
	connected := 0
	for _, s := range m.withSlots() {
		if s.isUp {
			connected++
		}
	}
	return redisop.TopologyRetry(m.schedule.hosts, connected, len(m.nodes))
}

// isSettled reports whether each slot has a master that is connected.
func (m *Map) isSettled() bool {
	for slot := range m.owners {
		if s := m.get(m.Owner(uint16(slot))); s == nil || !s.isUp {
			return false
		}
	}
	return true
}

// upTo is a random part of a time.
func (m *Map) upTo(d time.Duration) time.Duration {
	return time.Duration(m.cfg.Rand.Int64N(max(int64(d), 1)))
}

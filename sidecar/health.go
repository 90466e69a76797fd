package sidecar

import (
	"cmp"
	"fmt"
	"strings"
	"sync"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// redisHealth is what is known of the connection to Redis, or to the masters of a Cluster.
type redisHealth struct {
	status     string // "ok", or one sentence that says what is wrong
	runID      string // of the server, or of the Cluster; "": there is no connection, or it is not known
	risk       string // as store.Risk, Sentinels and OpenSlots have it; of a Cluster, that of one master
	isDegraded bool   // Redis is connected, but refuses what locks, or some of them, need: status says why
}

// isUp reports whether there is a connection. That to a Cluster is none if no master serves.
func (h *redisHealth) isUp() bool { return h.isDegraded || h.status == "ok" }

// shardHealths has the health of each shard, and makes one of all. The zero value is that of a Redis that
// is no Cluster.
type shardHealths struct {
	mu     sync.Mutex // guards what follows
	of     []redisHealth
	slots  []int           // of each shard
	owners []redisop.Shard // by slot; nil: Redis is no Cluster

	sentinels  string // why most of the Sentinels are lost; "": they are not
	open       string // why slots of a Cluster stay open; "": none is
	isBlocking bool   // locks wait because of that
}

// ofCluster: no master is known.
func (h *shardHealths) ofCluster() {
	h.owners = make([]redisop.Shard, redisop.Slots)
	h.at(0)
	h.slots[0] = redisop.Slots
}

const notReached = "Redis has not been reached yet"

// at returns the health of a shard. The caller holds mu.
func (h *shardHealths) at(n redisop.Shard) *redisHealth {
	for int(n) >= len(h.of) {
		h.of, h.slots = append(h.of, redisHealth{status: notReached}), append(h.slots, 0)
	}
	return &h.of[n]
}

// set changes the health of a shard, and gives that of all to publish, in the order of the changes.
func (h *shardHealths) set(n redisop.Shard, change, publish func(*redisHealth)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h.at(n))
	publish(h.all())
}

// setSentinels notes why most of the Sentinels are lost, and gives the health of all to publish, as set does.
func (h *shardHealths) setSentinels(why string, publish func(*redisHealth)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sentinels = why
	publish(h.all())
}

// setOpen notes why slots stay open, and whether locks wait because of that, as setSentinels does.
func (h *shardHealths) setOpen(why string, isBlocking bool, publish func(*redisHealth)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open, h.isBlocking = why, isBlocking
	publish(h.all())
}

// get returns the health of a shard.
func (h *shardHealths) get(n redisop.Shard) redisHealth {
	h.mu.Lock()
	defer h.mu.Unlock()
	return *h.at(n)
}

// route notes which shards have slots, and gives the health of all to publish, as set does.
func (h *shardHealths) route(ranges []redisop.SlotRange, publish func(*redisHealth)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range ranges {
		h.at(r.Shard)
		for slot := int(r.First); slot <= int(r.Last); slot++ {
			h.slots[h.owners[slot]]--
			h.slots[r.Shard]++
			h.owners[slot] = r.Shard
		}
	}
	publish(h.all())
}

// slotsOf is how many slots a shard has.
func (h *shardHealths) slotsOf(n redisop.Shard) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at(n); h.owners == nil {
		return redisop.Slots
	}
	return h.slots[n]
}

// all is the health of all shards, and what else endangers locks. The caller holds mu.
func (h *shardHealths) all() *redisHealth {
	all := h.connections()
	if h.isBlocking && all.status == "ok" {
		all.status, all.isDegraded = h.open, true
	}
	for _, risk := range []string{h.sentinels, h.open} {
		if risk != "" && risk != all.status {
			all.risk = strings.TrimPrefix(all.risk+". Also: "+risk, ". Also: ")
		}
	}
	return all
}

// connections is the health of all shards that have slots: degraded, if some of them do not serve; down, if some are
// gone and the others refuse what locks need. The caller holds mu.
func (h *shardHealths) connections() *redisHealth {
	if h.owners == nil {
		one := *h.at(0)
		return &one
	}
	shards, up, serving := 0, 0, 0
	why, gone, runID, risk := "", "", "", "" // why of the first that does not serve; gone: of the first without a connection
	for n := range h.of {
		if h.slots[n] == 0 {
			continue
		}
		of := &h.of[n]
		if n == 0 { // slots without a master
			why, gone = cmp.Or(why, of.status), cmp.Or(gone, of.status)
			continue
		}
		if shards++; of.isUp() {
			up++
			runID = of.runID
			risk = cmp.Or(risk, of.risk)
		} else {
			gone = cmp.Or(gone, of.status)
		}
		if of.status == "ok" {
			serving++
		} else {
			why = cmp.Or(why, of.status)
		}
	}
	switch {
	case why == "":
		return &redisHealth{status: "ok", runID: runID, risk: risk}
	case up > 0 && serving == 0 && gone != "": // as with cluster-require-full-coverage yes
		return &redisHealth{status: fmt.Sprintf("%d of %d masters of the Cluster are connected, and none serves; %s; with cluster-require-full-coverage no, the others would serve", up, shards, strings.TrimSuffix(gone, store.OthersServe))}
	case up == 0 || shards == 1:
		return &redisHealth{status: why, runID: runID, risk: risk, isDegraded: up > 0}
	}
	return &redisHealth{status: fmt.Sprintf("%d of %d masters of the Cluster are connected; %s", up, shards, why), runID: runID, risk: risk, isDegraded: true}
}

// Package cluster knows which master of a Cluster has which slot. It decides nothing about locks: the lock table is told
// of each slot that moves, and names the shard to which an operation goes.
//
// A Map is pure. Its inputs are methods that take the time, and what is to be done leaves it as Effects. It has one
// user at a time; only Owner may be called at any time.
package cluster

import (
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Config is what stays for as long as a Map.
type Config struct {
	Place  string // that the first URL names, for people
	Slots  int    // of the Cluster: redisop.Slots, or fewer in a simulation
	SlotOf func(name string) uint16
	Tagged bool          // all locks have one slot
	NotYet string        // the sentence for the time before a node was asked
	Last   wire.Identity // what a successor of an earlier process was given
	Rand   *rand.Rand    // when and in which order nodes are asked: hosts do not ask in step
}

// Map learns of a move in three ways:
//   - A node answers MOVED: the operations were not executed, and another node has the slot.
//   - A node answers CLUSTER NODES. One is asked at the start, each redisop.TopologyRetry while a slot has no
//     master that is connected, within the same time after a MOVED or the end of a connection, and each minute.
//   - A node ends a sharded subscription by itself, because the slot has left it. Then one is asked.
//
// What has been migrating from one node to another one is in openSlots.
//
// Each of them may be out of date. An answer with an older config epoch does not take a slot from a
// master that is connected; MOVED always does, because the node that answers it does not serve the slot.
type Map struct {
	cfg    Config
	owners []atomic.Uint32 // by slot

	seeds     []string // the nodes of the URL that was read last
	shards    []*shard // by redisop.Shard; nil: it is none, as the first one
	byAddress map[string]redisop.Shard
	free      []redisop.Shard   // whose nodes have left the Cluster
	id        string            // of the Cluster: see Topology
	nodes     map[string]bool   // the same
	aliases   map[string]string // the same
	replicas  []string          // nodes that have no slots, and can be asked
	epochs    []uint64          // by slot
	moves     []slotMoves       // the same
	floor     wire.Identity     // the largest floor of tokens of all nodes
	isClosed  bool              // no shard is added
	trouble   string            // why no node can be asked; "": one was
	changes   uint64            // how often slots got other masters

	open     openSlots
	schedule schedule

	// Made, and not taken yet.
	opened     []Effect
	lifts      []Effect
	routes     []redisop.SlotRange
	gone       []Effect
	troubles   []Effect
	isTooLarge bool // that there are too many masters was an effect
}

// shard is one node that has, or had, slots.
type shard struct {
	address   string
	slots     int    // that it has
	had       int    // that it had when the effects were taken last
	isUp      bool   // it can be asked
	isLifted  bool   // it is among the lifts, and its clock is asked for
	namedAt   int64  // when a node named this one last
	probeLock string // that probes take; "": none is in its slots
}

// openSlots has the open slots of a Cluster.
type openSlots struct {
	slots      map[uint16]*openSlot
	reported   string // the sentence that was reported last; "": none is open
	isBlocking bool   // the same: a lock waits
}

type openSlot struct {
	from, to  string
	since     int64 // CLOCK_BOOTTIME in ns
	blockedAt int64 // when an operation was not served because of it; 0: none was
}

// schedule is when nodes are asked.
//
//	         Next                    Rest
//	waiting ──────► asking nodes ─────────► waiting
//
// What has a node asked earlier comes in both states, and in the second one it counts for the wait that follows.
type schedule struct {
	hosts     int           // that use this Cluster with the same key prefix; 0: it is not known
	next      int64         // when a node is to be asked
	begun     int64         // when one was asked last
	retry     time.Duration // as Retry had it then: what is lost since does not make the host wait longer
	isAsking  bool
	isLearned bool // a node answered in this round
	isEarlier bool // the present wait was shortened by later
	isSoon    bool // a node is to be asked soon after this round
	isLater   bool // the next wait is to be shortened
}

// slotMoves bounds how often MOVED moves a slot: nodes that do not know of each other's state name each
// other. An answer to a question from before the last move does not move it back.
type slotMoves struct {
	begun int64 // of the window
	last  int64
	n     int
}

const (
	// MaxShards bounds the masters that are connected. Redis recommends a thousand nodes at most.
	MaxShards = 1024

	// A slot is moved by MOVED at most maxMoves times in movesWindow. Otherwise its operations wait.
	maxMoves    = 5
	movesWindow = int64(100 * time.Millisecond)

	// goneAfter is for how long no node may have named a node before its shard is ended: nodes learn of a new one
	// at different moments, and an answer may be of one that does not know it yet.
	goneAfter = int64(30 * time.Second)
)

// An Effect is one thing that is to be done.
type Effect struct {
	Kind  Kind
	Shard redisop.Shard

	Address    string              // Open
	Floor      wire.Identity       // Lift: not known: none
	AsksClock  bool                // Lift: slots have just moved to this shard
	Name       string              // ProbeLock; "": the shard has no slot for one
	Routes     []redisop.SlotRange // Route
	Text       string              // Trouble, Stays: the sentence that an operator reads
	IsKnown    bool                // Trouble: a node was asked, so that locks of slots without a master are refused with Text
	IsBlocking bool                // Stays: a lock waits
}

// Kind says what an Effect is about.
type Kind uint8

// The effects of one input come in this order. Floors are lifted before a route is delivered: the counters of a slot may
// have lost their last values on the way, and other hosts may have drawn these. Shards end after the routes: with a
// number that is used again, the lock table would not see that a slot has moved from one node to the other.
const (
	_          Kind = iota
	Open            // a shard is to be connected
	TooLarge        // there are more masters than are connected
	Lift            // tokens of a shard are to be above a floor
	ConnectNow      // a shard got its first slots
	Idle            // a shard has lost its last slot
	ProbeLock       // a shard is to be probed with another lock
	Route           // the lock table is to know that these slots have other shards
	End             // the node of a shard has left the Cluster: it is to be ended, and Ended called
	Trouble         // why locks of slots without a master are refused has changed
	Stays           // which slots stay open has changed; Text is "": none does
)

// New returns a Map that knows no node but those of the URL.
func New(c Config, seeds []string) *Map {
	return &Map{
		cfg: c, seeds: seeds, shards: []*shard{nil}, byAddress: make(map[string]redisop.Shard), floor: c.Last, trouble: c.NotYet,
		owners: make([]atomic.Uint32, c.Slots), epochs: make([]uint64, c.Slots), moves: make([]slotMoves, c.Slots),
	}
}

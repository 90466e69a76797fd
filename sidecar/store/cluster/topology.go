package cluster

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A Topology is what one node of a Cluster knows of it.
type Topology struct {
	ID      string            // the smallest id of all nodes: two Clusters have none in common
	Nodes   map[string]bool   // ids of all nodes
	Masters map[string]uint64 // the config epoch of each master that has slots, by address
	Covered int               // slots that have a master

	aliases  map[string]string // the address of a node, by that with its host name
	replicas []string          // addresses of all other nodes that are not down
	owners   []string          // the address of the master, by slot; "": none has it, nor those that are not here
	moving   map[uint16]string // the slots that the node itself moves to another one, and the address of that; "": it is not known
	askedAt  int64             // before which it was not asked for, CLOCK_BOOTTIME in ns
}

// ParseTopology reads the answer to CLUSTER NODES, which every version of Redis has, of a node at an
// address, which was asked at a time. A line is
//
//	id ip:port@busport[,hostname[,…]] flags master ping pong epoch link slot slot …
//
// A slot is a number, or two with a dash. The line of the node itself has the slots that are under way in brackets:
// [slot->-id] if it goes to the node with that id, which does not have it yet, and [slot-<-id] if it comes from there.
// A node that does not know its own address leaves the host out.
func ParseTopology(text, asked string, askedAt int64) (*Topology, error) {
	t := &Topology{askedAt: askedAt, Masters: make(map[string]uint64), Nodes: make(map[string]bool), aliases: make(map[string]string)}
	addresses := make(map[string]string) // by id
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			return nil, fmt.Errorf("a line of CLUSTER NODES has %d fields", len(fields))
		}
		flags := strings.Split(fields[2], ",")
		has := func(flag string) bool {
			for _, f := range flags {
				if f == flag {
					return true
				}
			}
			return false
		}
		if !has("handshake") {
			t.Nodes[fields[0]] = true
		}
		address, ok := wire.NodeAddress(fields[1], asked)
		if !has("handshake") && (t.ID == "" || fields[0] < t.ID) {
			t.ID = fields[0]
		}
		if !ok || has("noaddr") || has("handshake") {
			continue
		}
		addresses[fields[0]] = address
		if alias, ok := hostAddress(fields[1]); ok {
			t.aliases[alias] = address
		}
		if !has("master") || len(fields) == 8 {
			if !has("fail") {
				t.replicas = append(t.replicas, address)
			}
			continue
		}
		epoch, err := strconv.ParseUint(fields[6], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("a line of CLUSTER NODES has the epoch %.32q", fields[6])
		}
		for _, field := range fields[8:] {
			if strings.HasPrefix(field, "[") {
				t.onMoving(field)
				continue
			}
			first, last, isRange := strings.Cut(field, "-")
			if !isRange {
				last = first
			}
			from, err1 := strconv.ParseUint(first, 10, 16)
			to, err2 := strconv.ParseUint(last, 10, 16)
			if err1 != nil || err2 != nil || from > to || to >= redisop.Slots {
				return nil, fmt.Errorf("a line of CLUSTER NODES has the slots %.32q", field)
			}
			if more := int(to) + 1 - len(t.owners); more > 0 {
				t.owners = append(t.owners, make([]string, more)...)
			}
			for slot := from; slot <= to; slot++ {
				if t.owners[slot] == "" {
					t.Covered++
				}
				t.owners[slot] = address
			}
			t.Masters[address] = epoch
		}
		if _, hasSlots := t.Masters[address]; !hasSlots && !has("fail") { // those under way are in brackets
			t.replicas = append(t.replicas, address)
		}
	}
	for slot, id := range t.moving {
		t.moving[slot] = addresses[id]
	}
	return t, nil
}

// owner is the address of the master of a slot; "": none has it.
func (t *Topology) owner(slot int) string {
	if slot < len(t.owners) {
		return t.owners[slot]
	}
	return ""
}

// has reports whether the node at an address is a master that has slots.
func (t *Topology) has(address string) bool {
	_, ok := t.Masters[address]
	return ok
}

// onMoving takes in a slot in brackets, if it goes.
func (t *Topology) onMoving(field string) {
	text, id, _ := strings.Cut(strings.Trim(field, "[]"), "->-")
	if slot, err := strconv.ParseUint(text, 10, 16); err == nil && slot < redisop.Slots {
		if t.moving == nil {
			t.moving = make(map[uint16]string)
		}
		t.moving[uint16(slot)] = id
	}
}

// hostAddress returns the address with the host name that CLUSTER NODES has of a node; false: it has none.
func hostAddress(field string) (address string, ok bool) {
	addr, names, _ := strings.Cut(field, ",")
	hostname, _, _ := strings.Cut(names, ",")
	addr, _, _ = strings.Cut(addr, "@")
	colon := strings.LastIndexByte(addr, ':')
	if colon < 0 || hostname == "" || strings.Contains(hostname, "=") {
		return "", false
	}
	return wire.JoinPort(hostname, addr[colon+1:]), true
}

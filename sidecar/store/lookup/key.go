package lookup

import (
	_ "embed"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Key is what Redis has for one lock, at one moment.
type Key struct {
	State  string // protocol.KeyFree, KeyLock, KeyPermits, KeyReadWrite or KeyOther
	What   string // of a read-write lock: "read" or "write"; of what is no lock: a description
	TTLMS  int64  // -1: the key does not expire; -2: there is none
	Owners []KeyOwner

	// The queue of the lock, in its order.
	Tickets  []KeyTicket // the first protocol.MaxOwners
	Queued   int         // how many tickets there are
	NoQueues bool        // this user may not use queues

	// Of a semaphore.
	Permits int    // of all hosts
	Of      uint16 // the largest capacity that a ticket names
}

// KeyOwner is one owner of a key. A plain lock has one, a read-write lock or a semaphore one or several.
type KeyOwner struct {
	Field   string
	Entries int64 // of a semaphore: permits
}

// KeyTicket is one ticket in the queue of a lock.
type KeyTicket struct {
	Field    string
	WaitedMS int64
	Permits  int
}

//go:embed scripts/who.lua
var whoText string

// Who is the script that reads a key and its queue.
var Who = wire.NewScript(whoText)

// AskKey reads the key and the queue of a lock.
func AskKey(keys *wire.Keyspace, name string) Run {
	args := []string{"1", keys.Key(name), keys.Queue(name), strconv.Itoa(protocol.MaxOwners), keys.Ours(wire.WantedPrefix, name), keys.Ours(wire.WantsPrefix, name)}
	return Run{Name: name, Script: Who, Args: func(*wire.Params) []string { return args }}
}

// ReadKey reads the reply to AskKey.
func ReadKey(answer wire.Reply) (Key, error) {
	if err := Refusal([]wire.Reply{answer}); err != nil {
		return Key{}, err
	}
	k, ok := keyOf(answer.List)
	if !ok {
		return k, wire.Unavailable("Redis gave a reply that the script for this question does not make")
	}
	return k, nil
}

// keyOf reads the list that the script returns.
func keyOf(list []wire.Reply) (k Key, ok bool) {
	const head = 7
	if len(list) < head || list[0].Kind != '$' || slices.ContainsFunc(list[2:head], func(r wire.Reply) bool { return r.Kind != ':' }) {
		return k, false
	}
	k = Key{State: list[0].Text, What: readableText(list[1].Text), TTLMS: max(list[2].Num, -2), Queued: int(max(list[4].Num, 0)), NoQueues: list[4].Num < 0}
	k.Permits, k.Of = permitsIn(list[5]), uint16(min(permitsIn(list[6]), protocol.MaxPermits))
	owners, rows := int(list[3].Num), list[head:]
	if owners < 0 || owners > protocol.MaxOwners || 2*owners > len(rows) || (len(rows)-2*owners)%3 != 0 {
		return k, false
	}
	for row := range slices.Chunk(rows[:2*owners], 2) {
		entries, _ := strconv.ParseInt(row[1].Text, 10, 64)
		k.Owners = append(k.Owners, KeyOwner{readableText(row[0].Text), max(entries, 0)})
	}
	for row := range slices.Chunk(rows[2*owners:], 3) {
		k.Tickets = append(k.Tickets, KeyTicket{readableText(row[0].Text), max(row[1].Num, 0), permitsIn(row[2])})
	}
	return k, true
}

// permitsIn is a number of permits that any program may have written.
func permitsIn(r wire.Reply) int { return int(min(max(r.Num, 0), math.MaxInt32)) }

// readableText returns a text of another program as UTF-8.
func readableText(text string) string { return strings.ToValidUTF8(text, "?") }

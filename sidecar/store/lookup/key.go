package lookup

import (
	_ "embed"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Key is what Redis has for one lock, at one moment.
type Key struct {
	State  string // protocol.KeyFree, KeyLock, KeyReadWrite or KeyOther
	What   string // of a read-write lock: "read" or "write"; of what is no lock: a description
	TTLMS  int64  // -1: the key does not expire; -2: there is none
	Owners []KeyOwner

	// The queue of the lock, in its order.
	Tickets  []KeyTicket // the first protocol.MaxOwners
	Queued   int         // how many tickets there are
	NoQueues bool        // this user may not use queues
}

// KeyOwner is one owner of a key. A plain lock has one, a read-write lock one or several.
type KeyOwner struct {
	Field   string
	Entries int64
}

// KeyTicket is one ticket in the queue of a lock.
type KeyTicket struct {
	Field    string
	WaitedMS int64
}

//go:embed scripts/who.lua
var whoText string

// Who is the script that reads a key and its queue.
var Who = wire.NewScript(whoText)

// AskKey reads the key and the queue of a lock.
func AskKey(keys *wire.Keyspace, name string) Run {
	args := []string{"1", keys.Key(name), keys.Queue(name), strconv.Itoa(protocol.MaxOwners)}
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
	const head = 5
	if len(list) < head || list[0].Kind != '$' || list[2].Kind != ':' || list[3].Kind != ':' || list[4].Kind != ':' {
		return k, false
	}
	k = Key{State: list[0].Text, What: readableText(list[1].Text), TTLMS: max(list[2].Num, -2), Queued: int(max(list[4].Num, 0)), NoQueues: list[4].Num < 0}
	owners, pairs := int(list[3].Num), list[head:]
	if owners < 0 || owners > protocol.MaxOwners || 2*owners > len(pairs) || len(pairs)%2 != 0 {
		return k, false
	}
	for i := 0; i < len(pairs); i += 2 {
		field := readableText(pairs[i].Text)
		if i < 2*owners {
			entries, _ := strconv.ParseInt(pairs[i+1].Text, 10, 64)
			k.Owners = append(k.Owners, KeyOwner{field, max(entries, 0)})
		} else {
			k.Tickets = append(k.Tickets, KeyTicket{field, max(pairs[i+1].Num, 0)})
		}
	}
	return k, true
}

// readableText returns a text of another program as UTF-8.
func readableText(text string) string { return strings.ToValidUTF8(text, "?") }

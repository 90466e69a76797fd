package store

import (
	_ "embed"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
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

var who = wire.NewScript(whoText)

// Key reads the key and the queue of a lock. Redis is sent one command, or a second time with the
// text of the script, if it does not know that.
func (s *Store) Key(name string, done func(Key, error)) {
	args := []string{"1", s.dial.Keys.Key(name), s.dial.Keys.Queue(name), strconv.Itoa(protocol.MaxOwners)}
	s.runScript(name, who, 0, func(*pipeline.Params) []string { return args }, func(answer wire.Reply, err error) {
		if err == nil {
			err = refusal([]wire.Reply{answer})
		}
		if err != nil {
			done(Key{}, err)
			return
		}
		k, ok := keyOf(answer.List)
		if !ok {
			err = wire.Unavailable("Redis gave a reply that the script for this question does not make")
		}
		done(k, err)
	})
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

// UUIDOf returns the uuid that an owner field begins with; "": it begins with none. The field is
// that of a sidecar, or of a Redisson program.
func UUIDOf(field string) string {
	id, _, ok := strings.Cut(field, ":")
	if !ok || len(id) != 36 || uuid.Validate(id) != nil {
		return ""
	}
	return id
}

// IsSidecar reports whether a uuid is one that only sidecars make: of version 8. Sidecars of
// versions that ended have others.
func IsSidecar(id string) bool { return len(id) == 36 && id[14] == '8' }

// HostsOf returns what the sidecars with these uuids published, in any order. Those that published
// nothing are left out. The caller bounds how many it names.
func (s *Store) HostsOf(ids []string, done func([]Host, error)) {
	if len(ids) == 0 {
		done(nil, nil)
		return
	}
	s.hosts(ids, done)
}

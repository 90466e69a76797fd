package lookup

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Host is what a sidecar publishes of itself for people.
type Host struct {
	UUID    string `json:"-"` // of the sidecar
	Name    string `json:"host"`
	Version string `json:"version"`
	PID     int64  `json:"pid"`
	Started int64  `json:"started_ms"` // Unix time
}

const (
	// HostInterval is how often a sidecar publishes its Host.
	HostInterval = time.Minute

	// HostExpiry is how long a Host outlives the connection of its sidecar, at most.
	HostExpiry = 3 * HostInterval

	// HostPage is how many sidecars Hosts returns at most.
	HostPage = 100

	// MaxHostName is how many bytes the name of a host may have.
	MaxHostName = 64
)

// CheckHostName returns what is wrong with the name of a host; "": nothing.
func CheckHostName(name string) string {
	switch {
	case len(name) > MaxHostName:
		return "it has more than " + strconv.Itoa(MaxHostName) + " bytes"
	case name != readableName(name) || strings.ContainsAny(name, " \t"):
		return "it has a space, or a character that is not printable"
	case looksLikeUUID(name):
		return "it is a uuid, and those name sidecars"
	}
	return ""
}

// looksLikeUUID reports whether a name is a uuid in one of the forms in which these are written.
func looksLikeUUID(name string) bool {
	name = strings.TrimPrefix(strings.ToLower(name), "urn:uuid:")
	name = strings.TrimSuffix(strings.TrimPrefix(name, "{"), "}")
	return wire.IsUUID(name) || len(name) == 32 && strings.Trim(name, "0123456789abcdef") == ""
}

// readableName returns a text that another sidecar published as it may be printed: any program may
// write that key.
func readableName(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) > MaxHostName {
		text = strings.ToValidUTF8(text[:MaxHostName], "")
	}
	return text
}

// hostField is the one field of the hash of a Host. A hash, because the permissions for locks
// have the commands for it.
const hostField = "about"

// Announce publishes what the sidecar with this uuid is. h.UUID is not used.
func Announce(keys *wire.Keyspace, uuid string, h Host) Commands {
	text, err := json.Marshal(h)
	if err != nil {
		panic(err) // it has only strings and numbers
	}
	own, index, expiry := keys.Host(uuid), keys.Hosts(), strconv.FormatInt(HostExpiry.Milliseconds(), 10)
	return Commands{
		{"hset", own, hostField, string(text)}, {"pexpire", own, expiry},
		{"zadd", index, "0", uuid}, {"pexpire", index, expiry},
		// The next ones in the order of uuids, after the last one the first ones: see Prune.
		{"zrange", index, "(" + uuid, "+", "bylex", "limit", "0", "2"},
		{"zrange", index, "-", "+", "bylex", "limit", "0", "2"},
		{"zcard", index},
	}
}

// ReadAnnounced reads the replies to Announce: the next members of the index of hosts, and how many hosts there are; 0: it
// is not known.
func ReadAnnounced(replies []wire.Reply) (next []wire.Reply, hosts int, err error) {
	last := len(replies) - 1
	err = Refusal(replies[:last])
	return append(replies[4].List, replies[5].List...), hostCount(replies[last], err), err
}

// hostCount returns how many hosts there are by the size of their index; 0: it is not known, because a host
// that may not write to the index is in none.
func hostCount(size wire.Reply, refused error) int {
	if refused != nil || size.Kind != ':' {
		return 0
	}
	return int(min(max(size.Num, 0), math.MaxInt32))
}

// A Prune removes uuids from the index of hosts whose keys have expired, and members that are no
// uuids, unless they are too long to be kept. Each sidecar looks after the next ones in the index
// whenever it publishes: so it becomes empty of them, and no command takes long, however many
// hosts there are.
type Prune struct {
	Exist  Commands // what is asked first
	uuids  []string
	remove []string
}

// NewPrune returns the Prune for members of the index.
func NewPrune(keys *wire.Keyspace, members []wire.Reply) *Prune {
	p := &Prune{remove: []string{"zrem", keys.Hosts()}}
	members = slices.DeleteFunc(members, func(m wire.Reply) bool { return m.Kind != '$' })
	for _, m := range members[:min(len(members), 2)] {
		if !isUUID(m) {
			p.remove = append(p.remove, m.Text)
			continue
		}
		p.uuids = append(p.uuids, m.Text)
		p.Exist = append(p.Exist, []string{"exists", keys.Host(m.Text)})
	}
	return p
}

// Remove reads the replies to Exist, and returns what is to be sent then; nil: nothing.
func (p *Prune) Remove(replies []wire.Reply) Commands {
	for i, r := range replies {
		if r.Kind == ':' && r.Num == 0 {
			p.remove = append(p.remove, p.uuids[i])
		}
	}
	if len(p.remove) == 2 {
		return nil
	}
	return Commands{p.remove}
}

// isUUID reports whether a member of the index of hosts is the uuid of a sidecar. Any program may
// write that key.
func isUUID(member wire.Reply) bool { return member.Kind == '$' && wire.IsUUID(member.Text) }

// AskPage reads the uuids of a page of sidecars: at most HostPage, after one; "": from the first.
func AskPage(keys *wire.Keyspace, after string) Commands {
	from := "-"
	if after != "" {
		from = "(" + after
	}
	return Commands{{"zrange", keys.Hosts(), from, "+", "bylex", "limit", "0", strconv.Itoa(HostPage)}}
}

// ReadPage reads the replies to AskPage. last is the member of the index from which the next page goes on; "": there is
// no other page.
func ReadPage(replies []wire.Reply) (ids []string, last string, err error) {
	if err = Refusal(replies); err != nil {
		return nil, "", err
	}
	for _, r := range replies[0].List {
		if isUUID(r) {
			ids = append(ids, r.Text)
		}
		if r.Kind == '$' && len(replies[0].List) == HostPage {
			last = r.Text
		}
	}
	return ids, last, nil
}

// AskHosts reads what sidecars published.
func AskHosts(keys *wire.Keyspace, ids []string) (get Commands) {
	for _, id := range ids {
		get = append(get, []string{"hget", keys.Host(id), hostField})
	}
	return get
}

// ReadHosts reads the replies to AskHosts. Sidecars whose keys have expired, or hold something else, are
// left out. It fails if Redis refuses to read all of them for another reason.
func ReadHosts(ids []string, replies []wire.Reply) (hosts []Host, err error) {
	if !slices.ContainsFunc(replies, func(r wire.Reply) bool { return r.Kind != '-' || wire.Code(r.Text) == "WRONGTYPE" }) {
		err = Refusal(replies)
	}
	for i, r := range replies {
		if h, ok := readHost(ids[i], r); ok {
			hosts = append(hosts, h)
		}
	}
	return hosts, err
}

// readHost reads what the sidecar with a uuid published.
func readHost(id string, r wire.Reply) (h Host, ok bool) {
	if r.Kind != '$' || json.Unmarshal([]byte(r.Text), &h) != nil || h.Name == "" {
		return Host{}, false
	}
	h.UUID, h.Name, h.Version = id, readableName(h.Name), readableName(h.Version)
	h.PID, h.Started = max(h.PID, 0), max(h.Started, 0)
	return h, true
}

// AskPublished finds out whether a sidecar published its host within HostExpiry.
func AskPublished(keys *wire.Keyspace, id string) Commands {
	key := keys.Host(id)
	return Commands{{"pttl", key}, {"hget", key, hostField}}
}

// ReadPublished reads the replies to AskPublished: for how much longer it is known that the sidecar published, and what,
// as far as that can be read; 0: it did not.
func ReadPublished(keys *wire.Keyspace, id string, replies []wire.Reply) (h Host, left time.Duration, err error) {
	if err = Refusal(replies[:1]); err != nil || replies[0].Num == -2 {
		return Host{}, 0, err
	}
	h, _ = readHost(id, replies[1])
	if replies[0].Num < 0 { // -1: any program may have written the key
		return h, 0, wire.Unavailable(fmt.Sprintf("the key %q in Redis has no expiry, so it is not that of a sidecar: find out which program wrote it, and delete it", keys.Host(id)))
	}
	return h, time.Duration(replies[0].Num) * time.Millisecond, nil
}

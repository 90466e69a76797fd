package store

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

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
	case uuid.Validate(name) == nil:
		return "it is a uuid, and those name sidecars"
	}
	return ""
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

// Announce publishes what this sidecar is. h.UUID is not used. If Redis does not permit it, the log
// has that once.
func (s *Store) Announce(h Host) {
	text, err := json.Marshal(h)
	if err != nil {
		panic(err) // it has only strings and numbers
	}
	keys := &s.dial.Keys
	own, index, expiry := keys.Host(s.cfg.UUID), keys.Hosts(), strconv.FormatInt(HostExpiry.Milliseconds(), 10)
	s.ask([][]string{
		{"hset", own, hostField, string(text)}, {"pexpire", own, expiry},
		{"zadd", index, "0", s.cfg.UUID}, {"pexpire", index, expiry},
		// The next ones in the order of uuids, after the last one the first ones: see prune.
		{"zrange", index, "(" + s.cfg.UUID, "+", "bylex", "limit", "0", "2"},
		{"zrange", index, "-", "+", "bylex", "limit", "0", "2"},
		{"zcard", index},
	}, func(replies []wire.Reply, err error) {
		if err != nil {
			return // it comes again with the next connection
		}
		last := len(replies) - 1
		err = refusal(replies[:last])
		if s.masters != nil {
			s.masters.setHosts(hostCount(replies[last], err))
		}
		if err == nil {
			s.prune(append(replies[4].List, replies[5].List...))
		} else if strings.Contains(err.Error(), "NOPERM") && !s.announceLogged.Swap(true) { // what may pass makes Redis degraded
			s.cfg.Log.Warn("other hosts cannot show the name of this one: Redis refused to store it; let the ACL of this user have +hset +pexpire +zadd +zrange and the keys "+keys.QueuePatterns(),
				"reason", err)
		}
	})
}

// hostCount returns how many hosts there are by the size of their index; 0: it is not known, because a host
// that may not write to the index is in none.
func hostCount(size wire.Reply, refused error) int {
	if refused != nil || size.Kind != ':' {
		return 0
	}
	return int(min(max(size.Num, 0), math.MaxInt32))
}

// prune removes uuids from the index of hosts whose keys have expired, and members that are no
// uuids, unless they are too long to be kept. Each sidecar looks after the next ones in the index
// whenever it publishes: so it becomes empty of them, and no command takes long, however many
// hosts there are.
func (s *Store) prune(members []wire.Reply) {
	remove := []string{"zrem", s.dial.Keys.Hosts()}
	var uuids []string
	var exist [][]string
	members = slices.DeleteFunc(members, func(m wire.Reply) bool { return m.Kind != '$' })
	for _, m := range members[:min(len(members), 2)] {
		if !isUUID(m) {
			remove = append(remove, m.Text)
			continue
		}
		uuids = append(uuids, m.Text)
		exist = append(exist, []string{"exists", s.dial.Keys.Host(m.Text)})
	}
	done := func(replies []wire.Reply, err error) {
		if err != nil {
			return // the next time
		}
		for i, r := range replies {
			if r.Kind == ':' && r.Num == 0 {
				remove = append(remove, uuids[i])
			}
		}
		if len(remove) > 2 {
			s.ask([][]string{remove}, func([]wire.Reply, error) {})
		}
	}
	if len(exist) == 0 {
		done(nil, nil)
		return
	}
	s.ask(exist, done)
}

// isUUID reports whether a member of the index of hosts is the uuid of a sidecar. Any program may
// write that key.
func isUUID(member wire.Reply) bool {
	return member.Kind == '$' && len(member.Text) == 36 && uuid.Validate(member.Text) == nil
}

// Host finds out what the sidecar with this uuid published. known: it did, and lives, or did until
// a few minutes ago.
func (s *Store) Host(id string, done func(h Host, known bool, err error)) {
	s.hosts([]string{id}, func(hosts []Host, err error) {
		if len(hosts) == 0 {
			done(Host{}, false, err)
			return
		}
		done(hosts[0], true, nil)
	})
}

// Hosts returns the sidecars with the same key prefix, in the order of their uuids: at most
// HostPage of them, after the one with the uuid after; "": from the first. last is the member of
// the index from which the next page goes on; "": there is no other page.
func (s *Store) Hosts(after string, done func(hosts []Host, last string, err error)) {
	from := "-"
	if after != "" {
		from = "(" + after
	}
	s.ask([][]string{{"zrange", s.dial.Keys.Hosts(), from, "+", "bylex", "limit", "0", strconv.Itoa(HostPage)}}, func(replies []wire.Reply, err error) {
		if err == nil {
			err = refusal(replies)
		}
		if err != nil {
			done(nil, "", err)
			return
		}
		var ids []string
		last := ""
		for _, r := range replies[0].List {
			if isUUID(r) {
				ids = append(ids, r.Text)
			}
			if r.Kind == '$' && len(replies[0].List) == HostPage {
				last = r.Text
			}
		}
		if len(ids) == 0 {
			done(nil, last, nil)
			return
		}
		s.hosts(ids, func(hosts []Host, err error) { done(hosts, last, err) })
	})
}

// hosts reads what sidecars published. Those whose keys have expired, or hold something else, are
// left out. It fails if Redis refuses to read all of them for another reason.
func (s *Store) hosts(ids []string, done func([]Host, error)) {
	var get [][]string
	for _, id := range ids {
		get = append(get, []string{"hget", s.dial.Keys.Host(id), hostField})
	}
	s.ask(get, func(replies []wire.Reply, err error) {
		if err == nil && !slices.ContainsFunc(replies, func(r wire.Reply) bool { return r.Kind != '-' || wire.Code(r.Text) == "WRONGTYPE" }) {
			err = refusal(replies)
		}
		var hosts []Host
		for i, r := range replies {
			if h, ok := readHost(ids[i], r); ok {
				hosts = append(hosts, h)
			}
		}
		done(hosts, err)
	})
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

// Ask sends a question to the sidecar with this uuid. done: reached says whether that sidecar is
// connected to Redis. The answer comes by OnAnswer, or not at all.
func (s *Store) Ask(id string, body []byte, done func(reached bool, err error)) {
	s.publish(id, "ask "+s.cfg.UUID+" "+string(body), done)
}

// Answer sends an answer to the sidecar that asked.
func (s *Store) Answer(id string, body []byte) {
	s.publish(id, "answer "+string(body), func(bool, error) {})
}

func (s *Store) publish(id, text string, done func(reached bool, err error)) {
	// In a Cluster, each sidecar is connected to each node, which counts its own connections only, and a
	// message comes over all of them. The one to the node that has the slot of the channel counts.
	s.ask([][]string{{"publish", wire.OwnChannel(id), text}}, func(replies []wire.Reply, err error) {
		if err == nil {
			err = refusal(replies)
		}
		done(err == nil && replies[0].Num > 0, err)
	})
}

// question reads a message of another sidecar that is not about a lock:
//
//	ask <uuid of the sender> <body>
//	answer <body>
//
// isAnswer: it answers a question of this sidecar. ok: it is one of these messages.
func question(text string) (from, body string, isAnswer, ok bool) {
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "answer":
		return "", rest, true, true
	case "ask":
		from, body, ok = strings.Cut(rest, " ")
		return from, body, false, ok && len(from) == 36 && uuid.Validate(from) == nil
	}
	return "", "", false, false
}

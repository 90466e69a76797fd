// Package policy decides what a process of the host may ask of the sidecar, and how much of it.
//
// It is pure: New compiles the entries of the settings file, For returns what they say about one
// peer, and the methods of Session decide one request each. Nothing here reads a clock or a
// file; what is counted belongs to the loop (Ledger) and to the lock table (locktable.Quota).
//
// Entries are tried in their order. For each thing that can be decided, the first entry decides
// that matches the peer and the name of the lock and has a key for it. What no entry decides is
// as it is without a policy.
package policy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Entry is one [[policy]] of the settings file, as it is written there. A zero field says nothing.
type Entry struct {
	Name string `toml:"name"` // for refusals and the log; unique, of letters, digits, "-", "_" and "."

	// The processes that it is about: a peer that matches each of these lists that is not empty. An entry
	// without any is about all but root and the user of the sidecar.
	Users   []string `toml:"users"`   // names or numbers
	Groups  []string `toml:"groups"`  // names or numbers; also supplementary groups
	Units   []string `toml:"units"`   // units of the host's systemd: a name, or its beginning and "*"
	Cgroups []string `toml:"cgroups"` // paths of cgroups: the process is in one of them or below it

	Names []string `toml:"names"` // patterns of locks: a name, or the beginning of names and "*"

	Acquire      string `toml:"acquire"`       // "allow" or "deny"
	ForceRelease string `toml:"force_release"` // "all", "own" or "none"
	List         string `toml:"list"`          // the same
	Commands     *bool  `toml:"commands"`      // whether command lines of other users are shown
	Hosts        *bool  `toml:"hosts"`         // whether locks of other hosts are shown

	Per               string `toml:"per"` // who shares a limit: "user", the default, or "entry"
	Holds             int    `toml:"holds"`
	Waiters           int    `toml:"waiters"`
	Sessions          int    `toml:"sessions"`
	RequestsPerSecond int    `toml:"requests_per_second"`

	LongestLease string `toml:"longest_lease"` // of leases that a client asks for
	LongestHold  string `toml:"longest_hold"`

	Kinds    []string `toml:"kinds"`    // of what may be acquired: "lock", "rw", "permits"
	Permits  int      `toml:"permits"`  // of a semaphore: the most of one acquire
	Capacity int      `toml:"capacity"` // of a semaphore: how many it has, if an acquire names more
}

// MaxEntries bounds a policy: a request is compared with as many entries.
const MaxEntries = 64

// maxDuration is the longest lease and max_hold of the protocol.
const maxDuration = 30 * 24 * time.Hour

// EntryError says what is wrong with one entry.
type EntryError struct {
	Index  int    // of the entry
	Name   string // of the entry; "": it has none
	Key    string // "": the entry as a whole
	Reason string
}

func (e *EntryError) Error() string {
	what := fmt.Sprintf("entry %d of the policy", e.Index+1)
	if e.Name != "" {
		what += fmt.Sprintf(" (%q)", e.Name)
	}
	if e.Key != "" {
		what += ": " + e.Key
	}
	return what + ": " + e.Reason
}

// Resolver finds the numbers of users and groups.
type Resolver struct {
	User, Group func(name string) (int64, error)
}

// Policy is a compiled list of entries. One goroutine at a time calls For.
type Policy struct {
	rules       []*rule
	needsGroups bool
	needsCgroup bool

	found map[uint64]*Rules // by the set of the entries that match a peer
}

// rule is a compiled entry.
type rule struct {
	Entry
	index         int
	uids, gids    []int64
	patterns      []locktable.NamePattern
	lease, hold   time.Duration
	list, force   locktable.Scope
	isDeny        bool
	perEntry      bool
	isForEveryone bool
}

// Peer is a process that connects.
type Peer struct {
	UID          int64
	GIDs         []int64 // with supplementary groups
	Cgroup       string  // its path in the unified hierarchy; "": not known
	IsPrivileged bool    // root, or the user of the sidecar
}

// New compiles a policy. nil: there are no entries. Its error joins one EntryError for each fault.
func New(entries []Entry, resolve Resolver) (*Policy, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	p := &Policy{found: make(map[uint64]*Rules)}
	var errs []error
	if len(entries) > MaxEntries {
		errs = append(errs, &EntryError{Index: MaxEntries, Name: entries[MaxEntries].Name, Reason: fmt.Sprintf("there can be %d entries", MaxEntries)})
		entries = entries[:MaxEntries]
	}
	seen := make(map[string]bool)
	for i := range entries {
		c := compiler{rule: &rule{Entry: entries[i], index: i}, resolve: resolve}
		c.compile()
		if seen[c.Name] && c.Name != "" {
			c.fault("name", "another entry has the same name")
		}
		seen[c.Name] = true
		errs = append(errs, c.errs...)
		p.rules = append(p.rules, c.rule)
		p.needsGroups = p.needsGroups || len(c.Groups) > 0
		p.needsCgroup = p.needsCgroup || len(c.Units)+len(c.Cgroups) > 0
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return p, nil
}

// NeedsGroups reports whether For looks at Peer.GIDs.
func (p *Policy) NeedsGroups() bool { return p != nil && p.needsGroups }

// NeedsCgroup reports whether For looks at Peer.Cgroup.
func (p *Policy) NeedsCgroup() bool { return p != nil && p.needsCgroup }

// compiler compiles one entry and collects its faults.
type compiler struct {
	*rule
	resolve Resolver
	errs    []error
}

func (c *compiler) fault(key, format string, args ...any) {
	c.errs = append(c.errs, &EntryError{Index: c.index, Name: c.Name, Key: key, Reason: fmt.Sprintf(format, args...)})
}

func (c *compiler) compile() {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	switch {
	case c.Name == "":
		c.fault("", "it has no name; refusals and the log name the entry, so give it one")
	case len(c.Name) > 64 || strings.Trim(c.Name, allowed) != "":
		c.fault("name", "choose 1 to 64 letters, digits, \"-\", \"_\" and \".\"")
	}
	c.uids = c.numbers("users", c.Users, c.resolve.User)
	c.gids = c.numbers("groups", c.Groups, c.resolve.Group)
	for _, u := range c.Units {
		switch {
		case u == "" || strings.Contains(u, "/"):
			c.fault("units", "%q: write the name of a unit, such as \"backup.service\"", u)
		case strings.Contains(u[:len(u)-1], "*"):
			c.fault("units", "%q: \"*\" can stand at the end only", u)
		case strings.HasSuffix(u, ".slice"):
			c.fault("units", "%q: a slice contains units; name it in cgroups, as \"/%s\"", u, u)
		case !strings.ContainsAny(u, ".*"):
			c.fault("units", "%q: write the type of the unit too, such as \"%s.service\"", u, u)
		}
	}
	for _, g := range c.Cgroups {
		if !strings.HasPrefix(g, "/") || len(g) > 1 && strings.HasSuffix(g, "/") || strings.Contains(g, "*") {
			c.fault("cgroups", "%q: write a path that begins with \"/\", such as \"/system.slice\", without \"*\"; what is below it belongs to it", g)
		}
	}
	for _, n := range c.Names {
		if fault := locktable.NamePattern(n).Fault(protocol.MaxName); fault != "" {
			c.fault("names", "the pattern %q: %s", n, fault)
		}
		c.patterns = append(c.patterns, locktable.NamePattern(n))
	}
	c.isForEveryone = len(c.Users)+len(c.Groups)+len(c.Units)+len(c.Cgroups) == 0
	c.compileDecisions()
}

func (c *compiler) compileDecisions() {
	switch c.Acquire {
	case "", "allow":
	case "deny":
		c.isDeny = true
	default:
		c.fault("acquire", "%q: write \"allow\" or \"deny\"", c.Acquire)
	}
	c.list = c.scope("list", c.List)
	c.force = c.scope("force_release", c.ForceRelease)
	switch c.Per {
	case "", "user":
	case "entry":
		c.perEntry = true
	default:
		c.fault("per", "%q: write \"user\" or \"entry\"", c.Per)
	}
	for _, limit := range []struct {
		key string
		n   int
	}{{"holds", c.Holds}, {"waiters", c.Waiters}, {"sessions", c.Sessions}, {"requests_per_second", c.RequestsPerSecond}} {
		if limit.n < 0 {
			c.fault(limit.key, "%d: choose 1 or more, or leave it out", limit.n)
		}
	}
	for _, kind := range c.Kinds {
		if !slices.Contains(kinds, kind) {
			c.fault("kinds", "%q: write %s", kind, words(kinds))
		}
	}
	for _, limit := range []struct {
		key string
		n   int
	}{{"permits", c.Permits}, {"capacity", c.Capacity}} {
		if limit.n < 0 || limit.n > protocol.MaxPermits {
			c.fault(limit.key, "%d: choose 1 to %d, or leave it out", limit.n, protocol.MaxPermits)
		}
	}
	c.lease = c.duration("longest_lease", c.LongestLease)
	c.hold = c.duration("longest_hold", c.LongestHold)
	if len(c.Names) > 0 && c.Sessions != 0 {
		c.fault("sessions", "a session has no name; put it in an entry without names")
	}
	if len(c.Names) > 0 && c.RequestsPerSecond != 0 {
		c.fault("requests_per_second", "it counts requests of all names; put it in an entry without names")
	}
	if len(c.Names) > 0 && c.Hosts != nil {
		c.fault("hosts", "it is about the locks of all names; put it in an entry without names")
	}
	if c.Acquire == "" && c.ForceRelease == "" && c.List == "" && c.Commands == nil && c.Hosts == nil && c.LongestLease == "" && c.LongestHold == "" &&
		c.Holds == 0 && c.Waiters == 0 && c.Sessions == 0 && c.RequestsPerSecond == 0 && len(c.Kinds) == 0 && c.Permits == 0 && c.Capacity == 0 {
		c.fault("", "it decides nothing; give it acquire, force_release, list, commands, hosts, kinds or a limit")
	}
}

// kinds are what an entry can name.
var kinds = []string{redisop.KindLock.String(), redisop.KindReadWrite.String(), redisop.KindPermits.String()}

// words lists quoted words: "a", "b" or "c".
func words(all []string) (text string) {
	for i, w := range all {
		switch {
		case i > 0 && i == len(all)-1:
			text += " or "
		case i > 0:
			text += ", "
		}
		text += strconv.Quote(w)
	}
	return text
}

func (c *compiler) numbers(key string, names []string, find func(string) (int64, error)) []int64 {
	var numbers []int64
	for _, name := range names {
		n, err := find(name)
		if err != nil {
			if n, err = strconv.ParseInt(name, 10, 64); err != nil || n < 0 || n >= 1<<32-1 {
				c.fault(key, "%q: there is no such name on this host; write a number, if the name is not known at each start", name)
				continue
			}
		}
		numbers = append(numbers, n)
	}
	return numbers
}

func (c *compiler) scope(key, text string) locktable.Scope {
	switch text {
	case "", "all":
		return locktable.ScopeAll
	case "own":
		return locktable.ScopeOwn
	case "none":
		return locktable.ScopeNone
	}
	c.fault(key, "%q: write \"all\", \"own\" or \"none\"", text)
	return locktable.ScopeNone
}

func (c *compiler) duration(key, text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		c.fault(key, "%q: write a number with its unit, such as \"30s\", \"1h30m\" or \"500ms\"", text)
	case d < 50*time.Millisecond || d > maxDuration || d%time.Millisecond != 0:
		c.fault(key, "%q: choose 50ms to 720h, in whole milliseconds", text)
	}
	return d
}

// matches reports whether the rule is about a peer. needsCgroup: it is not known, and depends
// on the cgroup of the peer, which is not known.
func (r *rule) matches(p *Peer) (matches, needsCgroup bool) {
	if r.isForEveryone {
		return !p.IsPrivileged, false
	}
	if len(r.Users) > 0 && !slices.Contains(r.uids, p.UID) {
		return false, false
	}
	if len(r.Groups) > 0 && !slices.ContainsFunc(r.gids, func(g int64) bool { return slices.Contains(p.GIDs, g) }) {
		return false, false
	}
	if len(r.Units)+len(r.Cgroups) == 0 {
		return true, false
	}
	if p.Cgroup == "" {
		return false, true
	}
	if len(r.Units) > 0 {
		unit := Unit(p.Cgroup)
		if !slices.ContainsFunc(r.Units, func(u string) bool { return locktable.NamePattern(u).Matches(unit) }) {
			return false, false
		}
	}
	return len(r.Cgroups) == 0 || slices.ContainsFunc(r.Cgroups, func(g string) bool { return isWithin(p.Cgroup, g) }), false
}

// Unit returns the unit of the host's systemd that a cgroup belongs to: the first part of its
// path that is no slice. Parts after it are made by the unit's own processes, which can choose
// any name for them. "": it belongs to none.
func Unit(cgroup string) string {
	for part := range strings.SplitSeq(strings.TrimPrefix(cgroup, "/"), "/") {
		if strings.HasSuffix(part, ".slice") {
			continue
		}
		// systemd puts "_" before a name that could be a file of the cgroup file system.
		return strings.TrimPrefix(part, "_")
	}
	return ""
}

// isWithin reports whether a cgroup is another one, or below it.
func isWithin(cgroup, other string) bool {
	rest, ok := strings.CutPrefix(cgroup, other)
	return ok && (rest == "" || rest[0] == '/' || other == "/")
}

package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Rules are what a policy says about one peer. Peers that the same entries match share them. They
// never change.
type Rules struct {
	acquire  locktable.ByName[*rule]
	lease    locktable.ByName[*rule]
	hold     locktable.ByName[*rule]
	force    locktable.ByName[*rule]
	list     locktable.ByName[*rule]
	holds    locktable.ByName[*rule]
	waiters  locktable.ByName[*rule]
	kinds    locktable.ByName[*rule]
	permits  locktable.ByName[*rule]
	capacity locktable.ByName[*rule]
	sessions *rule // nil: no entry limits them
	requests *rule // nil: no entry limits them
	hosts    *rule // nil: no entry decides about other hosts

	about         []*rule // all that match the peer, in their order
	hides         *rule   // the first that hides locks or commands from the peer; nil: none does
	hidesCommands bool    // that hides commands only

	scope    locktable.ByName[locktable.Scope]
	commands locktable.ByName[bool]
}

// For returns what the policy says about a peer; nil: nothing. refused: the peer is refused,
// because an entry depends on what cannot be known of it.
func (p *Policy) For(peer *Peer) (rules *Rules, refused *Refusal) {
	if p == nil {
		return nil, nil
	}
	set := uint64(0)
	for _, r := range p.rules {
		matches, needsCgroup := r.matches(peer)
		if needsCgroup {
			return nil, refusal(protocol.Denied, r, "depends on the cgroup of your process, which the sidecar cannot find out; connect from the pid namespace of the sidecar, and do not end the process that connects")
		}
		if matches {
			set |= 1 << r.index
		}
	}
	if set == 0 {
		return nil, nil
	}
	if p.found[set] == nil {
		p.found[set] = p.collect(set)
	}
	return p.found[set], nil
}

// collect makes the rules of a set of entries.
func (p *Policy) collect(set uint64) *Rules {
	rs := new(Rules)
	for _, r := range p.rules {
		if set&(1<<r.index) == 0 {
			continue
		}
		for _, d := range []struct {
			to      *locktable.ByName[*rule]
			decides bool
		}{
			{&rs.acquire, r.Acquire != ""},
			{&rs.lease, r.lease != 0},
			{&rs.hold, r.hold != 0},
			{&rs.force, r.ForceRelease != ""},
			{&rs.list, r.List != ""},
			{&rs.holds, r.Holds != 0},
			{&rs.waiters, r.Waiters != 0},
			{&rs.kinds, len(r.Kinds) > 0},
			{&rs.permits, r.Permits != 0},
			{&rs.capacity, r.Capacity != 0},
		} {
			if d.decides {
				*d.to = append(*d.to, locktable.ForNames[*rule]{Names: r.patterns, Value: r})
			}
		}
		if r.List != "" {
			rs.scope = append(rs.scope, locktable.ForNames[locktable.Scope]{Names: r.patterns, Value: r.list})
		}
		if r.Commands != nil {
			rs.commands = append(rs.commands, locktable.ForNames[bool]{Names: r.patterns, Value: *r.Commands})
		}
		if rs.hosts == nil && r.Hosts != nil {
			rs.hosts = r
		}
		rs.about = append(rs.about, r)
		if r.Sessions != 0 && rs.sessions == nil {
			rs.sessions = r
		}
		if r.RequestsPerSecond != 0 && rs.requests == nil {
			rs.requests = r
		}
	}
	rs.findHidden()
	return rs
}

// findHidden finds the first entry that hides locks, or else command lines. An entry after one
// that decides for all names hides nothing.
func (rs *Rules) findHidden() {
	for _, f := range rs.list {
		if r := f.Value; r.list != locktable.ScopeAll {
			rs.hides = r
			return
		} else if len(f.Names) == 0 {
			break
		}
	}
	for _, r := range rs.about {
		if r.Commands == nil {
			continue
		}
		if !*r.Commands {
			rs.hides, rs.hidesCommands = r, true
			return
		} else if len(r.Names) == 0 {
			return
		}
	}
}

// remedy says how to permit what a rule forbids to the peer: which key to add to which entry. The
// entry that is found is about the peer, comes before that rule and does not have the key. An entry
// about everyone is not named: it would permit it to everyone.
func (rs *Rules) remedy(forbids *rule, key string, isSet func(*rule) bool) string {
	for _, r := range rs.about {
		if r == forbids {
			break
		}
		if !r.isForEveryone && len(r.Names) == 0 && !isSet(r) {
			return fmt.Sprintf("add %s to the entry %q, which comes before it", key, r.Name)
		}
	}
	return fmt.Sprintf("add an entry about the process, with %s, before it", key)
}

func setsList(r *rule) bool         { return r.List != "" }
func setsForceRelease(r *rule) bool { return r.ForceRelease != "" }
func setsCommands(r *rule) bool     { return r.Commands != nil }
func setsHosts(r *rule) bool        { return r.Hosts != nil }

// Hosts decides whether a process may ask what other hosts know. Without a key that permits it, what
// entries hide here would be open there.
func (rs *Rules) Hosts() *Refusal {
	switch {
	case rs.hosts == nil:
		r := rs.about[0]
		remedy := "add an entry about the process, with hosts = true"
		for _, of := range rs.about {
			if !of.isForEveryone && len(of.Names) == 0 {
				remedy = fmt.Sprintf("add hosts = true to the entry %q", of.Name)
				break
			}
		}
		return refusal(protocol.Denied, r, "is about your process, and no entry lets it ask other hosts; %s, or ask as root or as the sidecar's user", remedy)
	case !*rs.hosts.Hosts:
		return refusal(protocol.Denied, rs.hosts, "denies requests about other hosts; %s, or ask as root or as the sidecar's user", rs.remedy(rs.hosts, "hosts = true", setsHosts))
	}
	return nil
}

// ForceHost decides whether a process may end holds of other hosts, dead ones too: no process may that
// an entry is about, because the policy of this host is not known there.
func (rs *Rules) ForceHost() *Refusal {
	return refusal(protocol.Denied, rs.about[0], "is about your process, and holds of other hosts, orphaned ones too, are ended by those that no rule is about; ask as root or as the sidecar's user, or on that host if it runs")
}

// HostLock decides whether a process that may ask other hosts may ask them about one name: if it may
// see that lock for all users, because the users of another host are not those of this one.
func (rs *Rules) HostLock(name string) *Refusal {
	if r, ok := rs.list.Of(name); ok && r.list != locktable.ScopeAll {
		return refusal(protocol.Denied, r, "hides other users' processes that lock this name (list = %q), and so those of other hosts; %s", r.List, rs.remedy(r, `list = "all"`, setsList))
	}
	return nil
}

// HostTerms are the terms for rows of other hosts: their processes are of other users.
func (rs *Rules) HostTerms() *locktable.Terms {
	return &locktable.Terms{UID: -1, Scope: rs.scope, Commands: rs.commands}
}

// Requests returns how many requests a second the processes of a user may send, and the account
// that counts them; 0: their requests are not limited.
func (rs *Rules) Requests(uid int64) (perSecond int, shared Account) {
	if rs == nil || rs.requests == nil {
		return 0, Account{}
	}
	return rs.requests.RequestsPerSecond, accountOf(rs.requests, uid)
}

// Ledger counts what entries limit. One goroutine owns it.
type Ledger struct {
	// SharedUID is the uid that stands for many users; −1: there is none.
	SharedUID int64

	refused  [MaxEntries]Refused
	accounts map[Account]*account
	swept    int // accounts after the last sweep
}

// Refused is how often an entry has refused, by the code of the error.
type Refused struct{ Denied, Limit uint64 }

// Count counts a refusal, unless a locktable.Quota has counted it.
func (l *Ledger) Count(why *Refusal) {
	switch {
	case why.isCounted:
	case why.Code == protocol.Denied:
		l.refused[why.index].Denied++
	default:
		l.refused[why.index].Limit++
	}
}

// Refused returns what the first n entries have refused.
func (l *Ledger) Refused(n int) []Refused { return slices.Clone(l.refused[:n]) }

// Use is what is used of one limit of an entry, by the processes that share it and use the most.
type Use struct {
	Rule, Limit string // the name of the entry, and the key of the limit
	Used, Most  int
}

// Usage returns what is used of each limit of the entries.
func (l *Ledger) Usage(entries []Entry) []Use {
	limits := make([][]Use, len(entries)) // by entry
	for i := range entries {
		e := &entries[i]
		for _, u := range []Use{{e.Name, "holds", 0, e.Holds}, {e.Name, "waiters", 0, e.Waiters}, {e.Name, "sessions", 0, e.Sessions}} {
			if u.Most > 0 {
				limits[i] = append(limits[i], u)
			}
		}
	}
	for key, a := range l.accounts {
		used := map[string]int{"holds": a.holds.Used(), "waiters": a.waiters.Used(), "sessions": a.sessions.Used()}
		for i := range limits[key.entry] {
			u := &limits[key.entry][i]
			u.Used = max(u.Used, used[u.Limit])
		}
	}
	return slices.Concat(limits...)
}

// Account identifies the processes that share the limits of an entry: by the entry, and by the user
// if the limits of the entry are for each user.
type Account struct {
	entry    int
	perEntry bool
	uid      int64
}

func accountOf(r *rule, uid int64) Account {
	if r.perEntry {
		return Account{entry: r.index, perEntry: true}
	}
	return Account{entry: r.index, uid: uid}
}

// account is what those who share the limits of one entry use of them.
type account struct {
	holds, waiters, sessions locktable.Quota
	requests                 int64 // when the requests so far would have been sent at the allowed rate
	users                    int   // sessions that have it
}

func (a *account) isIdle(now int64) bool {
	return a.users == 0 && a.holds.Used() == 0 && a.waiters.Used() == 0 && a.requests <= now
}

// account returns the account of a rule for a user, made if need be.
func (l *Ledger) account(now int64, r *rule, uid int64) *account {
	key, sharers := accountOf(r, uid), fmt.Sprintf("user %d", uid)
	if r.perEntry {
		sharers = "all its processes together"
	}
	a := l.accounts[key]
	if a != nil {
		return a
	}
	if l.accounts == nil {
		l.accounts = make(map[Account]*account)
	}
	if len(l.accounts) >= 2*l.swept+64 {
		for k, a := range l.accounts {
			if a.isIdle(now) {
				delete(l.accounts, k)
			}
		}
		l.swept = len(l.accounts)
	}
	quota := func(what string, most int) locktable.Quota {
		return locktable.Quota{What: what, Rule: r.Name, Sharers: sharers, Most: most, Refused: &l.refused[r.index].Limit}
	}
	a = &account{holds: quota("holds", r.Holds), waiters: quota("waiters", r.Waiters), sessions: quota("sessions", r.Sessions)}
	l.accounts[key] = a
	return a
}

// Session is what a policy says about one session, and what the session counts for.
type Session struct {
	rules    *Rules
	uid      int64
	terms    locktable.Terms
	accounts []*account
	sessions *account // nil: its number is not limited
	requests *account // nil: their rate is not limited
}

// Open returns the session of a peer of this user, and counts it. refused: there may be no further
// session. A session that is resumed is not refused: it has locks.
func (l *Ledger) Open(now int64, rules *Rules, uid int64, isResumed bool) (s *Session, refused *Refusal) {
	if r := rules.sessions; r != nil && !isResumed {
		if why := l.account(now, r, uid).sessions.Refuse(); why != "" {
			return nil, &Refusal{Code: protocol.Limit, Rule: r.Name, Msg: why, isCounted: true}
		}
	}
	s = &Session{rules: rules, uid: uid}
	if s.terms.UID = uid; uid == l.SharedUID {
		s.terms.UID = -1
	}
	s.terms.Scope, s.terms.Commands = rules.scope, rules.commands
	open := func(r *rule) *account {
		a := l.account(now, r, uid)
		a.users++
		s.accounts = append(s.accounts, a)
		return a
	}
	for _, f := range rules.holds {
		s.terms.Holds = append(s.terms.Holds, locktable.ForNames[*locktable.Quota]{Names: f.Names, Value: &open(f.Value).holds})
	}
	for _, f := range rules.waiters {
		s.terms.Waiters = append(s.terms.Waiters, locktable.ForNames[*locktable.Quota]{Names: f.Names, Value: &open(f.Value).waiters})
	}
	if rules.sessions != nil {
		s.sessions = open(rules.sessions)
		s.sessions.sessions.Add(1)
	}
	if rules.requests != nil {
		s.requests = open(rules.requests)
	}
	return s, nil
}

// Close is the reverse of Open. Its holds may outlast it.
func (s *Session) Close() {
	if s.sessions != nil {
		s.sessions.sessions.Add(-1)
	}
	for _, a := range s.accounts {
		a.users--
	}
	s.accounts = nil
}

// Terms are what the lock table has to know of the session.
func (s *Session) Terms() *locktable.Terms { return &s.terms }

// Refusal is a request that a policy refuses, and which rule of it does.
type Refusal struct {
	Code protocol.Code
	Rule string
	Msg  string

	index     int // of the entry
	isCounted bool
}

// Err is the refusal as an answer.
func (r *Refusal) Err() *protocol.Err { return &protocol.Err{Code: r.Code, Msg: r.Msg} }

func refusal(code protocol.Code, r *rule, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Rule: r.Name, index: r.index, Msg: fmt.Sprintf("rule %q of the policy ", r.Name) + fmt.Sprintf(format, args...)}
}

// CountRequest counts a request, unless too many were counted within the last second.
func (s *Session) CountRequest(now int64) *Refusal {
	if s.requests == nil {
		return nil
	}
	r := s.rules.requests
	a := s.requests
	if a.requests-now > int64(time.Second)-int64(time.Second)/int64(r.RequestsPerSecond) {
		return refusal(protocol.Limit, r, "limits requests_per_second to %d, and more were sent; send fewer, or raise requests_per_second of that rule", r.RequestsPerSecond)
	}
	a.requests = max(a.requests, now) + int64(time.Second)/int64(r.RequestsPerSecond)
	return nil
}

// Acquire decides an acquire of a kind of lock, and bounds its max_hold and, of a semaphore, its Of. How many holds and waiters
// the session may have is the table's to decide.
func (s *Session) Acquire(kind redisop.LockKind, req *protocol.AcquirePermits) *Refusal {
	if r, ok := s.rules.acquire.Of(req.Name); ok && r.isDeny {
		return refusal(protocol.Denied, r, "denies acquire of this name to user %d; ask for a name that you may lock, or change that rule", s.uid)
	}
	if r, ok := s.rules.kinds.Of(req.Name); ok && !slices.Contains(r.Kinds, kind.String()) {
		return refusal(protocol.Denied, r, "does not let user %d use this name as %s; choose another name, or add %q to kinds of that rule", s.uid, kind.Noun(), kind)
	}
	if r, ok := s.rules.permits.Of(req.Name); ok && int(req.Permits) > r.Permits {
		return refusal(protocol.Limit, r, "limits permits of one acquire to %d, and %d were asked for; ask for fewer, or raise permits of that rule", r.Permits, req.Permits)
	}
	if r, ok := s.rules.capacity.Of(req.Name); ok && int(req.Of) > r.Capacity {
		if int(req.Permits) > r.Capacity {
			return refusal(protocol.Limit, r, "limits the semaphore to %d permits, and %d were asked for at once; ask for fewer, or raise capacity of that rule", r.Capacity, req.Permits)
		}
		req.Of = uint16(r.Capacity)
	}
	if r, ok := s.rules.lease.Of(req.Name); ok && req.LeaseMS > r.lease.Milliseconds() {
		return refusal(protocol.Limit, r, "limits leases to %v, and %v was asked for; ask for a shorter one, or raise longest_lease of that rule", r.lease, time.Duration(req.LeaseMS)*time.Millisecond)
	}
	if r, ok := s.rules.hold.Of(req.Name); ok {
		switch longest := r.hold.Milliseconds(); {
		case req.MaxHoldMS > longest:
			return refusal(protocol.Limit, r, "limits holds to %v, and a max_hold of %v was asked for; ask for a shorter one, or raise longest_hold of that rule", r.hold, time.Duration(req.MaxHoldMS)*time.Millisecond)
		case req.KeepMS > longest:
			return refusal(protocol.Limit, r, "limits holds to %v, and a keep of %v was asked for; ask for a shorter one, or raise longest_hold of that rule", r.hold, time.Duration(req.KeepMS)*time.Millisecond)
		case req.MaxHoldMS == 0:
			req.MaxHoldMS = longest
		}
	}
	return nil
}

// ForceRelease decides whether the session may end the hold of a lock, if it is held, which is by
// a process of the user holder. decides: a rule does.
func (s *Session) ForceRelease(name string, isHeld bool, holder int64) (refused *Refusal, decides bool) {
	r, ok := s.rules.force.Of(name)
	if !ok {
		return nil, false
	}
	switch {
	case r.force == locktable.ScopeNone:
		return refusal(protocol.Denied, r, "denies force_release of this name to user %d; %s", s.uid, s.rules.remedy(r, `force_release = "own" or "all"`, setsForceRelease)), true
	case r.force == locktable.ScopeOwn && !(isHeld && holder == s.terms.UID) && s.Info(name) != nil:
		return s.Info(name), true // another answer would say whether the lock is held
	case r.force == locktable.ScopeOwn && isHeld && holder != s.terms.UID:
		return refusal(protocol.Denied, r, "lets user %d force only locks of its own processes free, and this one is held by a process of another user; %s", s.uid, s.rules.remedy(r, `force_release = "all"`, setsForceRelease)), true
	}
	return nil, true
}

// List decides whether the session may list locks at all. Which of them, Terms says.
func (s *Session) List() *Refusal {
	if len(s.rules.list) > 0 && len(s.rules.list[0].Names) == 0 && s.rules.list[0].Value.list == locktable.ScopeNone {
		r := s.rules.list[0].Value
		return refusal(protocol.Denied, r, "denies list to user %d; %s", s.uid, s.rules.remedy(r, `list = "own" or "all"`, setsList))
	}
	return nil
}

// Rules are what the policy says about the peer of the session. Sessions with the same rules and user
// may know the same.
func (s *Session) Rules() *Rules { return s.rules }

// HidesAny reports whether the policy hides locks or command lines from the session.
func (s *Session) HidesAny() bool { return s.rules.hides != nil }

// Hidden says what status and events do not show to the session, and how to show it; "": they show
// all. It is the same whether there is anything to hide or not.
func (s *Session) Hidden() string {
	r := s.rules.hides
	if r == nil {
		return ""
	}
	what, why, key, isSet := "other users' locks", `list = "own"`, `list = "all"`, setsList
	switch {
	case s.rules.hidesCommands:
		what, why, key, isSet = "the commands of other users' processes", "commands = false", "commands = true", setsCommands
	case r.list == locktable.ScopeNone:
		what, why = "all locks", `list = "none"`
	}
	if len(r.Names) > 0 {
		why += ", for some names"
	}
	return fmt.Sprintf("rule %q of the policy hides %s from user %d (%s); to show them, %s", r.Name, what, s.uid, why, s.rules.remedy(r, key, isSet))
}

// Info decides whether the session may ask for one lock. A client that may acquire it learns from
// that whether it is held; which processes hold it, Terms hides.
func (s *Session) Info(name string) *Refusal {
	if s.scope(name) != locktable.ScopeNone {
		return nil
	}
	if r, ok := s.rules.acquire.Of(name); ok && r.isDeny {
		return refusal(protocol.Denied, r, "denies acquire of this name to user %d, and list is \"none\" for it; %s", s.uid, s.rules.remedy(r, `list = "own" or "all"`, setsList))
	}
	return nil
}

func (s *Session) scope(name string) locktable.Scope {
	scope, _ := s.rules.scope.Of(name)
	return scope
}

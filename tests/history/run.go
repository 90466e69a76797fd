package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

const never = int64(math.MaxInt64)

// A run is a history put in order: whose acquire became what, and what was
// broken when.
type run struct {
	rules    Rules
	begin    int64 // the first stamp
	end      int64 // the last one
	clients  map[string]*client
	acquires []*acquire
	locks    map[string][]*acquire // in the order in which they were invoked
	holds    map[string][]*hold    // by lock, in the order of their tokens
	faults   []*trouble
	writes   map[string][]write // by lock
	events   int
	broken   []Violation // what is no history at all
}

// A client is one process.
type client struct {
	name, host string
	killedFrom int64  // it may be dead from then on; never: it was not killed
	killedBy   int64  // it is dead then
	stops      []span // when it may have stood still
}

// An acquire is one call, and what became of it.
type acquire struct {
	client *client
	op     int64
	lock   string
	owner  uint64
	wait   int64 // 0: no limit
	lease  int64 // fixed; 0: renewed
	hold   int64 // longest; 0: none
	behind int64

	invoked  int64
	answered int64 // never: it was not
	err      string
	maybe    bool // it failed, or its release did, and may have happened nevertheless

	granted bool
	token   uint64
	until   int64 // the largest deadline that was told
	sure    int64 // it was certainly believed in until then: the grant, or the last check before it was lost

	release  int64 // when a release was about to be made; never: none was
	released int64 // when it had returned; never: it did not
	relErr   string
	lost     []*Event // how it was told that it was lost, by its release too

	events []*Event
}

// A hold is one lock held by one owner, over all its entries.
type hold struct {
	client  *client
	owner   uint64
	lock    string
	token   uint64
	invoked int64 // of its first entry
	granted int64
	ends    int64 // it was certainly believed in from granted until then; granted: perhaps never
	free    int64 // nobody believes in it then, and Redis has been told or forgets it
	entries []*acquire
}

// A span is a stretch of time; its ends belong to it.
type span struct{ from, to int64 }

func (s span) overlaps(o span) bool { return s.from <= o.to && o.from <= s.to }

// A trouble is a fault from its beginning to its end.
type trouble struct {
	span
	id     int
	fault  string
	target string
	lock   string // the only one that is concerned; "": all
	effect []Effect
}

func (t *trouble) has(e Effect) bool { return slices.Contains(t.effect, e) }

func (t *trouble) concerns(lock string) bool { return t.lock == "" || t.lock == lock }

// longest is the longest lease that a hold can have: what Redis forgot is
// believed in for no longer than this.
func (r *run) longest(a *acquire) int64 { return max(a.lease*1e6, int64(r.rules.Lease)) }

type opKey struct {
	client string
	op     int64
}

func newRun(events []Event, rules Rules) *run {
	r := &run{
		rules: rules, begin: never, clients: map[string]*client{}, locks: map[string][]*acquire{},
		holds: map[string][]*hold{}, writes: map[string][]write{}, events: len(events),
	}
	// What belongs to one acquire is in one log, in order; the conductor's word
	// on a process is not.
	ops := map[opKey]*acquire{}
	faults := map[int]*trouble{}
	for i := range events {
		e := &events[i]
		r.begin, r.end = min(r.begin, e.earliest()), max(r.end, e.At)
		switch e.Kind {
		case Start:
			c := r.client(e.Client)
			c.host = e.Host
		case Kill:
			c := r.client(e.Client)
			c.killedFrom, c.killedBy = e.earliest(), e.At
		case Stop:
			c := r.client(e.Client)
			c.stops = append(c.stops, span{e.earliest(), never})
		case Cont:
			c := r.client(e.Client)
			if n := len(c.stops); n > 0 {
				c.stops[n-1].to = e.At
			}
		case Fault:
			t := &trouble{span: span{e.earliest(), never}, id: e.ID, fault: e.Fault, target: e.Target, lock: e.Lock, effect: e.Effects}
			faults[e.ID] = t
			r.faults = append(r.faults, t)
		case Mended:
			if t := faults[e.ID]; t != nil {
				t.to = e.At
			}
		case Exit, End:
		case Applied, Write:
		default:
			key := opKey{e.Client, e.Op}
			a := ops[key]
			if (e.Kind == Invoke) == (a != nil) {
				r.nonsense(e, "an acquire begins once, and before all else that is said of it")
				continue
			}
			if e.Kind == Invoke {
				a = &acquire{
					client: r.client(e.Client), op: e.Op, lock: e.Lock, owner: e.Owner, wait: e.WaitMS, lease: e.LeaseMS,
					hold: e.MaxHoldMS, behind: e.Behind, invoked: e.At, answered: never, release: never, released: never,
				}
				ops[key] = a
				r.acquires = append(r.acquires, a)
				r.locks[a.lock] = append(r.locks[a.lock], a)
			}
			r.follow(a, e)
		}
	}
	slices.SortFunc(r.faults, func(a, b *trouble) int { return cmp.Compare(a.from, b.from) })
	for _, all := range r.locks {
		slices.SortStableFunc(all, func(a, b *acquire) int { return cmp.Compare(a.invoked, b.invoked) })
	}
	r.collectWrites(events, ops)
	r.collectHolds()
	return r
}

// client returns the process of that name.
func (r *run) client(name string) *client {
	c := r.clients[name]
	if c == nil {
		c = &client{name: name, killedFrom: never, killedBy: never}
		r.clients[name] = c
	}
	return c
}

func (r *run) nonsense(e *Event, why string) {
	r.broken = append(r.broken, Violation{Rule: "log", Lock: e.Lock, At: e.At, Text: why, Events: []Event{*e}})
}

// follow adds an event to the acquire that it belongs to.
func (r *run) follow(a *acquire, e *Event) {
	a.events = append(a.events, e)
	switch e.Kind {
	case Grant:
		a.granted, a.token, a.until, a.answered = true, e.Token, e.Until, e.At
		a.sure = e.At
	case Error:
		a.err, a.maybe, a.answered = e.Err, e.Maybe, e.At
	case Checked:
		a.until = max(a.until, e.Until)
		a.sure = max(a.sure, e.earliest())
	case Lost:
		a.lost = append(a.lost, e)
	case Release:
		a.release = min(a.release, e.At)
	case Released:
		a.released, a.relErr = e.At, e.Err
		a.maybe = a.maybe || e.Maybe
		if e.Err == LostErr {
			a.lost = append(a.lost, e)
		}
	}
	if e.Kind != Invoke && e.Kind != Grant && e.Kind != Error && !a.granted {
		r.nonsense(e, "nothing can become of a lock that was not granted")
	}
}

// believed returns until when the client certainly believed in what it was
// granted. While nothing tells it otherwise it believes until its deadline.
// One that was told of a loss believed until then; when it was told is seen later
// only, so it counts from the last time it asked.
func (a *acquire) believed() int64 {
	until := min(a.until, a.release, a.client.killedFrom)
	for _, e := range a.lost {
		if e.Reason != Expired && e.Reason != MaxHold {
			until = min(until, a.sure)
		}
	}
	return until
}

// over returns when the lock is free again as far as this entry goes: never, if
// nobody can know.
func (a *acquire) over() int64 {
	over := a.client.killedBy
	if len(a.lost) > 0 {
		over = min(over, a.lost[0].At)
	}
	switch {
	case a.released == never:
	case a.relErr == "" || a.relErr == LostErr:
		over = min(over, a.released)
	default: // it could not be said: the lease ends by itself
		over = min(over, max(a.released, a.until))
	}
	return over
}

// collectHolds puts the entries of one hold together.
func (r *run) collectHolds() {
	type holdKey struct {
		client *client
		owner  uint64
		token  uint64
	}
	for lock, all := range r.locks {
		holds := map[holdKey]*hold{}
		var list []*hold
		for _, a := range all {
			if !a.granted {
				continue
			}
			ends := max(a.answered, a.believed())
			key := holdKey{a.client, a.owner, a.token}
			h := holds[key]
			if h == nil || a.owner == 0 {
				h = &hold{client: a.client, owner: a.owner, lock: lock, token: a.token, invoked: a.invoked, granted: a.answered}
				holds[key] = h
				list = append(list, h)
			}
			h.granted = min(h.granted, a.answered)
			h.ends = max(h.ends, ends)
			h.free = max(h.free, a.over())
			h.entries = append(h.entries, a)
		}
		slices.SortStableFunc(list, func(a, b *hold) int {
			return cmp.Or(cmp.Compare(a.token, b.token), cmp.Compare(a.granted, b.granted))
		})
		r.holds[lock] = list
	}
}

// certain tells whether the hold was certainly believed in for a while.
func (h *hold) certain() bool { return h.ends > h.granted }

func (h *hold) String() string {
	who := h.client.name
	if h.owner != 0 {
		who = fmt.Sprintf("%s/%d", who, h.owner)
	}
	return fmt.Sprintf("%s with token %d", who, h.token)
}

// stood tells whether a process may have stood still at some time of a span.
func (c *client) stood(s span) bool {
	return slices.ContainsFunc(c.stops, s.overlaps)
}

// excerpt returns what the log says of some holds.
func excerpt(holds ...*hold) []Event {
	var all []*acquire
	for _, h := range holds {
		all = append(all, h.entries...)
	}
	return excerptOf(all...)
}

// excerptOf returns what the log says of some acquires, and of their processes
// meanwhile.
func excerptOf(all ...*acquire) []Event {
	var events []Event
	told := map[*client]span{}
	for _, a := range all {
		life := span{a.invoked, a.invoked}
		if known, ok := told[a.client]; ok {
			life = known
		}
		for _, e := range a.events {
			events = append(events, *e)
			life = span{min(life.from, e.At), max(life.to, e.At)}
		}
		told[a.client] = life
	}
	for c, life := range told {
		for _, stop := range c.stops {
			if !stop.overlaps(life) {
				continue
			}
			events = append(events, Event{Kind: Stop, At: stop.from, Client: c.name})
			if stop.to != never {
				events = append(events, Event{Kind: Cont, At: stop.to, Client: c.name})
			}
		}
		if c.killedBy != never {
			events = append(events, Event{Kind: Kill, At: c.killedBy, Client: c.name})
		}
	}
	return events
}

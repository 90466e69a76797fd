package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

const never = int64(math.MaxInt64)

// A timeline is a history sorted by acquires, holds and faults.
type timeline struct {
	rules     Rules
	begin     int64 // the first timestamp
	end       int64 // the last one
	clients   map[string]*client
	acquires  []*acquire
	locks     map[string][]*acquire // in the order in which they were invoked
	holds     map[string][]*hold    // by lock, in the order of their tokens
	faults    []*faultSpan
	writes    map[string][]write // by lock
	events    int
	malformed []Violation // events that make no sense
}

// A client is one process.
type client struct {
	name, host string
	killedFrom int64  // it may have ended from then on; never: it was not killed
	killedBy   int64  // it has ended then
	stops      []span // when it may have been stopped
}

// An acquire is one call, with its hold and its release.
type acquire struct {
	client  *client
	op      int64
	lock    string
	owner   uint64
	wait    int64 // 0: no limit
	lease   int64 // fixed; 0: renewed
	maxHold int64 // longest; 0: none
	afterOp int64
	permits int // of a semaphore; of a lock 1
	of      int // permits that there are; of a lock 1

	invoked         int64
	answered        int64 // never: it was not answered
	err             string
	mayHaveHappened bool // it failed, or its release did, and may have happened nevertheless

	granted   bool
	token     uint64
	until     int64 // the latest known deadline
	checkedAt int64 // the client certainly believed in it until then: the grant, or the last successful check

	release  int64 // when a release began; never: none did
	released int64 // when it returned; never: it did not
	relErr   string
	lost     []*Event // the reports of its loss, also by its release

	events []*Event
}

// A hold is one lock held by one owner, over all its entries, or the permits of one acquire.
type hold struct {
	client        *client
	owner         uint64
	lock          string
	token         uint64
	permits, of   int
	invoked       int64 // of its first entry
	granted       int64
	believedUntil int64 // the client certainly believed in it from granted until then; granted: perhaps never
	freeAt        int64 // no client believes in it then, and it has ended in Redis
	entries       []*acquire
}

// A span is a period of time, including both ends.
type span struct{ from, to int64 }

func (s span) overlaps(o span) bool { return s.from <= o.to && o.from <= s.to }

// A faultSpan is a fault with its period.
type faultSpan struct {
	span
	id     int
	fault  string
	target string
	lock   string // the only lock that is affected; "": all
	effect []Effect
}

func (t *faultSpan) has(e Effect) bool { return slices.Contains(t.effect, e) }

func (t *faultSpan) concerns(lock string) bool { return t.lock == "" || t.lock == lock }

// longestLease returns the longest lease of a hold: after Redis lost it, its client believes in it
// for no longer than this.
func (r *timeline) longestLease(a *acquire) int64 { return max(a.lease*1e6, int64(r.rules.Lease)) }

type opKey struct {
	client string
	op     int64
}

func newTimeline(events []Event, rules Rules) *timeline {
	r := &timeline{
		rules: rules, begin: never, clients: map[string]*client{}, locks: map[string][]*acquire{},
		holds: map[string][]*hold{}, writes: map[string][]write{}, events: len(events),
	}
	// The events of one acquire are in one log, in order. Those of the conductor about a client
	// are in another log.
	ops := map[opKey]*acquire{}
	faults := map[int]*faultSpan{}
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
			t := &faultSpan{span: span{e.earliest(), never}, id: e.ID, fault: e.Fault, target: e.Target, lock: e.Lock, effect: e.Effects}
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
				r.reportMalformed(e, "an acquire begins once, before its other events")
				continue
			}
			if e.Kind == Invoke {
				a = &acquire{
					client: r.client(e.Client), op: e.Op, lock: e.Lock, owner: e.Owner, wait: e.WaitMS, lease: e.LeaseMS,
					maxHold: e.MaxHoldMS, afterOp: e.AfterOp, permits: max(e.Permits, 1), of: max(e.Of, 1), invoked: e.At, answered: never, release: never, released: never,
				}
				ops[key] = a
				r.acquires = append(r.acquires, a)
				r.locks[a.lock] = append(r.locks[a.lock], a)
			}
			r.apply(a, e)
		}
	}
	slices.SortFunc(r.faults, func(a, b *faultSpan) int { return cmp.Compare(a.from, b.from) })
	for _, all := range r.locks {
		slices.SortStableFunc(all, func(a, b *acquire) int { return cmp.Compare(a.invoked, b.invoked) })
	}
	r.collectWrites(events, ops)
	r.collectHolds()
	return r
}

// client returns the client of that name.
func (r *timeline) client(name string) *client {
	c := r.clients[name]
	if c == nil {
		c = &client{name: name, killedFrom: never, killedBy: never}
		r.clients[name] = c
	}
	return c
}

func (r *timeline) reportMalformed(e *Event, why string) {
	r.malformed = append(r.malformed, Violation{Rule: "log", Lock: e.Lock, At: e.At, Text: why, Events: []Event{*e}})
}

// apply adds an event to its acquire.
func (r *timeline) apply(a *acquire, e *Event) {
	a.events = append(a.events, e)
	switch e.Kind {
	case Grant:
		a.granted, a.token, a.until, a.answered = true, e.Token, e.Until, e.At
		a.checkedAt = e.At
	case Error:
		a.err, a.mayHaveHappened, a.answered = e.Err, e.MayHaveHappened, e.At
	case Checked:
		a.until = max(a.until, e.Until)
		a.checkedAt = max(a.checkedAt, e.earliest())
	case Lost:
		a.lost = append(a.lost, e)
	case Release:
		a.release = min(a.release, e.At)
	case Released:
		a.released, a.relErr = e.At, e.Err
		a.mayHaveHappened = a.mayHaveHappened || e.MayHaveHappened
		if e.Err == LostErr {
			a.lost = append(a.lost, e)
		}
	}
	if e.Kind != Invoke && e.Kind != Grant && e.Kind != Error && !a.granted {
		r.reportMalformed(e, "an event of a lock that was not granted")
	}
}

// believedUntil returns until when the client certainly believed in the lock. Without a report of
// the opposite it believes until the deadline. With a report of a loss it believed until the
// report, which the client may read later, so the last successful check counts.
func (a *acquire) believedUntil() int64 {
	until := min(a.until, a.release, a.client.killedFrom)
	for _, e := range a.lost {
		if e.Reason != Expired && e.Reason != MaxHold {
			until = min(until, a.checkedAt)
		}
	}
	return until
}

// freedAt returns when the lock is free again as far as this entry is concerned; never: not known.
func (a *acquire) freedAt() int64 {
	freed := a.client.killedBy
	if len(a.lost) > 0 {
		freed = min(freed, a.lost[0].At)
	}
	switch {
	case a.released == never:
	case a.relErr == "" || a.relErr == LostErr:
		freed = min(freed, a.released)
	default: // the release failed: the hold ends with its lease
		freed = min(freed, max(a.released, a.until))
	}
	return freed
}

// collectHolds groups the acquires by holds.
func (r *timeline) collectHolds() {
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
			ends := max(a.answered, a.believedUntil())
			key := holdKey{a.client, a.owner, a.token}
			h := holds[key]
			if h == nil || a.owner == 0 {
				h = &hold{client: a.client, owner: a.owner, lock: lock, token: a.token, permits: a.permits, of: a.of, invoked: a.invoked, granted: a.answered}
				holds[key] = h
				list = append(list, h)
			}
			h.granted = min(h.granted, a.answered)
			h.believedUntil = max(h.believedUntil, ends)
			h.freeAt = max(h.freeAt, a.freedAt())
			h.entries = append(h.entries, a)
		}
		slices.SortStableFunc(list, func(a, b *hold) int {
			return cmp.Or(cmp.Compare(a.token, b.token), cmp.Compare(a.granted, b.granted))
		})
		r.holds[lock] = list
	}
}

// isCertain reports whether the client certainly believed in the hold for a while.
func (h *hold) isCertain() bool { return h.believedUntil > h.granted }

func (h *hold) String() string {
	holder := h.client.name
	if h.owner != 0 {
		holder = fmt.Sprintf("%s/%d", holder, h.owner)
	}
	if h.of > 1 {
		return fmt.Sprintf("%s with token %d and %d permits of %d", holder, h.token, h.permits, h.of)
	}
	return fmt.Sprintf("%s with token %d", holder, h.token)
}

// mayHaveStopped reports whether the process may have been stopped at some time of a span.
func (c *client) mayHaveStopped(s span) bool {
	return slices.ContainsFunc(c.stops, s.overlaps)
}

// holdEvents returns the events of some holds.
func holdEvents(holds ...*hold) []Event {
	var all []*acquire
	for _, h := range holds {
		all = append(all, h.entries...)
	}
	return acquireEvents(all...)
}

// acquireEvents returns the events of some acquires, and of their processes in that time.
func acquireEvents(all ...*acquire) []Event {
	var events []Event
	lives := map[*client]span{}
	for _, a := range all {
		life := span{a.invoked, a.invoked}
		if known, ok := lives[a.client]; ok {
			life = known
		}
		for _, e := range a.events {
			events = append(events, *e)
			life = span{min(life.from, e.At), max(life.to, e.At)}
		}
		lives[a.client] = life
	}
	for c, life := range lives {
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

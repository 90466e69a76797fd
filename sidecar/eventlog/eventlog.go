// Package eventlog keeps what happened to locks, for operators: the newest events in memory, and most of
// them over a restart in a file.
package eventlog

import (
	"log/slog"
	"sort"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/policy"
)

// Log has the newest events, in memory that is bounded. Each event has the number after that
// of the event before. Events of one class do not displace those of another: one contended lock has
// thousands of grants in a second, and an operator looks for the loss among them.
type Log struct {
	begun uint64 // the number before that of the first event of this daemon
	last  uint64 // the number of the newest event, or begun

	// Of the events of predecessors, whose numbers have gaps. restoredTo is at most begun.
	restoredFrom uint64 // the number before that of the first of them, or begun
	restoredTo   uint64 // the number of the last of them; 0: there are none
	rings        [eventClasses]ring

	file *eventFile // where a successor finds them; nil: there is none
}

// eventClass says which events displace each other.
type eventClass uint8

const (
	contention   eventClass = iota // grants, and releases of short holds: a contended lock has very many of them
	endsOfHolds                    // which client had a lock, and how long
	redisChanges                   // a Redis that fails again and again has many of them
	refusals                       // deadlocks, refused forced releases: a client may make as many as it sends requests
	incidents                      // losses, forced releases, restarts
	eventClasses
)

func classOf(row *protocol.EventRow) eventClass {
	switch row.Kind {
	case protocol.EventGranted:
		return contention
	case protocol.EventReleased:
		if row.HeldMS < locktable.NotableHold.Milliseconds() {
			return contention
		}
		return endsOfHolds
	case protocol.EventCrashed:
		return endsOfHolds
	case protocol.EventRedisDown, protocol.EventRedisDegraded, protocol.EventRedisUp, protocol.EventDataLost, protocol.EventSlotsOpen, protocol.EventSlotsClosed:
		return redisChanges
	case protocol.EventDeadlock, protocol.EventRefused:
		return refusals
	}
	return incidents
}

const (
	// maxEvents is how many events each ring of an Log keeps.
	maxEvents = 1024

	// maxUserEvents is how many of them may be of one user, while there are others to displace.
	maxUserEvents = maxEvents / 2

	// An event that is equal to one of the newest maxCompared of its class, and not older than
	// countWithin, is counted in that one.
	maxCompared = 8
	countWithin = int64(time.Minute)
)

// New makes a log. The number before the first event is the time in µs, so that the numbers of a
// successor are larger: no sidecar has a million events a second all the time.
func New(now int64) *Log {
	begun := uint64(now / 1000)
	return &Log{begun: begun, last: begun, restoredFrom: begun}
}

// Keep continues the events of predecessors, and has a successor find those of this daemon, in a file
// beside the state. Precondition: this daemon has added none, and the state file keeps other sidecars
// from the file of the events.
func (g *Log) Keep(statePath string, log *slog.Logger) {
	file, events := openEventFile(statePath, g.begun, log)
	g.file = file
	g.restore(events)
}

// Close ends what Keep began.
func (g *Log) Close() {
	if g.file != nil {
		g.file.close()
	}
}

// restore adds the events of predecessors. Their numbers grow, and are at most begun.
func (g *Log) restore(events []event) {
	for _, e := range events {
		g.rings[classOf(&e.row)].add(e)
		g.restoredFrom, g.restoredTo = min(g.restoredFrom, e.number-1), e.number
	}
}

// Add adds an event, or counts a refusal in an equal one.
func (g *Log) Add(row protocol.EventRow, about About) {
	class := classOf(&row)
	if class == refusals && g.rings[class].count(&row) {
		return
	}
	g.last++
	e := event{g.last, row, about}
	g.rings[class].add(e)
	if g.file != nil && class != contention {
		g.file.add(e)
	}
}

// position returns the number from which a client continues that has read the events up to after.
// Numbers that are not of this log are of a predecessor, or of a sidecar before the host started. A
// client that has read events of the predecessor continues after them.
func (g *Log) position(after uint64) uint64 {
	if after > g.last {
		return g.restoredFrom
	}
	return max(after, g.restoredFrom)
}

// HasAfter reports whether there are events for a client that has read those up to a number.
func (g *Log) HasAfter(after uint64) bool {
	from := g.position(after)
	return from < g.restoredTo || max(from, g.begun) < g.last
}

// Page appends events after a number to rows, as many as have room bytes in a frame, and at least
// one, without what a policy hides from the viewer; nil: nothing. next is the number of the last of them,
// and missed how many of those before next the log does not have any more. Of the events of predecessors
// that is not known.
func (g *Log) Page(after uint64, room int, viewer *policy.Session, rows []protocol.EventRow) (_ []protocol.EventRow, next, missed uint64) {
	if viewer != nil && !viewer.HidesAny() {
		viewer = nil
	}
	from := g.position(after)
	next = from
	begin, own := len(rows), uint64(0)
	var at [eventClasses]int // in the ring of each class
	for class := range at {
		at[class] = g.rings[class].after(from)
	}
	for {
		var e *event
		of := 0
		for class := range at {
			if c := g.rings[class].at(at[class]); c != nil && (e == nil || c.number < e.number) {
				e, of = c, class
			}
		}
		if e == nil {
			next = max(next, g.begun)
			break
		}
		rows = append(rows, e.row)
		shown := len(rows)
		if row := &rows[shown-1]; viewer != nil && !redact(viewer, e, row) {
			rows = rows[:shown-1]
		} else if room -= row.Size(); room < 0 && shown > begin+1 {
			rows = rows[:shown-1]
			break
		}
		at[of]++
		next = e.number
		if next > g.begun {
			own++
		}
	}
	return rows, next, max(next, g.begun) - max(from, g.begun) - own
}

// Newest returns at most n of the events that are wanted, newest first.
func (g *Log) Newest(n int, isWanted func(*protocol.EventRow) bool) []protocol.EventRow {
	var rows []protocol.EventRow
	var left [eventClasses]int // in the ring of each class
	for class := range left {
		left[class] = len(g.rings[class].events)
	}
	for len(rows) < n {
		var e *event
		of := 0
		for class := range left {
			if left[class] == 0 {
				continue
			}
			if c := g.rings[class].at(left[class] - 1); e == nil || c.number > e.number {
				e, of = c, class
			}
		}
		if e == nil {
			break
		}
		left[of]--
		if isWanted(&e.row) {
			rows = append(rows, e.row)
		}
	}
	return rows
}

type event struct {
	number uint64
	row    protocol.EventRow
	about  About
}

// ring has the newest maxEvents events that were added. While a user has more than maxUserEvents of
// them, its own are displaced first, so that no user can displace what happened to others.
type ring struct {
	events []event
	order  []uint16      // of the events by their numbers: indices of events
	users  map[int64]int // how many events each has
	most   int64         // the user that had more than maxUserEvents last
}

func (r *ring) add(e event) {
	if r.users == nil {
		r.users = make(map[int64]int)
	}
	if r.users[e.row.UID]++; r.users[e.row.UID] > maxUserEvents {
		r.most = e.row.UID
	}
	if n := len(r.events); n < maxEvents {
		r.events, r.order = append(r.events, e), append(r.order, uint16(n))
		return
	}
	place := 0
	if r.users[r.most] > maxUserEvents {
		for r.at(place).row.UID != r.most {
			place++
		}
	}
	index := r.order[place]
	of := r.events[index].row.UID
	if r.users[of]--; r.users[of] == 0 {
		delete(r.users, of)
	}
	r.events[index] = e
	copy(r.order[place:], r.order[place+1:])
	r.order[maxEvents-1] = index
}

// count counts an event in an equal one, and reports whether there is one.
func (r *ring) count(row *protocol.EventRow) bool {
	for i := len(r.events) - 1; i >= 0 && i >= len(r.events)-maxCompared; i-- {
		last := &r.at(i).row
		if row.AtNS-last.AtNS > countWithin {
			return false
		}
		if last.Kind == row.Kind && last.Name == row.Name && last.PID == row.PID && last.UID == row.UID && last.RemoteHost == row.RemoteHost && last.Msg == row.Msg {
			last.Count = max(last.Count, 1) + 1
			return true
		}
	}
	return false
}

// at returns the event i places after the oldest; nil: there are not so many.
func (r *ring) at(i int) *event {
	if i >= len(r.events) {
		return nil
	}
	return &r.events[r.order[i]]
}

// after returns how many places after the oldest the first event with a larger number is.
func (r *ring) after(number uint64) int {
	return sort.Search(len(r.events), func(i int) bool { return r.at(i).number > number })
}

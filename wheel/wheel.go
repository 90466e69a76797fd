// Package wheel is a hashed, hierarchical timing wheel for very many timers, most of which are
// moved or cancelled before they fire.
//
// A timer is a field of the thing it belongs to, and the node of an intrusive list. So to
// start, move or stop one allocates nothing, and costs the same however many are pending. The
// wheel reads no clock, starts no goroutine and takes no lock: its owner calls [Wheel.Advance]
// with the time, and sleeps until [Wheel.Next].
//
// # Time
//
// Times are int64 nanoseconds of one monotonic clock; every int64 is a valid time. A timer
// stores its exact deadline. Advance(now) fires exactly the timers whose deadline is at or
// before now: none is early, whatever the tick. The tick is the resolution of the owner's
// sleep: Next returns the end of the tick in which a timer is due, so all timers of one tick
// cost one wake-up, at most one tick after the first deadline.
//
// # Layout
//
// Time is divided into ticks, counted from the smallest int64. The wheel proper has one slot
// for each tick of the next revolution, which begins at the current tick. A timer that is due
// within the revolution waits in the slot of its tick.
//
// Later timers wait in levels of 64 coarse buckets. A bucket of the first level covers 1/16 of
// a revolution, a bucket of each further level 16 times as much, and there are as many levels
// as the whole range of the clock needs: nine for a tick of 10 ms and 1,024 slots, about
// 14 KiB. A timer waits in the lowest level that reaches its tick. When the current tick
// enters its bucket, it moves to a lower level or to its slot: a timer one hour ahead moves at
// most three times in its life, one 30 days ahead at most five times. A bucket is small
// compared with the distance of its timers, so the timers of a whole fleet do not move at
// once.
//
// A bitmap has one bit for each slot and bucket: set if a timer waits there. Advance goes from
// one occupied place to the next, so a long gap costs no more than a short one. Next of an
// empty wheel reports that there is no time to wake up.
package wheel

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// ErrFull is the error of an [Wheel.Add] that would make more than [Wheel.MaxPending] timers
// pending.
var ErrFull = errors.New("wheel: full: as many timers are pending as MaxPending allows")

// A Timer is started by [Wheel.Add] and stopped by [Wheel.Remove]. It is meant to be a field of
// the thing it belongs to. Its zero value is ready for use.
//
// A pending timer must not be copied, and only the wheel it was added to may move or remove
// it. That wheel keeps the timer, and the struct of which it is a field, reachable until it
// fires or is removed.
type Timer[T any] struct {
	_ noCopy

	// Value belongs to the caller. The wheel does not read it.
	Value T

	deadline int64
	// The list of the timer's place. Invariant: prev of the first timer is the last one, next
	// of the last one is nil, and both are nil while the timer is not pending.
	next, prev *Timer[T]
	place      place
}

// noCopy makes go vet report a copied timer.
type noCopy struct{}

func (*noCopy) Lock()   {}
func (*noCopy) Unlock() {}

// Pending reports whether the timer has been added and has neither fired nor
// been removed.
func (t *Timer[T]) Pending() bool { return t.place != nowhere }

// Deferred reports whether the timer is in the backlog.
func (t *Timer[T]) Deferred() bool { return t.place == backlog }

// Deadline returns the deadline of the last Add, also if the timer is not pending.
func (t *Timer[T]) Deadline() int64 { return t.deadline }

// A Wheel holds pending timers and fires them when they are due. Make one with
// [New]. It belongs to one goroutine at a time.
type Wheel[T any] struct {
	// MaxPending is how many timers may be pending outside the backlog. Zero or less:
	// no limit.
	MaxPending int

	tick   uint64 // nanoseconds
	levels []level

	// current is the tick of the latest time that Advance or New was given. Invariants: the
	// slots of earlier ticks are empty, and so is the bucket of each coarse level that
	// contains current.
	current uint64

	// earliest is no later than the first deadline in the slot of current, if that slot has a
	// timer: before this time, an Advance within the current tick has nothing to fire.
	earliest int64

	places   []*Timer[T] // the first timer of each place
	occupied []uint64    // a bit for each place: it has a first timer
	pending  int
	deferred int // of the pending timers, those in the backlog
}

// New makes a wheel whose current time is now. A revolution is tick × slots long, and should
// cover the deadlines of most timers. New panics if tick is not positive, or if slots is not a
// power of two from 2 to 2^24.
func New[T any](tick time.Duration, slots int, now int64) *Wheel[T] {
	if tick <= 0 {
		panic(fmt.Sprintf("wheel: a tick of %v; it must be positive", tick))
	}
	if slots < 2 || slots > 1<<24 || slots&(slots-1) != 0 {
		panic(fmt.Sprintf("wheel: %d slots; it must be a power of two from 2 to 2^24", slots))
	}
	w := &Wheel[T]{tick: uint64(tick)}
	w.levels = newLevels(slots, w.tickOf(math.MaxInt64))
	end := w.levels[len(w.levels)-1].end()
	w.places = make([]*Timer[T], end)
	w.occupied = make([]uint64, end/64)
	w.current = w.tickOf(now)
	return w
}

// Len returns the number of pending timers.
func (w *Wheel[T]) Len() int { return w.pending }

// Add makes t pending until deadline. If the deadline has passed, the next Advance fires t.
// A pending timer is moved, which never fails. For a timer that is not pending, Add returns
// [ErrFull] and does not change t if MaxPending timers are pending outside the backlog.
//
// Add takes constant time and does not allocate.
func (w *Wheel[T]) Add(t *Timer[T], deadline int64) error {
	if t.Pending() {
		w.unlink(t)
	} else {
		if w.MaxPending > 0 && w.pending-w.deferred >= w.MaxPending {
			return ErrFull
		}
		w.pending++
	}
	t.deadline = deadline
	w.insert(t)
	return nil
}

// Remove makes t not pending and reports whether it was. The wheel keeps no reference to t.
func (w *Wheel[T]) Remove(t *Timer[T]) bool {
	if !t.Pending() {
		return false
	}
	w.unlink(t)
	w.pending--
	return true
}

// Advance moves the wheel to now, calls fire for each timer whose deadline is at or before
// now, and returns their number. Timers fire in the order of their ticks, within a tick in no
// particular order. A timer that was overdue when it was added belongs to the tick that was
// current then.
//
// The set of due timers is fixed before the first call of fire. A timer is no longer pending
// when fire gets it. fire may add and remove any timer, also that one: a timer that it removes
// or moves to a later time does not fire, and a timer that it adds does not fire before the
// next Advance, even if it is due. So a fire that always adds its timer again as due does not
// keep Advance from returning.
//
// now may be earlier than in a previous call. Then exactly the timers with a deadline at or
// before now fire.
func (w *Wheel[T]) Advance(now int64, fire func(*Timer[T])) int {
	return w.AdvanceSome(now, math.MaxInt, fire)
}

// AdvanceSome is Advance with a limit on the number of timers that it fires, for an owner that
// must return soon. The other timers stay due, and fire first in the next call.
func (w *Wheel[T]) AdvanceSome(now int64, limit int, fire func(*Timer[T])) int {
	w.collectDue(now)
	return w.fire(due, limit, fire)
}

// Defer puts a timer into the backlog: a queue of timers that the owner of the wheel fires when it
// has time, because others are more urgent. Their deadlines do not count. A timer in the backlog is pending:
// Add and Remove take it out.
func (w *Wheel[T]) Defer(t *Timer[T]) {
	if t.Pending() {
		w.unlink(t)
	} else {
		w.pending++
	}
	w.link(t, backlog)
	w.deferred++
}

// FireDeferred fires up to limit timers of the backlog, in the order in which they were
// deferred, and returns their number. fire may do the same as in Advance. A timer that it
// defers again fires in the same call, if limit allows it.
func (w *Wheel[T]) FireDeferred(limit int, fire func(*Timer[T])) int {
	return w.fire(backlog, limit, fire)
}

// Deferred reports whether a timer is in the backlog.
func (w *Wheel[T]) Deferred() bool { return w.places[backlog] != nil }

func (w *Wheel[T]) fire(from place, limit int, fire func(*Timer[T])) int {
	fired := 0
	for t := w.places[from]; t != nil && fired < limit; t = w.places[from] {
		w.unlink(t)
		w.pending--
		fired++
		fire(t)
	}
	return fired
}

// Next returns the time of the next call of Advance, which may have passed; false: no timer is
// pending outside the backlog.
//
// The time is less than one tick after the first deadline. It may be before that deadline: if
// the deadline is more than a revolution away, Next is the end of the tick in which the timers
// around it move to a lower level. An Advance to that time fires a timer or moves one to a
// lower level, so a timer fires after few wake-ups, however far its deadline is.
func (w *Wheel[T]) Next() (int64, bool) {
	if w.pending == 0 {
		return 0, false
	}
	if t := w.places[due]; t != nil {
		return t.deadline, true // called by fire, or after AdvanceSome
	}
	if w.pending == w.deferred {
		return 0, false
	}
	tick := w.nextOccupied()
	if tick == w.current {
		tick = w.earliestTick()
	}
	return w.endOf(tick), true
}

// collectDue moves the wheel to now, and the timers that are due by then to the place due.
func (w *Wheel[T]) collectDue(now int64) {
	target := w.tickOf(now)
	if w.pending == 0 {
		// No timer depends on the current tick of an empty wheel, so it may go back.
		w.current = target
		return
	}
	for w.current < target {
		// All timers of ticks before target are due.
		w.moveAll(w.slot(w.current), due)
		w.enterTick(min(target, w.nextOccupied()))
	}
	// Of the tick of now, some timers may be due; none, if now is earlier than the last
	// time.
	slot := w.slot(w.current)
	first := w.places[slot]
	if first == nil || now < w.earliest {
		return
	}
	earliest := int64(math.MaxInt64)
	for t := first; t != nil; {
		next := t.next
		if t.deadline <= now {
			w.unlink(t)
			w.link(t, due)
		} else {
			earliest = min(earliest, t.deadline)
		}
		t = next
	}
	w.earliest = earliest
}

// enterTick makes tick the current one, and moves the timers of the coarse buckets that contain
// it to lower levels. Precondition: no place between the two ticks is occupied.
func (w *Wheel[T]) enterTick(tick uint64) {
	w.current = tick
	w.earliest = math.MinInt64 // not known until collectDue walks the slot
	for i := range w.levels[1:] {
		p := w.levels[1+i].at(tick)
		t := w.places[p]
		if t == nil {
			continue
		}
		w.places[p] = nil
		w.setFree(p)
		for t != nil {
			next := t.next
			w.insert(t)
			t = next
		}
	}
}

// insert links t into the lowest level that reaches its deadline. Precondition: t is not in a
// list.
func (w *Wheel[T]) insert(t *Timer[T]) {
	// A passed tick has no slot: its timers are due, and the next Advance looks at the
	// current slot first.
	tick := max(w.current, w.tickOf(t.deadline))
	if tick == w.current {
		slot := w.slot(tick)
		if w.places[slot] == nil || t.deadline < w.earliest {
			w.earliest = t.deadline
		}
		w.link(t, slot)
		return
	}
	for i := range w.levels {
		if l := &w.levels[i]; l.reaches(w.current, tick) {
			w.link(t, l.at(tick))
			return
		}
	}
	panic("wheel: no level reaches the deadline") // the last level of newLevels reaches every tick
}

// nextOccupied returns the first tick, from the current one on, whose slot is occupied or with
// which an occupied coarse bucket begins; the largest uint64: there is none.
func (w *Wheel[T]) nextOccupied() uint64 {
	next := uint64(math.MaxUint64)
	for i := range w.levels {
		if tick, ok := w.levels[i].firstOccupied(w.occupied, w.current); ok {
			next = min(next, tick)
		}
	}
	return next
}

// earliestTick returns the tick of the first deadline in the current slot. Precondition: the
// slot is occupied.
func (w *Wheel[T]) earliestTick() uint64 {
	tick := w.tickOf(w.earliest)
	if tick >= w.current {
		// No deadline has passed, so all timers are of this tick.
		return w.current
	}
	// A deadline had passed, but its timer may have been removed.
	earliest := int64(math.MaxInt64)
	for t := w.places[w.slot(w.current)]; t != nil && earliest > w.earliest; t = t.next {
		earliest = min(earliest, t.deadline)
	}
	w.earliest = earliest
	return min(w.current, w.tickOf(earliest))
}

func (w *Wheel[T]) slot(tick uint64) place { return w.levels[0].at(tick) }

// timeZero maps int64 to uint64 in the same order, so that no difference of two times
// overflows.
const timeZero = 1 << 63

func (w *Wheel[T]) tickOf(time int64) uint64 { return (uint64(time) ^ timeZero) / w.tick }

// endOf returns the last nanosecond of a tick.
func (w *Wheel[T]) endOf(tick uint64) int64 {
	end, beyond := bits.Add64(tick*w.tick, w.tick-1, 0)
	if beyond != 0 {
		end = math.MaxUint64 // the clock ends within its last tick
	}
	return int64(end ^ timeZero)
}

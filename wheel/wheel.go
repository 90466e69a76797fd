// Package wheel is a timing wheel for very many timers that are mostly moved
// or cancelled before they fire.
//
// A timer is a field of the thing it belongs to and is itself the node of the
// list it waits in, so that starting, moving and stopping one allocates
// nothing and takes the same few steps however many are pending. The wheel
// reads no clock, starts no goroutine and takes no lock: whoever owns it calls
// [Wheel.Advance] with the time, and asks [Wheel.Next] how long it may sleep.
//
// # Time
//
// Times are int64 nanoseconds of any one monotonic clock; every int64 is a
// valid time. A timer keeps its exact deadline. Advance(now) fires each timer
// whose deadline is at or before now, and no other: never early, whatever the
// tick. The tick is how coarsely the wheel sleeps: Next answers with the end
// of the tick in which something is due, so that what falls due within one
// tick is one wake-up, at most one tick after the first deadline in it.
//
// # Layout
//
// Time is cut into ticks, counted from the smallest int64. The wheel proper
// has one slot per tick for the next revolution, which begins at the current
// tick: a timer due within it waits in its own tick's slot, and nowhere else
// before.
//
// Later timers wait in levels of 64 coarse buckets. A bucket of the first
// level covers 1/16 of a revolution, a bucket of each further level 16 times
// as much, and there are as many levels as the clock's whole range needs: nine
// for a tick of 10 ms and 1,024 slots, about 14 KiB. A timer waits in the lowest
// level that reaches its tick. It is touched again only when the current tick
// enters its bucket, and then moves to a lower level or to its slot: a timer
// one hour ahead moves at most three times in its life, one 30 days ahead at
// most five times, and neither is looked at in between. Because a bucket is small against the
// distance of what is in it, the timers of a whole fleet do not move at once.
//
// A bit for every slot and bucket says whether anything waits there. Advance
// goes from one occupied place to the next, so that a long gap costs no more
// than a short one, and an empty wheel lets its owner sleep for ever.
package wheel

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// ErrFull is the answer to an [Wheel.Add] that would make more than
// [Wheel.MaxPending] timers pending.
var ErrFull = errors.New("wheel: full: as many timers are pending as MaxPending allows")

// A Timer is started and stopped with the Add and Remove of a [Wheel]. It is
// meant to be a field of what it belongs to. Its zero value is ready for use.
//
// A pending timer must not be copied, and only the wheel it was added to may
// be asked to move or remove it. That wheel keeps it, and what it is a field
// of, reachable until it fires or is removed.
type Timer[T any] struct {
	_ noCopy

	// Value is the caller's: what the timer is for. The wheel does not look
	// at it.
	Value T

	deadline int64
	// The list of the timer's place. The first timer's prev is the last one,
	// the last one's next is nil. Both are nil while the timer is not pending.
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

// Deadline is the time the timer was last added for, pending or not.
func (t *Timer[T]) Deadline() int64 { return t.deadline }

// A Wheel holds pending timers and fires them when they are due. Make one with
// [New]. It belongs to one goroutine at a time.
type Wheel[T any] struct {
	// MaxPending is how many timers may be pending at once. Zero or less:
	// no limit.
	MaxPending int

	tick   uint64 // nanoseconds
	levels []level

	// current is the tick the wheel stands in: the one of the latest time
	// Advance was told, or of New. Every slot of an earlier tick is empty, and
	// so is, in each coarse level, the bucket that current lies in.
	current uint64

	// earliest is no later than the first deadline in current's slot, as long
	// as there is any timer in it: before that time, an Advance within the
	// current tick has nothing to look at.
	earliest int64

	places   []*Timer[T] // the first timer of each place
	taken    []uint64    // a bit for each place: there is a first timer
	pending  int
	deferred int // of them, in the backlog
}

// New makes a wheel that stands at now. A revolution is tick × slots long;
// best is one that most timers are due within. New panics if tick is not
// positive, or if slots is not a power of two from 2 to 2^24.
func New[T any](tick time.Duration, slots int, now int64) *Wheel[T] {
	if tick <= 0 {
		panic(fmt.Sprintf("wheel: a tick of %v; it must be positive", tick))
	}
	if slots < 2 || slots > 1<<24 || slots&(slots-1) != 0 {
		panic(fmt.Sprintf("wheel: %d slots; it must be a power of two from 2 to 2^24", slots))
	}
	w := &Wheel[T]{tick: uint64(tick)}
	w.levels = layOut(slots, w.tickOf(math.MaxInt64))
	end := w.levels[len(w.levels)-1].end()
	w.places = make([]*Timer[T], end)
	w.taken = make([]uint64, end/64)
	w.current = w.tickOf(now)
	return w
}

// Len is the number of pending timers.
func (w *Wheel[T]) Len() int { return w.pending }

// Add makes t pending until deadline, which may be any time, also one that has
// passed: then the next Advance fires it. A timer that is pending already is
// moved, which never fails. Otherwise Add returns [ErrFull], and leaves t as
// it was, if MaxPending timers are pending.
//
// Add takes the same time for any number of timers and allocates nothing.
func (w *Wheel[T]) Add(t *Timer[T], deadline int64) error {
	if t.Pending() {
		w.unlink(t)
	} else {
		if w.MaxPending > 0 && w.pending >= w.MaxPending {
			return ErrFull
		}
		w.pending++
	}
	t.deadline = deadline
	w.put(t)
	return nil
}

// Remove makes t not pending and reports whether it was. The wheel keeps
// nothing of it.
func (w *Wheel[T]) Remove(t *Timer[T]) bool {
	if !t.Pending() {
		return false
	}
	w.unlink(t)
	w.pending--
	return true
}

// Advance moves the wheel on to now and calls fire for each timer whose
// deadline is at or before now, tick by tick in the order of their deadlines,
// within a tick in no particular order. A timer that was overdue when it was
// added counts as one of the tick the wheel then stood in. Advance returns how
// many it fired.
//
// What is due is settled before the first call of fire. A timer is no longer
// pending when fire gets it. fire may add and remove any timer, that one
// included: one that it removes or moves to a later time does not fire, and
// one that it adds does not fire before the next Advance, even if it is due.
// So a fire that always adds its timer again as due does not keep Advance from
// returning.
//
// A time earlier than that of a previous call is taken as it is: what is due
// by now fires, nothing else does.
func (w *Wheel[T]) Advance(now int64, fire func(*Timer[T])) int {
	return w.AdvanceSome(now, math.MaxInt, fire)
}

// AdvanceSome is Advance for an owner that must not be away for long: it fires
// at most so many timers. The rest stay due, and are first with the next call.
func (w *Wheel[T]) AdvanceSome(now int64, most int, fire func(*Timer[T])) int {
	w.collect(now)
	return w.fire(due, most, fire)
}

// Defer puts a timer that is not pending into the backlog: a queue of timers
// that have been due, and that the owner of the wheel has put off because others
// are more urgent. A timer in the backlog is pending: Add moves it out of there,
// Remove ends it. Defer never fails: it is for a timer that was just fired.
func (w *Wheel[T]) Defer(t *Timer[T]) {
	if t.Pending() {
		w.unlink(t)
	} else {
		w.pending++
	}
	w.link(t, backlog)
	w.deferred++
}

// FireDeferred fires at most so many timers of the backlog, those that were
// deferred first, and returns how many it fired. What fire may do is what it may
// do in Advance; but a timer that it defers again fires in the same call, as long
// as most allows it.
func (w *Wheel[T]) FireDeferred(most int, fire func(*Timer[T])) int {
	return w.fire(backlog, most, fire)
}

// Deferred reports whether there is anything in the backlog.
func (w *Wheel[T]) Deferred() bool { return w.places[backlog] != nil }

func (w *Wheel[T]) fire(from place, most int, fire func(*Timer[T])) int {
	fired := 0
	for t := w.places[from]; t != nil && fired < most; t = w.places[from] {
		w.unlink(t)
		w.pending--
		fired++
		fire(t)
	}
	return fired
}

// Next is the time at which Advance should be called next, or false if nothing
// is pending, apart from the backlog, and there is nothing to wait for until a
// timer is added. It may have passed already.
//
// The time is less than one tick after the first deadline. It may be before
// it: if that deadline is more than a revolution away, Next is the end of the
// tick in which the timers around it are moved closer. An Advance to that time
// either fires a timer or moves one closer, so waiting for Next ends after a
// few wake-ups, however far the deadline is.
func (w *Wheel[T]) Next() (int64, bool) {
	if w.pending == 0 {
		return 0, false
	}
	if t := w.places[due]; t != nil {
		return t.deadline, true // from within fire, or after AdvanceSome
	}
	if w.pending == w.deferred {
		return 0, false
	}
	tick := w.nextTaken()
	if tick == w.current {
		tick = w.earliestTick()
	}
	return w.endOf(tick), true
}

// collect moves the wheel to now and what is due by then to the place due.
func (w *Wheel[T]) collect(now int64) {
	target := w.tickOf(now)
	if w.pending == 0 {
		// Nothing depends on where an empty wheel stands, so it may follow
		// even a clock that was set back.
		w.current = target
		return
	}
	for w.current < target {
		// Ticks before target have passed whole.
		w.moveAll(w.slot(w.current), due)
		w.enter(min(target, w.nextTaken()))
	}
	// The tick of now has passed only in part, or not at all if now is earlier
	// than the last time.
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

// enter makes tick the current one. No place between the two may be taken. The
// timers of the coarse buckets that tick lies in move closer.
func (w *Wheel[T]) enter(tick uint64) {
	w.current = tick
	w.earliest = math.MinInt64 // not known before the slot is walked
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
			w.put(t)
			t = next
		}
	}
}

// put links t, which is linked nowhere, into the lowest level that reaches its
// deadline.
func (w *Wheel[T]) put(t *Timer[T]) {
	// A tick that has passed has no slot any more: its timers are due, and the
	// current slot is the one that is looked at next.
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
	panic("wheel: no level reaches the deadline") // layOut made the last one reach all
}

// nextTaken is the first tick from the current one on at which something is to
// be done: a slot that is taken, or the first tick of a coarse bucket that is.
// It is the largest uint64 if there is none.
func (w *Wheel[T]) nextTaken() uint64 {
	next := uint64(math.MaxUint64)
	for i := range w.levels {
		if tick, ok := w.levels[i].firstTaken(w.taken, w.current); ok {
			next = min(next, tick)
		}
	}
	return next
}

// earliestTick is the tick of the first deadline in the current slot, which
// must be taken.
func (w *Wheel[T]) earliestTick() uint64 {
	tick := w.tickOf(w.earliest)
	if tick >= w.current {
		// None has passed, so all are of this tick.
		return w.current
	}
	// One has, but it may have been removed.
	earliest := int64(math.MaxInt64)
	for t := w.places[w.slot(w.current)]; t != nil && earliest > w.earliest; t = t.next {
		earliest = min(earliest, t.deadline)
	}
	w.earliest = earliest
	return min(w.current, w.tickOf(earliest))
}

func (w *Wheel[T]) slot(tick uint64) place { return w.levels[0].at(tick) }

// timeZero shifts the int64s so that the smallest is 0 and the order is kept:
// then no difference of two times overflows.
const timeZero = 1 << 63

func (w *Wheel[T]) tickOf(time int64) uint64 { return (uint64(time) ^ timeZero) / w.tick }

// endOf is the last nanosecond of a tick.
func (w *Wheel[T]) endOf(tick uint64) int64 {
	end, beyond := bits.Add64(tick*w.tick, w.tick-1, 0)
	if beyond != 0 {
		end = math.MaxUint64 // the clock ends within its last tick
	}
	return int64(end ^ timeZero)
}

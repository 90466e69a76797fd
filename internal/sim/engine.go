package sim

import (
	"math/bits"
	"math/rand/v2"
	"time"
)

// The engine: a virtual clock, a queue of events, and the randomness of one seed. Every
// plan runs on it: the world, in which everything fails (world.go), and the fleet, which
// measures what very many hosts cost Redis (fleet.go).
//
// Times are in ns since the start of a run, as Redis's machine counts them, unless they
// are said to be on the clock of a host.

const (
	µs  = int64(time.Microsecond)
	ms  = int64(time.Millisecond)
	sec = int64(time.Second)
)

type engine struct {
	random random
	now    int64
	seq    uint32 // of the last event that was scheduled
	queue  eventQueue
}

// after schedules an event. Of events that are due at one time, the one that was scheduled
// first is handled first.
func (e *engine) after(d int64, ev event) {
	ev.at = e.now + d
	e.seq++
	ev.seq = e.seq
	e.queue.push(ev)
}

// first schedules events that were held back until now, in their order: before all others that are
// due now, some of which may have been scheduled earlier.
func (e *engine) first(held []event) {
	for i, ev := range held {
		ev.at, ev.seq = e.now, uint32(i)
		e.queue.push(ev)
	}
}

// event is something that will happen. What its fields mean is up to its kind.
type event struct {
	at    int64
	seq   uint32
	gen   uint32 // of the connection or session that it belongs to
	arg   int32
	host  int16
	name  int8
	kind  eventKind
	shard int8 // whose connection it belongs to
}

// eventKind says what happens. Each plan has kinds of its own.
type eventKind uint8

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// eventQueue is a heap in which every event has four children.
type eventQueue struct{ events []event }

// next returns when the next event is due.
func (q *eventQueue) next() (at int64, ok bool) {
	if len(q.events) == 0 {
		return 0, false
	}
	return q.events[0].at, true
}

func (q *eventQueue) push(e event) {
	s := append(q.events, e)
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !e.before(&s[parent]) {
			break
		}
		s[i] = s[parent]
		i = parent
	}
	s[i] = e
	q.events = s
}

// pop takes the next event. There must be one.
func (q *eventQueue) pop() event {
	s := q.events
	top := s[0]
	n := len(s) - 1
	e := s[n]
	s = s[:n]
	q.events = s
	if n == 0 {
		return top
	}
	i := 0
	for {
		first := 4*i + 1
		if first >= n {
			break
		}
		least := first
		for c := first + 1; c < min(first+4, n); c++ {
			if s[c].before(&s[least]) {
				least = c
			}
		}
		if !s[least].before(&e) {
			break
		}
		s[i] = s[least]
		i = least
	}
	s[i] = e
	return top
}

// hostClock is the clock of one host, which has another zero than the engine's, and may
// have another rate.
type hostClock struct {
	offset int64
	rate   int64 // the clock runs (1024 + rate)/1024 as fast as the engine's
}

// clock returns what the clock shows at a time of the engine.
func (c *hostClock) clock(t int64) int64 { return c.offset + t + (t>>10)*c.rate }

// worldTime returns the first time of the engine at which the clock shows at least that.
func (c *hostClock) worldTime(shown int64) int64 {
	if shown-c.offset > 1<<52 {
		return 1 << 62
	}
	t := (shown - c.offset) * 1024 / (1024 + c.rate)
	for c.clock(t) >= shown {
		t--
	}
	for c.clock(t) < shown {
		t++
	}
	return t
}

// random is all randomness of a run.
type random struct{ rand.PCG }

const planStream = 0x6c6f636b // of a seed's random numbers

// below returns a number in [0, n).
func (r *random) below(n int64) int64 {
	hi, _ := bits.Mul64(r.Uint64(), uint64(n))
	return int64(hi)
}

// between returns a number in [lo, hi].
func (r *random) between(lo, hi int64) int64 { return lo + r.below(hi-lo+1) }

// oneIn is true once in n times; never for 0.
func (r *random) oneIn(n int64) bool { return n > 0 && r.below(n) == 0 }

// usually is false once in n times.
func (r *random) usually(n int64) bool { return !r.oneIn(n) }

// magnitude returns a number in [lo, hi]. Every order of magnitude is about as likely.
func (r *random) magnitude(lo, hi int64) int64 {
	lo = max(lo, 1)
	n := bits.Len64(uint64(hi / lo))
	x := lo << r.below(int64(n))
	return min(x+r.below(x), hi)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

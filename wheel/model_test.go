package wheel

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// For random operations, a wheel behaves as a sorted list of deadlines: the same timers fire in
// the same calls.
func TestWheelBehavesAsASortedList(t *testing.T) {
	seeds := 100
	if os.Getenv("LOCKSIDECAR_LONG") != "" {
		seeds = 600
	}
	first, _ := strconv.ParseUint(os.Getenv("LOCKSIDECAR_TEST_SEED"), 10, 64) // 0 without it
	t.Logf("seeds from %d on", first)
	script := make([]byte, 6<<10)
	for seed := first; seed < first+uint64(seeds); seed++ {
		var key [32]byte
		binary.LittleEndian.PutUint64(key[:], seed)
		r := rand.NewChaCha8(key)
		_, _ = r.Read(script)
		if err := play(script); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

func FuzzWheelBehavesAsASortedList(f *testing.F) {
	for seed := range 8 {
		script := make([]byte, 64<<(seed%6))
		_, _ = rand.NewChaCha8([32]byte{0: byte(seed)}).Read(script)
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if err := play(script[:min(len(script), 8<<10)]); err != nil {
			t.Fatal(err)
		}
	})
}

// A script is the bytes from which a run draws its choices. The run ends with the last byte.
type script []byte

func (s *script) below(n int) int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b) % n
}

func (s *script) bits64() uint64 {
	var b [8]byte
	n := copy(b[:], *s)
	*s = (*s)[n:]
	return binary.LittleEndian.Uint64(b[:])
}

// distance draws a difference of times of any magnitude; all magnitudes are as frequent.
func (s *script) distance() int64 { return int64(s.bits64() >> (1 + s.below(63))) }

func (s *script) time(now int64) int64 {
	switch s.below(16) {
	case 0:
		return math.MinInt64 + int64(s.below(3))
	case 1:
		return math.MaxInt64 - int64(s.below(3))
	case 2:
		return int64(s.bits64())
	case 3:
		return now
	case 4, 5:
		return saturate(now, -s.distance())
	default:
		return saturate(now, s.distance())
	}
}

func saturate(a, b int64) int64 {
	switch sum := a + b; {
	case b > 0 && sum < a:
		return math.MaxInt64
	case b < 0 && sum > a:
		return math.MinInt64
	default:
		return sum
	}
}

// A run executes a script on a wheel and on a model of it: the list of pending timers, sorted
// by deadline.
type run struct {
	script
	now    int64
	wheel  *Wheel[int]
	timers []*Timer[int]
	model  []*Timer[int]
	queue  []*Timer[int] // of model, the deferred timers, in order
	added  []int64       // by Value: the deadline in the model
	ticks  []uint64      // by Value: the tick with whose timers it fires
	err    error
}

func play(bytes []byte) error {
	r := &run{script: bytes}
	ticks := []time.Duration{1, 7, 1000, 10 * time.Millisecond, time.Hour, math.MaxInt64/3 + 1, math.MaxInt64}
	slots := []int{2, 4, 32, 64, 128, 1024}
	tick, n := ticks[r.below(len(ticks))], slots[r.below(len(slots))]
	r.now = r.time(0)
	r.wheel = New[int](tick, n, r.now)
	r.timers = make([]*Timer[int], 1+r.below(40))
	r.added = make([]int64, len(r.timers))
	r.ticks = make([]uint64, len(r.timers))
	for i := range r.timers {
		r.timers[i] = &Timer[int]{Value: i}
	}
	for step := 0; len(r.script) > 0 && r.err == nil; step++ {
		r.step()
		r.check()
		if r.err != nil {
			return fmt.Errorf("tick %d, %d slots, step %d, now %d: %w", int64(tick), n, step, r.now, r.err)
		}
	}
	return nil
}

func (r *run) failf(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *run) step() {
	switch r.below(11) {
	case 10:
		r.fireDeferred()
	case 0:
		r.wheel.MaxPending = r.below(3) * r.below(len(r.timers)+1)
	case 1, 2:
		r.remove()
	case 3, 4:
		limit := math.MaxInt
		if r.below(3) == 0 {
			limit = r.below(5)
		}
		r.advance(r.time(r.now), limit)
	case 5, 6:
		r.sleep()
	default:
		r.add(nil)
	}
}

func (r *run) anyTimer() *Timer[int] { return r.timers[r.below(len(r.timers))] }

// add adds a random timer, or the one that is firing.
func (r *run) add(firing *Timer[int]) {
	t, deadline := r.anyTimer(), r.time(r.now)
	if firing != nil && r.below(2) == 0 {
		t = firing
	}
	was := slices.Contains(r.model, t)
	full := r.wheel.MaxPending > 0 && len(r.model)-len(r.queue) >= r.wheel.MaxPending
	switch err := r.wheel.Add(t, deadline); {
	case err == ErrFull && !was && full:
		return
	case err != nil || !was && full:
		r.failf("Add(pending %v) with %d of %d pending: %v", was, len(r.model), r.wheel.MaxPending, err)
		return
	}
	r.drop(t)
	r.added[t.Value] = deadline
	r.ticks[t.Value] = max(r.wheel.current, r.wheel.tickOf(deadline))
	r.insert(t)
}

func (r *run) insert(t *Timer[int]) {
	i, _ := slices.BinarySearchFunc(r.model, r.added[t.Value], func(m *Timer[int], d int64) int {
		return cmp.Compare(r.added[m.Value], d)
	})
	r.model = slices.Insert(r.model, i, t)
}

func (r *run) drop(t *Timer[int]) bool {
	i := slices.Index(r.model, t)
	if i >= 0 {
		r.model = slices.Delete(r.model, i, i+1)
	}
	if i := slices.Index(r.queue, t); i >= 0 {
		r.queue = slices.Delete(r.queue, i, i+1)
	}
	return i >= 0
}

// defers puts a random timer into the backlog, or the one that is firing.
func (r *run) defers(firing *Timer[int]) {
	t := r.anyTimer()
	if firing != nil && r.below(4) > 0 {
		t = firing
	}
	r.drop(t)
	r.wheel.Defer(t)
	r.insert(t)
	r.queue = append(r.queue, t)
}

func (r *run) fireDeferred() {
	limit, fired := r.below(6), 0
	got := r.wheel.FireDeferred(limit, func(t *Timer[int]) {
		fired++
		if len(r.queue) == 0 || r.queue[0] != t || t.Pending() {
			r.failf("the backlog fired timer %d, pending %v", t.Value, t.Pending())
			return
		}
		r.drop(t)
		r.check()
		switch r.below(4) {
		case 0:
			r.add(t)
		case 1:
			r.remove()
		case 2:
			r.defers(t)
		}
		r.check()
	})
	if got != fired || fired > limit || fired < limit && len(r.queue) > 0 {
		r.failf("the backlog fired %d of at most %d, returned %d, and has %d", fired, limit, got, len(r.queue))
	}
}

func (r *run) remove() *Timer[int] {
	t := r.anyTimer()
	if got, want := r.wheel.Remove(t), r.drop(t); got != want {
		r.failf("Remove(timer %d) = %v, want %v", t.Value, got, want)
	}
	return t
}

// advance advances the wheel and the model. The callbacks add, remove and defer timers at
// random.
func (r *run) advance(now int64, limit int) int {
	r.now = now
	var expected []*Timer[int] // what must still fire
	for _, t := range r.model {
		if r.added[t.Value] <= now && !slices.Contains(r.queue, t) || t.place == due {
			expected = append(expected, t)
		}
	}
	leftover := r.wheel.places[due] != nil // by an AdvanceSome: these fire first
	last, fired := uint64(0), 0
	got := r.wheel.AdvanceSome(now, limit, func(t *Timer[int]) {
		fired++
		i := slices.Index(expected, t)
		if i < 0 {
			r.failf("Advance(%d) fired timer %d of %d (was pending: %v)", now, t.Value, t.Deadline(), slices.Contains(r.model, t))
			return
		}
		expected = slices.Delete(expected, i, i+1)
		r.drop(t)
		if t.Pending() || t.Deadline() != r.added[t.Value] {
			r.failf("timer %d fired while pending %v, for %d instead of %d", t.Value, t.Pending(), t.Deadline(), r.added[t.Value])
		}
		if tick := r.ticks[t.Value]; tick < last && !leftover {
			r.failf("Advance(%d) fired tick %d after %d", now, tick, last)
		} else {
			last = tick
		}
		r.check()
		switch r.below(4) {
		case 0:
			r.add(t)
		case 1:
			r.remove()
		case 2:
			r.defers(t)
		default:
			return
		}
		// A due timer that the callback changed does not fire in this call.
		expected = slices.DeleteFunc(expected, func(e *Timer[int]) bool { return e.place != due })
		r.check()
	})
	if got != fired {
		r.failf("Advance(%d) = %d, but fired %d", now, got, fired)
	}
	if fired > limit {
		r.failf("AdvanceSome(%d, %d) fired %d", now, limit, fired)
	}
	for _, t := range expected {
		if fired < limit {
			r.failf("Advance(%d) did not fire timer %d of %d", now, t.Value, r.added[t.Value])
		} else if t.place != due {
			r.failf("AdvanceSome(%d, %d) leaves timer %d of %d in place %d", now, limit, t.Value, r.added[t.Value], t.place)
		}
	}
	return fired
}

// sleep advances to Next, as a daemon does.
func (r *run) sleep() {
	next, ok := r.wheel.Next()
	if !ok {
		return
	}
	before := r.distances()
	removed := r.wheel.pending // callbacks may add and remove
	fired := r.advance(next, math.MaxInt)
	if fired == 0 && len(r.queue) == 0 && (removed != r.wheel.pending || r.distances() >= before) {
		r.failf("Advance(Next() = %d) neither fired a timer nor moved one closer", next)
	}
}

// distances returns the sum of the levels in which the timers wait.
func (r *run) distances() (sum int) {
	for _, t := range r.model {
		for _, l := range r.wheel.levels {
			if t.place >= l.first {
				sum++
			}
		}
	}
	return sum
}

// movesAt reports whether t waits in a coarse bucket that the wheel enters with the tick of
// now.
func (r *run) movesAt(t *Timer[int], now int64) bool {
	for _, l := range slices.Backward(r.wheel.levels[1:]) {
		if t.place >= l.first {
			return r.wheel.tickOf(t.Deadline())>>l.shift<<l.shift == r.wheel.tickOf(now)
		}
	}
	return false
}

// check compares the wheel with the model, and checks the invariants of the wheel.
func (r *run) check() {
	w := r.wheel
	if w.Len() != len(r.model) {
		r.failf("Len() = %d, want %d", w.Len(), len(r.model))
	}
	next, ok := w.Next()
	if ok != (len(r.model) > len(r.queue)) {
		r.failf("Next() = %v with %d pending", ok, len(r.model))
	}
	if ok && len(r.queue) == 0 && w.places[due] == nil {
		first := r.added[r.model[0].Value]
		if uint64(next)-uint64(first) >= w.tick && next > first {
			r.failf("Next() = %d, a tick or more after the first deadline %d", next, first)
		}
		if next < first && !slices.ContainsFunc(r.model, func(t *Timer[int]) bool { return r.movesAt(t, next) }) {
			r.failf("Next() = %d, before the first deadline %d, and no timer moves closer", next, first)
		}
	}

	seen := 0
	for p, first := range w.places {
		if set := w.occupied[p/64]>>(p%64)&1 == 1; set != (first != nil) {
			r.failf("place %d: occupied %v, first timer %v", p, set, first)
		}
		var last *Timer[int]
		for t := first; t != nil; t = t.next {
			seen++
			if int(t.place) != p || last != nil && t.prev != last {
				r.failf("place %d: timer %d has place %d, or a wrong prev", p, t.Value, t.place)
			}
			if !slices.Contains(r.model, t) || !t.Pending() || t.Deadline() != r.added[t.Value] {
				r.failf("place %d: timer %d should not be here", p, t.Value)
			}
			last = t
		}
		if first != nil && first.prev != last {
			r.failf("place %d: prev of the first timer is not the last one", p)
		}
	}
	for _, l := range w.levels[1:] {
		if w.places[l.at(w.current)] != nil {
			r.failf("a coarse bucket that has been entered is not empty")
		}
	}
	if seen != len(r.model) {
		r.failf("%d timers in the wheel's places, want %d", seen, len(r.model))
	}
	for _, t := range r.timers {
		if !t.Pending() && (t.next != nil || t.prev != nil) {
			r.failf("timer %d is not pending and still linked", t.Value)
		}
	}
}

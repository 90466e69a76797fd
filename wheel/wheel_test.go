package wheel

import (
	"math"
	"testing"
	"time"
	"unsafe"
)

const ms = int64(time.Millisecond)

// fires returns the Values of the timers that Advance fires.
func fires[T any](w *Wheel[T], now int64) (values []T) {
	w.Advance(now, func(t *Timer[T]) { values = append(values, t.Value) })
	return values
}

func mustAdd[T any](tb testing.TB, w *Wheel[T], t *Timer[T], deadline int64) {
	tb.Helper()
	if err := w.Add(t, deadline); err != nil {
		tb.Fatal(err)
	}
}

func TestTimerFiresAtItsDeadlineAndNotANanosecondBefore(t *testing.T) {
	for _, after := range []int64{
		1, 10*ms - 1, 10 * ms, 10*ms + 1, // about a tick
		10240*ms - 1, 10240 * ms, 10240*ms + 1, // about a revolution
		30_000 * ms, 3_600_000 * ms, 30 * 24 * 3_600_000 * ms,
		math.MaxInt64 - 12345, // to the end of the clock
	} {
		w := New[string](10*time.Millisecond, 1024, 12345)
		timer := Timer[string]{Value: "timer"}
		mustAdd(t, w, &timer, 12345+after)
		if got := fires(w, 12345+after-1); got != nil {
			t.Errorf("after %d ns: fired a nanosecond early", after)
		}
		if got := fires(w, 12345+after); len(got) != 1 {
			t.Errorf("after %d ns: did not fire at its deadline", after)
		}
	}
}

func TestOverdueTimersFireInTheNextAdvance(t *testing.T) {
	w := New[int64](10*time.Millisecond, 64, 5000*ms)
	passed := []int64{math.MinInt64, math.MinInt64 + 1, -1, 0, 1, 4990 * ms, 5000 * ms}
	for _, deadline := range passed {
		mustAdd(t, w, &Timer[int64]{Value: deadline}, deadline)
		if next, ok := w.Next(); !ok || next >= 5010*ms {
			t.Errorf("deadline %d: Next() = %d, %v", deadline, next, ok)
		}
	}
	if got := fires(w, 5000*ms); len(got) != len(passed) {
		t.Errorf("fired %d, want those of %d", got, passed)
	}
}

func TestAdvanceFiresInTheOrderOfTicksAcrossALongGap(t *testing.T) {
	w := New[int](10*time.Millisecond, 64, 0)
	for i := range 12 { // up to two billion ticks ahead, the last one first
		i = 11 - i
		mustAdd(t, w, &Timer[int]{Value: i}, 10*ms<<(3*i))
	}
	got := fires(w, math.MaxInt64)
	if len(got) != 12 {
		t.Fatalf("fired %d, want 12", got)
	}
	for i, value := range got {
		if i != value {
			t.Fatalf("fired in the order %d", got)
		}
	}
}

func TestAddingAPendingTimerMovesIt(t *testing.T) {
	w := New[int](10*time.Millisecond, 64, 0)
	timer := Timer[int]{Value: 1}
	mustAdd(t, w, &timer, 50*ms)
	mustAdd(t, w, &timer, 70_000*ms)
	if got := fires(w, 69_999*ms); got != nil || w.Len() != 1 || timer.Deadline() != 70_000*ms {
		t.Errorf("a timer moved to later fired %d, %d are pending, deadline %d", got, w.Len(), timer.Deadline())
	}
	mustAdd(t, w, &timer, 70_500*ms)
	mustAdd(t, w, &timer, 70_000*ms)
	if got := fires(w, 70_000*ms); len(got) != 1 || timer.Pending() {
		t.Errorf("a timer moved to earlier did not fire")
	}
}

func TestRemovedTimerDoesNotFire(t *testing.T) {
	w := New[int](10*time.Millisecond, 64, 0)
	var timer Timer[int]
	for _, deadline := range []int64{math.MinInt64, 0, 5 * ms, 500 * ms, 100_000 * ms, math.MaxInt64} {
		if timer.Pending() || w.Remove(&timer) {
			t.Errorf("a timer that is not pending was removed")
		}
		mustAdd(t, w, &timer, deadline)
		if !timer.Pending() || !w.Remove(&timer) || timer.Pending() {
			t.Errorf("a pending timer was not removed")
		}
		if next, ok := w.Next(); ok || w.Len() != 0 {
			t.Errorf("deadline %d: an emptied wheel has Len() = %d and Next() = %d", deadline, w.Len(), next)
		}
	}
	if got := fires(w, math.MaxInt64); got != nil {
		t.Errorf("a removed timer fired")
	}
}

func TestFullWheelRefusesNewTimersAndMovesPendingOnes(t *testing.T) {
	w := New[int](10*time.Millisecond, 64, 0)
	w.MaxPending = 2
	var a, b, c Timer[int]
	mustAdd(t, w, &a, 1)
	mustAdd(t, w, &b, 2)
	if err := w.Add(&c, 3); err != ErrFull || c.Pending() || w.Len() != 2 {
		t.Fatalf("Add to a full wheel: %v, pending %v, Len() = %d", err, c.Pending(), w.Len())
	}
	mustAdd(t, w, &b, 100*ms)
	if got := fires(w, 1); len(got) != 1 {
		t.Fatalf("%d fired, want one", len(got))
	}
	mustAdd(t, w, &c, 3)
	if err := w.Add(&a, 4); err != ErrFull {
		t.Fatalf("Add to a wheel that is full again: %v", err)
	}
	w.Remove(&b)
	mustAdd(t, w, &a, 4)
	w.MaxPending = -1
	mustAdd(t, w, &b, 5)
}

func TestFireMayAddItsOwnTimerAgain(t *testing.T) {
	w := New[int](10*time.Millisecond, 64, 0)
	var timer Timer[int]
	mustAdd(t, w, &timer, 100*ms)
	for _, again := range []int64{math.MinInt64, 0, 100 * ms, 100*ms - 1} {
		fired := w.Advance(100*ms, func(timer *Timer[int]) {
			mustAdd(t, w, timer, again)
		})
		if fired != 1 || !timer.Pending() {
			t.Fatalf("added again for %d: fired %d times in one Advance, pending %v", again, fired, timer.Pending())
		}
		if next, ok := w.Next(); !ok || next >= 110*ms {
			t.Errorf("added again for %d: Next() = %d, %v", again, next, ok)
		}
	}
	if got := fires(w, 100*ms); len(got) != 1 {
		t.Errorf("a timer added as due by fire did not fire in the next Advance")
	}
}

func TestAdvanceSomeLeavesTheRestDue(t *testing.T) {
	w := New[string](10*time.Millisecond, 64, 0)
	var timers [5]Timer[string]
	for i := range timers {
		timers[i].Value = string(rune('a' + i))
		_ = w.Add(&timers[i], int64(i+1)*ms)
	}
	fired := ""
	fire := func(t *Timer[string]) {
		fired += t.Value
		if t.Value == "b" {
			w.Defer(t)
		}
	}
	if n := w.AdvanceSome(50*ms, 3, fire); n != 3 || fired != "abc" {
		t.Fatalf("fired %d: %s", n, fired)
	}
	if at, ok := w.Next(); !ok || at > 50*ms || w.Len() != 3 {
		t.Fatalf("Next() = %d, %v, with %d pending", at, ok, w.Len())
	}
	w.Remove(&timers[3])
	if n := w.AdvanceSome(50*ms, 3, fire); n != 1 || fired != "abce" {
		t.Fatalf("fired %d: %s", n, fired)
	}
	if _, ok := w.Next(); ok || !w.Deferred() {
		t.Fatal("Next returns a time for a deferred timer")
	}
	if n := w.FireDeferred(1, func(t *Timer[string]) { fired += t.Value }); n != 1 || fired != "abceb" || w.Deferred() || w.Len() != 0 {
		t.Fatalf("fired %d: %s", n, fired)
	}
	if _, ok := w.Next(); ok {
		t.Error("Next returns a time for an empty wheel")
	}
}

// Also if this Advance has not fired all timers of its tick yet.
func TestTimerAddedByFireWaitsForTheNextAdvance(t *testing.T) {
	w := New[string](10*time.Millisecond, 64, 0)
	first, last, added := Timer[string]{Value: "first"}, Timer[string]{Value: "last"}, Timer[string]{Value: "added"}
	mustAdd(t, w, &first, 10*ms)
	mustAdd(t, w, &last, 900*ms)
	w.Advance(1000*ms, func(timer *Timer[string]) {
		switch timer.Value {
		case "first":
			mustAdd(t, w, &added, 500*ms)
		case "added":
			t.Error("fired in the Advance it was added in")
		}
	})
	if got := fires(w, 1000*ms); len(got) != 1 {
		t.Errorf("%q fired in the next Advance", got)
	}
}

func TestFireMayRemoveAndMoveOtherDueTimers(t *testing.T) {
	w := New[int](10*time.Millisecond, 64, 0)
	timers := make([]Timer[int], 6)
	for i := range timers {
		timers[i].Value = i
		mustAdd(t, w, &timers[i], int64(i)*20*ms) // in different ticks, so that the order is defined
	}
	var fired []int
	w.Advance(100*ms, func(timer *Timer[int]) {
		fired = append(fired, timer.Value)
		switch timer.Value {
		case 0:
			w.Remove(&timers[1])
			mustAdd(t, w, &timers[2], 200*ms)
			if w.Len() != 4 {
				t.Errorf("Len() = %d in fire, want 4", w.Len())
			}
		case 3:
			w.Remove(&timers[5])
			w.Remove(&timers[4])
			mustAdd(t, w, &timers[4], 60*ms)
		}
	})
	if len(fired) != 2 || fired[0] != 0 || fired[1] != 3 {
		t.Errorf("fired %d, want 0 and 3", fired)
	}
	if got := fires(w, 200*ms); len(got) != 2 || got[0] != 4 || got[1] != 2 {
		t.Errorf("then fired %d, want 4 and 2", got)
	}
}

func TestPanicInFireLosesNoOtherTimer(t *testing.T) {
	w := New[int](10*time.Millisecond, 64, 0)
	var a, b Timer[int]
	mustAdd(t, w, &a, 10*ms)
	mustAdd(t, w, &b, 20*ms)
	func() {
		defer func() { _ = recover() }()
		w.Advance(30*ms, func(*Timer[int]) { panic("broken") })
	}()
	if next, ok := w.Next(); !ok || next > 30*ms || w.Len() != 1 {
		t.Errorf("after the panic Next() = %d, %v and Len() = %d", next, ok, w.Len())
	}
	if got := fires(w, 30*ms); len(got) != 1 || b.Pending() {
		t.Errorf("the second timer was lost")
	}
}

func TestTimersOfOneTickCostOneWakeUp(t *testing.T) {
	w := New[int](10*time.Millisecond, 1024, 0)
	begin := w.endOf(w.tickOf(500*ms)) + 1 // of a tick
	for i := range 100 {
		mustAdd(t, w, &Timer[int]{Value: i}, begin+int64(i)*ms/10)
	}
	next, ok := w.Next()
	if !ok || next != begin+10*ms-1 {
		t.Fatalf("Next() = %d, %v", next, ok)
	}
	if got := fires(w, next); len(got) != 100 {
		t.Errorf("%d of 100 timers of one tick fired at once", len(got))
	}
	if next, ok := w.Next(); ok {
		t.Errorf("Next() = %d with nothing pending", next)
	}
}

// Until the next timer of the tick is due, calls within the tick do not walk its timers again.
func TestAdvanceStoresTheFirstDeadlineLeftInItsTick(t *testing.T) {
	w := New[int](10*time.Millisecond, 64, 0)
	begin := w.endOf(w.tickOf(500*ms)) + 1 // of a tick
	for i := range 10 {
		mustAdd(t, w, &Timer[int]{Value: i}, begin+int64(9-i)*ms)
	}
	for i := range int64(9) {
		if got := fires(w, begin+i*ms); len(got) != 1 || w.earliest != begin+(i+1)*ms {
			t.Errorf("after %d ms: fired %d, first deadline left %d", i, got, w.earliest-begin)
		}
	}
	var timer Timer[int]
	w = New[int](10*time.Millisecond, 64, begin)
	mustAdd(t, w, &timer, begin+ms)
	w.Remove(&timer)
	mustAdd(t, w, &timer, begin+5*ms)
	if w.earliest != begin+5*ms {
		t.Errorf("a removed timer counts as the first of its tick")
	}
}

// The number of wake-ups before a timer fires is bounded. Each is later than the one before, and
// the last one fires the timer.
func TestFarTimerFiresAfterFewWakeUps(t *testing.T) {
	for _, c := range []struct {
		deadline int64
		wakeUps  int
	}{
		{10_000 * ms, 1},
		{40_000 * ms, 2},
		{3_600_000 * ms, 4},
		{30 * 24 * 3_600_000 * ms, 6},
		{math.MaxInt64, 10},
	} {
		w := New[int](10*time.Millisecond, 1024, 0)
		var timer Timer[int]
		mustAdd(t, w, &timer, c.deadline)
		wakeUps, last := 0, int64(-1)
		for timer.Pending() {
			next, ok := w.Next()
			if !ok || next <= last {
				t.Fatalf("deadline %d: Next() = %d, %v after %d", c.deadline, next, ok, last)
			}
			if next > c.deadline && next-c.deadline >= 10*ms {
				t.Fatalf("deadline %d: Next() = %d is a tick or more late", c.deadline, next)
			}
			w.Advance(next, func(*Timer[int]) {})
			wakeUps, last = wakeUps+1, next
		}
		if wakeUps > c.wakeUps {
			t.Errorf("deadline %d: %d wake-ups, want at most %d", c.deadline, wakeUps, c.wakeUps)
		}
	}
}

// In 135,000 revolutions each timer beyond the revolution moves only a few times, and timers
// with similar deadlines move together.
func TestFarTimersAreNotMovedInEveryRevolution(t *testing.T) {
	w := New[int](10*time.Millisecond, 64, 0)
	timers := make([]Timer[int], 10_000)
	places := make([]place, len(timers))
	for i := range timers {
		mustAdd(t, w, &timers[i], 24*3_600_000*ms+int64(i)*ms) // 1,000 ticks of them
		places[i] = timers[i].place
	}
	moves, wakeUps := 0, 0
	for w.Len() > 0 {
		next, _ := w.Next()
		w.Advance(next, func(*Timer[int]) {})
		wakeUps++
		for i := range timers {
			if timers[i].place != places[i] {
				places[i] = timers[i].place
				moves++
			}
		}
	}
	if most := 6 * len(timers); moves > most {
		t.Errorf("%d moves of %d timers, want at most %d", moves, len(timers), most)
	}
	if wakeUps > 1400 {
		t.Errorf("%d wake-ups for timers in 1,001 ticks, want at most 1,400", wakeUps)
	}
}

func TestAdvanceToAnEarlierTimeFiresOnlyDueTimers(t *testing.T) {
	w := New[string](10*time.Millisecond, 64, 100_000*ms)
	before, later := Timer[string]{Value: "before"}, Timer[string]{Value: "later"}
	mustAdd(t, w, &later, 101_000*ms)
	if got := fires(w, 50_000*ms); got != nil {
		t.Errorf("%q fired early", got)
	}
	mustAdd(t, w, &before, 50_100*ms)
	if next, ok := w.Next(); !ok || next < 50_100*ms || next >= 50_110*ms {
		t.Errorf("Next() = %d, %v, want about %d", next, ok, 50_100*ms)
	}
	if got := fires(w, 50_100*ms-1); got != nil {
		t.Errorf("%q fired early", got)
	}
	if got := fires(w, 50_100*ms); len(got) != 1 || got[0] != "before" {
		t.Errorf("%q fired, want before", got)
	}
	if got := fires(w, 101_000*ms); len(got) != 1 || got[0] != "later" {
		t.Errorf("%q fired, want later", got)
	}
}

func TestNewPanicsForInvalidArguments(t *testing.T) {
	for name, f := range map[string]func(){
		"no tick":            func() { New[int](0, 64, 0) },
		"negative tick":      func() { New[int](-1, 64, 0) },
		"no slots":           func() { New[int](1, 0, 0) },
		"one slot":           func() { New[int](1, 1, 0) },
		"negative slots":     func() { New[int](1, -64, 0) },
		"not a power of two": func() { New[int](1, 100, 0) },
		"too many slots":     func() { New[int](1, 1<<25, 0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: New did not panic", name)
				}
			}()
			f()
		}()
	}
}

func TestTimerAddsFourWordsToItsValue(t *testing.T) {
	if size := unsafe.Sizeof(Timer[struct{}]{}); size > 32 {
		t.Errorf("a timer of nothing is %d bytes, want 32", size)
	}
}

func TestNoOperationAllocates(t *testing.T) {
	w := New[int](10*time.Millisecond, 1024, 0)
	timers := make([]Timer[int], 1000)
	now := int64(0)
	allocs := testing.AllocsPerRun(20, func() {
		for i := range timers {
			mustAdd(t, w, &timers[i], now+int64(i)*int64(i)*ms) // up to 1,000 s
		}
		for i := range timers {
			if i%2 == 0 {
				w.Remove(&timers[i])
			}
		}
		for w.Len() > 0 {
			now, _ = w.Next()
			w.Advance(now, func(*Timer[int]) {})
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for 1,000 timers, want none", allocs)
	}
}

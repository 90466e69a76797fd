package wheel

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// million is how many timers are pending while the wheel is measured, spread
// over the next 30 s as the leases of as many locks would be.
const million = 1_000_000

// random is the same in each run. One benchmark runs at a time.
var random = rand.New(rand.NewPCG(1, 2))

func millionPending(b *testing.B) *Wheel[int] {
	b.Helper()
	w := New[int](10*time.Millisecond, 1024, 0)
	timers := make([]Timer[int], million)
	for i := range timers {
		mustAdd(b, w, &timers[i], 1+random.Int64N(30_000*ms))
	}
	return w
}

// Most timers are started and stopped before they fire.
func BenchmarkAddRemove(b *testing.B) {
	b.Run("wheel", func(b *testing.B) {
		w := New[int](10*time.Millisecond, 1024, 0)
		var t Timer[int]
		b.ReportAllocs()
		for b.Loop() {
			_ = w.Add(&t, 10_000*ms)
			w.Remove(&t)
		}
	})
	b.Run("wheel/1,000,000 pending", func(b *testing.B) {
		w := millionPending(b)
		timers := make([]Timer[int], 1<<16)
		deadlines := make([]int64, len(timers))
		for i := range deadlines {
			deadlines[i] = random.Int64N(30_000 * ms)
		}
		i := 0
		b.ReportAllocs()
		for b.Loop() {
			// Half of them are pending at a time, so that a removed timer stands
			// between others in its list.
			_ = w.Add(&timers[i&(len(timers)-1)], deadlines[i&(len(timers)-1)])
			w.Remove(&timers[(i+len(timers)/2)&(len(timers)-1)])
			i++
		}
	})
	b.Run("time.AfterFunc", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			time.AfterFunc(time.Hour, func() {}).Stop()
		}
	})
	b.Run("time.AfterFunc/1,000,000 pending", func(b *testing.B) {
		pending := make([]*time.Timer, million)
		for i := range pending {
			pending[i] = time.AfterFunc(time.Hour+time.Duration(random.Int64N(30_000*ms)), func() {})
		}
		timers := make([]*time.Timer, 1<<16)
		i := 0
		b.ReportAllocs()
		for b.Loop() {
			timers[i&(len(timers)-1)] = time.AfterFunc(time.Hour+time.Duration(random.Int64N(30_000*ms)), func() {})
			if t := timers[(i+len(timers)/2)&(len(timers)-1)]; t != nil {
				t.Stop()
			}
			i++
		}
		b.StopTimer()
		for _, t := range pending {
			t.Stop()
		}
		for _, t := range timers {
			if t != nil {
				t.Stop()
			}
		}
	})
}

// A renewal moves a pending timer to a later time.
func BenchmarkMove(b *testing.B) {
	b.Run("wheel", func(b *testing.B) {
		w := New[int](10*time.Millisecond, 1024, 0)
		var t Timer[int]
		deadline := int64(0)
		b.ReportAllocs()
		for b.Loop() {
			deadline = (deadline + ms) % (30_000 * ms)
			_ = w.Add(&t, deadline)
		}
	})
	b.Run("time.AfterFunc", func(b *testing.B) {
		t := time.AfterFunc(time.Hour, func() {})
		b.ReportAllocs()
		for b.Loop() {
			t.Reset(time.Hour)
		}
		t.Stop()
	})
}

// 1,000,000 timers stay pending: each timer that fires is added again, 30 s later.
func BenchmarkAdvance(b *testing.B) {
	for _, c := range []struct {
		name string
		step int64
	}{
		{"every 10 µs", ms / 100},
		{"every tick", 10 * ms},
		{"every second", 1000 * ms},
	} {
		b.Run("wheel/1,000,000 pending/"+c.name, func(b *testing.B) {
			w := millionPending(b)
			now, fired := int64(0), 0
			again := func(t *Timer[int]) { _ = w.Add(t, t.Deadline()+30_000*ms) }
			b.ReportAllocs()
			for b.Loop() {
				now += c.step
				fired += w.Advance(now, again)
			}
			b.ReportMetric(float64(fired)/float64(b.N), "fired/op")
			if fired > 0 {
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(fired), "ns/fired")
			}
		})
	}
	b.Run("wheel/1,000,000 pending/nothing due", func(b *testing.B) {
		w := millionPending(b)
		b.ReportAllocs()
		for b.Loop() {
			w.Advance(0, nil)
			_, _ = w.Next()
		}
	})
}

// All of 1,000,000 timers are started, and fire.
func BenchmarkFireAMillion(b *testing.B) {
	b.Run("wheel", func(b *testing.B) {
		timers := make([]Timer[int], million)
		b.ReportAllocs()
		for b.Loop() {
			w := New[int](10*time.Millisecond, 1024, 0)
			for i := range timers {
				_ = w.Add(&timers[i], int64(i)*30_000)
			}
			for now := int64(0); w.Len() > 0; now += 10 * ms {
				w.Advance(now, func(*Timer[int]) {})
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/million, "ns/timer")
	})
	b.Run("time.AfterFunc", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var all sync.WaitGroup
			all.Add(million)
			for range million {
				time.AfterFunc(time.Millisecond, all.Done)
			}
			all.Wait()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/million, "ns/timer")
	})
}

// The longest Advance while 1,000,000 timers come closer from far ahead: all timers of a coarse
// bucket move in one call.
func BenchmarkWorstAdvance(b *testing.B) {
	timers := make([]Timer[int], million)
	worst := time.Duration(0)
	for b.Loop() {
		w := New[int](10*time.Millisecond, 1024, 0)
		for i := range timers {
			_ = w.Add(&timers[i], 30_000*ms+random.Int64N(3_570_000*ms)) // 30 s to an hour
		}
		for w.Len() > 0 {
			next, _ := w.Next()
			begin := time.Now()
			w.Advance(next, func(*Timer[int]) {})
			worst = max(worst, time.Since(begin))
		}
	}
	b.ReportMetric(float64(worst.Microseconds()), "µs-worst")
}

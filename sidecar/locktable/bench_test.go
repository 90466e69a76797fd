package locktable_test

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// answer plays a Redis that does everything at once.
func answer(tb *locktable.Table, now int64, token *uint64) {
	for {
		again := false
		for _, e := range append([]locktable.Effect(nil), tb.Effects()...) {
			if e.Kind == locktable.Redis {
				*token += uint64(e.Op.Reserve)
				tb.Result(now, redisop.Result{Kind: e.Op.Kind, Name: e.Op.Name, Outcome: redisop.Done, Sent: now, Token: *token})
				again = true
			}
		}
		if !again {
			return
		}
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	now := int64(time.Hour)
	tb := locktable.New(locktable.Config{}, now)
	tb.Up(now, 0, false, false)
	tb.Open(now, 1, locktable.Peer{})
	var token uint64
	b.ReportAllocs()
	for i := range b.N {
		tb.Acquire(now, 1, protocol.Acquire{ID: uint64(i + 1), Name: "invoice:42", WaitMS: protocol.Forever})
		answer(tb, now, &token)
		tb.Release(now, 1, protocol.Release{Hold: uint64(i + 1)})
		answer(tb, now, &token)
	}
}

// BenchmarkHeldLock reports what one held lock costs the table in memory.
func BenchmarkHeldLock(b *testing.B) {
	const locks = 100_000
	for range b.N {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		now := int64(time.Hour)
		tb := locktable.New(locktable.Config{}, now)
		tb.Up(now, 0, false, false)
		tb.Open(now, 1, locktable.Peer{})
		var token uint64
		for i := range locks {
			tb.Acquire(now, 1, protocol.Acquire{ID: uint64(i + 1), Name: "invoice:" + strconv.Itoa(i), WaitMS: protocol.Forever})
			answer(tb, now, &token)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/locks, "B/lock")
		runtime.KeepAlive(tb)
	}
}

// BenchmarkRenewal measures one renewal, timer to timer.
func BenchmarkRenewal(b *testing.B) {
	const locks = 100_000
	now := int64(time.Hour)
	tb := locktable.New(locktable.Config{}, now)
	tb.Up(now, 0, false, false)
	tb.Open(now, 1, locktable.Peer{})
	var token uint64
	for i := range locks {
		tb.Acquire(now, 1, protocol.Acquire{ID: uint64(i + 1), Name: "invoice:" + strconv.Itoa(i), WaitMS: protocol.Forever})
		answer(tb, now, &token)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; {
		if at, ok := tb.Next(); ok {
			now = max(now, at)
		}
		tb.Advance(now)
		tb.Work(now)
		for _, e := range append([]locktable.Effect(nil), tb.Effects()...) {
			if e.Kind == locktable.Redis {
				tb.Result(now, redisop.Result{Kind: e.Op.Kind, Name: e.Op.Name, Outcome: redisop.Done, Sent: now})
				done++
			}
		}
	}
}

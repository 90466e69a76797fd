package monitor

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAnswersAreMadeOneAtATimeWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPacer()
		var all sync.WaitGroup
		begin, making, answers := time.Now(), 0, 0
		for range 8 {
			all.Go(func() {
				for range 10 {
					p.do(func() {
						if making++; making != 1 {
							t.Errorf("%d answers are made at a time", making)
						}
						time.Sleep(2 * time.Millisecond)
						making--
						answers++
					})
				}
			})
		}
		all.Wait()
		if d, want := time.Since(begin), time.Duration(answers)*2*time.Millisecond*(1+paceShare)-paceShare*2*time.Millisecond; d != want {
			t.Errorf("%d answers of 2 ms took %v, want %v", answers, d, want)
		}

		// A loop that does not answer delays the next answer for a bounded time.
		p.do(func() { time.Sleep(2 * time.Second) })
		begin = time.Now()
		p.do(func() {})
		if d := time.Since(begin); d != longestPace {
			t.Errorf("after an answer that took two seconds, the next came %v later, want %v", d, longestPace)
		}
	})
}

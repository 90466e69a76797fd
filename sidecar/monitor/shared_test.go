package monitor

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// However many readers ask, each receives an answer that was begun after it had asked.
func TestReadersShareAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := 0
		s := &shared{pacer: newPacer(), work: func() answer {
			begun++
			n := begun
			time.Sleep(time.Second)
			return answer{texts: []string{strconv.Itoa(n)}}
		}}
		var readers sync.WaitGroup
		ask := func(want string) {
			readers.Go(func() {
				if a := s.get(); a.texts[0] != want {
					t.Errorf("a reader receives answer %s, want %s", a.texts[0], want)
				}
			})
		}
		ask("1")
		synctest.Wait()
		for range 20 {
			ask("2")
		}
		readers.Wait()
		if begun != 2 {
			t.Errorf("%d answers are made for 21 readers", begun)
		}
	})
}

// A reader chooses the names of locks: nothing of them may stay.
func TestAnswersByKeyAreKeptForNoLongerThanReadersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sharedByKey
		p := newPacer()
		begun := make(map[string]int) // by one goroutine at a time: that with the turn of the pacer
		var readers sync.WaitGroup
		for i := range 30 {
			key := strconv.Itoa(i % 3)
			readers.Go(func() {
				a := s.get(key, p, func() answer {
					begun[key]++
					time.Sleep(time.Second)
					return answer{texts: []string{key}}
				})
				if len(a.texts) != 1 || a.texts[0] != key {
					t.Errorf("the answer with the key %s is %v", key, a)
				}
			})
		}
		readers.Wait()
		if len(s.of) != 0 {
			t.Errorf("%d keys are kept", len(s.of))
		}
		for key, n := range begun {
			if n > 2 {
				t.Errorf("the answer with the key %s was made %d times", key, n)
			}
		}
	})
}

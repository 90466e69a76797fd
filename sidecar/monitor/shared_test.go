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

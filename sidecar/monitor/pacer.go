package monitor

import "time"

const (
	// After an answer that took a time to make, none is made for paceShare times that time: so
	// answers take a fifth of a processor at most, however often they are asked for.
	paceShare = 4
	// An answer that waits for the loop takes long, and costs little.
	longestPace = 50 * time.Millisecond
)

// A pacer has answers made one at a time, at a bounded cost.
type pacer struct {
	turn chan struct{} // has an element while an answer is made
	next time.Time     // no answer is made before; the one who has the turn uses it
}

func newPacer() *pacer { return &pacer{turn: make(chan struct{}, 1)} }

// do waits for its turn, and calls work.
func (p *pacer) do(work func()) {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	time.Sleep(time.Until(p.next))
	begin := time.Now()
	work()
	end := time.Now()
	p.next = end.Add(min(paceShare*end.Sub(begin), longestPace))
}

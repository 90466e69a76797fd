package monitor

import "time"

const (
	// After what an answer shows took a time to gather, nothing is gathered for paceShare times that
	// time. The text of metrics is made outside of it.
	paceShare = 4
	// An answer that waits for the loop takes long, and costs little.
	longestPace = 50 * time.Millisecond
)

// A pacer has what answers show gathered for one of them at a time, with pauses.
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

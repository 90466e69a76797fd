package monitor

import "time"

const (
	// After a piece of work there is a pause, which is paceShare times as long as the work took.
	paceShare = 4
	// Work that waits for the loop takes long, and costs little: its pause is longestPace.
	longestPace = 50 * time.Millisecond
)

// A pacer does one piece of work at a time, with pauses. It bounds what it costs to make the metrics
// and the page, however often they are asked for.
type pacer struct {
	turn chan struct{} // has an element while there is work
	next time.Time     // no work begins before; used by the goroutine that has the turn
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

package monitor

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

const (
	// A sample is taken each sampleInterval, and maxSamples of them are kept: ten minutes.
	sampleInterval = 5 * time.Second
	maxSamples     = 121
)

// sample is what the page shows of one moment.
type sample struct {
	at      int64 // CLOCK_BOOTTIME, ns
	waiters int
	oldest  time.Duration // for how long the oldest waiter had waited
	losses  [locktable.LossReasons]uint64
}

// history has the newest samples, oldest first.
type history struct {
	mu      sync.Mutex // guards what follows
	samples []sample
}

// run takes samples until ctx ends.
func (h *history) run(ctx context.Context, s *sidecar.Server) {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		bound, cancel := context.WithTimeout(ctx, statsTimeout)
		if stats, err := s.Stats(bound); err == nil {
			h.add(sampleOf(stats))
		}
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func sampleOf(s *sidecar.Stats) sample {
	all, v := sum(s)
	return sample{at: s.Now, waiters: s.Waiters, oldest: time.Duration(age(s, &v.OldestWaiter) * float64(time.Second)), losses: all.Losses}
}

func (h *history) add(s sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.samples = append(h.samples, s); len(h.samples) > maxSamples {
		h.samples = h.samples[1:]
	}
}

// until returns the samples, and after them one of now.
func (h *history) until(now sample) []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append(append([]sample(nil), h.samples...), now)
}

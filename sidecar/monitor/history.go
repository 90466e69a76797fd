package monitor

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

const (
	// A sample is taken each sampleInterval. The newest maxSamples are kept, which cover one hour.
	sampleInterval = 10 * time.Second
	maxSamples     = 361
	historyWindow  = (maxSamples - 1) * sampleInterval
)

// sample is what the page shows of one moment, in 88 bytes.
type sample struct {
	at      int64 // CLOCK_BOOTTIME, ns
	holds   int
	waiters int
	wait    time.Duration // see p99, of the time since the sample before
	losses  [locktable.LossReasons]uint64
}

// history has the newest samples in a ring of 31,768 bytes, and the waits of two of them in 400.
type history struct {
	mu    sync.Mutex // guards what follows
	ring  [maxSamples]sample
	added int // samples since the start

	waits       locktable.Histogram // of the newest sample
	waitsBefore locktable.Histogram // of the one before it
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

// sampleOf returns a sample without its wait, and the waits since the start.
func sampleOf(s *sidecar.Stats) (sample, locktable.Histogram) {
	all, _ := sum(s)
	return sample{at: s.Now, holds: s.Holds, waiters: s.Waiters, losses: all.Losses}, all.Wait
}

func (h *history) add(s sample, waits locktable.Histogram) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.wait = p99(&h.waits, &waits)
	h.waitsBefore, h.waits = h.waits, waits
	h.ring[h.added%maxSamples] = s
	h.added++
}

// until returns the samples, oldest first, and after them one of now. Its wait is that since the
// sample before the newest one: the newest one may have been taken a moment ago.
func (h *history) until(now sample, waits locktable.Histogram) []sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	now.wait = p99(&h.waitsBefore, &waits)
	samples := make([]sample, 0, maxSamples+1)
	for i := max(0, h.added-maxSamples); i < h.added; i++ {
		samples = append(samples, h.ring[i%maxSamples])
	}
	return append(samples, now)
}

// p99 returns how long 99 of 100 acquires had waited at most, of those that were granted between two
// moments. It is the bound of a bucket, and the highest bound if the bucket has none. 0: none was granted.
func p99(before, after *locktable.Histogram) time.Duration {
	granted := after.Count() - before.Count()
	if granted == 0 {
		return 0
	}
	bounds := locktable.ShortTimes.Bounds()
	within := uint64(0)
	for i, bound := range bounds {
		if within += after.Counts[i] - before.Counts[i]; within >= granted-granted/100 {
			return bound
		}
	}
	return bounds[len(bounds)-1]
}

// lossesWithin returns the losses, by reason, of a time before the last sample: at least those, if a sample
// at its begin is missing. startedAt is when the daemon was started. All losses of a daemon that is younger
// than the time are in it, also those before the first sample.
func lossesWithin(window time.Duration, samples []sample, startedAt int64) (lost [locktable.LossReasons]uint64) {
	last := &samples[len(samples)-1]
	since := last.at - int64(window)
	var before [locktable.LossReasons]uint64
	if startedAt < since {
		before = samples[0].losses
		for i := 1; i < len(samples) && samples[i].at <= since; i++ {
			before = samples[i].losses
		}
	}
	for i := range lost {
		lost[i] = last.losses[i] - before[i]
	}
	return lost
}

package main

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
)

// A record is what a worker remembers of one pair: points of CLOCK_MONOTONIC in
// nanoseconds. Zero: the worker was stopped before it came to that.
type record struct {
	asked   int64 // before acquire
	granted int64 // after it returned
	leaving int64 // before release
	done    int64 // after it returned
}

// at is which process made a record, and on which host.
type at struct{ process, host int }

type sample struct {
	record
	at
}

// A window is the time that counts.
type window struct {
	from, to int64 // of CLOCK_MONOTONIC
	stopped  int64 // when the workers were told to stop, after which they end in whatever they do
}

func (w window) seconds() float64 { return float64(w.to-w.from) / 1e9 }

func (w window) has(t int64) bool { return t >= w.from && t < w.to }

func readRecords(path string) ([]record, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	const size = 4 * 8
	if len(raw)%size != 0 {
		return nil, fmt.Errorf("%s: %d bytes are not whole records of %d", path, len(raw), size)
	}
	records := make([]record, len(raw)/size)
	for i := range records {
		b := raw[i*size:]
		r := record{
			asked:   int64(binary.LittleEndian.Uint64(b)),
			granted: int64(binary.LittleEndian.Uint64(b[8:])),
			leaving: int64(binary.LittleEndian.Uint64(b[16:])),
			done:    int64(binary.LittleEndian.Uint64(b[24:])),
		}
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("%s: record %d: %w", path, i, err)
		}
		records[i] = r
	}
	return records, nil
}

// check refuses what no worker can have seen.
func (r record) check() error {
	last, open := int64(1), false
	for _, t := range []int64{r.asked, r.granted, r.leaving, r.done} {
		if t == 0 {
			open = true
		} else if open || t < last {
			return fmt.Errorf("asked %d, granted %d, leaving %d, done %d: not in this order", r.asked, r.granted, r.leaving, r.done)
		} else {
			last = t
		}
	}
	if r.asked == 0 {
		return fmt.Errorf("it was never asked for")
	}
	return nil
}

// pairFigures are what the records of a window say, of however many locks.
func pairFigures(samples []sample, w window, workers int) (Figures, []Quantile) {
	var waits, pairs, releases []float64
	granted := 0
	for _, s := range samples {
		if s.granted != 0 && w.has(s.granted) {
			granted++
			if s.done != 0 {
				pairs = append(pairs, ms(s.done-s.asked))
				releases = append(releases, ms(s.done-s.leaving))
			}
		}
		if d, ok := s.waited(w); ok {
			waits = append(waits, ms(d))
		}
	}
	slices.Sort(waits)
	slices.Sort(pairs)
	slices.Sort(releases)
	f := Figures{PairsPerSecond: float64(granted) / w.seconds()}
	if granted > 0 {
		f[PairMS] = float64(workers) / f[PairsPerSecond] * 1e3
	}
	if len(pairs) > 0 {
		f[PairP50MS], f[PairP99MS], f[PairMaxMS] = quantile(pairs, .5), quantile(pairs, .99), quantile(pairs, 1)
		f[ReleaseP50MS], f[ReleaseP99MS] = quantile(releases, .5), quantile(releases, .99)
	}
	if len(waits) > 0 {
		sum := 0.0
		for _, d := range waits {
			sum += d
		}
		f[WaitMeanMS] = sum / float64(len(waits))
		f[WaitP50MS], f[WaitP99MS], f[WaitMaxMS] = quantile(waits, .5), quantile(waits, .99), quantile(waits, 1)
	}
	return f, quantiles(waits)
}

// waited is how long the acquire took, if some of it was within the window: the
// whole of it, but for what was after the window. A wait that had no end is worth
// what was seen of it, so that who starves shows.
func (r record) waited(w window) (ns int64, ok bool) {
	end := r.granted
	if end == 0 || end > w.to {
		end = w.to
	}
	return end - r.asked, r.asked < w.to && end > w.from
}

// oneLockFigures are what the records of a window say if all were about one lock, or
// each about one of so many permits.
func oneLockFigures(samples []sample, w window, processes, permits int) Figures {
	held := slices.DeleteFunc(slices.Clone(samples), func(s sample) bool { return s.granted == 0 })
	slices.SortFunc(held, func(a, b sample) int { return cmp.Compare(a.granted, b.granted) })

	grants := make([]int, processes)
	var owners, hosts, overlaps int
	var before *sample
	var having []int64 // when those who have it leave it
	for i := range held {
		s := &held[i]
		having = slices.DeleteFunc(having, func(left int64) bool { return left <= s.granted })
		// Who is stopped ends with the lock in hand, and the next may have it.
		if len(having) >= permits && s.granted < w.stopped {
			overlaps++
		}
		if s.leaving == 0 {
			having = append(having, w.stopped)
		} else {
			having = append(having, s.leaving)
		}
		if !w.has(s.granted) {
			continue
		}
		grants[s.process]++
		if before != nil && before.process != s.process {
			owners++
		}
		if before != nil && before.host != s.host {
			hosts++
		}
		before = s
	}
	f := Figures{
		OwnerChangesPerSecond: float64(owners) / w.seconds(),
		HostChangesPerSecond:  float64(hosts) / w.seconds(),
		GrantsMin:             float64(slices.Min(grants)),
		GrantsMax:             float64(slices.Max(grants)),
		Violations:            float64(overlaps),
	}
	if f[GrantsMin] > 0 {
		f[Fairness] = f[GrantsMax] / f[GrantsMin]
	}
	return f
}

// permitFigures are what the figures of a run say of a semaphore.
func (s Scenario) permitFigures(f Figures) Figures {
	ideal := float64(s.Of) / (float64(s.WorkUS) / 1e6)
	more := Figures{IdealShare: f[PairsPerSecond] / ideal}
	if f[WaitMeanMS] > 0 {
		more[WaitMaxOfMean] = f[WaitMaxMS] / f[WaitMeanMS]
	}
	return more
}

func ms(ns int64) float64 { return float64(ns) / 1e6 }

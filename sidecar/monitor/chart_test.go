package monitor

import (
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

func TestHistoryKeepsTheNewestHour(t *testing.T) {
	var h history
	for i := range 3 * maxSamples {
		h.add(sample{at: int64(i), waiters: i}, locktable.Histogram{})
	}
	got := h.until(sample{waiters: -1}, locktable.Histogram{})
	if len(got) != maxSamples+1 || got[0].waiters != 2*maxSamples || got[maxSamples-1].waiters != 3*maxSamples-1 || got[maxSamples].waiters != -1 {
		t.Errorf("%d samples, from %d to %d", len(got), got[0].waiters, got[len(got)-1].waiters)
	}
	if historyWindow != time.Hour {
		t.Errorf("the samples cover %v", historyWindow)
	}
}

// However long the daemon runs, its history has the bytes that the comments of the types have.
func TestHistoryDoesNotGrow(t *testing.T) {
	var h history
	if each, ring, all := unsafe.Sizeof(sample{}), unsafe.Sizeof(h.ring), unsafe.Sizeof(h); each != 88 || ring != 31_768 || all > 32<<10 {
		t.Errorf("a sample has %d bytes, the ring %d, the history %d", each, ring, all)
	}
	if n := testing.AllocsPerRun(3*maxSamples, func() { h.add(sample{}, locktable.Histogram{}) }); n != 0 {
		t.Errorf("a sample allocates %v times", n)
	}
}

// waits returns a histogram of waits: one that was granted before, and these.
func waits(all ...time.Duration) (h locktable.Histogram) {
	for _, d := range all {
		h.Observe(locktable.ShortTimes, d)
	}
	return h
}

func TestP99IsThatOfTheWaitsSinceTheSampleBefore(t *testing.T) {
	var h history
	all := waits(time.Minute)
	h.add(sample{}, all)
	for range 99 {
		all.Observe(locktable.ShortTimes, 2*time.Millisecond)
	}
	all.Observe(locktable.ShortTimes, 20*time.Minute)
	h.add(sample{}, all)
	h.add(sample{}, all)
	all.Observe(locktable.ShortTimes, 20*time.Minute)
	all.Observe(locktable.ShortTimes, time.Hour)
	h.add(sample{}, all)
	var got []time.Duration
	for _, s := range h.until(sample{}, all) {
		got = append(got, s.wait)
	}
	want := []time.Duration{time.Minute, 2500 * time.Microsecond, 0, 30 * time.Minute, 30 * time.Minute}
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("sample %d: %v, want %v", i, got[i], want[i])
		}
	}
	// A sample was taken just now, and the page still has the p99 of the interval before it.
	h.add(sample{}, all)
	if now := h.until(sample{}, all); now[len(now)-1].wait != 0 {
		t.Errorf("after an interval without a grant: %v", now[len(now)-1].wait)
	}
}

func TestChartHasTheNewestSampleAtTheRightAndTheLargestAtTheTop(t *testing.T) {
	now := int64(3 * time.Hour)
	samples := []sample{
		{at: now - int64(2*time.Hour), waiters: 1}, // it is left of the picture
		{at: now - int64(30*time.Minute), holds: 7, waiters: 4, wait: 2500 * time.Microsecond},
		{at: now, holds: 7, waiters: 2},
	}
	samples[1].losses, samples[2].losses = [locktable.LossReasons]uint64{1, 2}, [locktable.LossReasons]uint64{1, 3}
	c := charts(samples)
	if c[1].Points != "0.0,90.0 300.0,0.0 600.0,60.0" || c[1].Area != "0.0,120 "+c[1].Points+" 600,120" {
		t.Errorf("%q, %q", c[1].Points, c[1].Area)
	}
	for i, want := range []string{
		"Holds, in the last 60 minutes: now 7, at most 7", "Waiters, in the last 60 minutes: now 2, at most 4",
		"p99 of waits, each 10 s, in the last 60 minutes: now none, at most 2.5ms", "Losses, each 10 s, in the last 60 minutes: now 1, at most 3",
	} {
		if c[i].Text != want {
			t.Errorf("%q, want %q", c[i].Text, want)
		}
	}
	if c := charts([]sample{{at: now}}); c[1].Points != "600.0,120.0" {
		t.Errorf("nothing was ever waited for: %q", c[1].Points)
	}
}

// A daemon that does nothing sends few points, and one that does much sends all.
func TestChartLeavesOutThePointsOfAStraightLine(t *testing.T) {
	samples := make([]sample, maxSamples)
	for i := range samples {
		samples[i] = sample{at: int64(time.Duration(i) * sampleInterval), holds: i % 2, waiters: i / 180}
	}
	c := charts(samples)
	if n := len(strings.Fields(c[0].Points)); n != maxSamples {
		t.Errorf("%d points of a line with %d corners", n, maxSamples)
	}
	if want := "0.0,120.0 298.3,120.0 300.0,60.0 598.3,60.0 600.0,0.0"; c[1].Points != want {
		t.Errorf("%q, want %q", c[1].Points, want)
	}
}

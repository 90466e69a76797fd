package monitor

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
)

// chart is one picture of the last minutes: an area over time, drawn in a box of chartWidth by
// chartHeight. The newest sample is at the right.
type chart struct {
	Title, Unit string
	Points      string // of the line, as SVG has them
	Area        string // the same, closed at the bottom
	Max, Now    string // the largest value, at the top, and the newest one
	Text        string // the same in a sentence
	Minutes     int    // the time at the left edge, before now
	Grid        []int  // heights of lines
}

const (
	chartWidth  = 600
	chartHeight = 120
)

func charts(samples []sample) []chart {
	return []chart{
		newChart("Waiters", "", samples, func(s *sample) float64 { return float64(s.waiters) }, func(v float64) string { return strconv.Itoa(int(v)) }),
		newChart("Oldest waiter", "waits for", samples, func(s *sample) float64 { return s.oldest.Seconds() },
			func(v float64) string { return display.Duration(time.Duration(v * float64(time.Second))) }),
	}
}

func newChart(title, unit string, samples []sample, value func(*sample) float64, text func(float64) string) chart {
	const window = (maxSamples - 1) * sampleInterval
	now := samples[len(samples)-1].at
	top := 0.0
	for i := range samples {
		top = max(top, value(&samples[i]))
	}
	var points strings.Builder
	left := 0.0
	for i := range samples {
		s := &samples[i]
		x := chartWidth * max(0, 1-float64(now-s.at)/float64(window))
		y := float64(chartHeight)
		if top > 0 {
			y -= chartHeight * value(s) / top
		}
		if i == 0 {
			left = x
		} else {
			points.WriteByte(' ')
		}
		fmt.Fprintf(&points, "%.1f,%.1f", x, y)
	}
	newest := value(&samples[len(samples)-1])
	return chart{
		Title: title, Unit: unit, Points: points.String(),
		Area: fmt.Sprintf("%.1f,%d %s %d,%d", left, chartHeight, points.String(), chartWidth, chartHeight),
		Max:  text(top), Now: text(newest), Minutes: int(window / time.Minute),
		Text: fmt.Sprintf("%s in the last %d minutes: now %s, at most %s", title, int(window/time.Minute), text(newest), text(top)),
		Grid: []int{0, chartHeight / 2, chartHeight},
	}
}

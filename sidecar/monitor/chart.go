package monitor

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// chart is one picture of the last hour: an area over time, drawn in a box of chartWidth by
// chartHeight. The newest sample is at the right.
//
// The libraries in Go that draw SVG put colours into style attributes. The policy of the page forbids
// those, and they do not follow a dark setting. Those in JavaScript draw nothing without it.
type chart struct {
	Title    string
	Points   string // of the line, as SVG has them
	Area     string // the same, closed at the bottom
	Max, Now string // the largest value, at the top, and the newest one
	Text     string // the same in a sentence
	Minutes  int    // the time at the left edge, before now
	Grid     []int  // heights of lines
}

const (
	chartWidth  = 600
	chartHeight = 120
)

func charts(samples []sample) []chart {
	holds, waiters, waits, losses := make([]float64, len(samples)), make([]float64, len(samples)), make([]float64, len(samples)), make([]float64, len(samples))
	before := uint64(0)
	for i := range samples {
		s := &samples[i]
		holds[i], waiters[i], waits[i] = float64(s.holds), float64(s.waiters), float64(s.wait)
		total := uint64(0)
		for _, n := range s.losses {
			total += n
		}
		if i > 0 {
			losses[i] = float64(total - before)
		}
		before = total
	}
	number := func(v float64) string { return strconv.Itoa(int(v)) }
	return []chart{
		newChart("Holds", samples, holds, number),
		newChart("Waiters", samples, waiters, number),
		newChart(fmt.Sprintf("p99 of waits, each %d s", sampleInterval/time.Second), samples, waits, func(v float64) string {
			if v == 0 {
				return "none"
			}
			return time.Duration(v).String()
		}),
		newChart(fmt.Sprintf("Losses, each %d s", sampleInterval/time.Second), samples, losses, number),
	}
}

// newChart returns the picture of the values of samples.
func newChart(title string, samples []sample, values []float64, text func(float64) string) chart {
	now := samples[len(samples)-1].at
	top := 0.0
	for _, v := range values {
		top = max(top, v)
	}
	var points strings.Builder
	left := 0.0
	for i, v := range values {
		if i > 0 && i < len(values)-1 && values[i-1] == v && values[i+1] == v {
			continue // the line is straight here
		}
		x := chartWidth * max(0, 1-float64(now-samples[i].at)/float64(historyWindow))
		y := float64(chartHeight)
		if top > 0 {
			y -= chartHeight * v / top
		}
		if i == 0 {
			left = x
		} else {
			points.WriteByte(' ')
		}
		fmt.Fprintf(&points, "%.1f,%.1f", x, y)
	}
	newest := text(values[len(values)-1])
	minutes := int(historyWindow / time.Minute)
	return chart{
		Title: title, Points: points.String(),
		Area: fmt.Sprintf("%.1f,%d %s %d,%d", left, chartHeight, points.String(), chartWidth, chartHeight),
		Max:  text(top), Now: newest, Minutes: minutes,
		Text: fmt.Sprintf("%s, in the last %d minutes: now %s, at most %s", title, minutes, newest, text(top)),
		Grid: []int{0, chartHeight / 2, chartHeight},
	}
}

package main

import (
	"math"
	"slices"
)

// quantile is the value that the share q of all is not above; sorted must be, and
// not be empty.
func quantile(sorted []float64, q float64) float64 {
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// median is the middle one, or the mean of the two in the middle. It sorts.
func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	if n%2 == 1 {
		return values[n/2]
	}
	return (values[n/2-1] + values[n/2]) / 2
}

// plotted are the quantiles of a distribution that the results keep: fine at the
// long end, where locks differ.
var plotted = []float64{0, .01, .02, .05, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .98, .99, .995, .998, .999, .9995, .9999, 1}

func quantiles(sorted []float64) []Quantile {
	if len(sorted) == 0 {
		return nil
	}
	points := make([]Quantile, len(plotted))
	for i, q := range plotted {
		points[i] = Quantile{Q: q, MS: quantile(sorted, q)}
	}
	return points
}

// summarize fills in what a contender's runs have in common.
func (c *ContenderResult) summarize() {
	values := map[Metric][]float64{}
	for _, r := range c.Runs {
		for m, v := range r.Figures {
			values[m] = append(values[m], v)
		}
	}
	c.Median, c.Min, c.Max = Figures{}, Figures{}, Figures{}
	for m, v := range values {
		c.Median[m], c.Min[m], c.Max[m] = median(v), slices.Min(v), slices.Max(v)
	}
}

package main

import "testing"

func TestQuantilesAreValuesThatWereSeen(t *testing.T) {
	sorted := []float64{10, 20, 30, 40}
	for q, want := range map[float64]float64{0: 10, .25: 10, .26: 20, .5: 20, .75: 30, .99: 40, 1: 40} {
		if got := quantile(sorted, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if got := quantile([]float64{7}, .01); got != 7 {
		t.Errorf("of one value: %v", got)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want float64
	}{
		{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3},
	} {
		if got := median(c.of); got != c.want {
			t.Errorf("median of %v is %v", c.of, got)
		}
	}
}

func TestFailedRunsAreInNoMedian(t *testing.T) {
	c := ContenderResult{Runs: []Run{
		{Figures: Figures{PairsPerSecond: 10}},
		{Error: "it died"},
		{Figures: Figures{PairsPerSecond: 30, Errors: 1}},
	}}
	c.summarize()
	expect(t, c.Median, Figures{PairsPerSecond: 20, Errors: 1})
	expect(t, c.Min, Figures{PairsPerSecond: 10})
	expect(t, c.Max, Figures{PairsPerSecond: 30})
}

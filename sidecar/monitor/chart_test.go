package monitor

import (
	"strings"
	"testing"
	"time"
)

func TestHistoryKeepsTheNewestTenMinutes(t *testing.T) {
	var h history
	for i := range 3 * maxSamples {
		h.add(sample{at: int64(i), waiters: i})
	}
	got := h.until(sample{waiters: -1})
	if len(got) != maxSamples+1 || got[0].waiters != 2*maxSamples || got[maxSamples].waiters != -1 {
		t.Errorf("%d samples, from %d to %d", len(got), got[0].waiters, got[len(got)-1].waiters)
	}
}

func TestChartHasTheNewestSampleAtTheRightAndTheLargestAtTheTop(t *testing.T) {
	now := int64(time.Hour)
	samples := []sample{
		{at: now - int64(20*time.Minute), waiters: 1}, // it is left of the picture
		{at: now - int64(5*time.Minute), waiters: 4, oldest: 90 * time.Second},
		{at: now, waiters: 2},
	}
	c := charts(samples)
	if c[0].Points != "0.0,90.0 300.0,0.0 600.0,60.0" || c[0].Area != "0.0,120 "+c[0].Points+" 600,120" {
		t.Errorf("%q, %q", c[0].Points, c[0].Area)
	}
	if c[0].Max != "4" || c[0].Now != "2" || c[1].Max != "1m30s" || c[1].Now != "0ms" || !strings.Contains(c[0].Text, "now 2, at most 4") {
		t.Errorf("%+v", c)
	}
	if c := charts([]sample{{at: now}}); c[0].Points != "600.0,120.0" {
		t.Errorf("nothing was ever waited for: %q", c[0].Points)
	}
}

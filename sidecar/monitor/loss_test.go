package monitor

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// A daemon that was started a minute ago has lost all that it lost in the last ten minutes, also
// before the first sample.
func TestRecentLossesAreThoseOfTheWindow(t *testing.T) {
	at := func(d time.Duration, lost uint64) sample {
		s := sample{at: int64(3*time.Hour + d)}
		s.losses[0] = lost
		return s
	}
	for _, tt := range []struct {
		samples        []sample
		startedAt      time.Duration
		recent, hourly uint64
	}{
		{samples: []sample{at(0, 3)}, startedAt: 3*time.Hour - time.Minute, recent: 3, hourly: 3},
		{samples: []sample{at(0, 3), at(time.Minute, 5)}, startedAt: 3*time.Hour - time.Minute, recent: 5, hourly: 5},
		{samples: []sample{at(0, 3), at(10*time.Minute, 5)}, recent: 2, hourly: 2},
		{samples: []sample{at(0, 3), at(40*time.Minute, 5), at(time.Hour, 9)}, recent: 4, hourly: 6},
		{samples: []sample{at(0, 3), at(50*time.Minute, 5), at(time.Hour, 9)}, recent: 4, hourly: 6},
		{samples: []sample{at(0, 3)}, recent: 0, hourly: 0},
	} {
		rows := lossRows(tt.samples, int64(tt.startedAt))
		want := lossRow{Reason: string(locktable.LossReason(0)), Recent: tt.recent, Hour: tt.hourly, Total: tt.samples[len(tt.samples)-1].losses[0]}
		if len(rows) != 1 {
			t.Fatalf("%+v", rows)
		}
		if want.Meaning = rows[0].Meaning; rows[0] != want {
			t.Errorf("%+v, want %+v", rows[0], want)
		}
	}
}

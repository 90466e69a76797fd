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
		s := sample{at: int64(time.Hour + d)}
		s.losses[0] = lost
		return s
	}
	for _, tt := range []struct {
		samples   []sample
		startedAt time.Duration
		recent    uint64
	}{
		{[]sample{at(0, 3)}, time.Hour - time.Minute, 3},
		{[]sample{at(0, 3), at(time.Minute, 5)}, time.Hour - time.Minute, 5},
		{[]sample{at(0, 3), at(10*time.Minute, 5)}, 0, 2},
		{[]sample{at(0, 3)}, 0, 0},
	} {
		rows := lossRows(tt.samples, int64(tt.startedAt))
		if len(rows) != 1 || rows[0].Reason != string(locktable.LossReason(0)) || rows[0].Recent != tt.recent || rows[0].Total != tt.samples[len(tt.samples)-1].losses[0] {
			t.Errorf("%+v, want %d", rows, tt.recent)
		}
	}
}

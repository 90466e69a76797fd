package sidecar

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestLossesCountForAnHour(t *testing.T) {
	var w lossWindow
	const minute = int64(time.Minute)
	begin := 1000 * minute
	w.add(begin, protocol.Expired, 1)
	w.add(begin+minute-1, protocol.Expired, 1)
	w.add(begin+30*minute, protocol.Stolen, 1)
	w.add(begin+59*minute, protocol.Expired, 1)
	for _, tt := range []struct {
		at   int64
		want string
	}{
		{begin + 59*minute, "[{expired 3} {stolen 1}]"},
		{begin + 60*minute, "[{expired 1} {stolen 1}]"},
		{begin + 90*minute, "[{expired 1}]"},
		{begin + 119*minute, "[]"},
	} {
		if got := fmt.Sprint(w.rows(tt.at)); got != tt.want {
			t.Errorf("after %v: %s, want %s", time.Duration(tt.at-begin), got, tt.want)
		}
	}
	w.add(begin+60*minute, protocol.Expired, 1) // in the place of the first minute
	if got := fmt.Sprint(w.rows(begin + 60*minute)); got != "[{expired 2} {stolen 1}]" {
		t.Errorf("after an hour and a loss: %s", got)
	}
}

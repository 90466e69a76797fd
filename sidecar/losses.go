package sidecar

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// lossWindow counts the holds that were lost in the last hour, by minute and reason.
type lossWindow [60]lossMinute

type lossMinute struct {
	minute int64                         // since the host was started
	counts [locktable.LossReasons]uint32 // by the index of locktable.LossReason
}

// add counts n losses for a reason.
func (w *lossWindow) add(now int64, why protocol.Reason, n uint32) {
	minute := now / int64(time.Minute)
	m := &w[minute%int64(len(w))]
	if m.minute != minute {
		*m = lossMinute{minute: minute}
	}
	for i := range m.counts {
		if locktable.LossReason(i) == why {
			m.counts[i] += n
		}
	}
}

// rows returns the reasons for which holds were lost.
func (w *lossWindow) rows(now int64) (rows []protocol.LossRow) {
	first := now/int64(time.Minute) - int64(len(w)) + 1
	for i := range locktable.LossReasons {
		row := protocol.LossRow{Reason: locktable.LossReason(i)}
		for j := range w {
			if w[j].minute >= first {
				row.Count += w[j].counts[i]
			}
		}
		if row.Count > 0 {
			rows = append(rows, row)
		}
	}
	return rows
}

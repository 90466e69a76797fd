package pipeline

import (
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// note notes operations that are being queued, and reports whether a WAIT is to follow.
func (d *durability) note(ops []redisop.Op) (isOwed bool) {
	for i := range ops {
		op := &ops[i]
		if !wire.IsCovered(op) {
			continue
		}
		isOwed = true
		if op.Kind != redisop.Drop && (d.lease == 0 || op.LeaseMS < d.lease) {
			d.lease = op.LeaseMS
		}
	}
	d.owed = d.owed || isOwed
	return isOwed
}

// notSynced makes the results that say what Redis has into NotSynced.
func notSynced(results []redisop.Result, unawaited []int, why string) {
	for i := range results {
		r := &results[i]
		if len(unawaited) > 0 && unawaited[0] == i {
			unawaited = unawaited[1:]
			continue
		}
		r.Unsynced = r.Kind == redisop.Take && r.Outcome == redisop.HeldByOther
		if isWrite := r.Kind == redisop.Take || r.Kind == redisop.Renew || r.Kind == redisop.Drop; isWrite && r.Outcome == redisop.Done {
			r.Outcome, r.Msg = redisop.NotSynced, why
		}
	}
}

// withhold notes results from an index on: those of ops, which a WAIT follows if isOwed.
func (d *durability) withhold(ops []redisop.Op, from int, isOwed bool) {
	d.withholds = d.withholds || isOwed
	for i := range ops {
		if ops[i].Has(redisop.CanWait) {
			d.unawaited = append(d.unawaited, from+i)
		}
	}
}

package store

import (
	"fmt"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
)

// next returns the next n results, in their order.
func (r *recorder) next(n int) (all []redisop.Result) {
	r.t.Helper()
	for len(all) < n {
		all = append(all, recv(r.t, r.results, "results")...)
	}
	return all
}

// overtakes checks that some operations get their results among the first, which are so many,
// although a crowd was queued before them.
func (r *recorder) overtakes(t *testing.T, first int, crowd []redisop.Op, late ...redisop.Op) {
	t.Helper()
	r.Do(append(crowd, late...))
	all := r.next(len(crowd) + len(late))
	for _, op := range late {
		i := slices.IndexFunc(all, func(res redisop.Result) bool { return res.Name == op.Name })
		if i >= first {
			t.Errorf("of %d results, %d came before that of %q", len(all), i, op.Name)
		}
	}
}

func ofUser(uid int64, op redisop.Op) redisop.Op { op.User = uid; return op }

func thatCanWait(op redisop.Op) redisop.Op { op.Flags |= redisop.CanWait; return op }

func TestRenewalsAreNotStarved(t *testing.T) {
	r := connected(t, startRedis(t).url())
	var takes []redisop.Op
	for i := range 20 * pipeline.DefaultBatches.Others {
		takes = append(takes, takeOp(fmt.Sprint(i), 1))
	}
	r.overtakes(t, pipeline.DefaultBatches.Others, takes, renewOp("held", 1))
}

// Shows docs/guarantees.md: Holds more than Redis can renew.
// Shows docs/renewals.md: Scripts and commands.
func TestRenewalsOfOneUserDoNotDelayThoseOfAnother(t *testing.T) {
	r := connected(t, startRedis(t).url())
	var renewals []redisop.Op
	for i := range 20 * pipeline.DefaultBatches.Renewals {
		op := ofUser(1001, renewOp(fmt.Sprint(i), 1))
		if i%2 == 0 {
			op.Kind, op.LeaseMS = redisop.Check, 0
		}
		renewals = append(renewals, op)
	}
	r.overtakes(t, pipeline.DefaultBatches.Renewals, renewals, ofUser(1002, renewOp("held", 1)))
}

// dropsThatCanWait are those of many locks of one user that end at once.
func dropsThatCanWait() (drops []redisop.Op) {
	for i := range 40 * pipeline.DefaultBatches.Deletes {
		drops = append(drops, thatCanWait(ofUser(1001, dropOp(fmt.Sprint(i), 1))))
	}
	return drops
}

// They are not counted either: otherwise the loop would do no requests meanwhile.
//
// Shows docs/guarantees.md: Holds more than Redis can renew.
func TestDropsThatCanWaitDelayNothingElse(t *testing.T) {
	r := connected(t, startRedis(t).url())
	r.overtakes(t, pipeline.DefaultBatches.Deletes+1, dropsThatCanWait(), thatCanWait(ofUser(1002, dropOp("held", 1))), takeOp("another", 1))
	drops := dropsThatCanWait()
	r.Do(drops)
	r.Unsent(func(_ redisop.Shard, n int) { t.Errorf("%d operations count as waiting", n) })
	r.next(len(drops))
}

// A Take never overtakes the Drop of its lock: it would find the lock taken, and strict order would
// be lost. But it does not wait for the Drops of other locks, either.
//
// Shows docs/guarantees.md: Holds more than Redis can renew.
func TestTakeTakesTheDropOfItsLockAlong(t *testing.T) {
	for _, inBacklog := range []bool{true, false} {
		r := connected(t, startRedis(t).url())
		r.one(takeOp("held", 1))
		drop, take := thatCanWait(ofUser(1001, dropOp("held", 1))), ofUser(1001, takeOp("held", 2))
		take.Flags |= redisop.AfterPendingDrop
		crowd := dropsThatCanWait()
		ops := append(slices.Clone(crowd), take) // at one time, or how many are sent before would depend on speed
		if inBacklog {
			ops = slices.Insert(ops, len(crowd)/2, drop)
		} else {
			r.Do([]redisop.Op{drop})
		}
		r.Do(ops)
		var kinds []redisop.OpKind
		for i, res := range r.next(len(crowd) + 2) {
			if res.Name != "held" {
				continue
			}
			if kinds = append(kinds, res.Kind); res.Outcome != redisop.Done || i > len(crowd)/4 {
				t.Errorf("%+v came after %d results", res, i)
			}
		}
		if want := []redisop.OpKind{redisop.Drop, redisop.Take}; !slices.Equal(kinds, want) {
			t.Errorf("results of kinds %v, want %v", kinds, want)
		}
	}
}

package locktable

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A daemon runs for months: whatever its clients did, a table that has nothing to do any more has
// forgotten it.
func TestTableAtRestRemembersNothing(t *testing.T) {
	now, token := int64(time.Hour), uint64(0)
	tb := New(Config{}, now)
	tb.Up(now, 0, false, false)
	settle := func() {
		for effects := tb.Effects(); len(effects) > 0; effects = tb.Effects() {
			var ops []redisop.Op
			for _, e := range effects {
				if e.Kind == Redis {
					ops = append(ops, e.Op)
				}
			}
			for _, op := range ops {
				token += uint64(op.Reserve)
				tb.Result(now, redisop.Result{Kind: op.Kind, Name: op.Name, Sent: now, Token: token})
			}
		}
	}
	pass := func(d time.Duration) {
		for end := now + int64(d); ; {
			at, ok := tb.Next()
			if tb.Busy() {
				at, ok = now, true
			}
			if !ok || at > end {
				now = end
				return
			}
			now = max(now, at)
			tb.Advance(now)
			tb.Work(now)
			settle()
		}
	}
	id := uint64(1)
	for s, uid := range []int64{1000, 1001, 0} {
		session := SessionID(s + 1)
		tb.Open(now, session, Peer{UID: uid})
		for i, req := range []protocol.Acquire{
			{}, {KeepMS: 10_000}, {KeepMS: 10_000, LeaseMS: 60_000}, {LeaseMS: 1_000}, {MaxHoldMS: 500}, {CrashDelayMS: 5_000}, {Owner: 7, Fair: true},
		} {
			for _, name := range []string{"shared", fmt.Sprint(s, i)} {
				id++
				req.ID, req.Name, req.WaitMS = id, name, 1_000
				tb.Acquire(now, session, req)
				id++
				tb.Confirm(now, session, protocol.Confirm{ID: id, Name: name})
				settle()
			}
		}
	}
	pass(2 * time.Second)
	for hold := range uint64(100) {
		tb.Release(now, 1, protocol.Release{Hold: hold})
		settle()
	}
	for s := range SessionID(3) {
		tb.Close(now, s+1)
		settle()
	}
	pass(time.Hour)
	for what, n := range map[string]int{
		"holds": len(tb.byHold), "keeps": len(tb.keeps), "locks": len(tb.byName) + len(tb.locks),
		"sessions": len(tb.sessions), "users": len(tb.users), "requests that wait": tb.waiting, "cells": tb.cells,
	} {
		if n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	if at, ok := tb.Next(); ok || tb.Busy() {
		t.Errorf("there is something to do at %v", time.Duration(at))
	}
}

// A predecessor does not leave how many programs were subscribed. Until Redis has counted them, the lock
// is treated as one that a program may wait for.
func TestSubscribersOfARestoredLockAreNotKnown(t *testing.T) {
	tb := New(Config{}, int64(time.Hour))
	tb.Restore(int64(time.Hour), &Snapshot{LastHoldID: 7, Locks: []RestoredLock{{Slot: 1, LockRecord: LockRecord{Name: "a", MaxHoldID: 7}}}})
	if l := tb.byName["a"]; l == nil || !l.memory.NeedsCount() {
		t.Errorf("the subscribers of a restored lock are known: %+v", l)
	}
}

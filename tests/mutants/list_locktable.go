package main

// What the lock table promises. Rules that a mutant between a correct table and the
// simulation can break are not here: TestEachMutantIsDetected of internal/sim breaks them in
// ordinary go test.

var simulation = test("internal/sim", "TestSimulation")

func tableTest(name string) check { return test("sidecar/locktable", name) }

var locktableMutants = []mutant{
	// Exclusion.
	{
		rule: "a claim whose expiry an operation in flight may change is not that of a keep",
		in:   "sidecar/locktable/claim (*Claim).Send",
		find: "c.setUse(unusedDoubted)",
		put:  "c.setUse(unused)",
		by:   tableTest("TestClaimIsNotThatOfAKeepWhileATakeMayShortenIt"),
	},
	{
		rule: "a lock has one local holder",
		in:   "sidecar/locktable Mode.admits",
		find: "m != Exclusive && next != Exclusive",
		put:  "true",
		by:   simulation,
	},
	{
		rule: `a lock that is being dropped is not granted`,
		in:   "sidecar/locktable (*Table).mayGrant",
		find: "return false",
		put:  "return c.State().IsOurs()",
		by:   simulation,
	},
	{
		rule: "the memory of a lock is not used again while the journal has its record",
		in:   "sidecar/locktable (*Table).forget",
		find: "if !l.isDirty { // otherwise writeJournal has work with it",
		put:  "{ // otherwise writeJournal has work with it",
		by:   test("sidecar/locktable", "TestMemoryOfAForgottenLockIsUsedAgain"),
	},
	{
		rule: "the memory of a lock is used again when the journal has nothing of it",
		in:   "sidecar/locktable (*Table).writeJournal",
		find: "if l.isForgotten() { // so",
		put:  "if l.isForgotten() && false { // so",
		by:   test("sidecar/locktable", "TestMemoryOfAForgottenLockIsUsedAgain"),
	},
	{
		rule: "an owner of one session is not the owner of the same number of another",
		in:   "sidecar/locktable (*hold).isOwnedBy",
		find: "h != nil && owner != 0 && h.owner == owner && h.session == s && !h.isOrphan()",
		put:  "h != nil && owner != 0 && h.owner == owner && !h.isOrphan()",
		by:   simulation,
	},
	{
		rule: "an owner without a number does not re-enter",
		in:   "sidecar/locktable (*hold).isOwnedBy",
		find: "h != nil && owner != 0 && h.owner == owner",
		put:  "h != nil && h.owner == owner",
		by:   simulation,
	},
	{
		rule: "a hold is not released by another client",
		in:   "sidecar/locktable (*Table).Release",
		find: "if h = t.byHold[req.Hold]; h == nil || h.isOrphan() || h.session != s {",
		put:  "if h = t.byHold[req.Hold]; h == nil || h.isOrphan() {",
		by:   simulation,
	},
	{
		rule: "a session that is full when its turn comes is refused",
		in:   "sidecar/locktable (*Table).grantNext",
		find: `if why := t.fullOfHolds(r.session, l.name); why != "" {`,
		put:  `if why := ""; why != "" {`,
		by:   tableTest("TestMaxHoldsCountsHolds"),
	},

	// The operations in flight on a key.
	{
		rule: `a lock has one operation in flight, or a Take after a Drop`,
		in:   "sidecar/locktable/claim (*Claim).choose",
		find: "if c.IsBusy() && !w.Has(redisop.AfterPendingDrop) || !a.Due(c.retryAt) {",
		put:  "if c.IsBusy() && !w.Has(redisop.AfterPendingDrop) && w.Kind == WantNothing || !a.Due(c.retryAt) {",
		by:   simulation,
	},
	{
		rule: "the result of a Drop says nothing of the key if a Take was pipelined after it",
		in:   "sidecar/locktable/claim (*Claim).Answer",
		find: `c.phase, c.op = windowIdle, InFlight{}
		return op, true`,
		put: `c.phase, c.op = windowIdle, InFlight{}
		return InFlight{Kind: redisop.Drop}, false`,
		by: tableTest("TestTakePipelinedAfterADropHasItsOwnResult"),
	},
	{
		rule: "a try that waits for the result of a late Drop only is refused as unavailable",
		in:   "sidecar/locktable/claim (*Claim).Answer",
		find: "InFlight{SentAt: c.op.SentAt} // the Drop was sent before that",
		put:  "InFlight{}",
		by:   tableTest("TestTryThatALateDropDelaysIsUnavailable"),
	},
	{
		rule: `a Take follows a Drop only while no other host is subscribed`,
		in:   "sidecar/locktable/contest (*Contest).mayPipeline",
		find: "return !c.areOthersKnown(v.Now) && !s.isTired(c.memory, v)",
		put:  "return v.Now >= c.foreignUntil && !s.isTired(c.memory, v)",
		by:   simulation,
	},
	{
		rule: `a Take follows a Drop only while no polling host is known`,
		in:   "sidecar/locktable/contest (*Contest).mayPipeline",
		find: "return !c.areOthersKnown(v.Now) && !s.isTired(c.memory, v)",
		put:  "return !c.memory.hostsWait && c.others() == 0 && !s.isTired(c.memory, v)",
		by:   tableTest("TestTakeDoesNotFollowADropWhileAPollingHostIsKnown"),
	},
	{
		rule: `Takes follow a Drop for a bounded time`,
		in:   "sidecar/locktable/contest (*Contest).mayPipeline",
		find: "return !c.areOthersKnown(v.Now) && !s.isTired(c.memory, v)",
		put:  "return !c.areOthersKnown(v.Now)",
		by:   tableTest("TestLocalPollersLeaveTheKeyFreeNowAndThen"),
	},
	{
		rule: `a waiter queues at once after an operation without a ticket finds another owner`,
		in:   "sidecar/locktable (*Table).onHeldByOther",
		find: "!op.Has(redisop.Enqueue) && l.waiting() > 0",
		put:  "false && l.waiting() > 0",
		by:   tableTest("TestWaiterQueuesAtOnceWhenAnotherHostIsFound"),
	},
	{
		rule: `a sidecar that receives no messages does not ask again and again for a ticket`,
		in:   "sidecar/locktable (*Table).onHeldByOther",
		find: "!op.Has(redisop.Enqueue) && l.waiting() > 0 && t.shardOf(l).isListening",
		put:  "!op.Has(redisop.Enqueue) && l.waiting() > 0",
		by:   tableTest("TestWaiterQueuesAtOnceWhenAnotherHostIsFound"),
	},
	{
		rule: `the holder of a lock is not known after Redis refused an operation`,
		in:   "sidecar/locktable (*Table).onOutcome",
		find: "q.contest.OnRefused()",
		put:  "",
		by:   tableTest("TestRefusedOperationsSayNothingOfTheHolderBefore"),
	},
	{
		rule: "a renewal behind an operation in flight postpones no other",
		in:   "sidecar/locktable (*Table).paceRenewal",
		find: "now < c.RenewAt() || c.IsBusy() || !l.holders.isHeld()",
		put:  "now < c.RenewAt() || !l.holders.isHeld()",
		by:   tableTest("TestRenewalThatWaitsIsNotCounted"),
	},

	// The claim: what Redis has for this host.
	{
		rule: `after a handoff Redis gets the number of the new hold`,
		in:   "sidecar/locktable/claim (*Claim).chooseForHold",
		find: "handedOver && a.Due(c.confirmedAt+syncDelay)",
		put:  "false && a.Due(c.confirmedAt+syncDelay)",
		by:   simulation,
	},
	{
		rule: "a claim is in doubt after Redis may have lost its data",
		in:   "sidecar/locktable/claim (*Claim).OnDataLost",
		find: `if c.state.IsOurs() {
		c.state = InDoubt
	}`,
		put: "",
		by:  simulation,
	},
	{
		rule: "a hold whose claim is in doubt is asserted",
		in:   "sidecar/locktable/claim (*Claim).chooseForHold",
		find: "case c.state.IsUnsure():",
		put:  "case false:",
		by:   simulation,
	},
	{
		rule: "an operation in flight while Redis lost its data may have met the new data",
		in:   "sidecar/locktable/claim (*Claim).OnDataLost",
		find: "c.Note(DataMayBeLost)",
		put:  "",
		by:   tableTest("TestARenewalThatMeetsAnEmptyRedisIsNoDeletion"),
	},
	{
		rule: "a Take whose result is unknown may have taken the lock",
		in:   "sidecar/locktable/claim (*Claim).OnUnknown",
		find: `case c.state == Absent:
		c.state = Uncertain`,
		put: "",
		by:  tableTest("TestAnAmbiguousTakeIsAskedAgainOrDropped"),
	},
	{
		rule: "a Drop whose result is unknown is sent again",
		in:   "sidecar/locktable/claim (*Claim).OnUnknown",
		find: `case op.Kind == redisop.Drop:
		c.Forget(Uncertain)`,
		put: `case op.Kind == redisop.Drop:
		c.Forget(Absent)`,
		by: simulation,
	},
	{
		rule: "a Check whose result is unknown has changed nothing",
		in:   "sidecar/locktable/claim (*Claim).OnUnknown",
		find: `case op.Kind == redisop.Check:
		c.renewAt = now`,
		put: "",
		by:  tableTest("TestCheckWithUnknownEndIsAskedAgain"),
	},
	{
		rule: "a confirmed claim is stale after an unknown result",
		in:   "sidecar/locktable/claim (*Claim).OnUnknown",
		find: `case c.state == Confirmed:
		c.state = Stale`,
		put: "",
		by:  tableTest("TestEntriesAreSetAgainAfterAnUnknownResult"),
	},
	{
		rule: "the entries of a stale claim are set again",
		in:   "sidecar/locktable/claim (*Claim).chooseForHold",
		find: "(c.state == Stale || c.count != w.Count)",
		put:  "c.count != w.Count",
		by:   tableTest("TestCheckThatFindsAnEarlierHoldSetsTheKeyAgain"),
	},
	{
		rule: "a claim is stale after a Check that finds an earlier hold",
		in:   "sidecar/locktable/claim (*Claim).OnOverwritten",
		find: "c.state = Stale // so",
		put:  "// so",
		by:   tableTest("TestCheckThatFindsAnEarlierHoldSetsTheKeyAgain"),
	},
	{
		rule: "a restored claim is renewed first, and is not taken for that of an earlier hold",
		in:   "sidecar/locktable/claim (*Claim).chooseForHold",
		find: "handedOver := c.holdID != w.HoldID && c.state != Restored",
		put:  "handedOver := c.holdID != w.HoldID",
		by:   tableTest("TestHoldIsRestored"),
	},
	{
		rule: "a key of another type under a hold ends the hold",
		in:   "sidecar/locktable (*Table).onOutcome",
		find: `if l.holders.isHeld() {
			t.loseHold(now, l.holders.sole(), protocol.Stolen, r.Field)
		}
		t.denyWaiters(l, r.Msg)`,
		put: `if false {
			t.loseHold(now, l.holders.sole(), protocol.Stolen, r.Field)
		}
		t.denyWaiters(l, r.Msg)`,
		by: simulation,
	},
	{
		rule: "a key outlives a waiter with a longer lease for no longer than its holder's lease",
		in:   "sidecar/locktable/claim (*Claim).chooseForHold",
		find: "c.leaseMS > w.FullLeaseMS && w.LeaseMS <= w.FullLeaseMS",
		put:  "false",
		by:   tableTest("TestAWatchdogHoldThatInheritsALongLeaseIsRenewedInTime"),
	},
	{
		rule: "the window of a lock stays while a failed operation waits",
		in:   "sidecar/locktable/claim (*Windows).Close",
		find: "if w == &atRest || !w.IsIdle() || w.retryAt != 0 {",
		put:  "if w == &atRest || !w.IsIdle() {",
		by:   tableTest("TestLocksAtRestShareAWindow"),
	},
	{
		rule: "no lock writes the window that locks at rest share",
		in:   "sidecar/locktable/claim (*Claim).Note",
		find: "if c.IsBusy() {",
		put:  "{",
		by:   test("sidecar/locktable/claim", "TestEventsAtRestDoNotWriteTheSharedWindow"),
	},
	{
		rule: `after an error Redis is asked again`,
		in:   "sidecar/locktable/claim (*Claim).choose",
		find: "!a.Due(c.retryAt)",
		put:  "a.Now < c.retryAt",
		by:   simulation,
	},
	{
		rule: `after an error Redis is not asked again at once`,
		in:   "sidecar/locktable/claim (*Claim).choose",
		find: "if c.IsBusy() && !w.Has(redisop.AfterPendingDrop) || !a.Due(c.retryAt) {",
		put:  "if c.IsBusy() && !w.Has(redisop.AfterPendingDrop) {",
		by:   tableTest("TestRestoredHoldThatIsNotConfirmedIsLostWithinTheNewLease"),
	},

	// The alarm: a rule that is not due yet is looked at again when it is.
	{
		rule: `a rule that is not due yet sets the timer`,
		in:   "sidecar/locktable/moment (*Alarm).Due",
		find: "a.Next = min(a.Next, at)",
		put:  "",
		by:   simulation,
	},
	{
		rule: `the timer is that of the rule which is due first`,
		in:   "sidecar/locktable/moment (*Alarm).Due",
		find: "a.Next = min(a.Next, at)",
		put:  "a.Next = at",
		by:   simulation,
	},
	{
		rule: `no timer is set for what the result of an operation decides`,
		in:   "sidecar/locktable/claim (*Claim).Step",
		find: "a.Next = before // its",
		put:  "_ = before // its",
		by:   tableTest("TestTimerIsForTheNextChangeOnly"),
	},
	{
		rule: `no timer is set for a hold that has ended`,
		in:   "sidecar/locktable (*Table).reconcile",
		find: "v.Next = moment.Never // of",
		put:  "// of",
		by:   tableTest("TestTimerIsForTheNextChangeOnly"),
	},

	// Validity.
	{
		rule: `a lease is believed in for less than Redis keeps it`,
		in:   "sidecar/locktable/claim Validity",
		find: "return moment.MS(leaseMS) - moment.MS(leaseMS)/100 - int64(2*time.Millisecond)",
		put:  "return moment.MS(leaseMS)",
		by:   simulation,
	},
	{
		rule: "an operation with a shorter lease lowers the validity when it is sent",
		in:   "sidecar/locktable/claim (*Claim).Send",
		find: "c.validUntil = min(c.validUntil, now+Validity(op.LeaseMS))",
		put:  "",
		by:   simulation,
	},
	{
		rule: `a deadline that passed before the result came has passed`,
		in:   "sidecar/locktable (*Table).Result",
		find: `t.expireHold(now, l)

	l.memory.NoteSubscribers(&r)`,
		put: "l.memory.NoteSubscribers(&r)",
		by:  tableTest("TestHoldEndsAtItsDeadlineBeforeItsTimerFires"),
	},
	{
		rule: `a hold ends at its deadline`,
		in:   "sidecar/locktable (*Table).expire",
		find: "case a.Due(t.deadline(h)):",
		put:  "case false:",
		by:   simulation,
	},
	{
		rule: "an expired hold is not re-entered",
		in:   "sidecar/locktable (*Table).Acquire",
		find: `t.expireHold(now, l)
		if h := l.holders.sole(); !req.NotReentrant && h.isOwnedBy(s, req.Owner) && h.entries < 1<<31 {
			t.reenter(h, req.ID)
			t.reconcile(t.visit(now, l))
			return
		}`,
		put: `if h := l.holders.sole(); !req.NotReentrant && h.isOwnedBy(s, req.Owner) && h.entries < 1<<31 {
			t.reenter(h, req.ID)
			t.reconcile(t.visit(now, l))
			return
		}`,
		by: simulation,
	},
	{
		rule: "an expired hold is not released",
		in:   "sidecar/locktable (*Table).Release",
		find: `t.expireHold(now, l)
	if h = t.byHold[req.Hold]; h == nil || h.isOrphan() || h.session != s {
		t.refuseRelease(s, &req)
	} else {
		h.entries--
		if req.ID != 0 {
			t.emit(Effect{Kind: Released, Session: id, ID: req.ID, Count: h.entries})
		}
		if h.entries == 0 {
			switch {
			case req.CutShort:
				t.emit(Effect{Kind: CutShort, Session: id, Name: l.name, Hold: h.id, Reason: protocol.CutShort, Since: h.granted, Peer: &s.peer})
				t.groupStats(l).Losses[lossIndex(protocol.CutShort)]++
			case h.isLong(now):
				t.emit(Effect{Kind: LongHold, Session: id, Name: l.name, Hold: h.id, Since: h.granted, Count: uint32(l.waiting()), Peer: &s.peer})
			}
			granted := h.granted
			if t.leave(now, h); !l.holders.isHeld() {
				t.linger(v, granted)
			}
		}
	}`,
		put: `if h = t.byHold[req.Hold]; h == nil || h.isOrphan() || h.session != s {
		t.refuseRelease(s, &req)
	} else {
		h.entries--
		if req.ID != 0 {
			t.emit(Effect{Kind: Released, Session: id, ID: req.ID, Count: h.entries})
		}
		if h.entries == 0 {
			switch {
			case req.CutShort:
				t.emit(Effect{Kind: CutShort, Session: id, Name: l.name, Hold: h.id, Reason: protocol.CutShort, Since: h.granted, Peer: &s.peer})
				t.groupStats(l).Losses[lossIndex(protocol.CutShort)]++
			case h.isLong(now):
				t.emit(Effect{Kind: LongHold, Session: id, Name: l.name, Hold: h.id, Since: h.granted, Count: uint32(l.waiting()), Peer: &s.peer})
			}
			granted := h.granted
			if t.leave(now, h); !l.holders.isHeld() {
				t.linger(v, granted)
			}
		}
	}`,
		by: tableTest("TestHoldEndsAtItsDeadlineBeforeItsTimerFires"),
	},
	{
		rule: "a fixed lease is granted for no longer than its length",
		in:   "sidecar/locktable (*Table).grant",
		find: "until := min(c.ValidUntil(), now+claim.Validity(t.leaseOf(r.lease, r.leaseMS)))",
		put:  "until := c.ValidUntil()",
		by:   simulation,
	},
	{
		rule: "a watchdog hold under a longer lease is renewed for its own",
		in:   "sidecar/locktable (*Table).onConfirmed",
		find: "moment.MS(min(lease, t.leaseMS))",
		put:  "moment.MS(op.LeaseMS)",
		by:   tableTest("TestAShorterLeaseBreaksNoOlderPromise"),
	},
	{
		rule: "a longer lease makes the deadline of a watchdog hold no later",
		in:   "sidecar/locktable (*Table).onConfirmed",
		find: "lease = min(lease, t.leaseMS) // what",
		put:  "// what",
		by:   tableTest("TestKeepDoesNotMakeADeadlineLater"),
	},
	{
		rule: "a renewal in flight does not end a crash delay early",
		in:   "sidecar/locktable (*Table).onConfirmed",
		find: "if h != nil && h.isRenewed() && !h.isOrphan() {",
		put:  "if h != nil && h.isRenewed() {",
		by:   tableTest("TestCrashDelayUnderAShorterLeaseOutlivesTheRenewalInFlight"),
	},
	{
		rule: "a lease event never names a deadline that a newer hold does not have",
		in:   "sidecar/locktable (*Table).onWatchdogGrant",
		find: "s.minUncovered = min(s.minUncovered, until)",
		put:  "",
		by:   tableTest("TestLesserDeadlineIsRestored"),
	},
	{
		rule: "a lesser deadline is stored for the successor",
		in:   "sidecar/locktable (*Table).lowerLease",
		find: `h.deadline = d
			t.markDirty(h.lock)`,
		put: "h.deadline = d",
		by:  tableTest("TestLesserDeadlineIsRestored"),
	},
	{
		rule: "a hold whose deadline has passed is not revived by a lease event",
		in:   "sidecar/locktable (*Table).flushLeaseEvents",
		find: "if t.now >= min(s.leaseSent, s.minUncovered) {",
		put:  "if false {",
		by:   simulation,
	},
	{
		rule: "a session that has not claimed its holds gets no lease event",
		in:   "sidecar/locktable (*Table).flushLeaseEvents",
		find: "if !s.phase.IsAway() { // finishResume",
		put:  "{ // finishResume",
		by:   tableTest("TestLostPrecedesLeaseAfterRestore"),
	},
	{
		rule: "a restored hold is believed in for no longer than the lease of the new process",
		in:   "sidecar/locktable (*Table).restoreHold",
		find: "until = min(until, now+claim.Validity(t.leaseMS))",
		put:  "_ = claim.Validity(t.leaseMS)",
		by:   tableTest("TestRestoredHoldThatIsNotConfirmedIsLostWithinTheNewLease"),
	},
	{
		rule: "a crash delay begins with the deadline from before the restart",
		in:   "sidecar/locktable (*Table).orphan",
		find: "h.lock.claim.KnownUntil(t.deadline(h)) // it",
		put:  "// it",
		by:   tableTest("TestCrashDelayAfterRestartBeginsWithTheDeadlineSentBefore"),
	},
	{
		rule: "what was promised under a longer lease stays true",
		in:   "sidecar/locktable (*Table).leaseToSet",
		find: "lease = max(lease, claim.LeaseCovering(t.deadline(h)-now))",
		put:  "",
		by:   tableTest("TestAShorterLeaseBreaksNoOlderPromise"),
	},

	// Tokens.
	{
		rule: "a grant needs a token that was drawn from Redis",
		in:   "sidecar/locktable (*Table).isCovered",
		find: `if !c.HasTokens() {
		return false
	}`,
		put: "",
		by:  simulation,
	},
	{
		rule: "the first grant gets the first token that was drawn",
		in:   "sidecar/locktable/claim (*Claim).Confirm",
		find: "lastToken-uint64(op.Reserve)+1",
		put:  "lastToken-uint64(op.Reserve)",
		by:   simulation,
	},
	{
		rule: "tokens from before Redis lost its data are not granted",
		in:   "sidecar/locktable/claim (*Claim).OnDataLost",
		find: `c.DropTokens()
	c.Note(DataMayBeLost)`,
		put: "c.Note(DataMayBeLost)",
		by:  simulation,
	},
	{
		rule: "a hold does not use the number of an earlier operation again",
		in:   "sidecar/locktable/claim (*Claim).Grant",
		find: "if c.use() == used || id != c.maxHoldID {",
		put:  "if false {",
		by:   simulation,
	},

	// Holds and their renewal.
	{
		rule: "a renewal does not wait behind thousands of other timers",
		in:   "sidecar/locktable (*Table).Advance",
		find: "if n++; n > t.cfg.MaxWork && !t.mustNotWait(now, tm.Value) {",
		put:  "if n++; n > t.cfg.MaxWork {",
		by:   tableTest("TestRenewalsGoBeforeOtherTimers"),
	},
	{
		rule: "a timer that can wait does not put off a renewal",
		in:   "sidecar/locktable (*Table).isUrgent",
		find: "h.session.phase",
		put:  "now >= l.claim.RenewAt() && h.session.phase",
		by:   tableTest("TestTimerThatCanWaitDoesNotPutOffTheRenewal"),
	},
	{
		rule: "no tokens are reserved for a time after Redis refused to reserve them",
		in:   "sidecar/locktable (*Table).wantForHold",
		find: "w.ReserveAt = q.drawAt",
		put:  "w.ReserveAt = now",
		by:   tableTest("TestRefusedDrawKeepsNoRenewalBack"),
	},
	{
		rule: "a reservation of tokens that Redis refuses does not count as a refused renewal",
		in:   "sidecar/locktable (*Table).onOutcome",
		find: `case op.Reserve > 0 && l.holders.isHeld():
			t.reserveFailed(now, l)`,
		put: "",
		by:  tableTest("TestRefusedDrawKeepsNoRenewalBack"),
	},
	{
		rule: "a reservation of tokens that Redis cannot do now keeps no renewal back",
		in:   "sidecar/locktable (*Table).onOutcome",
		find: "if op.Reserve > 0 && l.holders.isHeld() {",
		put:  "if false {",
		by:   tableTest("TestRefusedDrawKeepsNoRenewalBack"),
	},
	{
		rule: "a hold that Redis refuses to renew is lost in time for the other holds of its session",
		in:   "sidecar/locktable (*Table).giveUpAt",
		find: "return min(t.deadline(h), h.lock.claim.ValidUntil()) - int64(t.cfg.Lease)/4",
		put:  "return min(t.deadline(h), h.lock.claim.ValidUntil())",
		by:   tableTest("TestAHoldThatCannotBeRenewedDoesNotKeepTheOthersDown"),
	},
	{
		rule: "a hold that Redis refuses to renew is given up",
		in:   "sidecar/locktable (*Table).onOutcome",
		find: "h.phase = HoldUnrenewable",
		put:  "h.phase = HoldLive",
		by:   tableTest("TestAHoldThatCannotBeRenewedDoesNotKeepTheOthersDown"),
	},
	{
		rule: "a hold that is renewed after Redis refused to renew it is not given up",
		in:   "sidecar/locktable (*Table).onConfirmed",
		find: "if h != nil && h.phase == HoldUnrenewable {",
		put:  "if false {",
		by:   tableTest("TestHoldThatIsRenewedAfterARefusalLastsUntilItsDeadline"),
	},
	{
		rule: "a hold that Redis refuses to renew excludes others until its deadline",
		in:   "sidecar/locktable (*Table).giveUp",
		find: `t.unlinkHold(h)
	h.phase = HoldGivenUp`,
		put: "t.endHold(t.now, h)",
		by:  tableTest("TestHoldThatIsGivenUpExcludesOthersUntilItsDeadline"),
	},
	{
		rule: "a hold that was given up is not renewed",
		in:   "sidecar/locktable (*hold).isRenewed",
		find: "h.lease == WatchdogLease && h.phase != HoldUnserved && h.phase != HoldGivenUp && h.phase != HoldKept",
		put:  "h.lease == WatchdogLease && h.phase != HoldUnserved && h.phase != HoldKept",
		by:   tableTest("TestHoldThatIsGivenUpExcludesOthersUntilItsDeadline"),
	},
	{
		rule: "a hold of a session that is not served is not renewed",
		in:   "sidecar/locktable (*hold).isRenewed",
		find: "h.lease == WatchdogLease && h.phase != HoldUnserved && h.phase != HoldGivenUp",
		put:  "h.lease == WatchdogLease && h.phase != HoldGivenUp",
		by:   tableTest("TestTheDeadAreReleasedAndTheOthersRunOut"),
	},
	{
		rule: "the holds of a session that is not served any more are unserved",
		in:   "sidecar/locktable (*Table).expire",
		find: "case s.phase.IsOver() && h.phase != HoldUnserved:",
		put:  "case false:",
		by:   tableTest("TestTheDeadAreReleasedAndTheOthersRunOut"),
	},
	{
		rule: "the hold of a dead client is renewed for its crash delay",
		in:   "sidecar/locktable (*hold).isRenewed",
		find: "h.lease == WatchdogLease && h.phase != HoldUnserved && h.phase != HoldGivenUp",
		put:  "h.lease == WatchdogLease && h.phase < HoldUnserved",
		by:   simulation,
	},
	{
		rule: "a crash delay ends no later than max_hold",
		in:   "sidecar/locktable (*Table).orphan",
		find: "h.endAt == 0 || end < h.endAt",
		put:  "true",
		by:   tableTest("TestCrashDelayEndsNoLaterThanMaxHold"),
	},
	{
		rule: `a lock that another host waits for is not given up behind those that nothing wants`,
		in:   "sidecar/locktable (*lock).isAwaited",
		find: "op.Ticket != 0 || l.memory.HostsWait() || l.memory.HasSubscribers()",
		put:  "op.Ticket != 0 || l.memory.HasSubscribers()",
		by:   tableTest("TestDropSaysWhetherItCanWait"),
	},
	{
		rule: `a place in a queue is not given up behind locks that nothing wants`,
		in:   "sidecar/locktable (*lock).isAwaited",
		find: "op.Ticket != 0 || l.memory.HostsWait()",
		put:  "l.memory.HostsWait()",
		by:   tableTest("TestDropSaysWhetherItCanWait"),
	},
	{
		rule: "the end of a large session is spread over steps",
		in:   "sidecar/locktable (*Table).startSweep",
		find: "t.sweep(now, s, t.cfg.MaxWork) == 0",
		put:  "t.sweep(now, s, 1<<30) == 0",
		by:   tableTest("TestEndOfALargeSessionIsSpreadOverSteps"),
	},
	{
		rule: "what is left of a large session waits for its turn again",
		in:   "sidecar/locktable (*session).due",
		find: "left := t.sweep(now, s, t.budget)",
		put:  "left := t.sweep(now, s, 1<<30)",
		by:   tableTest("TestEndOfALargeSessionIsSpreadOverSteps"),
	},
	{
		rule: "large sessions that end are worked off in turn",
		in:   "wheel (*Wheel).Defer",
		find: "w.link(t, backlog)",
		put: `w.link(t, backlog)
	w.places[backlog] = w.places[backlog].prev`,
		by: tableTest("TestSessionsThatEndAreWorkedOffInTurn"),
	},
	{
		rule: "a renewal does not wait behind answers that are left",
		in:   "sidecar/locktable (*Table).reconcile",
		find: "case v.hasMore && l.holders.isHeld():",
		put:  "case false:",
		by:   tableTest("TestRenewalIsNotKeptBackByAnswersThatAreLeft"),
	},
	{
		rule: "a lock that has more to answer takes the whole budget of a step",
		in:   "sidecar/locktable (*Table).leaveRest",
		find: "t.budget -= t.cfg.MaxWork",
		put:  "",
		by:   tableTest("TestLocksWithManyAnswersShareTheBudget"),
	},
	{
		rule: `the key of a fixed lease is checked`,
		in:   "sidecar/locktable/claim (*Claim).chooseForHold",
		find: "case w.IsChecked && !handedOver && a.Due(c.renewAt):",
		put:  "case false:",
		by:   simulation,
	},
	{
		rule: "the key of a fixed lease is checked each third of it, if that is shorter than the watchdog's",
		in:   "sidecar/locktable (*Table).nextCheck",
		find: "lease < int64(t.cfg.Lease)",
		put:  "lease < 0",
		by:   simulation,
	},
	{
		rule: "a key is checked no more often than every minCheckInterval",
		in:   "sidecar/locktable (*Table).nextCheck",
		find: "max(lease/3, minCheckInterval)",
		put:  "lease/3",
		by:   tableTest("TestFixedLeaseIsCheckedByItsOwnLease"),
	},
	{
		rule: `checks of a short lease are not aligned to the cells of a longer one`,
		in:   "sidecar/locktable (*Table).cellOf",
		find: "return min(t.renewalCell(), cellOfLease(moment.MS(t.leaseOf(h.lease, h.leaseMS))))",
		put:  "return t.renewalCell()",
		by:   tableTest("TestFixedLeaseIsCheckedByItsOwnLease"),
	},
	{
		rule: "Redis gets the hold of a hot lock within 50 ms, also if the lock is another owner's by then",
		in:   "sidecar/locktable/claim hotSyncDelay",
		find: "50 * time.Millisecond",
		put:  "500 * time.Millisecond",
		by:   tableTest("TestKeyOfALingeringLockThatIsDeletedIsNoticedWithin50MS"),
	},
	{
		rule: "a message of another program during a hold has the key checked",
		in:   "sidecar/locktable (*Table).onUnlocked",
		find: "if l.holders.isHeld() {",
		put:  "if false {",
		by:   simulation,
	},
	{
		rule: "messages have the key checked no more often than every checkPause",
		in:   "sidecar/locktable/claim (*Claim).CheckSoon",
		find: "c.renewAt = min(c.renewAt, max(now, c.confirmedAt+checkPause))",
		put:  "c.renewAt = min(c.renewAt, now)",
		by:   tableTest("TestReleaseByAnotherProgramUnderAHoldIsLookedInto"),
	},
	{
		rule: "a message during a check has the key checked again",
		in:   "sidecar/locktable/claim (*Claim).CheckSoon",
		find: "c.Note(KeyMayHaveChanged)",
		put:  "",
		by:   tableTest("TestMessageDuringACheckHasTheKeyCheckedAgain"),
	},

	// Claims of clients that resume their sessions.
	{
		rule: "a hold is not claimed by another client",
		in:   "sidecar/locktable (*Table).Claim",
		find: "if h == nil || h.session != s || h.isOrphan() {",
		put:  "if h == nil || h.isOrphan() {",
		by:   tableTest("TestClaimOfALostHoldIsAnsweredWithLost"),
	},
	{
		rule: "a client claims no more entries than it was granted",
		in:   "sidecar/locktable (*Table).Claim",
		find: "case h.entries < c.Entries:",
		put:  "case false:",
		by:   tableTest("TestAClaimIsNoMoreThanWasGranted"),
	},
	{
		rule: "two claims do not name one hold",
		in:   "sidecar/locktable (*Table).Claim",
		find: "case h.claimedEntries != 0:",
		put:  "case false:",
		by:   tableTest("TestEntriesAreReleasedWithTheLastClaim"),
	},
	{
		rule: "a client whose connection ends while it claims may claim again",
		in:   "sidecar/locktable (*Table).Claim",
		find: "h.claimedEntries = c.Entries",
		put: `h.claimedEntries = c.Entries
		h.entries = c.Entries`,
		by: tableTest("TestEntriesAreReleasedWithTheLastClaim"),
	},

	// The journal, and what a successor restores from it.
	{
		rule: "the last hold number is stored before a record that has it",
		in:   "sidecar/locktable (*Table).writeJournal",
		find: `if d.lastHoldID != t.lastNum {
		d.lastHoldID = t.lastNum
		j.PutLastHoldID(d.lastHoldID)
	}`,
		put: `if d.lastHoldID != t.lastNum {
		d.lastHoldID = t.lastNum
		defer j.PutLastHoldID(d.lastHoldID)
	}`,
		by: tableTest("TestLockIsStoredBeforeItsFirstOperation"),
	},
	{
		rule: "a session that is not served any more is stored before its holds",
		in:   "sidecar/locktable (*Table).writeJournal",
		find: `if r := s.record(); r.Phase != SessionServing {
			j.PutSession(r)
		}`,
		put: `if r := s.record(); r.Phase != SessionServing {
			defer j.PutSession(r)
		}`,
		by: tableTest("TestSessionsAndHoldsAreStoredInAnOrderThatIsTrue"),
	},
	{
		rule: "a session that is served is stored after its holds",
		in:   "sidecar/locktable (*Table).writeJournal",
		find: `if r := s.record(); r.Phase != SessionServing {
			j.PutSession(r)
		}`,
		put: "j.PutSession(s.record())",
		by:  tableTest("TestSessionsAndHoldsAreStoredInAnOrderThatIsTrue"),
	},
	{
		rule: "a hold that has ended is deleted before its lock is stored",
		in:   "sidecar/locktable (*Table).writeJournal",
		find: `for h := d.ended; h != nil; h = d.ended {
		j.DeleteHold(h.slot)
		d.ended = h.next
		t.freeHold(h)
	}`,
		put: `defer func() {
		for h := d.ended; h != nil; h = d.ended {
			j.DeleteHold(h.slot)
			d.ended = h.next
			t.freeHold(h)
		}
	}()`,
		by: tableTest("TestHandoffDeletesTheEndedHoldBeforeItStoresTheNext"),
	},
	{
		rule: `a successor drops the locks that have no hold`,
		in:   "sidecar/locktable/claim (*Claim).RestoreLock",
		find: "c.state, c.maxHoldID = Uncertain, maxHoldID",
		put:  "c.state, c.maxHoldID = Absent, maxHoldID",
		by:   tableTest("TestPendingDropsAreSentAfterRestore"),
	},
	{
		rule: "a restored hold that Redis may have lost is in doubt",
		in:   "sidecar/locktable/claim (*Claim).RestoreHold",
		find: "if isInDoubt {",
		put:  "if false {",
		by:   tableTest("TestHoldInDoubtIsAssertedAfterRestore"),
	},
	{
		rule: "a hold that Redis refused to renew is live after a restart",
		in:   "sidecar/locktable (*Table).restoreHold",
		find: "h.phase = HoldLive // until",
		put:  "// until",
		by:   tableTest("TestHoldThatCouldNotBeRenewedLastsAfterARestart"),
	},

	// Redis that cannot be reached, or does not answer.
	{
		rule: "an acquire that does not wait is answered while Redis is silent",
		in:   "sidecar/locktable (*Table).Acquire",
		find: "t.arm(&r.timer, now+int64(t.cfg.TryWithin))",
		put:  "_ = t.cfg.TryWithin",
		by:   tableTest("TestTryIsAnsweredAlthoughRedisIsSilent"),
	},
	{
		rule: "an acquire that does not wait does not wait for a silent Redis",
		in:   "sidecar/locktable (*Table).isSilent",
		find: "return t.shardOf(l).silence(now) >= t.cfg.TryWithin",
		put:  "return false",
		by:   tableTest("TestTryOfAnotherLockIsAnsweredAtOnceWhileRedisIsSilent"),
	},
	{
		rule: `a wait shorter than a round trip gets what no wait gets`,
		in:   "sidecar/locktable (*request).due",
		find: "if r.phase == requestWaiting && r.isAlone && now < latest && !q.contest.Remote().IsKnownSince(r.since) {",
		put:  "if false {",
		by:   tableTest("TestWaitShorterThanARoundTripGetsWhatNoWaitGets"),
	},
	{
		rule: `an old answer of Redis is not taken for one to this acquire`,
		in:   "sidecar/locktable/contest (*Remote).IsKnownSince",
		find: "{ return r.isKnown && r.askedAt >= at }",
		put:  "{ return r.isKnown }",
		by:   tableTest("TestSilenceCountsMoreThanAnOldAnswer"),
	},
	{
		rule: "a pause of the sidecar is no silence of Redis",
		in:   "sidecar/locktable (*shard).silentSince",
		find: "{ return max(s.silent, s.paused) }",
		put:  "{ return s.silent }",
		by:   tableTest("TestPauseOfTheSidecarIsNoSilenceOfRedis"),
	},
	{
		rule: "after a pause of the sidecar Redis has time to answer an acquire that does not wait",
		in:   "sidecar/locktable (*Table).tryUntil",
		find: "return max(r.since, t.shardOf(r.at.lock).paused) + int64(t.cfg.TryWithin)",
		put:  "return r.since + int64(t.cfg.TryWithin)",
		by:   tableTest("TestPauseOfTheSidecarIsNoSilenceOfRedis"),
	},
	{
		rule: "an acquire that does not wait is answered when Redis cannot be reached any more",
		in:   "sidecar/locktable (*Table).Down",
		find: "l.shard == n",
		put:  "l.shard != n",
		by:   simulation,
	},
	// A Cluster.
	{
		rule: "a shard that gets a slot may have lost the data of its locks",
		in:   "sidecar/locktable/claim (*Claim).OnMoved",
		find: `c.OnDataLost()
	c.Note(Moved)`,
		put: "c.Note(Moved)",
		by:  simulation,
	},
	{
		rule: "what the former shard of a lock answers grants nothing",
		in:   "sidecar/locktable (*Table).Result",
		find: "if wasMoved {",
		put:  "if wasMoved && op.Kind == redisop.NoOp {",
		by:   simulation,
	},
	{
		rule: "a Take is not pipelined after a Drop that is in flight at the former shard",
		in:   "sidecar/locktable/claim (*Claim).IsReleasing",
		find: "c.phase == windowOne && c.op.Kind == redisop.Drop && c.state.IsOurs()",
		put:  "c.phase == windowOne && c.op.Kind == redisop.Drop",
		by:   tableTest("TestTakeIsNotPipelinedAfterADropAtTheShardBefore"),
	},
	{
		rule: "a hold whose shard is down does not end those of other shards",
		in:   "sidecar/locktable (*Table).giveUpForOthers",
		find: "case t.lastsShortest(h):",
		put:  "case t.lastsShortest(h) && h.lock == nil:",
		by:   simulation,
	},
	{
		rule: "a hold is given up for the sake of others only if those last longer",
		in:   "sidecar/locktable (*Table).lastsShortest",
		find: "if b >= h.bucket+quarter {",
		put:  "if b >= h.bucket {",
		by:   tableTest("TestHoldsOfShardsThatAreAllDownLastUntilTheirDeadline"),
	},
	{
		rule: "a waiter is refused with the last reason of an outage",
		in:   "sidecar/locktable (*shard).onDown",
		find: `wasDown = s.phase == shardDown
	s.phase, s.cause = shardDown, why`,
		put: `wasDown = s.phase == shardDown
	if !wasDown {
		s.cause = why
	}
	s.phase = shardDown`,
		by: tableTest("TestRefusalNamesWhatKeptTheLock"),
	},
	{
		rule: `a waiter tries again when Redis is up again`,
		in:   "sidecar/locktable/contest (*Contest).OnUp",
		find: `c.order.retryAt, c.order.isDenied = 0, false
	c.TryBy(now)`,
		put: "c.order.retryAt, c.order.isDenied = 0, false",
		by:  simulation,
	},

	// Waiters, and other hosts.
	{
		rule: `a release while a Take is in flight makes its refusal obsolete`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: `if mayBeFree {
		c.TryBy(now)
	}`,
		put: "",
		by:  tableTest("TestAMessageDuringATakeIsNotForgotten"),
	},
	{
		rule: `a waiter tries again when the lease of the other host ends`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "pause = min(pause, expiry)",
		put:  "_ = expiry",
		by:   tableTest("TestWaiterTriesAgainWhenTheLeaseOfAnotherHostEnds"),
	},
	{
		rule: `the time to live of another program's key is bounded`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "min(r.TTLMS, maxTTL)",
		put:  "r.TTLMS",
		by:   tableTest("TestTimeToLiveOfAnotherProgramsKeyIsBounded"),
	},
	{
		rule: `a waiter tries again when its host has subscribed`,
		in:   "sidecar/locktable/contest (*Contest).OnSubscribed",
		find: "if isWaiting && c.remote.isKnown {",
		put:  "if false {",
		by:   tableTest("TestWaiterTriesAgainWhenTheLeaseOfAnotherHostEnds"),
	},
	{
		rule: `a host that lost its subscription polls`,
		in:   "sidecar/locktable/contest (*Contest).OnUnsubscribed",
		find: "c.sub = subscribing",
		put:  "",
		by:   tableTest("TestHostThatLostItsSubscriptionPolls"),
	},
	{
		rule: "a try that came after the Take was sent gets a Take of its own",
		in:   "sidecar/locktable (*Table).onHeldByOther",
		find: "for q.firstTries() && q.waiters.head.request.since <= op.SentAt {",
		put:  "for q.firstTries() {",
		by:   tableTest("TestTryAfterACanceledTryGetsATakeOfItsOwn"),
	},
	{
		rule: `a host that yields releases the lock in Redis`,
		in:   "sidecar/locktable (*Table).want",
		find: "contest.Ask",
		put:  "contest.Ask, contest.Yield",
		by:   simulation,
	},
	{
		rule: `a host that yields a lock backs off before it tries again`,
		in:   "sidecar/locktable/contest (*Shared).freePause",
		find: "return int64(s.cfg.Backoff)",
		put:  "return 0",
		by:   simulation,
	},
	{
		rule: `a lock that is released for polling hosts stays free for a moment`,
		in:   "sidecar/locktable/contest (*Shared).freePause",
		find: "return int64(s.cfg.QuietPause)",
		put:  "return 0",
		by:   simulation,
	},
	{
		rule: `a lock that a program may poll is left free more often`,
		in:   "sidecar/locktable/contest (*Shared).quietTime",
		find: "return int64(s.cfg.PollerTime)",
		put:  "return int64(s.cfg.QuietTime)",
		by:   tableTest("TestLockThatAProgramMayPollIsLeftFreeMoreOften"),
	},
	{
		rule: `a program that may poll a lock is remembered for as long as ForeignMemory`,
		in:   "sidecar/locktable/contest (*Shared).quietTime",
		find: "if m.pollerAt != 0 && moment.ShortMillis(now)-m.pollerAt < moment.ShortMillis(int64(s.cfg.ForeignMemory)) {",
		put:  "if m.pollerAt != 0 {",
		by:   tableTest("TestLockThatAProgramMayPollIsLeftFreeMoreOften"),
	},
	{
		rule: `a program that may poll a lock is remembered although the lock is forgotten`,
		in:   "sidecar/locktable/contest (*Contest).noteForeignHolder",
		find: "s.pollers.note(name, c.memory.pollerAt)",
		put:  "",
		by:   tableTest("TestLockThatAProgramMayPollIsLeftFreeMoreOften"),
	},
	{
		rule: `Redis leaves free what a program may poll, and passes it to no ticket`,
		in:   "sidecar/locktable (*Table).want",
		find: "w.PassedMS = redisop.MS(redisop.FreeAfter) // Redis leaves it free, too",
		put:  "",
		by:   tableTest("TestLockThatAProgramMayPollIsLeftFreeMoreOften"),
	},
	{
		rule: `a lock that is left free is looked at without being taken`,
		in:   "sidecar/locktable/contest (*Contest).ask",
		find: "onlyLooks := v.Claim == Absent && enqueue && !first.Tries",
		put:  "onlyLooks := false",
		by:   tableTest("TestLockThatIsLeftFreeIsLookedAt"),
	},
	{
		rule: `a look at a lock that is left free makes its moment no longer`,
		in:   "sidecar/locktable/contest (*Contest).OnFoundFree",
		find: `if c.isBackingOff(now) {
		c.lookForPoller(s, now)
	} else if !noWait {
		c.nextTry = max(now+int64(s.cfg.Backoff), c.backoffUntil)
	}`,
		put: `if !noWait {
		c.nextTry = max(now+int64(s.cfg.Backoff), c.backoffUntil)
	}`,
		by: tableTest("TestLockThatIsLeftFreeIsLookedAt"),
	},
	{
		rule: `a lock that is left free is looked at each half millisecond`,
		in:   "sidecar/locktable/contest (*Contest).lookForPoller",
		find: "s.rng.Int64N(min(left, lookEvery))",
		put:  "s.rng.Int64N(left)",
		by:   test("sidecar/locktable/contest", "TestFreeMomentIsLookedAtEachHalfMillisecond"),
	},
	{
		rule: `a program that was met is not looked for`,
		in:   "sidecar/locktable/contest (*Contest).lookForPoller",
		find: "m.pollerAt != 0",
		put:  "false",
		by:   tableTest("TestLockThatIsLeftFreeIsLookedAt"),
	},
	{
		rule: `a host that cannot reach Redis does not yield`,
		in:   "sidecar/locktable/contest (*Contest).endsTurn",
		find: "if !v.IsReachable {",
		put:  "if false {",
		by:   tableTest("TestHostThatCannotReachRedisDoesNotYield"),
	},
	{
		rule: `a try ends the pause for polling hosts`,
		in:   "sidecar/locktable/contest (*Contest).OnFirstRequest",
		find: "if noWait && !c.areOthersKnown(now) {",
		put:  "if false {",
		by:   tableTest("TestTryEndsAQuietPause"),
	},
	{
		rule: `a run of handoffs is interrupted for polling hosts`,
		in:   "sidecar/locktable/contest (*Contest).isTurnOver",
		find: "return v.Grants >= 2 && s.isTired(c.memory, v)",
		put:  "return false",
		by:   tableTest("TestRunOfHandoffsLeavesTheKeyFreeNowAndThen"),
	},
	{
		rule: `a run of handoffs ends after a time while another program waits`,
		in:   "sidecar/locktable/contest (*Contest).isTurnOver",
		find: "had >= int64(cfg.HandoffTime)",
		put:  "int64(cfg.HandoffTime) < 0",
		by:   simulation,
	},
	{
		rule: `a host that had the lock without being subscribed is remembered`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "if c.others() == 0 && !c.remote.isSidecar {",
		put:  "if false {",
		by:   tableTest("TestRunOfHandoffsLeavesTheKeyFreeNowAndThen"),
	},
	{
		rule: `a host subscribes if a waiter waits for long for a local holder`,
		in:   "sidecar/locktable/contest (*Contest).UpdateSubscription",
		find: "isNeeded = a.Due(max(waitsSince, since) + int64(s.cfg.WatchAfter))",
		put:  "_ = since",
		by:   tableTest("TestReleaseByAnotherProgramUnderAHoldIsLookedInto"),
	},
	{
		rule: `a subscription that no waiter needs ends after a few messages`,
		in:   "sidecar/locktable/contest (*Contest).OnUnneededMessage",
		find: "c.unneededMessages >= maxUnneededMessages",
		put:  "false",
		by:   tableTest("TestUnneededSubscriptionEndsAfterAFewMessages"),
	},
	{
		rule: "waiters are refused in parts",
		in:   "sidecar/locktable (*Table).grantNext",
		find: "if left == 0 {",
		put:  "if false {",
		by:   tableTest("TestWaitersAreRefusedInParts"),
	},
	{
		rule: "the search for a deadlock is bounded",
		in:   "sidecar/locktable (*Table).findWaitCycle",
		find: "if steps++; steps > maxSteps {",
		put:  "if steps++; false {",
		by:   tableTest("TestSearchForADeadlockIsBounded"),
	},

	// Tickets and transfers.
	{
		rule: `a ticket is dead when its Drop is sent`,
		in:   "sidecar/locktable/contest (*Place).onDropSent",
		find: `if p.phase != placeNone {
		p.phase = placeLeaving
	}`,
		put: "_ = placeLeaving",
		by:  tableTest("TestTransferOfATicketThatWasGivenUpIsGivenBack"),
	},
	{
		rule: `a dead ticket is not transferred to this host`,
		in:   "sidecar/locktable/contest (*Place).live",
		find: `if p.phase == placeLeaving {
		return 0
	}`,
		put: "",
		by:  tableTest("TestTransferOfATicketThatWasGivenUpIsGivenBack"),
	},
	{
		rule: `a ticket that is given up is dropped before another one is made`,
		in:   "sidecar/locktable/contest (*Contest).decideForWaiter",
		find: "isLeaving := c.place.phase == placeLeaving",
		put:  "isLeaving := false",
		by:   tableTest("TestTicketThatWasGivenUpIsDroppedBeforeTheNextOne"),
	},
	{
		rule: `the Drop of a lock names the ticket that is given up`,
		in:   "sidecar/locktable (*Table).want",
		find: "w.Ticket = q.contest.Ticket()",
		put:  "_ = q.contest.Ticket()",
		by:   tableTest("TestTicketLeavesTheQueueWithTheLastWaiter"),
	},
	{
		rule: `the deadline of a transfer does not count from its message`,
		in:   "sidecar/locktable (*Table).onTransferred",
		find: "c.Transfer(now, validSince+claim.Validity(m.LeaseMS), busySince, m)",
		put:  "c.Transfer(now, now+claim.Validity(m.LeaseMS), busySince, m)",
		by:   tableTest("TestDeadlineOfATransferCountsFromTheLastAnsweredQuestion"),
	},
	{
		rule: `the deadline of a transfer does not count from a question without an answer`,
		in:   "sidecar/locktable/contest (*Place).onTakeSent",
		find: "if p.live() == 0 {",
		put: `p.validSince = now
	if p.live() == 0 {`,
		by: tableTest("TestDeadlineOfATransferCountsFromTheLastAnsweredQuestion"),
	},
	{
		rule: `the deadline of a transfer counts from the last answered question`,
		in:   "sidecar/locktable/contest (*Place).onTakeResult",
		find: "validSince: r.Sent",
		put:  "validSince: max(p.validSince, 1)",
		by:   tableTest("TestDeadlineOfATransferCountsFromTheLastAnsweredQuestion"),
	},
	{
		rule: `a transfer is accepted by its ticket`,
		in:   "sidecar/locktable/contest (*Contest).IsLive",
		find: "{ return c.place.live() == ticket }",
		put:  "{ return c.place.live() != 0 }",
		by:   tableTest("TestTicketThatLeftTheQueueIsNotUsedAgain"),
	},
	{
		rule: `a ticket that Redis took out of the queue is not used again`,
		in:   "sidecar/locktable/contest (*Contest).OnRequeue",
		find: `c.place = Place{}
		c.TryBy(now)`,
		put: "c.TryBy(now)",
		by:  tableTest("TestTicketThatLeftTheQueueIsNotUsedAgain"),
	},
	{
		rule: `a ticket that Redis does not find is not used again`,
		in:   "sidecar/locktable/contest (*Place).onTakeResult",
		find: "case r.Outcome == redisop.Done, r.Outcome == redisop.HeldByOther, p.ticket == id:",
		put:  "case r.Outcome == redisop.Done, p.ticket == id:",
		by:   tableTest("TestTicketThatLeftTheQueueIsNotUsedAgain"),
	},
	{
		rule: `a host whose ticket left the queue asks again`,
		in:   "sidecar/locktable/contest (*Contest).OnRequeue",
		find: `c.place = Place{}
		c.TryBy(now)`,
		put: "c.place = Place{}",
		by:  tableTest("TestTicketThatLeftTheQueueIsNotUsedAgain"),
	},
	{
		rule: `a Take in flight says more of a ticket than a message from before`,
		in:   "sidecar/locktable/contest (*Contest).OnRequeue",
		find: "if c.place.isQueued() && (!m.NamesTicket || m.Ticket == c.place.ticket) && !isBusy {",
		put:  "if c.place.isQueued() && (!m.NamesTicket || m.Ticket == c.place.ticket) {",
		by:   tableTest("TestRequeueDuringATakeChangesNothing"),
	},
	{
		rule: `what replicas did not confirm is asked again`,
		in:   "sidecar/locktable (*Table).onOutcome",
		find: "if r.Outcome == redisop.NotSynced {",
		put:  "if false {",
		by:   tableTest("TestLockThatReplicasDidNotConfirmIsGivenBack"),
	},
	{
		rule: `a confirm waits for a Drop that replicas confirmed`,
		in:   "sidecar/locktable (*Table).onDropDone",
		find: "t.doubtForConfirms(l, op.Has(redisop.CanWait))",
		put:  "t.doubtForConfirms(l, false)",
		by:   tableTest("TestConfirmWaitsForADropThatReplicasConfirmed"),
	},
	{
		rule: `a confirm of a lock that is not known waits for replicas`,
		in:   "sidecar/locktable (*Table).Confirm",
		find: "t.cfg.Durable && !l.holders.isHeld()",
		put:  "false",
		by:   tableTest("TestConfirmOfALockThatIsNotKnownWaitsForReplicas"),
	},
	{
		rule: `a confirm waits for a Take after which replicas had all that came before`,
		in:   "sidecar/locktable (*Table).onOutcome",
		find: "t.doubtForConfirms(l, r.Unsynced || r.Kind != redisop.Take)",
		put:  "t.doubtForConfirms(l, r.Kind != redisop.Take)",
		by:   tableTest("TestConfirmWaitsForATakeThatReplicasConfirmed"),
	}, {
		rule: "a confirm is not answered because a renewal finds another owner",
		in:   "sidecar/locktable (*Table).onOutcome",
		find: "t.doubtForConfirms(l, r.Unsynced || r.Kind != redisop.Take)",
		put:  "t.doubtForConfirms(l, r.Unsynced)",
		by:   test("sidecar/locktable", "TestConfirmWaitsForADropAfterARenewalThatFindsAnotherOwner"),
	},

	{
		rule: `the ticket of a Take that replicas did not confirm may stand`,
		in:   "sidecar/locktable/contest (*Place).onTakeResult",
		find: "case r.Outcome == redisop.Unknown:",
		put: `case r.Outcome == redisop.Unknown:
	case r.Outcome == redisop.NotSynced:
		*p = Place{}`,
		by: tableTest("TestTicketOfATakeThatReplicasDidNotConfirmMayStand"),
	},
	{
		rule: `the ticket of a Take without a result may stand`,
		in:   "sidecar/locktable/contest (*Place).onTakeResult",
		find: "case r.Outcome == redisop.Unknown:",
		put:  "",
		by:   tableTest("TestTicketOfATakeWithoutAResultMayStand"),
	},
	{
		rule: `a host asks again with the ticket that it has`,
		in:   "sidecar/locktable/contest (*Contest).ask",
		find: "w.NotBefore, w.ArriveAt, w.Ticket = c.nextTry, never, c.place.live()",
		put:  "w.NotBefore, w.ArriveAt = c.nextTry, never",
		by:   tableTest("TestWaiterForAnotherHostHasATicketAndWaitsForItsMessage"),
	},
	{
		rule: `a transfer that a Drop in flight gives back needs no further one`,
		in:   "sidecar/locktable/claim (*Claim).GivesBack",
		find: "return c.op.Kind == redisop.Drop && id <= c.op.HoldID",
		put:  "return false",
		by:   tableTest("TestTransferOfATicketThatWasGivenUpIsGivenBack"),
	},
	{
		rule: `the result of a Take in flight confirms a transfer`,
		in:   "sidecar/locktable (*Table).onTransferred",
		find: `case c.IsBusy():
		// The operation in flight was`,
		put: `case c.IsBusy() && c.InFlight().Kind != redisop.Take:
		// The operation in flight was`,
		by: tableTest("TestTransferDuringATakeIsConfirmedByItsResult"),
	},
	{
		rule: `a lock that was transferred during a Take has been passed on for as long as the transfer says`,
		in:   "sidecar/locktable/claim (*Claim).OnTransferInFlight",
		find: "c.op.PassedMS = passedMS",
		put:  "",
		by:   tableTest("TestTransferDuringATakeIsConfirmedByItsResult"),
	},
	{
		rule: `a transfer under a hold has the key set again`,
		in:   "sidecar/locktable (*Table).onTransferred",
		find: "c.OnOverwritten()",
		put:  "",
		by:   tableTest("TestTransferUnderAHoldHasTheKeySetAgain"),
	},
	{
		rule: `a lock that a dead ticket got does not linger`,
		in:   "sidecar/locktable (*Table).onTransferred",
		find: `c.OnOverwritten()
		c.EndLinger()`,
		put: `if c.LingerUntil() == 0 {
			c.OnOverwritten()
		}`,
		by: tableTest("TestLingeringEnds"),
	},
	{
		rule: `a transfer that is not accepted has Redis asked`,
		in:   "sidecar/locktable (*Table).onTransferred",
		find: `t.doubt(l)
		if isLive {
			q.contest.OnTransferUnproved()
		}`,
		put: `if isLive {
			q.contest.OnTransferUnproved()
		}`,
		by: tableTest("TestTransferOfALockThatIsNotKnownIsGivenBack"),
	},
	{
		rule: `a Drop of what the table did not know meets every number of this host`,
		in:   "sidecar/locktable/claim (*Claim).Doubt",
		find: "c.maxHoldID = lastHoldID",
		put:  "",
		by:   tableTest("TestTransferOfALockThatIsNotKnownIsGivenBack"),
	},
	{
		rule: `a waiter asks at once for what may be its own`,
		in:   "sidecar/locktable (*Table).doubt",
		find: "l.queue.contest.TryBy(t.now)",
		put:  "_ = t.now",
		by:   tableTest("TestRecallOfALockThatAClientWaitsForHasItAskedFor"),
	},
	{
		rule: `messages make a bounded number of locks known`,
		in:   "sidecar/locktable (*Table).lockOfMessage",
		find: "if l == nil && t.cells+Cells(m.Name) <= t.cfg.MaxLocks+strayCells {",
		put:  "if l == nil {",
		by:   tableTest("TestLocksThatMessagesAreAboutAreBounded"),
	},
	{
		rule: `a transfer says how many wait`,
		in:   "sidecar/locktable/contest (*Contest).OnTransferred",
		find: "c.memory.hostsWait = m.Waiting > 0",
		put:  "",
		by:   tableTest("TestTurnThatIsOverPassesTheLockOn"),
	},
	{
		rule: "the locks of a renewal group have one offset",
		in:   "sidecar/locktable (*Table).renewalAfter",
		find: "t.renewalDraw(group, 0, period)",
		put:  "t.renewalDraw(uint64(set), 0, period)",
		by:   tableTest("TestRenewalGroupsMeet"),
	},
	{
		rule: "the renewals of a lock move to the offset of its group",
		in:   "sidecar/locktable (*Table).renewalAfter",
		find: "delay = later",
		put:  "delay = later*0 + 1",
		by:   tableTest("TestRenewalGroupsReachTheirOffsets"),
	},
	{
		rule: "thousands of renewals do not begin in one tick",
		in:   "sidecar/locktable (*Table).paceRenewal",
		find: "if p.begun < renewalsPerTick {",
		put:  "if p.begun >= 0 {",
		by:   tableTest("TestManyRenewalsTakeSomeTicks"),
	},
	{
		rule: "a renewal is postponed by half a cell at most",
		in:   "sidecar/locktable (*Table).paceRenewal",
		find: "c.SetRenewAt(min((p.tick+ceilDiv(int64(p.postponed), renewalsPerTick))*int64(wheelTick), latest))",
		put:  "c.SetRenewAt(max((p.tick+ceilDiv(int64(p.postponed), renewalsPerTick))*int64(wheelTick), latest))",
		by:   tableTest("TestManyRenewalsTakeSomeTicks"),
	},
	{
		rule: `a transferred lock is renewed when a third of its lease has passed`,
		in:   "sidecar/locktable (*Table).onTransferred",
		find: "c.SetRenewAt(t.renewalAfter(validSince, moment.MS(m.LeaseMS), t.renewalGroup(l)))",
		put:  "",
		by:   tableTest("TestTransferredLockIsHandedOverHere"),
	},
	{
		rule: "a transferred lock is granted with the first token that came with it",
		in:   "sidecar/locktable/claim (*Claim).Transfer",
		find: "m.LastToken - uint64(m.Tokens) + 1",
		put:  "m.LastToken - uint64(m.Tokens)",
		by:   tableTest("TestTransferredLockIsHandedOverHere"),
	},
	{
		rule: `a transferred lock is granted for a lease that is worth having`,
		in:   "sidecar/locktable (*Table).isCovered",
		find: "return left >= moment.MS(lease)/3",
		put:  "return left > 0",
		by:   tableTest("TestTransferWithLittleLeftOfItsLeaseIsAskedFor"),
	},
	{
		rule: `a recall limits the turn of the host that has the lock`,
		in:   "sidecar/locktable (*Table).onRecalled",
		find: `l.memory.NoteHosts(true)
		t.cool(l)`,
		put: "t.cool(l)",
		by:  tableTest("TestRecallLimitsTheTurnOfTheHostThatHasTheLock"),
	},
	{
		rule: `a recall ends lingering`,
		in:   "sidecar/locktable (*Table).onRecalled",
		find: `l.memory.NoteHosts(true)
		t.cool(l)`,
		put: "",
		by:  tableTest("TestLingeringEnds"),
	},
	{
		rule: `a recall of a lock that is not known has it dropped`,
		in:   "sidecar/locktable (*Table).onRecalled",
		find: `{
	case c.State().IsOurs(): // a Drop in flight passes it on, or has
		l.memory.NoteHosts(true)
		t.cool(l)
	case c.IsBusy():
		if c.InFlight().Kind == redisop.Take {
			l.memory.NoteHosts(true)
		}
	default:
		t.doubt(l)
	}`,
		put: `{
	case c.State().IsOurs(): // a Drop in flight passes it on, or has
		l.memory.NoteHosts(true)
		t.cool(l)
	case c.IsBusy():
		if c.InFlight().Kind == redisop.Take {
			l.memory.NoteHosts(true)
		}
	default:
	}`,
		by: tableTest("TestRecallOfALockThatIsNotKnownHasItDropped"),
	},
	{
		rule: `how many sidecars wait is what the last Take returned`,
		in:   "sidecar/locktable (*Table).onConfirmed",
		find: "l.memory.NoteHosts(r.Waiting > 0)",
		put:  "l.memory.NoteHosts(l.memory.HostsWait() || r.Waiting > 0)",
		by:   tableTest("TestNumberOfWaitingSidecarsIsThatOfTheLastTake"),
	},
	{
		rule: `the journal has a lock for which a ticket may stand`,
		in:   "sidecar/locktable (*lock).hasRemoteState",
		find: "l.holders.isHeld() || l.claim.State() != claim.Absent || l.claim.IsBusy() || l.queue != nil && l.queue.contest.HasPlace()",
		put:  "l.holders.isHeld() || l.claim.State() != claim.Absent || l.claim.IsBusy()",
		by:   tableTest("TestTicketIsInTheJournal"),
	},
	{
		rule: `a host without its channel forgets its tickets`,
		in:   "sidecar/locktable/contest (*Contest).OnUp",
		find: "c.place = Place{} // a",
		put:  "// a",
		by:   tableTest("TestTicketsAskAgainAfterAnOutage"),
	},
	{
		rule: "a result may come after the ticket is forgotten",
		in:   "sidecar/locktable (*Table).Result",
		find: "if op.Has(redisop.Enqueue) && l.queue != nil { // Up",
		put:  "if op.Has(redisop.Enqueue) { // Up",
		by:   tableTest("TestTakeThatEnqueuedMayEndAfterTheChannelIsGone"),
	},
	{
		rule: `an acquire that does not wait does not enqueue`,
		in:   "sidecar/locktable/contest (*Contest).mayEnqueue",
		find: "return v.IsListening && (c.place.live() != 0 || v.Waiting > 1 || !v.First.Tries)",
		put:  "return v.IsListening",
		by:   tableTest("TestAcquireThatDoesNotWaitDoesNotEnqueue"),
	},
	{
		rule: `a host without its channel does not enqueue`,
		in:   "sidecar/locktable/contest (*Contest).mayEnqueue",
		find: "v.IsListening && (c.place.live() != 0 || v.Waiting > 1 || !v.First.Tries)",
		put:  "(c.place.live() != 0 || v.Waiting > 1 || !v.First.Tries)",
		by:   tableTest("TestSidecarWithoutItsChannelDoesNotEnqueue"),
	},
	{
		rule: "a Drop has the lease of what it may pass on",
		in:   "sidecar/locktable (*Table).want",
		find: "w.Kind, w.LeaseMS = claim.WantNothing, t.leaseMS",
		put:  "w.Kind = claim.WantNothing",
		by:   tableTest("TestEveryDropHasALease"),
	},

	// Turns between sidecars.
	{
		rule: `a turn ends by its time while another sidecar waits`,
		in:   "sidecar/locktable/contest (*Contest).isTurnOver",
		find: "case hostsWait && had >= s.turn(), (hostsWait || c.areForeignKnown(v.Now)) && had >= int64(cfg.HandoffTime):",
		put:  "case (hostsWait || c.areForeignKnown(v.Now)) && had >= int64(cfg.HandoffTime):",
		by:   tableTest("TestTurnEndsByItsTime"),
	},
	{
		rule: `a turn is two round trips long`,
		in:   "sidecar/locktable/contest (*Shared).turn",
		find: "max(2*s.trip, int64(200*time.Microsecond))",
		put:  "max(s.trip, int64(200*time.Microsecond))",
		by:   tableTest("TestTurnIsAsLongAsRedisIsFar"),
	},
	{
		rule: `a turn is no longer than 20 ms`,
		in:   "sidecar/locktable/contest (*Shared).turn",
		find: "20*time.Millisecond",
		put:  "time.Second",
		by:   tableTest("TestTurnIsAsLongAsRedisIsFar"),
	},
	{
		rule: `a turn is no shorter than 200 µs`,
		in:   "sidecar/locktable/contest (*Shared).turn",
		find: "int64(200*time.Microsecond)",
		put:  "0",
		by:   tableTest("TestTurnIsAsLongAsRedisIsFar"),
	},
	{
		rule: `a host whose turn is over stands behind all others at once`,
		in:   "sidecar/locktable/contest (*Contest).mayPipeline",
		find: "return c.mayEnqueue(v) && (isPlaced || c.memory.hostsWait && v.DropPassedMS < int64(redisop.MS(redisop.FreeAfter)))",
		put:  "return false && isPlaced",
		by:   tableTest("TestTurnThatIsOverPassesTheLockOn"),
	},
	{
		rule: `a waiter of a lock in order arrives when an operation is sent after it came`,
		in:   "sidecar/locktable (*queue).arrive",
		find: "q.newcomer != nil && q.newcomer.request.since <= sentAt",
		put:  "q.newcomer != nil",
		by:   tableTest("TestWaitersOfAHolderArriveAtRedis"),
	},
	{
		rule: `a lock in order passes on here only to waiters that arrived before others`,
		in:   "sidecar/locktable/contest (*served).includes",
		find: "w.Arrived != 0 && w.Arrived <= s.upTo",
		put:  "w.Arrived != 0",
		by:   tableTest("TestLockPassesOnHereIfNoOtherHostWaitsBefore"),
	},
	{
		rule: `arrivals do not keep a ticket from being refreshed`,
		in:   "sidecar/locktable/claim (*Claim).choose",
		find: "case w.Kind == WantForQueue && (c.state.IsOurs() || a.Due(w.NotBefore)):",
		put:  "case w.Kind == WantForQueue && (c.state.IsOurs() || a.Due(w.NotBefore) && w.ArriveAt == moment.Never):",
		by:   tableTest("TestArrivalsDoNotKeepTheTicketFromBeingRefreshed"),
	},
	{
		rule: "a renewal does not wait for the result of an Arrive",
		in:   "sidecar/locktable/claim (*Claim).choose",
		find: "if c.isAsking && w.Kind != WantHold {",
		put:  "if c.isAsking {",
		by:   tableTest("TestRenewalDoesNotWaitForAnArrive"),
	},
	{
		rule: "a release waits for the result of an Arrive",
		in:   "sidecar/locktable/claim (*Claim).choose",
		find: "if c.isAsking && w.Kind != WantHold {",
		put:  "if false {",
		by:   tableTest("TestReleaseWaitsForAnArrive"),
	},
	{
		rule: "a lock with an Arrive in flight is not forgotten",
		in:   "sidecar/locktable/claim (*window).IsIdle",
		find: "func (w *window) IsIdle() bool { return w.phase == windowIdle && !w.isAsking }",
		put:  "func (w *window) IsIdle() bool { return w.phase == windowIdle }",
		by:   tableTest("TestRenewalDoesNotWaitForAnArrive"),
	},
	{
		rule: `a ticket is not used for a waiter that came after the one for which it stands`,
		in:   "sidecar/locktable/contest (*Contest).ask",
		find: "case c.standsForAnother(first):",
		put:  "case false:",
		by:   tableTest("TestTicketOfAWaiterThatIsGoneIsNotUsedForTheNext"),
	},
	{
		rule: `a ticket is used if Redis refuses to say when its waiter arrived`,
		in:   "sidecar/locktable/contest (*Contest).standsForAnother",
		find: "c.place.live() != 0 && !first.Tries && first.Arrived == 0 && first.Since > c.place.since && !c.order.isDenied",
		put:  "c.place.live() != 0 && !first.Tries && first.Arrived == 0 && first.Since > c.place.since",
		by:   tableTest("TestTicketIsUsedIfArrivalsAreDenied"),
	},
	{
		rule: `a lock in order stays here for what came before the Take that got it, if no other host waits`,
		in:   "sidecar/locktable/contest (*Contest).OnTaken",
		find: "if r.Waiting == 0 {",
		put:  "if false {",
		by:   tableTest("TestLockIsKeptForRequestsThatCameBeforeTheTake"),
	},
	{
		rule: `a lock in order is not kept by arrivals from before Redis's clock was set back`,
		in:   "sidecar/locktable/contest (*Contest).OnArrived",
		find: "c.order.served.upTo = upTo //",
		put:  "c.order.served.upTo = max(c.order.served.upTo, upTo) //",
		by:   tableTest("TestClockThatGoesBackDoesNotKeepTheLockHere"),
	},
	{
		rule: `a try is not refused for hosts that are not known to want the lock`,
		in:   "sidecar/locktable/contest (*Contest).RefusesTries",
		find: "if c.phase == yielding && isDropping {",
		put:  "if false {",
		by:   tableTest("TestTryIsNotRefusedForRivalsThatAreNotKnown"),
	},
	{
		rule: `a host that gives up only a ticket does not back off`,
		in:   "sidecar/locktable/contest (*Contest).decideForWaiter",
		find: "isOurs && c.areForeignKnown(v.Now)",
		put:  "c.areForeignKnown(v.Now)",
		by:   tableTest("TestHostThatGivesUpOnlyATicketDoesNotBackOff"),
	},
	{
		rule: `a ticket moves if its waiter is gone`,
		in:   "sidecar/locktable/contest (*Contest).mustMove",
		find: "c.place.isQueued() && first.Arrived != 0 && first.Arrived != c.place.arrived",
		put:  "c.place.isQueued() && first.Arrived == 1",
		by:   tableTest("TestTicketMovesIfItsWaiterIsGone"),
	},
	{
		rule: `a Take that finds a transferred ticket is served as that ticket`,
		in:   "sidecar/locktable/contest (*Contest).OnTransferredInFlight",
		find: "{ c.order.toServe = c.place.served() }",
		put:  "{}",
		by:   tableTest("TestTransferForAWaiterThatIsGoneIsNotForTheNext"),
	},
	{
		rule: "a fair acquire does not use a lock that lingers",
		in:   "sidecar/locktable (*Table).Acquire",
		find: "t.cool(l) // a local waiter is not",
		put:  "// a local waiter is not",
		by:   tableTest("TestFairAcquireDoesNotUseALingeringLock"),
	},
	{
		rule: `a lock in order has no turns`,
		in:   "sidecar/locktable/contest (*Contest).isTurnOver",
		find: "hostsWait := c.memory.hostsWait && !v.isInOrder()",
		put:  "hostsWait := c.memory.hostsWait",
		by:   tableTest("TestLockInOrderHasNoTurns"),
	},
	{
		rule: `a lock in order is left free for the pause after its Drop`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "if r.LeftFree {",
		put:  "if false {",
		by:   tableTest("TestLockInOrderIsLeftFreeForAMoment"),
	},
	{
		rule: `a failed Arrive is not sent again at once`,
		in:   "sidecar/locktable/contest (*Contest).OnArriveFailed",
		find: "c.order.retryAt, c.order.isDenied = retryAt, r.Outcome == redisop.Refused",
		put:  "c.order.retryAt = 0",
		by:   tableTest("TestFailedArriveIsAskedAgain"),
	},
	{
		rule: `without a place in the queue there is no order`,
		in:   "sidecar/locktable/contest (*View).isInOrder",
		find: "return v.WantsOrder && v.IsListening",
		put:  "return v.WantsOrder",
		by:   tableTest("TestFairAcquireWithoutAPlaceInTheQueue"),
	},
	{
		rule: `a fair acquire that does not wait is a try`,
		in:   "sidecar/locktable (*Table).wantsOrder",
		find: "req.WaitMS != 0 && (req.Fair || slices.ContainsFunc(t.cfg.Fair, func(p NamePattern) bool { return p.Matches(req.Name) }))",
		put:  "(req.Fair || slices.ContainsFunc(t.cfg.Fair, func(p NamePattern) bool { return p.Matches(req.Name) }))",
		by:   tableTest("TestFairAcquireThatDoesNotWaitIsATry"),
	},
	{
		rule: `no Take follows a Drop that may leave the lock free`,
		in:   "sidecar/locktable/contest (*Contest).mayPipeline",
		find: "c.memory.hostsWait && v.DropPassedMS < int64(redisop.MS(redisop.FreeAfter))",
		put:  "c.memory.hostsWait",
		by:   tableTest("TestTimeWithoutAFreeMomentAddsUpOverHosts"),
	},
	{
		rule: `a host asks at once for a lock that it passed on`,
		in:   "sidecar/locktable/contest (*Contest).OnDropped",
		find: "c.phase != yielding || r.Passed",
		put:  "c.phase != yielding",
		by:   tableTest("TestTimeWithoutAFreeMomentAddsUpOverHosts"),
	},
	{
		rule: `a lock that Redis left free is left free by the host that released it`,
		in:   "sidecar/locktable/contest (*Contest).OnDropped",
		find: "!r.Paused && (c.phase != yielding || r.Passed)",
		put:  "(c.phase != yielding || r.Passed)",
		by:   tableTest("TestLockThatRedisLeavesFreeIsNotTakenAtOnce"),
	},
	{
		rule: `other sidecars that wait make no longer pause`,
		in:   "sidecar/locktable/contest (*Contest).OnDropped",
		find: "c.leaveFree(now, s.freePause(c.areForeignKnown(now) || r.Paused && r.Listeners.MayExist()))",
		put:  "c.leaveFree(now, s.freePause(!isQuiet))",
		by:   tableTest("TestTimeWithoutAFreeMomentAddsUpOverHosts"),
	},
	{
		rule: `a turn begins when the lock comes back`,
		in:   "sidecar/locktable/contest (*Contest).OnAcquired",
		find: "if !wasOurs && c.phase == yielding {",
		put:  "if false {",
		by:   tableTest("TestHostThatYieldsToNoOneGoesOn"),
	},
	{
		rule: `the time without a free moment adds up over hosts`,
		in:   "sidecar/locktable (*Table).onTransferred",
		find: "now - moment.MS(m.PassedMS) - t.contests.Way(now)",
		put:  "now - t.contests.Way(now)",
		by:   tableTest("TestTimeWithoutAFreeMomentAddsUpOverHosts"),
	},
	{
		rule: `the time that a lock is on its way to the next host has no free moment either`,
		in:   "sidecar/locktable (*Table).onTransferred",
		find: "now - moment.MS(m.PassedMS) - t.contests.Way(now)",
		put:  "now - moment.MS(m.PassedMS)",
		by:   tableTest("TestTimeWithoutAFreeMomentAddsUpOverHosts"),
	},
	{
		rule: `a sidecar without a connection is no foreign client`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "isQueued && (r.Recall != redisop.RecallMissed || redisop.IsOfSidecar(r.Field))",
		put:  "isQueued && r.Recall != redisop.RecallMissed",
		by:   tableTest("TestHostSubscribesOnlyIfTheHolderIsAForeignClient"),
	},
	{
		rule: `an old answer does not say how long a lock is on its way now`,
		in:   "sidecar/locktable/contest (*Shared).Way",
		find: "now-s.answeredAt > int64(s.cfg.QuietTime)",
		put:  "false",
		by:   test("sidecar/locktable/contest", "TestOldAnswerDoesNotSayHowLongALockIsOnItsWay"),
	},
	{
		rule: `a lock that is left free is not looked at if clients are subscribed`,
		in:   "sidecar/locktable/contest (*Contest).lookForPoller",
		find: "if left := c.backoffUntil - now - 2*s.trip; s.trip > 0 && left > 0 && !isKnown && c.others() <= 0 {",
		put:  "if left := c.backoffUntil - now - 2*s.trip; s.trip > 0 && left > 0 && !isKnown {",
		by:   tableTest("TestLockOfSubscribersIsNotLookedAt"),
	},
	{
		rule: "the time without a free moment goes on when a Take follows a Drop",
		in:   "sidecar/locktable/claim (*Claim).Send",
		find: "c.busySince = busySince",
		put:  "_ = busySince",
		by:   tableTest("TestALockIsNotTakenBackFromUnderOthers"),
	},
	{
		rule: `a Drop says for how long the lock has been passed on`,
		in:   "sidecar/locktable/claim (*Claim).choose",
		find: "redisop.Op{Kind: redisop.Drop, HoldID: c.maxHoldID, Count: 1, LeaseMS: w.LeaseMS, Asked: redisop.Asked{Ticket: w.Ticket}, PassedMS: max(c.PassedMS(a.Now), w.PassedMS)}",
		put:  "redisop.Op{Kind: redisop.Drop, HoldID: c.maxHoldID, Count: 1, LeaseMS: w.LeaseMS, Asked: redisop.Asked{Ticket: w.Ticket}}",
		by:   tableTest("TestTimeWithoutAFreeMomentAddsUpOverHosts"),
	},
	{
		rule: `the first of the queue leaves a lock free for the pause of the message`,
		in:   "sidecar/locktable (*Table).Message",
		find: "l.queue.contest.OnFreed(&t.contests, now, moment.MS(m.PauseMS), l.queue.firstTries())",
		put:  "l.queue.contest.OnFreed(&t.contests, now, 0, l.queue.firstTries())",
		by:   tableTest("TestFreedLockIsAskedForAfterItsPause"),
	},
	{
		rule: `the first of the queue asks for a lock that was left free`,
		in:   "sidecar/locktable (*Table).Message",
		find: "l.queue.contest.OnFreed(&t.contests, now, moment.MS(m.PauseMS), l.queue.firstTries())",
		put:  "_ = l.queue.firstTries()",
		by:   tableTest("TestFreedLockIsAskedForAfterItsPause"),
	},
	{
		rule: `an acquire that does not wait is not kept from a lock that was left free`,
		in:   "sidecar/locktable/contest (*Contest).OnFreed",
		find: `if noWait {
		pause = 0
	}`,
		put: "_ = noWait",
		by:  tableTest("TestFreedLockIsNotKeptFromAnAcquireThatDoesNotWait"),
	},
	{
		rule: `hosts ask in their order when a lease ends`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "expiry += int64(r.Rank) * expirySpacing",
		put:  "_ = expirySpacing",
		by:   tableTest("TestHostsAskInTheirOrderWhenALeaseEnds"),
	},
	{
		rule: `a host shows Redis that it lives`,
		in:   "sidecar/locktable/contest (*Shared).refreshPause",
		find: "pause := min(int64(s.cfg.Poll), int64(s.lease)/6)",
		put:  "pause := int64(s.lease) / 2",
		by:   tableTest("TestTicketIsRefreshed"),
	},
	{
		rule: `a ticket is refreshed a sixth of a lease apart`,
		in:   "sidecar/locktable/contest (*Shared).refreshPause",
		find: "pause := min(int64(s.cfg.Poll), int64(s.lease)/6)",
		put:  "pause := int64(s.cfg.Poll)",
		by:   tableTest("TestTicketIsRefreshed"),
	},
	{
		rule: `a host with a ticket does not poll a sidecar`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "if isNotified || isQueued && c.sub == subscribed {",
		put:  "if isQueued && c.sub == subscribed {",
		by:   tableTest("TestWaiterForAnotherHostHasATicketAndWaitsForItsMessage"),
	},
	{
		rule: `a host with a ticket polls a holder that is a foreign client`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "if isNotified || isQueued && c.sub == subscribed {",
		put:  "if isQueued {",
		by:   tableTest("TestHostThatMayNotSubscribePollsAHolderThatIsNoSidecar"),
	},
	{
		rule: `a host subscribes if the holder is a foreign client`,
		in:   "sidecar/locktable/contest (*Contest).UpdateSubscription",
		find: "case isAway && !c.isNotified():",
		put:  "case isAway && !p.isQueued():",
		by:   tableTest("TestHostSubscribesOnlyIfTheHolderIsAForeignClient"),
	},
	{
		rule: `only the first two hosts of the queue subscribe`,
		in:   "sidecar/locktable/contest (*Contest).isNotified",
		find: "return c.place.isQueued() && (c.remote.isSidecar || c.place.rank >= 2)",
		put:  "return c.place.isQueued() && c.remote.isSidecar && c.place.rank < 2",
		by:   tableTest("TestHostSubscribesOnlyIfTheHolderIsAForeignClient"),
	},
	{
		rule: `a holder that got no recall because it has just got the lock is a sidecar`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "r.Recall != redisop.RecallMissed",
		put:  "r.Recall == redisop.RecallReceived",
		by:   tableTest("TestHostSubscribesOnlyIfTheHolderIsAForeignClient"),
	},
	{
		rule: `the first of the queue subscribes if it waits for long`,
		in:   "sidecar/locktable/contest (*Contest).UpdateSubscription",
		find: "case isHeld || isAway && p.rank == 0:",
		put:  "case isHeld:",
		by:   tableTest("TestHostSubscribesOnlyIfTheHolderIsAForeignClient"),
	},
	{
		rule: `a host does not subscribe before Redis has answered`,
		in:   "sidecar/locktable/contest (*Contest).UpdateSubscription",
		find: "isNeeded, isPolling = c.sub != unsubscribed, c.isPolling // until",
		put:  "isNeeded = true // until",
		by:   tableTest("TestHostDoesNotSubscribeWhileItsTicketIsOnItsWay"),
	},
	{
		rule: `a host that asks again stays subscribed`,
		in:   "sidecar/locktable/contest (*Contest).UpdateSubscription",
		find: "isNeeded, isPolling = c.sub != unsubscribed, c.isPolling // until",
		put:  "// until",
		by:   tableTest("TestHostWithoutAPlaceStaysSubscribed"),
	},

	// Lingering.
	{
		rule: `only a hot lock lingers`,
		in:   "sidecar/locktable (*Table).linger",
		find: "!l.memory.IsHot() || l.waiting() > 0",
		put:  "l.waiting() > 0",
		by:   tableTest("TestWaiterForAnotherHostHasATicketAndWaitsForItsMessage"),
	},
	{
		rule: `a lock is hot if it is acquired soon after its release`,
		in:   "sidecar/locktable/contest (*Shared).OnFirstAcquire",
		find: "s.isHotAt(now, m.hotUntil)",
		put:  "m.hotUntil != 0",
		by:   tableTest("TestOnlyALockThatIsAcquiredSoonAfterItsReleaseLingers"),
	},
	{
		rule: `a lock lingers as long as two answers of Redis take`,
		in:   "sidecar/locktable/contest (*Shared).lingerTime",
		find: "max(2*s.latency, held)",
		put:  "max(s.linger, held)",
		by:   tableTest("TestLockLingersForTwoAnswersOfRedisOrAsLongAsItWasHeld"),
	},
	{
		rule: `a lock lingers as long as it was held`,
		in:   "sidecar/locktable/contest (*Shared).lingerTime",
		find: "max(2*s.latency, held)",
		put:  "2*s.latency",
		by:   tableTest("TestLockLingersForTwoAnswersOfRedisOrAsLongAsItWasHeld"),
	},
	{
		rule: `one slow answer does not make locks linger`,
		in:   "sidecar/locktable/contest (*Shared).noteLatency",
		find: "(min(d, 2*s.latency) - s.latency) / 8",
		put:  "(d - s.latency) / 8",
		by:   tableTest("TestOneSlowAnswerOfRedisDoesNotMakeLocksLinger"),
	},
	{
		rule: `a lock is hot although the table has forgotten it`,
		in:   "sidecar/locktable/contest (*Shared).Remember",
		find: "return Memory{pollerAt: s.pollers[i], hotUntil: s.hot[i]}",
		put:  "return Memory{pollerAt: s.pollers[i]}",
		by:   tableTest("TestLockThatLingersIsGrantedWithoutAnOperation"),
	},
	{
		rule: `a lock lingers for its time`,
		in:   "sidecar/locktable/contest (*Shared).decideForNobody",
		find: "!a.Due(min(v.LingerUntil, v.LingerLatest))",
		put:  "!a.Due(v.LingerLatest)",
		by:   tableTest("TestLingeringEndsAfterItsTime"),
	},
	{
		rule: `a lock does not linger until its lease ends`,
		in:   "sidecar/locktable/contest (*Shared).decideForNobody",
		find: "!a.Due(min(v.LingerUntil, v.LingerLatest))",
		put:  "!a.Due(v.LingerUntil)",
		by:   tableTest("TestLockDoesNotLingerUntilItsLeaseEnds"),
	},
	{
		rule: `no lock lingers if it is configured so`,
		in:   "sidecar/locktable/contest (*Shared).OnFirstAcquire",
		find: "mayLinger && s.cfg.Linger != moment.SpanOf(0) && s.isHotAt(now, m.hotUntil)",
		put:  "mayLinger && s.isHotAt(now, m.hotUntil)",
		by:   tableTest("TestNoLingerIsNever"),
	},
	{
		rule: `no lock lingers while the sidecar stops`,
		in:   "sidecar/locktable (*Table).mayLinger",
		find: "s.isUp() && s.isListening && !t.isStopping",
		put:  "s.isUp() && s.isListening",
		by:   tableTest("TestLingeringEnds"),
	},
	{
		rule: `no lock lingers without the own channel`,
		in:   "sidecar/locktable (*Table).mayLinger",
		find: "s.isUp() && s.isListening && !t.isStopping",
		put:  "s.isUp() && !t.isStopping",
		by:   tableTest("TestLingeringEnds"),
	},
	{
		rule: `a lock does not linger while a client waits for its release`,
		in:   "sidecar/locktable/contest isWanted",
		find: "return c.areOthersKnown(v.Now) || v.HasConfirms",
		put:  "return c.areOthersKnown(v.Now)",
		by:   tableTest("TestLingeringEnds"),
	},
	{
		rule: `a lock with subscribers does not linger`,
		in:   "sidecar/locktable/contest isWanted",
		find: "return m.hostsWait || m.subscribers != 0",
		put:  "return m.hostsWait",
		by:   tableTest("TestLockWithSubscribersDoesNotLinger"),
	},
	{
		rule: `a lock that sidecars wait for does not linger`,
		in:   "sidecar/locktable/contest isWanted",
		find: "return m.hostsWait || m.subscribers != 0",
		put:  "return m.subscribers != 0",
		by:   tableTest("TestLockThatSidecarsWaitForDoesNotLinger"),
	},
	{
		rule: `a lock whose data Redis may have lost does not linger`,
		in:   "sidecar/locktable/contest (*Shared).decideForNobody",
		find: "v.IsSpare && !v.IsBusy",
		put:  "!v.IsBusy",
		by:   tableTest("TestLingeringEnds"),
	},
	{
		rule: "a lock that another host has is not hot",
		in:   "sidecar/locktable (*Table).onOutcome",
		find: `l.forgetClaim(claim.Absent)
		t.cool(l)`,
		put: "l.forgetClaim(claim.Absent)",
		by:  tableTest("TestLockThatAnotherHostHadInBetweenIsNotHot"),
	},
	{
		rule: "a lock whose tokens cannot be reserved does not linger",
		in:   "sidecar/locktable (*Table).reserveFailed",
		find: `t.cool(l)
	if l.queue != nil {
		l.queue.drawAt = now + int64(reservePause)
	}`,
		put: `if l.queue != nil {
		l.queue.drawAt = now + int64(reservePause)
	}`,
		by: tableTest("TestHotLockWhoseTokensCannotBeReservedIsDropped"),
	},
	{
		rule: `a lock that lingers is left free now and then`,
		in:   "sidecar/locktable/contest (*Shared).decideForNobody",
		find: "case v.IsReleased && v.Grants >= 2 && isTired:",
		put:  "case false:",
		by:   tableTest("TestLockThatLingersIsLeftFreeNowAndThen"),
	},
	{
		rule: `a pause lasts although no client waits`,
		in:   "sidecar/locktable/contest (*Contest).IsIdle",
		find: `{
	isForeignKnown := holdsClaim && a.Now < c.foreignUntil
	return c.place.phase == placeNone && c.sub == unsubscribed && c.phase != yielding && !isForeignKnown &&
		a.Due(c.backoffUntil) // the next client must not end a pause that the contest made
}`,
		put: `{
	isForeignKnown := holdsClaim && a.Now < c.foreignUntil
	return c.place.phase == placeNone && c.sub == unsubscribed && c.phase != yielding && !isForeignKnown // the next client must not end a pause that the contest made
}`,
		by: tableTest("TestLockThatLingersIsLeftFreeNowAndThen"),
	},
	{
		rule: `the table forgets a lock when its pause ends`,
		in:   "sidecar/locktable/contest (*Contest).IsIdle",
		find: "a.Due(c.backoffUntil) //",
		put:  "a.Now >= c.backoffUntil //",
		by:   tableTest("TestPauseOfALockThatNoClientWantsEnds"),
	},
	{
		rule: "Redis gets the numbers of the holds of a hot lock",
		in:   "sidecar/locktable/claim (*Claim).chooseForHold",
		find: "syncDelay = hotSyncDelay",
		put:  "syncDelay = 1 << 50",
		by:   tableTest("TestHotLockIsSyncedEach50MS"),
	},
	{
		rule: "Redis does not get the number of each hold of a hot lock",
		in:   "sidecar/locktable/claim (*Claim).chooseForHold",
		find: "syncDelay = hotSyncDelay",
		put:  "",
		by:   tableTest("TestHotLockIsSyncedEach50MS"),
	},
	{
		rule: "tokens of a hot lock are reserved before the last one is granted",
		in:   "sidecar/locktable/claim (*Claim).chooseForHold",
		find: "max(1, w.Tokens/4)",
		put:  "1",
		by:   tableTest("TestTokensOfAHotLockAreReservedBeforeTheLast"),
	},
	{
		rule: "many tokens are drawn for a hot lock",
		in:   "sidecar/locktable (*Table).want",
		find: "if l.memory.IsHot() || v.view.Waiting > 1 {",
		put:  "if v.view.Waiting > 1 {",
		by:   tableTest("TestTokensOfAHotLockAreReservedBeforeTheLast"),
	},
	{
		rule: "a hold that was not released does not linger",
		in:   "sidecar/locktable (*Table).endHold",
		find: `t.unlinkHold(h)
	h.uncountHold()`,
		put: `t.unlinkHold(h)
	defer t.linger(t.visit(t.now, h.lock), h.granted)
	h.uncountHold()`,
		by: tableTest("TestOnlyAReleasedLockLingers"),
	},

	// Confirmations and limits.
	{
		rule: "a release is confirmed when Redis has executed it",
		in:   "sidecar/locktable (*Table).answerConfirms",
		find: `q.refusal == "" && !l.holders.isHeld() && (l.claim.State() != claim.Absent || l.claim.IsBusy())`,
		put:  "l.claim.State() > claim.Confirmed",
		by:   simulation,
	},
	{
		rule: "a confirmation is refused if Redis refuses the release",
		in:   "sidecar/locktable (*Table).onOutcome",
		find: "l.queue.refusal = r.Msg",
		put:  "",
		by:   tableTest("TestConfirmIsAnsweredWhenRedisHasExecutedTheRelease"),
	},
	{
		rule: "confirmations are answered in parts",
		in:   "sidecar/locktable (*Table).answerConfirms",
		find: "n := min(len(q.confirms), t.cfg.MaxWork)",
		put:  "n := len(q.confirms)",
		by:   tableTest("TestConfirmsAreAnsweredInParts"),
	},
	{
		rule: "confirmations count for their user",
		in:   "sidecar/locktable (*Table).Confirm",
		find: "s.user.waiters++",
		put:  "",
		by:   tableTest("TestConfirmsOfEndedSessionsCount"),
	},
	{
		rule: "confirmations count in the limit of a session's waiters",
		in:   "sidecar/locktable (*Table).noRoomToWait",
		find: "case len(s.requests)+len(s.confirms) >= t.cfg.MaxWaiters:",
		put:  "case len(s.requests) >= t.cfg.MaxWaiters:",
		by:   tableTest("TestConfirmIsAnsweredWhenRedisHasExecutedTheRelease"),
	},
	{
		rule: "a session does not hold more than it may",
		in:   "sidecar/locktable (*Table).isFull",
		find: "return s.holds.len >= t.cfg.MaxHolds",
		put:  "return false",
		by:   tableTest("TestEachLimitIsNamedInItsRefusal"),
	},
	{
		rule: "a session does not wait for more than it may",
		in:   "sidecar/locktable (*Table).noRoomToWait",
		find: "case len(s.requests)+len(s.confirms) >= t.cfg.MaxWaiters:",
		put:  "case false:",
		by:   tableTest("TestEachLimitIsNamedInItsRefusal"),
	},
	{
		rule: "a sidecar does not know more locks than it may",
		in:   "sidecar/locktable (*Table).noRoomForName",
		find: "case t.cells+cells > most:",
		put:  "case t.cells+cells > 2*most:",
		by:   tableTest("TestNoUserGetsAllOfMaxLocks"),
	},
	{
		rule: "a user does not have all locks of a sidecar",
		in:   "sidecar/locktable (*Table).noRoomForName",
		find: "case u.cells+cells > share:",
		put:  "case false:",
		by:   tableTest("TestNoUserGetsAllOfMaxLocks"),
	},
	{
		rule: "a user does not have all waiters of a sidecar",
		in:   "sidecar/locktable (*Table).noRoomToWait",
		find: "case s.user.waiters >= share:",
		put:  "case false:",
		by:   tableTest("TestNoUserWaitsForAllOfMaxLocks"),
	},
	{
		rule: "a part of a limit is reserved for administrators",
		in:   "sidecar/locktable Unreserved",
		find: "func Unreserved(limit int) int { return max(1, limit-max(1, limit/16)) }",
		put:  "func Unreserved(limit int) int { return limit }",
		by:   tableTest("TestNoUserWaitsForAllOfMaxLocks"),
	},
	{
		rule: "a user does not give more new names than it may",
		in:   "sidecar/locktable (*Table).noRoomForName",
		find: "case u.namesUntil-now > int64(namesWithin) && !t.isPrivileged(u):",
		put:  "case false:",
		by:   tableTest("TestNewNamesOfAUserAreBounded"),
	},
	{
		rule: "a lock that passes to another user counts as that user's",
		in:   "sidecar/locktable (*Table).charge",
		find: `was.cells -= cells
		t.forgetIfIdle(was)`,
		put: "t.forgetIfIdle(was)",
		by:  tableTest("TestNoUserGetsAllOfMaxLocks"),
	},
	{
		rule: "a transfer is accepted only if the server that executed it is known",
		in:   "sidecar/redisop Conn.IsSame",
		find: "return c.isKnown && c == other",
		put:  "return c == other",
		by:   tableTest("TestTransferOfAServerThatIsNotKnownIsAskedFor"),
	},
	{
		rule: "a transfer is accepted only over the connection over which its ticket was answered",
		in:   "sidecar/redisop Conn.IsSame",
		find: "return c.isKnown && c == other",
		put:  "return c.isKnown && other.isKnown",
		by:   tableTest("TestTransferThatIsNotProvedIsAskedFor"),
	},
	{
		rule: `a transfer is accepted only if it is proved`,
		in:   "sidecar/locktable (*Table).onTransferred",
		find: "case isLive && !l.holders.isHeld() && q.contest.IsProof(m):",
		put:  "case isLive && !l.holders.isHeld():",
		by:   tableTest("TestTransferThatIsNotProvedIsAskedFor"),
	},
	{
		rule: `a lock that a Take finds after a transfer is the one of the ticket's arrival`,
		in:   "sidecar/locktable/contest (*order).onTakeSent",
		find: "p.mayHaveLock || op.Arrived == 0 && op.Ticket != 0",
		put:  "op.Arrived == 0 && op.Ticket != 0",
		by:   tableTest("TestTransferThatIsNotProvedIsOfTheWaiterOfTheTicket"),
	},
	{
		rule: `a requeue of another ticket changes nothing`,
		in:   "sidecar/locktable/contest (*Contest).OnRequeue",
		find: "(!m.NamesTicket || m.Ticket == c.place.ticket)",
		put:  "true",
		by:   tableTest("TestRequeueOfAnotherTicketChangesNothing"),
	},
	{
		rule: `only the first of the queue asks after a free moment`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "case r.Rank > 0:",
		put:  "case false:",
		by:   tableTest("TestOnlyTheFirstOfTheQueueAsksAfterAFreeMoment"),
	},
	{
		rule: `one slow answer makes no longer round trip`,
		in:   "sidecar/locktable/contest (*Shared).noteTrip",
		find: "s.trip += (min(d, s.longestWay()) - s.trip) / 1024",
		put:  "s.trip = d",
		by:   tableTest("TestRoundTripIsThatOfTheShortAnswers"),
	},
	{
		rule: `a round trip that has become longer is noticed`,
		in:   "sidecar/locktable/contest (*Shared).noteTrip",
		find: "s.trip += (min(d, s.longestWay()) - s.trip) / 1024",
		put:  "s.trip += 0",
		by:   tableTest("TestRoundTripIsThatOfTheShortAnswers"),
	},
	{
		rule: `a lock without a token does not linger`,
		in:   "sidecar/locktable/claim (*Claim).IsSpare",
		find: "return c.state == Confirmed && c.HasTokens()",
		put:  "return c.state == Confirmed",
		by:   tableTest("TestLockWithoutATokenDoesNotLinger"),
	},
	{
		rule: `a lock with an operation in flight does not linger`,
		in:   "sidecar/locktable/contest (*Shared).decideForNobody",
		find: "v.IsSpare && !v.IsBusy",
		put:  "v.IsSpare",
		by:   tableTest("TestLockDoesNotLingerWhileAnOperationIsInFlight"),
	},
	{
		rule: `a lock that another host wants lingers no more`,
		in:   "sidecar/locktable/contest (*Shared).decideForNobody",
		find: "v.LingerUntil == 0 || !v.MayLinger || isWanted(m, c, v)",
		put:  "v.LingerUntil == 0 || !v.MayLinger",
		by:   tableTest("TestLingeringEnds"),
	},
	{
		rule: `a ticket that is not known to stand does not move`,
		in:   "sidecar/locktable/contest (*Contest).mustMove",
		find: "c.place.isQueued() && first.Arrived != 0",
		put:  "first.Arrived != 0",
		by:   tableTest("TestHostThatLostItsTicketDoesNotAskAtEachAnswer"),
	},
	{
		rule: `an Arrive that finds a queue says that others wait`,
		in:   "sidecar/locktable (*Table).onArrived",
		find: "if isOurs && r.FirstArrived != 0 {",
		put:  "if false {",
		by:   tableTest("TestReleaseIsForTheQueueThatAnArriveFound"),
	},
	{
		rule: `a free moment is over when the lock is found taken`,
		in:   "sidecar/locktable/contest (*Contest).OnHeldByOther",
		find: "c.backoffUntil = min(c.backoffUntil, now) //",
		put:  "//",
		by:   tableTest("TestFreeMomentIsOverWhenTheLockIsFoundTaken"),
	},
	{
		rule: `a ticket is forgotten if Redis refuses the Drop that gives it up`,
		in:   "sidecar/locktable/contest (*Place).onDropResult",
		find: "(r.Outcome == redisop.Done || r.Outcome == redisop.NotALock || r.Outcome == redisop.Refused)",
		put:  "(r.Outcome == redisop.Done)",
		by:   tableTest("TestTicketIsForgottenIfItsDropIsRefused"),
	},
	{
		rule: `a transfer that a Drop in flight does not meet is given back`,
		in:   "sidecar/locktable/claim (*Claim).OnTransferInFlight",
		find: "c.Note(TransferReceived) // it",
		put:  "// it",
		by:   tableTest("TestTransferThatADropDoesNotMeetIsGivenBack"),
	},
	{
		rule: `a transfer serves no request that arrived later`,
		in:   "sidecar/locktable/contest (*Contest).OnTransferred",
		find: "c.order.served = c.place.served()",
		put:  "c.order.served = served{until: never, upTo: c.place.arrived}",
		by:   tableTest("TestTransferServesNoRequestThatArrivedLater"),
	},
	{
		rule: `a ticket of a waiter that is gone serves no request that came later`,
		in:   "sidecar/locktable/contest (*order).onTakeSent",
		find: "p.mayHaveLock || op.Arrived == 0 && op.Ticket != 0",
		put:  "p.mayHaveLock",
		by:   tableTest("TestTicketOfAWaiterThatIsGoneServesNoShortWait"),
	},
	{
		rule: `the own subscription is of no other program`,
		in:   "sidecar/locktable/contest (*Contest).others",
		find: "if n > 0 && c.sub == subscribed {",
		put:  "if false {",
		by:   tableTest("TestOwnSubscriptionIsOfNoOtherProgram"),
	},
	{
		rule: `a turn has a grant`,
		in:   "sidecar/locktable/contest (*Contest).isTurnOver",
		find: "case v.Grants == 0:",
		put:  "case false:",
		by:   tableTest("TestTurnHasAGrant"),
	},
	{
		rule: `a lock that another host had is not hot, although the table has forgotten it`,
		in:   "sidecar/locktable/contest (*Shared).Cool",
		find: "if m.hotUntil != 0 {",
		put:  "if false {",
		by:   tableTest("TestForgottenLockThatAnotherHostHadIsNotHot"),
	},
	{
		rule: `a ticket is not used for a later waiter if an Arrive failed with an error that may pass`,
		in:   "sidecar/locktable/contest (*Contest).OnArriveFailed",
		find: "r.Outcome == redisop.Refused",
		put:  "r.Outcome != redisop.Done",
		by:   tableTest("TestTicketIsNotUsedIfAnArriveMayPassLater"),
	},
	{
		rule: `a lock in order passes on here while Redis is away`,
		in:   "sidecar/locktable/contest (*Contest).isServed",
		find: "!v.isInOrder() || !v.IsReachable || v.First.Tries && !v.First.IsFair",
		put:  "!v.isInOrder() || v.First.Tries && !v.First.IsFair",
		by:   tableTest("TestLockInOrderPassesOnHereWhileRedisIsAway"),
	},
	{
		rule: `a waiter behind one that is gone arrives`,
		in:   "sidecar/locktable (*Table).endRequest",
		find: "q.newcomer = r.at.inQueue.next",
		put:  "_ = 0",
		by:   tableTest("TestWaiterBehindOneThatIsGoneArrives"),
	},
	{
		rule: "an operation that sets the key of a fixed lease puts its check off no further",
		in:   "sidecar/locktable (*Table).onConfirmed",
		find: "c.SetRenewAt(t.nextCheck(now, h))",
		put:  "_ = 0",
		by:   tableTest("TestFixedLeaseIsCheckedAfterAnOperationThatSetsItsKey"),
	},
	{
		rule: "a restored hold without a session is not renewed",
		in:   "sidecar/locktable (*Table).Restore",
		find: "if !r.Phase.IsOrphan() {",
		put:  "if false {",
		by:   tableTest("TestHoldWithoutASessionEnds"),
	},
	{
		rule: "a kept lock is not the oldest hold, and not overdue",
		in:   "sidecar/locktable (*Table).Survey",
		find: "h.phase != HoldKept",
		put:  "true",
		by:   tableTest("TestSurveyLeavesKeptLocksOutOfTheHolds"),
	},
	{
		rule: "a lock whose keep lasts is kept after its release",
		in:   "sidecar/locktable (*Table).leave",
		find: "if now >= t.keepUntil(h) {",
		put:  "if true {",
		by:   tableTest("TestReleasedLockIsKept"),
	},
	{
		rule: "a kept lock is not renewed",
		in:   "sidecar/locktable (*hold).isRenewed",
		find: "h.lease == WatchdogLease && h.phase != HoldUnserved && h.phase != HoldGivenUp && h.phase != HoldKept",
		put:  "h.lease == WatchdogLease && h.phase != HoldUnserved && h.phase != HoldGivenUp",
		by:   tableTest("TestReleasedLockIsKept"),
	},
	{
		rule: `a keep is in Redis before the grant`,
		in:   "sidecar/locktable (*Table).isCovered",
		find: "case !isOwn && left < moment.MS(r.keepMS):",
		put:  "case false:",
		by:   tableTest("TestKeepIsInRedisBeforeTheGrant"),
	},
	{
		rule: `a keep ends no later than the key`,
		in:   "sidecar/locktable (*Table).grant",
		find: "t.keeps[id] = min(now+moment.MS(r.keepMS), c.ValidUntil())",
		put:  "t.keeps[id] = now + moment.MS(r.keepMS)",
		by:   tableTest("TestKeepEndsNoLaterThanTheKey"),
	},
	{
		rule: "a renewal leaves the key for the whole keep",
		in:   "sidecar/locktable (*Table).leaseToSet",
		find: "if h.hasKeep {",
		put:  "if false {",
		by:   tableTest("TestEachOperationLeavesTheKeyForTheWholeKeep"),
	},
	{
		rule: `a hold with a keep is renewed like another one`,
		in:   "sidecar/locktable (*Table).onConfirmed",
		find: "moment.MS(min(lease, t.leaseMS))",
		put:  "moment.MS(lease)",
		by:   tableTest("TestEachOperationLeavesTheKeyForTheWholeKeep"),
	},
	{
		rule: "a hold that its client does not claim is kept",
		in:   "sidecar/locktable (*Table).finishResume",
		find: "t.leave(now, h)",
		put:  "t.endHold(now, h)",
		by:   tableTest("TestKeepIsRestored"),
	},
	{
		rule: "a kept hold has the client's max_hold no more",
		in:   "sidecar/locktable (*Table).leave",
		find: "h.phase, h.deadline, h.endAt = HoldKept, t.keepUntil(h), 0",
		put:  "h.phase, h.deadline = HoldKept, t.keepUntil(h)",
		by:   tableTest("TestLockIsKeptHoweverItsHoldEnds"),
	},
	{
		rule: "a foreign client is known although no client waits here meanwhile",
		in:   "sidecar/locktable/contest (*Contest).IsIdle",
		find: "!isForeignKnown",
		put:  "(!isForeignKnown || true)",
		by:   test("sidecar/locktable", "TestForeignClientIsKnownWhileNoClientWaits"),
	},
	{
		rule: "the keep of a hold that ended is forgotten",
		in:   "sidecar/locktable (*Table).endHold",
		find: "delete(t.keeps, h.id)",
		put:  "",
		by:   test("sidecar/locktable", "TestTableAtRestRemembersNothing"),
	},
	{
		rule: "the subscribers of a restored lock are not known",
		in:   "sidecar/locktable (*Table).Restore",
		find: "l.memory.ForgetSubscribers()",
		put:  "",
		by:   test("sidecar/locktable", "TestSubscribersOfARestoredLockAreNotKnown"),
	},
}

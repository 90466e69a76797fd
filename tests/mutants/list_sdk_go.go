package main

// What sdk/go promises: no hold is valid for longer than the sidecar keeps it, and a restart
// of the sidecar loses and repeats nothing.

const (
	sdkConnect = "sdk/go/connect.go"
	sdkHold    = "sdk/go/hold.go"
	sdkInfo    = "sdk/go/info.go"
	sdkLock    = "sdk/go/lock.go"
	sdkReader  = "sdk/go/reader.go"
	sdkReceive = "sdk/go/receive.go"
	sdkRequest = "sdk/go/request.go"
	sdkWaits   = "sdk/go/waits.go"
)

var sdkGoMutants = []mutant{
	{
		rule: "a sidecar that refuses a ping is not called one that does not answer",
		file: sdkWaits,
		old:  "!errors.Is(err, ErrUnavailable) {",
		new:  "!errors.Is(err, ErrUnavailable) && false {",
		by:   test("sdk/go", "TestAcquireThatWaitsWhilePingsAreRefusedIsNotLogged"),
	},
	{
		rule: "an acquire that waits for another owner is not logged as one that waits for Redis",
		file: sdkWaits,
		old:  "	if err == nil && ok.Redis == \"ok\" {\n",
		new:  "	if false {\n",
		by:   test("sdk/go", "TestAcquireThatWaitsForAnotherOwnerIsNotLogged"),
	},
	{
		rule: "Redis is asked again while an acquire waits",
		file: sdkWaits,
		old:  "c.looks >= slowLooks && c.looks&(c.looks-1) == 0",
		new:  "c.looks == slowLooks",
		by:   test("sdk/go", "TestAcquireThatWaitsForAnotherOwnerIsNotLogged"),
	},
	{
		rule: "a re-entered hold that expired is released once for each entry",
		file: sdkHold,
		old:  "	for range h.entries {\n		conn.queue(protocol.Release{Hold: h.id})\n	}\n",
		new:  "	conn.queue(protocol.Release{Hold: h.id})\n",
		by:   test("sdk/go", "TestExpiredHoldIsReleasedOncePerEntry"),
	},
	{
		rule: "the answer to a re-entry lowers no deadline",
		file: sdkHold,
		old:  "		h.deadline = max(h.receivedDeadlineLocked(), ok.DeadlineNS)\n",
		new:  "		h.deadline = ok.DeadlineNS\n",
		by:   test("sdk/go", "TestReentryLowersNoDeadline"),
	},
	{
		rule: "nothing is sent before the claims are answered",
		file: sdkConnect,
		old:  "	conn.out.hold()\n	return notices\n",
		new:  "	return notices\n",
		by:   test("sdk/go", "TestConnectionStaysOpenUntilClaimIsAnswered"),
	},
	{
		rule: "a hold that was released is not claimed",
		file: sdkConnect,
		old:  "		if h.phase == holdReleasing { // a hold that is not claimed is released\n",
		new:  "		if false {\n",
		by:   test("sdk/go", "TestSessionSurvivesDisconnectAtEveryByte"),
	},
	{
		rule: "a ticket that was refused for good is not used again",
		file: sdkConnect,
		old:  "		case err != nil && errors.Is(err, errRefused):\n",
		new:  "		case err != nil && !errors.Is(err, err):\n",
		by:   test("sdk/go", "TestRefusedHelloEndsSession"),
	},
	{
		rule: "calls are sent again in their order",
		file: sdkConnect,
		old:  "slices.Sorted(maps.Keys(s.calls))",
		new:  "slices.Collect(maps.Keys(s.calls))",
		by:   test("sdk/go", "TestReconnectKeepsOrderOfWaiters"),
	},
	{
		rule: "force_release is not sent twice",
		file: sdkConnect,
		old:  "hasEnded = wasServing // before that it was held back",
		new:  "hasEnded = false",
		by:   test("sdk/go", "TestForceReleaseIsNotSentTwice"),
	},
	{
		rule: "a request that kills the sidecar is given up",
		file: sdkConnect,
		old:  "		if c.phase == callSent || wasUseful {\n",
		new:  "		if c.phase == callSent || wasUseful || true {\n",
		by:   test("sdk/go", "TestRequestThatKillsSidecarIsGivenUp"),
	},
	{
		rule: "a client that was closed sends bye to the next sidecar",
		file: sdkConnect,
		old:  "	goOn = s.isOpen() || s.hasRemoteState\n",
		new:  "	goOn = s.isOpen()\n",
		by:   test("sdk/go", "TestCloseSendsBye"),
	},
	{
		rule: "a client connects again for a release that was not read",
		file: sdkConnect,
		old:  "conn.claimedHolds > 0 || len(s.calls) > 0",
		new:  "len(s.calls) > 0",
		by:   test("sdk/go", "TestClientReconnectsForUnreadRelease"),
	},
	{
		rule: "a hold that the sidecar does not know is not released",
		file: sdkHold,
		old:  "		conn = nil // the sidecar does not have the hold\n",
		new:  "		_ = conn // the sidecar does not have the hold\n",
		by:   test("sdk/go", "TestNewSessionOrphansHolds"),
	},
	{
		rule: "a lease event concerns only holds that were granted before it",
		file: sdkHold,
		old:  "h.leaseSeq < s.leaseSeq && ",
		new:  "",
		by:   test("sdk/go", "TestLeaseEventsMoveDeadlines"),
	},
	{
		rule: "a lease event does not move a fixed lease",
		file: sdkHold,
		old:  "	if h.lease == leaseWatchdog && ",
		new:  "	if ",
		by:   test("sdk/go", "TestLeaseEventsMoveDeadlines"),
	},
	{
		rule: "max_hold ends a hold that is renewed",
		file: sdkHold,
		old:  "		return min(h.receivedDeadlineLocked(), h.maxHoldEnd)\n",
		new:  "		return h.receivedDeadlineLocked()\n",
		by:   test("sdk/go", "TestMaxHoldEndsLockDespiteRenewals"),
	},
	{
		rule: "a hold may be entered again until its release is answered",
		file: sdkLock,
		old:  "		h.phase = holdReleasing\n",
		new:  "		h.leaveLocked(holdReleased)\n",
		by:   test("sdk/go", "TestReentryIsOneHoldWithOneHandlePerEntry"),
	},
	{
		rule: "a client reads what has arrived before it decides that a lock is lost",
		file: sdkLock,
		old:  "		s.readArrived(conn)\n		s.mu.Lock()\n	}\n	if notices, expired",
		new:  "		s.mu.Lock()\n		_ = conn\n	}\n	if notices, expired",
		by:   test("sdk/go", "TestStoppedClientReadsBeforeLockExpires"),
	},
	{
		rule: "a late unlock does not release a later hold",
		file: sdkLock,
		old:  "	l.state = handleUnlocked\n",
		new:  "	l.state = handleEntered\n",
		by:   test("sdk/go", "TestOnlyFirstUnlockReleases"),
	},
	{
		rule: "a caller that returns leaves the reading to others",
		file: sdkReader,
		old:  "	if !r.notifier.Arm() {\n",
		new:  "	if false {\n",
		by:   test("sdk/go", "TestEventsAreHandledWhileNoCallerReads"),
	},
	{
		rule: "a grant whose caller has left is released",
		file: sdkReceive,
		old:  "	if isAbandoned {\n",
		new:  "	if isAbandoned && false {\n",
		by:   test("sdk/go", "TestGrantAfterCancelIsReleased"),
	},
	{
		rule: "an event with an earlier deadline takes nothing from holds with a later one",
		file: sdkReceive,
		old:  "	if m.DeadlineNS < s.leaseDeadline {\n",
		new:  "	if false {\n",
		by:   test("sdk/go", "TestLeaseEventMayLowerDeadlineOfNewerHolds"),
	},
	{
		rule: "a short wait distinguishes a silent Redis from another owner",
		file: sdkRequest,
		old:  "info.Lock.State == protocol.StateBusy",
		new:  "info.Lock.State != protocol.StateBusy",
		by:   test("sdk/go", "TestShortDeadlineReportsSilenceOfRedis"),
	},
	{
		rule: "no field of a row is forgotten",
		file: sdkInfo,
		old:  ", Orphan: row.Orphan,",
		new:  ",",
		by:   test("sdk/go", "TestEveryFieldOfARowIsConverted"),
	},
	{
		rule: "a key without a time to live is persistent",
		file: sdkInfo,
		old:  "	if row.RemoteTTLMS < 0 {\n",
		new:  "	if row.RemoteTTLMS < -1 {\n",
		by:   test("sdk/go", "TestAKeyWithoutATimeToLiveIsPersistent"),
	},
	{
		rule: "the start of a sidecar is relative to the moment of its status",
		file: sdkInfo,
		old:  "	now.boot = row.NowNS\n",
		new:  "",
		by:   test("sdk/go", "TestRowsHaveUnitsOfGo"),
	},
	{
		rule: "Do ends the context of the work before it releases the lock",
		file: "sdk/go/do.go",
		old: `		stop() // before the release: what f has left running ends while the lock is held
`,
		new: `		defer stop()
`,
		by: test("sdk/go", "TestDoEndsTheContextBeforeTheRelease"),
	},
}

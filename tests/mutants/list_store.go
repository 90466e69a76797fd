package main

// What the store promises: which operations run together, what their results mean, and
// when they were sent.

var storeMutants = []mutant{
	{
		rule: "the send time of an operation is from before it was written",
		file: "sidecar/store/pipeline.go",
		old:  `locktable.Result{Kind: op.Kind, Name: op.Name, Sent: cl.sent, Conn: p.conn})` + "\n\t}\n\tif err := p.decode",
		new:  `locktable.Result{Kind: op.Kind, Name: op.Name, Sent: p.now, Conn: p.conn})` + "\n\t}\n\tif err := p.decode",
		by:   test("sidecar/store", "TestSendTimeIsFromBeforeTheOperationIsWritten"),
	},
	{
		rule: "an operation of which nothing was written was not carried out",
		file: "sidecar/store/pipeline.go",
		old:  `if cl.from >= p.out.Sent() {`,
		new:  `if false {`,
		by:   test("sidecar/store", "TestWhatIsUnderWayWhenAConnectionEnds"),
	},
	{
		rule: "an operation of which something was written may have been carried out",
		file: "sidecar/store/pipeline.go",
		old:  `if cl.from >= p.out.Sent() {`,
		new:  `if true {`,
		by:   test("sidecar/store", "TestKilledConnectionsUnderLoad"),
	},
	{
		rule: "a run of a script that Redis refuses as a whole is split",
		file: "sidecar/store/pipeline.go",
		old:  `case cl.ops > 1 && outcomeOf(word) == locktable.Refused && p.drainReason == "":`,
		new:  `case false:`,
		by:   test("sidecar/store", "TestPermissions"),
	},
	{
		rule: "a token that is ahead of the clock raises the floor of the connection",
		file: "sidecar/store/pipeline.go",
		old:  `p.encoder.floor = max(p.encoder.floor, token)`,
		new:  `_ = token`,
		by:   test("sidecar/store", "TestTokenAheadOfTheClockLiftsOtherCounters"),
	},
	{
		rule: "the largest token is kept for the successor",
		file: "sidecar/store/pipeline.go",
		old:  `p.id.Floor, p.id.FloorAt = token, now`,
		new:  `_ = now`,
		by:   test("sidecar/store", "TestTokensGrowAfterTheClockWasSetBackAndTheCounterLost"),
	},
	{
		rule: "an absurd counter raises no other lock's tokens",
		file: "sidecar/store/pipeline.go",
		old:  ` || token >= p.redisClock(now)+int64(farAhead/time.Microsecond) {`,
		new:  ` {`,
		by:   test("sidecar/store", "TestAbsurdCounterDoesNotLiftOthers"),
	},
	{
		rule: "one look at a silent Redis is not enough to give it up",
		file: "sidecar/store/pipeline.go",
		old:  `	case p.liveness == waiting, rawio.HasUnread(p.wire.raw):`,
		new:  `	case rawio.HasUnread(p.wire.raw):`,
		by:   test("sidecar/store", "TestOverdueConnectionIsCutAtSecondCheck"),
	},
	{
		rule: "a command on an idle connection is checked after the timeout",
		file: "sidecar/store/commands.go",
		old:  "		p.nextCheck = at // run expected an idle connection\n		c.nudge()\n",
		new:  "",
		by:   test("sidecar/store", "TestCommandOnIdleConnectionIsCheckedInTime"),
	},
	{
		rule: "a Redis whose answer was not read yet is not silent",
		file: "sidecar/store/pipeline.go",
		old:  `	case p.liveness == waiting, rawio.HasUnread(p.wire.raw):`,
		new:  `	case p.liveness == waiting:`,
		by:   test("sidecar/store", "TestConnectionWithUnreadReplyIsNotCut"),
	},
	{
		rule: "renewals of users are sent in turn",
		file: "sidecar/store/lanes.go",
		old:  `min(n, laneTurn)`,
		new:  `n`,
		by:   test("sidecar/store", "TestRenewalsOfOneUserDoNotDelayThoseOfAnother"),
	},
	{
		rule: "locks of one user that end do not delay what others ask for",
		file: "sidecar/store/commands.go",
		old:  `		case ops[i].CanWait:`,
		new:  `		case false:`,
		by:   test("sidecar/store", "TestDropsThatCanWaitDelayNothingElse"),
	},
	{
		rule: "renewals run before everything else of a batch",
		file: "sidecar/store/script.go",
		old: `		case locktable.Renew:
			return 0
		case locktable.Check:`,
		new: `		case locktable.Renew:
			return 3
		case locktable.Check:`,
		by: differential,
	},
	{
		rule: "checks with different entries run apart",
		file: "sidecar/store/script.go",
		old:  `(s != renew || op.Count == first.Count)`,
		new:  `(op.Kind != locktable.Renew || op.Count == first.Count)`,
		by:   differential,
	},
	{
		rule: "operations with different leases run apart",
		file: "sidecar/store/script.go",
		old:  `return op.LeaseMS == first.LeaseMS && (s`,
		new:  `return (s`,
		by:   differential,
	},
	{
		rule: "a take that needs more than one token is not one of the simple ones",
		file: "sidecar/store/script.go",
		old:  `case op.Count != 1 || op.Reserve != 1:`,
		new:  `case op.Count != 1:`,
		by:   differential,
	},
	{
		rule: "a lock whose name has a brace keeps its slot",
		file: "sidecar/store/names.go",
		old:  `	if k.isTagged(name) {` + "\n\t\tdst =",
		new:  `	if k.tagged {` + "\n\t\tdst =",
		by:   differential,
	},
	{
		rule: "a prefix with a hash tag keeps its slot",
		file: "sidecar/store/names.go",
		old:  `	return k.tagged || strings.IndexByte(name, '{') >= 0`,
		new:  `	return strings.IndexByte(name, '{') >= 0`,
		by:   test("sidecar/store", "TestNamesAreRedissons"),
	},
	{
		rule: "the key of a lock has the prefix",
		file: "sidecar/store/script.go",
		old: `	for i := range ops {
		dst = e.keys.appendKey(dst, ops[i].Name)
`,
		new: `	for i := range ops {
		dst = appendString(dst, ops[i].Name)
`,
		by: differential,
	},
	{
		rule: "the channel of a release has the prefix",
		file: "sidecar/store/script.go",
		old:  `e.keys.appendDerived(dst, channelPrefix, op.Name)`,
		new:  `new(keyspace).appendDerived(dst, channelPrefix, op.Name)`,
		by:   differential,
	},
	{
		rule: "the channel of a subscription has the prefix",
		file: "sidecar/store/listener.go",
		old:  "	ch := l.keys.channel(name)\n	l.want",
		new:  "	ch := new(keyspace).channel(name)\n	l.want",
		by:   test("sidecar/store", "TestRedisHasOnlyKeysAndChannelsWithThePrefix"),
	},
	{
		rule: "a name is reserved if it becomes another lock's counter together with the prefix",
		file: "sidecar/store/names.go",
		old:  `strings.CutPrefix(text, keyPrefix)`,
		new:  `strings.CutPrefix(text, "")`,
		by:   test("sidecar/store", "TestNameIsReservedIfItsKeyBelongsToAnotherLock"),
	},
	{
		rule: "a name is reserved if its channel is like those of sidecars",
		file: "sidecar/store/names.go",
		old:  `	if isChannelOfSidecars(keyPrefix, name) {`,
		new:  `	if false {`,
		by:   test("sidecar/store", "TestNameIsReservedIfItsChannelIsThatOfASidecar"),
	},
	{
		rule: "a sidecar does not subscribe for a key in braces, whose channel is that of another key",
		file: "sidecar/store/names.go",
		old:  `!isChannelOfSidecars(k.prefix, name) && !k.sharesChannel(name)`,
		new:  `!isChannelOfSidecars(k.prefix, name)`,
		by:   test("sidecar/store", "TestOneOfTwoNamesWithOneChannelIsSubscribed"),
	},
	{
		rule: "a sidecar never subscribes to the channel of a sidecar for a lock, and never ends that subscription",
		file: "sidecar/store/names.go",
		old:  `!isChannelOfSidecars(k.prefix, name) && !k.sharesChannel(name)`,
		new:  `!k.sharesChannel(name)`,
		by:   test("sidecar/store", "TestChannelOfASidecarIsNeverThatOfALock"),
	},
	{
		rule: "a confirmation is of a channel of the request",
		file: "sidecar/store/pipeline.go",
		old:  `|| !slices.Contains(r.channels, channel)`,
		new:  `|| slices.Contains(r.channels, "")`,
		by:   test("sidecar/store", "TestUnrequestedUnsubscribeOfTheOwnChannelEndsTheConnection"),
	},
	{
		rule: "ignored messages are counted",
		file: "sidecar/store/ignored.go",
		old:  `m.total.Add(1)`,
		new:  `m.total.Load()`,
		by:   test("sidecar/store", "TestFloodOfIgnoredMessagesIsCounted"),
	},
	{
		rule: "a flood is logged once in ten minutes",
		file: "sidecar/store/ignored.go",
		old:  ` || m.isWarned && now-m.warnedAt < ignoredAgain`,
		new:  ``,
		by:   test("sidecar/store", "TestFloodIsLoggedOnceInTenMinutes"),
	},
	{
		rule: "a message about a reserved name is ignored",
		file: "sidecar/store/message.go",
		old:  ` || Reserved(k.prefix, name) != ""`,
		new:  ``,
		by:   test("sidecar/store", "TestMessageForAnotherPrefixIsIgnored"),
	},
	{
		rule: "a Redis that is out of memory may recover",
		file: "sidecar/store/outcome.go",
		old:  `case "LOADING", "READONLY", "OOM", "BUSY"`,
		new:  `case "LOADING", "READONLY", "BUSY"`,
		by:   differential,
	},
	{
		rule: "what another program has written is made readable",
		file: "sidecar/store/script.go",
		old:  "	r.TTLMS = max(ttl, -1)\n	r.Field = readable(field)",
		new:  "	r.TTLMS = max(ttl, -1)\n	r.Field = field",
		by:   differential,
	},
	{
		rule: "renewals do not wait in one queue with takes",
		file: "sidecar/store/commands.go",
		old:  `case k == locktable.Renew || k == locktable.Check:`,
		new:  `case k == locktable.NoOp:`,
		by:   test("sidecar/store", "TestRenewalsAreNotStarved"),
	},
	{
		rule: "tokens continue above what the process before knew",
		file: "sidecar/store/connection.go",
		old:  `s.id.Floor = max(s.id.Floor, last.floor(answered))`,
		new:  `_ = answered`,
		by:   test("sidecar/store", "TestFloorNeverFalls"),
	},
	{
		rule: "the connection of the process before is ended",
		file: "sidecar/store/connection.go",
		old:  `if last.ClientID != 0 && s.id.sameServer(&last) {`,
		new:  `if false {`,
		by:   test("sidecar/store", "TestEarlierConnectionIsEnded"),
	},
	{
		rule: "another replication history is another Redis",
		file: "sidecar/store/store.go",
		old:  `return id.sameServer(other) && id.ReplID == other.ReplID`,
		new:  `return id.sameServer(other)`,
		by:   test("sidecar/store", "TestDemotedMasterIsLeft"),
	},
	{
		rule: "a host with a fast clock does not lift its tokens above Redis's clock",
		file: "sidecar/store/store.go",
		old:  `return id.Floor + elapsed - elapsed/100`,
		new:  `return id.Floor + elapsed`,
		by:   test("sidecar/store", "TestFloorRisesMoreSlowlyThanTheClock"),
	},
	{
		rule: "after a reconnect all channels are subscribed again",
		file: "sidecar/store/listener.go",
		old:  "	for ch := range l.want {\n		l.dirty[ch] = struct{}{}\n	}",
		new:  "",
		by:   test("sidecar/store", "TestOneConnectionAndNoMore"),
	},
	{
		rule: "the end of a connection ends its subscriptions",
		file: "sidecar/store/commands.go",
		old:  `if len(unsubscribed) > 0 && c.cfg.OnUnsubscribed != nil {`,
		new:  `if false {`,
		by:   test("sidecar/store", "TestOneConnectionAndNoMore"),
	},
	{
		rule: "a subscription that was asked for again is confirmed again",
		file: "sidecar/store/listener.go",
		old:  `wanted && subscribed && !a.confirmed:`,
		new:  `wanted && subscribed:`,
		by:   test("sidecar/store", "TestSubscribeIsAlwaysConfirmed"),
	},
	{
		rule: "a confirmation counts for the request that it answers",
		file: "sidecar/store/listener.go",
		old: `	if a := l.asked[ch]; a.by == r {
		if r.unsubscribe {`,
		new: `	if a := l.asked[ch]; a.by != nil {
		if r.unsubscribe {`,
		by: test("sidecar/store", "TestChangingMinds"),
	},
	{
		rule: "one denied channel does not deny the others",
		file: "sidecar/store/listener.go",
		old:  `	case len(channels) > 1:`,
		new:  `	case false:`,
		by:   test("sidecar/store", "TestDeniedChannelsDoNotPoisonOthers"),
	},
	{
		rule: "a channel that Redis could not be asked for is requested again",
		file: "sidecar/store/listener.go",
		old:  `	l.later = append(l.later, channels...)`,
		new:  ``,
		by:   test("sidecar/store", "TestSubscriptionIsRequestedAgainAfterAnErrorThatPasses"),
	},
	{
		rule: "a message does not overtake the results before it",
		file: "sidecar/store/pipeline.go",
		old: `	if len(p.results) > 0 {
		p.commands.deliver(`,
		new: `	if len(p.results) > 0 {
		if report := p.commands.cfg.OnMessages; report != nil {
			report(p.messages)
		}
		p.messages = nil
		p.commands.deliver(`,
		by: test("sidecar/store", "TestWhatRedisSendsIsReportedInItsOrder"),
	},
	{
		rule: "a result does not overtake the messages before it",
		file: "sidecar/store/pipeline.go",
		old: `	if len(p.messages) > 0 {
		p.deliver()
	}
	mu := `,
		new: `	mu := `,
		by:  test("sidecar/store", "TestWhatRedisSendsIsReportedInItsOrder"),
	},
	{
		rule: "a confirmation does not overtake what was read before it",
		file: "sidecar/store/pipeline.go",
		old: `		p.deliver()
		report(names)`,
		new: `		report(names)`,
		by:  test("sidecar/store", "TestWhatRedisSendsIsReportedInItsOrder"),
	},
	{
		rule: "a Redis that sends messages is alive",
		file: "sidecar/store/pipeline.go",
		old:  `		h.lastInput.Store(h.now)`,
		new:  `		_ = &h.lastInput`,
		by:   test("sidecar/store", "TestMessagesAreASignOfLife"),
	},
	{
		rule: "a server that answers HELLO 3 in RESP2 is refused",
		file: "sidecar/store/connection.go",
		old:  `if hello.kind != '%' {`,
		new:  `if hello.kind == '-' {`,
		by:   test("sidecar/store", "TestDownSaysWhatIsWrong"),
	},
	{
		rule: "a text that another program publishes or stores is bounded, and ends no connection",
		file: "sidecar/store/resp.go",
		old:  `case n > maxReplyText, r.inPush && n > r.room:`,
		new:  `case false:`,
		by:   test("sidecar/store", "TestMessagesToThisSidecar"),
	},
	{
		rule: "a message for a lock under another key prefix is ignored",
		file: "sidecar/store/message.go",
		old:  `	if !ok || protocol.CheckName(name) != nil || Reserved`,
		new:  `	if protocol.CheckName(name) != nil || Reserved`,
		by:   test("sidecar/store", "TestMessageForAnotherPrefixIsIgnored"),
	},
	{
		rule: "a message proves nothing if it names another server",
		file: "sidecar/store/pipeline.go",
		old:  `if from.isSame(p.origin) {`,
		new:  `if from.isKnown {`,
		by:   test("sidecar/store", "TestMessageOverReplicationProvesNothing"),
	},
	{
		rule: "a server that is not known proves nothing",
		file: "sidecar/store/origin.go",
		old:  `return o.isKnown && o == other`,
		new:  `return o == other`,
		by:   test("sidecar/store", "TestOriginOf"),
	},
	{
		rule: "the origin is that of a master",
		file: "sidecar/store/origin.go",
		old:  `|| role != "master"`,
		new:  ``,
		by:   test("sidecar/store", "TestOriginOf"),
	},
	{
		rule: "the numbers of a message are within what a script sends",
		file: "sidecar/store/message.go",
		old:  `if err != nil || n < least || n > most {`,
		new:  `if err != nil || n < least {`,
		by:   test("sidecar/store", "TestMessagesOnTheChannelOfASidecar"),
	},
	{
		rule: "a transfer raises no floor above Redis's clock",
		file: "sidecar/store/pipeline.go",
		old:  ` || p.isAhead(p.now, int64(m.LastToken))`,
		new:  ``,
		by:   test("sidecar/store", "TestForgedTransferRaisesNoFloor"),
	},
	{
		rule: "the tokens of a transfer raise the floor",
		file: "sidecar/store/pipeline.go",
		old:  "	} else {\n		p.raiseFloor(p.now, m.LastToken)\n	}",
		new:  `	}`,
		by:   test("sidecar/store", "TestTokensOfATransferRaiseTheFloor"),
	},
	{
		rule: "a transfer that is not proved raises no floor",
		file: "sidecar/store/pipeline.go",
		old:  ` || m.Conn == (locktable.Conn{}) {`,
		new:  ` {`,
		by:   test("sidecar/store", "TestTokensOfATransferRaiseTheFloor"),
	},
}

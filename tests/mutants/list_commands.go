package main

// What the commands promise to scripts, to their users, and to programs that speak in JSON lines.

var commandMutants = []mutant{
	{
		rule: "serve --check knows a Cluster that has got a node with a smaller id",
		in:   "cmd/locksidecar otherData",
		find: `to.RunID == "" || health.RedisRunID == "" || to.RunID == health.RedisRunID ||
		// The smallest id of a Cluster changes when nodes come and go.
		to.Nodes[health.RedisRunID] || slices.ContainsFunc(shards, func(s locksidecar.ShardStatus) bool { return slices.Contains(to.Masters, s.Address) })`,
		put: `to.RunID == "" || health.RedisRunID == "" || to.RunID == health.RedisRunID ||
		// The smallest id of a Cluster changes when nodes come and go.
		 slices.ContainsFunc(shards, func(s locksidecar.ShardStatus) bool { return slices.Contains(to.Masters, s.Address) })`,
		by: test("cmd/locksidecar", "TestClusterWithOtherNodesIsTheSame"),
	},
	{
		rule: "serve --check knows a Cluster that has lost the node with the smallest id",
		in:   "cmd/locksidecar otherData",
		find: "return slices.Contains(to.Masters, s.Address)",
		put:  "return false",
		by:   test("cmd/locksidecar", "TestClusterWithOtherNodesIsTheSame"),
	},
	{
		rule: "serve --check permits a master to be down only if the daemon that runs cannot use it either",
		in:   "cmd/locksidecar firstWorse",
		find: `s.Address == address && s.Redis != "ok" && !s.Degraded`,
		put:  `s.Address == address && s.Redis != "ok"`,
		by:   test("cmd/locksidecar", "TestCheckPermitsWhatTheRunningDaemonCannotUseEither"),
	},
	{
		rule: "serve --check names the masters of a Cluster that do not answer",
		in:   "sidecar/store tryCluster",
		find: "found.Down[found.Masters[i]] = err",
		put:  "_, _ = i, err",
		by:   test("sidecar/store", "TestTryOfACluster"),
	},
	{
		rule: "the guard of run keeps the descriptors of the runtime, and lives",
		in:   "cmd/locksidecar closeInherited",
		find: "flags&unix.FD_CLOEXEC == 0",
		put:  "flags >= 0",
		by:   test("cmd/locksidecar", "TestGuardClosesOnlyWhatItInherited"),
	},
	{
		rule: "the guard of run keeps no file of the user open",
		in:   "cmd/locksidecar closeInherited",
		find: "flags&unix.FD_CLOEXEC == 0",
		put:  "flags < 0",
		by:   test("cmd/locksidecar", "TestGuardClosesOnlyWhatItInherited"),
	},
	{
		rule: "the loss of its lock ends the command lock",
		in:   "cmd/locksidecar (*lockCmd).Run",
		find: "case <-held.Done():",
		put:  "case <-(chan struct{})(nil):",
		by:   test("cmd/locksidecar", "TestLockEndsWhenTheLockIsLost"),
	},
	{
		rule: "the end of its input ends the wait of the command lock",
		in:   "cmd/locksidecar (*lockCmd).Run",
		find: "c.acquire(ctx, signals, inputEnded)",
		put:  "c.acquire(ctx, signals, nil)",
		by:   test("cmd/locksidecar", "TestEndOfInputEndsTheWaitOfLock"),
	},
	{
		rule: "half of a surrogate pair is no text: two names could become one",
		in:   "protocol AppendFrame",
		find: "if hasLoneSurrogate(line) {",
		put:  "if false {",
		by:   test("protocol", "TestLinesAreRead"),
	},
	{
		rule: "a line is UTF-8: two names could become one",
		in:   "protocol AppendFrame",
		find: "if !utf8.Valid(line) {",
		put:  "if false {",
		by:   test("protocol", "TestLinesAreRead"),
	},
	{
		rule: "a line of JSON has no line separator inside",
		in:   "protocol appendJSONString",
		find: `case r < 0x20, r >= 0x7f && r <= 0x9f, r == '\u2028', r == '\u2029':`,
		put:  "case r < 0x20:",
		by:   test("protocol", "TestIgnoredFieldsPassThroughJSON"),
	},
	{
		rule: "a number with an integral value is an integer",
		in:   "protocol (*jsonConverter).number",
		find: "case f == math.Trunc(f) && math.Abs(f) <= 1<<53:",
		put:  "case false:",
		by:   test("protocol", "TestLinesAreRead"),
	},
	{
		rule: "a line whose id is in use does not end the session",
		in:   "cmd/locksidecar (*pipe).onLine",
		find: "if inUse {",
		put:  "if inUse && false {",
		by:   test("cmd/locksidecar", "TestPipeRefusesBadLines"),
	},
	{
		rule: "a second hello does not end the session",
		in:   "cmd/locksidecar (*pipe).onLine",
		find: "case conn != nil && isHello:",
		put:  "case false:",
		by:   test("cmd/locksidecar", "TestPipeRefusesBadLines"),
	},
	{
		rule: "the bye of the pipe has an id that is not in use",
		in:   "cmd/locksidecar (*pipe).end",
		find: "for conn.unanswered[id] {",
		put:  "for false {",
		by:   test("cmd/locksidecar", "TestEndOfInputEndsTheSessionOfAPipe"),
	},
	{
		rule: "the pipe prints the answers that come before that to its bye",
		in:   "cmd/locksidecar (*pipe).receive",
		find: "p.write(nil, true) // frames before",
		put:  "// frames before",
		by:   test("cmd/locksidecar", "TestEndOfInputEndsTheSessionOfAPipe"),
	},
	{
		rule: "a reload to a Redis with other data is refused",
		in:   "cmd/locksidecar otherData",
		find: "case !isSame:",
		put:  "case !isSame && false:",
		by:   test("tests/messages", "TestCheckBeforeAReloadConnectsToRedis"),
	},
	{
		rule: "another user's file in conf.d sets nothing",
		in:   "cmd/locksidecar checkOwner",
		find: "!slices.Contains(trusted, uid)",
		put:  "slices.Contains([]uint32{}, uid)",
		by:   test("cmd/locksidecar", "TestConfDOfAnotherUserIsRefused"),
	},
	{
		rule: "a file in conf.d is judged by its own owner, not by that of the directory",
		in:   "cmd/locksidecar readSettingsFiles",
		find: "_, f, err := readSettingsFile(path, trusted...)",
		put:  "_, f, err := readSettingsFile(path)",
		by:   test("cmd/locksidecar", "TestConfDOfAnotherUserIsRefused"),
	},
	{
		rule: "files in conf.d are read after the settings file, in the order of their names",
		in:   "cmd/locksidecar readSettingsFiles",
		find: "files = append(files, f)",
		put:  "files = slices.Insert(files, 0, f)",
		by:   test("cmd/locksidecar", "TestFilesInConfDAreReadInOrderAfterTheSettingsFile"),
	},
	{
		rule: "an unknown table or key with a dot is refused",
		in:   "cmd/locksidecar parseSettings",
		find: "if reported[key[0]] {",
		put:  "if reported[key[0]] || len(key) > 1 {",
		by:   test("cmd/locksidecar", "TestFaultNamesFileAndLine"),
	},
	{
		rule: "conf.d has regular files only",
		in:   "cmd/locksidecar readSettingsFile",
		find: "if !info.Mode().IsRegular() {",
		put:  "if false {",
		by:   test("cmd/locksidecar", "TestConfDThatCannotBeReadIsRefused"),
	},
	{
		rule: "the files in conf.d are sorted by name",
		in:   "cmd/locksidecar readDropInDir",
		find: "strings.Compare(a.Name(), b.Name())",
		put:  "strings.Compare(b.Name(), a.Name())",
		by:   test("cmd/locksidecar", "TestFilesInConfDAreReadInOrderAfterTheSettingsFile"),
	},
	{
		rule: "serve --print shows no password",
		in:   "cmd/locksidecar (*settingView).showRedis",
		find: "s.Value = withoutPassword(target.url, false)",
		put:  "s.Value = target.url",
		by:   test("cmd/locksidecar", "TestPrintedSettingsCanBeReadBack"),
	},
	{
		rule: "the hash of the settings depends on no password",
		in:   "cmd/locksidecar (*serveCmd).hash",
		find: "redis = withoutPassword(target.url, true)",
		put:  "redis = target.url",
		by:   test("cmd/locksidecar", "TestHashIsThatOfTheSettingsInForce"),
	},
	{
		rule: "the name of the program is removed from errors of the SDK only",
		in:   "cmd/locksidecar removeName",
		find: "text = strings.Replace(text, message, message[len(programName):], 1)",
		put:  `text = strings.ReplaceAll(text, programName, "")`,
		by:   test("cmd/locksidecar", "TestMessageBeginsWithTheNameOnce"),
	},
	{
		rule: "the name of a lock does not control the terminal of top",
		in:   "cmd/locksidecar alignRows",
		find: "row[i] = display.Printable(cell)",
		put:  "row[i] = cell",
		by:   test("cmd/locksidecar", "TestTopShowsNamesThatAreHostile"),
	},
	{
		rule: "Enter in top opens the lock that was selected, wherever it has moved",
		in:   "cmd/locksidecar (*topModel).arrange",
		find: "slices.IndexFunc",
		put:  "-1 + 0*slices.IndexFunc",
		by:   test("cmd/locksidecar", "TestTopKeepsALockSelected"),
	},
	{
		rule: "top does not show the answer about one lock as that about another",
		in:   "cmd/locksidecar (*topModel).Update",
		find: `if o := m.opened; o != nil && o.opening == msg.opening {
			o.add(&msg)
			next = m.lookAtLockLater(o)
		}`,
		put: `if o := m.opened; o != nil && true {
			o.add(&msg)
			next = m.lookAtLockLater(o)
		}`,
		by: test("cmd/locksidecar", "TestTopOpensALock"),
	},
	{
		rule: "top says that it is not up to date while a look has no answer",
		in:   "cmd/locksidecar (*topModel).Update",
		find: "m.overdue += overdueAfter",
		put:  "m.overdue += 0",
		by:   test("cmd/locksidecar", "TestTopThatGetsNoAnswerSaysSo"),
	},
	{
		rule: "an error with the text of another host does not control the terminal",
		in:   "cmd/locksidecar printMessage",
		find: "programName + printableLines(text)",
		put:  "programName + text",
		by:   test("cmd/locksidecar", "TestMessageHasNoControlCharacters"),
	},
	{
		rule: "the command of a waiter on another host does not control the terminal of top",
		in:   "cmd/locksidecar (*topModel).waitersOnHosts",
		find: `display.Printable("on host "+r.host+": "+fmt.Sprintf(format, args...))`,
		put:  `"on host "+r.host+": "+fmt.Sprintf(format, args...)`,
		by:   test("cmd/locksidecar", "TestTopShowsNoControlCharactersOfOtherHosts"),
	},
	{
		rule: "the name of another host does not control the terminal of top",
		in:   "cmd/locksidecar (*topModel).lockLines",
		find: `add(display.Printable(fmt.Sprintf("        host %s has its own: ssh %s locksidecar events %s", host, host, quoteForShell(o.row.key.name))) + "\n")`,
		put:  `add(fmt.Sprintf("        host %s has its own: ssh %s locksidecar events %s", host, host, quoteForShell(o.row.key.name)) + "\n")`,
		by:   test("cmd/locksidecar", "TestTopShowsNoControlCharactersOfOtherHosts"),
	},
	{
		rule: "two hosts that ask Redis for a lock are two hosts",
		in:   "cmd/locksidecar viewOwnership",
		find: "(o.Lock.State == locksidecar.LockHeld || o.Lock.State == locksidecar.LockLingering)",
		put:  `o.Lock.State != ""`,
		by:   test("cmd/locksidecar", "TestHolderIsHereIfThisHostHasItsHold"),
	},
	{
		rule: "the holds of two hosts with one number are two holds",
		in:   "cmd/locksidecar (*whoView).viewPermits",
		find: "from.Holders[0].Token == o.Lock.Holders[0].Token",
		put:  "true",
		by:   test("cmd/locksidecar", "TestWhoPrintsWhatAnOperatorAsks"),
	},
	{
		rule: "ls --by counts the holds of a semaphore whose processes are not known",
		in:   "cmd/locksidecar (*shares).addHolders",
		find: "l.held() - len(holders)",
		put:  "0",
		by:   test("cmd/locksidecar", "TestLsByCountsHoldsAndWaiters"),
	},
	{
		rule: "the event of a process that is not known does not name root",
		in:   "cmd/locksidecar viewEvent",
		find: `isForce(e.Kind) && e.RemoteHost != ""`,
		put:  `e.RemoteHost != ""`,
		by:   test("cmd/locksidecar", "TestEventOfAnUnknownProcessHasNoUser"),
	},
	{
		rule: "what a command left behind is killed when the lock is lost, and the command is not blamed",
		in:   "cmd/locksidecar (*supervisor).onLost",
		find: `if s.exited {
		s.group.signal(unix.SIGKILL)
		return
	}`,
		put: "",
		by:  test("cmd/locksidecar", "TestLossAfterTheCommandEndedKillsWhatItLeftBehind"),
	},
	{
		rule: "no value makes another field of the journal",
		in:   "cmd/locksidecar (*journalHandler).appendField",
		find: `b = append(append(append(b, h.prefix...), fieldName(a.Key)...), '\n')
	b = binary.LittleEndian.AppendUint64(b, uint64(len(value)))`,
		put: `b = append(append(append(b, h.prefix...), fieldName(a.Key)...), '=')
	_ = binary.LittleEndian`,
		by: test("cmd/locksidecar", "TestLinesInTheJournalHaveTheirAttributesAsFields"),
	},
	{
		rule: "a line that the socket of the journal does not take is in the stream",
		in:   "cmd/locksidecar (*journalWriter).Write",
		find: "if _, err := w.stream.Write(line); err != nil {",
		put:  "if err := error(nil); err != nil {",
		by:   test("cmd/locksidecar", "TestLineThatTheJournalDoesNotTakeIsInTheStream"),
	},
}

package main

// What the commands promise to scripts, to their users, and to programs that speak in JSON lines.

var commandMutants = []mutant{
	{
		rule: "the guard of run keeps the descriptors of the runtime, and lives",
		file: "cmd/locksidecar/deathpipe.go",
		old:  `flags&unix.FD_CLOEXEC == 0 {`,
		new:  `flags >= 0 {`,
		by:   test("cmd/locksidecar", "TestGuardClosesOnlyWhatItInherited"),
	},
	{
		rule: "the guard of run keeps no file of the user open",
		file: "cmd/locksidecar/deathpipe.go",
		old:  `flags&unix.FD_CLOEXEC == 0 {`,
		new:  `flags < 0 {`,
		by:   test("cmd/locksidecar", "TestGuardClosesOnlyWhatItInherited"),
	},
	{
		rule: "the loss of its lock ends the command lock",
		file: "cmd/locksidecar/lock.go",
		old:  `	case <-lock.Done():`,
		new:  `	case <-(chan struct{})(nil):`,
		by:   test("cmd/locksidecar", "TestLockEndsWhenTheLockIsLost"),
	},
	{
		rule: "the end of its input ends the wait of the command lock",
		file: "cmd/locksidecar/lock.go",
		old:  `c.acquire(ctx, signals, inputEnded)`,
		new:  `c.acquire(ctx, signals, nil)`,
		by:   test("cmd/locksidecar", "TestEndOfInputEndsTheWaitOfLock"),
	},
	{
		rule: "half of a surrogate pair is no text: two names could become one",
		file: "protocol/json.go",
		old:  `	if hasLoneSurrogate(line) {`,
		new:  `	if false {`,
		by:   test("protocol", "TestLinesAreRead"),
	},
	{
		rule: "a line is UTF-8: two names could become one",
		file: "protocol/json.go",
		old:  `	if !utf8.Valid(line) {`,
		new:  `	if false {`,
		by:   test("protocol", "TestLinesAreRead"),
	},
	{
		rule: "a line of JSON has no line separator inside",
		file: "protocol/json.go",
		old:  `r < 0x20, r >= 0x7f && r <= 0x9f, r == '\u2028', r == '\u2029':`,
		new:  `r < 0x20:`,
		by:   test("protocol", "TestIgnoredFieldsPassThroughJSON"),
	},
	{
		rule: "a number with an integral value is an integer",
		file: "protocol/json.go",
		old:  `	case f == math.Trunc(f) && math.Abs(f) <= 1<<53:`,
		new:  `	case false:`,
		by:   test("protocol", "TestLinesAreRead"),
	},
	{
		rule: "a line whose id is in use does not end the session",
		file: "cmd/locksidecar/pipe.go",
		old:  `	if inUse {`,
		new:  `	if inUse && false {`,
		by:   test("cmd/locksidecar", "TestPipeRefusesBadLines"),
	},
	{
		rule: "a second hello does not end the session",
		file: "cmd/locksidecar/pipe.go",
		old:  `	case conn != nil && isHello:`,
		new:  `	case false:`,
		by:   test("cmd/locksidecar", "TestPipeRefusesBadLines"),
	},
	{
		rule: "the bye of the pipe has an id that is not in use",
		file: "cmd/locksidecar/pipe.go",
		old:  `	for conn.unanswered[id] {`,
		new:  `	for false {`,
		by:   test("cmd/locksidecar", "TestEndOfInputEndsTheSessionOfAPipe"),
	},
	{
		rule: "the pipe prints the answers that come before that to its bye",
		file: "cmd/locksidecar/pipe.go",
		old:  `	p.write(nil, true) // frames before`,
		new:  `	// frames before`,
		by:   test("cmd/locksidecar", "TestEndOfInputEndsTheSessionOfAPipe"),
	},
	{
		rule: "a reload to a Redis with other data is refused",
		file: "cmd/locksidecar/serve.go",
		old:  `case runID != "" && health.RedisRunID != "" && runID != health.RedisRunID:`,
		new:  `case false:`,
		by:   test("tests/messages", "TestCheckBeforeAReloadConnectsToRedis"),
	},
	{
		rule: "the name of the program is removed from errors of the SDK only",
		file: "cmd/locksidecar/main.go",
		old:  `text = strings.Replace(text, message, message[len(programName):], 1)`,
		new:  `text = strings.ReplaceAll(text, programName, "")`,
		by:   test("cmd/locksidecar", "TestMessageBeginsWithTheNameOnce"),
	},
}

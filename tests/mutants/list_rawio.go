package main

// What internal/rawio promises: bytes arrive in order, whole, or with an error.

const writer = "internal/rawio/writer.go"

var rawioMutants = []mutant{
	{
		rule: "one goroutine at a time writes to a connection",
		file: writer,
		old:  `	if w.state != idle || len(w.Queued) == 0 {`,
		new:  `	if w.state == closed || len(w.Queued) == 0 {`,
		by:   test("internal/rawio", "TestFlushDuringFlushLeavesBytesToIt"),
	},
	{
		rule: "the rest of a partial write precedes what is queued after it",
		file: writer,
		old:  "		if len(w.part) == 0 {\n			w.take()\n		}\n",
		new:  "		w.take()\n",
		by:   test("internal/rawio", "TestFlushLeavesRestOfPartialWriteToGoroutine"),
	},
	{
		rule: "a partial write is continued where it ended",
		file: writer,
		old:  `w.conn.Write(w.part[w.wrote:])`,
		new:  `w.conn.Write(w.part)`,
		by:   test("internal/rawio", "TestFlushLeavesRestOfPartialWriteToGoroutine"),
	},
	{
		rule: "the caller of Flush does not wait for the peer",
		file: writer,
		old:  "	return true\n}\n\n// drain writes",
		new:  "	return w.n == len(w.part)-w.wrote\n}\n\n// drain writes",
		by:   test("internal/rawio", "TestFlushOfFullSocketKeepsAllBytes"),
	},
	{
		rule: "a write under way counts as sent",
		file: writer,
		old:  "	w.sent = w.begun\n	w.Queued, w.spare = w.spare, nil\n",
		new:  "	w.Queued, w.spare = w.spare, nil\n",
		by:   test("internal/rawio", "TestFlushCountsItsWriteAsSent"),
	},
	{
		rule: "what a failed write did not send counts as not sent",
		file: writer,
		old:  `	w.sent = w.begun - int64(len(w.part)-w.wrote)` + "\n",
		new:  ``,
		by:   test("internal/rawio", "TestSentCountsWriteUnderWayAsSent"),
	},
	{
		rule: "a failed write ends the stream",
		file: writer,
		old:  "	case err != nil:\n		w.Close(err)\n",
		new:  "",
		by:   test("internal/rawio", "TestFailedWriteClosesWriterOnce"),
	},
	{
		rule: "a failed write in the caller of Flush is not lost",
		file: writer,
		old:  "		default:\n			w.errno = err\n		}\n",
		new:  "		}\n",
		by:   test("internal/rawio", "TestFailedWriteInFlushClosesAtOnce"),
	},
	{
		rule: "what is discarded is not unwritten",
		file: writer,
		old:  "	if w.state == closed {\n		return 0\n	}\n",
		new:  "",
		by:   test("internal/rawio", "TestSentIsExactAfterCloseDuringWrite"),
	},
	{
		rule: "the stream ends after what was queued before Finish",
		file: writer,
		old:  "	case draining:\n		w.close(nil)\n	case closed:",
		new:  "	case closed:",
		by:   test("internal/rawio", "TestFinishWritesWhatIsQueued"),
	},
	{
		rule: "Wait waits for a write of the caller of Flush",
		file: writer,
		old:  "	w.state = writing\n	w.busy.Add(1)\n",
		new:  "	w.state = writing\n	w.busy.Add(1)\n	defer w.busy.Add(1)\n	w.busy.Done()\n",
		by:   test("internal/rawio", "TestFinishDuringFlush"),
	},
	{
		rule: "one caller does not write for the others without end",
		file: writer,
		old:  `	for range maxInlineFlushes {`,
		new:  `	for range 10 {`,
		by:   test("internal/rawio", "TestFlushWritesForOthersFourTimes"),
	},
	{
		rule: "a burst's buffer is freed",
		file: writer,
		old:  `	case cap(b) > maxSpare, w.state == closed:`,
		new:  `	case w.state == closed:`,
		by:   test("internal/rawio", "TestWriterReusesBuffers"),
	},
	{
		rule: "a notifier does not notify twice",
		file: "internal/rawio/notifier_linux.go",
		old:  `const oneShot = syscall.EPOLLONESHOT`,
		new:  `const oneShot = 0`,
		by:   test("internal/rawio", "TestReadNotifierNotifiesOnceWhenArmed"),
	},
}

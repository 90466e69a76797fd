package main

// What internal/rawio promises: bytes arrive in order, whole, or with an error.

var rawioMutants = []mutant{
	{
		rule: "one goroutine at a time writes to a connection",
		in:   "internal/rawio (*Writer).Flush",
		find: "if w.state != idle || len(w.Queued) == 0 {",
		put:  "if w.state == closed || len(w.Queued) == 0 {",
		by:   test("internal/rawio", "TestFlushDuringFlushLeavesBytesToIt"),
	},
	{
		rule: "the rest of a partial write precedes what is queued after it",
		in:   "internal/rawio (*Writer).drain",
		find: `if len(w.part) == 0 {
			w.take()
		}`,
		put: "w.take()",
		by:  test("internal/rawio", "TestFlushLeavesRestOfPartialWriteToGoroutine"),
	},
	{
		rule: "a partial write is continued where it ended",
		in:   "internal/rawio (*Writer).drain",
		find: "w.conn.Write(w.part[w.wrote:])",
		put:  "w.conn.Write(w.part)",
		by:   test("internal/rawio", "TestFlushLeavesRestOfPartialWriteToGoroutine"),
	},
	{
		rule: "the caller of Flush does not wait for the peer",
		in:   "internal/rawio (*Writer).tryWrite",
		find: `for b := w.part[w.wrote:]; w.n < len(b); {
		n, err := Write(fd, b[w.n:])
		w.n += n
		switch err {
		case nil, syscall.EINTR:
			continue
		case syscall.EAGAIN:
		default:
			w.errno = err
		}
		break
	}
	return true`,
		put: `for b := w.part[w.wrote:]; w.n < len(b); {
		n, err := Write(fd, b[w.n:])
		w.n += n
		switch err {
		case nil, syscall.EINTR:
			continue
		case syscall.EAGAIN:
		default:
			w.errno = err
		}
		break
	}
	return w.n == len(w.part)-w.wrote`,
		by: test("internal/rawio", "TestFlushOfFullSocketKeepsAllBytes"),
	},
	{
		rule: "a write under way counts as sent",
		in:   "internal/rawio (*Writer).take",
		find: `w.sent = w.begun
	w.Queued, w.spare = w.spare, nil`,
		put: "w.Queued, w.spare = w.spare, nil",
		by:  test("internal/rawio", "TestFlushCountsItsWriteAsSent"),
	},
	{
		rule: "what a failed write did not send counts as not sent",
		in:   "internal/rawio (*Writer).onWrite",
		find: "w.sent = w.begun - int64(len(w.part)-w.wrote)",
		put:  "",
		by:   test("internal/rawio", "TestSentCountsWriteUnderWayAsSent"),
	},
	{
		rule: "a failed write ends the stream",
		in:   "internal/rawio (*Writer).onWrite",
		find: `case err != nil:
		w.Close(err)`,
		put: "",
		by:  test("internal/rawio", "TestFailedWriteClosesWriterOnce"),
	},
	{
		rule: "a failed write in the caller of Flush is not lost",
		in:   "internal/rawio (*Writer).tryWrite",
		find: `{
		case nil, syscall.EINTR:
			continue
		case syscall.EAGAIN:
		default:
			w.errno = err
		}`,
		put: `{
		case nil, syscall.EINTR:
			continue
		case syscall.EAGAIN:
		}`,
		by: test("internal/rawio", "TestFailedWriteInFlushClosesAtOnce"),
	},
	{
		rule: "what is discarded is not unwritten",
		in:   "internal/rawio (*Writer).Unwritten",
		find: `if w.state == closed {
		return 0
	}`,
		put: "",
		by:  test("internal/rawio", "TestSentIsExactAfterCloseDuringWrite"),
	},
	{
		rule: "the stream ends after what was queued before Finish",
		in:   "internal/rawio (*Writer).rest",
		find: `case draining:
		w.close(nil)
	case closed:
		w.part = nil`,
		put: `case closed:
		w.part = nil`,
		by: test("internal/rawio", "TestFinishWritesWhatIsQueued"),
	},
	{
		rule: "Wait waits for a write of the caller of Flush",
		in:   "internal/rawio (*Writer).Flush",
		find: `w.state = writing
	w.busy.Add(1)`,
		put: `w.state = writing
	w.busy.Add(1)
	defer w.busy.Add(1)
	w.busy.Done()`,
		by: test("internal/rawio", "TestFinishDuringFlush"),
	},
	{
		rule: "one caller does not write for the others without end",
		in:   "internal/rawio (*Writer).Flush",
		find: "for range maxInlineFlushes {",
		put:  "for range 10 {",
		by:   test("internal/rawio", "TestFlushWritesForOthersFourTimes"),
	},
	{
		rule: "a burst's buffer is freed",
		in:   "internal/rawio (*Writer).recycle",
		find: "case cap(b) > maxSpare, w.state == closed:",
		put:  "case w.state == closed:",
		by:   test("internal/rawio", "TestWriterReusesBuffers"),
	},
	{
		rule: "a notifier does not notify twice",
		in:   "internal/rawio oneShot",
		find: "syscall.EPOLLONESHOT",
		put:  "0",
		by:   test("internal/rawio", "TestReadNotifierNotifiesOnceWhenArmed"),
	},
}

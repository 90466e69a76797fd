package main

// What the state file promises: after each store it is true, and no copy of it is.

var stateMutants = []mutant{
	{
		rule: "a state that was written with another key prefix is not taken over",
		in:   "sidecar/state (*File).begin",
		find: "if had := f.img.keyPrefix(); had != of.KeyPrefix {",
		put:  "if had := f.img.keyPrefix(); had != of.KeyPrefix && false {",
		by:   test("sidecar/state", "TestStateIsThatOfOneKeyPrefix"),
	},
	{
		rule: "the key prefix belongs to what the sum of the header covers",
		in:   "sidecar/state image.headerSum",
		find: "return mix(sumOf(im[hFormat:hSum]), sumOf(im[hPrefix:hPrefixEnd]))",
		put:  "return mix(sumOf(im[hFormat:hSum]), 0)",
		by:   test("sidecar/state", "TestKeyPrefixThatIsDamaged"),
	},

	// The file is true after every store.
	{
		rule: "a lock appears in the file when all its fields are stored",
		in:   "sidecar/state (*File).addLock",
		find: `f.write(&c[lockMaxHoldID], r.MaxHoldID)
	f.write(&c[holdID], 0)`,
		put: `f.publish(&c[0], word)
	f.write(&c[lockMaxHoldID], r.MaxHoldID)
	f.write(&c[holdID], 0)`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a new lock does not have the hold of the record that had the cell before",
		in:   "sidecar/state (*File).addLock",
		find: "f.write(&c[holdID], 0)",
		put:  "",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a hold in the cell of its lock appears when all its fields are stored",
		in:   "sidecar/state (*File).addHold",
		find: "f.write(&c[holdToken], r.Token)",
		put: `if c == l {
		f.publish(&c[holdID], r.ID)
	}
	f.write(&c[holdToken], r.Token)`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a hold in a cell of its own appears when all its fields are stored",
		in:   "sidecar/state (*File).addHold",
		find: "f.write(&c[holdToken], r.Token)",
		put: `if c != l {
		f.publish(&c[0], head(kindHold, 0, 0, 0))
	}
	f.write(&c[holdToken], r.Token)`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a hold in a cell of its own has its number when it appears",
		in:   "sidecar/state (*File).addHold",
		find: `f.write(&c[holdID], r.ID)
		f.publish(&c[0], head(kindHold, 0, 0, 0))`,
		put: `f.publish(&c[0], head(kindHold, 0, 0, 0))
		f.write(&c[holdID], r.ID)`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a second hold of a lock does not replace the first",
		in:   "sidecar/state (*File).addHold",
		find: "l[holdID] != 0 || r.KeepUntil != 0",
		put:  "r.KeepUntil != 0",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "the sum of a lock's name stays when it gets a hold",
		in:   "sidecar/state withFlags",
		find: "return word&^(1<<32-1) | flags",
		put:  "return flags",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "the deadline of a hold is stored before its lease changes",
		in:   "sidecar/state (*File).PutHold",
		find: `f.update(&c[holdDeadline], uint64(r.Deadline))
	f.update(&c[holdEnd], uint64(r.End))
	f.update(&c[holdLease], pack(r.LeaseSeq, r.LeaseMS))`,
		put: `f.update(&c[holdLease], pack(r.LeaseSeq, r.LeaseMS))
	f.update(&c[holdDeadline], uint64(r.Deadline))
	f.update(&c[holdEnd], uint64(r.End))`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "the end of a hold is stored before its phase",
		in:   "sidecar/state (*File).PutHold",
		find: `f.update(&c[holdEnd], uint64(r.End))
	f.update(&c[holdLease], pack(r.LeaseSeq, r.LeaseMS))
	f.update(&c[holdEntries], pack(r.Entries, r.CrashDelayMS))
	f.update(&c[holdFlags], withFlags(c[holdFlags], r))`,
		put: `f.update(&c[holdFlags], withFlags(c[holdFlags], r))
	f.update(&c[holdEnd], uint64(r.End))
	f.update(&c[holdLease], pack(r.LeaseSeq, r.LeaseMS))
	f.update(&c[holdEntries], pack(r.Entries, r.CrashDelayMS))`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a lock is not deleted before its hold",
		in:   "sidecar/state (*File).DeleteLock",
		find: "if c := f.lockCell(slot); c[holdID] != 0 {",
		put:  "if c := f.lockCell(slot); c == nil {",
		by:   test("sidecar/state", "TestWrongSlotPanics"),
	},
	{
		rule: "the lease that a session was sent is stored before the count of its lease events",
		in:   "sidecar/state (*File).PutSession",
		find: `f.update(&c[sessionLeaseSent], uint64(r.LeaseSent))
	f.update(&c[sessionLease], packSession(r, c[sessionLease]&flagResumable != 0))`,
		put: `f.update(&c[sessionLease], packSession(r, c[sessionLease]&flagResumable != 0))
	f.update(&c[sessionLeaseSent], uint64(r.LeaseSent))`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a session that is opened again appears before its old record is deleted",
		in:   "sidecar/state (*File).OpenSession",
		find: `if f.addSession(s, cmd, client) {
		if old != 0 {
			f.remove(old)
		}
		return
	}`,
		put: `if old != 0 {
		f.remove(old)
		old = 0
	}
	if f.addSession(s, cmd, client) {
		if old != 0 {
			f.remove(old)
		}
		return
	}`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "what is known of Redis is written where it does not count yet",
		in:   "sidecar/state (*File).PutRedis",
		find: "if f.img[hRedis] == 1 {",
		put:  "if false {",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a record vanishes before its parts",
		in:   "sidecar/state (*File).remove",
		find: `f.publish(&f.img.cell(slot)[0], 0)
	f.freeCell(slot)`,
		put: `defer func() {
		f.publish(&f.img.cell(slot)[0], 0)
		f.freeCell(slot)
	}()`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a record is copied to its new place before the original is deleted",
		in:   "sidecar/state (*File).compact",
		find: `to := copyCell(slot)
		onCopied(to)
		f.publish(&f.img.cell(slot)[0], 0)
		return to`,
		put: `word := f.img.cell(slot)[0]
		f.publish(&f.img.cell(slot)[0], 0)
		to := copyCell(slot)
		f.publish(&f.img.cell(to)[0], word)
		onCopied(to)
		return to`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStoreOfTakingOver"),
	},
	{
		rule: "the holds of a lock that moves refer to the copy before the original is deleted",
		in:   "sidecar/state (*File).compact",
		find: `onCopied(to)
		f.publish(&f.img.cell(slot)[0], 0)`,
		put: `f.publish(&f.img.cell(slot)[0], 0)
		onCopied(to)`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStoreOfTakingOver"),
	},
	{
		rule: "a hold that was copied when it was moved is one hold",
		in:   "sidecar/state (*contents).readHolds",
		find: "if h.Slot = to.Holds[at].Slot; h != to.Holds[at] || kindOf(im.cell(h.Slot)[0]) != kindHold {",
		put:  "if true || h != to.Holds[at] || kindOf(im.cell(h.Slot)[0]) != kindHold {",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStoreOfTakingOver"),
	},
	{
		rule: "a hold refers to the record of its lock that counts",
		in:   "sidecar/state (*File).clear",
		find: "f.setLock(h.Slot, m.Locks[h.Lock].Slot)",
		put:  "_ = h",
		by:   test("sidecar/state", "TestTakingOverIsRepeatedAfterADeath"),
	},
	{
		rule: "the largest hold number is stored",
		in:   "sidecar/state (*File).PutLastHoldID",
		find: "func (f *File) PutLastHoldID(id uint64) { f.update(&f.img[hLastHoldID], id) }",
		put:  "func (f *File) PutLastHoldID(uint64) {}",
		by:   test("sidecar/state", "TestLastHoldIDOutlivesItsLock"),
	},
	{
		rule: "the largest session id is stored",
		in:   "sidecar/state (*File).PutLastSessionID",
		find: "func (f *File) PutLastSessionID(id uint64) { f.update(&f.img[hLastSessionID], id) }",
		put:  "func (f *File) PutLastSessionID(uint64) {}",
		by:   test("sidecar/state", "TestKilledAtAnyMoment"),
	},

	// What is not accepted.
	{
		rule: "a state from another boot is not restored",
		in:   "sidecar/state image.unusable",
		find: "case boot != own.boot:",
		put:  "case false:",
		by:   test("sidecar/state", "TestStateIsTakenOverOrReset"),
	},
	{
		rule: "a state is not restored on a host whose boot id is not known",
		in:   "sidecar/state image.unusable",
		find: "case own.boot == [16]byte{}:",
		put:  "case false:",
		by:   test("sidecar/state", "TestStateIsTakenOverOrReset"),
	},
	{
		rule: "a state from another time namespace is not restored",
		in:   "sidecar/state image.unusable",
		find: "case im[hTimeNS] != own.timeNS:",
		put:  "case false:",
		by:   test("sidecar/state", "TestStateIsTakenOverOrReset"),
	},
	{
		rule: "a copy in another inode is not restored",
		in:   "sidecar/state image.unusable",
		find: "im[hDev] != own.dev || im[hInode] != own.inode || differ(im[hHandle], own.handle)",
		put:  "im[hDev] != own.dev || differ(im[hHandle], own.handle)",
		by:   test("sidecar/state", "TestCopyInAnotherInodeIsRefused"),
	},
	{
		rule: "an inode with another generation is another file",
		in:   "sidecar/state image.unusable",
		find: "im[hDev] != own.dev || im[hInode] != own.inode || differ(im[hHandle], own.handle) || differ(im[hBorn], own.born)",
		put:  "im[hDev] != own.dev || im[hInode] != own.inode || differ(im[hBorn], own.born)",
		by:   test("sidecar/state", "TestInodeNumberThatIsUsedAgainIsAnotherFile"),
	},
	{
		rule: "an inode with another birth time is another file",
		in:   "sidecar/state image.unusable",
		find: "im[hDev] != own.dev || im[hInode] != own.inode || differ(im[hHandle], own.handle) || differ(im[hBorn], own.born)",
		put:  "im[hDev] != own.dev || im[hInode] != own.inode || differ(im[hHandle], own.handle)",
		by:   test("sidecar/state", "TestInodeNumberThatIsUsedAgainIsAnotherFile"),
	},
	{
		rule: "a state that lacks a lock is not restored",
		in:   "sidecar/state image.unusable",
		find: "case im[hIncomplete] != 0:",
		put:  "case false:",
		by:   test("sidecar/state", "TestFullDiskIsReportedOnceAndTriedOnceASecond"),
	},
	{
		rule: "a state with a damaged header is not restored",
		in:   "sidecar/state image.unusable",
		find: "case im[hSum] != im.headerSum() || im[hPrefix] > MaxKeyPrefix:",
		put:  "case false:",
		by:   test("sidecar/state", "TestStateIsTakenOverOrReset"),
	},
	{
		rule: "a state of another format is not restored",
		in:   "sidecar/state image.unusable",
		find: "case im[hFormat] != format:",
		put:  "case false:",
		by:   test("sidecar/state", "TestStateIsTakenOverOrReset"),
	},
	{
		rule: "a damaged record resets the file",
		in:   "sidecar/state (*File).takeOver",
		find: "if c.damaged > 0 {",
		put:  "if false {",
		by:   test("sidecar/state", "TestDamagedRecordResetsTheFile"),
	},
	{
		rule: "a record of an unknown kind without its sum is damaged",
		in:   "sidecar/state (*cell).isOptional",
		find: "kind > kindHold && kind < kindRequired && c[cellWords-1] == c.sum()",
		put:  "kind > kindHold && kind < kindRequired",
		by:   test("sidecar/state", "TestDamagedRecordResetsTheFile"),
	},
	{
		rule: "a record that a later version requires resets the file",
		in:   "sidecar/state (*cell).isOptional",
		find: "kind > kindHold && kind < kindRequired && c[cellWords-1] == c.sum()",
		put:  "kind > kindHold && c[cellWords-1] == c.sum()",
		by:   test("sidecar/state", "TestRecordThatNeedsALaterVersionResetsTheFile"),
	},
	{
		rule: "a record that a later version can do without is skipped",
		in:   "sidecar/state (*contents).checkOthers",
		find: "kindOf(cell[0]) > kindHold && !cell.hasLock() && !cell.isOptional()",
		put:  "kindOf(cell[0]) > kindHold && !cell.hasLock()",
		by:   test("sidecar/state", "TestStateOfALaterVersionIsTakenOver"),
	},
	{
		rule: "words that a later version added to the header do not stay",
		in:   "sidecar/state (*File).clear",
		find: "f.update(&words[i], 0)",
		put:  "_ = i",
		by:   test("sidecar/state", "TestStateOfALaterVersionIsTakenOver"),
	},
	{
		rule: "a lock whose name does not have its sum is damaged",
		in:   "sidecar/state image.lock",
		find: "if !ok || sumOfName(c) != sum {",
		put:  "if _ = sum; !ok {",
		by:   test("sidecar/state", "TestDamagedRecordResetsTheFile"),
	},
	{
		rule: "a hold of another lock is damaged",
		in:   "sidecar/state image.lockOf",
		find: "if !ok || uint32(c[holdLock]>>32) != sumOfName(im.cell(slot)) {",
		put:  "if !ok {",
		by:   test("sidecar/state", "TestDamagedRecordResetsTheFile"),
	},
	{
		rule: "a hold without its lock resets the file",
		in:   "sidecar/state (*contents).readHolds",
		find: "!ok || !isHold || r.ID > to.Locks[lock].MaxHoldID || !isModeOf(to.Locks[lock].Kind, r.Mode)",
		put:  "ok && (!isHold || r.ID > to.Locks[lock].MaxHoldID || !isModeOf(to.Locks[lock].Kind, r.Mode))",
		by:   test("sidecar/state", "TestDamagedRecordResetsTheFile"),
	},
	{
		rule: "a hold in a cell of its own has no larger number than its lock",
		in:   "sidecar/state (*contents).readHolds",
		find: "r.ID > to.Locks[lock].MaxHoldID",
		put:  "false",
		by:   test("sidecar/state", "TestDamagedRecordResetsTheFile"),
	},
	{
		rule: "a hold with no entries is damaged",
		in:   "sidecar/state (*cell).hold",
		find: "r.ID != 0 && r.Entries != 0 && r.Permits != 0",
		put:  "r.ID != 0 && r.Permits != 0",
		by:   test("sidecar/state", "TestDamagedRecordResetsTheFile"),
	},
	{
		rule: "a hold of an unknown mode is not restored",
		in:   "sidecar/state isModeOf",
		find: "mode <= locktable.Shared",
		put:  "true",
		by:   test("sidecar/state", "TestDamagedRecordResetsTheFile"),
	},
	{
		rule: "pids from another pid namespace are not watched",
		in:   "sidecar/state (*contents).readSessions",
		find: "im[hPIDNS] != own.pidNS",
		put:  "false",
		by:   test("sidecar/state", "TestStateIsTakenOverOrReset"),
	},
	{
		rule: "a stale copy has a smaller number, and is not restored",
		in:   "sidecar/state image.stale",
		find: "number == 0 || number == noNumber || number != q[qNumber] && number != q[qNumber]+1",
		put:  "number == 0 || number == noNumber",
		by:   test("sidecar/state", "TestKilledAtAnyMoment"),
	},
	{
		rule: "a sequence file counts for one state",
		in:   "sidecar/state image.stale",
		find: "case q[qUUID] != im[hUUID] || q[qUUID+1] != im[hUUID+1]:",
		put:  "case false:",
		by:   test("sidecar/state", "TestRestoredCopyIsRefused"),
	},
	{
		rule: "a state without its sequence file is not restored",
		in:   "sidecar/state image.stale",
		find: "case q[qMagic] != sequenceMagic:",
		put:  "case false:",
		by:   test("sidecar/state", "TestRestoredCopyIsRefused"),
	},
	{
		rule: "the number of a round is stored in the state file before the sequence file",
		in:   "sidecar/state (*File).Commit",
		find: `f.publish(&f.img[hSequence], f.seq.n)
	f.publish(&f.seq.img[qNumber], f.seq.n)
	f.changed = false`,
		put: `f.publish(&f.seq.img[qNumber], f.seq.n)
	f.publish(&f.img[hSequence], f.seq.n)
	f.changed = false`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a file that another program overwrote is given up",
		in:   "sidecar/state (*File).Commit",
		find: "if f.img[hSequence] != f.seq.n {",
		put:  "if false {",
		by:   test("sidecar/state", "TestStateThatIsOverwrittenInUseIsNotTrusted"),
	},

	// One owner.
	{
		rule: "one process has the state file",
		in:   "sidecar/state (*File).lock",
		find: "err := unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB)",
		put:  "err := unix.Flock(f.fd, unix.LOCK_SH|unix.LOCK_NB)",
		by:   test("sidecar/state", "TestOneProcessHasTheFile"),
	},
	{
		rule: "the state file is not opened through a symbolic link",
		in:   "sidecar/state openOwn",
		find: "flags|unix.O_NOFOLLOW|unix.O_CLOEXEC",
		put:  "flags|unix.O_CLOEXEC",
		by:   test("sidecar/state", "TestRefusedFiles"),
	},
	{
		rule: "a state file that others may have read is not used",
		in:   "sidecar/state openOwn",
		find: "case st.Mode&0o077 != 0:",
		put:  "case false:",
		by:   test("sidecar/state", "TestRefusedFiles"),
	},
	{
		rule: "a file of another program is not overwritten",
		in:   "sidecar/state (*File).begin",
		find: "if st.Size > 0 && !hasMagic(f.fd, magic) {",
		put:  "if false {",
		by:   test("sidecar/state", "TestFileOfAnotherProgramIsNotChanged"),
	},

	// A full file system.
	{
		rule: "a record that finds no room marks the file",
		in:   "sidecar/state (*File).markIncomplete",
		find: "f.update(&f.img[hIncomplete], 1)",
		put:  "",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStoreWhileTheFileSystemIsFull"),
	},
	{
		rule: "the mark is cleared when everything is stored",
		in:   "sidecar/state (*File).checkComplete",
		find: "f.update(&f.img[hIncomplete], 0)",
		put:  "",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStoreWhileTheFileSystemIsFull"),
	},
	{
		rule: "the mark stays while a lock is missing",
		in:   "sidecar/state (*File).checkComplete",
		find: "f.completeness.phase == incomplete && locks == 0 && len(f.unstored) == 0",
		put:  "f.completeness.phase == incomplete && len(f.unstored) == 0",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStoreWhileTheFileSystemIsFull"),
	},
	{
		rule: "the mark stays while a session is missing",
		in:   "sidecar/state (*File).checkComplete",
		find: "f.completeness.phase == incomplete && locks == 0 && len(f.unstored) == 0",
		put:  "f.completeness.phase == incomplete && locks == 0",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStoreWhileTheFileSystemIsFull"),
	},
	{
		rule: "a file grows by what its file system has room for",
		in:   "sidecar/state (*host).extend",
		find: "h.allocate(fd, off, n)",
		put:  "unix.Ftruncate(fd, off+n)",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStoreWhileTheFileSystemIsFull"),
	},
	{
		rule: "a hold with a keep has a cell of its own",
		in:   "sidecar/state (*File).addHold",
		find: "l[holdID] != 0 || r.KeepUntil != 0",
		put:  "l[holdID] != 0",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a kept hold without a keep is damaged",
		in:   "sidecar/state (*cell).hold",
		find: `r.ID != 0 && r.Entries != 0 && r.Permits != 0 && r.Phase <= locktable.HoldKept &&
		flags&flagForced == 0 && (r.Lease == locktable.WatchdogLease || r.LeaseMS != 0) &&
		areTimes(c[holdGranted], c[holdDeadline], c[holdEnd], uint64(r.KeepUntil)) &&
		hasKeep == (r.KeepUntil != 0) && (hasKeep || r.Phase != locktable.HoldKept)`,
		put: `r.ID != 0 && r.Entries != 0 && r.Permits != 0 && r.Phase <= locktable.HoldKept &&
		flags&flagForced == 0 && (r.Lease == locktable.WatchdogLease || r.LeaseMS != 0) &&
		areTimes(c[holdGranted], c[holdDeadline], c[holdEnd], uint64(r.KeepUntil)) &&
		hasKeep == (r.KeepUntil != 0)`,
		by: test("sidecar/state", "TestDamagedRecordResetsTheFile"),
	},
	{
		rule: "of two records of a session, that with the later lease event counts",
		in:   "sidecar/state isNewerSession",
		find: "a.LeaseSeq > b.LeaseSeq || a.LeaseSeq == b.LeaseSeq && a.LeaseSent > b.LeaseSent",
		put:  "a.LeaseSeq == b.LeaseSeq && a.LeaseSent > b.LeaseSent",
		by:   test("sidecar/state", "TestNewerSessionIsThatWithTheLaterLease"),
	},
	{
		rule: "a state from before another sidecar served the socket is not restored",
		in:   "sidecar/state (*File).begin",
		find: `if of.UUID != "" && of.UUID != f.img.uuid() {`,
		put:  "if false {",
		by:   test("sidecar", "TestStateThatWasNotUsedForAWhileIsNotTakenUp"),
	},
	{
		rule: "a removed state that has another name is none any more",
		in:   "sidecar/state (*File).renewState",
		find: "f.img[hMagic] = 0 //",
		put:  "//",
		by:   test("sidecar/state", "TestRemovedStateIsNoStateAnyMore"),
	},
	{
		rule: "a state that cannot be written again stays as it is",
		in:   "sidecar/state (*File).renewState",
		find: "f.img[hMagic] = magic",
		put:  "f.img[hMagic] = 0",
		by:   test("sidecar/state", "TestStateThatCannotBeWrittenAgain"),
	},
	{
		rule: "a state that is written again names its own inode",
		in:   "sidecar/state (*File).renewState",
		find: "own.ofFile(fd, st)",
		put:  "own.ofFile(f.fd, st)",
		by:   test("sidecar/state", "TestRemovedFilesAreWrittenAgain"),
	},
	{
		rule: "no other process opens a state that is written again",
		in:   "sidecar/state (*host).makeAgain",
		find: "if isLocked {",
		put:  "if false {",
		by:   test("sidecar/state", "TestStateThatCannotBeWrittenAgain"),
	},
	{
		rule: "a file in the place of the state is not replaced",
		in:   "sidecar/state (*location).isInPlace",
		find: "case uint64(st.Dev) != l.dev || st.Ino != l.inode:",
		put:  "case false:",
		by:   test("sidecar/state", "TestFileInThePlaceOfTheStateIsNotReplaced"),
	},
	{
		rule: "a state that another program wrote to is not written again",
		in:   "sidecar/state (*File).Renew",
		find: "if f.completeness.phase == spoiled {",
		put:  "if false {",
		by:   test("sidecar/state", "TestOverwrittenStateIsNotRenewed"),
	},
	{
		rule: "a hold of a lock of another kind has a cell of its own",
		in:   "sidecar/state (*File).addHold",
		find: "kindOf(l[0]) != kindLock",
		put:  "false",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "what is to end by force is stored before it counts",
		in:   "sidecar/state (*File).updateForced",
		find: `if r.Forced != 0 {
		f.update(&c[lockForced], r.Forced)
		flags |= flagForced
	}`,
		put: `if r.Forced != 0 {
		flags |= flagForced
		f.update(&c[holdFlags], flags)
		f.update(&c[lockForced], r.Forced)
	}`,
		by: test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a word that was used for something else says nothing of force",
		in:   "sidecar/state image.lock",
		find: "r.Kind != redisop.KindLock && c[holdFlags]&flagForced != 0",
		put:  "r.Kind != redisop.KindLock",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "the kind of a lock that stays is stored",
		in:   "sidecar/state (*File).PutLock",
		find: "f.update(&c[0], withKind(c[0], kindOfLock(r.Kind)))",
		put:  "",
		by:   test("sidecar/state", "TestFileIsTrueAfterEveryStore"),
	},
	{
		rule: "a lock whose holds exclude each other has no shared hold",
		in:   "sidecar/state (*contents).readHolds",
		find: "!ok || !isHold || r.ID > to.Locks[lock].MaxHoldID || !isModeOf(to.Locks[lock].Kind, r.Mode)",
		put:  "!ok || !isHold || r.ID > to.Locks[lock].MaxHoldID",
		by:   test("sidecar/state", "TestDamagedRecordResetsTheFile"),
	},
}

package state

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// unusable returns, in one sentence, why nothing of the file can be taken over; "": it can
// be. q is the sequence file.
func (im image) unusable(own identity, q image) string {
	switch {
	case len(im) < pageWords || im[hMagic] == 0:
		return "the state file is not complete"
	case im[hFormat] != format:
		return fmt.Sprintf("the state file was written by another version of the sidecar (it has format %d, this version uses format %d), so its locks end with their leases", im[hFormat], format)
	case im[hSum] != im.headerSum() || im[hPrefix] > MaxKeyPrefix:
		return "the header of the state file is damaged"
	}
	var boot [16]byte
	copy(boot[:], appendWords(nil, im[hBoot:hDev]))
	switch {
	case own.boot == [16]byte{}:
		return "the boot id of this host cannot be read, so that it is not known whether the state file is from this boot"
	case boot != own.boot:
		return "the state file is from another boot of this host"
	case im[hTimeNS] != own.timeNS:
		return "the state file is from another time namespace, which has another clock"
	case im[hDev] != own.dev || im[hInode] != own.inode || differ(im[hHandle], own.handle) || differ(im[hBorn], own.born):
		return "the state file is a copy, and the original may have changed since"
	case im[hIncomplete] != 0:
		return "the state file is incomplete: its file system had no room for every lock and client, and a lock that is missing in it could be granted while a client holds it"
	}
	return im.stale(q)
}

// differ reports whether two values differ. 0: a value is not known.
func differ(a, b uint64) bool { return a != b && a != 0 && b != 0 }

// writeHeader begins a file. The cells must be zero.
func (f *File) writeHeader(own identity, id uuid.UUID, key [32]byte) {
	h := f.img[:pageWords]
	set := func(at int, ws ...uint64) {
		for i, w := range ws {
			f.write(&h[at+i], w)
		}
	}
	set(hFormat, format)
	set(hBoot, words(own.boot[:])...)
	set(hDev, own.dev, own.inode, own.handle, own.born, own.timeNS)
	set(hUUID, words(id[:])...)
	set(hKey, words(key[:])...)
	set(hPIDNS, own.pidNS, uint64(f.host.pid))
	set(hSequence, f.seq.n)
	if prefix := f.host.sidecar.KeyPrefix; prefix != "" {
		set(hPrefix, uint64(len(prefix)))
		for at := hPrefixText; prefix != ""; at++ {
			set(at, load(prefix))
			prefix = prefix[min(8, len(prefix)):]
		}
	}
	f.write(&h[hSum], h.headerSum())
	f.publish(&h[hMagic], magic)
}

// uuid is that of the sidecar.
func (im image) uuid() string { return uuid.UUID(appendWords(nil, im[hUUID:hKey])).String() }

// keyPrefix is that of the keys under which Redis has the locks.
func (im image) keyPrefix() string {
	return string(appendWords(nil, im[hPrefixText:hPrefixEnd])[:im[hPrefix]])
}

// contents is what an image has, and where.
type contents struct {
	recovered Recovered
	sessions  []uint32 // slots of recovered.Sessions
	used      []bool   // by cell
	count     int      // of used cells
	damaged   int      // records that make no sense to this version
}

// read returns whatever makes sense in a usable image. It writes nothing.
func (im image) read(own identity) contents {
	c := contents{used: make([]bool, im.cells())}
	to := &c.recovered
	to.UUID = im.uuid()
	copy(to.Key[:], appendWords(nil, im[hKey:hSum]))
	to.LastSessionID, to.Snapshot.LastHoldID = im[hLastSessionID], im[hLastHoldID]
	var ok bool
	if to.Redis, ok = im.redis(); !ok {
		c.damaged++
	}
	c.readSessions(im, own)
	c.readHolds(im, c.readLocks(im))
	c.checkOthers(im)
	return c
}

// checkOthers counts the records of unknown kinds without which the rest may not be true.
func (c *contents) checkOthers(im image) {
	for i := uint32(firstCell); i < im.cells(); i++ {
		if cell := im.cell(i); kindOf(cell[0]) > kindHold && !cell.hasLock() && !cell.isOptional() {
			c.damaged++
		}
	}
}

func (c *contents) readSessions(im image, own identity) {
	var found []Session
	var slots []uint32
	open := make(map[locktable.SessionID]int)
	for i := uint32(firstCell); i < im.cells(); i++ {
		if kindOf(im.cell(i)[0]) != kindSession {
			continue
		}
		s, ok := im.session(i)
		if !ok {
			c.damaged++
			continue
		}
		if im[hPIDNS] != own.pidNS {
			s.Peer.PID, s.Process = 0, Process{}
		}
		switch at, isTwice := open[s.ID]; {
		case !isTwice:
			open[s.ID] = len(found)
			found, slots = append(found, s), append(slots, i)
		case isNewerSession(s, found[at]):
			found[at], slots[at] = s, i
		}
	}
	to := &c.recovered
	for i, s := range found {
		if !c.claim(im, slots[i]) {
			c.damaged++
			continue
		}
		c.sessions = append(c.sessions, slots[i])
		to.Sessions = append(to.Sessions, s)
		to.LastSessionID = max(to.LastSessionID, uint64(s.ID))
		to.Snapshot.Sessions = append(to.Snapshot.Sessions, locktable.RestoredSession{SessionRecord: s.SessionRecord, Peer: s.Peer})
	}
}

// readLocks returns the index in Snapshot.Locks of each lock.
func (c *contents) readLocks(im image) (byName map[string]uint32) {
	n := 0
	for i := uint32(firstCell); i < im.cells(); i++ {
		if im.cell(i).hasLock() {
			n++
		}
	}
	byName = make(map[string]uint32, n)
	found := make([]locktable.RestoredLock, 0, n)
	for i := uint32(firstCell); i < im.cells(); i++ {
		if !im.cell(i).hasLock() {
			continue
		}
		r, ok := im.lock(i)
		if !ok {
			c.damaged++
			continue
		}
		switch at, isTwice := byName[r.Name]; {
		case !isTwice:
			byName[r.Name] = uint32(len(found))
			found = append(found, locktable.RestoredLock{Slot: i, LockRecord: r})
		case im.isNewerLock(i, found[at].Slot):
			found[at] = locktable.RestoredLock{Slot: i, LockRecord: r}
		}
	}
	to := &c.recovered.Snapshot
	to.Locks = found[:0]
	for _, r := range found {
		if !c.claim(im, r.Slot) {
			c.damaged++
			delete(byName, r.Name)
			continue
		}
		byName[r.Name] = uint32(len(to.Locks))
		to.Locks = append(to.Locks, r)
		to.LastHoldID = max(to.LastHoldID, r.MaxHoldID)
	}
	return byName
}

// readHolds reads the holds in the cells of locks, and those in cells of their own.
func (c *contents) readHolds(im image, byName map[string]uint32) {
	to := &c.recovered.Snapshot
	byID := make(map[uint64]int, len(to.Locks))
	to.Holds = make([]locktable.RestoredHold, 0, len(to.Locks))
	for i, l := range to.Locks {
		cell := im.cell(l.Slot)
		if cell[holdID] == 0 {
			continue
		}
		r, ok := cell.hold()
		if _, isTwice := byID[r.ID]; !ok || isTwice || r.ID > l.MaxHoldID || l.Kind != redisop.KindLock || !isModeOf(l.Kind, r.Mode) {
			c.damaged++
			continue
		}
		byID[r.ID] = len(to.Holds)
		to.Holds = append(to.Holds, locktable.RestoredHold{Slot: l.Slot, Lock: uint32(i), HoldRecord: r})
	}
	for i := uint32(firstCell); i < im.cells(); i++ {
		cell := im.cell(i)
		if kindOf(cell[0]) != kindHold {
			continue
		}
		lock, ok := im.lockOf(cell, byName)
		r, isHold := cell.hold()
		if !ok || !isHold || r.ID > to.Locks[lock].MaxHoldID || !isModeOf(to.Locks[lock].Kind, r.Mode) {
			c.damaged++
			continue
		}
		h := locktable.RestoredHold{Slot: i, Lock: lock, HoldRecord: r}
		if at, isTwice := byID[r.ID]; isTwice {
			// The copy that is made when the hold is moved is the same.
			if h.Slot = to.Holds[at].Slot; h != to.Holds[at] || kindOf(im.cell(h.Slot)[0]) != kindHold {
				c.damaged++
			}
			continue
		}
		if !c.claim(im, i) {
			c.damaged++
			continue
		}
		byID[r.ID] = len(to.Holds)
		to.Holds = append(to.Holds, h)
	}
}

// lockOf returns which lock a hold in a cell of its own is of.
func (im image) lockOf(c *cell, byName map[string]uint32) (index uint32, ok bool) {
	slot := uint32(c[holdLock])
	if c[0] != head(kindHold, 0, 0, 0) || slot < firstCell || slot >= im.cells() || !im.cell(slot).hasLock() {
		return 0, false
	}
	l, ok := im.lock(slot)
	if !ok || uint32(c[holdLock]>>32) != sumOfName(im.cell(slot)) {
		return 0, false
	}
	index, ok = byName[l.Name]
	return index, ok
}

// claim marks the cells of a record as used; false: another record has one of them.
func (c *contents) claim(im image, slot uint32) bool {
	for at := slot; at != 0; at = nextOf(im.cell(at)[0]) {
		if c.used[at] {
			for undo := slot; undo != at; undo = nextOf(im.cell(undo)[0]) {
				c.used[undo] = false
				c.count--
			}
			return false
		}
		c.used[at] = true
		c.count++
	}
	return true
}

// isNewerSession reports which of two records of one session counts: a session that is
// opened again may have a new record before the old one is deleted.
func isNewerSession(a, b Session) bool {
	return a.LeaseSeq > b.LeaseSeq || a.LeaseSeq == b.LeaseSeq && a.LeaseSent > b.LeaseSent
}

// isNewerLock reports which of two records of one lock counts. They are the same if one is
// the copy that is made when the lock is moved.
func (im image) isNewerLock(slot, other uint32) bool {
	a, b := im.cell(slot), im.cell(other)
	return a[lockMaxHoldID] > b[lockMaxHoldID] || a[lockMaxHoldID] == b[lockMaxHoldID] && a[holdID] > b[holdID]
}

// text returns the text of a record, and its sum.
func (im image) text(slot uint32, from int) (text []byte, sum uint32, ok bool) {
	c := im.cell(slot)
	n := textLen(c[0])
	if n > (cellWords-from)*8+maxParts*partBytes || partOf(c[0]) != 0 {
		return nil, 0, false
	}
	text = make([]byte, 0, n+7)
	var s uint64
	add := func(ws []uint64) {
		for _, w := range ws {
			if len(text) >= n {
				return
			}
			text = binary.LittleEndian.AppendUint64(text, w)
			s = mix(s, w)
		}
	}
	add(c[from:])
	last := parts(n, from)
	for part := 1; part <= last; part++ {
		at := nextOf(c[0])
		if at < firstCell || at >= im.cells() {
			return nil, 0, false
		}
		c = im.cell(at)
		if kindOf(c[0]) != kindPart || partOf(c[0]) != part {
			return nil, 0, false
		}
		add(c[partText:])
	}
	if nextOf(c[0]) != 0 {
		return nil, 0, false
	}
	return text[:n], fold(s), true
}

// isModeOf reports whether a hold of a lock of that kind may have that mode.
func isModeOf(kind redisop.LockKind, mode locktable.Mode) bool {
	switch kind {
	case redisop.KindPermits:
		return mode == locktable.Units
	case redisop.KindReadWrite:
		return mode <= locktable.Shared
	}
	return mode == locktable.Exclusive
}

// latest is the greatest time in a file: 146 years after the boot, and far enough from
// where sums of times overflow.
const latest = 1 << 62

func areTimes(ts ...uint64) bool {
	for _, t := range ts {
		if t > latest {
			return false
		}
	}
	return true
}

func (im image) lock(slot uint32) (r locktable.LockRecord, ok bool) {
	c := im.cell(slot)
	name, sum, ok := im.text(slot, lockName)
	if !ok || sumOfName(c) != sum {
		return r, false
	}
	r.Name, r.MaxHoldID = string(name), c[lockMaxHoldID]
	r.Kind, _ = lockKindOf(kindOf(c[0]))
	if r.Kind != redisop.KindLock && c[holdFlags]&flagForced != 0 {
		r.Forced = c[lockForced]
	}
	return r, protocol.CheckName(r.Name) == nil && r.Forced <= r.MaxHoldID
}

func (c *cell) hold() (r locktable.HoldRecord, ok bool) {
	flags := uint32(c[holdFlags])
	r = locktable.HoldRecord{
		ID: c[holdID], Token: c[holdToken], Owner: c[holdOwner], Session: locktable.SessionID(c[holdSession]),
		Granted: int64(c[holdGranted]), Deadline: int64(c[holdDeadline]), End: int64(c[holdEnd]),
		LeaseSeq: uint32(c[holdLease]), LeaseMS: uint32(c[holdLease] >> 32),
		Entries: uint32(c[holdEntries]), CrashDelayMS: uint32(c[holdEntries] >> 32),
		Permits: uint16(flags >> flagPermits), Mode: locktable.Mode(flags >> flagMode),
		Phase: locktable.HoldPhase(flags & flagPhase), InDoubt: flags&flagInDoubt != 0,
	}
	if flags&flagFixed != 0 {
		r.Lease = locktable.FixedLease
	}
	hasKeep := flags&flagKeep != 0
	if isOwn := kindOf(c[0]) == kindHold; isOwn {
		r.Capacity = uint16(c[holdCapacity])
		if hasKeep {
			r.KeepUntil = int64(c[holdKeep])
		}
	}
	ok = r.ID != 0 && r.Entries != 0 && r.Permits != 0 && r.Phase <= locktable.HoldKept &&
		flags&flagForced == 0 && (r.Lease == locktable.WatchdogLease || r.LeaseMS != 0) &&
		areTimes(c[holdGranted], c[holdDeadline], c[holdEnd], uint64(r.KeepUntil)) &&
		hasKeep == (r.KeepUntil != 0) && (hasKeep || r.Phase != locktable.HoldKept)
	return r, ok
}

func (im image) session(slot uint32) (s Session, ok bool) {
	c := im.cell(slot)
	text, sum, ok := im.text(slot, sessionText)
	cmd := int(uint32(c[sessionCmd]))
	if !ok || uint32(c[sessionCmd]>>32) != sum || !utf8.Valid(text) ||
		cmd > len(text) || cmd > maxCommand || len(text)-cmd > protocol.MaxClient || !utf8.Valid(text[:cmd]) ||
		c[sessionID] == 0 || c[sessionPID] > math.MaxInt32 || c[sessionUID] > math.MaxUint32 || !areTimes(c[sessionLeaseSent]) ||
		c[sessionLease] >= 2*flagResumable {
		return s, false
	}
	s.SessionRecord = locktable.SessionRecord{
		ID: locktable.SessionID(c[sessionID]), LeaseSent: int64(c[sessionLeaseSent]),
		LeaseSeq: uint32(c[sessionLease]), Phase: locktable.SessionPhase(c[sessionLease] >> flagSessionPhase),
	}
	switch s.Phase {
	case locktable.SessionServing, locktable.SessionGivenUp, locktable.SessionUnserved:
	default:
		return s, false
	}
	s.Peer = locktable.Peer{
		PID: int64(c[sessionPID]), UID: int64(c[sessionUID]),
		Cmd: string(text[:cmd]), Client: string(text[cmd:]),
	}
	s.Process = processIn(c[sessionPidfd], c[sessionStart])
	s.Resumable = c[sessionLease]&flagResumable != 0
	return s, true
}

func (im image) redis() (r Redis, ok bool) {
	var w image
	switch im[hRedis] {
	case 0:
		return r, true
	case 1:
		w = im[hRedis1 : hRedis1+rWords]
	case 2:
		w = im[hRedis2 : hRedis2+rWords]
	default:
		return r, false
	}
	run, repl := int(uint32(w[rLens])), int(w[rLens]>>32)
	if run > maxID || repl > maxID {
		return r, false
	}
	runID, replID := appendWords(nil, w[rRunID:rReplID])[:run], appendWords(nil, w[rReplID:])[:repl]
	if !utf8.Valid(runID) || !utf8.Valid(replID) {
		return r, false
	}
	return Redis{
		RunID: string(runID), ReplID: string(replID),
		ClientID: int64(w[rClientID]), Floor: int64(w[rFloor]), FloorAt: int64(w[rFloorAt]),
	}, true
}

func words(b []byte) []uint64 {
	w := make([]uint64, len(b)/8)
	for i := range w {
		w[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return w
}

func appendWords(b []byte, ws []uint64) []byte {
	for _, w := range ws {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

package state

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// unusable tells in one sentence why nothing of the file can be taken over; "": it
// can. q is the sequence file.
func (im image) unusable(own identity, q image) string {
	switch {
	case len(im) < pageWords || im[hMagic] == 0:
		return "the state file is not complete"
	case im[hFormat] != format:
		return fmt.Sprintf("the state file has format %d, and this version knows format %d", im[hFormat], format)
	case im[hSum] != im.headerSum() || im[hPrefix] > MaxKeyPrefix:
		return "the header of the state file is damaged"
	}
	var boot [16]byte
	copy(boot[:], appendWords(nil, im[hBoot:hDev]))
	switch {
	case own.boot == [16]byte{}:
		return "the boot id of this host cannot be read, so that nobody knows whether the state file is from this boot"
	case boot != own.boot:
		return "the state file is from another boot of this host"
	case im[hTimeNS] != own.timeNS:
		return "the state file is from another time namespace, whose clock is another one"
	case im[hDev] != own.dev || im[hInode] != own.inode || differ(im[hHandle], own.handle) || differ(im[hBorn], own.born):
		return "the state file is a copy, and what it was copied from may have gone on"
	case im[hIncomplete] != 0:
		return "the state file is incomplete: its file system had no room for every lock and client, and a lock that is missing in it could be granted while a client holds it"
	}
	return im.stale(q)
}

// differ reports whether two values differ that are 0 where they are not known.
func differ(a, b uint64) bool { return a != b && a != 0 && b != 0 }

// writeHeader begins a file. The cells must be zero.
func (f *File) writeHeader(own identity, id uuid.UUID, key [32]byte) {
	h := f.img[:pageWords]
	set := func(at int, ws ...uint64) {
		for i, w := range ws {
			f.set(&h[at+i], w)
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
	f.set(&h[hSum], h.headerSum())
	f.publish(&h[hMagic], magic)
}

// uuid is that of the sidecar.
func (im image) uuid() string { return uuid.UUID(appendWords(nil, im[hUUID:hKey])).String() }

// keyPrefix is that of the keys under which Redis has the locks.
func (im image) keyPrefix() string {
	return string(appendWords(nil, im[hPrefixText:hPrefixEnd])[:im[hPrefix]])
}

// contents is what stands in an image, and where.
type contents struct {
	left     Left
	sessions []uint32 // slots of left.Sessions
	used     []bool   // by cell
	count    int      // of used cells
	damaged  int      // records that make no sense
}

// read takes from a usable image whatever makes sense. It writes nothing.
func (im image) read(own identity) contents {
	var c contents
	left := &c.left
	left.UUID = im.uuid()
	copy(left.Key[:], appendWords(nil, im[hKey:hSum]))
	left.LastSession, left.Memory.Last = im[hLastSession], im[hLast]
	var ok bool
	if left.Redis, ok = im.redis(); !ok {
		c.damaged++
	}

	n := 0
	for i := uint32(firstCell); i < im.cells(); i++ {
		if kindOf(im.cell(i)[0]) == kindLock {
			n++
		}
	}
	open := make(map[locktable.SessionID]int)
	byName := make(map[string]int, n)
	locks := make([]locktable.RememberedLock, 0, n)
	for i := uint32(firstCell); i < im.cells(); i++ {
		switch kindOf(im.cell(i)[0]) {
		case kindSession:
			s, ok := im.session(i)
			if !ok {
				c.damaged++
				break
			}
			if im[hPIDNS] != own.pidNS {
				s.Peer.PID, s.Process = 0, Process{}
			}
			at, twice := open[s.ID]
			switch {
			case !twice:
				open[s.ID] = len(left.Sessions)
				left.Sessions = append(left.Sessions, s)
				c.sessions = append(c.sessions, i)
			case newerSession(s, left.Sessions[at]):
				left.Sessions[at], c.sessions[at] = s, i
			}
		case kindLock:
			r, ok := im.lock(i)
			if !ok {
				c.damaged++
				break
			}
			at, twice := byName[r.Name]
			switch {
			case !twice:
				byName[r.Name] = len(locks)
				locks = append(locks, locktable.RememberedLock{Slot: i, LockRecord: r})
			case newerLock(r, locks[at].LockRecord):
				locks[at] = locktable.RememberedLock{Slot: i, LockRecord: r}
			}
		}
	}

	c.used = make([]bool, im.cells())
	sessions, slots := left.Sessions[:0], c.sessions[:0]
	for i, s := range left.Sessions {
		if !c.claim(im, c.sessions[i]) {
			c.damaged++
			delete(open, s.ID)
			continue
		}
		sessions, slots = append(sessions, s), append(slots, c.sessions[i])
		left.LastSession = max(left.LastSession, uint64(s.ID))
		left.Memory.Sessions = append(left.Memory.Sessions, locktable.RememberedSession{SessionRecord: s.SessionRecord, Peer: s.Peer})
	}
	left.Sessions, c.sessions = sessions, slots

	kept := locks[:0]
	nums := make(map[uint64]bool, n)
	for _, r := range locks {
		h := &r.Hold
		if h.Num != 0 && nums[h.Num] || !c.claim(im, r.Slot) {
			c.damaged++
			continue
		}
		if h.Num != 0 {
			nums[h.Num] = true
		}
		kept = append(kept, r)
		left.Memory.Last = max(left.Memory.Last, r.Top)
	}
	left.Memory.Locks = kept
	return c
}

// claim marks the cells of a record as used; false: one of them is another's.
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

func newerSession(a, b Session) bool {
	return a.Tells > b.Tells || a.Tells == b.Tells && a.Told > b.Told
}

func newerLock(a, b locktable.LockRecord) bool {
	return a.Top > b.Top || a.Top == b.Top && a.Hold.Num > b.Hold.Num
}

// text is that of a record, and the sum of it.
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

// latest is the greatest time that anything in the file may have: 146 years after
// the boot, and far enough from where sums of times overflow.
const latest = 1 << 62

func times(ts ...uint64) bool {
	for _, t := range ts {
		if t > latest {
			return false
		}
	}
	return true
}

func (im image) lock(slot uint32) (r locktable.LockRecord, ok bool) {
	c := im.cell(slot)
	name, sum, ok := im.text(slot, lText)
	if !ok || uint32(c[lFlags]>>32) != sum || uint32(c[lFlags])&^(orphan|inDoubt) != 0 {
		return r, false
	}
	r.Name, r.Top = string(name), c[lTop]
	if protocol.CheckName(r.Name) != nil {
		return r, false
	}
	if c[lNum] == 0 {
		return r, true
	}
	if c[lNum] > r.Top || uint32(c[lCount]) == 0 ||
		!times(c[lGranted], c[lDeadline], c[lEnd]) {
		return r, false
	}
	r.Hold = locktable.HoldRecord{
		Num: c[lNum], Token: c[lToken], Owner: c[lOwner], Session: locktable.SessionID(c[lSession]),
		Granted: int64(c[lGranted]), Deadline: int64(c[lDeadline]), End: int64(c[lEnd]),
		Tells: uint32(c[lLease]), LeaseMS: uint32(c[lLease] >> 32),
		Count: uint32(c[lCount]), CrashDelayMS: uint32(c[lCount] >> 32),
		Orphan: c[lFlags]&orphan != 0, InDoubt: c[lFlags]&inDoubt != 0,
	}
	return r, true
}

func (im image) session(slot uint32) (s Session, ok bool) {
	c := im.cell(slot)
	text, sum, ok := im.text(slot, sText)
	cmd := int(uint32(c[sCmd]))
	if !ok || uint32(c[sCmd]>>32) != sum || !utf8.Valid(text) ||
		cmd > len(text) || cmd > protocol.MaxCmd || len(text)-cmd > protocol.MaxClient || !utf8.Valid(text[:cmd]) ||
		c[sID] == 0 || c[sPID] > math.MaxInt32 || c[sUID] > math.MaxUint32 || !times(c[sTold]) || c[sTells]&^(1<<32-1|detached|resumable) != 0 {
		return s, false
	}
	s.SessionRecord = locktable.SessionRecord{
		ID: locktable.SessionID(c[sID]), Told: int64(c[sTold]),
		Tells: uint32(c[sTells]), Detached: c[sTells]&detached != 0,
	}
	s.Peer = locktable.Peer{
		PID: int64(c[sPID]), UID: int64(c[sUID]),
		Cmd: string(text[:cmd]), Client: string(text[cmd:]),
	}
	s.Process = Process{Pidfd: c[sPidfd], Start: c[sStart]}
	s.Resumable = c[sTells]&resumable != 0
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

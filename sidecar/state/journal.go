package state

import (
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

var _ locktable.Journal = (*File)(nil)

// PutLock implements locktable.Journal. A lock for which there is no room is counted by the
// caller: see Commit.
func (f *File) PutLock(slot uint32, r *locktable.LockRecord) uint32 {
	if slot == 0 {
		return f.addLock(r)
	}
	c := f.lockCell(slot)
	if textLen(c[0]) != len(r.Name) || c[lockName] != load(r.Name) { // to compare all of it would take as long as the rest
		panic(fmt.Sprintf("state: another lock than %q is stored in slot %d", r.Name, slot))
	}
	f.update(&c[lockMaxHoldID], r.MaxHoldID)
	f.updateForced(c, r)
	f.update(&c[0], withKind(c[0], kindOfLock(r.Kind)))
	return slot
}

func (f *File) addLock(r *locktable.LockRecord) uint32 {
	if r.Name == "" || len(r.Name) > protocol.MaxName {
		f.completeness.reason = fmt.Sprintf("a name of %d bytes cannot be stored; this is a defect of the sidecar, report it", len(r.Name))
		f.markIncomplete()
		return 0
	}
	slot, word, sum := f.newRecord(kindOfLock(r.Kind), lockName, r.Name)
	if slot == 0 {
		return 0
	}
	c := f.img.cell(slot)
	f.write(&c[lockMaxHoldID], r.MaxHoldID)
	f.write(&c[holdID], 0)
	f.write(&c[holdFlags], pack(0, sum))
	f.updateForced(c, r)
	f.publish(&c[0], word)
	return slot
}

// updateForced stores which holds of a lock end by force. A hold that a lock of kind redisop.KindLock gets later in its cell
// takes the flag away.
func (f *File) updateForced(c *cell, r *locktable.LockRecord) {
	if r.Kind == redisop.KindLock {
		return
	}
	flags := c[holdFlags] &^ flagForced
	if r.Forced != 0 {
		f.update(&c[lockForced], r.Forced)
		flags |= flagForced
	}
	f.update(&c[holdFlags], flags)
}

// DeleteLock implements locktable.Journal.
func (f *File) DeleteLock(slot uint32) {
	if c := f.lockCell(slot); c[holdID] != 0 {
		panic(fmt.Sprintf("state: the lock in slot %d is deleted before its hold", slot))
	}
	f.remove(slot)
}

// PutHold implements locktable.Journal. The first hold of a lock is in the cell of the lock,
// where there is always room, unless it has a keep, for which that cell has no word, or the lock is of
// another kind than redisop.KindLock. Others have a cell each, and the caller counts the locks with holds that found none.
func (f *File) PutHold(slot, lock uint32, r *locktable.HoldRecord) uint32 {
	if slot == 0 {
		return f.addHold(lock, r)
	}
	c := f.holdCell(slot)
	if c[holdID] != r.ID {
		panic(fmt.Sprintf("state: another hold than %d is stored in slot %d", r.ID, slot))
	}
	f.update(&c[holdDeadline], uint64(r.Deadline))
	f.update(&c[holdEnd], uint64(r.End))
	f.update(&c[holdLease], pack(r.LeaseSeq, r.LeaseMS))
	f.update(&c[holdEntries], pack(r.Entries, r.CrashDelayMS))
	f.update(&c[holdFlags], withFlags(c[holdFlags], r))
	return slot
}

func (f *File) addHold(lock uint32, r *locktable.HoldRecord) uint32 {
	l := f.lockCell(lock)
	c, slot := l, lock
	if l[holdID] != 0 || r.KeepUntil != 0 || kindOf(l[0]) != kindLock {
		if slot = f.allocCell(); slot == 0 {
			f.markIncomplete()
			return 0
		}
		c = f.img.cell(slot)
		f.write(&c[holdLock], pack(lock, sumOfName(l)))
		f.write(&c[holdKeep], uint64(r.KeepUntil))
		f.write(&c[holdCapacity], uint64(r.Capacity))
	}
	f.write(&c[holdToken], r.Token)
	f.write(&c[holdOwner], r.Owner)
	f.write(&c[holdSession], uint64(r.Session))
	f.write(&c[holdGranted], uint64(r.Granted))
	f.write(&c[holdDeadline], uint64(r.Deadline))
	f.write(&c[holdEnd], uint64(r.End))
	f.write(&c[holdLease], pack(r.LeaseSeq, r.LeaseMS))
	f.write(&c[holdEntries], pack(r.Entries, r.CrashDelayMS))
	f.write(&c[holdFlags], withFlags(c[holdFlags], r))
	if c == l {
		f.publish(&c[holdID], r.ID)
	} else {
		f.write(&c[holdID], r.ID)
		f.publish(&c[0], head(kindHold, 0, 0, 0))
	}
	return slot
}

// withFlags is the word of flags with those of a hold. Its upper half stays.
func withFlags(word uint64, r *locktable.HoldRecord) uint64 {
	flags := uint64(r.Phase) | uint64(r.Mode)<<flagMode | uint64(r.Permits)<<flagPermits
	if r.InDoubt {
		flags |= flagInDoubt
	}
	if r.Lease == locktable.FixedLease {
		flags |= flagFixed
	}
	if r.KeepUntil != 0 {
		flags |= flagKeep
	}
	return word&^(1<<32-1) | flags
}

// DeleteHold implements locktable.Journal.
func (f *File) DeleteHold(slot uint32) {
	if c := f.holdCell(slot); kindOf(c[0]) == kindLock {
		f.publish(&c[holdID], 0)
		return
	}
	f.remove(slot)
}

// PutLastHoldID implements locktable.Journal.
func (f *File) PutLastHoldID(id uint64) { f.update(&f.img[hLastHoldID], id) }

// lockCell is the cell of a lock that is stored.
func (f *File) lockCell(slot uint32) *cell {
	if slot < firstCell || slot >= f.next || !f.img.cell(slot).hasLock() {
		panicWrongSlot("lock", slot)
	}
	return f.img.cell(slot)
}

// holdCell is the cell of a hold that is stored.
func (f *File) holdCell(slot uint32) *cell {
	if slot < firstCell || slot >= f.next {
		panicWrongSlot("hold", slot)
	}
	c := f.img.cell(slot)
	if kind := kindOf(c[0]); kind != kindHold && (kind != kindLock || c[holdID] == 0) {
		panicWrongSlot("hold", slot)
	}
	return c
}

// panicWrongSlot panics because of a defect of the caller, which would make the file untrue.
func panicWrongSlot(what string, slot uint32) {
	panic(fmt.Sprintf("state: no %s is stored in slot %d", what, slot))
}

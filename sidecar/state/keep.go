package state

import (
	"fmt"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

var _ locktable.Keeper = (*File)(nil)

// set makes a store that nobody looks at before the next publish.
func (f *File) set(p *uint64, v uint64) {
	*p = v
	if f.host.stored != nil {
		f.host.stored(f.img, f.seq.img)
	}
}

// publish makes a store that counts: everything set before it stands in memory when
// it does.
func (f *File) publish(p *uint64, v uint64) {
	atomic.StoreUint64(p, v)
	f.changed = true
	if f.host.stored != nil {
		f.host.stored(f.img, f.seq.img)
	}
}

// change publishes what is not there already.
func (f *File) change(p *uint64, v uint64) {
	if *p != v {
		f.publish(p, v)
	}
}

// KeepLock implements locktable.Keeper. A lock for which there is no room is counted by
// the caller: see Commit.
func (f *File) KeepLock(slot uint32, r *locktable.LockRecord) uint32 {
	if slot == 0 {
		return f.addLock(r)
	}
	c := f.record(slot, kindLock)
	if !f.named(c, r.Name) {
		slot, old := f.addLock(r), slot
		f.remove(old)
		return slot
	}
	h := &r.Hold
	if h.Num == 0 || !sameHold(c, h) {
		f.change(&c[lNum], 0)
		f.change(&c[lTop], r.Top)
		if h.Num != 0 {
			f.setHold(c, h)
			f.set(&c[lFlags], withFlags(c[lFlags], h))
			f.publish(&c[lNum], h.Num)
		}
		return slot
	}
	f.change(&c[lTop], r.Top)
	f.change(&c[lDeadline], uint64(h.Deadline))
	f.change(&c[lEnd], uint64(h.End))
	f.change(&c[lLease], pack(h.Tells, h.LeaseMS))
	f.change(&c[lCount], pack(h.Count, h.CrashDelayMS))
	f.change(&c[lFlags], withFlags(c[lFlags], h))
	return slot
}

// ForgetLock implements locktable.Keeper. A lock that found no room has slot 0, and
// there is nothing to forget.
func (f *File) ForgetLock(slot uint32) {
	if slot != 0 {
		f.record(slot, kindLock)
		f.remove(slot)
	}
}

// KeepLast implements locktable.Keeper.
func (f *File) KeepLast(num uint64) { f.change(&f.img[hLast], num) }

// KeepLastSession stores the largest number that a session ever had.
func (f *File) KeepLastSession(id uint64) { f.change(&f.img[hLastSession], id) }

// OpenSession stores a session before its client is told of it. If it is open
// already, this is what there is to know of it now. A session for which there is no
// room is stored by Retry when there is.
func (f *File) OpenSession(s Session) {
	cmd, client := cut(s.Peer.Cmd, protocol.MaxCmd), cut(s.Peer.Client, protocol.MaxClient)
	if f.reopen(s, cmd, client) {
		return
	}
	old := f.sessions[s.ID]
	if f.addSession(s, cmd, client) {
		if old != 0 {
			f.remove(old)
		}
		return
	}
	if old != 0 {
		// What is stored is not true any more. Its cells may be room enough.
		delete(f.sessions, s.ID)
		f.remove(old)
		if f.addSession(s, cmd, client) {
			return
		}
	}
	f.unstored[s.ID] = s
}

// addSession stores a session in a record of its own; false: there is no room.
func (f *File) addSession(s Session, cmd, client string) bool {
	slot, word, sum := f.newRecord(kindSession, sText, cmd+client)
	if slot == 0 {
		return false
	}
	c := f.img.cell(slot)
	f.set(&c[sID], uint64(s.ID))
	f.set(&c[sTold], uint64(s.Told))
	f.set(&c[sTells], tells(s.SessionRecord, s.Resumable))
	f.set(&c[sPID], uint64(s.Peer.PID))
	f.set(&c[sUID], uint64(s.Peer.UID))
	f.set(&c[sPidfd], s.Process.Pidfd)
	f.set(&c[sStart], s.Process.Start)
	f.set(&c[sCmd], pack(uint32(len(cmd)), sum))
	f.publish(&c[0], word)
	f.sessions[s.ID] = slot
	delete(f.unstored, s.ID)
	return true
}

// reopen stores a session that comes back over what is known of it; false: something
// about its process is new, and it needs a record of its own.
func (f *File) reopen(s Session, cmd, client string) bool {
	slot := f.sessions[s.ID]
	if slot == 0 {
		return false
	}
	c := f.img.cell(slot)
	if c[sPID] != uint64(s.Peer.PID) || c[sPidfd] != s.Process.Pidfd || c[sStart] != s.Process.Start || c[sUID] != uint64(s.Peer.UID) ||
		int(uint32(c[sCmd])) != len(cmd) || !f.texted(c, sText, cmd+client) {
		return false
	}
	f.change(&c[sTold], uint64(s.Told))
	f.change(&c[sTells], tells(s.SessionRecord, s.Resumable))
	return true
}

// KeepSession implements locktable.Keeper. A session that is not open is ignored.
func (f *File) KeepSession(r locktable.SessionRecord) {
	slot := f.sessions[r.ID]
	if slot == 0 {
		if s, ok := f.unstored[r.ID]; ok {
			s.SessionRecord = r
			f.unstored[r.ID] = s
		}
		return
	}
	c := f.img.cell(slot)
	f.change(&c[sTold], uint64(r.Told))
	f.change(&c[sTells], tells(r, c[sTells]&resumable != 0))
}

// CloseSession forgets a session. Its holds must have been forgotten, or be orphans,
// before: a hold of a session that is not open is nobody's, and runs to its deadline.
func (f *File) CloseSession(id locktable.SessionID) {
	delete(f.unstored, id)
	if slot := f.sessions[id]; slot != 0 {
		delete(f.sessions, id)
		f.remove(slot)
	}
}

// KeepRedis stores which server the sidecar speaks to.
func (f *File) KeepRedis(r Redis) {
	which, at := uint64(1), hRedis1
	if f.img[hRedis] == 1 {
		which, at = 2, hRedis2
	}
	run, repl := cut(r.RunID, maxID), cut(r.ReplID, maxID)
	to := f.img[at : at+rWords]
	f.set(&to[rClientID], uint64(r.ClientID))
	f.set(&to[rFloor], uint64(r.Floor))
	f.set(&to[rFloorAt], uint64(r.FloorAt))
	f.set(&to[rLens], pack(uint32(len(run)), uint32(len(repl))))
	f.setText(to[rRunID:rReplID], run, 0)
	f.setText(to[rReplID:rWords], repl, 0)
	f.publish(&f.img[hRedis], which)
}

func (f *File) addLock(r *locktable.LockRecord) uint32 {
	if r.Name == "" || len(r.Name) > protocol.MaxName {
		f.gap.reason = fmt.Sprintf("a name of %d bytes cannot be stored; this is a mistake in the sidecar, report it", len(r.Name))
		f.markIncomplete()
		return 0
	}
	slot, word, sum := f.newRecord(kindLock, lText, r.Name)
	if slot == 0 {
		return 0
	}
	c, h := f.img.cell(slot), &r.Hold
	f.set(&c[lTop], r.Top)
	f.set(&c[lNum], h.Num)
	f.setHold(c, h)
	f.set(&c[lFlags], withFlags(pack(0, sum), h))
	f.publish(&c[0], word)
	return slot
}

func (f *File) setHold(c *cell, h *locktable.HoldRecord) {
	f.set(&c[lToken], h.Token)
	f.set(&c[lOwner], h.Owner)
	f.set(&c[lSession], uint64(h.Session))
	f.set(&c[lGranted], uint64(h.Granted))
	f.set(&c[lDeadline], uint64(h.Deadline))
	f.set(&c[lEnd], uint64(h.End))
	f.set(&c[lLease], pack(h.Tells, h.LeaseMS))
	f.set(&c[lCount], pack(h.Count, h.CrashDelayMS))
}

// sameHold tells whether the cell has that hold, though it may have changed.
func sameHold(c *cell, h *locktable.HoldRecord) bool {
	return c[lNum] == h.Num && c[lToken] == h.Token && c[lOwner] == h.Owner &&
		c[lSession] == uint64(h.Session) && c[lGranted] == uint64(h.Granted)
}

func withFlags(flags uint64, h *locktable.HoldRecord) uint64 {
	flags &^= orphan | inDoubt
	if h.Orphan {
		flags |= orphan
	}
	if h.InDoubt {
		flags |= inDoubt
	}
	return flags
}

func tells(r locktable.SessionRecord, canResume bool) uint64 {
	w := uint64(r.Tells)
	if r.Detached {
		w |= detached
	}
	if canResume {
		w |= resumable
	}
	return w
}

// cut shortens a text to what there is room for.
func cut(s string, n int) string {
	if len(s) > n {
		for s = s[:n]; len(s) > 0 && !utf8.ValidString(s[max(0, len(s)-utf8.UTFMax):]); {
			s = s[:len(s)-1]
		}
	}
	return strings.ToValidUTF8(s, "")
}

// newRecord writes a text into a free cell from word from on, and into as many parts
// as it takes. The record appears when word is published as the first word of its
// cell; slot 0: there is no room.
func (f *File) newRecord(kind, from int, text string) (slot uint32, word uint64, sum uint32) {
	n := parts(len(text), from)
	var at [1 + maxParts + 1]uint32 // the last one stays 0: no further part
	for i := range 1 + n {
		if at[i] = f.take(); at[i] == 0 {
			for i--; i >= 0; i-- {
				f.give(at[i])
			}
			f.markIncomplete()
			return 0, 0, 0
		}
	}
	word = head(kind, 0, len(text), at[1])
	rest, s := f.setText(f.img.cell(at[0])[from:], text, 0)
	for i := 1; i <= n; i++ {
		c := f.img.cell(at[i])
		rest, s = f.setText(c[partText:], rest, s)
		f.set(&c[0], head(kindPart, i, 0, at[i+1]))
	}
	return at[0], word, fold(s)
}

// setText fills words with a text and returns what does not fit.
func (f *File) setText(to []uint64, text string, sum uint64) (string, uint64) {
	for i := 0; i < len(to) && text != ""; i++ {
		w := load(text)
		f.set(&to[i], w)
		sum = mix(sum, w)
		text = text[min(8, len(text)):]
	}
	return text, sum
}

// named tells whether a lock has this name.
func (f *File) named(c *cell, name string) bool { return f.texted(c, lText, name) }

// texted tells whether a record has this text, which begins at word from.
func (f *File) texted(c *cell, from int, name string) bool {
	if textLen(c[0]) != len(name) {
		return false
	}
	for has := c[from:]; ; has = c[partText:] {
		for _, w := range has {
			if name == "" {
				return true
			}
			if w != load(name) {
				return false
			}
			name = name[min(8, len(name)):]
		}
		if name == "" {
			return true
		}
		c = f.img.cell(nextOf(c[0]))
	}
}

// record is the cell of a lock or session that is there. Another slot would be a
// mistake of the caller's, and would make the file lie.
func (f *File) record(slot uint32, kind int) *cell {
	if slot < firstCell || slot >= f.next || kindOf(f.img.cell(slot)[0]) != kind {
		panic(fmt.Sprintf("state: nothing of the kind is kept in slot %d", slot))
	}
	return f.img.cell(slot)
}

// remove makes a record vanish and frees its cells.
func (f *File) remove(slot uint32) {
	word := f.img.cell(slot)[0]
	f.publish(&f.img.cell(slot)[0], 0)
	f.give(slot)
	for at := nextOf(word); at != 0; {
		c := f.img.cell(at)
		next := nextOf(c[0])
		f.set(&c[0], 0)
		f.give(at)
		at = next
	}
}

// take returns a free cell; 0: there is none.
func (f *File) take() uint32 {
	if i := f.free; i != 0 {
		f.free = uint32(f.img.cell(i)[1])
		return i
	}
	if f.next == f.end && !f.grow() {
		return 0
	}
	i := f.next
	f.next++
	return i
}

// give puts a cell whose first word is 0, or that was not published, into the free
// list.
func (f *File) give(i uint32) {
	c := f.img.cell(i)
	f.set(&c[1], uint64(f.free))
	f.free = i
}

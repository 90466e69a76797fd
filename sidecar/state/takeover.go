package state

import (
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// NewUUID returns the random uuid of a new sidecar. It is of version 8: scripts name the server
// that executes them in their messages to such a sidecar. Older sidecars, which do not know such
// messages, and Redisson programs have uuids of version 4.
func NewUUID() uuid.UUID {
	id := uuid.New()
	id[6] = id[6]&0x0f | 8<<4
	return id
}

// reset begins the file with a new uuid, and without any record. reason is for Recovered.
func (f *File) reset(own identity, reason string) error {
	if err := unix.Ftruncate(f.fd, 0); err != nil {
		return fmt.Errorf("emptying the state file %s: %w", f.path, err)
	}
	if err := f.host.extend(f.fd, 0, minSize); err != nil {
		return fmt.Errorf("state file %s: %w; make room on its file system, or choose another path", f.path, err)
	}
	id := NewUUID()
	var key [32]byte
	rand.Read(key[:])
	f.beginSequence(id)
	f.writeHeader(own, id, key)
	f.next, f.end = firstCell, minSize/cellSize
	f.recovered = Recovered{UUID: id.String(), Key: key, Reset: true, ResetReason: reason}
	return nil
}

// takeOver continues with what the predecessor stored in the first size bytes of the file.
// Its records move to the front, and the rest of the file is cut off: a sidecar that had a
// million locks once does not keep the memory for them.
func (f *File) takeOver(own identity, size int64) error {
	// What it wrote has room on the file system. A hole in a damaged file has none, and a
	// store into it could be a signal.
	if err := f.host.allocate(f.fd, 0, size); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("state file %s: %w; make room on its file system, or choose another path", f.path, err)
	}
	img := f.img[:size/8]
	c := img.read(own)
	if c.damaged > 0 {
		// Their contents are not known: under the same uuid a lock that a client holds
		// could be granted.
		return f.reset(own, fmt.Sprintf("%d records of the state file are damaged, or need a later version of the sidecar", c.damaged))
	}
	f.resumeSequence()
	f.clear(img, &c, own)
	limit := firstCell + uint32(c.count)
	f.compact(&c, limit)

	keep := min(size, max(minSize, (int64(limit)*cellSize+pageSize-1)&^(pageSize-1)))
	if err := f.shorten(size, keep); err != nil {
		return err
	}
	f.next, f.end = limit, uint32(keep/cellSize)
	for i, s := range c.recovered.Sessions {
		f.sessions[s.ID] = c.sessions[i]
	}
	f.recovered = c.recovered
	f.publish(&f.img[hPID], uint64(f.host.pid))
	f.Commit(0)
	return nil
}

func (f *File) shorten(from, to int64) error {
	if to == from {
		return nil
	}
	if err := unix.Ftruncate(f.fd, to); err != nil {
		return fmt.Errorf("shortening the state file %s: %w", f.path, err)
	}
	return nil
}

// clear deletes what a later version added, frees every cell that no record has, and makes the rest true for this
// process.
func (f *File) clear(img image, c *contents, own identity) {
	for _, words := range img.unused() {
		for i := range words {
			f.update(&words[i], 0)
		}
	}
	m := &c.recovered.Snapshot
	for i := range m.Holds {
		// The record of its lock may be one of two, and the other one the one that counts.
		if h := &m.Holds[i]; h.Slot != m.Locks[h.Lock].Slot {
			f.setLock(h.Slot, m.Locks[h.Lock].Slot)
		}
	}
	for i := uint32(firstCell); i < img.cells(); i++ {
		if !c.used[i] {
			f.update(&img.cell(i)[0], 0)
		}
	}
	if img[hPIDNS] != own.pidNS {
		// The pids are deleted first: in this namespace other processes have them.
		for _, slot := range c.sessions {
			s := img.cell(slot)
			f.update(&s[sessionPID], 0)
			f.update(&s[sessionPidfd], 0)
			f.update(&s[sessionStart], 0)
		}
		f.publish(&img[hPIDNS], own.pidNS)
	}
	f.update(&img[hLastHoldID], m.LastHoldID)
	f.update(&img[hLastSessionID], c.recovered.LastSessionID)
}

// setLock stores in which slot the lock of a hold in a cell of its own is.
func (f *File) setLock(hold, lock uint32) {
	w := &f.img.cell(hold)[holdLock]
	f.update(w, pack(lock, uint32(*w>>32)))
}

// compact moves the cells from limit on to the cells before it, of which exactly as many are
// free.
func (f *File) compact(c *contents, limit uint32) {
	m := &c.recovered.Snapshot
	others := make(map[uint32][]uint32) // the slots of holds in cells of their own, by lock
	for i := range m.Holds {
		if h := &m.Holds[i]; h.Slot != m.Locks[h.Lock].Slot {
			others[h.Lock] = append(others[h.Lock], h.Slot)
		}
	}
	hole := uint32(firstCell)
	copyCell := func(from uint32) (to uint32) {
		for c.used[hole] {
			hole++
		}
		to, c.used[hole] = hole, true
		src, dst := f.img.cell(from), f.img.cell(to)
		for i := 1; i < cellWords; i++ {
			f.write(&dst[i], src[i])
		}
		f.publish(&dst[0], src[0])
		return to
	}
	// move moves the cells of a record. When there are two of it, onCopied makes what refers
	// to the old one refer to the new one.
	move := func(slot uint32, onCopied func(to uint32)) uint32 {
		at := f.img.cell(slot)
		for next := nextOf(at[0]); next != 0; next = nextOf(at[0]) {
			if next >= limit {
				to := copyCell(next)
				f.publish(&at[0], withNext(at[0], to))
				f.publish(&f.img.cell(next)[0], 0)
				next = to
			}
			at = f.img.cell(next)
		}
		if slot < limit {
			return slot
		}
		to := copyCell(slot)
		onCopied(to)
		f.publish(&f.img.cell(slot)[0], 0)
		return to
	}
	for i, slot := range c.sessions {
		c.sessions[i] = move(slot, func(uint32) {})
	}
	moved := make(map[uint32]uint32)
	for i := range m.Locks {
		l := &m.Locks[i]
		l.Slot = move(l.Slot, func(to uint32) {
			moved[l.Slot] = to
			for _, hold := range others[uint32(i)] {
				f.setLock(hold, to)
			}
		})
	}
	for i := range m.Holds {
		h := &m.Holds[i]
		switch to, ok := moved[h.Slot]; {
		case ok: // in the cell of its lock
			h.Slot = to
		case h.Slot >= limit:
			h.Slot = move(h.Slot, func(uint32) {})
		}
	}
}

package state

import (
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// fresh begins the file anew. why is for Left.
func (f *File) fresh(own identity, why string) error {
	if err := unix.Ftruncate(f.fd, 0); err != nil {
		return fmt.Errorf("emptying the state file %s: %w", f.path, err)
	}
	if err := f.host.extend(f.fd, 0, minSize); err != nil {
		return fmt.Errorf("state file %s: %w; make room on its file system, or choose another path", f.path, err)
	}
	id := uuid.New()
	var key [32]byte
	rand.Read(key[:])
	f.beginSequence(id)
	f.writeHeader(own, id, key)
	f.next, f.end = firstCell, minSize/cellSize
	f.left = Left{UUID: id.String(), Key: key, Fresh: true, Why: why}
	return nil
}

// takeOver goes on with what the predecessor left in the first size bytes of the
// file. Whatever of it is left moves to the front, and the rest of the file goes: one
// that had a million locks once does not keep their memory.
func (f *File) takeOver(own identity, size int64) error {
	// What it wrote has room on the file system; a hole in a damaged file has none,
	// and a store into it could be a signal.
	if err := f.host.allocate(f.fd, 0, size); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("state file %s: %w; make room on its file system, or choose another path", f.path, err)
	}
	img := f.img[:size/8]
	c := img.read(own)
	if c.damaged > 0 {
		// What they said is not known: under the same uuid a lock that somebody holds
		// could be given away.
		return f.fresh(own, fmt.Sprintf("%d records of the state file are damaged", c.damaged))
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
	for i, s := range c.left.Sessions {
		f.sessions[s.ID] = c.sessions[i]
	}
	f.left = c.left
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

// clear frees every cell that holds nothing of use, and makes the rest true for this
// process.
func (f *File) clear(img image, c *contents, own identity) {
	for i := uint32(firstCell); i < img.cells(); i++ {
		if !c.used[i] {
			f.change(&img.cell(i)[0], 0)
		}
	}
	if img[hPIDNS] != own.pidNS {
		// The pids go first: in this namespace they are other processes'.
		for _, slot := range c.sessions {
			s := img.cell(slot)
			f.change(&s[sPID], 0)
			f.change(&s[sPidfd], 0)
			f.change(&s[sStart], 0)
		}
		f.publish(&img[hPIDNS], own.pidNS)
	}
	f.change(&img[hLast], c.left.Memory.Last)
	f.change(&img[hLastSession], c.left.LastSession)
}

// compact moves what stands at limit or behind it into the cells before it, of which
// exactly as many are free.
func (f *File) compact(c *contents, limit uint32) {
	hole := uint32(firstCell)
	move := func(from uint32) (to uint32) {
		for c.used[hole] {
			hole++
		}
		to, c.used[hole] = hole, true
		src, dst := f.img.cell(from), f.img.cell(to)
		for i := 1; i < cellWords; i++ {
			f.set(&dst[i], src[i])
		}
		f.publish(&dst[0], src[0])
		return to
	}
	settle := func(slot uint32) uint32 {
		at := f.img.cell(slot)
		for next := nextOf(at[0]); next != 0; next = nextOf(at[0]) {
			if next >= limit {
				to := move(next)
				f.publish(&at[0], withNext(at[0], to))
				f.publish(&f.img.cell(next)[0], 0)
				next = to
			}
			at = f.img.cell(next)
		}
		if slot < limit {
			return slot
		}
		to := move(slot)
		f.publish(&f.img.cell(slot)[0], 0)
		return to
	}
	for i, slot := range c.sessions {
		c.sessions[i] = settle(slot)
	}
	locks := c.left.Memory.Locks
	for i := range locks {
		locks[i].Slot = settle(locks[i].Slot)
	}
}

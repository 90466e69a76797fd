package state

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// sequence is the small file beside a state file that has the number of the last round of
// changes. It distinguishes the state file from a stale copy of it; see the package comment.
type sequence struct {
	path       string
	mem        []byte
	img        image  // the same
	dev, inode uint64 // of the file
	n          uint64 // the number of the last round that was committed
}

// Words of the sequence file.
const (
	qMagic  = 0
	qUUID   = 1 // 2 words: of the state that it belongs to
	qNumber = 3

	sequenceMagic = 'l' | 'o'<<8 | 'c'<<16 | 'k'<<24 | 's'<<32 | 'e'<<40 | 'q'<<48 | '1'<<56

	// noNumber is never the number of a state file. Numbers begin at 1.
	noNumber = 1<<64 - 1
)

// openSequence opens or makes the sequence file of a state file that is locked.
func openSequence(path string, h *host) (q sequence, err error) {
	q.path = path
	fd, st, err := openPrivate("sequence file", path)
	if err != nil {
		return q, err
	}
	defer unix.Close(fd)
	q.dev, q.inode = uint64(st.Dev), st.Ino
	if st.Size > 0 && !hasMagic(fd, sequenceMagic) {
		return q, fmt.Errorf("%s is not the sequence file of a state file, and nothing of it was changed; remove it, or choose another path for the state", path)
	}
	if st.Size == pageSize {
		if err = h.allocate(fd, 0, pageSize); errors.Is(err, unix.EOPNOTSUPP) {
			err = nil
		}
	} else if err = unix.Ftruncate(fd, 0); err == nil {
		// It was made now, or is damaged. Zeros belong to no state.
		err = h.extend(fd, 0, pageSize)
	}
	if err != nil {
		return q, fmt.Errorf("sequence file %s: %w; make room on its file system, or choose another path for the state", path, err)
	}
	q.mem, err = unix.Mmap(fd, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return q, fmt.Errorf("mapping the sequence file %s: %w; choose a path on another file system, best of all a tmpfs", path, err)
	}
	q.img = wordsOf(q.mem)
	return q, nil
}

func (q *sequence) close() error {
	if q.mem == nil {
		return nil
	}
	err := unix.Munmap(q.mem)
	q.mem, q.img = nil, nil
	return err
}

// stale returns, in one sentence, why a state file is not the one that the sequence file
// belongs to, or is a copy from before its last round; "": it is up to date.
func (im image) stale(q image) string {
	number := im[hSequence]
	switch {
	case q[qMagic] != sequenceMagic:
		return "the sequence file beside the state file is missing or damaged, without which the state file cannot be distinguished from a stale copy of it"
	case q[qUUID] != im[hUUID] || q[qUUID+1] != im[hUUID+1]:
		return "the sequence file beside the state file is that of another state: one of the two was replaced"
	case number == 0 || number == noNumber || number != q[qNumber] && number != q[qNumber]+1:
		return fmt.Sprintf("the state file, or the sequence file beside it, is a stale copy: they have the numbers %d and %d", number, q[qNumber])
	}
	return ""
}

// beginSequence makes the sequence file that of a new state, which has no header yet.
func (f *File) beginSequence(id uuid.UUID) {
	f.seq.n = 1
	q := f.seq.img
	f.write(&q[qNumber], f.seq.n)
	for i, w := range words(id[:]) {
		f.write(&q[qUUID+i], w)
	}
	f.publish(&q[qMagic], sequenceMagic)
}

// resumeSequence continues with the number of a predecessor, which may have died
// between the two stores of one.
func (f *File) resumeSequence() {
	f.seq.n = f.img[hSequence]
	f.update(&f.seq.img[qNumber], f.seq.n)
}

// Commit ends a round of changes. The caller calls it after the last change, and before any
// effect of the round leaves the process: from then on a copy of the file from before the
// round is refused. unstored is the number of locks of which the file lacks something,
// because PutLock or PutHold found no room.
func (f *File) Commit(unstored int) {
	f.checkComplete(unstored)
	if !f.changed || f.completeness.phase == spoiled {
		return
	}
	if f.img[hSequence] != f.seq.n {
		f.onOverwritten()
		return
	}
	f.seq.n++
	f.publish(&f.img[hSequence], f.seq.n)
	f.publish(&f.seq.img[qNumber], f.seq.n)
	f.changed = false
}

// onOverwritten gives up a file that another program wrote to while this process had it:
// what is in it now is not known. No successor accepts it, nor any copy of it.
func (f *File) onOverwritten() {
	f.publish(&f.seq.img[qNumber], noNumber)
	f.publish(&f.img[hIncomplete], 1)
	f.completeness.phase = spoiled
	f.completeness.reason = fmt.Sprintf("another program wrote to the state file %s, which only the sidecar may; find out what it was, keep it from the file, and restart the sidecar when few locks are held", f.path)
}

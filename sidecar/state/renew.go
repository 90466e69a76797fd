package state

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Renew writes again those of the two files that another program removed, with all that they had: a successor finds the
// state then. It is as long as a copy of the file. An error says why it cannot, and changes nothing; it may be called
// again.
//
// A file appears under its name when it is whole. The removed state file, if it has another name still, is no state any
// more: of two sidecars with one uuid, both could grant a lock. A death in between leaves none that a successor accepts.
func (f *File) Renew() error {
	if f.completeness.phase == spoiled {
		return errors.New(f.completeness.reason)
	}
	if isAt, err := f.locations[0].isInPlace(); err != nil {
		return err
	} else if !isAt {
		if err := f.renewState(); err != nil {
			return fmt.Errorf("state file %s: %w", f.path, err)
		}
	}
	if isAt, err := f.locations[1].isInPlace(); err != nil {
		return err
	} else if !isAt {
		if err := f.renewSequence(); err != nil {
			return fmt.Errorf("sequence file %s: %w", f.seq.path, err)
		}
	}
	return nil
}

// isInPlace reports whether the file is where a successor looks for it; false: there is none. An error: there is
// another one, or the place cannot be looked at.
func (l *location) isInPlace() (bool, error) {
	var st unix.Stat_t
	switch err := unix.Lstat(l.path, &st); {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", l.path, err)
	case uint64(st.Dev) != l.dev || st.Ino != l.inode:
		return false, fmt.Errorf("%s is another file now; remove it", l.path)
	}
	return true, nil
}

// renewState makes the state file again, and goes on with it.
func (f *File) renewState() error {
	size := int64(f.end) * cellSize
	fd, st, mem, err := f.host.makeAgain(f.path, size, maxSize, true, func(img image, fd int, st *unix.Stat_t) {
		copy(img[:size/8], f.img[:size/8])
		own := f.host.identity
		own.ofFile(fd, st)
		copy(img[hDev:], []uint64{own.dev, own.inode, own.handle, own.born})
		img[hSum] = img.headerSum()
		f.img[hMagic] = 0 // before the new one appears: the removed one may have another name, and a sidecar of its own there
	})
	if err != nil {
		f.img[hMagic] = magic
		return err
	}
	_ = unix.Munmap(f.mem)
	_ = unix.Close(f.fd)
	f.fd, f.mem, f.img = fd, mem, wordsOf(mem)
	f.locations[0] = location{f.path, uint64(st.Dev), st.Ino}
	return nil
}

// renewSequence makes the sequence file again.
func (f *File) renewSequence() error {
	q := &f.seq
	fd, st, mem, err := f.host.makeAgain(q.path, pageSize, pageSize, false, func(img image, _ int, _ *unix.Stat_t) { copy(img, q.img) })
	if err != nil {
		return err
	}
	_ = unix.Close(fd)
	_ = unix.Munmap(q.mem)
	q.mem, q.img, q.dev, q.inode = mem, wordsOf(mem), uint64(st.Dev), st.Ino
	f.locations[1] = location{q.path, q.dev, q.inode}
	return nil
}

// makeAgain makes a file of size bytes, which fill fills, under a path where there is none, and returns it with a
// mapping of its own length.
func (h *host) makeAgain(path string, size, mapped int64, isLocked bool, fill func(image, int, *unix.Stat_t)) (fd int, st unix.Stat_t, mem []byte, err error) {
	unfinished := path + ".new"
	if err := unix.Unlink(unfinished); err != nil && !errors.Is(err, unix.ENOENT) {
		return -1, st, nil, err
	}
	fd, err = unix.Open(unfinished, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, st, nil, err
	}
	defer func() {
		if err != nil {
			if mem != nil {
				_ = unix.Munmap(mem)
			}
			_ = unix.Unlink(unfinished)
			_ = unix.Close(fd)
		}
	}()
	if isLocked {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = h.extend(fd, 0, size)
	}
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil {
		mem, err = unix.Mmap(fd, 0, int(mapped), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return fd, st, mem, err
	}
	fill(wordsOf(mem), fd, &st)
	if err = unix.Link(unfinished, path); err == nil { // it replaces no other file
		_ = unix.Unlink(unfinished)
	}
	return fd, st, mem, err
}

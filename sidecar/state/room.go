package state

import (
	"errors"
	"fmt"
)

// retryAfter is the pause between attempts to store what found no room, and to grow.
const retryAfter = 1e9

// A Gap is what the file does not have, in most cases because its file system is full.
// The zero Gap: the file has everything.
type Gap struct {
	Locks, Sessions int
	Reason          string // what happened and what to do
}

// gap is whether the file has everything that it should have.
type gap struct {
	phase    phase
	reported phase  // by Gap
	locks    int    // that are missing, at the last Commit
	retryAt  int64  // while incomplete: when Retry is due
	growAt   int64  // no attempt to grow before
	reason   string // of the last failure to grow, or to store
}

// phase is that of a gap.
//
//	complete ◄──► incomplete
//	    └──► spoiled ◄──┘
type phase uint8

const (
	complete   phase = iota // the file has everything
	incomplete              // a record found no room; ends when each missing one is stored or has ended
	spoiled                 // something else wrote to the file; never ends
)

// markIncomplete stores the mark that something is missing in the file.
func (f *File) markIncomplete() {
	if f.gap.phase == complete {
		f.change(&f.img[hIncomplete], 1)
		f.gap.phase = incomplete
		f.gap.retryAt = f.host.now() + retryAfter
	}
}

// closeGap clears the mark when everything that there is to know is stored. locks is
// the number of locks that are not.
func (f *File) closeGap(locks int) {
	f.gap.locks = locks
	if f.gap.phase == incomplete && locks == 0 && len(f.unstored) == 0 {
		f.change(&f.img[hIncomplete], 0)
		f.gap.phase = complete
	}
}

// RetryAt is the time at which Retry is due; false: it has nothing to do.
func (f *File) RetryAt() (at int64, ok bool) {
	return f.gap.retryAt, f.gap.phase == incomplete
}

// Retry stores the sessions that found no room, if there is room now. The caller has
// the table do the same with its locks, in the same round.
func (f *File) Retry(now int64) {
	f.gap.retryAt, f.gap.growAt = now+retryAfter, 0
	for _, s := range f.unstored {
		if f.OpenSession(s); f.sessions[s.ID] == 0 {
			return // everything has to be stored, so there is no use in trying others
		}
	}
}

// Gap reports, once each, that the file does not have everything, and that it has
// everything again.
func (f *File) Gap() (g Gap, news bool) {
	if f.gap.phase == f.gap.reported {
		return Gap{}, false
	}
	if f.gap.reported = f.gap.phase; f.gap.phase == complete {
		return Gap{}, true
	}
	return Gap{Locks: f.gap.locks, Sessions: len(f.unstored), Reason: f.gap.reason}, true
}

// grow adds free cells at the end of the file.
func (f *File) grow() bool {
	now := f.host.now()
	if now < f.gap.growAt {
		return false
	}
	size := int64(f.end) * cellSize
	err := errors.New("it has its greatest size; set a smaller max-locks, or have clients hold fewer locks")
	if step := min(size, maxStep, maxSize-size); step > 0 {
		if err = f.host.extend(f.fd, size, step); err == nil {
			f.end += uint32(step / cellSize)
			return true
		}
		err = fmt.Errorf("%w; make room on its file system, and the sidecar stores what is missing", err)
	}
	f.gap.growAt = now + retryAfter
	f.gap.reason = fmt.Sprintf("the state file %s of %d bytes cannot grow: %v", f.path, size, err)
	return false
}

package state

import (
	"errors"
	"fmt"
)

// retryAfter is the pause between attempts to store what found no room, and to grow.
const retryAfter = 1e9

// Missing is what the file does not have, in most cases because its file system is full.
// The zero Missing: the file has everything.
type Missing struct {
	Locks, Sessions int
	Reason          string // what happened and what to do
}

// completeness is whether the file has everything that was stored.
type completeness struct {
	phase    phase
	reported phase  // by Missing
	locks    int    // of which something is missing, at the last Commit
	retryAt  int64  // while incomplete: when Retry is due
	growAt   int64  // no attempt to grow before
	reason   string // of the last failure to grow, or to store
}

// phase is that of a file's completeness.
//
//	complete ◄──► incomplete
//	    └──► spoiled ◄──┘
type phase uint8

const (
	// complete: the file has everything.
	complete phase = iota

	// incomplete: a record found no room, and the header has a mark. It ends when each
	// record that is missing was stored or is not needed any more.
	incomplete

	// spoiled: another program wrote to the file. It never ends.
	spoiled
)

// markIncomplete stores the mark that something is missing in the file.
func (f *File) markIncomplete() {
	if f.completeness.phase == complete {
		f.update(&f.img[hIncomplete], 1)
		f.completeness.phase = incomplete
		f.completeness.retryAt = f.host.now() + retryAfter
	}
}

// checkComplete clears the mark if nothing is missing any more. locks is the number of locks
// of which something is.
func (f *File) checkComplete(locks int) {
	f.completeness.locks = locks
	if f.completeness.phase == incomplete && locks == 0 && len(f.unstored) == 0 {
		f.update(&f.img[hIncomplete], 0)
		f.completeness.phase = complete
	}
}

// RetryAt is the time at which Retry is due; false: it has nothing to do.
func (f *File) RetryAt() (at int64, ok bool) {
	return f.completeness.retryAt, f.completeness.phase == incomplete
}

// Retry stores the sessions that found no room, if there is room now. The caller has the
// table do the same with its locks, in the same round.
func (f *File) Retry(now int64) {
	f.completeness.retryAt, f.completeness.growAt = now+retryAfter, 0
	for _, s := range f.unstored {
		if f.OpenSession(s); f.sessions[s.ID] == 0 {
			return // everything has to be stored, so there is no use in trying others
		}
	}
}

// Missing reports, once each, that the file does not have everything, and that it has
// everything again.
func (f *File) Missing() (m Missing, hasChanged bool) {
	if f.completeness.phase == f.completeness.reported {
		return Missing{}, false
	}
	if f.completeness.reported = f.completeness.phase; f.completeness.phase == complete {
		return Missing{}, true
	}
	return Missing{Locks: f.completeness.locks, Sessions: len(f.unstored), Reason: f.completeness.reason}, true
}

// grow adds free cells at the end of the file.
func (f *File) grow() bool {
	now := f.host.now()
	if now < f.completeness.growAt {
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
	f.completeness.growAt = now + retryAfter
	f.completeness.reason = fmt.Sprintf("the state file %s of %d bytes cannot grow: %v", f.path, size, err)
	return false
}

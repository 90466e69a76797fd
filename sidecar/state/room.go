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

// gap is the state of a file that is, or was, incomplete.
type gap struct {
	open    bool   // hIncomplete is set
	locks   int    // missing ones, at the last Commit
	retryAt int64  // when Retry is due, while open
	growAt  int64  // no attempt to grow before
	spoiled bool   // and will stay so
	reason  string // of the last failure to grow, or to store
	news    bool   // Gap has not reported it yet: the gap if open, its end if not
	logged  bool   // Gap has reported that it opened
}

// markIncomplete says in the file that something is missing in it.
func (f *File) markIncomplete() {
	if f.gap.open {
		return
	}
	f.change(&f.img[hIncomplete], 1)
	f.gap.open, f.gap.news = true, true
	f.gap.retryAt = f.host.now() + retryAfter
}

// closeGap clears the mark when everything that there is to know is stored. locks is
// the number of locks that are not.
func (f *File) closeGap(locks int) {
	g := &f.gap
	if g.locks = locks; !g.open || g.spoiled || locks > 0 || len(f.unstored) > 0 {
		return
	}
	f.change(&f.img[hIncomplete], 0)
	*g = gap{growAt: g.growAt, reason: g.reason, news: g.logged}
}

// RetryAt is the time at which Retry is due; false: it has nothing to do.
func (f *File) RetryAt() (at int64, ok bool) {
	return f.gap.retryAt, f.gap.open && !f.gap.spoiled
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
	if !f.gap.news {
		return Gap{}, false
	}
	f.gap.news = false
	if f.gap.logged = f.gap.open; !f.gap.open {
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

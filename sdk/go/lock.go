package locksidecar

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Lock is a handle for one acquired lock, and for exactly one Unlock. Many goroutines
// may call its methods at once.
type Lock struct {
	hold *hold

	// Guarded by the session's mu.
	state handleState
	watch *watch // nil: nobody wants to be told of the end
	next  *Lock  // of the hold's handles that are watched
}

type handleState uint8

const (
	entered  handleState = iota // held, unless the hold has ended
	unlocked                    // by Unlock, while it was held
	over                        // by Unlock, after the hold had ended
)

// hold is one lock held by one owner. It has a handle for each of its entries;
// the first is part of it. It has neither a timer nor a goroutine: a program may
// hold very many.
type hold struct {
	// Immutable.
	session *session
	name    string
	num     uint64
	token   uint64
	owned   bool   // its owner may re-enter it
	leaseMS uint32 // its fixed lease; 0: it is the sidecar's, or not known

	// Guarded by session.mu.
	entries  uint32
	fixed    bool   // its lease is not renewed: lease events do not speak of it
	stray    bool   // the sidecar knows nothing of it any more
	deadline int64  // told with the last grant
	final    int64  // when its max_hold will have passed; 0: it has none
	leases   uint64 // lease events before that
	end      error  // *LostError, or an ErrClosed; nil: it is held
	watched  *Lock  // the first of its handles that are watched
	place    int32  // in session.watches, counted from 1; 0: it is not there

	first Lock
}

// enterHold books a granted acquire. The caller holds mu.
func (s *session) enterHold(req *protocol.Acquire, ok *protocol.AcquireOK) *Lock {
	h := s.holds[ok.Hold]
	if h != nil {
		h.deadline = max(h.until(), ok.DeadlineNS)
		h.leases = s.leases
		h.entries++
		return &Lock{hold: h}
	}
	h = &hold{
		session: s, name: req.Name, num: ok.Hold, token: ok.Token,
		// A re-entry of a hold that was given up here, by this clock, does not
		// tell what lease the hold has: then it is good for as long as was told.
		fixed:    req.LeaseMS != 0 || ok.Count > 1,
		owned:    req.Owner != 0,
		entries:  1,
		deadline: ok.DeadlineNS,
		final:    ok.EndNS,
		leases:   s.leases,
	}
	if ok.Count == 1 {
		h.leaseMS = uint32(req.LeaseMS) // the longest, 30 days, fits
	}
	h.first.hold = h
	s.holds[h.num] = h
	return &h.first
}

// until returns the deadline. The caller holds mu.
func (h *hold) until() int64 {
	if h.final != 0 {
		return min(h.told(), h.final)
	}
	return h.told()
}

// told returns the largest deadline that was told. The caller holds mu.
func (h *hold) told() int64 {
	if !h.fixed && h.session.leases > h.leases {
		return max(h.deadline, h.session.lease)
	}
	return h.deadline
}

// endHold marks a hold as held no more, whatever its handles do, and adds those
// who are to be told. The caller holds mu.
func (s *session) endHold(h *hold, why error, told []ending) []ending {
	h.end = why
	h.deadline, h.fixed = h.until(), true // it stays what it was
	s.forget(h)
	s.watches.remove(h)
	for l := h.watched; l != nil; l = l.next {
		told = append(told, ending{*l.watch, why})
		l.watch = nil
	}
	h.watched = nil
	return told
}

// forget unregisters a hold. The caller holds mu.
func (s *session) forget(h *hold) {
	if h.stray {
		delete(s.strays, h)
	} else {
		delete(s.holds, h.num)
	}
}

// expire ends the hold if its deadline had passed at now, and returns who is to be told.
// What had arrived at now has been read: the deadline may have been moved by an event that
// waited in the socket, because this process was stopped. What it gives back is to be
// flushed: the sidecar may have renewed the hold without the news having arrived. The
// caller holds mu.
func (h *hold) expire(now int64) (told []ending, over bool) {
	if h.end != nil || now < h.until() {
		return nil, false
	}
	s := h.session
	why := ReasonExpired
	if h.final != 0 && now >= h.final {
		why = ReasonMaxHold
	}
	told = s.endHold(h, &LostError{Name: h.name, Reason: why}, nil)
	if !h.stray {
		for range h.entries {
			s.wire.queue(protocol.Release{Hold: h.num})
		}
	}
	return told, true
}

// rest forgets a hold when the sidecar has said that it is released. Until then
// an answer that re-enters it, sent before the release arrived, may be under way.
func (s *session) rest(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.entries == 0 && s.holds[h.num] == h {
		delete(s.holds, h.num)
	}
}

// Unlock releases the lock. Without options it does not wait for the sidecar, and no
// context can keep it from working. While the sidecar is being restarted, the successor
// releases the lock; if the successor has no record of the lock, it is free when its
// lease ends.
//
// Redis executes the release a moment after Unlock has returned. A program on another
// host that is signalled in that moment may still find the lock held. With [Confirmed],
// Unlock waits until Redis has executed the release.
//
// The error is ErrLost if the lock was lost before: then others may have held it in
// the meantime. It is ErrNotHeld for every Unlock but the first, ErrClosed if the
// Client was closed before, and ErrUnavailable if the sidecar ended the session
// because of a protocol error of this client: then the lock is free when its lease
// ends. With Confirmed it may also be ErrUnconfirmed; the lock is released all the same.
func (l *Lock) Unlock(options ...UnlockOption) error {
	return l.unlock(lookFirst, options...)
}

// unlock is Unlock.
func (l *Lock) unlock(how look, options ...UnlockOption) error {
	h := l.hold
	s := h.session
	err := l.lockMu(how)
	if err != nil {
		if l.state == entered {
			l.state = over
		} else {
			err = l.wasUnlocked()
		}
		s.mu.Unlock()
		return err
	}
	l.state = unlocked
	h.entries--
	var told []ending
	if l.watch != nil {
		h.watched = without(h.watched, l)
		if h.watched == nil {
			s.watches.remove(h)
		}
		told = []ending{{*l.watch, l.wasUnlocked()}}
		l.watch = nil
	}
	w, gone := s.wire, s.err
	if h.stray {
		w, gone = nil, nil
	}
	s.release = protocol.Release{Hold: h.num}
	switch {
	case h.entries > 0:
	case h.owned && w != nil:
		// The answer to a re-entry may be under way. The answer to this release
		// comes behind it, and tells that there is none.
		s.lastID++
		s.release.ID = s.lastID
		s.calls[s.lastID] = &call{last: h}
	default:
		s.forget(h)
	}
	w.queue(&s.release)
	var c *confirmation
	if len(options) > 0 && gone == nil {
		c = s.requestConfirmation(h, w, options)
	}
	s.mu.Unlock()

	tell(told)
	w.flush()
	if gone != nil {
		return &failure{
			text: fmt.Sprintf("cannot release %q: %s; the lock is free when its lease ends", h.name, gone.text),
			kind: ErrUnavailable, cause: gone.cause,
		}
	}
	if c != nil {
		return c.await()
	}
	return nil
}

// look says whether a lock whose deadline has passed is lost only if nothing that has
// arrived moves the deadline.
type look bool

const (
	lookFirst look = true
	asBooked  look = false // for the goroutine that has the turn to read: it cannot read now
)

// lockMu locks mu, and returns what Err returns. It looks at the clock first.
func (l *Lock) lockMu(how look) error {
	h := l.hold
	s := h.session
	now := s.clock()
	s.mu.Lock()
	if how == lookFirst && h.end == nil && now >= h.until() {
		w := s.wire
		s.mu.Unlock()
		s.catchUp(w)
		s.mu.Lock()
	}
	if told, over := h.expire(now); over {
		w := s.wire
		s.mu.Unlock()
		tell(told)
		w.flush()
		s.mu.Lock()
	}
	if l.state == unlocked {
		return l.wasUnlocked()
	}
	return h.end
}

func (l *Lock) wasUnlocked() error {
	return &failure{text: fmt.Sprintf("the lock %q was unlocked; each Lock is for one Unlock", l.hold.name), kind: ErrNotHeld}
}

// Name returns the name of the lock.
func (l *Lock) Name() string { return l.hold.name }

// Token returns the fencing token: a number that is larger for every later hold
// of this lock. Re-entries share one.
func (l *Lock) Token() uint64 { return l.hold.token }

// Deadline returns until when the lock is known to be held. The sidecar's
// renewals move it; past it the lock is lost.
func (l *Lock) Deadline() time.Time {
	h := l.hold
	s := h.session
	s.mu.Lock()
	w, ended := s.wire, h.end != nil
	s.mu.Unlock()
	if !ended {
		s.catchUp(w)
	}
	s.mu.Lock()
	until := h.until()
	s.mu.Unlock()
	return time.Now().Add(time.Duration(until - s.clock()))
}

// Err returns nil while the lock is held. After that it returns an ErrLost, of type
// *LostError, an ErrNotHeld if the lock was unlocked, or an ErrClosed if the Client was
// closed. Err reads the clock: a lock whose deadline has passed is lost, whether or not
// the sidecar has reported it.
func (l *Lock) Err() error {
	err := l.lockMu(lookFirst)
	l.hold.session.mu.Unlock()
	return err
}

// Done returns a channel that is closed when the lock is not held any more: it was lost
// or unlocked. Err returns which. The channel is closed at the deadline even if the
// sidecar is stopped or gone.
func (l *Lock) Done() <-chan struct{} {
	err := l.lockMu(lookFirst)
	defer l.hold.session.mu.Unlock()
	if err != nil {
		return closedChannel
	}
	w := l.watched()
	if w.done == nil {
		w.done = make(chan struct{})
	}
	return w.done
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Context returns a context that is cancelled when ctx is, or when the lock is not held
// any more; context.Cause then returns what Err returns. Call the function when the
// context is not needed any more.
func (l *Lock) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	mu := &l.hold.session.mu
	if err := l.lockMu(lookFirst); err != nil {
		mu.Unlock()
		cancel(err)
		return ctx, func() {}
	}
	mine := &cancel
	w := l.watched()
	w.cancels = append(w.cancels, mine)
	mu.Unlock()
	return ctx, func() {
		mu.Lock()
		if w := l.watch; w != nil {
			w.cancels = slices.DeleteFunc(w.cancels, func(c *context.CancelCauseFunc) bool { return c == mine })
		}
		mu.Unlock()
		cancel(nil)
	}
}

// watched returns the handle's watch. The caller holds mu, and the handle's hold
// has not ended.
func (l *Lock) watched() *watch {
	if l.watch == nil {
		l.watch = new(watch)
		l.next, l.hold.watched = l.hold.watched, l
		l.hold.session.watches.add(l.hold)
	}
	return l.watch
}

// without takes a handle out of a list of handles.
func without(list, l *Lock) *Lock {
	for at := &list; *at != nil; at = &(*at).next {
		if *at == l {
			*at, l.next = l.next, nil
			break
		}
	}
	return list
}

package locksidecar

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// byeGrace is how long Close waits for the sidecar to confirm it.
const byeGrace = time.Second

// errBye: the sidecar has ended the session, as it was asked to.
var errBye = errors.New("bye")

// run serves the session over w, and over one connection after the other, until
// there is nothing left to be done for it, or ctx ends.
func (s *session) run(ctx context.Context, w *wire) {
	defer s.retire()
	pause := time.Duration(0) // before the next attempt to connect
	for {
		if w == nil {
			if w = s.reconnect(ctx, &pause); w == nil {
				return
			}
		}
		unbind := context.AfterFunc(ctx, w.hangUp)
		again := s.parted(w, s.read(w))
		unbind()
		w.close()
		if !again {
			return
		}
		if s.proved(w) {
			pause = 0
		}
		w = nil
	}
}

func (s *session) retire() {
	s.stop()
	s.mu.Lock()
	if s.limit != nil {
		s.limit.Stop()
	}
	s.mu.Unlock()
	close(s.gone)
}

// read handles the frames of the sidecar until the connection ends, and returns why it
// ended. It runs on the connection's background goroutine: see inbox.
func (s *session) read(w *wire) error {
	shared := w.in.share()
	for {
		if shared && w.frames.Buffered() == 0 {
			w.in.leave()
			if err := w.in.keep(); err != nil {
				return err
			}
		}
		if err := s.readNext(w); err != nil {
			return err
		}
	}
}

// readFor reads until the call is answered or the context ends, if it is nobody else's
// turn. What has been read is booked to the last whole frame before the turn is left.
func (s *session) readFor(ctx context.Context, c *call, w *wire) {
	if w == nil || !w.in.take() {
		return
	}
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, w.in.push)()
	}
	for w.frames.Buffered() > 0 || len(c.done) == 0 && ctx.Err() == nil {
		if err := s.readNext(w); err != nil {
			w.in.abandon(err)
			return
		}
	}
	w.in.leave()
}

// catchUp returns when all that has arrived over the wire has been booked. The caller
// holds no mutex, and does not have the turn to read.
func (s *session) catchUp(w *wire) {
	if w == nil || w.in.raw == nil { // what is sent over a pipe has been read
		return
	}
	for !w.in.take() {
		if w.in.awaitEmpty() {
			return
		}
	}
	w.in.now = true
	for {
		err := s.readNext(w)
		if err == syscall.EAGAIN {
			break
		}
		if err != nil {
			w.in.now = false
			w.in.abandon(err)
			return
		}
	}
	w.in.now = false
	w.in.leave()
}

// readNext books what the sidecar says next, or returns because the reader was
// pushed.
func (s *session) readNext(w *wire) error {
	m, err := w.next()
	switch err {
	case nil:
		return s.book(w, m)
	case os.ErrDeadlineExceeded:
		w.in.calm()
		return nil
	}
	return err
}

// parted sees to what the end of a connection means, before this side closes it;
// true: the session goes on.
func (s *session) parted(w *wire, why error) bool {
	switch why := why.(type) {
	case *cut:
		return s.drift(w, &why.failure)
	case *blame:
		s.end(&why.failure, nil, nil)
	default:
		if why == errBye {
			break
		}
		// When the sidecar sees the connection end, others may have what was held.
		s.end(&failure{text: "the sidecar cannot be understood: " + why.Error(), kind: ErrUnavailable, cause: why},
			func(h *hold) error {
				if h.stray {
					return nil
				}
				return &LostError{Name: h.name, Reason: misunderstood}
			}, nil)
	}
	s.mu.Lock()
	s.wire = nil
	s.mu.Unlock()
	return false
}

// proved tells whether a connection was of use. A sidecar that dies of what it is
// asked takes no patience anew, and is not asked in a tight loop.
func (s *session) proved(w *wire) bool {
	return w.served || w.opened != 0 && s.clock()-w.opened > int64(longestPause)
}

// drift takes the connection from the session; false: the session has ended, and
// left nothing with the sidecar.
func (s *session) drift(w *wire, why *failure) bool {
	var failed []*call
	proved := s.proved(w)
	s.mu.Lock()
	now := s.clock()
	s.wire, s.trouble, s.impatient = nil, why, 0
	for id, c := range s.calls {
		switch {
		case c.given, c.last != nil: // the claims say it all
			delete(s.calls, id)
		case c.bye, c.once && c.over == w && w.opened != 0,
			!proved && c.since != 0 && c.since+int64(s.patience) <= now:
			delete(s.calls, id)
			failed = append(failed, c)
		default:
			if proved || c.since == 0 {
				c.since = now
			}
			s.hurry(c)
		}
	}
	again := s.err == nil || s.stake
	s.mu.Unlock()
	for _, c := range failed {
		c.fail(c.unanswered(why))
	}
	return again
}

// hurry reckons with the patience of a call. The caller holds mu.
func (s *session) hurry(c *call) {
	if end := c.since + int64(s.patience); s.impatient == 0 || end < s.impatient {
		s.impatient = end
	}
}

// reconnect connects as soon as somebody listens, and goes on with the session;
// nil: there is no need to any more.
func (s *session) reconnect(ctx context.Context, pause *time.Duration) *wire {
	began := s.clock()
	for next := *pause; s.lull(ctx, next); {
		*pause = longer(*pause)
		w, failed := s.dialer.dial(ctx, s.ticket)
		switch {
		case failed != nil:
			s.missed(failed)
			// Who looks for a sidecar that is not there costs it nothing.
			if next = min(*pause, lookPause); s.clock()-began > int64(time.Minute) {
				next, *pause = rarePause, rarePause
			}
		case !s.board(w):
			w.close()
			return nil
		default:
			return w
		}
	}
	return nil
}

// lull returns when the next attempt to connect is due; false: none is needed any
// more. There is none before somebody asks, if the sidecar has nothing of ours.
func (s *session) lull(ctx context.Context, pause time.Duration) bool {
	now := s.clock()
	soonest, due := now+int64(min(pause, firstPause)), now+int64(jittered(pause))
	for {
		s.mu.Lock()
		idle := !s.stake && len(s.calls) == 0
		at := due
		if s.impatient != 0 {
			// Whose patience ends gets one more attempt.
			at = max(soonest, min(due, s.impatient))
		}
		s.mu.Unlock()
		alarm := time.NewTimer(time.Duration(at - s.clock()))
		if idle {
			alarm.Stop()
		}
		select {
		case <-ctx.Done():
			alarm.Stop()
			return false
		case <-s.wanted:
			alarm.Stop()
		case <-alarm.C:
			return ctx.Err() == nil
		}
	}
}

// missed notes an attempt to connect in vain, and fails the calls whose patience
// has ended.
func (s *session) missed(why *failure) {
	var failed []*call
	s.mu.Lock()
	now := s.clock()
	s.trouble, s.impatient = why, 0
	for id, c := range s.calls {
		if c.since+int64(s.patience) > now {
			s.hurry(c)
			continue
		}
		delete(s.calls, id)
		failed = append(failed, c)
	}
	s.mu.Unlock()
	for _, c := range failed {
		c.fail(c.unasked(why))
	}
}

// board goes on with the session over a new connection; false: nothing is left of
// it. In one step the holds are claimed, what waits is asked again behind the
// claims, and the connection becomes the session's: what was released before is
// not claimed, and what is released after that is said after the claims.
func (s *session) board(w *wire) bool {
	s.ticket = w.hello.Ticket
	s.mu.Lock()
	s.lasts = time.Duration(w.hello.LeaseMS) * time.Millisecond
	s.sidecar = w.hello.Sidecar
	if s.err != nil {
		if !w.hello.Resumed {
			s.mu.Unlock()
			return false
		}
		s.sayBye(w)
		s.wire = w
		s.mu.Unlock()
		w.flush()
		return true
	}
	var told []ending
	var failed []*call
	if w.hello.Resumed {
		told = s.claim(w)
	} else {
		told = s.strand()
		w.opened = s.clock()
	}
	for _, id := range slices.Sorted(maps.Keys(s.calls)) { // in the order of their first sending
		c := s.calls[id]
		delete(s.calls, id)
		if c.unlocks != nil {
			if !w.hello.Resumed {
				failed = append(failed, c)
				continue
			}
			c.free = s.leaseEnd(c.unlocks) // the successor may have renewed it
		}
		s.lastID++
		c.id, c.over = s.lastID, w
		s.calls[c.id] = c
		w.queue(c.frame())
		s.stake = s.stake || c.acquire.Name != ""
	}
	w.out.raiseLimit()
	s.wire, s.trouble, s.impatient = w, nil, 0
	s.mu.Unlock()
	tell(told)
	for _, c := range failed {
		c.fail(errNewSession)
	}
	w.flush()
	return true
}

// claim queues the claims, and holds the frames after them until they are answered. The
// caller holds mu, and reports the holds whose deadlines have passed.
func (s *session) claim(w *wire) (told []ending) {
	now := s.clock()
	claims := make([]protocol.ClaimedHold, 0, len(s.holds))
	for num, h := range s.holds {
		if h.entries == 0 { // released with the old connection
			delete(s.holds, num)
			continue
		}
		if ended, over := h.expire(now); over {
			told = append(told, ended...)
			continue
		}
		h.deadline, h.leases = h.until(), s.leases
		claims = append(claims, protocol.ClaimedHold{Hold: num, Entries: h.entries})
	}
	// The successor may have a shorter lease: whatever it tells, is news.
	s.lease = 0
	w.claimed = len(claims)
	for more := true; more; {
		page := claims[:min(len(claims), protocol.MaxClaims)]
		claims = claims[len(page):]
		more = len(claims) > 0
		s.lastID++
		w.claim = s.lastID
		w.queue(protocol.Claim{ID: w.claim, Holds: page, More: more})
	}
	w.out.hold()
	return told
}

// takenUp: the last claim was answered, and the sidecar has nothing of ours but
// what was claimed, and what is asked for behind it.
func (s *session) takenUp(w *wire) {
	w.claim, w.opened = 0, s.clock()
	s.mu.Lock()
	if s.err == nil {
		s.stake = w.claimed > 0 || len(s.calls) > 0
	}
	s.mu.Unlock()
	w.out.release()
}

// strand parts the session from its holds, because the sidecar knows nothing of
// them any more: they are good for as long as was told, and cannot be released.
// The caller holds mu, and tells of those whose deadlines have passed.
func (s *session) strand() (told []ending) {
	now := s.clock()
	for num, h := range s.holds {
		delete(s.holds, num)
		if h.entries == 0 {
			continue
		}
		h.deadline, h.fixed, h.stray = h.until(), true, true
		s.strays[h] = struct{}{}
	}
	for h := range s.strays {
		ended, _ := h.expire(now)
		told = append(told, ended...)
	}
	s.lease = 0
	s.stake = false
	return told
}

// close ends the session for good, and with it every hold. If the sidecar cannot be
// told at once, run goes on trying, as long as a successor might renew what was
// held.
func (s *session) close() {
	closed := &failure{text: "the client was closed", kind: ErrClosed}
	var w *wire
	var bye *call
	stake := false
	now := s.clock()
	until := now
	first := s.end(closed, func(h *hold) error {
		if !h.stray {
			until = max(until, h.until())
		}
		return closed
	}, func() {
		w, stake = s.wire, s.stake
		if w != nil {
			bye = s.sayBye(w)
		}
		if stake {
			s.limit = time.AfterFunc(time.Duration(until-now)+s.lasts, s.stop)
		}
	})
	if !first {
		return
	}
	told := false
	if w != nil {
		w.flush()
		moment := time.NewTimer(byeGrace)
		defer moment.Stop()
		select {
		case <-bye.done:
			told = bye.err == nil
		case <-moment.C:
		}
	}
	if told || !stake {
		s.stop()
		<-s.gone
	}
}

// sayBye queues the session's last request. The caller holds mu.
func (s *session) sayBye(w *wire) *call {
	s.lastID++
	c := &call{id: s.lastID, over: w, bye: true, done: make(chan struct{}, 1)}
	s.calls[c.id] = c
	w.queue(protocol.Bye{ID: c.id})
	return c
}

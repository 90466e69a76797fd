package wan

import (
	"errors"

	"golang.org/x/sys/unix"
)

// A side is one of the two sockets of a connection, and the way from there to its
// peer.
type side struct {
	fd      int
	peer    *side
	watched uint32 // what epoll reports of fd; 0: it does not know fd

	said    ending     // read here; unless it is open, no more is read
	way     fifo[byte] // read here and not written to the peer yet
	arrived int        // how many of these bytes the peer may have by now
	end     ending     // the peer may know of it by now, behind these bytes
	ended   bool       // the peer knows that nothing more comes
	closed  bool
}

// An ending says how a stream ends.
type ending int

const (
	open     ending = iota
	finished        // by a FIN; the other direction may go on
	reset           // by a RST, or because the socket failed
)

// serve does what epoll says that there is to do with s.
func (l *loop) serve(s *side, events uint32) error {
	switch {
	case s.said == open && events&(unix.EPOLLIN|unix.EPOLLERR|unix.EPOLLHUP) != 0:
		l.read(s)
	case events&(unix.EPOLLERR|unix.EPOLLHUP) != 0:
		l.say(s, reset)
	}
	if events&unix.EPOLLOUT != 0 {
		l.write(s.peer)
	}
	return l.attend(s)
}

// read takes what has come, once: a side that always has more does not keep the
// others waiting.
func (l *loop) read(s *side) {
	n, err := unix.Read(s.fd, l.scratch[:])
	switch {
	case n > 0:
		s.way.push(l.scratch[:n]...)
		l.coming.push(arrival{at: l.now() + l.oneWay, from: s, n: n})
	case err == nil:
		l.say(s, finished)
	case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
		l.say(s, reset)
	}
}

// say sends the end of what s has to say to its peer, behind what it said before.
func (l *loop) say(s *side, how ending) {
	if s.said == reset {
		return
	}
	s.said = how
	l.coming.push(arrival{at: l.now() + l.oneWay, from: s, what: how})
}

// arrive carries out everything whose time has come.
func (l *loop) arrive() error {
	now := l.now()
	for {
		a, ok := l.coming.first()
		if !ok || a.at > now {
			return nil
		}
		l.coming.drop(1)
		s := a.from
		if s.closed {
			continue
		}
		s.arrived += a.n
		s.end = max(s.end, a.what)
		if next, ok := l.coming.first(); ok && next.from == s && next.at <= now {
			continue // both in one write
		}
		l.write(s)
		if err := l.attend(s); err != nil {
			return err
		}
	}
}

// write gives the peer of s what has arrived there.
func (l *loop) write(s *side) {
	for s.arrived > 0 {
		n := s.arrived
		if s.peer.said != reset { // else it is lost with the socket
			var err error
			n, err = unix.Write(s.peer.fd, s.way.next(s.arrived))
			switch {
			case err == nil:
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				if s.end == reset {
					l.close(s, true) // a RST waits for nobody
				}
				return
			default:
				l.say(s.peer, reset)
				continue
			}
		}
		s.way.drop(n)
		s.arrived -= n
	}
	switch {
	case s.end == reset:
		l.close(s, true)
	case s.end == open || s.ended:
	case s.peer.ended:
		l.close(s, false)
	default:
		s.ended = true
		if s.peer.said != reset {
			_ = unix.Shutdown(s.peer.fd, unix.SHUT_WR)
		}
	}
}

// attend has epoll report what can be done next on both sockets of a connection.
func (l *loop) attend(s *side) error {
	for _, s := range []*side{s, s.peer} {
		if s.closed {
			return nil
		}
		// Errors are reported unasked, again and again: of a socket that can have
		// none that matters nothing must be.
		want := uint32(unix.EPOLLERR)
		switch {
		case s.said == open && s.way.len() < l.limit:
			want |= unix.EPOLLIN
		case s.said == reset, s.said == finished && s.peer.ended:
			want = 0
		}
		if s.peer.arrived > 0 && want != 0 {
			want |= unix.EPOLLOUT
		}
		op := unix.EPOLL_CTL_MOD
		switch {
		case want == s.watched:
			continue
		case s.watched == 0:
			op = unix.EPOLL_CTL_ADD
		case want == 0:
			op = unix.EPOLL_CTL_DEL
		}
		s.watched = want
		if err := l.watch(op, s.fd, want); err != nil {
			return err
		}
	}
	return nil
}

// close ends the connection of s, with a RST on both sockets or after what the
// kernel has yet to send.
func (l *loop) close(s *side, abort bool) {
	for _, s := range []*side{s, s.peer} {
		if s.closed {
			continue
		}
		s.closed = true
		delete(l.sides, int32(s.fd))
		if abort {
			_ = unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
		_ = unix.Close(s.fd)
	}
}

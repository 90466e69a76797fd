//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// fakeSidecar is a sidecar without Redis. It has its locks, read/write locks and semaphores in memory, and grants them in
// the order of the requests. If it ends a connection itself, the session stays, as it does when a
// sidecar is restarted.
type fakeSidecar struct {
	path     string
	l        net.Listener
	clock    func() int64
	cutAfter func() (read, write int) // of the next connection: the bytes after which it ends, -1: never; nil: no connection ends
	wg       sync.WaitGroup

	mu            sync.Mutex
	locks         map[string]*fakeLock
	holds         map[uint64]*fakeHold
	conns         map[*fakeConn]bool
	sessions      map[string]*fakeSession // by ticket
	lastID        uint64                  // of holds and tickets
	hellos        int
	claims        []int  // how many holds each claim named
	redisIsDown   bool   // no confirm is answered, and ping says so
	isHung        bool   // no ping is answered
	refusesPings  bool   // ping is answered with limit
	isSilent      bool   // only hello is answered
	diesOnAcquire bool   // an acquire ends its connection
	violation     string // how a client broke the protocol
}

type fakeSession struct {
	ticket  string
	conn    *fakeConn // nil: the client is not connected
	claimed map[uint64]uint32
}

type fakeLock struct {
	name    string
	holds   []*fakeHold // of a lock, one
	waiters []fakeWaiter
}

type fakeHold struct {
	lock   *fakeLock
	id     uint64
	holder *fakeSession // nil: its keep lasts
	count  uint32
	kept   int64 // until when it lasts
	req    fakeRequest
}

// fakeRequest is an acquire.
type fakeRequest struct {
	protocol.AcquirePermits      // Of: of a semaphore
	shared                  bool // of a read/write lock
	isReadWrite             bool
}

type fakeWaiter struct {
	conn *fakeConn
	req  fakeRequest
}

// newest returns the newest hold of a session that is connected; nil: there is none.
func (l *fakeLock) newest() *fakeHold {
	if l == nil || len(l.holds) == 0 {
		return nil
	}
	h := l.holds[len(l.holds)-1]
	if h.holder == nil || h.holder.conn == nil {
		return nil
	}
	return h
}

// holdOf returns the hold that a request may enter again, if its mode covers it; nil: there is none.
func (l *fakeLock) holdOf(s *fakeSession, req *fakeRequest) *fakeHold {
	for _, h := range l.holds {
		if h.holder == s && req.Owner != 0 && h.req.Owner == req.Owner && !req.NotReentrant {
			return h
		}
	}
	return nil
}

// hasRoomFor reports whether the holds admit one more.
func (l *fakeLock) hasRoomFor(req *fakeRequest) bool {
	permits, isShared := int(req.Permits), req.shared
	for _, h := range l.holds {
		permits += int(h.req.Permits)
		isShared = isShared && h.req.shared
	}
	return len(l.holds) == 0 || isShared || req.Of != 0 && permits <= int(req.Of)
}

type fakeConn struct {
	nc      net.Conn
	session *fakeSession
	phase   fakeConnPhase
	mu      sync.Mutex // of writing
	frame   []byte     // that was written last
}

type fakeConnPhase uint8

const (
	fakeServing  fakeConnPhase = iota // all requests are handled
	fakeClaiming                      // claims are due
	fakeCut                           // the sidecar has ended the connection
)

func (c *fakeConn) send(m protocol.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frame = m.Append(c.frame[:0])
	_, _ = c.nc.Write(c.frame)
}

func newFakeSidecar() *fakeSidecar {
	return &fakeSidecar{
		clock: protocol.Now, locks: map[string]*fakeLock{}, holds: map[uint64]*fakeHold{},
		conns: map[*fakeConn]bool{}, sessions: map[string]*fakeSession{},
	}
}

func startFakeSidecar(path string) *fakeSidecar {
	f := newFakeSidecar()
	f.path = path
	f.listen()
	return f
}

func (f *fakeSidecar) listen() {
	l, err := net.Listen("unix", f.path)
	if err != nil {
		panic(err)
	}
	f.l = l
	f.wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			f.wg.Go(func() { f.serve(nc) })
		}
	})
}

// stop ends the sidecar as a kill does.
func (f *fakeSidecar) stop() {
	f.l.Close()
	f.disconnectAll()
	f.wg.Wait()
}

// disconnectAll ends every connection, as a restart does.
func (f *fakeSidecar) disconnectAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		f.disconnectLocked(c)
	}
}

// disconnectLocked ends a connection.
func (f *fakeSidecar) disconnectLocked(c *fakeConn) {
	c.phase = fakeCut
	for _, l := range f.locks {
		l.removeWaiters(func(w fakeWaiter) bool { return w.conn == c })
	}
	if c.session != nil && c.session.conn == c {
		c.session.conn = nil
	}
	c.nc.Close()
}

// counts returns how many holds and waiters there are.
func (f *fakeSidecar) counts() (holds, waiters int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.locks {
		waiters += len(l.waiters)
	}
	return len(f.holds), waiters
}

// steal takes a lock from its holder, and reports the loss. It returns false if the lock is free.
func (f *fakeSidecar) steal(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.locks[name].newest()
	if h == nil {
		return false
	}
	f.loseLocked(h, protocol.Stolen)
	return true
}

func (f *fakeSidecar) loseLocked(h *fakeHold, why protocol.Reason) {
	h.holder.conn.send(protocol.LostEvent{Hold: h.id, Reason: why})
	f.freeLocked(h)
}

// cutConn is a connection that ends after a number of bytes. Write is called with the mutex
// of the sidecar held.
type cutConn struct {
	net.Conn
	read, write int // bytes left; -1: any number
	cutLocked   func()
	locked      func(func())
}

func (f *cutConn) Read(b []byte) (int, error) {
	if f.read < 0 {
		return f.Conn.Read(b)
	}
	if f.read == 0 {
		f.locked(f.cutLocked)
		return 0, io.EOF
	}
	n, err := f.Conn.Read(b[:min(len(b), f.read)])
	f.read -= n
	return n, err
}

func (f *cutConn) Write(b []byte) (int, error) {
	if f.write < 0 || f.write >= len(b) {
		if f.write >= 0 {
			f.write -= len(b)
		}
		return f.Conn.Write(b)
	}
	n, _ := f.Conn.Write(b[:f.write])
	f.write = 0
	f.cutLocked()
	return n, io.ErrClosedPipe
}

func (f *fakeSidecar) locked(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fakeSidecar) serve(nc net.Conn) {
	c := &fakeConn{nc: nc}
	f.locked(func() {
		if f.cutAfter != nil {
			cut := &cutConn{Conn: nc, cutLocked: func() { f.disconnectLocked(c) }, locked: f.locked}
			cut.read, cut.write = f.cutAfter()
			c.nc = cut
		}
		f.conns[c] = true
	})
	defer f.onEnd(c)
	frames := protocol.NewReader(c.nc)
	var d protocol.RequestDecoder
	for {
		body, err := frames.Next()
		if err != nil {
			return
		}
		m, err := d.Decode(body)
		if err == nil {
			err = f.handle(c, m)
		}
		switch err {
		case nil:
			continue
		case errBye:
		default:
			f.locked(func() { f.violation = err.Error() })
		}
		return
	}
}

// onEnd is called when a connection has ended.
func (f *fakeSidecar) onEnd(c *fakeConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
	s := c.session
	if s == nil || s.conn != c {
		c.nc.Close()
		return
	}
	wasServing := c.phase == fakeServing
	f.disconnectLocked(c)
	if wasServing {
		f.endLocked(s)
	}
}

// endLocked ends a session for good.
func (f *fakeSidecar) endLocked(s *fakeSession) {
	delete(f.sessions, s.ticket)
	for _, l := range f.locks {
		l.removeWaiters(func(w fakeWaiter) bool { return w.conn.session == s })
	}
	for _, h := range f.holds {
		if h.holder == s {
			f.leaveLocked(h)
		}
	}
}

func (l *fakeLock) removeWaiters(which func(fakeWaiter) bool) (found bool) {
	kept := l.waiters[:0]
	for _, w := range l.waiters {
		if which(w) {
			found = true
		} else {
			kept = append(kept, w)
		}
	}
	l.waiters = kept
	return found
}

func (f *fakeSidecar) onHelloLocked(c *fakeConn, m *protocol.Hello) {
	f.hellos++
	s := f.sessions[m.Resume]
	resumed := s != nil && (s.conn == nil || s.conn.phase == fakeClaiming) && f.holdsAnyLocked(s)
	if resumed {
		if s.conn != nil { // the client has given it up
			f.disconnectLocked(s.conn)
		}
		c.phase = fakeClaiming
	} else {
		f.lastID++
		s = &fakeSession{ticket: fmt.Sprint("ticket ", f.lastID)}
		f.sessions[s.ticket] = s
	}
	s.conn, s.claimed = c, map[uint64]uint32{}
	c.session = s
	c.send(protocol.HelloOK{ID: m.ID, V: 1, Sidecar: "fake", Version: "0", Session: 1, LeaseMS: 30000, NowNS: f.clock(), Ticket: s.ticket, Resumed: resumed})
	if c.phase == fakeCut && !resumed {
		delete(f.sessions, s.ticket) // the client did not receive the ticket
	}
}

// holdsAnyLocked reports whether a session holds anything. If not, the sidecar forgets it.
func (f *fakeSidecar) holdsAnyLocked(s *fakeSession) bool {
	for _, h := range f.holds {
		if h.holder == s {
			return true
		}
	}
	delete(f.sessions, s.ticket)
	return false
}

func (f *fakeSidecar) onClaimLocked(c *fakeConn, m *protocol.Claim) error {
	s := c.session
	f.claims = append(f.claims, len(m.Holds))
	for _, claimed := range m.Holds {
		h := f.holds[claimed.Hold]
		switch {
		case h == nil || h.holder != s:
			c.send(protocol.LostEvent{Hold: claimed.Hold, Reason: protocol.Forgotten})
		case claimed.Entries > h.count:
			return fmt.Errorf("%d entries of hold %d were claimed, which has %d", claimed.Entries, h.id, h.count)
		default:
			s.claimed[h.id] = claimed.Entries
		}
	}
	if !m.More {
		for id, h := range f.holds {
			if h.holder != s {
				continue
			}
			if h.count = s.claimed[id]; h.count == 0 {
				f.leaveLocked(h)
			}
		}
		c.phase = fakeServing
	}
	c.send(protocol.ClaimOK{ID: m.ID})
	return nil
}

// handle handles a request. It returns errBye after bye, and another error if the client broke
// the protocol.
func (f *fakeSidecar) handle(c *fakeConn, m protocol.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.phase == fakeCut {
		return nil // the sidecar died before it read this
	}
	switch m.(type) {
	case *protocol.Claim, *protocol.Bye, *protocol.Hello:
	default:
		if c.phase == fakeClaiming {
			return fmt.Errorf("%+v came while claims were due", m)
		}
	}
	if _, hello := m.(*protocol.Hello); f.isSilent && !hello {
		return nil
	}
	switch m := m.(type) {
	case *protocol.Hello:
		f.onHelloLocked(c, m)
	case *protocol.Claim:
		if c.phase != fakeClaiming {
			return errors.New("a claim came that was not due")
		}
		return f.onClaimLocked(c, m)
	case *protocol.Bye:
		f.endLocked(c.session)
		c.session = nil
		c.send(protocol.ByeOK{ID: m.ID})
		return errBye
	case *protocol.Ping:
		redis := "ok"
		if f.redisIsDown {
			redis = "it is away"
		}
		if f.refusesPings {
			c.send(protocol.Err{ID: m.ID, Code: protocol.Limit, Msg: "rule 7 permits 1 request a second"})
		} else if !f.isHung {
			c.send(protocol.PingOK{ID: m.ID, NowNS: f.clock(), Redis: redis, RedisAddress: "redis:6379/0"})
		}
	case *protocol.Acquire:
		f.onAcquireLocked(c, fakeRequest{AcquirePermits: protocol.AcquirePermits{Acquire: *m}})
	case *protocol.AcquireReadWrite:
		f.onAcquireLocked(c, fakeRequest{AcquirePermits: protocol.AcquirePermits{Acquire: m.Acquire}, shared: m.Shared, isReadWrite: true})
	case *protocol.AcquirePermits:
		f.onAcquireLocked(c, fakeRequest{AcquirePermits: *m})
	case *protocol.Downgrade:
		h := f.holds[m.Hold]
		switch {
		case h == nil || h.holder != c.session:
			c.send(protocol.Err{ID: m.ID, Code: protocol.NotHeld, Msg: "you do not hold it"})
		case !h.req.isReadWrite || h.req.shared:
			c.send(protocol.Err{ID: m.ID, Code: protocol.BadRequest, Msg: "it is not exclusive"})
		default:
			h.req.shared = true
			c.send(protocol.DowngradeOK{ID: m.ID, DeadlineNS: f.clock() + int64(30*time.Second)})
			f.grantNextLocked(h.lock)
		}
	case *protocol.Release:
		code := protocol.NotHeld
		h := f.holds[m.Hold]
		if h != nil && h.holder == c.session {
			code = ""
			if h.count--; h.count == 0 {
				f.leaveLocked(h)
			}
		}
		switch {
		case m.ID == 0:
		case code != "":
			c.send(protocol.Err{ID: m.ID, Code: code, Msg: "you do not hold it"})
		default:
			c.send(protocol.ReleaseOK{ID: m.ID, Count: h.count})
		}
	case *protocol.Info:
		ok := protocol.InfoOK{ID: m.ID}
		if l := f.locks[m.Name]; l != nil {
			ok.Lock = &protocol.LockRow{Name: l.name, State: protocol.StateHeld, Hold: l.holds[0].id, Count: l.holds[0].count}
		}
		c.send(ok)
	case *protocol.Confirm:
		if !f.redisIsDown {
			c.send(protocol.ConfirmOK{ID: m.ID})
		}
	case *protocol.ForceRelease:
		h := f.locks[m.Name].newest()
		if h == nil {
			c.send(protocol.Err{ID: m.ID, Code: protocol.NotHeld, Msg: "no client holds it"})
			break
		}
		c.send(protocol.ForceReleaseOK{ID: m.ID, Hold: h.id})
		f.loseLocked(h, protocol.ByForce)
	case *protocol.Cancel:
		for _, l := range f.locks {
			if l.removeWaiters(func(w fakeWaiter) bool { return w.conn == c && w.req.ID == m.Target }) {
				c.send(protocol.Err{ID: m.Target, Code: protocol.Canceled, Msg: "canceled"})
				f.grantNextLocked(l)
			}
		}
	}
	return nil
}

func (f *fakeSidecar) onAcquireLocked(c *fakeConn, m fakeRequest) {
	if f.diesOnAcquire {
		f.disconnectLocked(c)
		return
	}
	l := f.locks[m.Name]
	if l == nil {
		l = &fakeLock{name: m.Name}
		f.locks[m.Name] = l
	}
	h := l.holdOf(c.session, &m)
	switch {
	case h != nil && (m.shared || !h.req.shared):
		h.count++
		f.answerLocked(h, c, m.ID)
	case len(l.waiters) == 0 && l.hasRoomFor(&m):
		f.grantLocked(l, c, m)
	case m.WaitMS == 0:
		c.send(protocol.Err{ID: m.ID, Code: protocol.Timeout, Msg: "another owner holds it"})
	case h != nil:
		c.send(protocol.Err{ID: m.ID, Code: protocol.Deadlock, Msg: "you hold it shared"})
	default:
		w := fakeWaiter{c, m}
		l.waiters = append(l.waiters, w)
		if m.WaitMS > 0 {
			time.AfterFunc(time.Duration(m.WaitMS)*time.Millisecond, func() { f.refuse(l, w, protocol.Timeout) })
		}
	}
}

func (f *fakeSidecar) refuse(l *fakeLock, w fakeWaiter, code protocol.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l.removeWaiters(func(other fakeWaiter) bool { return other == w }) {
		w.conn.send(protocol.Err{ID: w.req.ID, Code: code, Msg: "it was held for all that time"})
		f.grantNextLocked(l)
	}
}

func (f *fakeSidecar) grantLocked(l *fakeLock, c *fakeConn, req fakeRequest) {
	f.lastID++
	h := &fakeHold{lock: l, id: f.lastID, holder: c.session, count: 1, kept: f.clock() + req.KeepMS*int64(time.Millisecond), req: req}
	l.holds = append(l.holds, h)
	f.holds[h.id] = h
	f.answerLocked(h, c, req.ID)
}

func (f *fakeSidecar) answerLocked(h *fakeHold, c *fakeConn, id uint64) {
	c.send(protocol.AcquireOK{
		ID: id, Token: 1_000_000 + h.id, Hold: h.id, Count: h.count, DeadlineNS: f.clock() + int64(30*time.Second),
		Shared: h.req.shared, Permits: h.req.Permits, Of: h.req.Of,
	})
}

// leaveLocked ends a hold for its client. The lock is free after its keep.
func (f *fakeSidecar) leaveLocked(h *fakeHold) {
	left := h.kept - f.clock()
	if left <= 0 {
		f.freeLocked(h)
		return
	}
	delete(f.holds, h.id)
	h.holder, h.count = nil, 0
	time.AfterFunc(time.Duration(left), func() { f.locked(func() { f.freeLocked(h) }) })
}

func (f *fakeSidecar) freeLocked(h *fakeHold) {
	delete(f.holds, h.id)
	h.count = 0
	l := h.lock
	l.holds = slices.DeleteFunc(l.holds, func(other *fakeHold) bool { return other == h })
	f.grantNextLocked(l)
	if len(l.holds) == 0 && f.locks[l.name] == l {
		delete(f.locks, l.name)
	}
}

// grantNextLocked grants the requests for which there is room, in their order.
func (f *fakeSidecar) grantNextLocked(l *fakeLock) {
	for len(l.waiters) > 0 && l.hasRoomFor(&l.waiters[0].req) {
		w := l.waiters[0]
		l.waiters = l.waiters[1:]
		f.grantLocked(l, w.conn, w.req)
	}
}

// dialFakeSidecar starts a sidecar and connects a Client.
func dialFakeSidecar(t testing.TB) (*fakeSidecar, *Client) {
	f := startFakeSidecar(filepath.Join(shortDir(t), "s"))
	t.Cleanup(func() {
		f.stop()
		if f.violation != "" {
			t.Error(f.violation)
		}
	})
	c, err := Dial(context.Background(), f.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return f, c
}

var _ io.Closer = (*Client)(nil)

package conform

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/locksidecar/locksidecar/protocol"
)

// conn is the sidecar's end of one connection. Whatever the scene, it demands of every frame
// what SPEC.md demands of all: see judge.
type conn struct {
	stage   *stage
	nc      net.Conn
	number  int
	frames  *protocol.Reader
	decoder protocol.RequestDecoder
	hello   protocol.Hello
	phase   connPhase
	used    map[uint64]bool // ids in use
	claimed map[uint64]bool // by the claims of this connection
	last    string          // the frame that was read last, for messages
	early   []earlyRequest  // that were read while the scene awaited a report

	hasEnded bool
}

type earlyRequest struct {
	request protocol.Request
	last    string
}

type connPhase uint8

const (
	helloDue  connPhase = iota // the answer to hello was not sent
	claimsDue                  // the session was resumed, and the last claim is not answered
	serving
	leaving // the client has sent bye
)

// show returns a frame as people read it.
func show(body []byte) string {
	var m map[string]any
	if msgpack.Unmarshal(body, &m) != nil {
		return fmt.Sprintf("% x", body)
	}
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Sprintf("% x", body)
	}
	return string(line)
}

// read returns the next request, which was judged. It returns nil when the time has passed.
func (c *conn) read(wait time.Duration) protocol.Request {
	if len(c.early) > 0 {
		next := c.early[0]
		c.early = c.early[1:]
		c.last = next.last
		return next.request
	}
	return c.receive(wait)
}

// pump answers the queries that have arrived, and keeps what else has arrived for read.
func (c *conn) pump() {
	for !c.hasEnded && c.phase != helloDue {
		m := c.receive(time.Millisecond)
		if m == nil {
			return
		}
		if !c.serveQuery(m) {
			c.early = append(c.early, earlyRequest{m, c.last})
		}
	}
}

// receive reads a request from the socket, and judges it. It returns nil when the time has passed.
func (c *conn) receive(wait time.Duration) protocol.Request {
	s := c.stage
	_ = c.nc.SetReadDeadline(time.Now().Add(wait))
	body, err := c.frames.Next()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	case err != nil:
		c.hasEnded = true
		c.last = fmt.Sprintf("the end of the connection (%v)", err)
		var broken *protocol.ConnError
		if errors.As(err, &broken) || errors.Is(err, io.ErrUnexpectedEOF) {
			s.fail("well-formed frames (SPEC.md §2)", "%v", err)
		}
		s.note("connection %d ends: %v", c.number, err)
		return ended{}
	}
	c.last = show(body)
	s.note("connection %d → %s", c.number, c.last)
	m, err := c.decoder.Decode(body)
	if err != nil {
		s.fail("frames and requests as in SPEC.md §2 and §4", "%s: %v", c.last, err)
	}
	c.judge(m)
	return kept(m)
}

// kept returns a copy of what a decoder returned, which is valid until the next frame only.
func kept(m protocol.Request) protocol.Request {
	switch m := m.(type) {
	case *protocol.Hello:
		return keep(m)
	case *protocol.Acquire:
		return keep(m)
	case *protocol.AcquireReadWrite:
		return keep(m)
	case *protocol.AcquirePermits:
		return keep(m)
	case *protocol.Downgrade:
		return keep(m)
	case *protocol.Release:
		return keep(m)
	case *protocol.Confirm:
		return keep(m)
	case *protocol.Cancel:
		return keep(m)
	case *protocol.Info:
		return keep(m)
	case *protocol.List:
		return keep(m)
	case *protocol.ForceRelease:
		return keep(m)
	case *protocol.Ping:
		return keep(m)
	case *protocol.Bye:
		return keep(m)
	case *protocol.Claim:
		c := *m
		c.Holds = slices.Clone(m.Holds)
		return &c
	case *protocol.Unknown:
		return keep(m)
	}
	return m
}

func keep[T any](m *T) *T {
	c := *m
	return &c
}

// ended stands for the end of a connection.
type ended struct{ protocol.Ping }

// judge demands what holds for every request.
func (c *conn) judge(m protocol.Request) {
	s := c.stage
	if id := m.RequestID(); id != 0 {
		if c.used[id] {
			s.fail("ids that are not in use (SPEC.md §3)", "%s", c.last)
		}
		c.used[id] = true
	}
	switch m := m.(type) {
	case *protocol.Hello:
		if c.hello.ID != 0 {
			s.fail("one hello for a connection (SPEC.md §4.1)", "%s", c.last)
		}
		return
	case *protocol.Claim:
		if c.phase != claimsDue {
			s.fail("claims only while claims are due (SPEC.md §4.11)", "%s", c.last)
		}
		for _, h := range m.Holds {
			switch {
			case c.claimed[h.Hold]:
				s.fail("a claim for each hold once (SPEC.md §4.11)", "hold %d twice: %s", h.Hold, c.last)
			case int(h.Entries) > s.entries[h.Hold]:
				s.fail(fmt.Sprintf("claims of at most the entries that were granted (SPEC.md §4.11): hold %d has %d", h.Hold, s.entries[h.Hold]), "%s", c.last)
			}
			c.claimed[h.Hold] = true
		}
	case *protocol.Bye:
	default:
		if c.phase == claimsDue {
			s.fail("nothing but claims and bye before the answer to the last claim (SPEC.md §4.11)", "%s", c.last)
		}
	}
	if m, ok := m.(*protocol.Release); ok {
		if s.entries[m.Hold] == 0 {
			s.fail("one release for each entry of a hold of this session (SPEC.md §9.1)", "%s: hold %d has no entry left", c.last, m.Hold)
		}
		s.entries[m.Hold]--
	}
}

// next returns the next request that a scene has to look at: it answers ping, info and list,
// which a client may send at any time.
func (c *conn) next() protocol.Request {
	deadline := time.Now().Add(c.stage.patience)
	for time.Now().Before(deadline) {
		m := c.read(min(time.Until(deadline), 100*time.Millisecond))
		if m == nil {
			c.stage.takeReports()
			continue
		}
		if !c.serveQuery(m) {
			return m
		}
	}
	c.last = fmt.Sprintf("nothing in %v", c.stage.patience)
	return nil
}

// serveQuery answers a request that changes nothing.
func (c *conn) serveQuery(m protocol.Request) bool {
	switch m := m.(type) {
	case *protocol.Ping:
		c.reply(protocol.PingOK{ID: m.ID, NowNS: protocol.Now(), Redis: "ok"})
	case *protocol.List:
		c.reply(protocol.ListOK{ID: m.ID})
	default:
		return false
	}
	return true
}

// serveFor answers whatever the client sends for a while, as at the end of a scene.
func (c *conn) serveFor(wait time.Duration) {
	for !c.hasEnded {
		m := c.read(wait)
		if m == nil || c.hasEnded {
			return
		}
		if c.serveQuery(m) {
			continue
		}
		switch m := m.(type) {
		case *protocol.Claim:
			c.answerClaim(m)
		case *protocol.Bye:
			c.end(protocol.ByeOK{ID: m.ID})
		case *protocol.Release:
			c.answerRelease(m)
		case *protocol.Confirm:
			c.reply(protocol.ConfirmOK{ID: m.ID})
		case *protocol.Info:
			c.reply(protocol.InfoOK{ID: m.ID})
		case *protocol.Cancel:
			c.reply(protocol.CancelOK{ID: m.ID})
		case *protocol.Acquire, *protocol.AcquireReadWrite, *protocol.AcquirePermits:
			c.refuse(m.RequestID(), protocol.Timeout, "the scene is over")
		}
	}
}

// --- What the sidecar sends ---

// reply sends a reply. The id of an answer is free again.
func (c *conn) reply(m protocol.Reply) { c.write(m.Append(nil), m) }

func (c *conn) write(frame []byte, m protocol.Reply) {
	if m != nil {
		switch a := m.(type) {
		case protocol.AcquireOK:
			delete(c.used, a.ID)
		case protocol.Err:
			delete(c.used, a.ID)
		case protocol.DowngradeOK:
			delete(c.used, a.ID)
		case protocol.ReleaseOK:
			delete(c.used, a.ID)
		}
	}
	if len(frame) > 4 {
		c.stage.note("connection %d ← %s", c.number, show(frame[4:]))
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.stage.patience))
	if _, err := c.nc.Write(frame); err != nil && !c.stage.isEnding {
		c.stage.fail("the client reads what is sent to it", "%v", err)
	}
}

// raw sends bytes that are no valid frame, or one that this package's messages cannot express.
func (c *conn) raw(frame []byte) { c.write(frame, nil) }

// end sends the last frame, if there is one, and ends the connection.
func (c *conn) end(last ...protocol.Reply) {
	for _, m := range last {
		c.reply(m)
	}
	c.stage.note("connection %d is ended by the sidecar", c.number)
	c.hasEnded = true
	c.nc.Close()
}

// welcome answers hello. A session that is not resumed is a new one, in which no hold counts.
func (c *conn) welcome(isResumed bool) {
	c.welcomeWith(isResumed, func(*protocol.HelloOK) {})
}

// welcomeWith is welcome with another answer.
func (c *conn) welcomeWith(isResumed bool, change func(*protocol.HelloOK)) {
	s := c.stage
	if isResumed {
		c.phase, c.claimed = claimsDue, map[uint64]bool{}
	} else {
		c.phase = serving
		s.session++
		clear(s.entries)
	}
	m := protocol.HelloOK{
		ID: c.hello.ID, V: protocol.Version, Sidecar: s.uuid, Version: "0", Session: uint64(s.session),
		LeaseMS: leaseMS, NowNS: protocol.Now(), Resumed: isResumed,
	}
	if c.hello.Resumable {
		s.tickets++
		s.ticket = fmt.Sprintf("ticket-%d", s.tickets)
		m.Ticket = s.ticket
	}
	delete(c.used, c.hello.ID)
	change(&m)
	c.reply(m)
}

// grant grants an acquire. What is not given has a usual value.
func (c *conn) grant(a *protocol.Acquire, m protocol.AcquireOK) {
	m.ID = a.ID
	m.Count = max(m.Count, 1)
	if m.Token == 0 {
		m.Token = 1000 + m.Hold
	}
	c.stage.entries[m.Hold] = int(m.Count)
	c.reply(m)
}

func (c *conn) refuse(id uint64, code protocol.Code, msg string) {
	c.reply(protocol.Err{ID: id, Code: code, Msg: msg})
}

func (c *conn) answerRelease(m *protocol.Release) {
	if m.ID != 0 {
		c.reply(protocol.ReleaseOK{ID: m.ID, Count: uint32(c.stage.entries[m.Hold])})
	}
}

// answerClaim answers a claim. After the last one the session has the claimed holds only.
func (c *conn) answerClaim(m *protocol.Claim) {
	s := c.stage
	for _, h := range m.Holds {
		s.entries[h.Hold] = int(h.Entries)
	}
	delete(c.used, m.ID)
	if !m.More {
		for hold := range s.entries {
			if !c.claimed[hold] {
				delete(s.entries, hold)
			}
		}
		c.phase = serving
	}
	c.reply(protocol.ClaimOK{ID: m.ID})
}

// lost reports the loss of a hold.
func (c *conn) lost(hold uint64, reason protocol.Reason) {
	c.reply(protocol.LostEvent{Hold: hold, Reason: reason})
}

// lease sends a lease event.
func (c *conn) lease(deadline int64) { c.reply(protocol.LeaseEvent{DeadlineNS: deadline}) }

// --- What the sidecar expects ---

// expect returns the next request, which must be a T.
func expect[T protocol.Request](c *conn, what string) T {
	m, ok := c.next().(T)
	if !ok {
		c.stage.fail(what, "%s", c.last)
	}
	return m
}

// acquire expects an acquire of a lock.
func (c *conn) acquire(name string) *protocol.Acquire {
	what := fmt.Sprintf("an acquire of %q", name)
	a := expect[*protocol.Acquire](c, what)
	if a.Name != name {
		c.stage.fail(what, "%s", c.last)
	}
	return a
}

// requested expects the request of a command acquire: of a lock, a read/write lock, or permits of a semaphore.
func (c *conn) requested(cmd command) *protocol.Acquire {
	switch {
	case cmd.Mode != "":
		return c.acquireReadWrite(cmd)
	case cmd.Of == 0:
		return c.acquire(cmd.Name)
	}
	permits := max(cmd.Permits, 1)
	what := fmt.Sprintf("an acquire_permits of %q with permits %d and of %d", cmd.Name, permits, cmd.Of)
	m := expect[*protocol.AcquirePermits](c, what)
	if m.Name != cmd.Name || m.Permits != permits || m.Of != cmd.Of {
		c.stage.fail(what, "%s", c.last)
	}
	return &m.Acquire
}

func (c *conn) acquireReadWrite(cmd command) *protocol.Acquire {
	what := fmt.Sprintf("an acquire_rw of %q with shared %v", cmd.Name, cmd.Mode == shared)
	m := expect[*protocol.AcquireReadWrite](c, what)
	if m.Name != cmd.Name || m.Shared != (cmd.Mode == shared) {
		c.stage.fail(what, "%s", c.last)
	}
	return &m.Acquire
}

// downgrade expects a downgrade of a hold, and does not answer it.
func (c *conn) downgrade(hold uint64) *protocol.Downgrade {
	what := fmt.Sprintf("a downgrade of hold %d", hold)
	m := expect[*protocol.Downgrade](c, what)
	if m.Hold != hold {
		c.stage.fail(what, "%s", c.last)
	}
	return m
}

// release expects a release, with or without an id, and answers it.
func (c *conn) release(hold uint64) {
	what := fmt.Sprintf("a release of hold %d", hold)
	m := expect[*protocol.Release](c, what)
	if m.Hold != hold {
		c.stage.fail(what, "%s", c.last)
	}
	c.answerRelease(m)
}

// cancel expects a cancel of an acquire.
func (c *conn) cancel(target uint64) *protocol.Cancel {
	what := fmt.Sprintf("a cancel of request %d", target)
	m := expect[*protocol.Cancel](c, what)
	if m.Target != target {
		c.stage.fail(what, "%s", c.last)
	}
	return m
}

// claim expects the only claim, with these holds and entries, and does not answer it.
func (c *conn) claim(want map[uint64]uint32) *protocol.Claim {
	what := "a claim of no hold, the only claim"
	if len(want) > 0 {
		what = "a claim, the only one, of"
		for _, hold := range slices.Sorted(maps.Keys(want)) {
			what += fmt.Sprintf(" hold %d with entries %d", hold, want[hold])
		}
	}
	m := expect[*protocol.Claim](c, what)
	got := make(map[uint64]uint32)
	for _, h := range m.Holds {
		got[h.Hold] = h.Entries
	}
	if m.More || !maps.Equal(got, want) {
		c.stage.fail(what, "%s", c.last)
	}
	return m
}

// expectEnd expects that the client closes the connection and sends nothing before that.
func (c *conn) expectEnd(why string) {
	if _, ok := c.next().(ended); !ok {
		c.stage.fail("the client closes the connection: "+why, "%s", c.last)
	}
}

// quiet fails if the client sends anything in a moment. A frame that was sent later is missed.
func (c *conn) quiet(why string) {
	if m := c.read(quietTime); m != nil {
		c.stage.fail("nothing is sent: "+why, "%s", c.last)
	}
}

// frame returns a frame with any body.
func frame(body []byte) []byte {
	return append([]byte{byte(len(body) >> 24), byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

// pairs returns a body: a map with the keys and values in this order.
func pairs(kv ...any) []byte {
	var b bytes.Buffer
	e := msgpack.NewEncoder(&b)
	e.UseCompactInts(true)
	_ = e.EncodeMapLen(len(kv) / 2)
	for _, v := range kv {
		if raw, ok := v.(msgpack.RawMessage); ok {
			b.Write(raw)
			continue
		}
		_ = e.Encode(v)
	}
	return b.Bytes()
}

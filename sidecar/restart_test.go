package sidecar_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/embedded"
	"github.com/locksidecar/locksidecar/sidecar/state"
)

// house is a host whose sidecar can be restarted.
type house struct {
	*testing.T
	cfg sidecar.Config
	srv *sidecar.Server

	gather func() ([]string, error) // metrics; nil: there are none

	stop func()
}

func newHouse(t *testing.T, change func(*sidecar.Config)) *house {
	t.Helper()
	redis, err := embedded.Start(t.Context(), slog.New(slog.DiscardHandler), embedded.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	h := &house{T: t, cfg: sidecar.Config{
		Socket: filepath.Join(t.TempDir(), "s"),
		Redis:  redis.URL(),
		Log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	if change != nil {
		change(&h.cfg)
	}
	h.start()
	t.Cleanup(func() { h.stop() })
	return h
}

func (h *house) start() {
	h.Helper()
	srv, err := sidecar.Listen(h.cfg)
	if err != nil {
		h.Fatal(err)
	}
	h.srv = srv
	if h.gather != nil {
		srv.SetMetrics(h.gather)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx) }()
	h.stop = func() {
		cancel()
		if err := <-done; err != nil {
			h.Errorf("Serve: %v", err)
		}
		h.stop = func() {}
	}
}

func (h *house) restart() {
	h.Helper()
	h.stop()
	h.start()
}

// hello begins a session, or resumes the one of the ticket.
func (h *house) hello(resumable bool, ticket string) (*wire, protocol.HelloOK) {
	h.Helper()
	c := connect(h.T, h.cfg.Socket)
	c.send(protocol.Hello{ID: 1, V: protocol.Version, Client: "test", Resumable: resumable, Resume: ticket})
	var m protocol.HelloOK
	c.answer(1, &m)
	c.id = 1
	return c, m
}

// resumed comes back with the ticket, which must be good.
func (h *house) resumed(ticket string) *wire {
	h.Helper()
	c, m := h.hello(true, ticket)
	if !m.Resumed || m.Ticket != ticket {
		h.Fatalf("not resumed: %+v", m)
	}
	return c
}

// claim claims all that is named, and returns the holds that turn out to be lost.
func (c *wire) claim(holds ...protocol.ClaimedHold) map[uint64]protocol.Reason {
	c.Helper()
	c.id++
	c.send(protocol.Claim{ID: c.id, Holds: holds})
	lost := make(map[uint64]protocol.Reason)
	for {
		switch m := c.next().(type) {
		case *protocol.LostEvent:
			lost[m.Hold] = m.Reason
		case *protocol.Answer:
			if err := m.Unpack(new(protocol.ClaimOK)); err != nil || m.ID != c.id {
				c.Fatalf("answer %d: %v", m.ID, err)
			}
			return lost
		default:
			c.Fatalf("got %+v", m)
		}
	}
}

// ask sends a request, and expects the good answer to it next.
func (c *wire) ask(request protocol.Request, ok protocol.OK) {
	c.Helper()
	c.send(request)
	m := c.next()
	a, isAnswer := m.(*protocol.Answer)
	if !isAnswer {
		c.Fatalf("got %+v", m)
	}
	if err := a.Unpack(ok); err != nil {
		c.Fatal(err)
	}
}

func (c *wire) row(name string) *protocol.LockRow {
	c.Helper()
	c.id++
	var info protocol.InfoOK
	c.ask(protocol.Info{ID: c.id, Name: name}, &info)
	return info.Lock
}

func TestRestartLosesNoLock(t *testing.T) {
	h := newHouse(t, nil)
	a, first := h.hello(true, "")
	kept, lone := a.hold("kept"), a.hold("released in between")
	a.id++
	a.send(protocol.Acquire{ID: a.id, Name: "entered twice", Owner: 7, WaitMS: protocol.Forever})
	var twice protocol.AcquireOK
	a.answer(a.id, &twice)
	a.id++
	a.send(protocol.Acquire{ID: a.id, Name: "entered twice", Owner: 7, WaitMS: protocol.Forever})
	a.answer(a.id, &twice)

	h.stop()
	a.refused(0, protocol.Unavailable, "come back")
	a.ended()
	h.start()

	b, second := h.hello(true, "")
	if second.Sidecar != first.Sidecar || second.Session <= first.Session {
		t.Errorf("the sidecar was %q, session %d; it is %q, session %d", first.Sidecar, first.Session, second.Sidecar, second.Session)
	}
	b.refused(b.acquire("kept", 0), protocol.Timeout, "held by pid")
	if row := b.row("kept"); row == nil || !row.Absent || row.Token != kept.Token || row.Hold != kept.Hold ||
		row.AbsentMS+row.AbsentLeftMS > sidecar.DefaultResumeWithin.Milliseconds() || row.AbsentMS+row.AbsentLeftMS < sidecar.DefaultResumeWithin.Milliseconds()-1 {
		t.Errorf("before its client is back: %+v", row)
	}
	waiting := b.acquire("released in between", protocol.Forever)

	a = h.resumed(first.Ticket)
	if lost := a.claim(protocol.ClaimedHold{Hold: kept.Hold, Entries: 1}, protocol.ClaimedHold{Hold: twice.Hold, Entries: 1},
		protocol.ClaimedHold{Hold: 1 << 40, Entries: 1}); len(lost) != 1 || lost[1<<40] != protocol.Forgotten {
		t.Errorf("lost by the restart: %v", lost)
	}
	var got protocol.AcquireOK
	b.answer(waiting, &got)
	if got.Token <= lone.Token || got.Hold <= lone.Hold {
		t.Errorf("after %+v came %+v", lone, got)
	}
	if row := b.row("kept"); row == nil || row.Absent || row.Token != kept.Token || row.Hold != kept.Hold {
		t.Errorf("when its client is back: %+v", row)
	}
	if row := b.row("entered twice"); row == nil || row.Count != 1 || row.Token != twice.Token {
		t.Errorf("of two entries one was claimed: %+v", row)
	}
	a.id++
	a.ask(protocol.Release{ID: a.id, Hold: kept.Hold}, new(protocol.ReleaseOK))
	b.ask(protocol.Acquire{ID: 77, Name: "kept", WaitMS: protocol.Forever}, &got)
	if got.Token <= kept.Token {
		t.Errorf("token %d after %d", got.Token, kept.Token)
	}
}

func TestOnlyItsClientResumesASessionAndOnlyOnce(t *testing.T) {
	h := newHouse(t, nil)
	a, first := h.hello(true, "")
	held := a.hold("x")
	if _, m := h.hello(true, first.Ticket); m.Resumed || m.Session == first.Session {
		t.Errorf("a session in use was resumed: %+v", m)
	}
	h.restart()
	forged := []byte(first.Ticket)
	forged[len(forged)-1] ^= 1
	for _, ticket := range []string{string(forged), "1", "1.", "x.y", "99" + first.Ticket} {
		if _, m := h.hello(true, ticket); m.Resumed || m.Session == first.Session {
			t.Errorf("ticket %q: %+v", ticket, m)
		}
	}

	// Until it is taken up, the newest connection has it.
	gone := h.resumed(first.Ticket)
	gone.send(protocol.Claim{ID: 2, More: true, Holds: []protocol.ClaimedHold{{Hold: held.Hold, Entries: 1}}})
	gone.answer(2, new(protocol.ClaimOK))
	a = h.resumed(first.Ticket)
	gone.refused(0, protocol.Unavailable, "newer connection")
	gone.ended()
	if lost := a.claim(protocol.ClaimedHold{Hold: held.Hold, Entries: 1}); len(lost) > 0 {
		t.Errorf("lost %v", lost)
	}
	if _, m := h.hello(true, first.Ticket); m.Resumed {
		t.Error("resumed twice")
	}
	if row := a.row("x"); row == nil || row.Hold != held.Hold || row.Session != first.Session {
		t.Errorf("the lock: %+v", row)
	}
}

func TestASessionIsTakenUpWithTheLastClaimOnly(t *testing.T) {
	h := newHouse(t, nil)
	a, first := h.hello(true, "")
	one, two := a.hold("one"), a.hold("two")
	h.restart()

	// Whoever leaves in the middle can come back.
	b := h.resumed(first.Ticket)
	b.send(protocol.Claim{ID: 2, Holds: []protocol.ClaimedHold{{Hold: one.Hold, Entries: 1}}, More: true})
	b.answer(2, new(protocol.ClaimOK))
	b.nc.Close()
	c := h.resumed(first.Ticket)
	c.send(protocol.Acquire{ID: 2, Name: "three", WaitMS: protocol.Forever})
	c.refused(0, protocol.BadFrame, "claims are due")
	c.ended()
	c = h.resumed(first.Ticket)
	c.send(protocol.Claim{ID: 2, Holds: []protocol.ClaimedHold{{Hold: two.Hold, Entries: 2}}})
	c.refused(0, protocol.BadFrame, "more entries")
	c.ended()
	c = h.resumed(first.Ticket)
	c.send(protocol.Claim{ID: 2, Holds: []protocol.ClaimedHold{{Hold: one.Hold, Entries: 1}}, More: true})
	c.answer(2, new(protocol.ClaimOK))
	c.send(protocol.Claim{ID: 3, Holds: []protocol.ClaimedHold{{Hold: one.Hold, Entries: 1}}})
	c.refused(0, protocol.BadFrame, "claimed twice")
	c.ended()

	c = h.resumed(first.Ticket)
	if lost := c.claim(protocol.ClaimedHold{Hold: one.Hold, Entries: 1}, protocol.ClaimedHold{Hold: two.Hold, Entries: 1}); len(lost) > 0 {
		t.Errorf("lost %v", lost)
	}
	c.send(protocol.Claim{ID: 9})
	c.refused(0, protocol.BadFrame, "not due")
}

func TestByeEndsASessionForCertain(t *testing.T) {
	h := newHouse(t, nil)
	other := greeted(t, h.cfg.Socket)
	a, first := h.hello(true, "")
	a.hold("x")
	a.send(protocol.Bye{ID: 5})
	a.answer(5, new(protocol.ByeOK))
	a.ended()
	other.hold("x")

	b, second := h.hello(true, "")
	b.hold("y")
	h.restart()
	if _, m := h.hello(true, first.Ticket); m.Resumed {
		t.Error("a session that was ended was resumed")
	}
	b = h.resumed(second.Ticket)
	b.send(protocol.Bye{ID: 2})
	b.answer(2, new(protocol.ByeOK))
	b.ended()
	greeted(t, h.cfg.Socket).hold("y")
}

func TestWhatWasAskedBeforeByeIsAnsweredBeforeIt(t *testing.T) {
	h := newHouse(t, nil)
	a, _ := h.hello(true, "")
	held := a.hold("x")
	b := protocol.Release{ID: 50, Hold: held.Hold}.Append(nil)
	b = protocol.Ping{ID: 51}.Append(b)
	b = protocol.Bye{ID: 52}.Append(b)
	b = protocol.Ping{ID: 53}.Append(b) // behind bye there is nobody
	if _, err := a.nc.Write(b); err != nil {
		t.Fatal(err)
	}
	got := make(map[uint64]bool)
	for len(got) < 3 {
		answer, ok := a.next().(*protocol.Answer)
		if !ok || got[answer.ID] || answer.ID == 52 && len(got) < 2 {
			t.Fatalf("got %+v after %v", answer, got)
		}
		got[answer.ID] = true
	}
	a.ended()
}

func TestASocketWithoutAPathNeedsAStateFile(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@locksidecar-test", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := sidecar.Config{Listener: l}
	if err := cfg.Check(); err == nil || !strings.Contains(err.Error(), "name a state file") {
		t.Errorf("got %v", err)
	}
	cfg.State = sidecar.StateNone
	if err := cfg.Check(); err != nil {
		t.Error(err)
	}
}

func TestClientThatDiedDuringARestartHoldsNothing(t *testing.T) {
	h := newHouse(t, nil)
	// The socket is this process's, but the session was begun by a child: to the
	// kernel whoever connects is the peer.
	child := exec.Command(os.Args[0], "-test.run=^TestHelperHoldsALock$")
	child.Env = append(os.Environ(), "HOLD_AT="+h.cfg.Socket)
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { child.Process.Kill() })
	var b [5]byte
	if _, err := stdout.Read(b[:]); err != nil || string(b[:]) != "held\n" {
		t.Fatalf("the child says %q, %v", b, err)
	}
	h.stop()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	h.start()
	c := greeted(t, h.cfg.Socket)
	before := protocol.Now()
	c.hold("the child's") // or the test's deadline ends it: the lease is 30 s, like it
	t.Logf("free after %v", time.Duration(protocol.Now()-before))
}

// TestHelperHoldsALock is the child of the test above.
func TestHelperHoldsALock(t *testing.T) {
	socket := os.Getenv("HOLD_AT")
	if socket == "" {
		t.Skip("only as a child process")
	}
	h := &house{T: t, cfg: sidecar.Config{Socket: socket}}
	c, _ := h.hello(true, "")
	c.hold("the child's")
	os.Stdout.WriteString("held\n")
	select {}
}

// Shows docs/guarantees.md: The client does not connect again, but its process lives.
func TestClientThatCannotResumeKeepsItsLocksToTheirDeadlines(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(c *sidecar.Config) { c.Lease = time.Second })
	a, first := h.hello(false, "")
	if first.Ticket != "" {
		t.Errorf("a ticket for a session that is not resumable: %+v", first)
	}
	held := a.hold("x")
	h.restart()
	c := greeted(t, h.cfg.Socket)
	c.hold("x")
	if now := protocol.Now(); now < held.DeadlineNS {
		t.Errorf("granted %v before the deadline", time.Duration(held.DeadlineNS-now))
	}
}

// Shows docs/guarantees.md: The client does not connect again, but its process lives.
func TestAbsentClientIsRenewedForResumeWithin(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(c *sidecar.Config) { c.Lease = 3 * time.Second; c.ResumeWithin = 4 * time.Second })
	a, _ := h.hello(true, "")
	held := a.hold("x")
	h.restart()
	began := protocol.Now()
	c := greeted(t, h.cfg.Socket)
	c.hold("x")
	if now := protocol.Now(); now < began+int64(h.cfg.ResumeWithin) {
		t.Errorf("granted %v after the restart; the holder was to be waited for for %v", time.Duration(now-began), h.cfg.ResumeWithin)
	} else if now < held.DeadlineNS {
		t.Error("granted before the deadline")
	}
}

// changeState changes what the state file of a stopped sidecar has of its only session.
func (h *house) changeState(change func(*state.Session)) {
	h.Helper()
	f, err := state.Open(h.cfg.Socket + ".state")
	if err != nil {
		h.Fatal(err)
	}
	defer f.Close()
	r := f.Recovered()
	if r.Reset || len(r.Sessions) != 1 {
		h.Fatalf("%d sessions, reset %v: %s", len(r.Sessions), r.Reset, r.ResetReason)
	}
	s := r.Sessions[0]
	change(&s)
	f.OpenSession(s)
	f.Commit(0)
}

// The pid of a client that died while no sidecar ran was given to a process that lives
// for long.
//
// Shows docs/guarantees.md: A client died in the meantime, and another process has its pid.
func TestPidOfADeadClientKeepsNoLock(t *testing.T) {
	h := newHouse(t, func(c *sidecar.Config) { c.Lease = time.Hour })
	a, _ := h.hello(true, "")
	a.hold("x")
	h.stop()
	h.changeState(func(s *state.Session) {
		if s.Process == (state.Process{}) {
			t.Fatal("it is not known which process the client is")
		}
		s.Process.Pidfd, s.Process.Start = s.Process.Pidfd+1, s.Process.Start+1
	})
	h.start()
	greeted(t, h.cfg.Socket).hold("x") // or the test's deadline ends it, long before the lease does
}

// ticketFor makes the ticket of the only session in the state, for the user that the state has.
func (h *house) ticketFor() string {
	h.Helper()
	f, err := state.Open(h.cfg.Socket + ".state")
	if err != nil {
		h.Fatal(err)
	}
	defer f.Close()
	r := f.Recovered()
	mac := hmac.New(sha256.New, r.Key[:])
	mac.Write([]byte(r.UUID))
	mac.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(r.Sessions[0].ID)), uint64(r.Sessions[0].Peer.UID)))
	return fmt.Sprintf("%d.%s", r.Sessions[0].ID, base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:18]))
}

// A process that has become another user cannot resume its session. It relies on its locks until the
// deadlines that it knows.
//
// Shows docs/guarantees.md: The process changes its user.
func TestTicketShownInVainFreesNothingBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	for _, isOwn := range []bool{true, false} {
		h := newHouse(t, func(c *sidecar.Config) { c.Lease = 2 * time.Second })
		a, _ := h.hello(true, "")
		held := a.hold("x")
		h.stop()
		h.changeState(func(s *state.Session) {
			if s.Peer.UID++; !isOwn {
				other := exec.Command("cat")
				if _, err := other.StdinPipe(); err != nil || other.Start() != nil {
					t.Fatal("cat cannot be started")
				}
				t.Cleanup(func() { other.Process.Kill(); other.Wait() })
				s.Peer.PID, s.Process = int64(other.Process.Pid), state.Process{}
			}
		})
		ticket := h.ticketFor()
		h.start()
		_, m := h.hello(true, ticket)
		if m.Resumed || strings.Contains(m.Msg, "the user changed") != isOwn {
			t.Fatalf("the process of the session: %v; the answer to its ticket: %+v", isOwn, m)
		}
		greeted(t, h.cfg.Socket).hold("x")
		if now := protocol.Now(); now < held.DeadlineNS {
			t.Errorf("granted %v before the deadline", time.Duration(held.DeadlineNS-now))
		}
	}
}

// Nothing shows whether the process that has the pid is the client, so its locks are
// not renewed for an hour.
//
// Shows docs/guarantees.md: A client died in the meantime, and another process has its pid.
func TestPidThatProvesNothingKeepsALockForOneLease(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	h := newHouse(t, func(c *sidecar.Config) { c.Lease = 2 * time.Second })
	a, _ := h.hello(true, "")
	held := a.hold("x")
	h.stop()
	h.changeState(func(s *state.Session) { s.Process = state.Process{} })
	h.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	h.start()
	greeted(t, h.cfg.Socket).hold("x") // or the test's deadline ends it
	if now := protocol.Now(); now < held.DeadlineNS {
		t.Errorf("granted %v before the deadline", time.Duration(held.DeadlineNS-now))
	}
	h.stop()
	if n := strings.Count(log.String(), "still those clients"); n != 1 || !strings.Contains(log.String(), "clients=1") {
		t.Errorf("reported %d times:\n%s", n, log.String())
	}
}

func TestStateHasTheRedisAndTheSessionsThatAreOpen(t *testing.T) {
	h := newHouse(t, nil)
	ended, _ := h.hello(true, "")
	open, first := h.hello(true, "")
	ended.hold("x")
	ended.nc.Close()
	open.hold("x") // so its end is known
	open.ask(protocol.Ping{ID: 9}, new(protocol.PingOK))
	h.stop()
	f, err := state.Open(h.cfg.Socket + ".state")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := f.Recovered()
	if len(r.Sessions) != 1 || uint64(r.Sessions[0].ID) != first.Session {
		t.Errorf("sessions: %+v, want that of %+v", r.Sessions, first)
	}
	if r.Redis.FloorAt == 0 {
		t.Errorf("the successor does not know which Redis has the locks: %+v", r.Redis)
	}
}

// Shows docs/guarantees.md: The state file is gone, damaged, of another boot.
func TestWithoutStateEveryLockEndsWithItsLease(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(c *sidecar.Config) { c.State = sidecar.StateNone; c.Lease = time.Second })
	a, first := h.hello(true, "")
	held := a.hold("x")
	h.restart()
	if _, m := h.hello(true, first.Ticket); m.Resumed || m.Sidecar == first.Sidecar {
		t.Errorf("%+v after %+v", m, first)
	}
	greeted(t, h.cfg.Socket).hold("x")
	if now := protocol.Now(); now < held.DeadlineNS {
		t.Errorf("granted %v before the deadline", time.Duration(held.DeadlineNS-now))
	}
	if _, err := os.Stat(h.cfg.Socket + ".state"); err == nil {
		t.Error("there is a state file")
	}
}

func TestTwoSidecarsDoNotShareAState(t *testing.T) {
	h := newHouse(t, nil)
	cfg := h.cfg
	cfg.State = cfg.Socket + ".state"
	cfg.Socket += "2"
	if _, err := sidecar.Listen(cfg); err == nil {
		t.Fatal("two sidecars have one state file")
	} else {
		t.Log(err)
	}
	if _, err := net.Dial("unix", cfg.Socket); err == nil {
		t.Error("it listens")
	}
}

// A sidecar that is given the state file of an earlier one, after another sidecar served
// the socket without it, must not renew what clients had then.
func TestStateThatWasNotUsedForAWhileIsNotTakenUp(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]func(old string) string{
		"no state":      func(string) string { return sidecar.StateNone },
		"another state": func(old string) string { return old + "2" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, func(cfg *sidecar.Config) {
				cfg.Lease = time.Second
				cfg.State = filepath.Join(t.TempDir(), "state")
			})
			c, _ := h.hello(true, "")
			c.hold("x")
			old := h.cfg.State
			h.cfg.State = other(old)
			h.restart()
			h.cfg.State = old
			h.restart()
			again, _ := h.hello(true, "")
			again.hold("x") // once the lease of the first sidecar has ended
		})
	}
}

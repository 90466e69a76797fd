//go:build linux

package locksidecar

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestDialSendsHello(t *testing.T) {
	s := listen(t)
	for _, name := range []string{"go/" + Version, "shop/7"} {
		var options []DialOption
		if name == "shop/7" {
			options = append(options, WithClientName(name))
		}
		dialed := async(func() (*Client, error) { return Dial(context.Background(), s.path, options...) })
		p := s.accept()
		hello := expect[protocol.Hello](p)
		if hello.ID == 0 || hello.V != 1 || hello.Client != name {
			t.Errorf("sent %+v", hello)
		}
		p.send(protocol.HelloOK{ID: hello.ID, V: 1, Sidecar: "s", Version: "1", NowNS: protocol.Now()})
		c, err := dialed()
		if err != nil {
			t.Fatal(err)
		}
		s.closeClient(c)
	}
}

func TestDialRejectsInvalidOptions(t *testing.T) {
	for want, o := range map[string]DialOption{
		"WithDialPatience(-1s)":      WithDialPatience(-time.Second),
		"WithReconnectPatience(-1s)": WithReconnectPatience(-time.Second),
		"129 bytes":                  WithClientName(strings.Repeat("n", 129)),
	} {
		if _, err := Dial(context.Background(), "", o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestPatienceOfDialAndOfCallsAreApart(t *testing.T) {
	c := newClient(dialer{})
	for _, o := range []DialOption{WithDialPatience(0), WithReconnectPatience(time.Minute)} {
		if err := o.apply(c); err != nil {
			t.Fatal(err)
		}
	}
	if c.dialPatience != 0 || c.patience != time.Minute {
		t.Errorf("Dial waits %v, calls %v", c.dialPatience, c.patience)
	}
}

func TestDialErrorSaysWhatToDo(t *testing.T) {
	dir := shortDir(t)
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	missing, file := filepath.Join(dir, "missing"), filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path  string
		kind  error
		words []string
	}{
		{missing, ErrUnavailable, []string{missing, "no socket", "locksidecar serve", "LOCKSIDECAR_SOCKET"}},
		{dead, ErrUnavailable, []string{dead, "no process listens", "locksidecar serve"}},
		{file, ErrUnavailable, []string{file, "is no socket", "remove this file"}},
		{filepath.Join(dir, strings.Repeat("x", 120)), nil, []string{"107"}},
		{"redis://user:secret@localhost:6379/0", nil, []string{"redis://… is not the path of a socket", "setting redis"}},
	} {
		_, err := Dial(context.Background(), tt.path, WithDialPatience(0))
		if tt.kind != nil {
			wantKind(t, err, tt.kind)
		}
		wantText(t, err, tt.words...)
	}
	wantKind(t, errOf(Dial(context.Background(), missing, WithDialPatience(0))), os.ErrNotExist)

	// A process of root may connect to every socket. So the test makes up these errors of
	// connect.
	denied := &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}
	if err := os.Chmod(dead, 0o660); err != nil {
		t.Fatal(err)
	}
	f := connectError(dead, denied)
	wantKind(t, f, ErrDenied, os.ErrPermission)
	wantText(t, f, dead, "permission", "mode 0660", "security module", fmt.Sprint("user ", os.Geteuid()))
	for _, tt := range []struct {
		mode     fs.FileMode
		gid      uint32
		isMember bool
		want     string
	}{
		{0o660, 7, false, "mode 0660, group g); join that group"},
		{0o660, 7, true, "the mode permits it"},
		{0o666, 7, false, "the mode permits it"},
		{0o660, 0, false, "set socket_group of the sidecar"},
		{0o600, 7, true, "mode 0600); run as its user"},
	} {
		if got := permissionHint(tt.mode, tt.gid, "g", tt.isMember); !strings.Contains(got, tt.want) {
			t.Errorf("%+v: %s", tt, got)
		}
	}
	if err := os.Chmod(dead, 0o600); err != nil {
		t.Fatal(err)
	}
	wantText(t, connectError(dead, denied), "mode 0600", "run as its user")
	wantText(t, connectError(missing, denied), "ask for access to its directory")
	busy := connectError(dead, os.NewSyscallError("connect", syscall.EAGAIN))
	wantKind(t, busy, ErrUnavailable)
	wantText(t, busy, "overloaded")
	wantKind(t, connectError(dead, errors.New("odd")), ErrUnavailable)
}

func TestDialRejectsIncompatibleServer(t *testing.T) {
	s := listen(t)
	now := protocol.Now()
	for _, tt := range []struct {
		reply []byte
		kind  error
		words []string
	}{
		{protocol.Err{ID: 1, Code: protocol.Unsupported, Msg: "I speak 2 and 3"}.Append(nil), nil, []string{"version 1", "I speak 2 and 3", "install"}},
		{protocol.HelloOK{ID: 1, V: 2, Version: "9.1", NowNS: now}.Append(nil), ErrUnsupported, []string{"version 1", "9.1", "version 2", "upgrade the module of this client"}},
		{protocol.HelloOK{ID: 1, V: 0, Version: "0.0", NowNS: now}.Append(nil), ErrUnsupported, []string{"version 0", "upgrade the sidecar"}},
		{protocol.Err{ID: 1, Code: protocol.Limit, Msg: "4096 sessions"}.Append(nil), ErrLimit, []string{"4096 sessions", s.path}},
		{protocol.Err{Code: protocol.NoHello, Msg: "late"}.Append(nil), nil, []string{"late"}},
		{protocol.LeaseEvent{DeadlineNS: 1}.Append(nil), nil, []string{"not a sidecar"}},
		{[]byte("HTTP/1.1 400 Bad Request\r\n"), nil, []string{"not a sidecar", `text that begins with "HTTP"`}},
		{protocol.PingOK{ID: 1, NowNS: 1}.Append(nil), nil, []string{"not a sidecar"}},
		{[]byte("\x00\x00\x00\x01\xc0"), nil, []string{"not a sidecar"}},
		{protocol.HelloOK{ID: 1, V: 1, NowNS: now + int64(time.Hour)}.Append(nil), nil, []string{"clock", "time namespace"}},
		{protocol.HelloOK{ID: 1, V: 1, NowNS: 1}.Append(nil), nil, []string{"clock", "time namespace"}},
	} {
		dialed := async(func() (*Client, error) { return Dial(context.Background(), s.path) })
		p := s.accept()
		expect[protocol.Hello](p)
		if _, err := p.nc.Write(tt.reply); err != nil {
			t.Error(err)
		}
		_, err := dialed()
		wantText(t, err, tt.words...)
		if tt.kind != nil {
			wantKind(t, err, tt.kind)
		} else if errors.Is(err, ErrUnavailable) {
			t.Errorf("%v is ErrUnavailable", err)
		}
	}
}

// Dial waits for a sidecar that is about to start, or to restart.
func TestDialWaitsForStartingSidecar(t *testing.T) {
	s := &scriptedSidecar{t: t, path: filepath.Join(shortDir(t), "s")}
	attempts := make(chan struct{}, 1000)
	c := newClient(dialer{path: s.path, name: "test", clock: protocol.Now, watchPeriod: time.Hour})
	c.dialPatience = time.Minute
	c.dialer.connect = func(ctx context.Context, path string) (net.Conn, error) {
		defer func() { attempts <- struct{}{} }()
		return connectUnix(ctx, path)
	}
	got := async(func() (*Client, error) { return c, c.dial(context.Background()) })
	<-attempts
	<-attempts
	s.open()
	s.accept().nc.Close() // the sidecar stops again, and another one starts
	p := s.accept()
	hello := expect[protocol.Hello](p)
	p.send(protocol.Err{ID: hello.ID, Code: protocol.Unavailable, Msg: "stopping"})
	p.nc.Close()
	s.accept().answerHello()
	if _, err := got(); err != nil {
		t.Error(err)
	}
	s.closeClient(c)
}

func TestContextEndsDial(t *testing.T) {
	over, cancel := context.WithDeadline(context.Background(), time.Unix(1, 0))
	defer cancel()
	s := listen(t)
	wantKind(t, errOf(Dial(over, s.path)), context.DeadlineExceeded)

	// The context ends after the sidecar has accepted the connection.
	ctx, cancel := context.WithCancel(context.Background())
	dialed := async(func() (*Client, error) { return Dial(ctx, s.path) })
	p := s.accept()
	expect[protocol.Hello](p)
	cancel()
	wantKind(t, errOf(dialed()), context.Canceled)
	if _, err := p.frames.Next(); err == nil {
		t.Error("the connection is open")
	}
}

// A sidecar that reports a protocol error of the client keeps its holds until their deadlines,
// and nothing else.
func TestProtocolErrorReportedBySidecarEndsSession(t *testing.T) {
	s := listen(t)
	c, p := s.dial()
	held := p.lock(c, "held", 1, inOneHour())
	short := p.lock(c, "short", 2, protocol.Now()+int64(time.Millisecond))
	locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "wanted") })
	expect[protocol.Acquire](p)
	forced := async(func() (ForcedRelease, error) { return c.ForceRelease(context.Background(), "held") })
	expect[protocol.ForceRelease](p)
	p.send(protocol.Err{Code: protocol.BadFrame, Msg: "the frame is odd"})
	p.nc.Close()

	_, err := locked()
	wantKind(t, err, ErrUnavailable)
	wantText(t, err, `"wanted"`, "the frame is odd", "not held")
	_, err = forced()
	wantKind(t, err, ErrUnavailable)
	wantText(t, err, "may have happened")
	if err := held.Err(); err != nil {
		t.Errorf("the hold ended with the connection: %v", err)
	}
	<-short.Done()
	wantKind(t, short.Err(), ErrLost)

	// The next call begins a new session.
	peers := make(chan *peer, 1)
	go func() {
		p := s.accept()
		p.answerHello()
		peers <- p
	}()
	locked = async(func() (*Lock, error) { return c.Lock(context.Background(), "wanted") })
	p = <-peers
	p.grant(7, inOneHour())
	l, err := locked()
	if err != nil {
		t.Fatal(err)
	}

	err = held.Unlock()
	wantKind(t, err, ErrUnavailable)
	wantText(t, err, `"held"`, "lease ends")
	wantKind(t, held.Unlock(), ErrNotHeld)
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	if got := expect[protocol.Release](p); got.Hold != 7 {
		t.Errorf("sent %+v to the new session", got)
	}
	p.expectNothing(c)
}

func TestInvalidFrameEndsConnection(t *testing.T) {
	for name, frame := range map[string][]byte{
		"a bad frame":          []byte("\x00\x00\x00\x01\xc0"),
		"a bad length":         []byte("\xff\xff\xff\xff"),
		"an answer of its own": protocol.PingOK{ID: 2, NowNS: 1}.Append(nil),
	} {
		c, p := listen(t).dial()
		locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "a") })
		if a := expect[protocol.Acquire](p); a.ID != 2 {
			t.Fatalf("the id is %d", a.ID)
		}
		if _, err := p.nc.Write(frame); err != nil {
			t.Error(err)
		}
		if _, err := locked(); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}

	c, p := listen(t).dial()
	pinged := async(func() (string, error) { return c.Ping(context.Background()) })
	ping := expect[protocol.Ping](p)
	p.send(protocol.ReleaseOK{ID: ping.ID, Count: 1})
	_, err := pinged()
	wantKind(t, err, ErrUnavailable)
	wantText(t, err, "cannot be understood", "now_ns")
}

func TestUnknownIDsAndEventsAreIgnored(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, inOneHour())
	p.send(protocol.PingOK{ID: 999, NowNS: 1, Redis: "ok"})
	p.send(protocol.Err{ID: 998, Code: protocol.Timeout})
	p.send(protocol.LostEvent{Hold: 999, Reason: protocol.Expired})
	if _, err := p.nc.Write([]byte("\x00\x00\x00\x0c\x81\xa2ev\xa7weather")); err != nil {
		t.Error(err)
	}
	p.expectNothing(c)
	if err := l.Err(); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsCallsAndHolds(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "held", 1, inOneHour())
	done := l.Done()
	ctx, stop := l.Context(context.Background())
	defer stop()
	locked := async(func() (*Lock, error) { return c.Lock(context.Background(), "wanted") })
	expect[protocol.Acquire](p)
	closed := async(func() (any, error) { return nil, c.Close() })
	bye := expect[protocol.Bye](p)
	wantKind(t, l.Err(), ErrClosed)
	p.send(protocol.ByeOK(bye))
	if _, err := closed(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.frames.Next(); err == nil {
		t.Error("the connection is open")
	}
	wantKind(t, errOf(locked()), ErrClosed)
	<-done
	<-ctx.Done()
	wantKind(t, context.Cause(ctx), ErrClosed)
	wantKind(t, l.Err(), ErrClosed)
	wantKind(t, l.Unlock(), ErrClosed)
	wantKind(t, l.Unlock(), ErrNotHeld)
	wantKind(t, errOf(c.Lock(context.Background(), "a")), ErrClosed)
	wantKind(t, errOf(c.Ping(context.Background())), ErrClosed)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// A stopped sidecar reads nothing. However many requests wait to be written, no call waits
// longer than its context allows.
func TestStoppedSidecarDelaysNoCaller(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, inOneHour())
	ctx, cancel := context.WithCancel(context.Background())
	name := strings.Repeat("n", protocol.MaxName)
	var wg sync.WaitGroup
	for range 2000 {
		wg.Go(func() {
			if _, err := c.Lock(ctx, name); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	s := c.current.Load()
	for sent := 0; sent < 2000; runtime.Gosched() {
		s.mu.Lock()
		sent = len(s.calls)
		s.mu.Unlock()
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
	s.conn.out.mu.Lock()
	unwritten := s.conn.out.w.Unwritten()
	s.conn.out.mu.Unlock()
	if unwritten == 0 {
		t.Error("the socket took everything; the test needs one that does not")
	}

	// When the sidecar continues, it reads all requests whole.
	acquires, cancels := 0, 0
	_ = p.nc.SetReadDeadline(time.Now().Add(30 * time.Second))
	for acquires < 2000 || cancels < 2000 {
		body, err := p.frames.Next()
		if err != nil {
			t.Fatal(err)
		}
		m, err := p.decoder.Decode(body)
		if err != nil {
			t.Fatal(err)
		}
		switch m.(type) {
		case *protocol.Acquire:
			acquires++
		case *protocol.Cancel:
			cancels++
		}
	}
	p.expectNothing(c)
}

func TestOperatorRequests(t *testing.T) {
	c, p := listen(t).dial()
	ctx := context.Background()

	type info struct {
		row   LockInfo
		known bool
	}
	for _, row := range []*protocol.LockRow{nil, {Name: "a", State: protocol.StateHeld, Hold: 7, PID: 12}} {
		asked := async(func() (info, error) {
			row, known, err := c.Info(ctx, "a")
			return info{row, known}, err
		})
		req := expect[protocol.Info](p)
		p.send(protocol.InfoOK{ID: req.ID, Lock: row})
		got, err := asked()
		if err != nil || req.Name != "a" || got.known != (row != nil) || got.known && (got.row.Hold != 7 || got.row.PID != 12) {
			t.Errorf("info: %+v, %v", got, err)
		}
	}

	listed := async(func() ([]LockInfo, error) { return c.List(ctx) })
	pages := []protocol.ListOK{
		{Locks: []protocol.LockRow{{Name: "a", State: "held", Hold: 1}, {Name: "b", State: "free"}}, Next: 2},
		{Locks: []protocol.LockRow{{Name: "a", State: "held", Hold: 3}}, Next: 4},
		{Locks: []protocol.LockRow{{Name: "c", State: "busy"}}},
	}
	after := uint64(0)
	for _, page := range pages {
		req := expect[protocol.List](p)
		if req.After != after {
			t.Errorf("requested the page after %d, want %d", req.After, after)
		}
		page.ID, after = req.ID, page.Next
		p.send(page)
	}
	rows, err := listed()
	if err != nil || len(rows) != 3 || rows[0].Hold != 3 || rows[1].Name != "b" || rows[2].Name != "c" {
		t.Errorf("list: %+v, %v", rows, err)
	}

	looked := async(func() (Status, error) { return c.Status(ctx) })
	p.send(protocol.StatusOK{ID: expect[protocol.Status](p).ID, StatusRow: protocol.StatusRow{Redis: "ok", Held: 7}})
	if status, err := looked(); err != nil || status.Held != 7 {
		t.Errorf("status: %+v, %v", status, err)
	}

	read := async(func() (EventPage, error) { return c.Events(ctx, 7, true) })
	events := expect[protocol.Events](p)
	p.send(protocol.EventsOK{ID: events.ID, Events: []protocol.EventRow{{AtNS: 1, Kind: protocol.EventLost, Name: "a"}}, Next: 9, Missed: 1})
	if page, err := read(); err != nil || events.After != 7 || !events.Wait || len(page.Events) != 1 || page.Events[0].Name != "a" || page.Next != 9 || page.Missed != 1 {
		t.Errorf("events: %+v, %v; requested %+v", page, err, events)
	}

	forced := async(func() (ForcedRelease, error) { return c.ForceRelease(ctx, "a") })
	req := expect[protocol.ForceRelease](p)
	p.send(protocol.ForceReleaseOK{ID: req.ID, Hold: 7})
	if hold, err := forced(); hold != (ForcedRelease{7, 1}) || err != nil {
		t.Errorf("force_release: %d, %v", hold, err)
	}
	for code, kind := range map[protocol.Code]error{protocol.NotHeld: ErrNotHeld, protocol.Denied: ErrDenied} {
		forced = async(func() (ForcedRelease, error) { return c.ForceRelease(ctx, "a") })
		p.send(protocol.Err{ID: expect[protocol.ForceRelease](p).ID, Code: code, Msg: "no"})
		wantKind(t, errOf(forced()), kind)
	}

	freed := async(func() (OrphanedLock, error) { return c.ForceReleaseOrphaned(ctx, "a") })
	orphaned := expect[protocol.ForceReleaseOrphaned](p)
	p.send(protocol.ForceReleaseOrphanedOK{ID: orphaned.ID, Sidecar: "uuid", Hold: 7, TTLMS: 2000, Passed: true})
	if got, err := freed(); err != nil || orphaned.Name != "a" || got != (OrphanedLock{Sidecar: "uuid", Hold: 7, TTL: 2 * time.Second, Passed: true}) {
		t.Errorf("force_release_orphaned: %+v, %v", got, err)
	}
	freed = async(func() (OrphanedLock, error) { return c.ForceReleaseOrphaned(ctx, "a") })
	p.send(protocol.ForceReleaseOrphanedOK{ID: expect[protocol.ForceReleaseOrphaned](p).ID, Sidecar: "uuid", Hold: 7, TTLMS: -1})
	if got, err := freed(); err != nil || !got.Persistent || got.TTL != 0 {
		t.Errorf("force_release_orphaned: %+v, %v", got, err)
	}
	freed = async(func() (OrphanedLock, error) { return c.ForceReleaseOrphaned(ctx, "api", OfSidecar("uuid")) })
	orphaned = expect[protocol.ForceReleaseOrphaned](p)
	p.send(protocol.ForceReleaseOrphanedOK{ID: orphaned.ID, Sidecar: "uuid", Hold: 9, TTLMS: 2000, Permits: 3})
	if got, err := freed(); err != nil || orphaned.Sidecar != "uuid" || got.Permits != 3 {
		t.Errorf("%+v was answered with %+v, %v", orphaned, got, err)
	}
	freed = async(func() (OrphanedLock, error) { return c.ForceReleaseOrphaned(ctx, "a", OfSidecar("uuid")) })
	p.send(protocol.ForceReleaseOrphanedOK{ID: expect[protocol.ForceReleaseOrphaned](p).ID, Sidecar: "another", Hold: 7}) // it does not know the field
	_, err = freed()
	wantKind(t, err, ErrUnsupported)
	wantText(t, err, "older", "freed what sidecar another had in the place of uuid", "upgrade it")
	freed = async(func() (OrphanedLock, error) { return c.ForceReleaseOrphaned(ctx, "a") })
	p.send(protocol.Err{ID: expect[protocol.ForceReleaseOrphaned](p).ID, Code: protocol.Denied, Msg: "no"})
	wantKind(t, errOf(freed()), ErrDenied)

	pinged := async(func() (string, error) { return c.Ping(ctx) })
	p.send(protocol.PingOK{ID: expect[protocol.Ping](p).ID, NowNS: 1, Redis: "it is away"})
	if redis, err := pinged(); redis != "it is away" || err != nil {
		t.Errorf("ping: %q, %v", redis, err)
	}

	if _, _, err := c.Info(ctx, ""); err == nil {
		t.Error("info of an empty name")
	}
	if _, err := c.ForceRelease(ctx, "\n"); err == nil {
		t.Error("force_release of a bad name")
	}
	if _, err := c.ForceReleaseOrphaned(ctx, "\n"); err == nil {
		t.Error("force_release_orphaned of a bad name")
	}
}

func TestHoldsEndBeforeConnectionIsClosed(t *testing.T) {
	c, p := listen(t).dial()
	l := p.lock(c, "a", 1, inOneHour())
	ctx, stop := l.Context(context.Background())
	defer stop()
	if _, err := p.nc.Write([]byte("\x00\x00\x00\x01\xc0")); err != nil {
		t.Fatal(err)
	}
	// When the connection ends the sidecar grants the lock to another owner.
	if _, err := p.frames.Next(); err == nil {
		t.Fatal("the connection is open")
	}
	wantKind(t, l.Err(), ErrLost)
	wantKind(t, context.Cause(ctx), ErrLost)
	wantKind(t, l.Unlock(), ErrLost)
}

func TestUnreadRequestsAreBounded(t *testing.T) {
	c, _ := listen(t).dial()
	name := strings.Repeat("n", protocol.MaxName)
	for tries := 0; ; tries++ {
		ctx, stop := context.WithCancel(context.Background())
		time.AfterFunc(time.Microsecond, stop)
		_, err := c.Lock(ctx, name)
		if errors.Is(err, ErrUnavailable) {
			wantText(t, err, "has not read", "not sent")
			return
		}
		wantKind(t, err, context.Canceled)
		if tries > 100_000 {
			t.Fatal("no request was refused")
		}
	}
}

package main

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// fakeSidecar is a sidecar without Redis, which answers as the test chooses.
type fakeSidecar struct {
	path string

	// Fixed when it starts.
	lease     time.Duration        // of every grant; it is never renewed
	inCluster bool                 // Redis is a Cluster
	redis     func() string        // returns the status of Redis; nil: "ok"
	isFree    bool                 // no process holds nameWait
	holders   []protocol.HolderRow // of nameWait as a semaphore of 3, or as a read/write lock; nil: it is a lock
	trouble   string               // what ping reports
	risk      string               // the same
	onRelease func()               // called before a release is answered; nil: nothing
	locks     []protocol.LockRow   // the answer to list; nil: two locks
	hidden    string               // what a policy hides: the oldest hold and waiter, among others; "": nothing
	onConfirm protocol.Code        // the error of a confirm; "": it is confirmed; noAnswer: none

	acquired   chan protocol.AcquirePermits   // of a lock: Of is 0; every acquire, after it was answered or left waiting
	readWrites chan protocol.AcquireReadWrite // those of read/write locks once more
	released   chan protocol.Release          // every release, before it is answered
	confirms   chan protocol.Confirm          // every confirm, before it is answered
	followed   chan protocol.Events           // every events request that waits; it is not answered
	closed     chan struct{}                  // every end of a connection

	mu   sync.Mutex // guards conn
	conn net.Conn   // the last one
}

// noAnswer is not a code of the protocol: the fake does not answer.
const noAnswer protocol.Code = "no answer"

// Names that the fake does not grant.
const (
	nameHeld     = "held by another host"
	nameWait     = "waits forever"
	nameDenied   = "denied"
	nameNoRedis  = "no redis"
	fakeToken    = 4242
	fakeHold     = 7
	fakeWatchdog = 30_000
)

func startFake(t *testing.T, change ...func(*fakeSidecar)) *fakeSidecar {
	t.Helper()
	f := &fakeSidecar{
		path:       filepath.Join(t.TempDir(), "s.sock"),
		lease:      time.Hour,
		acquired:   make(chan protocol.AcquirePermits, 16),
		readWrites: make(chan protocol.AcquireReadWrite, 16),
		released:   make(chan protocol.Release, 16),
		confirms:   make(chan protocol.Confirm, 16),
		followed:   make(chan protocol.Events, 16),
		closed:     make(chan struct{}, 16),
	}
	for _, c := range change {
		c(f)
	}
	l, err := net.Listen("unix", f.path)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conn = c
			f.mu.Unlock()
			serving.Go(func() { f.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		f.mu.Lock()
		if f.conn != nil {
			f.conn.Close()
		}
		f.mu.Unlock()
		serving.Wait()
	})
	return f
}

func (f *fakeSidecar) serve(c net.Conn) {
	defer func() {
		c.Close()
		f.closed <- struct{}{}
	}()
	frames := protocol.NewReader(c)
	var decoder protocol.RequestDecoder
	for {
		body, err := frames.Next()
		if err != nil {
			return
		}
		request, err := decoder.Decode(body)
		if err != nil {
			return
		}
		if reply := f.answer(request); reply != nil && !f.send(c, reply) {
			return
		}
		switch a := request.(type) {
		case *protocol.Acquire:
			f.acquired <- protocol.AcquirePermits{Acquire: *a}
		case *protocol.AcquirePermits:
			f.acquired <- *a
		case *protocol.AcquireReadWrite:
			f.acquired <- protocol.AcquirePermits{Acquire: a.Acquire}
			f.readWrites <- *a
		}
	}
}

func (f *fakeSidecar) answer(request protocol.Request) protocol.Reply {
	switch r := request.(type) {
	case *protocol.Hello:
		return protocol.HelloOK{ID: r.ID, V: protocol.Version, Sidecar: "fake", Version: "0", Session: 1, LeaseMS: fakeWatchdog, NowNS: protocol.Now()}
	case *protocol.Acquire:
		return f.answerAcquire(&protocol.AcquirePermits{Acquire: *r})
	case *protocol.AcquireReadWrite:
		reply := f.answerAcquire(&protocol.AcquirePermits{Acquire: r.Acquire})
		if ok, isGranted := reply.(protocol.AcquireOK); isGranted {
			ok.Shared = r.Shared
			reply = ok
		}
		return reply
	case *protocol.AcquirePermits:
		return f.answerAcquire(r)
	case *protocol.Release:
		if f.onRelease != nil {
			f.onRelease()
		}
		f.released <- *r
		if r.ID == 0 {
			return nil
		}
		return protocol.ReleaseOK{ID: r.ID}
	case *protocol.Confirm:
		f.confirms <- *r
		switch f.onConfirm {
		case "":
			return protocol.ConfirmOK{ID: r.ID}
		case noAnswer:
			return nil
		}
		return protocol.Err{ID: r.ID, Code: f.onConfirm, Msg: "Redis refused the release"}
	case *protocol.Cancel:
		if r.ID == 0 {
			return nil
		}
		return protocol.CancelOK{ID: r.ID, Canceled: true}
	case *protocol.ForceRelease:
		switch {
		case r.Name == nameHeld && (r.Hold == 0 || r.Hold == fakeHold):
			return protocol.ForceReleaseOK{ID: r.ID, Hold: fakeHold}
		case r.Name == nameWait && r.Hold == 0:
			return protocol.ForceReleaseOK{ID: r.ID, Hold: fakeHold, Count: 3}
		}
		return protocol.Err{ID: r.ID, Code: protocol.NotHeld, Msg: "it is not held"}
	case *protocol.ForceReleaseOrphaned:
		switch r.Name {
		case nameHeld:
			return protocol.ForceReleaseOrphanedOK{ID: r.ID, Sidecar: "1f0c9d5e", Hold: fakeHold, TTLMS: 7_200_000, Passed: true}
		case nameDenied:
			return protocol.Err{ID: r.ID, Code: protocol.Denied, Msg: "it may be alive"}
		case "changed":
			return protocol.Err{ID: r.ID, Code: protocol.NotHeld, Msg: "it changed its owner"}
		case "unknown":
			return protocol.Err{ID: r.ID, Code: protocol.Unavailable, Msg: "Redis has not answered"}
		}
		return protocol.Err{ID: r.ID, Code: protocol.Unsupported, Msg: "this sidecar does not know this op"}
	case *protocol.List:
		if f.locks != nil {
			return protocol.ListOK{ID: r.ID, Locks: f.locks}
		}
		if f.hidden != "" {
			return protocol.ListOK{ID: r.ID, Locks: []protocol.LockRow{
				{Name: "theirs", State: protocol.StateHeld, HeldMS: 90_000, Waiting: 2, Waiters: []protocol.WaiterRow{{Session: 1, PID: 1, UID: 0, Cmd: "mine", WaitedMS: 9_000}}},
				{Name: "young", State: protocol.StateHeld, Session: 1, PID: 1, Cmd: "mine", HeldMS: 5_000},
				{Name: "old", State: protocol.StateHeld, Session: 1, PID: 1, Cmd: "mine", HeldMS: 7_000},
			}}
		}
		return protocol.ListOK{ID: r.ID, Locks: []protocol.LockRow{
			{Name: "b", State: protocol.StateHeld, Hold: fakeHold, Token: fakeToken, Count: 1, PID: 1, Cmd: "init", DeadlineNS: protocol.Now() + int64(f.lease), InCluster: f.inCluster, Slot: 3300},
			{Name: "a", State: protocol.StateBusy, InCluster: f.inCluster},
		}}
	case *protocol.Events:
		// There are two, which are sent one at a time.
		names := []string{"first", "second"}
		switch {
		case r.After < 2:
			return protocol.EventsOK{ID: r.ID, Next: r.After + 1, Missed: 7 * (1 - r.After), Events: []protocol.EventRow{
				{AtNS: protocol.Now(), Kind: protocol.EventForced, Name: "ab"[r.After:][:1], Session: 1, PID: 1, Cmd: names[r.After]},
			}}
		case r.Wait:
			f.followed <- *r
			return nil
		}
		return protocol.EventsOK{ID: r.ID, Next: r.After, Hidden: f.hidden}
	case *protocol.Status:
		now := protocol.Now()
		if f.hidden != "" {
			return protocol.StatusOK{ID: r.ID, StatusRow: protocol.StatusRow{NowNS: now, StartedNS: now - int64(2*time.Second), Version: "0", Redis: "ok", Held: 3, Waiting: 2, Hidden: f.hidden}}
		}
		return protocol.StatusOK{ID: r.ID, StatusRow: protocol.StatusRow{
			NowNS: now, StartedNS: now - int64(2*time.Second), Version: "0.0.0-fake", Redis: "ok", Sessions: 1, Held: 1, Waiting: 1,
			OldestWaiter: &protocol.AgeRow{Name: nameWait, Session: 1, AgeMS: 10},
		}}
	case *protocol.Ping:
		redis := "ok"
		if f.redis != nil {
			redis = f.redis()
		}
		return protocol.PingOK{ID: r.ID, NowNS: protocol.Now(), Redis: redis, Trouble: f.trouble, RedisRisk: f.risk, RedisAddress: "127.0.0.1:6379/0"}
	case *protocol.Who:
		if f.redis != nil {
			return protocol.WhoOK{ID: r.ID, WhoRow: protocol.WhoRow{Redis: f.redis()}}
		}
		return protocol.WhoOK{ID: r.ID, WhoRow: protocol.WhoRow{Redis: "ok", Key: protocol.KeyFree}}
	case *protocol.Info:
		if f.hidden != "" {
			return protocol.InfoOK{ID: r.ID, Lock: &protocol.LockRow{Name: r.Name, State: protocol.StateHeld, HeldMS: 90_000}}
		}
		if f.holders != nil {
			row := &protocol.LockRow{Name: r.Name, Kind: protocol.KindPermits, State: protocol.StateHeld, Of: 3, Holders: f.holders}
			if f.holders[0].Permits == 0 {
				row.Kind, row.Of, row.PID = protocol.KindReadWrite, 0, f.holders[0].PID
			}
			return protocol.InfoOK{ID: r.ID, Lock: row}
		}
		if r.Name == nameWait && !f.isFree {
			return protocol.InfoOK{ID: r.ID, Lock: &protocol.LockRow{Name: r.Name, State: protocol.StateHeld, PID: int64(os.Getpid()), Cmd: "the test"}}
		}
		return protocol.InfoOK{ID: r.ID}
	default:
		return protocol.Err{ID: request.RequestID(), Code: protocol.Unsupported, Msg: "not faked"}
	}
}

func (f *fakeSidecar) answerAcquire(r *protocol.AcquirePermits) protocol.Reply {
	switch r.Name {
	case nameWait:
		return nil
	case nameHeld:
		return protocol.Err{ID: r.ID, Code: protocol.Timeout, Msg: "another host holds it"}
	case nameDenied:
		return protocol.Err{ID: r.ID, Code: protocol.Denied, Msg: "Redis does not permit this key"}
	case nameNoRedis:
		return protocol.Err{ID: r.ID, Code: protocol.Unavailable, Msg: "Redis cannot be reached"}
	}
	return protocol.AcquireOK{ID: r.ID, Token: fakeToken, Hold: fakeHold, Count: 1, DeadlineNS: protocol.Now() + int64(f.lease), Permits: r.Permits, Of: r.Of}
}

func (f *fakeSidecar) send(c net.Conn, m protocol.Reply) bool {
	_, err := c.Write(m.Append(nil))
	return err == nil
}

// event sends the last client an event.
func (f *fakeSidecar) event(t *testing.T, m protocol.Reply) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.send(f.conn, m) {
		t.Fatalf("cannot send %+v", m)
	}
}

// drop ends the last client's connection.
func (f *fakeSidecar) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn.Close()
}

package sidecar

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/intake"
)

// connPair returns a connection and the client's end of it.
func connPair(t *testing.T) (*conn, net.Conn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	nc, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	c, err := newConn(nc, new(atomic.Int64))
	if err != nil {
		t.Fatal(err)
	}
	return c, client
}

// What is said on a connection that has ended is not unread: no client will read it.
func TestAnswersOfAnEndedConnectionAreNotUnread(t *testing.T) {
	c, _ := connPair(t)
	c.queueReply(&protocol.PingOK{ID: 1})
	c.end()
	c.queueReply(&protocol.PingOK{ID: 2})
	c.queueLease(&protocol.LeaseEvent{DeadlineNS: 1 << 40})
	c.queueLease(&protocol.LeaseEvent{DeadlineNS: 2 << 40})
	c.flush()
	if n := c.unread.Load(); n != 0 {
		t.Errorf("%d bytes count as unread", n)
	}
}

// A `lease` event speaks of the holds that were granted before it, so the newest
// one stands behind all grants that it covers, and the older ones are not sent.
func TestSlowReaderGetsTheNewestLeaseAfterTheGrantsItCovers(t *testing.T) {
	c, client := connPair(t)
	c.queueLease(&protocol.LeaseEvent{DeadlineNS: 1 << 40})
	c.queueReply(&protocol.AcquireOK{ID: 7, Hold: 9, Token: 3, Count: 1, DeadlineNS: 1 << 40})
	c.queueLease(&protocol.LeaseEvent{DeadlineNS: 2 << 40})
	c.queueLease(&protocol.LeaseEvent{DeadlineNS: 3 << 40})
	c.queueReply(&protocol.LostEvent{Hold: 9, Reason: protocol.Expired})
	c.flush()
	c.end()

	var got []string
	frames := protocol.NewReader(client)
	var dec protocol.ReplyDecoder
	for {
		body, err := frames.Next()
		if err != nil {
			break
		}
		m, err := dec.Decode(body)
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *protocol.Answer:
			got = append(got, "grant")
		case *protocol.LostEvent:
			got = append(got, "lost")
		case *protocol.LeaseEvent:
			got = append(got, "lease")
			if m.DeadlineNS != 3<<40 {
				t.Errorf("deadline %d is not the newest", m.DeadlineNS)
			}
		}
	}
	if want := []string{"grant", "lease", "lost"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A stop may come before the reader of a new connection has begun, or right after it has
// read hello: the deadline that the reader sets must not undo the end.
func TestReaderOfAConnectionThatWasHungUpEnds(t *testing.T) {
	c, _ := connPair(t)
	r := &readers{loop: &loop{inbox: intake.New[event, request]()}}
	c.hangUp(&stopping)
	began := time.Now()
	if fault := r.read(c); fault != nil || time.Since(began) >= protocol.HelloTimeout {
		t.Errorf("the reader waited for hello for %v: %v", time.Since(began), fault)
	}
	c.readUntil(time.Time{})
	if _, err := c.nc.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read after that: %v", err)
	}
}

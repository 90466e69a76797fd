package sidecar

import (
	"net"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

// A `lease` event speaks of the holds that were granted before it, so the newest
// one stands behind all grants that it covers, and the older ones are not sent.
func TestASlowReaderGetsTheNewestLeaseBehindTheGrantsItCovers(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	nc, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	c, err := newConn(nc, new(atomic.Int64))
	if err != nil {
		t.Fatal(err)
	}
	c.sayLease(&protocol.LeaseEvent{DeadlineNS: 1 << 40})
	c.say(&protocol.AcquireOK{ID: 7, Hold: 9, Token: 3, Count: 1, DeadlineNS: 1 << 40})
	c.sayLease(&protocol.LeaseEvent{DeadlineNS: 2 << 40})
	c.sayLease(&protocol.LeaseEvent{DeadlineNS: 3 << 40})
	c.say(&protocol.LostEvent{Hold: 9, Reason: protocol.Expired})
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

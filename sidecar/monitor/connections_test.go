package monitor

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func (l *limitedListener) admitted(t *testing.T, party string) *limitedConn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	c := &limitedConn{Conn: near, listener: l, party: party}
	if _, isIn := l.admit(c, time.Now()); !isIn {
		t.Fatal("there is no place")
	}
	time.Sleep(time.Millisecond)
	return c
}

func (l *limitedListener) has(c *limitedConn) bool {
	_, has := l.open[c]
	return has
}

func TestNewConnectionTakesThePlaceOfTheSlowestOfTheLargestParty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimitedListener(nil)
		other := l.admitted(t, "scraper")
		answered := l.admitted(t, "many")
		answered.take(sidecarMakes)
		slowest := l.admitted(t, "many")
		for len(l.open) < maxConns {
			l.admitted(t, "many")
		}
		time.Sleep(headStart)
		l.admitted(t, "many")
		if l.has(slowest) || !l.has(other) || !l.has(answered) || len(l.open) != maxConns {
			t.Errorf("of %d connections, the slowest is there: %v; the other party: %v; one that waits for its answer: %v", len(l.open), l.has(slowest), l.has(other), l.has(answered))
		}
		_ = slowest.Conn.SetDeadline(time.Now())
		if _, err := slowest.Conn.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the connection without a place is open: %v", err)
		}
	})
}

// A connection has a moment for its request, and as long as it takes for its answer.
func TestConnectionsHaveAHeadStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimitedListener(nil)
		near, far := net.Pipe()
		defer far.Close()
		late := &limitedConn{Conn: near, listener: l, party: "a"}
		for range maxConns {
			l.admit(&limitedConn{Conn: near, listener: l, party: "a"}, time.Now())
		}
		if wait, isIn := l.admit(late, time.Now()); isIn || wait != headStart {
			t.Errorf("new connections are closed at once: %v; wait %v", isIn, wait)
		}
		for c := range l.open {
			c.take(sidecarMakes)
		}
		time.Sleep(time.Minute)
		if _, isIn := l.admit(late, time.Now()); isIn {
			t.Error("a connection that waits for the sidecar is closed")
		}
		for c := range l.open {
			c.take(readerReads)
			break
		}
		time.Sleep(headStart)
		if _, isIn := l.admit(late, time.Now()); !isIn || len(l.open) != maxConns {
			t.Errorf("a reader that does not read keeps a place: %v; %d connections", !isIn, len(l.open))
		}
	})
}

// A process can choose its address among all loopback addresses, and a host among those of its IPv6
// network. Otherwise each of its connections would be a party.
func TestAddressesThatOnePeerCanChooseAreOneParty(t *testing.T) {
	for _, tt := range []struct {
		a, b  string
		isOne bool
	}{
		{"127.0.0.1:1", "127.0.0.2:2", true},
		{"127.0.0.1:1", "[::1]:2", true},
		{"127.0.0.1:1", "[::ffff:127.0.0.3]:2", true},
		{"10.0.0.1:1", "10.0.0.1:2", true},
		{"10.0.0.1:1", "[::ffff:10.0.0.1]:2", true},
		{"10.0.0.1:1", "10.0.0.2:1", false},
		{"10.0.0.1:1", "127.0.0.1:1", false},
		{"[2001:db8::1]:1", "[2001:db8::2]:1", true},
		{"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
	} {
		if isOne := partyOfAddress(tt.a) == partyOfAddress(tt.b); isOne != tt.isOne {
			t.Errorf("%s and %s are one party: %v, want %v", tt.a, tt.b, isOne, tt.isOne)
		}
	}
}

package harness

import (
	"errors"
	"net"
	"testing"
	"time"
)

// A test draws the same numbers in each run, and others with another seed.
func TestRandomNumbersDependOnTheSeedAlone(t *testing.T) {
	draw := func(seed string) uint64 {
		t.Setenv(seedVar, seed)
		return Random(t).Uint64()
	}
	if a, b := draw(""), draw(""); a != b {
		t.Errorf("one run draws %d, the next one %d", a, b)
	}
	if a, b := draw(""), draw("4711"); a == b {
		t.Errorf("with another seed, %d is drawn again", a)
	}
}

// A server that is stopped finds its port free, whatever ports other tests have drawn meanwhile.
func TestPortStaysThatOfItsTest(t *testing.T) {
	t.Parallel()
	var reserved *net.UnixListener
	t.Run("a test", func(t *testing.T) {
		var port int
		port, reserved = reservePort(t)
		if l, err := net.Listen("unix", reservation(port)); err == nil {
			l.Close()
			t.Errorf("another process can reserve port %d", port)
		}
	})
	// Not by listening there again: another process may have reserved the port since.
	if err := reserved.SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the port is reserved after the test: %v", err)
	}
}

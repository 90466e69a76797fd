//go:build linux

package locksidecar

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeNetwork connects a Client to a fakeSidecar in virtual time, and can fail.
type fakeNetwork struct {
	*fakeSidecar
	mu       sync.Mutex
	failure  error // of connect; nil: it connects
	attempts []time.Time
}

// fail ends all connections, and makes connect return an error.
func (n *fakeNetwork) fail(why error) {
	n.setFailure(why)
	n.disconnectAll()
	synctest.Wait()
}

// restore makes connect work again.
func (n *fakeNetwork) restore() {
	n.setFailure(nil)
	synctest.Wait()
}

func (n *fakeNetwork) setFailure(why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failure, n.attempts = why, nil
}

func (n *fakeNetwork) connect(context.Context, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attempts = append(n.attempts, time.Now())
	if n.failure != nil {
		return nil, n.failure
	}
	ours, theirs := net.Pipe()
	n.wg.Go(func() { n.serve(theirs) })
	return ours, nil
}

// tried returns how often the Client has tried to connect since the last fail or restore.
func (n *fakeNetwork) tried() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.attempts)
}

// inVirtualTime runs a test in a synctest bubble, with a Client of a fakeSidecar.
func inVirtualTime(t *testing.T, test func(t *testing.T, c *Client, network *fakeNetwork)) {
	synctest.Test(t, func(t *testing.T) {
		network := &fakeNetwork{fakeSidecar: newFakeSidecar()}
		network.clock = func() int64 { return time.Now().UnixNano() }
		c := newClient(dialer{path: "/fake", name: "test", clock: network.clock, connect: network.connect})
		if err := c.dial(t.Context()); err != nil {
			t.Fatal(err)
		}
		test(t, c, network)
		checkInvariants(t, c)
		network.restore()
		c.Close()
		checkInvariants(t, c)
		<-c.current.Load().done
		checkInvariants(t, c)
		network.disconnectAll()
		network.wg.Wait()
		if network.violation != "" {
			t.Error(network.violation)
		}
	})
}

func mustLock(t *testing.T, c *Client, name string, options ...Option) *Lock {
	t.Helper()
	l, err := c.Lock(context.Background(), name, options...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

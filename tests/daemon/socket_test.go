package daemon

import (
	"os"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// A daemon whose socket was removed makes it again, and keeps what its clients hold.
func TestRemovedSocketIsMadeAgain(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	c := harness.Dial(t, d)
	held, err := c.Lock(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.Socket); err != nil {
		t.Fatal(err)
	}
	d.AwaitSocket()
	if err := held.Err(); err != nil {
		t.Errorf("the lock that was held: %v", err)
	}
	other := harness.Dial(t, d)
	if _, err := other.TryLock(t.Context(), "held"); err == nil {
		t.Error("a client of the new socket was granted the lock, too")
	}
	d.Log.AwaitWords(t, "the socket was removed, and is made again")
	other.Close()
	c.Close()
	d.Terminate()
	if _, err := os.Lstat(d.Socket); err == nil {
		t.Error("the daemon left its socket behind")
	}
}

// A daemon replaces the socket that a killed one has left.
func TestStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	d.Kill()
	if _, err := os.Stat(d.Socket); err != nil {
		t.Fatalf("the killed daemon left no socket: %v", err)
	}
	_, err := locksidecar.Dial(t.Context(), d.Socket)
	harness.CheckError(t, err, locksidecar.ErrUnavailable, d.Socket)
	d.Start()
	d.AwaitSocket()
	d.AwaitRedis("ok")
}

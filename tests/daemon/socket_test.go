package daemon

import (
	"os"
	"path/filepath"
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

// A program that cleans up removes the directory of the socket. The daemon makes all of it again, and what it
// wrote into the new state is there after its sudden end.
//
// Shows deploy/README.md: Restarts and settings.
func TestRemovedDirectoryLosesNoLock(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	c := harness.Dial(t, d)
	before, err := c.Lock(t.Context(), "before")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(d.Socket)); err != nil {
		t.Fatal(err)
	}
	d.Log.AwaitWords(t, "the socket was removed, and is made again", "the state was removed, and is written again")
	after, err := c.Lock(t.Context(), "after")
	if err != nil {
		t.Fatal(err)
	}
	d.Kill()
	d.Start()
	d.AwaitSocket()
	d.AwaitRedis("ok")
	d.Log.AwaitWords(t, "took over from the sidecar before")
	other := harness.Dial(t, d)
	for _, lock := range []*locksidecar.Lock{before, after} {
		if _, err := other.TryLock(t.Context(), lock.Name()); err == nil {
			t.Errorf("%q was granted twice", lock.Name())
		}
		harness.Eventually(t, "the client has resumed its session", func() bool { return lock.Unlock() == nil })
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

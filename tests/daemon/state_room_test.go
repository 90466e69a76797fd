package daemon

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// smallFileSystem mounts a file system of size bytes. It returns its directory and an empty
// file in it, for fillUp.
func smallFileSystem(t *testing.T, size int) (dir string, filler *os.File) {
	t.Helper()
	dir = harness.ShortDir(t)
	if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Skipf("no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		filler.Close()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	return dir, filler
}

// fillUp writes to a file until its file system is full.
func fillUp(t *testing.T, f *os.File) {
	t.Helper()
	for b := make([]byte, 4096); ; {
		if _, err := f.Write(b); err != nil {
			if pe, ok := err.(*os.PathError); !ok || pe.Err != syscall.ENOSPC {
				t.Fatal(err)
			}
			return
		}
	}
}

// The file system of the state file is full for a while, so that the file does not have all
// locks. When there is room again, a daemon that is killed loses none of them.
//
// Shows docs/guarantees.md: The file system of the state file is full.
func TestRestartLosesNoLockAfterAFullFileSystem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  string
		after func(t *testing.T, filler *os.File, locks []*locksidecar.Lock) (left []*locksidecar.Lock)
	}{
		{"there is room again", func(t *testing.T, filler *os.File, locks []*locksidecar.Lock) []*locksidecar.Lock {
			if err := filler.Truncate(0); err != nil {
				t.Fatal(err)
			}
			return locks
		}},
		{"what is not stored is released", func(t *testing.T, _ *os.File, locks []*locksidecar.Lock) []*locksidecar.Lock {
			const stored = 100 // of the first ones, at least
			for _, l := range locks[stored:] {
				if err := l.Unlock(); err != nil {
					t.Fatal(err)
				}
			}
			return locks[:stored]
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			r := harness.StartRedis(t)
			dir, filler := smallFileSystem(t, 512<<10)
			d := harness.NewDaemon(t, r.UnixURL())
			d.Socket = filepath.Join(dir, "s.sock")
			d.Start(harness.LongLease)
			d.AwaitSocket()
			d.AwaitRedis("ok")
			client := harness.Dial(t, d)
			defer client.Close() // while the daemon runs
			fillUp(t, filler)

			var locks []*locksidecar.Lock
			fields := make(map[string]map[string]string)
			for i := range 1000 { // the state file has room for 480 at first
				l, err := client.Lock(t.Context(), fmt.Sprintf("lock-%d", i))
				if err != nil {
					t.Fatal(err)
				}
				locks = append(locks, l)
				fields[l.Name()] = r.HGetAll(t.Context(), l.Name()).Val()
			}
			harness.Eventually(t, "the log reports that something is missing", func() bool { return d.Log.Contains("does not have every lock") })
			if out := d.Run("status"); !strings.Contains(out.Stdout, "a restart of the sidecar would end all locks of this host") {
				t.Errorf("status says nothing of the state file: %s", out.Stdout)
			}
			if out := d.Run("ping"); out.Code != 74 || !strings.Contains(out.Stderr, "a restart of the sidecar would end all locks of this host") {
				t.Errorf("ping ends with %d: %s", out.Code, out.Stderr)
			}
			locks = c.after(t, filler, locks)
			harness.Eventually(t, "the log reports that everything is stored", func() bool { return d.Log.Contains("has every lock and client again") })
			if out := d.Run("status"); strings.Contains(out.Stdout, "TROUBLE") {
				t.Errorf("status still says: %s", out.Stdout)
			}
			if out := d.Run("ping"); out.Code != 0 {
				t.Errorf("ping still ends with %d: %s", out.Code, out.Stderr)
			}

			d.Kill()
			d.Start(harness.LongLease)
			d.AwaitSocket()
			d.AwaitRedis("ok")
			if _, err := client.Lock(t.Context(), "one more"); err != nil { // the session is resumed
				t.Fatal(err)
			}
			if before, now := uuidOf(t, fields["lock-0"]), uuidOf(t, r.HGetAll(t.Context(), "one more").Val()); before != now {
				t.Errorf("the daemon's uuid was %s, after the restart it is %s", before, now)
			}
			for _, l := range locks {
				if err := l.Err(); err != nil {
					t.Fatalf("%s: %v", l.Name(), err)
				}
				if now := r.HGetAll(t.Context(), l.Name()).Val(); !maps.Equal(now, fields[l.Name()]) {
					t.Fatalf("%s: Redis has %v, before the restart it had %v", l.Name(), now, fields[l.Name()])
				}
				if row, ok, err := client.Info(t.Context(), l.Name()); err != nil || !ok || row.Token != l.Token() {
					t.Fatalf("%s: the daemon has %+v, %v; its token is %d", l.Name(), row, err, l.Token())
				}
			}
		})
	}
}

// uuidOf returns the uuid of the daemon in the field of a lock.
func uuidOf(t *testing.T, fields map[string]string) string {
	t.Helper()
	for field := range fields {
		if uuid, _, ok := strings.Cut(field, ":"); ok {
			return uuid
		}
	}
	t.Fatalf("no field of a daemon in %v", fields)
	return ""
}

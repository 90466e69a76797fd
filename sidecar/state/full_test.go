package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fill keeps locks until one finds no room.
func fill(f *File) (n int, at []uint32) {
	for {
		r := benchLock(fmt.Sprintf("lock:%d", n), uint64(n+1))
		slot := f.KeepLock(0, &r)
		if slot == 0 {
			return n, at
		}
		at = append(at, slot)
		n++
	}
}

func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	h := thisHost()
	now, room, tries := int64(1), int64(2*minSize), 0
	h.now = func() int64 { return now }
	h.allocate = func(fd int, off, n int64) error {
		tries++
		if off+n > room {
			return unix.ENOSPC
		}
		return allocate(fd, off, n)
	}
	f := mustOpen(t, path, h)
	n, at := fill(f)
	if n != 2*minSize/cellSize-firstCell {
		t.Errorf("%d locks in %d bytes", n, room)
	}
	if why := f.Full(); !strings.Contains(why, "no space left on device") || !strings.Contains(why, path) {
		t.Error(why)
	}
	before := tries
	for range 100 {
		if m, _ := fill(f); m != 0 || f.Full() != "" {
			t.Fatal("it took more, or said so again")
		}
	}
	if tries != before {
		t.Errorf("%d more attempts to grow at one time", tries-before)
	}

	// What is there already can change, and a free cell can be used.
	r := benchLock("lock:0", 1000)
	if f.KeepLock(at[0], &r) != at[0] {
		t.Error("no room for a lock that has room")
	}
	// A name that takes two cells finds one: nothing of it is left.
	f.ForgetLock(at[1])
	r.Name = strings.Repeat("n", 40)
	if f.KeepLock(0, &r) != 0 {
		t.Error("two cells in one")
	}
	r.Name = "lock:1"
	if f.KeepLock(0, &r) == 0 {
		t.Error("the cell is not free any more")
	}
	// A lock that gets a name for which there is no room is not kept any more.
	r = benchLock(strings.Repeat("m", 200), 1001)
	if f.KeepLock(at[2], &r) != 0 {
		t.Error("three cells in one")
	}
	// A session that finds no room is not there; opened again, it is gone.
	r = benchLock("lock:2", 1002)
	at[2] = f.KeepLock(0, &r)
	s := Session{}
	s.ID = 5
	f.OpenSession(s)
	f.KeepSession(s.SessionRecord)
	f.CloseSession(5)
	f.ForgetLock(at[2])
	f.OpenSession(s)
	f.OpenSession(s) // what it is needs no room
	if len(f.sessions) != 1 {
		t.Error("a session that comes back needs room")
	}
	s.Peer.PID = 7
	f.OpenSession(s)
	if len(f.sessions) != 0 {
		t.Error("a session has room beside itself")
	}

	now += retryAfter
	room = 4 * minSize
	if more, _ := fill(f); more <= 2*minSize/cellSize {
		t.Errorf("%d more when there was room", more)
	}
	if f.Full() == "" {
		t.Error("it does not say that it is full again")
	}
	f.Close()

	// It does not know of everything that was held: nothing of it is taken over.
	left := mustOpen(t, path, h).Left()
	if !left.Fresh || !strings.Contains(left.Why, "no room for everything") {
		t.Errorf("%+v", left)
	}
	h.allocate = func(int, int64, int64) error { return unix.ENOSPC }
	if _, err := open(path+"2", h); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "make room") {
		t.Error(err)
	}
}

func TestGreatestSize(t *testing.T) {
	h := thisHost()
	h.allocate = func(int, int64, int64) error { return nil } // its pages are not touched
	f := mustOpen(t, filepath.Join(t.TempDir(), "state"), thisHost())
	f.host = h
	for f.end < maxSize/cellSize {
		if !f.grow() {
			t.Fatal(f.Full())
		}
	}
	if f.grow() || !strings.Contains(f.Full(), "greatest size") {
		t.Error("it grew beyond its mapping")
	}
}

// A file system that cannot allocate is written to.
func TestFileSystemWithoutAllocation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	h := thisHost()
	h.allocate = func(int, int64, int64) error { return unix.EOPNOTSUPP }
	w, _ := aWorld(t, path, h)
	f := mustOpen(t, path, h)
	mustBe(t, f, w)
	for i := range 3 * minSize / cellSize {
		r := benchLock(fmt.Sprintf("lock:%d", i), uint64(100+i))
		if f.KeepLock(0, &r) == 0 {
			t.Fatal(f.Full())
		}
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Blocks*512 < st.Size {
		t.Errorf("%d bytes have %d blocks, %v", st.Size, st.Blocks, err)
	}
}

// A real file system with no room, where a store beyond it would be SIGBUS.
func TestFullFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "state")
	f := mustOpen(t, path, thisHost())
	n, _ := fill(f)
	why := f.Full()
	if n < minSize/cellSize-firstCell || !strings.Contains(why, "no space left on device") {
		t.Errorf("%d locks: %s", n, why)
	}
	f.Close()
	if left := mustOpen(t, path, thisHost()).Left(); !left.Fresh {
		t.Error("it was taken over, though not everything was in it")
	}
	if _, err := Open(filepath.Join(dir, "other")); err != nil && !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
}

// Beyond the limit of file sizes the kernel would kill the process.
func TestFileSizeLimit(t *testing.T) {
	out, err := child(t, "limited", filepath.Join(t.TempDir(), "state")).Output()
	if err != nil || !strings.Contains(string(out), "file too large") {
		t.Errorf("%v: %s", err, out)
	}
}

func childIsLimited(path string) {
	limit := unix.Rlimit{Cur: 3 * minSize, Max: 3 * minSize}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		childFails(err)
	}
	f, err := Open(path)
	if err != nil {
		childFails(err)
	}
	if n, _ := fill(f); n == 0 {
		childFails("no lock was kept")
	}
	fmt.Fprintln(os.Stdout, f.Full())
	f.Close()
}

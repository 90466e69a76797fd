package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
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

// limited is a host whose file system has room for files of so many bytes, and a clock
// that stands still.
type limited struct {
	host
	time, room int64
	attempts   int // to grow the file
}

func newLimited(room int64) *limited {
	l := &limited{host: thisHost(), time: 1, room: room}
	l.now = func() int64 { return l.time }
	l.allocate = func(fd int, off, n int64) error {
		l.attempts++
		if off+n > l.room {
			return unix.ENOSPC
		}
		return allocate(fd, off, n)
	}
	return l
}

// mustReport expects Gap to report, once, so many locks and sessions without room.
func mustReport(t *testing.T, f *File, locks, sessions int) {
	t.Helper()
	gap, news := f.Gap()
	switch {
	case !news || gap.Locks != locks || gap.Sessions != sessions:
		t.Errorf("reported: %v, %+v; want %d locks and %d sessions without room", news, gap, locks, sessions)
	case locks+sessions == 0 && gap != Gap{}:
		t.Errorf("the file has everything, and the report is %+v", gap)
	case locks+sessions > 0 && (!strings.Contains(gap.Reason, "no space left on device; make room") || !strings.Contains(gap.Reason, f.path)):
		t.Errorf("the reason does not say what happened and what to do: %s", gap.Reason)
	}
	if gap, news := f.Gap(); news {
		t.Errorf("reported twice: %+v", gap)
	}
}

// mustBeIncomplete expects a successor to find that something is missing, or not.
func mustBeIncomplete(t *testing.T, f *File, want bool) {
	t.Helper()
	if got := f.img[hIncomplete] != 0; got != want {
		t.Errorf("the file is marked as incomplete: %v; want %v", got, want)
	}
}

func TestFullDiskIsReportedOnceAndTriedOnceASecond(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l := newLimited(2 * minSize)
	f := mustOpen(t, path, l.host)
	n, at := fill(f)
	if n != 2*minSize/cellSize-firstCell {
		t.Errorf("%d locks in %d bytes", n, l.room)
	}
	f.Commit(1)
	mustReport(t, f, 1, 0)
	before := l.attempts
	for range 100 {
		if m, _ := fill(f); m != 0 {
			t.Fatal("it took more")
		}
		f.Commit(1)
		if _, news := f.Gap(); news {
			t.Fatal("reported twice")
		}
	}
	if l.attempts != before {
		t.Errorf("%d more attempts to grow at one time", l.attempts-before)
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

	l.time += retryAfter
	l.room = 4 * minSize
	if more, _ := fill(f); more <= 2*minSize/cellSize {
		t.Errorf("%d more when there was room", more)
	}
	f.Commit(1)
	mustBeIncomplete(t, f, true)
	f.Close()

	// It does not have everything that was held: nothing of it is restored.
	left := mustOpen(t, path, l.host).Left()
	if !left.Fresh || !strings.Contains(left.Why, "incomplete") {
		t.Errorf("%+v", left)
	}
	l.room = 0
	if _, err := open(path+"2", l.host); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "make room") {
		t.Error(err)
	}
}

// The file system is full for a while. When it is not any more, a successor restores
// everything, under the same uuid.
func TestFileIsCompleteAgainWhenThereIsRoom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l := newLimited(minSize)
	f := mustOpen(t, path, l.host)
	uuid, w := f.Left().UUID, emptyWorld()
	keep := func(n int) uint32 {
		name := fmt.Sprintf("lock:%d", n)
		r := benchLock(name, uint64(n+1))
		w.locks[name], w.last = r, max(w.last, r.Top)
		return f.KeepLock(0, &r)
	}
	stored := 0
	for ; keep(stored) != 0; stored++ {
	}
	missing := []int{stored, stored + 1}
	if keep(stored+1) != 0 {
		t.Fatal("there is room")
	}
	s := Session{SessionRecord: locktable.SessionRecord{ID: 1, Told: 7}, Resumable: true}
	f.OpenSession(s)
	s.Told, s.Tells = 9, 1
	f.KeepSession(s.SessionRecord) // it changes while it is missing
	w.sessions[1], w.lastSession = s, 1
	f.Commit(len(missing))
	mustReport(t, f, len(missing), 1)
	mustBeIncomplete(t, f, true)
	if at, ok := f.RetryAt(); !ok || at != l.time+retryAfter {
		t.Errorf("retry at %d, %v; it is %d", at, ok, l.time)
	}

	// Still no room.
	l.time += retryAfter
	f.Retry(l.time)
	f.Commit(len(missing))
	mustBeIncomplete(t, f, true)
	if at, ok := f.RetryAt(); !ok || at != l.time+retryAfter {
		t.Errorf("retry at %d, %v; it is %d", at, ok, l.time)
	}
	if _, news := f.Gap(); news {
		t.Error("reported twice")
	}

	// Room. Until the last lock is stored, the file stays marked.
	l.time += retryAfter
	l.room = 4 * minSize
	f.Retry(l.time)
	for i, n := range missing {
		if keep(n) == 0 {
			t.Fatalf("no room: %s", f.gap.reason)
		}
		mustBeIncomplete(t, f, true)
		f.Commit(len(missing) - i - 1)
	}
	mustBeIncomplete(t, f, false)
	mustReport(t, f, 0, 0)
	if at, ok := f.RetryAt(); ok {
		t.Errorf("nothing is missing, and a retry is due at %d", at)
	}
	f.Close()
	f = mustOpen(t, path, l.host)
	if f.left.Fresh || f.left.UUID != uuid {
		t.Fatalf("%s: fresh %v, %s", f.left.UUID, f.left.Fresh, f.left.Why)
	}
	mustBe(t, f, w)
}

func TestFileIsCompleteAgainWhenWhatIsMissingEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l := newLimited(minSize)
	f := mustOpen(t, path, l.host)
	uuid := f.Left().UUID
	fill(f)
	f.Commit(1)
	mustReport(t, f, 1, 0)
	f.Commit(0) // it was released
	mustBeIncomplete(t, f, false)
	mustReport(t, f, 0, 0)

	f.OpenSession(Session{SessionRecord: locktable.SessionRecord{ID: 1}})
	f.OpenSession(Session{SessionRecord: locktable.SessionRecord{ID: 2}})
	f.Commit(0)
	mustReport(t, f, 0, 2)
	f.CloseSession(1)
	f.Commit(0)
	mustBeIncomplete(t, f, true)
	f.CloseSession(2)
	f.Commit(0)
	mustBeIncomplete(t, f, false)
	mustReport(t, f, 0, 0)

	// Missing and over within one round: no successor could have met it.
	f.OpenSession(Session{SessionRecord: locktable.SessionRecord{ID: 3}})
	f.CloseSession(3)
	f.Commit(0)
	if gap, news := f.Gap(); news {
		t.Errorf("reported: %+v", gap)
	}
	f.Close()
	if left := mustOpen(t, path, l.host).Left(); left.Fresh || left.UUID != uuid {
		t.Errorf("fresh %v, %s", left.Fresh, left.Why)
	}
}

// A session that is opened again with another process needs a record beside the old
// one. If there is none, it takes the place of the old one.
func TestSessionOfAnotherProcessFindsRoomInItsOwnPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l := newLimited(minSize)
	f := mustOpen(t, path, l.host)
	s := Session{SessionRecord: locktable.SessionRecord{ID: 5}}
	f.OpenSession(s)
	n, _ := fill(f)
	f.Commit(0) // the one that found no room is over
	f.OpenSession(s)
	s.Peer.PID = 7
	f.OpenSession(s)
	f.Commit(0)
	mustBeIncomplete(t, f, false)
	s.Peer.Cmd, s.Peer.Client = strings.Repeat("c", 64), "two cells"
	f.OpenSession(s)
	f.Commit(0)
	mustBeIncomplete(t, f, true)
	f.KeepSession(s.SessionRecord)
	l.room, l.time = 2*minSize, l.time+retryAfter
	f.Retry(l.time)
	f.Commit(0)
	mustBeIncomplete(t, f, false)
	f.Close()
	left := mustOpen(t, path, l.host).Left()
	if left.Fresh || len(left.Memory.Locks) != n || len(left.Sessions) != 1 || left.Sessions[0] != s {
		t.Errorf("%+v", left.Sessions)
	}
}

func TestGreatestSize(t *testing.T) {
	h := thisHost()
	h.allocate = func(int, int64, int64) error { return nil } // its pages are not touched
	f := mustOpen(t, filepath.Join(t.TempDir(), "state"), thisHost())
	f.host = h
	for f.end < maxSize/cellSize {
		if !f.grow() {
			t.Fatal(f.gap.reason)
		}
	}
	if f.grow() || !strings.Contains(f.gap.reason, "greatest size") {
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
			t.Fatal(f.gap.reason)
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
	uuid := f.Left().UUID
	n, _ := fill(f)
	f.Commit(1)
	mustReport(t, f, 1, 0)
	if n < minSize/cellSize-firstCell {
		t.Errorf("%d locks", n)
	}
	f.Commit(0)
	f.Close()
	if left := mustOpen(t, path, thisHost()).Left(); left.Fresh || left.UUID != uuid || len(left.Memory.Locks) != n {
		t.Errorf("%d of %d locks are left, fresh %v: %s", len(left.Memory.Locks), n, left.Fresh, left.Why)
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
	fmt.Fprintln(os.Stdout, f.gap.reason)
	f.Close()
}

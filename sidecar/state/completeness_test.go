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

// fill stores held locks until one finds no room.
func fill(f *File) (n int, at []uint32) {
	for {
		slot := putHeld(f, fmt.Sprintf("lock:%d", n), uint64(n+1))
		if slot == 0 {
			return n, at
		}
		at = append(at, slot)
		n++
	}
}

// limited is a host whose file system has room for files of so many bytes, and a clock that
// does not run.
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

// mustReport expects Missing to report, once, so many locks and sessions without room.
func mustReport(t *testing.T, f *File, locks, sessions int) {
	t.Helper()
	m, hasChanged := f.Missing()
	switch {
	case !hasChanged || m.Locks != locks || m.Sessions != sessions:
		t.Errorf("reported: %v, %+v; want %d locks and %d sessions without room", hasChanged, m, locks, sessions)
	case locks+sessions == 0 && m != Missing{}:
		t.Errorf("the file has everything, and the report is %+v", m)
	case locks+sessions > 0 && (!strings.Contains(m.Reason, "no space left on device; make room") || !strings.Contains(m.Reason, f.path)):
		t.Errorf("the reason does not say what happened and what to do: %s", m.Reason)
	}
	if m, hasChanged := f.Missing(); hasChanged {
		t.Errorf("reported twice: %+v", m)
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
		if _, hasChanged := f.Missing(); hasChanged {
			t.Fatal("reported twice")
		}
	}
	if l.attempts != before {
		t.Errorf("%d more attempts to grow at one time", l.attempts-before)
	}

	// A record that is stored can change, and a free cell can be used.
	if f.PutLock(at[0], lockRecord("lock:0", 1000)) != at[0] {
		t.Error("no room for a lock that has room")
	}
	f.DeleteHold(at[0])
	if f.PutHold(0, at[0], holdRecord(1000)) != at[0] {
		t.Error("no room for a hold in the cell of its lock")
	}
	if f.PutHold(0, at[0], holdRecord(999)) != 0 {
		t.Error("room for a second hold of a lock")
	}
	// A name that takes two cells finds one: nothing of it is left.
	deleteHeld(f, at[1])
	if f.PutLock(0, lockRecord(strings.Repeat("n", 40), 1001)) != 0 {
		t.Error("two cells in one")
	}
	second := f.PutHold(0, at[0], holdRecord(999))
	if second == 0 {
		t.Error("the cell is not free any more")
	}
	f.DeleteHold(second)
	if putHeld(f, "lock:1", 1001) == 0 {
		t.Error("the cell is not free again")
	}

	l.time += retryAfter
	l.room = 4 * minSize
	if more, _ := fill(f); more != 2*minSize/cellSize {
		t.Errorf("%d more when there was room", more)
	}
	f.Commit(1)
	mustBeIncomplete(t, f, true)
	f.Close()

	// It does not have everything that was held: nothing of it is recovered.
	r := mustOpen(t, path, l.host).Recovered()
	if !r.Reset || !strings.Contains(r.ResetReason, "incomplete") {
		t.Errorf("%+v", r)
	}
	l.room = 0
	if _, err := open(path+"2", l.host); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "make room") {
		t.Error(err)
	}
}

// The file system is full for a while. When it is not any more, a successor recovers
// everything, under the same uuid.
func TestFileIsCompleteAgainWhenThereIsRoom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l := newLimited(minSize)
	f := mustOpen(t, path, l.host)
	uuid, w := f.Recovered().UUID, emptyWorld()
	put := func(n int) uint32 {
		name, id := fmt.Sprintf("lock:%d", n), uint64(n+1)
		w.locks[name], w.holds[id], w.lastHoldID = lockOf{maxHoldID: id}, heldLock{name, *holdRecord(id)}, max(w.lastHoldID, id)
		return putHeld(f, name, id)
	}
	stored := 0
	for ; put(stored) != 0; stored++ {
	}
	missing := []int{stored, stored + 1}
	if put(stored+1) != 0 {
		t.Fatal("there is room")
	}
	s := Session{SessionRecord: locktable.SessionRecord{ID: 1, LeaseSent: 7}, Resumable: true}
	f.OpenSession(s)
	s.LeaseSent, s.LeaseSeq = 9, 1
	f.PutSession(s.SessionRecord) // it changes while it is missing
	w.sessions[1], w.lastSessionID = s, 1
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
	if _, hasChanged := f.Missing(); hasChanged {
		t.Error("reported twice")
	}

	// Room. Until the last lock is stored, the file stays marked.
	l.time += retryAfter
	l.room = 4 * minSize
	f.Retry(l.time)
	for i, n := range missing {
		if put(n) == 0 {
			t.Fatalf("no room: %s", f.completeness.reason)
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
	if r := f.recovered; r.Reset || r.UUID != uuid {
		t.Fatalf("%s: reset %v, %s", r.UUID, r.Reset, r.ResetReason)
	}
	mustBe(t, f, w)
}

func TestFileIsCompleteAgainWhenMissingRecordsAreNotNeeded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l := newLimited(minSize)
	f := mustOpen(t, path, l.host)
	uuid := f.Recovered().UUID
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

	// Missing and closed within one round: no successor could have found it.
	f.OpenSession(Session{SessionRecord: locktable.SessionRecord{ID: 3}})
	f.CloseSession(3)
	f.Commit(0)
	if m, hasChanged := f.Missing(); hasChanged {
		t.Errorf("reported: %+v", m)
	}
	f.Close()
	if r := mustOpen(t, path, l.host).Recovered(); r.Reset || r.UUID != uuid {
		t.Errorf("reset %v, %s", r.Reset, r.ResetReason)
	}
}

// A session that is opened again with another process needs a record beside the old one. If
// there is no room for it, it takes the place of the old one.
func TestSessionOfAnotherProcessFindsRoomInItsOwnPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l := newLimited(minSize)
	f := mustOpen(t, path, l.host)
	s := Session{SessionRecord: locktable.SessionRecord{ID: 5}}
	f.OpenSession(s)
	n, _ := fill(f)
	f.Commit(0) // the lock that found no room has ended
	f.OpenSession(s)
	s.Peer.PID = 7
	f.OpenSession(s)
	f.Commit(0)
	mustBeIncomplete(t, f, false)
	s.Peer.Cmd, s.Peer.Client = strings.Repeat("c", 64), "two cells"
	f.OpenSession(s)
	f.Commit(0)
	mustBeIncomplete(t, f, true)
	f.PutSession(s.SessionRecord)
	l.room, l.time = 2*minSize, l.time+retryAfter
	f.Retry(l.time)
	f.Commit(0)
	mustBeIncomplete(t, f, false)
	f.Close()
	r := mustOpen(t, path, l.host).Recovered()
	if r.Reset || len(r.Snapshot.Holds) != n || len(r.Sessions) != 1 || r.Sessions[0] != s {
		t.Errorf("%+v", r.Sessions)
	}
}

func TestGreatestSize(t *testing.T) {
	h := thisHost()
	h.allocate = func(int, int64, int64) error { return nil } // its pages are not touched
	f := mustOpen(t, filepath.Join(t.TempDir(), "state"), thisHost())
	f.host = h
	for f.end < maxSize/cellSize {
		if !f.grow() {
			t.Fatal(f.completeness.reason)
		}
	}
	if f.grow() || !strings.Contains(f.completeness.reason, "greatest size") {
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
		if putHeld(f, fmt.Sprintf("lock:%d", i), uint64(100+i)) == 0 {
			t.Fatal(f.completeness.reason)
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
	uuid := f.Recovered().UUID
	n, _ := fill(f)
	f.Commit(1)
	mustReport(t, f, 1, 0)
	if n < minSize/cellSize-firstCell {
		t.Errorf("%d locks", n)
	}
	f.Commit(0)
	f.Close()
	if r := mustOpen(t, path, thisHost()).Recovered(); r.Reset || r.UUID != uuid || len(r.Snapshot.Holds) != n {
		t.Errorf("%d of %d holds are recovered, reset %v: %s", len(r.Snapshot.Holds), n, r.Reset, r.ResetReason)
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
		childFails("no lock was stored")
	}
	fmt.Fprintln(os.Stdout, f.completeness.reason)
	f.Close()
}

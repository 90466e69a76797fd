package state

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/tests/harness"
)

func mustOpen(t testing.TB, path string, h host) *File {
	t.Helper()
	f, err := open(path, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// ownIdentity is that which the file was opened with.
func ownIdentity(t testing.TB, path string, h host) identity {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	own := h.identity
	own.ofFile(fd, &st)
	return own
}

func sizeOf(t testing.TB, path string) int64 {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

func mustBe(t *testing.T, f *File, want world) (world, slots) {
	t.Helper()
	got, at, err := recoverFrom(f)
	if err != nil {
		t.Fatal(err)
	}
	if !got.equal(want) {
		t.Fatalf("recovered, and expected:\n%s", got.diff(want))
	}
	return got, at
}

// A successor recovers exactly what was stored, however often the file is taken over, and
// the file does not grow by it.
func TestSuccessorRecoversWhatWasStored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	w, at := emptyWorld(), noSlots()
	f := mustOpen(t, path, thisHost())
	uuid, key := f.Recovered().UUID, f.Recovered().Key
	for life := range uint64(100) {
		g := newSource(life, w)
		for range g.IntN(2000) {
			c := g.call(w)
			if !c.on(f, at) {
				t.Fatalf("no room: %s", f.completeness.reason)
			}
			c.apply(&w)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		f = mustOpen(t, path, thisHost())
		if r := f.recovered; r.Reset || r.UUID != uuid || r.Key != key {
			t.Fatalf("life %d: reset %v, %q; uuid %s, was %s", life, r.Reset, r.ResetReason, r.UUID, uuid)
		}
		w, at = mustBe(t, f, w.recovered())
	}
	if size := sizeOf(t, path); size > 4*minSize {
		t.Errorf("%d locks take %d bytes", len(w.locks), size)
	}
}

// After every single store, a successor would find the world before the call, the one after
// it, or one of those in between that the package comment names, and never an earlier one
// after a later one.
func TestFileIsTrueAfterEveryStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	h := thisHost()
	var f *File
	var own identity
	var stages []world
	at, stores := 0, 0
	h.stored = func(img, seq image) {
		if stages == nil {
			return
		}
		stores++
		img = img[:int(f.end)*cellWords]
		if why := img.unusable(own, seq); why != "" {
			t.Fatal(why)
		}
		got, err := worldIn(img, own)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(stages[at:], got.equal)
		if i < 0 {
			t.Fatalf("a store left something else than stage %d of %d:\n%s", at, len(stages), got.diff(stages[at]))
		}
		at += i
	}
	f = mustOpen(t, path, h)
	own = ownIdentity(t, path, h)
	w, stored := emptyWorld(), noSlots()
	g := newSource(harness.Seed(t), w)
	for range harness.Pick(400, 3000) {
		c := g.call(w)
		next := c.stages(w)
		w = next[len(next)-1]
		for i := range next {
			next[i] = next[i].recovered()
		}
		stages, at = next, 0
		if !c.on(f, stored) {
			t.Fatal(f.completeness.reason)
		}
		f.Commit(0)
		if at != len(stages)-1 && !stages[at].equal(stages[len(stages)-1]) {
			t.Fatalf("the call ended at stage %d of %d", at, len(stages))
		}
	}
	t.Logf("%d stores", stores)
}

// The same while the file system is full from time to time: unless the file is marked as
// incomplete, a successor would find everything, and the mark is cleared when nothing is
// missing any more.
//
// Shows docs/guarantees.md: The file system of the state file is full.
func TestFileIsTrueAfterEveryStoreWhileTheFileSystemIsFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l := newLimited(minSize)
	var f *File
	var own identity
	var stages []world
	l.stored = func(img, seq image) {
		if stages == nil || img[hIncomplete] != 0 {
			return
		}
		img = img[:int(f.end)*cellWords]
		if why := img.unusable(own, seq); why != "" {
			t.Fatal(why)
		}
		got, err := worldIn(img, own)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(stages, got.equal) {
			t.Fatalf("a store left something else than %d stages:\n%s", len(stages), got.diff(stages[len(stages)-1]))
		}
	}
	isMarked := func() bool { return f.img[hIncomplete] != 0 }
	f = mustOpen(t, path, l.host)
	own = ownIdentity(t, path, l.host)
	uuid := f.recovered.UUID
	w, stored := emptyWorld(), noSlots()
	gaps, closed := 0, 0
	l.room = 0
	seed := harness.Seed(t)
	for life := range uint64(12) {
		g := newSource(seed+life, w)
		f.end = f.next + g.Uint32N(30) // a file system that is full after that
		for range 200 {
			wasOpen := isMarked()
			c := g.call(w)
			next := c.stages(w)
			w = next[len(next)-1]
			for i := range next {
				next[i] = next[i].recovered()
			}
			stages = next
			c.on(f, stored)
			stages = []world{w.recovered()}
			switch g.IntN(20) {
			case 0:
				f.end = f.next + g.Uint32N(40) // room for some cells
			case 1:
				f.end = f.next // none
			}
			if g.IntN(10) == 0 {
				l.time += retryAfter
				f.Retry(l.time)
				for name := range w.locks {
					if !stored.store(f, w, name) {
						break
					}
				}
			}
			missing := stored.missing(w)
			f.Commit(missing)
			switch isOpen := isMarked(); {
			case isOpen != (missing > 0 || len(f.sessions) < len(w.sessions)):
				t.Fatalf("%d of %d locks are missing, and %d of %d sessions are stored; incomplete: %v", missing, len(w.locks), len(f.sessions), len(w.sessions), isOpen)
			case isOpen && !wasOpen:
				gaps++
			case wasOpen && !isOpen:
				closed++
			}
		}
		stages = nil
		reset := isMarked()
		if f.Close(); reset {
			w = emptyWorld()
		}
		l.room = 1 << 20
		f = mustOpen(t, path, l.host)
		if r := f.recovered; r.Reset != reset || !reset && r.UUID != uuid {
			t.Fatalf("life %d: incomplete %v, reset %v: %s", life, reset, r.Reset, r.ResetReason)
		}
		uuid, l.room = f.recovered.UUID, 0
		w, stored = mustBe(t, f, w.recovered())
	}
	if t.Logf("%d times something had no room, %d times everything had room again", gaps, closed); gaps < 10 || closed < 10 {
		t.Error("too few to prove anything")
	}
}

// The same for taking over: a process that dies while it takes a file over leaves what its
// predecessor left.
func TestFileIsTrueAfterEveryStoreOfTakingOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	w, at := emptyWorld(), noSlots()
	f := mustOpen(t, path, thisHost())
	moved, movedHolds, movedLocks := 0, 0, 0
	seed := harness.Seed(t)
	for life := range harness.Pick[uint64](10, 20) {
		g := newSource(seed+life, w)
		for range 1000 {
			c := g.call(w)
			c.on(f, at)
			c.apply(&w)
		}
		putLater(t, f, kindHold+1, life)
		f.img.unused()[0][0] = life + 1
		makeHoles(f, g, &w, at)
		f.Close()
		w = w.recovered()

		h := thisHost()
		own := ownIdentity(t, path, h)
		stores := 0
		h.stored = func(img, seq image) {
			stores++
			img = img[:sizeOf(t, path)/8]
			if why := img.unusable(own, seq); why != "" {
				t.Fatal(why)
			}
			got, err := worldIn(img, own)
			if err != nil {
				t.Fatalf("life %d, store %d: %v", life, stores, err)
			}
			if !got.equal(w) {
				t.Fatalf("life %d, store %d:\n%s", life, stores, got.diff(w))
			}
		}
		f = mustOpen(t, path, h)
		f.host.stored = nil
		moved += stores
		before := at
		w, at = mustBe(t, f, w)
		for name, slot := range at.locks {
			if before.locks[name] != slot {
				movedLocks++
			}
		}
		for id, slot := range at.holds {
			if before.holds[id] != slot && slot != at.locks[w.holds[id].name] {
				movedHolds++
			}
		}
	}
	if t.Logf("%d stores, %d locks and %d holds in cells of their own moved", moved, movedLocks, movedHolds); movedLocks < 50 || movedHolds < 10 {
		t.Error("too few to prove anything")
	}
}

// A process dies while it takes a file over, and its successor takes over what it left.
func TestTakingOverIsRepeatedAfterADeath(t *testing.T) {
	dir := t.TempDir()
	path, torn := filepath.Join(dir, "state"), filepath.Join(dir, "torn")
	w, at := emptyWorld(), noSlots()
	f := mustOpen(t, path, thisHost())
	opened, between := 0, 0
	seed := harness.Seed(t)
	for life := range uint64(8) {
		g := newSource(seed+life, w)
		for range 1000 {
			c := g.call(w)
			c.on(f, at)
			c.apply(&w)
		}
		makeHoles(f, g, &w, at)
		f.Close()
		w = w.recovered()

		var deaths [][2]image
		h := thisHost()
		before := ownIdentity(t, path, h)
		h.stored = func(img, seq image) {
			img = img[:sizeOf(t, path)/8]
			isBetween := refersToOldRecord(img, before)
			if isBetween {
				between++
			}
			if isBetween || g.IntN(20) == 0 {
				deaths = append(deaths, [2]image{slices.Clone(img), slices.Clone(seq)})
			}
		}
		f = mustOpen(t, path, h)
		f.host.stored = nil
		w, at = mustBe(t, f, w)

		for _, d := range deaths {
			writeFile(t, torn, appendWords(nil, d[0]))
			writeFile(t, torn+".seq", appendWords(nil, d[1]))
			own := ownIdentity(t, torn, thisHost())
			d[0][hInode], d[0][hHandle], d[0][hBorn] = own.inode, own.handle, own.born
			d[0][hSum] = d[0].headerSum()
			writeFile(t, torn, appendWords(nil, d[0]))
			for range 2 {
				f := mustOpen(t, torn, thisHost())
				mustBe(t, f, w)
				f.Close()
				opened++
			}
		}
	}
	if t.Logf("%d files were taken over, %d deaths were between the two records of a lock", opened, between); opened < 100 || between < 5 {
		t.Error("too few to prove anything")
	}
}

// refersToOldRecord reports whether a lock has two records, and a hold refers to the one that does not
// count.
func refersToOldRecord(img image, own identity) bool {
	m := img.read(own).recovered.Snapshot
	return slices.ContainsFunc(m.Holds, func(h locktable.RestoredHold) bool {
		lock := m.Locks[h.Lock].Slot
		return h.Slot != lock && uint32(img.cell(h.Slot)[holdLock]) != lock
	})
}

// makeHoles deletes some locks and holds, so that the rest must move.
func makeHoles(f *File, g *source, w *world, at slots) {
	for _, name := range slices.Sorted(maps.Keys(w.locks)) {
		isDeleted := g.IntN(2) == 0
		for _, id := range w.holdsOf(name) {
			if isDeleted || g.IntN(3) == 0 {
				c := call{method: deleteHold, name: name, id: id}
				c.on(f, at)
				c.apply(w)
			}
		}
		if isDeleted {
			c := call{method: deleteLock, name: name}
			c.on(f, at)
			c.apply(w)
		}
	}
}

func TestNewFileIsUsableAfterItsLastStoreOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	h := thisHost()
	var usable []bool
	h.stored = func(img, seq image) {
		usable = append(usable, img[:minSize/8].unusable(ownIdentity(t, path, h), seq) == "")
	}
	mustOpen(t, path, h)
	if i := slices.Index(usable, true); i != len(usable)-1 {
		t.Errorf("of %d stores, number %d made it usable", len(usable), i+1)
	}
}

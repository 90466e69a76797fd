package state

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
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
	got, at, err := takenOver(f)
	if err != nil {
		t.Fatal(err)
	}
	if !got.equal(want) {
		t.Fatalf("left, and expected:\n%s", got.diff(want))
	}
	return got, at
}

// A successor is left exactly what was kept, however often the file changes hands,
// and the file does not grow by it.
func TestSuccessorIsLeftWhatWasKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	w, at := emptyWorld(), slots{}
	f := mustOpen(t, path, thisHost())
	uuid, key := f.Left().UUID, f.Left().Key
	for life := range uint64(100) {
		g := newSource(life, w)
		for range g.IntN(2000) {
			d := g.deed(w)
			if !d.doIn(f, at) {
				t.Fatalf("no room: %s", f.gap.reason)
			}
			d.apply(&w)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		f = mustOpen(t, path, thisHost())
		if left := f.Left(); left.Fresh || left.UUID != uuid || left.Key != key {
			t.Fatalf("life %d: fresh %v, %q; uuid %s, was %s", life, left.Fresh, left.Why, left.UUID, uuid)
		} else {
			f.left = left
		}
		w, at = mustBe(t, f, w.remembered())
	}
	if size := sizeOf(t, path); size > 4*minSize {
		t.Errorf("%d locks take %d bytes", len(w.locks), size)
	}
}

// After every single store, a successor would find the world before the call, the
// one after it, or one that the package says it may find in between, and never an
// earlier one after a later one.
func TestEveryStoreLeavesTheTruth(t *testing.T) {
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
	w, kept := emptyWorld(), slots{}
	g := newSource(1, w)
	for range 3000 {
		d := g.deed(w)
		next := d.stages(w)
		w = next[len(next)-1]
		for i := range next {
			next[i] = next[i].remembered()
		}
		stages, at = next, 0
		if !d.doIn(f, kept) {
			t.Fatal(f.gap.reason)
		}
		f.Commit(0)
		if at != len(stages)-1 && !stages[at].equal(stages[len(stages)-1]) {
			t.Fatalf("the call ended at stage %d of %d", at, len(stages))
		}
	}
	t.Logf("%d stores", stores)
}

// The same while the file system is full now and then: unless the file is marked as
// incomplete, a successor would find all of the truth, and the mark is cleared when
// nothing is missing any more.
func TestEveryStoreLeavesTheTruthWhileRoomComesAndGoes(t *testing.T) {
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
	f = mustOpen(t, path, l.host)
	own = ownIdentity(t, path, l.host)
	uuid := f.left.UUID
	w, kept := emptyWorld(), slots{}
	gaps, healed := 0, 0
	l.room = 0
	for life := range uint64(12) {
		g := newSource(life, w)
		f.end = f.next + g.Uint32N(30) // a file system that is full after that
		for range 200 {
			was := f.gap.phase != complete
			d := g.deed(w)
			next := d.stages(w)
			w = next[len(next)-1]
			for i := range next {
				next[i] = next[i].remembered()
			}
			stages = next
			d.doIn(f, kept)
			stages = []world{w.remembered()}
			switch g.IntN(20) {
			case 0:
				f.end = f.next + g.Uint32N(40) // room for some cells
			case 1:
				f.end = f.next // none
			}
			if g.IntN(10) == 0 {
				l.time += retryAfter
				f.Retry(l.time)
				for name, r := range w.locks { // as the table would
					if kept[name] == 0 {
						if kept[name] = f.KeepLock(0, &r); kept[name] == 0 {
							delete(kept, name)
							break
						}
					}
				}
			}
			f.Commit(len(w.locks) - len(kept))
			switch open := f.gap.phase != complete; {
			case open != (len(kept) < len(w.locks) || len(f.sessions) < len(w.sessions)):
				t.Fatalf("%d of %d locks and %d of %d sessions are stored; incomplete: %v", len(kept), len(w.locks), len(f.sessions), len(w.sessions), open)
			case open && !was:
				gaps++
			case was && !open:
				healed++
			}
		}
		stages = nil
		fresh := f.gap.phase != complete
		if f.Close(); fresh {
			w = emptyWorld()
		}
		l.room = 1 << 20
		f = mustOpen(t, path, l.host)
		if f.left.Fresh != fresh || !fresh && f.left.UUID != uuid {
			t.Fatalf("life %d: incomplete %v, fresh %v: %s", life, fresh, f.left.Fresh, f.left.Why)
		}
		uuid, l.room = f.left.UUID, 0
		w, kept = mustBe(t, f, w.remembered())
	}
	if t.Logf("%d times something had no room, %d times everything had room again", gaps, healed); gaps < 10 || healed < 10 {
		t.Error("too few to prove anything")
	}
}

// The same for taking over: a process that dies of it leaves what it was left.
func TestTakingOverLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	w, at := emptyWorld(), slots{}
	f := mustOpen(t, path, thisHost())
	for life := range uint64(20) {
		g := newSource(life, w)
		for range 1000 {
			d := g.deed(w)
			d.doIn(f, at)
			d.apply(&w)
		}
		for name, slot := range at { // make holes, so that what is left must move
			if g.IntN(2) == 0 {
				f.ForgetLock(slot)
				delete(at, name)
				delete(w.locks, name)
			}
		}
		f.Close()
		w = w.remembered()

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
				t.Fatal(err)
			}
			if !got.equal(w) {
				t.Fatalf("life %d, store %d:\n%s", life, stores, got.diff(w))
			}
		}
		f = mustOpen(t, path, h)
		f.host.stored = nil
		if stores == 0 {
			t.Fatal("nothing moved")
		}
		w, at = mustBe(t, f, w)
	}
}

// A file is unusable until its last word makes it whole.
func TestFileBeginsAtOnce(t *testing.T) {
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

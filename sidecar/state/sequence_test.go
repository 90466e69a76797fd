package state

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// aCopy is the state file as some other process copied it at some moment.
type aCopy struct {
	img image
	has world
}

// A copy of the state file from any moment is refused, unless what it has is what a
// successor may find in the state file itself: after a Commit that is the world of
// that round only.
func TestCopyIsRefusedOnceALaterRoundIsCommitted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	h := thisHost()
	var f *File
	var own identity
	var stages []world // those that a successor may find
	var copies []aCopy
	g := newSource(1, emptyWorld())
	checked, accepted, exact := 0, 0, 0
	check := func(seq image) {
		for _, c := range copies {
			checked++
			if c.img.unusable(own, seq) != "" {
				continue
			}
			accepted++
			if !slices.ContainsFunc(stages, c.has.equal) {
				t.Fatalf("a stale copy is accepted; it has, and the state file may have:\n%s", c.has.diff(stages[len(stages)-1]))
			}
		}
	}
	take := func(img image) {
		img = slices.Clone(img[:int(f.end)*cellWords])
		has, err := worldIn(img, own)
		if err != nil {
			t.Fatal(err)
		}
		if copies = append(copies, aCopy{img, has}); len(copies) > 8 {
			copies = copies[1:]
		}
	}
	h.stored = func(img, seq image) {
		if stages == nil {
			return
		}
		check(seq)
		if g.IntN(8) == 0 {
			take(img)
		}
	}
	f = mustOpen(t, path, h)
	own = ownIdentity(t, path, h)
	w, kept := emptyWorld(), slots{}
	for range 600 {
		before := []world{w.remembered()}
		for range 1 + g.IntN(3) { // changes in one round
			d := g.deed(w)
			for _, s := range d.stages(w) {
				before = append(before, s.remembered())
			}
			d.apply(&w)
			stages = before
			if !d.doIn(f, kept) {
				t.Fatal(f.gap.reason)
			}
		}
		f.Commit(0)
		stages = []world{w.remembered()}
		check(f.seq.img)
		if g.IntN(4) == 0 {
			take(f.img)
			check(f.seq.img)
			if copies[len(copies)-1].img.unusable(own, f.seq.img) == "" {
				exact++
			}
		}
	}
	t.Logf("%d times a copy was offered, %d times accepted, %d times right after a round", checked, accepted, exact)
	if exact < 50 || accepted < 10_000 || checked-accepted < 10_000 {
		t.Error("too few to prove anything")
	}
}

// run runs a program that people copy files with.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

func remove(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A copy of the state file is made, the sidecar changes something, and the copy takes
// the place of the state file, in each way that people restore files.
func TestRestoredCopyIsRefused(t *testing.T) {
	for _, c := range []struct {
		what    string
		restore func(t *testing.T, state, seq, oldState, oldSeq string)
		why     string
	}{
		{"in place", func(t *testing.T, state, _, oldState, _ string) { run(t, "cp", oldState, state) }, "stale copy"},
		{"in place, with its times", func(t *testing.T, state, _, oldState, _ string) { run(t, "cp", "-p", oldState, state) }, "stale copy"},
		{"removed and copied", func(t *testing.T, state, _, oldState, _ string) {
			remove(t, state)
			run(t, "cp", "-p", oldState, state)
		}, "cop"},
		{"renamed", func(t *testing.T, state, _, oldState, _ string) { run(t, "mv", oldState, state) }, "a copy"},
		{"both removed and copied", func(t *testing.T, state, seq, oldState, oldSeq string) {
			// Until the state file has its inode number again, if the file system
			// uses numbers again.
			_, inode := inodeOf(t, state)
			remove(t, state, seq)
			run(t, "cp", "-p", oldState, state)
			for range 64 {
				if _, now := inodeOf(t, state); now == inode {
					break
				}
				remove(t, state)
				run(t, "cp", "-p", oldState, state)
			}
			run(t, "cp", "-p", oldSeq, seq)
		}, "a copy"},
		{"only the sequence file", func(t *testing.T, _, seq, _, oldSeq string) { run(t, "cp", oldSeq, seq) }, "stale copy"},
		{"the sequence file is removed", func(t *testing.T, _, seq, _, _ string) { remove(t, seq) }, "missing or damaged"},
		{"the sequence file is emptied", func(t *testing.T, _, seq, _, _ string) { writeFile(t, seq, nil) }, "missing or damaged"},
		{"the sequence file is cut short", func(t *testing.T, _, seq, _, _ string) {
			writeFile(t, seq, readFile(t, seq)[:pageSize-1])
		}, "missing or damaged"},
		{"the sequence file of another state", func(t *testing.T, _, seq, oldState, _ string) {
			mustOpen(t, oldState+"2", thisHost()).Close()
			run(t, "cp", oldState+"2.seq", seq)
		}, "another state"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			state, old := filepath.Join(dir, "state"), filepath.Join(dir, "old")
			f := mustOpen(t, state, thisHost())
			uuid := f.Left().UUID
			r := benchLock("x", 1)
			slot := f.KeepLock(0, &r)
			f.Commit(0)
			run(t, "cp", "-p", state, old)
			run(t, "cp", "-p", state+".seq", old+".seq")
			for num := uint64(2); num <= 3; num++ { // it is granted to other clients
				r = benchLock("x", num)
				f.KeepLock(slot, &r)
				f.Commit(0)
			}
			f.Close()

			c.restore(t, state, state+".seq", old, old+".seq")
			f = mustOpen(t, state, thisHost())
			left := f.Left()
			if !left.Fresh || left.UUID == uuid || len(left.Memory.Locks) != 0 || !strings.Contains(left.Why, c.why) {
				t.Errorf("fresh %v, %d locks: %s", left.Fresh, len(left.Memory.Locks), left.Why)
			}
			// It counts from there.
			f.KeepLock(0, &r)
			f.Commit(0)
			f.Close()
			if again := mustOpen(t, state, thisHost()).Left(); again.Fresh || again.UUID != left.UUID || len(again.Memory.Locks) != 1 {
				t.Errorf("fresh %v, %d locks: %s", again.Fresh, len(again.Memory.Locks), again.Why)
			}
		})
	}
}

// The birth time and the handle tell a file from one that has its inode number.
func TestInodeNumberThatIsUsedAgainIsAnotherFile(t *testing.T) {
	for what, word := range map[string]int64{"handle": hHandle, "birth time": hBorn} {
		path := filepath.Join(t.TempDir(), "state")
		h := thisHost()
		f := mustOpen(t, path, h)
		known := f.img[word] != 0
		b := slices.Clone(f.mem[:pageSize])
		f.Close()
		if !known {
			t.Logf("this file system has no %s", what)
			continue
		}
		img := image(words(b))
		img[word]++
		img[hSum] = sumOf(img[hFormat:hSum])
		own := ownIdentity(t, path, h)
		if why := img.unusable(own, make(image, pageWords)); !strings.Contains(why, "is a copy") {
			t.Errorf("another %s: %q", what, why)
		}
		img[word] = 0 // the file system did not know it then, or does not know it now
		img[hSum] = sumOf(img[hFormat:hSum])
		if why := img.unusable(own, make(image, pageWords)); strings.Contains(why, "is a copy") {
			t.Errorf("no %s: %q", what, why)
		}
	}
}

// Where the file system has neither a handle nor a birth time, the inode is all there is.
func TestCopyInAnotherInodeIsRefused(t *testing.T) {
	for what, word := range map[string]int{"inode": hInode, "device": hDev} {
		path := filepath.Join(t.TempDir(), "state")
		h := thisHost()
		f := mustOpen(t, path, h)
		img := image(words(f.mem[:pageSize]))
		f.Close()
		own := ownIdentity(t, path, h)
		own.handle, own.born = 0, 0
		if why := img.unusable(own, make(image, pageWords)); strings.Contains(why, "is a copy") {
			t.Errorf("the same %s: %q", what, why)
		}
		img[word]++
		img[hSum] = sumOf(img[hFormat:hSum])
		if why := img.unusable(own, make(image, pageWords)); !strings.Contains(why, "is a copy") {
			t.Errorf("another %s: %q", what, why)
		}
	}
}

// A process dies between the two stores of a number, several times in a row.
func TestDeathBetweenTheTwoNumbersLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := mustOpen(t, path, thisHost())
	uuid := f.Left().UUID
	for i := range uint64(5) {
		r := benchLock(fmt.Sprint("lock-", i), i+1)
		f.KeepLock(0, &r)
		seq := f.seq.img[qNumber]
		f.Commit(0)
		f.seq.img[qNumber] = seq // the second store was not made
		f.Close()
		f = mustOpen(t, path, thisHost())
		left := f.Left()
		if left.Fresh || left.UUID != uuid || len(left.Memory.Locks) != int(i+1) {
			t.Fatalf("fresh %v, %d locks: %s", left.Fresh, len(left.Memory.Locks), left.Why)
		}
	}
}

// Something writes an old copy over the state file while a sidecar uses it. The sidecar
// reports it, and no successor restores what is in the file from then on.
func TestStateThatIsOverwrittenInUseIsNotTrusted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l := newLimited(minSize)
	f := mustOpen(t, path, l.host)
	r := benchLock("x", 1)
	slot := f.KeepLock(0, &r)
	fill(f)
	f.Commit(1)
	mustReport(t, f, 1, 0)
	old := slices.Clone(f.mem[:minSize])
	r.Hold.Deadline++
	f.KeepLock(slot, &r)
	f.Commit(1)
	if n, err := unix.Pwrite(f.fd, old, 0); n != len(old) || err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.Hold.Deadline++
		f.KeepLock(slot, &r)
		f.OpenSession(Session{SessionRecord: locktable.SessionRecord{ID: 1}})
		f.Commit(0)
	}
	if gap, news := f.Gap(); !news || !strings.Contains(gap.Reason, "something else wrote") {
		t.Errorf("reported: %v, %+v", news, gap)
	}
	if _, news := f.Gap(); news {
		t.Error("reported twice")
	}
	if at, ok := f.RetryAt(); ok {
		t.Errorf("nothing can be done about it, and a retry is due at %d", at)
	}
	f.Close()
	if left := mustOpen(t, path, thisHost()).Left(); !left.Fresh {
		t.Error("it was restored")
	}
}

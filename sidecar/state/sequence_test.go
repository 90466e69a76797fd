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
	"github.com/locksidecar/locksidecar/tests/harness"
)

// aCopy is the state file as some other process copied it at some moment.
type aCopy struct {
	img image
	has world
}

// A copy of the state file from any moment is refused, unless it has what a successor may
// find in the state file itself: after a Commit that is the world of that round only.
//
// Shows docs/guarantees.md: The state file is gone, damaged, of another boot.
func TestCopyIsRefusedOnceALaterRoundIsCommitted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	h := thisHost()
	var f *File
	var own identity
	var stages []world // those that a successor may find
	var copies []aCopy
	g := newSource(harness.Seed(t), emptyWorld())
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
	w, stored := emptyWorld(), noSlots()
	for range 600 {
		before := []world{w.recovered()}
		for range 1 + g.IntN(3) { // changes in one round
			c := g.call(w)
			for _, s := range c.stages(w) {
				before = append(before, s.recovered())
			}
			c.apply(&w)
			stages = before
			if !c.on(f, stored) {
				t.Fatal(f.completeness.reason)
			}
		}
		f.Commit(0)
		stages = []world{w.recovered()}
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
//
// Shows docs/guarantees.md: The state file is gone, damaged, of another boot.
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
			uuid := f.Recovered().UUID
			slot := putHeld(f, "x", 1)
			f.Commit(0)
			run(t, "cp", "-p", state, old)
			run(t, "cp", "-p", state+".seq", old+".seq")
			for id := uint64(2); id <= 3; id++ { // it is granted to other clients
				f.DeleteHold(slot)
				f.PutLock(slot, lockRecord("x", id))
				f.PutHold(0, slot, holdRecord(id))
				f.Commit(0)
			}
			f.Close()

			c.restore(t, state, state+".seq", old, old+".seq")
			f = mustOpen(t, state, thisHost())
			r := f.Recovered()
			if !r.Reset || r.UUID == uuid || len(r.Snapshot.Locks) != 0 || !strings.Contains(r.ResetReason, c.why) {
				t.Errorf("reset %v, %d locks: %s", r.Reset, len(r.Snapshot.Locks), r.ResetReason)
			}
			// It counts from there.
			putHeld(f, "x", 4)
			f.Commit(0)
			f.Close()
			if again := mustOpen(t, state, thisHost()).Recovered(); again.Reset || again.UUID != r.UUID || len(again.Snapshot.Holds) != 1 {
				t.Errorf("reset %v, %d holds: %s", again.Reset, len(again.Snapshot.Holds), again.ResetReason)
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
		img[hSum] = img.headerSum()
		own := ownIdentity(t, path, h)
		if why := img.unusable(own, make(image, pageWords)); !strings.Contains(why, "is a copy") {
			t.Errorf("another %s: %q", what, why)
		}
		img[word] = 0 // the file system did not know it then, or does not know it now
		img[hSum] = img.headerSum()
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
		img[hSum] = img.headerSum()
		if why := img.unusable(own, make(image, pageWords)); !strings.Contains(why, "is a copy") {
			t.Errorf("another %s: %q", what, why)
		}
	}
}

// A process dies between the two stores of a number, several times in a row.
func TestDeathBetweenTheTwoNumbersLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := mustOpen(t, path, thisHost())
	uuid := f.Recovered().UUID
	for i := range uint64(5) {
		putHeld(f, fmt.Sprint("lock-", i), i+1)
		seq := f.seq.img[qNumber]
		f.Commit(0)
		f.seq.img[qNumber] = seq // the second store was not made
		f.Close()
		f = mustOpen(t, path, thisHost())
		r := f.Recovered()
		if r.Reset || r.UUID != uuid || len(r.Snapshot.Holds) != int(i+1) {
			t.Fatalf("reset %v, %d holds: %s", r.Reset, len(r.Snapshot.Holds), r.ResetReason)
		}
	}
}

// Another program writes an old copy over the state file while a sidecar uses it. The
// sidecar reports it, and no successor recovers what is in the file from then on.
func TestStateThatIsOverwrittenInUseIsNotTrusted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	l := newLimited(minSize)
	f := mustOpen(t, path, l.host)
	slot, h := putHeld(f, "x", 1<<20), holdRecord(1<<20)
	fill(f)
	f.Commit(1)
	mustReport(t, f, 1, 0)
	old := slices.Clone(f.mem[:minSize])
	h.Deadline++
	f.PutHold(slot, slot, h)
	f.Commit(1)
	if n, err := unix.Pwrite(f.fd, old, 0); n != len(old) || err != nil {
		t.Fatal(err)
	}
	for range 3 {
		h.Deadline++
		f.PutHold(slot, slot, h)
		f.OpenSession(Session{SessionRecord: locktable.SessionRecord{ID: 1}})
		f.Commit(0)
	}
	if m, hasChanged := f.Missing(); !hasChanged || !strings.Contains(m.Reason, "another program wrote") {
		t.Errorf("reported: %v, %+v", hasChanged, m)
	}
	if _, hasChanged := f.Missing(); hasChanged {
		t.Error("reported twice")
	}
	if at, ok := f.RetryAt(); ok {
		t.Errorf("nothing can be done about it, and a retry is due at %d", at)
	}
	f.Close()
	if r := mustOpen(t, path, thisHost()).Recovered(); !r.Reset {
		t.Error("it was recovered")
	}
}

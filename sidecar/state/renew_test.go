package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Another program removes files while the sidecar runs. What was stored before, and what is stored after, is there for
// the successor.
func TestRemovedFilesAreWrittenAgain(t *testing.T) {
	for _, removed := range [][]string{{""}, {".seq"}, {"", ".seq"}} {
		path := filepath.Join(t.TempDir(), "state")
		w, at := emptyWorld(), noSlots()
		f := mustOpen(t, path, thisHost())
		uuid := f.Recovered().UUID
		for life := range uint64(20) {
			g := newSource(life, w)
			change := func() {
				for range g.IntN(1000) {
					c := g.call(w)
					if !c.on(f, at) {
						t.Fatalf("no room: %s", f.completeness.reason)
					}
					c.apply(&w)
				}
				f.Commit(0)
			}
			change()
			for _, suffix := range removed {
				remove(t, path+suffix)
			}
			if f.Misplaced() == "" {
				t.Fatal("the files are not missed")
			}
			writeFile(t, path+".new", []byte("of a daemon that was killed while it wrote the state again"))
			if err := f.Renew(); err != nil {
				t.Fatal(err)
			}
			if why := f.Misplaced(); why != "" {
				t.Fatalf("after Renew: %s", why)
			}
			if life%2 == 0 { // half of the daemons die at once
				change()
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			f = mustOpen(t, path, thisHost())
			if r := f.recovered; r.Reset || r.UUID != uuid {
				t.Fatalf("removed %q, life %d: reset %v, %q; uuid %s, was %s", removed, life, r.Reset, r.ResetReason, r.UUID, uuid)
			}
			w, at = mustBe(t, f, w.recovered())
		}
	}
}

// The danger: a removed file has another name, and comes back under its own one, or begins another sidecar with this
// one's uuid.
func TestRemovedStateIsNoStateAnyMore(t *testing.T) {
	for _, isCommitted := range []bool{false, true} {
		dir := t.TempDir()
		path, moved := filepath.Join(dir, "state"), filepath.Join(dir, "moved")
		aWorld(t, path, thisHost())
		f := mustOpen(t, path, thisHost())
		run(t, "mv", path, moved)
		run(t, "mv", path+".seq", moved+".seq")
		if err := f.Renew(); err != nil {
			t.Fatal(err)
		}
		if isCommitted {
			f.Commit(0)
		}
		if other := mustOpen(t, moved, thisHost()); !other.recovered.Reset {
			t.Error("another sidecar took over what was moved away")
		} else {
			other.Close()
		}
		run(t, "mv", moved, path)
		if f.Misplaced() == "" {
			t.Error("the file that came back is taken for the new one")
		}
		f.Close()
		if back := mustOpen(t, path, thisHost()); !back.recovered.Reset {
			t.Error("a successor took over the file that came back")
		}
	}
}

func TestFileInThePlaceOfTheStateIsNotReplaced(t *testing.T) {
	for _, suffix := range []string{"", ".seq"} {
		path := filepath.Join(t.TempDir(), "state")
		w, _ := aWorld(t, path, thisHost())
		f := mustOpen(t, path, thisHost())
		remove(t, path+suffix)
		writeFile(t, path+suffix, []byte("of another program"))
		if err := f.Renew(); err == nil || !strings.Contains(err.Error(), path+suffix+" is another file now; remove it") {
			t.Errorf("%q: %v", suffix, err)
		}
		if got := string(readFile(t, path+suffix)); got != "of another program" {
			t.Errorf("%q: the other file has %q now", suffix, got)
		}
		remove(t, path+suffix)
		if err := f.Renew(); err != nil {
			t.Errorf("%q: after it was removed: %v", suffix, err)
		}
		f.Close()
		mustBe(t, mustOpen(t, path, thisHost()), w)
	}
}

// A renewal that fails changes nothing, leaves no file, and is tried again.
func TestStateThatCannotBeWrittenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	w, _ := aWorld(t, path, thisHost())
	l := newLimited(1 << 30)
	f := mustOpen(t, path, l.host)
	remove(t, path, path+".seq")
	l.room = 0
	if err := f.Renew(); err == nil || !strings.Contains(err.Error(), unix.ENOSPC.Error()) {
		t.Fatalf("without room: %v", err)
	}
	if files, _ := os.ReadDir(filepath.Dir(path)); len(files) != 0 {
		t.Fatalf("%v", files)
	}
	if f.img[hMagic] != magic || f.Misplaced() == "" {
		t.Error("the state that is in use has changed")
	}
	l.room = minSize // for the state file; the directory does not permit the other one
	if err := os.Mkdir(path+".seq.new", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Renew(); err == nil || f.Misplaced() == "" {
		t.Fatalf("without the sequence file: %v", err)
	}
	remove(t, path+".seq.new")
	if err := f.Renew(); err != nil || f.Misplaced() != "" {
		t.Fatalf("with room: %v; %s", err, f.Misplaced())
	}
	if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := open(path, thisHost()); err == nil || !strings.Contains(err.Error(), "has the state file") {
		t.Errorf("another process opens it: %v", err)
	}
	f.Close()
	mustBe(t, mustOpen(t, path, thisHost()), w)
}

// A file that another program wrote to is not written again: what is in it is not known.
func TestOverwrittenStateIsNotRenewed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := mustOpen(t, path, thisHost())
	f.img[hSequence] += 7
	f.changed = true
	f.Commit(0)
	remove(t, path)
	if err := f.Renew(); err == nil || !strings.Contains(err.Error(), "another program wrote to the state file") {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it is there again")
	}
}

package state

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

func inodeOf(t testing.TB, path string) (dev, inode uint64) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return uint64(st.Dev), st.Ino
}

// aWorld puts a little of everything into a file and closes it. The session has the first
// cell, then come the lock with its first hold, its second hold, and a lock without any.
func aWorld(t *testing.T, path string, h host) (world, Recovered) {
	t.Helper()
	f := mustOpen(t, path, h)
	r := f.Recovered()
	w, at := emptyWorld(), noSlots()
	for _, c := range []call{
		{method: openSession, session: Session{
			SessionRecord: locktable.SessionRecord{ID: 3, LeaseSent: 40e9, LeaseSeq: 2, Phase: locktable.SessionUnserved},
			Peer:          locktable.Peer{PID: 4242, UID: 1000, Cmd: "worker --fast", Client: "go/1.0.0"},
			Process:       Process{Pidfd: 78, Start: 77, Program: Program{Origin: Executed, Text: 1<<10 - 1, Stack: 1<<12 - 2}}, Resumable: true,
		}},
		{method: putLock, name: "invoice:42", id: 9},
		{method: putHold, name: "invoice:42", hold: locktable.HoldRecord{
			ID: 8, Token: 5, Owner: 6, Session: 3, Granted: 1e9, Deadline: 31e9, Entries: 2, Permits: 1,
			Lease: locktable.FixedLease, LeaseMS: 30000, Phase: locktable.HoldUnserved,
		}},
		{method: putHold, name: "invoice:42", hold: locktable.HoldRecord{
			ID: 7, Token: 4, Session: 3, Granted: 1e9, Deadline: 31e9, End: 50e9, Entries: 1, Permits: 3, CrashDelayMS: 100,
			Phase: locktable.HoldCrashDelayed, InDoubt: true,
		}},
		{method: putLock, name: "dropped", id: 10},
		{method: putLock, name: "catalog", id: 11, kind: redisop.KindReadWrite},
		{method: putHold, name: "catalog", hold: locktable.HoldRecord{
			ID: 11, Token: 6, Session: 3, Granted: 1e9, Deadline: 31e9, Entries: 1, Permits: 1, Phase: locktable.HoldUnserved, Mode: locktable.Shared,
		}},
		{method: putLastHoldID, id: 11},
		{method: putLastSessionID, id: 4},
		{method: putRedis, redis: Redis{RunID: "run", ReplID: "repl", ClientID: 1, Floor: 2, FloorAt: 3}},
	} {
		c.on(f, at)
		c.apply(&w)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return w, r
}

// A number is not used again, also if no lock that had it is left.
func TestLastHoldIDOutlivesItsLock(t *testing.T) {
	path, h := filepath.Join(t.TempDir(), "state"), thisHost()
	f := mustOpen(t, path, h)
	f.PutLastHoldID(50)
	f.DeleteLock(f.PutLock(0, &locktable.LockRecord{Name: "invoice:42", MaxHoldID: 50}))
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if r := mustOpen(t, path, h).Recovered(); r.Snapshot.LastHoldID != 50 {
		t.Errorf("the last hold number is %d, want 50", r.Snapshot.LastHoldID)
	}
}

func TestFirstStartResetsWithoutAReason(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	r := mustOpen(t, path, thisHost()).Recovered()
	if !r.Reset || r.ResetReason != "" || len(r.UUID) != 36 || r.Key == [32]byte{} {
		t.Errorf("%+v", r)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	other := mustOpen(t, path+"2", thisHost()).Recovered()
	if other.UUID == r.UUID || other.Key == r.Key {
		t.Error("two files began with one uuid or key")
	}
}

func TestFileOfAnotherProgramIsNotChanged(t *testing.T) {
	for _, text := range []string{"hello\n", "-----BEGIN PRIVATE KEY-----\n", strings.Repeat("x", 2*pageSize)} {
		path := filepath.Join(t.TempDir(), "state")
		writeFile(t, path, []byte(text))
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "not a state file") {
			t.Errorf("%.10q: %v", text, err)
		}
		if b := readFile(t, path); string(b) != text {
			t.Errorf("%.10q became %.10q", text, b)
		}
	}
}

func TestUnknownBootIsReported(t *testing.T) {
	h := thisHost()
	if why := mustOpen(t, filepath.Join(t.TempDir(), "state"), h).Unidentified(); why != "" {
		t.Errorf("on this host: %s", why)
	}
	h.boot = [16]byte{}
	if why := mustOpen(t, filepath.Join(t.TempDir(), "state"), h).Unidentified(); !strings.Contains(why, "ProcSubset=pid") {
		t.Errorf("without a boot id: %q", why)
	}
}

// Shows docs/guarantees.md: The state file is gone, damaged, of another boot.
func TestStateIsTakenOverOrReset(t *testing.T) {
	here := thisHost()
	here.boot, here.timeNS, here.pidNS = [16]byte{1}, 2, 3
	for _, c := range []struct {
		what   string
		change func(h *host)
		damage func(t *testing.T, path string)
		why    string // "": it is taken over
	}{
		{what: "the same host"},
		{what: "another pid namespace", change: func(h *host) { h.pidNS++ }},
		{what: "another boot", change: func(h *host) { h.boot[0]++ }, why: "another boot"},
		{what: "an unknown boot", change: func(h *host) { h.boot = [16]byte{} }, why: "boot id"},
		{what: "another time namespace", change: func(h *host) { h.timeNS++ }, why: "time namespace"},
		{what: "moved", damage: func(t *testing.T, path string) {
			if err := os.Rename(path, path+"~"); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+"~", path); err != nil {
				t.Fatal(err)
			}
		}},
		{what: "copied", why: "copy", damage: func(t *testing.T, path string) {
			b := readFile(t, path)
			if err := os.Rename(path, path+"~"); err != nil { // or its inode would be used again
				t.Fatal(err)
			}
			writeFile(t, path, b)
		}},
		{what: "a later format", why: "by another version of the sidecar (it has format 5", damage: patch(8*hFormat, format+1)},
		{what: "an earlier format", why: "by another version of the sidecar (it has format 3", damage: patch(8*hFormat, format-1)},
		{what: "damaged identity", why: "damaged", damage: patch(8*hTimeNS, 9)},
		{what: "damaged key", why: "damaged", damage: patch(8*hKey, 9)},
		{what: "a key prefix that was not written", why: "damaged", damage: patch(8*hPrefix, 9)},
		{what: "no magic", why: "not complete", damage: patch(0, 0, 0, 0, 0, 0, 0, 0, 0)},
		{what: "cut short", why: "not complete", damage: func(t *testing.T, path string) {
			writeFile(t, path, readFile(t, path)[:pageSize-1])
		}},
		{what: "emptied", why: "removed or emptied", damage: func(t *testing.T, path string) { writeFile(t, path, nil) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			w, before := aWorld(t, path, here)
			if c.damage != nil {
				c.damage(t, path)
			}
			there := here
			if c.change != nil {
				c.change(&there)
			}
			f := mustOpen(t, path, there)
			r := f.Recovered()
			if c.why == "" {
				if r.Reset || r.ResetReason != "" || r.UUID != before.UUID || r.Key != before.Key {
					t.Fatalf("%+v", r)
				}
				if there.pidNS != here.pidNS {
					s := w.sessions[3]
					s.Peer.PID, s.Process = 0, Process{}
					w.sessions[3] = s
				}
				if got, err := worldOf(r); err != nil || !got.equal(w) {
					t.Fatalf("%v\n%s", err, got.diff(w))
				}
			} else {
				if !r.Reset || r.UUID == before.UUID || r.Key == before.Key || !strings.Contains(r.ResetReason, c.why) {
					t.Fatalf("%+v", r)
				}
				w = emptyWorld()
				if got, err := worldOf(r); err != nil || !got.equal(w) {
					t.Fatalf("%v\n%s", err, got.diff(w))
				}
			}
			// Whatever it was, it is a good file from now on, and in this namespace.
			f.Close()
			f = mustOpen(t, path, there)
			if again := f.Recovered(); again.Reset && there.boot != [16]byte{} || !again.Reset && again.UUID != r.UUID {
				t.Errorf("%+v", again)
			} else if got, err := worldOf(again); err != nil || !got.equal(w) {
				t.Errorf("%v\n%s", err, got.diff(w))
			}
		})
	}
}

// testdata/format3 is a state file that version 0.1.0 wrote during its development, when a
// lock and its hold were one record. On the same boot, in the same inode, with its sequence
// file: nothing of it is taken over.
//
// Shows docs/guarantees.md: The state file is gone, damaged, of another boot.
func TestStateOfAnEarlierFormatIsReset(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	h := thisHost()
	h.boot, h.timeNS, h.pidNS = [16]byte{1}, 2, 3
	old := append(readFile(t, "testdata/format3"), make([]byte, minSize)...)[:minSize]
	writeFile(t, path, old)
	writeFile(t, path+".seq", append(readFile(t, "testdata/format3.seq"), make([]byte, pageSize)...)[:pageSize])
	own := ownIdentity(t, path, h)
	img := image(words(old))
	img[hDev], img[hInode], img[hHandle], img[hBorn] = own.dev, own.inode, own.handle, own.born
	img[hSum] = sumOf(img[hFormat:hSum]) // without a key prefix
	writeFile(t, path, appendWords(nil, img))
	before := img.uuid()

	f := mustOpen(t, path, h)
	r := f.Recovered()
	const want = "the state file was written by another version of the sidecar (it has format 3, this version uses format 4), so its locks end with their leases"
	if !r.Reset || r.ResetReason != want || r.UUID == before || len(r.Sessions)+len(r.Snapshot.Locks)+len(r.Snapshot.Holds) != 0 || r.LastSessionID+r.Snapshot.LastHoldID != 0 {
		t.Errorf("%+v", r)
	}
	putHeld(f, "invoice:42", 1)
	f.Commit(0)
	f.Close()
	if again := mustOpen(t, path, h).Recovered(); again.Reset || again.UUID != r.UUID || len(again.Snapshot.Holds) != 1 {
		t.Errorf("%+v", again)
	}
}

// Under other keys, Redis does not have what the state says. What is not taken over ends:
// it is not there when the prefix is changed back.
func TestStateIsThatOfOneKeyPrefix(t *testing.T) {
	longest := strings.Repeat("ü", MaxKeyPrefix/2)
	prefixes := []string{"", "app1:", "app1", "12345678", longest, longest[2:]}
	for _, had := range prefixes {
		for _, has := range prefixes {
			before, now := thisHost(), thisHost()
			before.sidecar.KeyPrefix, now.sidecar.KeyPrefix = had, has
			path := filepath.Join(t.TempDir(), "state")
			w, r := aWorld(t, path, before)
			f := mustOpen(t, path, now)
			got := f.Recovered()
			f.Close()
			if had == has {
				if world, err := worldOf(got); got.Reset || got.UUID != r.UUID || err != nil || !world.equal(w) {
					t.Errorf("with prefix %q: %v\n%+v", has, err, got)
				}
				continue
			}
			for _, text := range []string{fmt.Sprintf("the key prefix was %q", had), fmt.Sprintf("is %q now", has)} {
				if !strings.Contains(got.ResetReason, text) {
					t.Errorf("prefix %q after %q: the reason is %q", has, had, got.ResetReason)
				}
			}
			if !got.Reset || got.UUID == r.UUID || got.Key == r.Key || len(got.Snapshot.Locks)+len(got.Sessions) != 0 {
				t.Errorf("prefix %q after %q: %+v", has, had, got)
			}
			if again := mustOpen(t, path, before).Recovered(); !again.Reset || again.UUID == r.UUID {
				t.Errorf("prefix %q after %q and back: %+v", has, had, again)
			}
		}
	}
}

func TestKeyPrefixThatIsDamaged(t *testing.T) {
	h := thisHost()
	h.sidecar.KeyPrefix = "app1:"
	for what, damage := range map[string]func(im image){
		"another text": func(im image) { im[hPrefixText]++ },
		"shorter":      func(im image) { im[hPrefix]-- },
		"none":         func(im image) { im[hPrefix] = 0 },
		"too long, with a sum that is right": func(im image) {
			im[hPrefix] = MaxKeyPrefix + 1
			im[hSum] = im.headerSum()
		},
	} {
		path := filepath.Join(t.TempDir(), "state")
		f := mustOpen(t, path, h)
		damage(f.img)
		f.Close()
		if r := mustOpen(t, path, h).Recovered(); !r.Reset || !strings.Contains(r.ResetReason, "header of the state file is damaged") {
			t.Errorf("%s: %+v", what, r)
		}
	}
	h.sidecar.KeyPrefix = strings.Repeat("x", MaxKeyPrefix+1)
	if f, err := open(filepath.Join(t.TempDir(), "state"), h); err == nil {
		f.Close()
		t.Error("a prefix that does not fit into the header was stored")
	}
}

// A pid that was not visible stays so when the file comes back to the namespace
// where another process has it.
func TestPIDsDoNotComeBackFromAnotherNamespace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	here, there := thisHost(), thisHost()
	there.pidNS++
	aWorld(t, path, here)
	mustOpen(t, path, there).Close()
	r := mustOpen(t, path, here).Recovered()
	if s := r.Sessions[0]; s.Peer.PID != 0 || s.Process != (Process{}) || s.Peer.Cmd != "worker --fast" {
		t.Errorf("%+v", s)
	}
}

// A hold whose lock is not there, or is another lock, is damaged, too: it is never restored.
func TestDamagedRecordResetsTheFile(t *testing.T) {
	const session, lock, hold, dropped, shared = firstCell, firstCell + 1, firstCell + 2, firstCell + 3, firstCell + 5 // see aWorld
	for _, c := range []struct {
		what string
		cell int64
		at   int64
		b    []byte
	}{
		{"a session of no known phase", session, 8*sessionLease + 4, []byte{byte(locktable.SessionEnded)}},
		{"a session with an unknown flag", session, 8*sessionLease + 5, []byte{3}},
		{"a name that is not UTF-8", lock, 8 * lockName, []byte{0xff}},
		{"a name without its sum", lock, 8 * lockName, []byte("x")},
		{"a name of no bytes", lock, 2, []byte{0, 0}},
		{"a name longer than allowed", lock, 2, []byte{1, 2}},
		{"a part that is not there", lock, 4, []byte{0xff, 0xff, 0xff, 0xff}},
		{"a part that is a lock", lock, 4, []byte{dropped}},
		{"itself as its part", lock, 4, []byte{lock}},
		{"a hold with no entries", lock, 8 * holdEntries, []byte{0}},
		{"a hold with a larger number than its lock", lock, 8 * holdID, []byte{99}},
		{"a time before the boot", lock, 8*holdDeadline + 7, []byte{0x80}},
		{"an unknown flag", lock, 8 * holdFlags, []byte{byte(locktable.HoldUnserved) | flagFixed | flagForced}},
		{"a keep in the cell of a lock, which has no word for it", lock, 8 * holdFlags, []byte{byte(locktable.HoldUnserved) | flagFixed | flagKeep}},
		{"a kept hold without a keep", hold, 8 * holdFlags, []byte{byte(locktable.HoldKept) | flagInDoubt}},
		{"a keep that ends never", hold, 8 * holdFlags, []byte{byte(locktable.HoldCrashDelayed) | flagInDoubt | flagKeep}},
		{"an unknown phase", lock, 8 * holdFlags, []byte{byte(locktable.HoldKept+1) | flagFixed}},
		{"an unknown mode", shared, 8*holdFlags + flagMode/8, []byte{3}},
		{"a mode of permits of a read/write lock", shared, 8*holdFlags + flagMode/8, []byte{2}},
		{"a shared hold in the cell of a lock", lock, 8*holdFlags + flagMode/8, []byte{1}},
		{"a shared hold of a lock whose holds exclude each other", hold, 8*holdFlags + flagMode/8, []byte{1}},
		{"a lock of another kind with a hold in its cell", lock, 0, []byte{kindReadWrite}},
		{"no permits", lock, 8*holdFlags + flagPermits/8, []byte{0}},
		{"a fixed lease of no length", lock, 8*holdLease + 4, []byte{0, 0, 0, 0}},
		{"a hold of no lock", hold, 8 * holdLock, []byte{0}},
		{"a hold of a lock after the end of the file", hold, 8 * holdLock, []byte{0xff, 0xff, 0xff, 0xff}},
		{"a hold of a session", hold, 8 * holdLock, []byte{session}},
		{"a hold of another lock", hold, 8 * holdLock, []byte{dropped}},
		{"a hold whose lock is deleted", lock, 0, make([]byte, 8)},
		{"a hold with the number of another hold", hold, 8 * holdID, []byte{8}},
		{"a hold in a cell of its own with a larger number than its lock", hold, 8 * holdID, []byte{10}},
		{"a hold without a number", hold, 8 * holdID, []byte{0}},
		{"a hold with a part", hold, 4, []byte{dropped}},
		{"a hold in a cell of its own with no entries", hold, 8 * holdEntries, []byte{0}},
		{"a lock that became a record of an unknown kind", lock, 0, []byte{kindHold + 1}},
		{"a lock that became a record of the last optional kind", dropped, 0, []byte{kindRequired - 1}},
	} {
		t.Run(c.what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			aWorld(t, path, thisHost())
			patch(c.cell*cellSize+c.at, c.b...)(t, path)
			r := mustOpen(t, path, thisHost()).Recovered()
			if !r.Reset || !strings.HasSuffix(r.ResetReason, "records of the state file are damaged, or need a later version of the sidecar") || len(r.Snapshot.Locks)+len(r.Snapshot.Holds)+len(r.Sessions) != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// putLater stores a record of a kind that this version does not have, as a later version would.
func putLater(t testing.TB, f *File, kind int, about uint64) {
	t.Helper()
	slot, word, _ := f.newRecord(kind, cellWords, strings.Repeat("x", 200)) // all of the text is in parts
	if slot == 0 {
		t.Fatal(f.completeness.reason)
	}
	c := f.img.cell(slot)
	c[1], c[2] = about, 7
	c[cellWords-1] = mix(sumOf(c[1:cellWords-1]), withNext(word, 0))
	f.publish(&c[0], word)
}

// A later version adds records and words of the header. This one takes the rest over, and leaves nothing
// of them that could be out of date when the later version comes back.
func TestStateOfALaterVersionIsTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	want, before := aWorld(t, path, thisHost())
	f := mustOpen(t, path, thisHost())
	for _, kind := range []int{kindHold + 1, kindRequired - 1} {
		putLater(t, f, kind, 8)
	}
	for _, words := range f.img.unused() {
		words[0], words[len(words)-1] = 1, 2
	}
	f.Commit(0)
	f.Close()

	f = mustOpen(t, path, thisHost())
	r := f.Recovered()
	if got, err := worldOf(r); r.Reset || r.UUID != before.UUID || err != nil || !got.equal(want) {
		t.Fatalf("%+v, %v\n%s", r, err, got.diff(want))
	}
	for i := uint32(firstCell); i < f.end; i++ {
		if c := f.img.cell(i); kindOf(c[0]) > kindHold && !c.hasLock() || i >= f.next && c[0] != 0 {
			t.Errorf("cell %d has a record of kind %d", i, kindOf(c[0]))
		}
	}
	for _, words := range f.img.unused() {
		if slices.ContainsFunc(words, func(w uint64) bool { return w != 0 }) {
			t.Errorf("the header has %v", words)
		}
	}
}

// A later version stores a required record while a feature is in use without which the rest is not true.
func TestRecordThatNeedsALaterVersionResetsTheFile(t *testing.T) {
	for _, kind := range []int{kindUnknown, 1<<8 - 1} {
		path := filepath.Join(t.TempDir(), "state")
		_, before := aWorld(t, path, thisHost())
		f := mustOpen(t, path, thisHost())
		putLater(t, f, kind, 8)
		f.Commit(0)
		f.Close()
		r := mustOpen(t, path, thisHost()).Recovered()
		if !r.Reset || r.UUID == before.UUID || r.ResetReason != "1 records of the state file are damaged, or need a later version of the sidecar" {
			t.Errorf("kind %d: %+v", kind, r)
		}
	}
}

func TestRefusedFiles(t *testing.T) {
	for _, c := range []struct {
		what string
		make func(path string) error
		says string
	}{
		{"a sequence file of something else", func(p string) error { return os.WriteFile(p+".seq", []byte("x"), 0o600) }, "not the sequence file"},
		{"a sequence file that is a symbolic link", func(p string) error { return os.Symlink(p+".target", p+".seq") }, "symbolic link"},
		{"a sequence file that others can read", func(p string) error { return mode(p+".seq", 0o604) }, "mode 0604"},
		{"symbolic link", func(p string) error { return os.Symlink(p+".target", p) }, "symbolic link"},
		{"directory", func(p string) error { return os.Mkdir(p, 0o700) }, "directory"},
		{"pipe", func(p string) error { return unix.Mkfifo(p, 0o600) }, "not a regular file"},
		{"world-writable", func(p string) error { return mode(p, 0o602) }, "mode 0602"},
		{"group-writable", func(p string) error { return mode(p, 0o620) }, "mode 0620"},
		{"readable for others", func(p string) error { return mode(p, 0o604) }, "mode 0604"},
		{"foreign", func(p string) error {
			if unix.Geteuid() != 0 {
				return os.ErrPermission
			}
			if err := mode(p, 0o600); err != nil {
				return err
			}
			return os.Chown(p, 12345, -1)
		}, "belongs to uid 12345"},
		{"in no directory", func(string) error { return nil }, "no such file or directory"},
	} {
		t.Run(c.what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			if err := c.make(path); os.IsPermission(err) {
				t.Skip("only root can make one")
			} else if err != nil {
				t.Fatal(err)
			}
			if c.what == "in no directory" {
				path += "/state"
			}
			f, err := Open(path)
			if err == nil {
				f.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path) {
				t.Error(err)
			}
			if _, err := os.Lstat(path + ".target"); err == nil {
				t.Error("the target of the link was made")
			}
		})
	}
}

func mode(path string, m os.FileMode) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return os.Chmod(path, m)
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func patch(at int64, b ...byte) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
}

// A file that had many locks once takes no more than the few that are left.
func TestFileShrinksWhenItIsRestored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := mustOpen(t, path, thisHost())
	const many = 50_000
	at := make([]uint32, many)
	for i := range at {
		if at[i] = putHeld(f, fmt.Sprintf("warehouse:%0*d", 10+i%60, i), uint64(i+1)); at[i] == 0 {
			t.Fatal(f.completeness.reason)
		}
	}
	big := sizeOf(t, path)
	for i, slot := range at {
		if i%1000 != 0 {
			deleteHeld(f, slot)
		}
	}
	f.Close()
	f = mustOpen(t, path, thisHost())
	if size := sizeOf(t, path); big < many*cellSize || size != minSize {
		t.Errorf("%d bytes were and %d are", big, size)
	}
	m := f.Recovered().Snapshot
	if len(m.Locks) != many/1000 || len(m.Holds) != many/1000 {
		t.Fatalf("%d locks and %d holds are recovered", len(m.Locks), len(m.Holds))
	}
	for i, l := range m.Locks {
		if h := m.Holds[i]; h.Slot != l.Slot {
			t.Fatalf("hold %d in slot %d is not in the cell of its lock, %d", h.ID, h.Slot, l.Slot)
		}
		deleteHeld(f, l.Slot)
	}
	f.Close()
	if n := len(mustOpen(t, path, thisHost()).Recovered().Snapshot.Locks); n != 0 {
		t.Errorf("%d locks came back", n)
	}
}

// A lock with a name of up to 32 bytes and its hold take 128 bytes, whatever the hold has.
func TestHeldLockTakesOneCell(t *testing.T) {
	f := mustOpen(t, filepath.Join(t.TempDir(), "state"), thisHost())
	h := holdRecord(1)
	h.End, h.CrashDelayMS, h.LeaseMS, h.Lease, h.Permits, h.InDoubt = 1<<61, 1<<31, 1<<31, locktable.FixedLease, 1<<15, true
	before := f.next
	if f.PutHold(0, f.PutLock(0, lockRecord(strings.Repeat("x", 32), 1)), h) == 0 || f.next != before+1 || cellSize != 128 {
		t.Errorf("%d cells of %d bytes", f.next-before, cellSize)
	}
}

// Files of sidecars that knew no keep have a hold in a cell of its own whose word for it has
// whatever the cell had before.
func TestHoldWithoutAKeepIsReadWithoutIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	want, _ := aWorld(t, path, thisHost())
	patch((firstCell+2)*cellSize+8*holdKeep, 1, 2, 3)(t, path)
	w, err := worldOf(mustOpen(t, path, thisHost()).Recovered())
	if err != nil || !reflect.DeepEqual(w, want) {
		t.Errorf("%v, %+v, want %+v", err, w, want)
	}
}

func TestTextsAreTruncatedToValidUTF8(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := mustOpen(t, path, thisHost())
	f.OpenSession(Session{
		SessionRecord: locktable.SessionRecord{ID: 1},
		Peer:          locktable.Peer{Cmd: strings.Repeat("é", 40) + "\xff", Client: "x" + strings.Repeat("é", 70)},
	})
	f.PutRedis(Redis{RunID: strings.Repeat("r", 100), ReplID: "p\xff"})
	f.Close()
	r := mustOpen(t, path, thisHost()).Recovered()
	p := r.Sessions[0].Peer
	if p.Cmd != strings.Repeat("é", 30)+"…" || p.Client != "x"+strings.Repeat("é", 63) ||
		r.Redis.RunID != strings.Repeat("r", 64) || r.Redis.ReplID != "p" {
		t.Errorf("%+v %+v", p, r.Redis)
	}
}

func TestNameThatIsTooLongMakesTheFileIncomplete(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := mustOpen(t, path, thisHost())
	if f.PutLock(0, lockRecord(strings.Repeat("n", 513), 1)) != 0 || !strings.Contains(f.completeness.reason, "513 bytes") {
		t.Errorf("a name of 513 bytes was stored, or: %s", f.completeness.reason)
	}
	f.Close()
	if r := mustOpen(t, path, thisHost()).Recovered(); !r.Reset {
		t.Errorf("%+v", r)
	}
}

// A wrong slot would make the file untrue.
func TestWrongSlotPanics(t *testing.T) {
	f := mustOpen(t, filepath.Join(t.TempDir(), "state"), thisHost())
	free, lock, held := putHeld(f, "free", 1), f.PutLock(0, lockRecord("lock", 2)), putHeld(f, "held", 3)
	hold := f.PutHold(0, held, holdRecord(2))
	deleteHeld(f, free)
	for what, wrong := range map[string]func(){
		"a free cell as a lock":              func() { f.DeleteLock(free) },
		"a cell of the header as a lock":     func() { f.DeleteLock(1) },
		"a cell after the end as a lock":     func() { f.DeleteLock(1 << 31) },
		"a hold as a lock":                   func() { f.DeleteLock(hold) },
		"a lock with another name":           func() { f.PutLock(lock, lockRecord("cool", 2)) },
		"a lock before its hold":             func() { f.DeleteLock(held) },
		"a free cell as a hold":              func() { f.DeleteHold(free) },
		"no slot as a hold":                  func() { f.DeleteHold(0) },
		"a lock without a hold as a hold":    func() { f.DeleteHold(lock) },
		"a hold with another number":         func() { f.PutHold(hold, held, holdRecord(3)) },
		"a hold of a lock that is not there": func() { f.PutHold(0, free, holdRecord(4)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			wrong()
		}()
	}
}

// The lock table counts what a lock and its hold take of the state file.
func TestLocksCountAsTheCellsThatTheyHave(t *testing.T) {
	for n := 1; n <= protocol.MaxName; n++ {
		if got, want := locktable.Cells(strings.Repeat("x", n)), 1+parts(n, lockName); got != want {
			t.Fatalf("a name of %d bytes counts as %d cells, and has %d", n, got, want)
		}
	}
}

// Of two records of one session, the one counts that was sent more of its lease events: the other one has
// a deadline that was replaced.
func TestNewerSessionIsThatWithTheLaterLease(t *testing.T) {
	session := func(seq uint32, sent int64) Session {
		return Session{SessionRecord: locktable.SessionRecord{ID: 1, LeaseSeq: seq, LeaseSent: sent}}
	}
	for _, tt := range []struct {
		a, b Session
		want bool
	}{
		{session(2, 10), session(1, 20), true},
		{session(1, 20), session(2, 10), false},
		{session(2, 20), session(2, 10), true},
		{session(2, 10), session(2, 20), false},
		{session(2, 10), session(2, 10), false},
	} {
		if got := isNewerSession(tt.a, tt.b); got != tt.want {
			t.Errorf("%+v is newer than %+v: %v", tt.a.SessionRecord, tt.b.SessionRecord, got)
		}
	}
}

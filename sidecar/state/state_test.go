package state

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

func inodeOf(t testing.TB, path string) (dev, inode uint64) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return uint64(st.Dev), st.Ino
}

// aWorld puts a little of everything into a file and closes it.
func aWorld(t *testing.T, path string, h host) (world, Left) {
	t.Helper()
	f := mustOpen(t, path, h)
	left := f.Left()
	w := emptyWorld()
	for _, d := range []deed{
		{do: openSession, session: Session{
			SessionRecord: locktable.SessionRecord{ID: 3, Told: 40e9, Tells: 2},
			Peer:          locktable.Peer{PID: 4242, UID: 1000, Cmd: "worker --fast", Client: "go/1.0.0"},
			Process:       Process{Pidfd: 78, Start: 77}, Resumable: true,
		}},
		{name: "invoice:42", lock: locktable.LockRecord{Name: "invoice:42", Top: 9, Hold: locktable.HoldRecord{
			Num: 8, Token: 5, Owner: 6, Session: 3, Granted: 1e9, Deadline: 31e9, Count: 2, LeaseMS: 30000,
		}}},
		{name: "dropped", lock: locktable.LockRecord{Name: "dropped", Top: 10}},
		{do: keepLast, num: 11},
		{do: keepLastSession, num: 4},
		{do: keepRedis, redis: Redis{RunID: "run", ReplID: "repl", ClientID: 1, Floor: 2, FloorAt: 3}},
	} {
		d.doIn(f, slots{})
		d.apply(&w)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return w, left
}

func TestFirstStartIsFreshWithoutAReason(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	left := mustOpen(t, path, thisHost()).Left()
	if !left.Fresh || left.Why != "" || len(left.UUID) != 36 || left.Key == [32]byte{} {
		t.Errorf("%+v", left)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	other := mustOpen(t, path+"2", thisHost()).Left()
	if other.UUID == left.UUID || other.Key == left.Key {
		t.Error("two files began with one uuid or key")
	}
}

func TestAFileOfSomebodyElseIsLeftAlone(t *testing.T) {
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

func TestStateThatNoSuccessorCanUseSaysSoFromTheStart(t *testing.T) {
	h := thisHost()
	if why := mustOpen(t, filepath.Join(t.TempDir(), "state"), h).Unidentified(); why != "" {
		t.Errorf("on this host: %s", why)
	}
	h.boot = [16]byte{}
	if why := mustOpen(t, filepath.Join(t.TempDir(), "state"), h).Unidentified(); !strings.Contains(why, "ProcSubset=pid") {
		t.Errorf("without a boot id: %q", why)
	}
}

func TestWhatIsTakenOverAndWhatIsNot(t *testing.T) {
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
		{what: "a later format", why: "format 4", damage: patch(8*hFormat, 4)},
		{what: "an earlier format", why: "format 2", damage: patch(8*hFormat, 2)},
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
			left := f.Left()
			if c.why == "" {
				if left.Fresh || left.Why != "" || left.UUID != before.UUID || left.Key != before.Key {
					t.Fatalf("%+v", left)
				}
				if there.pidNS != here.pidNS {
					s := w.sessions[3]
					s.Peer.PID, s.Process = 0, Process{}
					w.sessions[3] = s
				}
				if got, err := worldOf(left); err != nil || !got.equal(w) {
					t.Fatalf("%v\n%s", err, got.diff(w))
				}
			} else {
				if !left.Fresh || left.UUID == before.UUID || left.Key == before.Key || !strings.Contains(left.Why, c.why) {
					t.Fatalf("%+v", left)
				}
				w = emptyWorld()
				if got, err := worldOf(left); err != nil || !got.equal(w) {
					t.Fatalf("%v\n%s", err, got.diff(w))
				}
			}
			// Whatever it was, it is a good file from now on, and in this namespace.
			f.Close()
			f = mustOpen(t, path, there)
			if again := f.Left(); again.Fresh && there.boot != [16]byte{} || !again.Fresh && again.UUID != left.UUID {
				t.Errorf("%+v", again)
			} else if got, err := worldOf(again); err != nil || !got.equal(w) {
				t.Errorf("%v\n%s", err, got.diff(w))
			}
		})
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
			w, left := aWorld(t, path, before)
			f := mustOpen(t, path, now)
			got := f.Left()
			f.Close()
			if had == has {
				if world, err := worldOf(got); got.Fresh || got.UUID != left.UUID || err != nil || !world.equal(w) {
					t.Errorf("with prefix %q: %v\n%+v", has, err, got)
				}
				continue
			}
			for _, text := range []string{fmt.Sprintf("the key prefix was %q", had), fmt.Sprintf("is %q now", has)} {
				if !strings.Contains(got.Why, text) {
					t.Errorf("prefix %q after %q: the reason is %q", has, had, got.Why)
				}
			}
			if !got.Fresh || got.UUID == left.UUID || got.Key == left.Key || len(got.Memory.Locks)+len(got.Sessions) != 0 {
				t.Errorf("prefix %q after %q: %+v", has, had, got)
			}
			if again := mustOpen(t, path, before).Left(); !again.Fresh || again.UUID == left.UUID {
				t.Errorf("prefix %q after %q and back: %+v", has, had, again)
			}
		}
	}
}

// The header says whether it has a prefix, in a way that earlier versions, which know none,
// take for damage: they would look for the locks under other keys.
func TestHeaderWithAKeyPrefixIsDamagedToEarlierVersions(t *testing.T) {
	for _, prefix := range []string{"", "app1:"} {
		h := thisHost()
		h.sidecar.KeyPrefix = prefix
		path := filepath.Join(t.TempDir(), "state")
		img := mustOpen(t, path, h).img
		if damaged := img[hSum] != sumOf(img[hFormat:hSum]); damaged != (prefix != "") {
			t.Errorf("prefix %q: damaged %v", prefix, damaged)
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
		if left := mustOpen(t, path, h).Left(); !left.Fresh || !strings.Contains(left.Why, "header of the state file is damaged") {
			t.Errorf("%s: %+v", what, left)
		}
	}
	h.sidecar.KeyPrefix = strings.Repeat("x", MaxKeyPrefix+1)
	if f, err := open(filepath.Join(t.TempDir(), "state"), h); err == nil {
		f.Close()
		t.Error("a prefix that does not fit into the header was kept")
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
	left := mustOpen(t, path, here).Left()
	if s := left.Sessions[0]; s.Peer.PID != 0 || s.Process != (Process{}) || s.Peer.Cmd != "worker --fast" {
		t.Errorf("%+v", s)
	}
}

func TestOneBadRecordSpoilsTheFile(t *testing.T) {
	for _, c := range []struct {
		what string
		at   int64
		b    []byte
	}{
		{"a name that is not UTF-8", 8 * lText, []byte{0xff}},
		{"a name without its sum", 8 * lText, []byte("x")},
		{"a name of no bytes", 2, []byte{0, 0}},
		{"a name longer than allowed", 2, []byte{1, 2}},
		{"a part that is not there", 4, []byte{0xff, 0xff, 0xff, 0xff}},
		{"a part that is a lock", 4, []byte{firstCell + 2}},
		{"itself as its part", 4, []byte{firstCell + 1}},
		{"a count of 0", 8 * lCount, []byte{0}},
		{"a number above the greatest", 8 * lNum, []byte{99}},
		{"a time before the boot", 8*lDeadline + 7, []byte{0x80}},
		{"an unknown flag", 8 * lFlags, []byte{4}},
	} {
		t.Run(c.what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			aWorld(t, path, thisHost())
			// The session has the first cell, the held lock the second.
			patch((firstCell+1)*cellSize+c.at, c.b...)(t, path)
			left := mustOpen(t, path, thisHost()).Left()
			if !left.Fresh || left.Why != "1 records of the state file are damaged" || len(left.Memory.Locks)+len(left.Sessions) != 0 {
				t.Errorf("%+v", left)
			}
		})
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

// A file that had many locks once costs what the few that are left cost.
func TestFileShrinksWhenItIsTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := mustOpen(t, path, thisHost())
	const many = 50_000
	at := make([]uint32, many)
	for i := range at {
		r := benchLock(fmt.Sprintf("warehouse:%0*d", 10+i%60, i), uint64(i+1))
		r.Hold.Orphan = true
		if at[i] = f.KeepLock(0, &r); at[i] == 0 {
			t.Fatal(f.gap.reason)
		}
	}
	big := sizeOf(t, path)
	for i, slot := range at {
		if i%1000 != 0 {
			f.ForgetLock(slot)
		}
	}
	f.Close()
	f = mustOpen(t, path, thisHost())
	if size := sizeOf(t, path); big < many*cellSize || size != minSize {
		t.Errorf("%d bytes were and %d are", big, size)
	}
	left := f.Left()
	if len(left.Memory.Locks) != many/1000 {
		t.Fatalf("%d locks are left", len(left.Memory.Locks))
	}
	for _, r := range left.Memory.Locks {
		f.ForgetLock(r.Slot)
	}
	f.Close()
	if n := len(mustOpen(t, path, thisHost()).Left().Memory.Locks); n != 0 {
		t.Errorf("%d locks came back", n)
	}
}

func TestTextsAreCutWhereTheyMayBe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := mustOpen(t, path, thisHost())
	f.OpenSession(Session{
		SessionRecord: locktable.SessionRecord{ID: 1},
		Peer:          locktable.Peer{Cmd: strings.Repeat("é", 40) + "\xff", Client: "x" + strings.Repeat("é", 70)},
	})
	f.KeepRedis(Redis{RunID: strings.Repeat("r", 100), ReplID: "p\xff"})
	f.Close()
	left := mustOpen(t, path, thisHost()).Left()
	p := left.Sessions[0].Peer
	if p.Cmd != strings.Repeat("é", 32) || p.Client != "x"+strings.Repeat("é", 63) ||
		left.Redis.RunID != strings.Repeat("r", 64) || left.Redis.ReplID != "p" {
		t.Errorf("%+v %+v", p, left.Redis)
	}
}

func TestANameThatCannotBeKeptSpoilsTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f := mustOpen(t, path, thisHost())
	r := locktable.LockRecord{Name: strings.Repeat("n", 513), Top: 1}
	if f.KeepLock(0, &r) != 0 || !strings.Contains(f.gap.reason, "513 bytes") {
		t.Errorf("a name of 513 bytes was kept, or: %s", f.gap.reason)
	}
	f.Close()
	if left := mustOpen(t, path, thisHost()).Left(); !left.Fresh {
		t.Errorf("%+v", left)
	}
}

func TestASlotThatIsNoLockIsAMistake(t *testing.T) {
	f := mustOpen(t, filepath.Join(t.TempDir(), "state"), thisHost())
	r := benchLock("a", 1)
	slot := f.KeepLock(0, &r)
	f.ForgetLock(slot)
	f.ForgetLock(0)
	for _, slot := range []uint32{slot, 1, 1 << 31} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("slot %d was forgotten", slot)
				}
			}()
			f.ForgetLock(slot)
		}()
	}
}

// The lock table counts what a lock takes of the state file.
func TestLocksCountAsTheCellsThatTheyHave(t *testing.T) {
	for n := 1; n <= protocol.MaxName; n++ {
		if got, want := locktable.Cells(strings.Repeat("x", n)), 1+parts(n, lText); got != want {
			t.Fatalf("a name of %d bytes counts as %d cells, and has %d", n, got, want)
		}
	}
}

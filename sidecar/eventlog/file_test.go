package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// keptEvents opens the file of the events as a successor does, and returns their names and the log.
func keptEvents(t *testing.T, path string) (f *eventFile, names, log string) {
	t.Helper()
	var text strings.Builder
	f, events := openEventFile(path, 1<<40, slog.New(slog.NewTextHandler(&text, nil)))
	for i, e := range events {
		if i > 0 && e.number <= events[i-1].number {
			t.Errorf("event %d comes after %d", e.number, events[i-1].number)
		}
		names += e.row.Name
	}
	return f, names, text.String()
}

// writeEvents leaves a file with the lost locks a, b and c.
func writeEvents(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "state")
	f, _, _ := keptEvents(t, path)
	for i, name := range []string{"a", "b", "c"} {
		f.add(event{number: uint64(10 + i), row: lostEvent(name)})
	}
	f.close()
	return path
}

func TestEventsAreInAFileThatOnlyThisUserReads(t *testing.T) {
	path := writeEvents(t)
	st, err := os.Stat(path + ".events")
	if err != nil || st.Mode() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	f, names, log := keptEvents(t, path)
	f.close()
	if names != "abc" || log != "" {
		t.Errorf("%q; logged %s", names, log)
	}
}

// A file that a sudden end, a full disk or another program tore ends before the torn event, and is
// continued there.
func TestTornFileOfEventsIsContinuedAfterTheLastWholeEvent(t *testing.T) {
	path := writeEvents(t)
	whole, err := os.ReadFile(path + ".events")
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(whole) {
		for _, tail := range []string{"", "\xff\xff\xff\xff", "\x00\x00\x00\x03\x81\xa1"} {
			if err := os.WriteFile(path+".events", append(whole[:cut:cut], tail...), 0o600); err != nil {
				t.Fatal(err)
			}
			f, names, _ := keptEvents(t, path)
			if !strings.HasPrefix("abc", names) {
				t.Fatalf("cut at %d: %q", cut, names)
			}
			if f == nil { // less than the magic, and then something else
				continue
			}
			f.add(event{number: 100, row: lostEvent("d")})
			f.close()
			f, again, _ := keptEvents(t, path)
			f.close()
			if again != names+"d" {
				t.Fatalf("cut at %d: %q, and then %q", cut, names, again)
			}
		}
	}
}

// A file with other numbers, of another boot, or of a later version, gives no events.
func TestEventsOfAnotherBootAreNotRead(t *testing.T) {
	path := writeEvents(t)
	whole, _ := os.ReadFile(path + ".events")
	header, events, _ := bytes.Cut(whole, []byte("\n"))
	for name, text := range map[string]string{
		"another boot":    eventFileMagic + "1 00-1\n" + string(events),
		"a later version": strings.Replace(string(header), "events 1", "events 2", 1) + "\n" + string(events),
	} {
		if err := os.WriteFile(path+".events", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, names, _ := keptEvents(t, path)
		f.close()
		if names != "" {
			t.Errorf("%s: %q", name, names)
		}
	}
	if rows, n := decodeEvents(append(events, events...), 1<<40); len(rows) != 3 || n != len(events) {
		t.Errorf("numbers that fall: %d events", len(rows))
	}
	if rows, _ := decodeEvents(events, 11); len(rows) != 2 {
		t.Errorf("numbers of the future: %d events", len(rows))
	}
}

// Operators shorten files that look like logs. What is written behind the end of such a file is not read, and the
// new one begins with the incidents of the old one.
func TestFileOfEventsThatIsShortenedBeginsAgain(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"emptied": func(p string) error { return os.Truncate(p, 0) },
		"halved":  func(p string) error { return os.Truncate(p, 100) },
		"removed": os.Remove,
	} {
		path := writeEvents(t)
		f, _, _ := keptEvents(t, path)
		if err := change(path + ".events"); err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"d", "e"} {
			f.add(event{number: uint64(20 + i), row: lostEvent(name)})
		}
		f.close()
		f, names, log := keptEvents(t, path)
		f.close()
		if names != "abcde" || log != "" {
			t.Errorf("%s: %q; logged %s", name, names, log)
		}
	}
}

// What another program or user may have put there is neither read nor changed, and the daemon runs.
func TestForeignFileOfEventsIsNotChanged(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"another program's": func(p string) error { return os.WriteFile(p, []byte("TRUNCATE ME NOT, PLEASE"), 0o600) },
		"others may write":  func(p string) error { return os.WriteFile(p, nil, 0o620) },
		"a directory":       func(p string) error { return os.Mkdir(p, 0o700) },
		"a pipe":            func(p string) error { return unix.Mkfifo(p, 0o600) },
		"a symbolic link":   func(p string) error { return os.Symlink("/dev/null", p) },
		"a link to a file that would do": func(p string) error {
			target := p + " elsewhere"
			return errors.Join(os.WriteFile(target, []byte(eventFileMagic), 0o600), os.Symlink(target, p))
		},
	} {
		for _, suffix := range []string{".events", ".events.old"} {
			path := filepath.Join(t.TempDir(), "state")
			old := unix.Umask(0)
			err := put(path + suffix)
			unix.Umask(old)
			if err != nil {
				t.Fatal(err)
			}
			f, names, log := keptEvents(t, path)
			if f != nil || names != "" || !strings.Contains(log, "will forget its events") {
				t.Errorf("%s at %s: %v, %q; logged %s", name, suffix, f, names, log)
			}
			if name != "another program's" {
				continue
			}
			if text, err := os.ReadFile(path + suffix); string(text) != "TRUNCATE ME NOT, PLEASE" {
				t.Errorf("it was changed: %q, %v", text, err)
			}
		}
	}
}

// However many events there are, the two files have a bound, and the newest events.
func TestFilesOfEventsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f, _, _ := keptEvents(t, path)
	const all = 6 * maxEvents
	for i := range all {
		row := lostEvent(fmt.Sprintf("%d,", i))
		row.Msg = strings.Repeat("m", 300)
		f.add(event{number: uint64(i + 1), row: row})
		if i%500 == 0 { // the writer must not fall behind
			f.close()
			if f, _, _ = keptEvents(t, path); f == nil {
				t.Fatal("the file cannot be opened again")
			}
		}
	}
	f.close()
	for _, suffix := range []string{".events", ".events.old"} {
		if st, err := os.Stat(path + suffix); err != nil || st.Size() > maxEventFile || st.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", suffix, st, err)
		}
	}
	f, names, _ := keptEvents(t, path)
	f.close()
	if n := strings.Count(names, ","); n < maxEvents || n == all || !strings.HasSuffix(names, fmt.Sprintf(",%d,", all-1)) {
		t.Errorf("%d events", n)
	}
}

// A storm of refusals removes no loss from the files, although it fills them again and again.
func TestStormOfRefusalsLeavesTheLossesInTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f, _, _ := keptEvents(t, path)
	number := uint64(0)
	add := func(row protocol.EventRow) {
		number++
		f.add(event{number: number, row: row})
	}
	reopen := func() (names string) {
		f.close()
		f, names, _ = keptEvents(t, path)
		if f == nil {
			t.Fatal("the file cannot be opened again")
		}
		return names
	}
	for i := range 20 {
		add(lostEvent(fmt.Sprintf("%d,", i)))
	}
	for range 8 {
		for range 900 {
			add(protocol.EventRow{Kind: protocol.EventDeadlock, Name: "d", Msg: strings.Repeat("m", 300)})
		}
		reopen() // the writer must not fall behind
	}
	add(lostEvent("last,"))
	names := strings.ReplaceAll(reopen(), "d", "")
	f.close()
	if want := "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,last,"; names != want {
		t.Errorf("left is %q", names)
	}
}

// While the file system hangs, events that are not written do not pile up in memory.
func TestUnwrittenEventsAreBounded(t *testing.T) {
	f, _, _ := keptEvents(t, filepath.Join(t.TempDir(), "state"))
	f.close() // its goroutine has ended
	for i, row := range []protocol.EventRow{{Kind: protocol.EventDeadlock}, lostEvent("a")} {
		for range 3 * maxUnwritten {
			f.add(event{row: row})
		}
		if n, want := len(f.waiting), (i+1)*maxUnwritten; n != want {
			t.Errorf("%d events wait to be written, want %d", n, want)
		}
	}
}

// A full disk loses events, and does not tear those before and after.
func TestFullDiskLosesEventsOnly(t *testing.T) {
	path := writeEvents(t)
	f, _, _ := keptEvents(t, path)
	f.close() // its goroutine has ended
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	var log strings.Builder
	f.log, f.file = slog.New(slog.NewTextHandler(&log, nil)), full
	f.waiting = []event{{number: 20, row: lostEvent("d")}, {number: 21, row: lostEvent("e")}}
	f.writeWaiting()
	f.end()
	if n := strings.Count(log.String(), "events are not written"); n != 1 || !strings.Contains(log.String(), "no space left") {
		t.Errorf("logged %s", log.String())
	}
	f, names, _ := keptEvents(t, path)
	f.close()
	if names != "abc" {
		t.Errorf("%q", names)
	}
}

// A disk that is full when the file is rotated has no room for the header either. The events that are
// written when it has room again come after a header: without one, a successor would take the file for
// that of another program.
func TestHeaderThatHadNoRoomIsWrittenLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	f, _, _ := keptEvents(t, path)
	f.close() // its goroutine has ended
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	f.file, f.size = full, 0
	f.waiting = []event{{number: 20, row: lostEvent("a")}}
	f.writeWaiting()
	f.end()
	if err := os.Truncate(path+".events", 0); err != nil {
		t.Fatal(err)
	}
	if f.file, err = os.OpenFile(path+".events", os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	f.waiting = []event{{number: 21, row: lostEvent("b")}, {number: 22, row: lostEvent("c")}}
	f.writeWaiting()
	f.end()
	f, names, log := keptEvents(t, path)
	if names != "bc" || log != "" {
		t.Fatalf("%q; logged %s", names, log)
	}
	f.close()
}

// A file ends with a whole event, also if only a part of what follows it had room.
func TestPartOfAnEventThatHadNoRoomIsRemoved(t *testing.T) {
	path := writeEvents(t)
	f, _, _ := keptEvents(t, path)
	f.close() // its goroutine has ended
	whole, err := os.ReadFile(path + ".events")
	if err != nil {
		t.Fatal(err)
	}
	reopen := func(flags int) {
		t.Helper()
		if f.file, err = os.OpenFile(path+".events", flags, 0); err != nil {
			t.Fatal(err)
		}
	}
	part := []byte("\x00\x00\x00\x30part of an event")
	writePart := func() {
		t.Helper()
		file, err := os.OpenFile(path+".events", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteAt(part, f.size); err != nil {
			t.Fatal(err)
		}
	}
	reopen(os.O_RDWR)
	writePart()
	if err := f.onWritten(len(part), unix.ENOSPC); err != unix.ENOSPC || f.size != int64(len(whole)) {
		t.Errorf("the file has %d bytes, of which %d count: %v", len(whole), f.size, err)
	}
	if text, err := os.ReadFile(path + ".events"); !bytes.Equal(text, whole) {
		t.Errorf("left is %q, %v", text[min(len(text), len(whole)):], err)
	}
	f.end()

	reopen(os.O_RDONLY) // it cannot be shortened
	writePart()
	if err := f.onWritten(len(part), unix.ENOSPC); err != unix.ENOSPC || f.file != nil {
		t.Errorf("a file that does not end with a whole event is written on: %v", err)
	}
}

// A client that read the predecessor's events continues after them, and one that asks for all gets
// theirs, too.
func TestRestoredEventsKeepTheirNumbers(t *testing.T) {
	g := New(5_000_000)
	g.restore([]event{{number: 100, row: lostEvent("a")}, {number: 200, row: lostEvent("b")}})
	if rows, next, missed := g.Page(0, 1<<20, nil, nil); names(rows) != "ab" || next != 5_000 || missed != 0 || g.HasAfter(next) {
		t.Errorf("%q, next %d, missed %d", names(rows), next, missed)
	}
	if g.HasAfter(200) || !g.HasAfter(199) || !g.HasAfter(1<<60) {
		t.Error("events after the last one, or none after the first")
	}
	g.Add(lostEvent("c"), About{})
	for _, tt := range []struct {
		after uint64
		want  string
	}{{0, "abc"}, {99, "abc"}, {100, "bc"}, {150, "bc"}, {200, "c"}, {4_999, "c"}, {5_000, "c"}, {5_001, ""}, {5_002, "abc"}} {
		if rows, next, missed := g.Page(tt.after, 1<<20, nil, nil); names(rows) != tt.want || next != 5_001 || missed != 0 || g.HasAfter(tt.after) != (tt.want != "") {
			t.Errorf("after %d: %q, next %d, missed %d", tt.after, names(rows), next, missed)
		}
	}
	rows, next, _ := g.Page(0, 1, nil, nil) // one page, one event
	if names(rows) != "a" || next != 100 {
		t.Errorf("%q, next %d", names(rows), next)
	}
	for range maxEvents + 7 {
		g.Add(grantEvent("g"), About{})
	}
	if rows, _, missed := g.Page(0, 1<<30, nil, nil); missed != 7 || len(rows) != maxEvents+3 {
		t.Errorf("%d events, missed %d", len(rows), missed)
	}
}

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeJournal is the socket of a journal, at the path where the daemon looks for it.
type fakeJournal struct {
	t    *testing.T
	conn *net.UnixConn
}

func startJournal(t *testing.T) *fakeJournal {
	t.Helper()
	setJournalSocket(t)
	return listenAsJournal(t)
}

// setJournalSocket lets the daemon look for the journal where there is none yet.
func setJournalSocket(t *testing.T) {
	t.Helper()
	before := journalSocket
	t.Cleanup(func() { journalSocket = before })
	journalSocket = filepath.Join(t.TempDir(), "journal")
}

func listenAsJournal(t *testing.T) *fakeJournal {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: journalSocket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(eventTimeoutMS * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	return &fakeJournal{t, conn}
}

// datagram returns the next one that was sent to the journal.
func (j *fakeJournal) datagram() []byte {
	j.t.Helper()
	b := make([]byte, 64<<10)
	n, err := j.conn.Read(b)
	if err != nil {
		j.t.Fatal(err)
	}
	return b[:n]
}

// entry returns the fields of the next entry, as the journal reads its native protocol.
func (j *fakeJournal) entry() map[string]string {
	j.t.Helper()
	fields := make(map[string]string)
	for b := j.datagram(); len(b) > 0; {
		line, rest, ok := bytes.Cut(b, []byte("\n"))
		name, value, isText := strings.Cut(string(line), "=")
		if !isText && len(rest) >= 8 {
			n := binary.LittleEndian.Uint64(rest)
			if ok = n < uint64(len(rest)-8) && rest[8+n] == '\n'; ok {
				value, rest = string(rest[8:8+n]), rest[8+n+1:]
			}
		}
		if _, isTwice := fields[name]; !ok || isTwice || name == "" {
			j.t.Fatalf("no field, or one that is there twice, at the begin of %q", b)
		}
		fields[name], b = value, rest
	}
	return fields
}

// The text of a line stays what it is without the journal. No value makes a field: a client chooses the names of its
// locks and its command line.
func TestLinesInTheJournalHaveTheirAttributesAsFields(t *testing.T) {
	j := startJournal(t)
	const hostile = "invoice:42\nLOCKSIDECAR_CLIENT_UID=0\nMESSAGE=forged\n\x00\x01=\n"
	for format, message := range map[string]string{
		"text": ` level=WARN msg="client met a limit" session=7 lock="invoice:42\nLOCKSIDECAR_CLIENT_UID=0\nMESSAGE=forged\n\x00\x01=\n" pid=4242 uid=1000 cmd=worker lease=30s g.on-host=x`,
		"json": `,"level":"WARN","msg":"client met a limit","session":7,"lock":"invoice:42\nLOCKSIDECAR_CLIENT_UID=0\nMESSAGE=forged\n\u0000\u0001=\n","pid":4242,"uid":1000,"cmd":"worker","lease_seconds":30,"g":{"on-host":"x"}}`,
	} {
		var stream strings.Builder
		w := &journalWriter{stream: &stream}
		c := &serveCmd{settings: settings{LogFormat: format}}
		log := c.logger(w, true).With("session", 7)
		log.With("lock", hostile, "pid", 4242, "uid", 1000, "cmd", "worker", "lease", 30*time.Second).WithGroup("g").Warn("client met a limit", "on-host", "x")
		got := j.entry()
		if !strings.HasSuffix(got["MESSAGE"], message) {
			t.Errorf("%s: the message is %s, want %s at its end", format, got["MESSAGE"], message)
		}
		delete(got, "MESSAGE")
		if want := map[string]string{
			"PRIORITY": "4", "SYSLOG_IDENTIFIER": "locksidecar", "LOCKSIDECAR_SESSION": "7", "LOCKSIDECAR_LOCK": hostile,
			"LOCKSIDECAR_CLIENT_PID": "4242", "LOCKSIDECAR_CLIENT_UID": "1000", "LOCKSIDECAR_CLIENT_CMD": "worker", "LOCKSIDECAR_LEASE": "30s",
			"LOCKSIDECAR_G_ON_HOST": "x",
		}; !maps.Equal(got, want) {
			t.Errorf("%s: the fields are %q, want %q", format, got, want)
		}
		// The other lines of the same logger have their own attributes alone.
		log.Info("client is back", "holds", 1)
		if got := j.entry(); got["PRIORITY"] != "6" || got["LOCKSIDECAR_SESSION"] != "7" || got["LOCKSIDECAR_HOLDS"] != "1" || len(got) != 5 {
			t.Errorf("%s: %q", format, got)
		}
		if stream.Len() > 0 {
			t.Errorf("%s: the stream has %q, too", format, stream.String())
		}
		w.conn.Close()
	}
}

// The stream to the journal has what its socket does not take.
func TestLineThatTheJournalDoesNotTakeIsInTheStream(t *testing.T) {
	setJournalSocket(t)
	var stream strings.Builder
	w := &journalWriter{stream: &stream}
	log := (&serveCmd{}).logger(w, true)
	log.Info("no journal", "lock", "a")
	j := listenAsJournal(t)
	log.Info("there is one", "lock", "b")
	log.Info("too long", "lock", strings.Repeat("x", 1<<20))
	log.Info("and the next", "lock", "c")
	for _, want := range []string{"b", "c"} {
		if got := j.entry(); got["LOCKSIDECAR_LOCK"] != want {
			t.Errorf("the entry is %q, want that of lock %s", got, want)
		}
	}
	// It is restarted, and has another socket.
	if err := errors.Join(j.conn.Close(), os.Remove(journalSocket)); err != nil {
		t.Fatal(err)
	}
	j = listenAsJournal(t)
	log.Info("restarted", "lock", "d")
	if got := j.entry(); got["LOCKSIDECAR_LOCK"] != "d" {
		t.Errorf("the entry after a restart is %q", got)
	}
	w.conn.Close()
	lines := strings.Split(stream.String(), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "<6>time=") || !strings.HasSuffix(lines[0], `msg="no journal" lock=a`) || !strings.Contains(lines[1], `msg="too long"`) || lines[2] != "" {
		t.Errorf("the stream has %.300q", lines)
	}
}

// While the journal is busy, a line waits for it.
func TestLineWaitsForAJournalWhoseQueueIsFull(t *testing.T) {
	j := startJournal(t)
	other, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	queued := 0
	for unix.Sendto(other, []byte("A=1\n"), 0, &unix.SockaddrUnix{Name: journalSocket}) == nil {
		queued++
	}
	var stream strings.Builder
	w := &journalWriter{stream: &stream}
	done := make(chan struct{})
	go func() {
		defer close(done)
		(&serveCmd{}).logger(w, true).Info("it waits", "lock", "a")
	}()
	for range queued {
		if got := j.entry(); got["A"] != "1" {
			t.Fatalf("%q", got)
		}
	}
	if got := j.entry(); got["LOCKSIDECAR_LOCK"] != "a" {
		t.Errorf("%q", got)
	}
	<-done
	w.conn.Close()
	if stream.Len() > 0 {
		t.Errorf("the stream has %q", stream.String())
	}
}

// A daemon whose standard error is a stream to the journal logs into its socket, and only then.
func TestServeLogsFieldsIntoTheJournal(t *testing.T) {
	cleanEnv(t)
	for _, isStream := range []bool{true, false} {
		j := startJournal(t)
		file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		f := &fakeSidecar{path: filepath.Join(t.TempDir(), "s.sock")}
		cmd := command(f, "serve", "--embedded")
		stream := fmt.Sprintf("%d:%d", st.Dev, st.Ino)
		if !isStream {
			stream = "1:1"
		}
		cmd.Env = append(cmd.Env, "JOURNAL_STREAM="+stream, journalEnv+"="+journalSocket)
		cmd.Stderr = file
		d := startServe(t, cmd)
		if got := d.notified(); got != "READY=1" {
			t.Fatalf("the first message is %q, want READY=1", got)
		}
		for isStream {
			if got := j.entry(); strings.Contains(got["MESSAGE"], "msg=serving ") {
				if got["LOCKSIDECAR_SOCKET"] != f.path || got["LOCKSIDECAR_DAEMON_PID"] != fmt.Sprint(d.cmd.Process.Pid) {
					t.Errorf("the entry is %q", got)
				}
				break
			}
		}
		d.stopped(unix.SIGTERM)
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		if isStream && len(text) > 0 {
			t.Errorf("standard error has %q, too", text)
		}
		if !isStream && (!strings.Contains(string(text), "msg=serving ") || strings.HasPrefix(string(text), "<")) {
			t.Errorf("standard error, which is not the journal, has %q", text)
		}
	}
}

func TestLogLinesHaveThePriorityOfTheirLevel(t *testing.T) {
	setJournalSocket(t)
	for _, format := range []string{"text", "json"} {
		var out strings.Builder
		c := &serveCmd{settings: settings{LogLevel: "debug", LogFormat: format}}
		log := c.logger(&journalWriter{stream: &out}, true).With("redis", "r").WithGroup("g")
		for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError, slog.LevelError + 4} {
			log.Log(t.Context(), level, "it happened", "n", 1)
		}
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		for i, want := range []string{"<7>", "<6>", "<4>", "<3>", "<3>"} {
			if !strings.HasPrefix(lines[i], want) || !strings.Contains(lines[i], "it happened") || !strings.Contains(lines[i], "redis") {
				t.Errorf("%s: line %d is %q, want it to begin with %s", format, i, lines[i], want)
			}
		}
	}
	var out strings.Builder
	(&serveCmd{settings: settings{LogLevel: "warn"}}).logger(&journalWriter{stream: &out}, true).Info("left out")
	if out.Len() != 0 {
		t.Errorf("logged %q", out.String())
	}
}

// The journal is recognized by the inode of stderr. $JOURNAL_STREAM may be inherited by a
// program whose stderr is another file.
func TestOnlyTheJournalGetsPriorities(t *testing.T) {
	cleanEnv(t)
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	for stream, want := range map[string]string{
		fmt.Sprintf("%d:%d", st.Dev, st.Ino): "<3>locksidecar: ", "1:1": "locksidecar: ", "": "locksidecar: ",
	} {
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		cmd := command(&fakeSidecar{}, "serve", "--lease", "0s")
		cmd.Env = append(cmd.Env, "JOURNAL_STREAM="+stream)
		cmd.Stderr, err = os.OpenFile(file.Name(), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if code := exitCodeOf(t, cmd.Run()); code != exitUsage {
			t.Errorf("exit code %d", code)
		}
		cmd.Stderr.(*os.File).Close()
		text, err := os.ReadFile(file.Name())
		if err != nil || !strings.HasPrefix(string(text), want) {
			t.Errorf("JOURNAL_STREAM=%q: printed %q, want %q first", stream, text, want)
		}
	}
}

package peers

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// blocking is a Commands whose reads of negative pids block until release.
type blocking struct {
	*Commands
	release     chan struct{}
	now, most   atomic.Int32 // reads in progress, and the most at one time
	interrupted atomic.Int32 // reads that blocked and were released
}

func newBlocking() *blocking {
	b := &blocking{Commands: NewCommands(), release: make(chan struct{})}
	b.Line = func(pid int64) string {
		n := b.now.Add(1)
		defer b.now.Add(-1)
		for most := b.most.Load(); n > most && !b.most.CompareAndSwap(most, n); most = b.most.Load() {
		}
		if pid < 0 {
			<-b.release
			b.interrupted.Add(1)
		}
		return fmt.Sprintf("line of %d", pid)
	}
	b.Name = func(pid int64) string { return fmt.Sprintf("[%d]", pid) }
	return b
}

// Shows docs/guarantees.md: Blocks the reading of its command line.
func TestBlockedCommandLineOccupiesFewReadersAndDelaysNoSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBlocking()
		read := func(pid int64, want string, within time.Duration) {
			t.Helper()
			began := time.Now()
			if got := b.Read(pid); got != want {
				t.Errorf("the command of %d is %q, want %q", pid, got, want)
			}
			if took := time.Since(began); took > within {
				t.Errorf("the session of %d waited for %v", pid, took)
			}
		}
		read(1, "line of 1", 0)
		for i := range int64(MaxCommandReads) {
			read(-1-i, fmt.Sprintf("[%d]", -1-i), commandTimeout)
			if i < MaxCommandReads-1 {
				read(2, "line of 2", 0) // other sessions do not wait
			}
		}
		// All readers are stuck: sessions do not wait for one any more.
		for range 1000 {
			read(-9, "[-9]", 0)
			read(3, "[3]", 0)
		}
		if n := b.now.Load(); n != MaxCommandReads {
			t.Errorf("%d reads are in progress", n)
		}
		// One read ends, and its slot is free for others.
		b.release <- struct{}{}
		synctest.Wait()
		read(4, "line of 4", 0)
		close(b.release)
		synctest.Wait()
		if n := b.stuck.Load(); n != 0 || len(b.slots) != 0 {
			t.Errorf("%d reads are stuck, %d in progress, after the last one ended", n, len(b.slots))
		}
	})
}

// Many processes connect at one time, and all reads are slow: every session gets its command
// line, and few reads are in progress.
func TestManyCommandLinesAreReadByFewReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBlocking()
		var lines, names atomic.Int32
		for range 100 {
			go func() {
				if strings.HasPrefix(b.Read(-1), "line") {
					lines.Add(1)
				} else {
					names.Add(1)
				}
			}()
		}
		synctest.Wait()
		if n := b.now.Load(); n != MaxCommandReads {
			t.Errorf("%d reads are in progress", n)
		}
		close(b.release)
		synctest.Wait()
		if lines.Load() != 100 || b.most.Load() != MaxCommandReads {
			t.Errorf("%d lines and %d names were read, by %d readers at one time", lines.Load(), names.Load(), b.most.Load())
		}
	})
}

func TestProcessNameIsThatOfTheKernel(t *testing.T) {
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := NameOf(int64(os.Getpid())), "["+strings.TrimSpace(string(comm))+"]"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := NameOf(1 << 30); got != "" {
		t.Errorf("a process that there is not has the name %q", got)
	}
	if got := commandLine(int64(os.Getpid())); !strings.HasPrefix(got, filepath.Base(os.Args[0])) {
		t.Errorf("this command is %q", got)
	}
}

// An operator sees which program and which job it is, whatever its path and its flags are, and that
// a command was cut.
func TestCommandsShowTheProgramAndTheJob(t *testing.T) {
	long := strings.Repeat("é", 200)
	for _, tt := range []struct {
		args   string // NUL between arguments, as the kernel has them
		isMore bool
		want   string
	}{
		{"/opt/releases/2026-03-07T02-00-00Z/venv/lib/python3.13/bin/worker\x00--queue\x00invoices\x00", false, "worker --queue invoices"},
		{"/usr/bin/worker\x00", false, "worker"},
		{"nginx: worker process /etc/nginx", false, "nginx: worker process /etc/nginx"},
		{"/usr/bin/locksidecar\x00run\x00--wait\x0010s\x00--socket\x00/run/x\x00invoice:42\x00--\x00/opt/jobs/export.sh\x00--full\x00", false, "locksidecar run -- export.sh --full"},
		{"locksidecar\x00run\x00job\x00", false, "locksidecar run job"},
		{"locksidecar\x00run\x00job\x00--\x00", false, "locksidecar run job --"},
		{"locksidecar\x00lock\x00job\x00--\x00x\x00", false, "locksidecar lock job -- x"},
		{"/\x00x\x00", false, "/ x"},
		{"\x00\x00", false, ""},
		{"", false, ""},
		{"a\x1b[2J\x00\xff\x00", false, "a [2J ?"},
		{"w\x00" + strings.Repeat("x", 254) + "\x00", false, "w " + strings.Repeat("x", 254)},
		{"w\x00" + strings.Repeat("x", 255) + "\x00", false, "w " + strings.Repeat("x", 251) + "…"},
		{"w\x00" + long + "\x00", false, "w " + strings.Repeat("é", 125) + "…"},
		{"locksidecar\x00run\x00" + strings.Repeat("x", 5000), true, "locksidecar run " + strings.Repeat("x", 237) + "…"},
		{"w\x00short", true, "w short…"},
	} {
		got := describeCommand([]byte(tt.args), tt.isMore)
		if got != tt.want || len(got) > protocol.MaxCmd {
			t.Errorf("%.60q: %q (%d bytes), want %q", tt.args, got, len(got), tt.want)
		}
	}
}

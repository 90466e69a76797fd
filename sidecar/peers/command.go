package peers

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/protocol"
)

// Commands reads the command lines of clients' processes, which operators see with the
// locks.
//
// The kernel reads a command line from the memory of the process, and waits for that memory
// without a limit: for a page from a FUSE file system, or for a lock that the process holds on
// its memory map. A client can block it, and with it the thread of the reader, forever. So at
// most MaxCommandReads reads are in progress at one time, and a session waits for
// commandTimeout at most. Then it uses the short name of the process, which is in the memory
// of the kernel.
type Commands struct {
	Line func(pid int64) string // reads a command line; may block forever
	Name func(pid int64) string // reads the short name

	slots chan struct{} // has an element for each read in progress
	stuck atomic.Int32  // how many of them the session has given up
}

const (
	// MaxCommandReads is how many command lines are read at one time.
	MaxCommandReads = 4

	commandTimeout = 100 * time.Millisecond
)

// NewCommands makes a reader.
func NewCommands() *Commands {
	return &Commands{Line: commandLine, Name: NameOf, slots: make(chan struct{}, MaxCommandReads)}
}

// Phases of one read. The session and the reading goroutine compete to end inProgress.
//
//	inProgress ── the goroutine has read ──► done
//	     └─────── commandTimeout passed ───► givenUp
const (
	inProgress = iota
	done
	givenUp // the session goes on without it; it counts in stuck until it is done
)

// Read returns the command line of a process, or its name in brackets.
func (r *Commands) Read(pid int64) string {
	if int(r.stuck.Load()) == cap(r.slots) {
		return r.Name(pid)
	}
	timeout := time.NewTimer(commandTimeout)
	defer timeout.Stop()
	select {
	case r.slots <- struct{}{}:
	case <-timeout.C:
		return r.Name(pid)
	}
	var phase atomic.Int32
	line := make(chan string, 1)
	go func() {
		line <- r.Line(pid)
		if !phase.CompareAndSwap(inProgress, done) {
			r.stuck.Add(-1)
		}
		<-r.slots
	}()
	select {
	case s := <-line:
		if s == "" {
			return r.Name(pid)
		}
		return s
	case <-timeout.C:
		if phase.CompareAndSwap(inProgress, givenUp) {
			r.stuck.Add(1)
		}
		return r.Name(pid)
	}
}

// commandLine returns a process's command line for people; "": it has none, or it cannot be read.
func commandLine(pid int64) string {
	b := startOfFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return describeCommand(b, len(b) == maxCommandRead)
}

// describeCommand returns the command line of which b is the beginning. The folder of the program is
// left out: two paths can have the same first bytes. Of "locksidecar run" only the command is
// left that it runs: an operator looks for the job, and not for the flags.
func describeCommand(b []byte, isMore bool) string {
	args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
	if len(args) == 1 {
		if strings.ContainsRune(args[0], ' ') { // perhaps a process that has overwritten its arguments
			return Printable([]byte(args[0]), isMore)
		}
		return Printable([]byte(baseName(args[0])), isMore)
	}
	args[0] = baseName(args[0])
	if args[0] == "locksidecar" && args[1] == "run" {
		if i := slices.Index(args, "--"); i > 0 && i+1 < len(args) {
			command := args[i+1:]
			command[0] = baseName(command[0])
			args = append([]string{"locksidecar", "run", "--"}, command...)
		}
	}
	return Printable([]byte(strings.Join(args, " ")), isMore)
}

// baseName returns the last part of a path; the whole text if it is empty.
func baseName(path string) string {
	if base := path[strings.LastIndexByte(path, '/')+1:]; base != "" {
		return base
	}
	return path
}

// NameOf returns the short name of a process, in brackets as ps(1) shows it; "": it cannot
// be read.
func NameOf(pid int64) string {
	name := Printable(startOfFile(fmt.Sprintf("/proc/%d/comm", pid)), false)
	if name == "" {
		return ""
	}
	return "[" + name + "]"
}

// maxCommandRead is how many bytes of a command line are read: with the flags of "locksidecar run"
// before the command.
const maxCommandRead = 4096

// startOfFile reads the start of a file. The whole file may be megabytes.
func startOfFile(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b := make([]byte, maxCommandRead)
	n, _ := io.ReadFull(f, b)
	return b[:n]
}

// Printable returns a text for people of at most protocol.MaxCmd bytes of UTF-8. An ellipsis at its
// end says that there is more.
func Printable(b []byte, isMore bool) string {
	s := strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
	s = strings.TrimSpace(s)
	if len(s) <= protocol.MaxCmd && !isMore {
		return s
	}
	const ellipsis = "…"
	s = s[:min(len(s), protocol.MaxCmd-len(ellipsis))]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + ellipsis
}

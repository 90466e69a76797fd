package sidecar

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/protocol"
)

// commandReader reads the command lines of clients' processes, which operators see
// beside the locks.
//
// The kernel reads a command line from the memory of the process, and waits for that
// memory as long as it takes: for a page from a FUSE file system, or for a lock that the
// process holds on its memory map. A client can make that forever, and the thread of
// the reader waits with it. So at most maxCommandReads reads are in progress at any
// time, and a session waits for its own no longer than commandTimeout. Then it goes on
// with the short name of the process, which the kernel has itself.
type commandReader struct {
	line func(pid int64) string // may block forever
	name func(pid int64) string

	reading chan struct{} // has an element for each read in progress
	stuck   atomic.Int32  // how many of them were given up
}

const (
	maxCommandReads = 4
	commandTimeout  = 100 * time.Millisecond
)

func (r *commandReader) init() {
	r.line, r.name = commandLine, processName
	r.reading = make(chan struct{}, maxCommandReads)
}

// Phases of one read. The session and the reading goroutine both try to end inProgress;
// the first one decides what it becomes.
const (
	inProgress = iota
	done
	givenUp // the session went on without it; it counts in stuck until it is done
)

// of is the command line of a process, or its name in brackets.
func (r *commandReader) of(pid int64) string {
	if int(r.stuck.Load()) == cap(r.reading) {
		return r.name(pid)
	}
	timeout := time.NewTimer(commandTimeout)
	defer timeout.Stop()
	select {
	case r.reading <- struct{}{}:
	case <-timeout.C:
		return r.name(pid)
	}
	var phase atomic.Int32
	line := make(chan string, 1)
	go func() {
		line <- r.line(pid)
		if !phase.CompareAndSwap(inProgress, done) {
			r.stuck.Add(-1)
		}
		<-r.reading
	}()
	select {
	case s := <-line:
		if s == "" {
			return r.name(pid)
		}
		return s
	case <-timeout.C:
		if phase.CompareAndSwap(inProgress, givenUp) {
			r.stuck.Add(1)
		}
		return r.name(pid)
	}
}

// commandLine is the start of a process's command line; "": it has none, or it cannot be
// read.
func commandLine(pid int64) string {
	return printable(startOfFile(fmt.Sprintf("/proc/%d/cmdline", pid)))
}

// processName is the short name of a process, in brackets as ps(1) shows it; "": it
// cannot be read.
func processName(pid int64) string {
	name := printable(startOfFile(fmt.Sprintf("/proc/%d/comm", pid)))
	if name == "" {
		return ""
	}
	return "[" + name + "]"
}

// startOfFile reads as much of a file as printable may need: the whole of it may be
// megabytes.
func startOfFile(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	b := make([]byte, 4*protocol.MaxCmd)
	n, _ := io.ReadFull(f, b)
	return b[:n]
}

// printable is a text for people in at most protocol.MaxCmd bytes of UTF-8.
func printable(b []byte) string {
	s := strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
	s = strings.TrimSpace(s)
	if len(s) > protocol.MaxCmd {
		s = s[:protocol.MaxCmd]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return s
}

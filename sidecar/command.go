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

// commandReader reads the command lines of clients' processes, which operators see with the
// locks.
//
// The kernel reads a command line from the memory of the process, and waits for that memory
// without a limit: for a page from a FUSE file system, or for a lock that the process holds on
// its memory map. A client can block it, and with it the thread of the reader, forever. So at
// most maxCommandReads reads are in progress at one time, and a session waits for
// commandTimeout at most. Then it uses the short name of the process, which is in the memory
// of the kernel.
type commandReader struct {
	line func(pid int64) string // may block forever
	name func(pid int64) string

	slots chan struct{} // has an element for each read in progress
	stuck atomic.Int32  // how many of them the session has given up
}

const (
	maxCommandReads = 4
	commandTimeout  = 100 * time.Millisecond
)

func (r *commandReader) init() {
	r.line, r.name = commandLine, processName
	r.slots = make(chan struct{}, maxCommandReads)
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

// read returns the command line of a process, or its name in brackets.
func (r *commandReader) read(pid int64) string {
	if int(r.stuck.Load()) == cap(r.slots) {
		return r.name(pid)
	}
	timeout := time.NewTimer(commandTimeout)
	defer timeout.Stop()
	select {
	case r.slots <- struct{}{}:
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
		<-r.slots
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

// commandLine returns the start of a process's command line; "": it has none, or it cannot be
// read.
func commandLine(pid int64) string {
	return printable(startOfFile(fmt.Sprintf("/proc/%d/cmdline", pid)))
}

// processName returns the short name of a process, in brackets as ps(1) shows it; "": it cannot
// be read.
func processName(pid int64) string {
	name := printable(startOfFile(fmt.Sprintf("/proc/%d/comm", pid)))
	if name == "" {
		return ""
	}
	return "[" + name + "]"
}

// startOfFile reads as much of a file as printable may need. The whole file may be megabytes.
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

// printable returns a text for people of at most protocol.MaxCmd bytes of UTF-8.
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

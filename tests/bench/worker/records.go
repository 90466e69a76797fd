package main

import (
	"bufio"
	"encoding/binary"
	"io"
	"os"
	"sync/atomic"
)

// A record is the times of one pair, by the clock. What has not happened yet is 0.
type record [4]atomic.Int64

const (
	asked   = iota // before acquire was called
	granted        // after it returned
	leaving        // before release was called
	done           // after it returned
)

const recordSize = 4 * 8

// A tape is the records of one worker. It is written by that worker and may be
// read at any time, also while the worker is stuck for good in a library.
type tape struct {
	first *stretch
	last  *stretch // the worker's
	used  int      // of last, the worker's
}

// A stretch is a part of a tape; it never moves.
type stretch struct {
	records [1024]record
	next    atomic.Pointer[stretch]
}

func newTapes(n int) []*tape {
	tapes := make([]*tape, n)
	for i := range tapes {
		s := new(stretch)
		tapes[i] = &tape{first: s, last: s}
	}
	return tapes
}

// next returns the record of a new pair.
func (t *tape) next() *record {
	if t.used == len(t.last.records) {
		s := new(stretch)
		t.last.next.Store(s)
		t.last, t.used = s, 0
	}
	t.used++
	return &t.last.records[t.used-1]
}

// writeTo writes the records of all pairs that were begun, each as four
// little-endian int64.
func (t *tape) writeTo(w io.Writer) error {
	for s := t.first; s != nil; s = s.next.Load() {
		for i := range s.records {
			var b [recordSize]byte
			// Backwards: what the worker adds meanwhile is never there without what
			// came before it.
			for at := done; at >= asked; at-- {
				binary.LittleEndian.PutUint64(b[8*at:], uint64(s.records[i][at].Load()))
			}
			if binary.LittleEndian.Uint64(b[8*asked:]) == 0 {
				return nil
			}
			if _, err := w.Write(b[:]); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeTapes(path string, tapes []*tape) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<16)
	for _, t := range tapes {
		if err := t.writeTo(w); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Close()
}

package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestRecordsAreFourLittleEndianNumbersForEachPair(t *testing.T) {
	tapes := newTapes(2)
	for at, when := range []int64{1, 2, 3, 4} {
		if at == asked {
			tapes[0].next()
		}
		tapes[0].first.records[0][at].Store(when)
	}
	waiting := tapes[1].next()
	waiting[asked].Store(0x0102030405060708)

	path := filepath.Join(t.TempDir(), "records")
	if err := writeTapes(path, tapes); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Join([][]byte{
		{1, 0, 0, 0, 0, 0, 0, 0}, {2, 0, 0, 0, 0, 0, 0, 0}, {3, 0, 0, 0, 0, 0, 0, 0}, {4, 0, 0, 0, 0, 0, 0, 0},
		{8, 7, 6, 5, 4, 3, 2, 1}, make([]byte, 24),
	}, nil)
	if !bytes.Equal(got, want) {
		t.Errorf("the file has\n%x, want\n%x", got, want)
	}
}

func TestATapeGoesOn(t *testing.T) {
	tape := newTapes(1)[0]
	n := 2*len(tape.first.records) + 1
	for i := range n {
		tape.next()[asked].Store(int64(i + 1))
	}
	got := written(t, tape)
	if len(got) != n {
		t.Fatalf("%d records were written, want %d", len(got), n)
	}
	for i, r := range got {
		if want := [4]int64{int64(i + 1)}; r != want {
			t.Fatalf("record %d is %v, want %v", i, r, want)
		}
	}
}

func TestATapeCanBeReadWhileItIsWritten(t *testing.T) {
	tape := newTapes(1)[0]
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := range int64(20_000) {
			rec := tape.next()
			for at := range rec {
				rec[at].Store(4*i + int64(at) + 1)
			}
		}
	}()
	for running := true; running; {
		select {
		case <-ended:
			running = false
		default:
		}
		for i, r := range written(t, tape) {
			began := int64(4*i + 1)
			stages := [][4]int64{
				{began}, {began, began + 1}, {began, began + 1, began + 2}, {began, began + 1, began + 2, began + 3},
			}
			if !reflect.DeepEqual(stages[occurred(r)-1], r) {
				t.Fatalf("record %d is %v", i, r)
			}
		}
	}
}

// occurred is how many times of a record are set.
func occurred(r [4]int64) (n int) {
	for _, when := range r {
		if when != 0 {
			n++
		}
	}
	return n
}

func written(t *testing.T, tape *tape) [][4]int64 {
	t.Helper()
	var b bytes.Buffer
	if err := tape.writeTo(&b); err != nil {
		t.Fatal(err)
	}
	return parseRecords(t, b.Bytes())
}

func parseRecords(t *testing.T, b []byte) [][4]int64 {
	t.Helper()
	if len(b)%recordSize != 0 {
		t.Fatalf("%d bytes are no whole records", len(b))
	}
	records := make([][4]int64, len(b)/recordSize)
	if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, records); err != nil {
		t.Fatal(err)
	}
	return records
}

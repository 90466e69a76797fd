package state

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

func lockRecord(name string, id uint64) *locktable.LockRecord {
	return &locktable.LockRecord{Name: name, MaxHoldID: id}
}

func holdRecord(id uint64) *locktable.HoldRecord {
	return &locktable.HoldRecord{
		ID: id, Token: id + 1000, Owner: 7, Session: 1, Granted: 1, Deadline: 30e9, Entries: 1, Permits: 1,
	}
}

// putHeld stores a lock with a hold; 0: there was no room.
func putHeld(f *File, name string, id uint64) (slot uint32) {
	if slot = f.PutLock(0, lockRecord(name, id)); slot != 0 {
		f.PutHold(0, slot, holdRecord(id))
	}
	return slot
}

func deleteHeld(f *File, slot uint32) {
	f.DeleteHold(slot)
	f.DeleteLock(slot)
}

func openBench(b *testing.B, path string) *File {
	b.Helper()
	f, err := Open(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return f
}

// The calls of one lock from its acquire to its release.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, n := range []int{16, 32, 100, 512} {
		b.Run(fmt.Sprintf("name of %d bytes", n), func(b *testing.B) {
			f := openBench(b, filepath.Join(b.TempDir(), "state"))
			l, h := lockRecord(fmt.Sprintf("%0*d", n, 0), 1), holdRecord(1)
			b.ReportAllocs()
			for b.Loop() {
				slot := f.PutLock(0, l) // Take is sent
				f.PutLock(slot, l)      // it is done
				hold := f.PutHold(0, slot, h)
				f.DeleteHold(hold) // Drop is sent
				f.PutLock(slot, l)
				f.DeleteLock(slot) // it is done
			}
		})
	}
}

func BenchmarkHold(b *testing.B) {
	f := openBench(b, filepath.Join(b.TempDir(), "state"))
	l, h := lockRecord("invoice:42", 1), holdRecord(1)
	slot := f.PutLock(0, l)
	b.Run("put and delete", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f.PutLock(slot, l)
			hold := f.PutHold(0, slot, h)
			f.DeleteHold(hold)
			f.PutLock(slot, l)
		}
	})
	b.Run("handoff", func(b *testing.B) {
		hold := f.PutHold(0, slot, h)
		b.ReportAllocs()
		for b.Loop() {
			f.DeleteHold(hold)
			l.MaxHoldID++
			h.ID++
			f.PutLock(slot, l)
			hold = f.PutHold(0, slot, h)
		}
		f.DeleteHold(hold)
	})
	b.Run("put and delete the second one", func(b *testing.B) {
		first := f.PutHold(0, slot, h)
		h.ID--
		b.ReportAllocs()
		for b.Loop() {
			f.DeleteHold(f.PutHold(0, slot, h))
		}
		f.DeleteHold(first)
	})
	b.Run("deadline", func(b *testing.B) {
		hold := f.PutHold(0, slot, h)
		b.ReportAllocs()
		for b.Loop() {
			h.Deadline++
			f.PutLock(slot, l)
			f.PutHold(hold, slot, h)
		}
	})
}

// What a round costs besides its changes, which are one or many.
func BenchmarkCommit(b *testing.B) {
	for _, changes := range []int{1, 16} {
		b.Run(fmt.Sprintf("after %d changes", changes), func(b *testing.B) {
			f := openBench(b, filepath.Join(b.TempDir(), "state"))
			slot, h := putHeld(f, "invoice:42", 1), holdRecord(1)
			b.ReportAllocs()
			for b.Loop() {
				for range changes {
					h.Deadline++
					f.PutHold(slot, slot, h)
				}
				f.Commit(0)
			}
		})
	}
	b.Run("after none", func(b *testing.B) {
		f := openBench(b, filepath.Join(b.TempDir(), "state"))
		for b.Loop() {
			f.Commit(0)
		}
	})
}

func BenchmarkPutSession(b *testing.B) {
	f := openBench(b, filepath.Join(b.TempDir(), "state"))
	for i := range 1000 {
		f.OpenSession(Session{SessionRecord: locktable.SessionRecord{ID: locktable.SessionID(i + 1)}})
	}
	r := locktable.SessionRecord{ID: 500}
	b.ReportAllocs()
	for b.Loop() {
		r.LeaseSent++
		r.LeaseSeq++
		f.PutSession(r)
	}
}

// How long a restart with 100,000 locks takes.
func BenchmarkOpen(b *testing.B) {
	path := filepath.Join(b.TempDir(), "state")
	f, err := Open(path)
	if err != nil {
		b.Fatal(err)
	}
	f.OpenSession(Session{SessionRecord: locktable.SessionRecord{ID: 1}})
	for i := range uint64(100_000) {
		putHeld(f, fmt.Sprintf("warehouse:7:invoice:%d", i), i+1)
	}
	f.Close()
	for b.Loop() {
		f, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		if n := len(f.Recovered().Snapshot.Holds); n != 100_000 {
			b.Fatalf("%d holds are recovered", n)
		}
		f.Close()
	}
}

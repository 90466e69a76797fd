package state

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

func benchLock(name string, num uint64) locktable.LockRecord {
	return locktable.LockRecord{Name: name, Top: num, Hold: locktable.HoldRecord{
		Num: num, Token: num + 1000, Owner: 7, Session: 1, Granted: 1, Deadline: 30e9, Count: 1,
	}}
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

// What one lock costs from its grant to its release.
func BenchmarkKeepForget(b *testing.B) {
	for _, n := range []int{16, 32, 100, 512} {
		b.Run(fmt.Sprintf("name of %d bytes", n), func(b *testing.B) {
			f := openBench(b, filepath.Join(b.TempDir(), "state"))
			r := benchLock(fmt.Sprintf("%0*d", n, 0), 1)
			b.ReportAllocs()
			for b.Loop() {
				f.ForgetLock(f.KeepLock(0, &r))
			}
		})
	}
}

func BenchmarkKeepSame(b *testing.B) {
	f := openBench(b, filepath.Join(b.TempDir(), "state"))
	r := benchLock("invoice:42", 1)
	slot := f.KeepLock(0, &r)
	b.Run("deadline", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.Hold.Deadline++
			f.KeepLock(slot, &r)
		}
	})
	b.Run("hold", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.Top++
			r.Hold.Num++
			f.KeepLock(slot, &r)
		}
	})
}

// What a round costs besides its changes, which are one or many.
func BenchmarkCommit(b *testing.B) {
	for _, changes := range []int{1, 16} {
		b.Run(fmt.Sprintf("after %d changes", changes), func(b *testing.B) {
			f := openBench(b, filepath.Join(b.TempDir(), "state"))
			r := benchLock("invoice:42", 1)
			slot := f.KeepLock(0, &r)
			b.ReportAllocs()
			for b.Loop() {
				for range changes {
					r.Hold.Deadline++
					f.KeepLock(slot, &r)
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

func BenchmarkKeepSession(b *testing.B) {
	f := openBench(b, filepath.Join(b.TempDir(), "state"))
	for i := range 1000 {
		f.OpenSession(Session{SessionRecord: locktable.SessionRecord{ID: locktable.SessionID(i + 1)}})
	}
	r := locktable.SessionRecord{ID: 500}
	b.ReportAllocs()
	for b.Loop() {
		r.Told++
		r.Tells++
		f.KeepSession(r)
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
		r := benchLock(fmt.Sprintf("warehouse:7:invoice:%d", i), i+1)
		f.KeepLock(0, &r)
	}
	f.Close()
	for b.Loop() {
		f, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		if n := len(f.Left().Memory.Locks); n != 100_000 {
			b.Fatalf("%d locks are left", n)
		}
		f.Close()
	}
}

//go:build linux

package locksidecar

import (
	"context"
	"path/filepath"
	"testing"
)

func BenchmarkLockUnlock(b *testing.B) {
	sidecar := startFakeSidecar(filepath.Join(shortDir(b), "s"))
	defer sidecar.stop()
	c, err := Dial(context.Background(), sidecar.path)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		l, err := c.Lock(ctx, "a")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLockUnlockConfirmed(b *testing.B) {
	sidecar := startFakeSidecar(filepath.Join(shortDir(b), "s"))
	defer sidecar.stop()
	c, err := Dial(context.Background(), sidecar.path)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		l, err := c.Lock(ctx, "a")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(Confirmed(ctx)); err != nil {
			b.Fatal(err)
		}
	}
}

// Ten goroutines share one connection; each has a lock of its own.
func BenchmarkLockUnlockParallel(b *testing.B) {
	sidecar := startFakeSidecar(filepath.Join(shortDir(b), "s"))
	defer sidecar.stop()
	c, err := Dial(context.Background(), sidecar.path)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.SetParallelism(5)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		ctx := NewOwner(context.Background())
		name := string(rune('a' + ownerOf(ctx)%26))
		for pb.Next() {
			l, err := c.Lock(context.Background(), name)
			if err != nil {
				b.Error(err)
				return
			}
			if err := l.Unlock(); err != nil {
				b.Error(err)
			}
		}
	})
}

package rawio_test

import (
	"os"
	"testing"

	"github.com/locksidecar/locksidecar/internal/rawio"
)

func TestPollerReportsEachDescriptorOnce(t *testing.T) {
	ready := make(chan uint64)
	p, err := rawio.NewPoller(func(key uint64) { ready <- key })
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	// A key has 64 bits. The descriptors stay readable: each is reported once all the same.
	for _, key := range []uint64{1, 1 << 40, 1<<64 - 1} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		if err := p.Add(key, int(r.Fd())); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if got := <-ready; got != key {
			t.Errorf("reported %d, want %d", got, key)
		}
	}
}

func TestPollerRefusesClosedDescriptor(t *testing.T) {
	p, err := rawio.NewPoller(func(key uint64) { t.Errorf("reported %d", key) })
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Add(1, -1); err == nil {
		t.Error("no error for a descriptor that does not exist")
	}
}

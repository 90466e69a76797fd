package locktable

import (
	"testing"
	"unsafe"
)

// There may be a hundred thousand locks and holds. These are size classes of the allocator:
// one byte more takes 16 more.
func TestSizesOfLocksAndHolds(t *testing.T) {
	if size := unsafe.Sizeof(lock{}); size > 272 {
		t.Errorf("a lock has %d bytes", size)
	}
	if size := unsafe.Sizeof(hold{}); size > 128 {
		t.Errorf("a hold has %d bytes", size)
	}
}

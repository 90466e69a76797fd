//go:build !linux

package rawio

import (
	"errors"
	"syscall"
)

// The daemon runs on Linux only. What is here lets programs that import the SDK compile
// elsewhere.

func Read(uintptr, []byte) (int, error)           { return 0, errors.ErrUnsupported }
func schedAwareRead(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }
func Write(uintptr, []byte) (int, error)          { return 0, errors.ErrUnsupported }

// BootTime panics.
func BootTime() int64 { panic("rawio: CLOCK_BOOTTIME exists on Linux only") }

// A ReadNotifier exists on Linux only.
type ReadNotifier struct{}

// NewReadNotifier returns errors.ErrUnsupported.
func NewReadNotifier(syscall.RawConn) (*ReadNotifier, error) { return nil, errors.ErrUnsupported }

func (*ReadNotifier) Arm() bool  { return false }
func (*ReadNotifier) Disarm()    {}
func (*ReadNotifier) Wait()      {}
func (*ReadNotifier) Interrupt() {}
func (*ReadNotifier) Close()     {}

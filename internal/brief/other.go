//go:build !linux

package brief

import (
	"errors"
	"syscall"
)

// What uses this package compiles on every system. Only on Linux does it have
// connections to read and write.

func Read(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

func Write(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

type Reader struct{ Empty func() }

func NewReader(syscall.RawConn) *Reader { return new(Reader) }

func (*Reader) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

func (*Reader) ReadNow([]byte) (int, error) { return 0, errors.ErrUnsupported }

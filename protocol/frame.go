package protocol

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// Reader splits a stream into frames. It checks the length of a frame before it allocates
// memory, and its buffer grows only as bytes arrive.
type Reader struct {
	src        io.Reader
	buf        []byte
	start, end int // buf[start:end] has been read from src, and not been returned
}

// bufferSize is the size of the buffer between frames; a longer frame has a larger one.
const bufferSize = 4096

// NewReader returns a Reader of src, which need not be buffered.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Next returns the body of the next frame, valid until the next call. The error is io.EOF if
// the stream ends between two frames, io.ErrUnexpectedEOF if it ends within one, a *ConnError
// if the length is not allowed, or an error of the stream. After a temporary error of the
// stream (a deadline) Next may be called again.
func (r *Reader) Next() ([]byte, error) {
	for {
		size, err := r.size()
		if err != nil {
			return nil, err
		}
		if size > 0 && r.end-r.start >= size {
			body := r.buf[r.start+prefix : r.start+size : r.start+size]
			r.start += size
			return body, nil
		}
		if err := r.fill(); err != nil {
			return nil, err
		}
	}
}

// Buffered returns the size of the next frame with its length prefix if the whole frame is in
// the buffer, so that Next does not read from the stream; otherwise 0. For a length that is
// not allowed it is positive.
func (r *Reader) Buffered() int {
	size, err := r.size()
	switch {
	case err != nil:
		return prefix
	case r.end-r.start < size:
		return 0
	}
	return size
}

// size returns the size of the next frame with its length prefix; 0: not known yet.
func (r *Reader) size() (int, error) {
	if r.end-r.start < prefix {
		return 0, nil
	}
	n := binary.BigEndian.Uint32(r.buf[r.start:])
	if n == 0 || n > MaxFrame {
		if text := r.buf[r.start : r.start+prefix]; isPrintable(text) {
			return 0, &ConnError{BadFrame, fmt.Sprintf("text that begins with %q came in place of a frame", text)}
		}
		return 0, &ConnError{BadFrame, fmt.Sprintf("a frame says that its body has %d bytes; 1 to %d are allowed", n, MaxFrame)}
	}
	return prefix + int(n), nil
}

// isPrintable reports whether b is printable ASCII, as the first bytes of HTTP are.
func isPrintable(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c < ' ' || c > '~' })
}

// fill reads from the stream once and appends to the buffer.
func (r *Reader) fill() error {
	switch {
	case r.start == r.end && len(r.buf) != bufferSize:
		// The first read, or the first one after a long frame, whose buffer is not kept.
		r.buf = make([]byte, bufferSize)
		r.start, r.end = 0, 0
	case r.start == r.end:
		r.start, r.end = 0, 0
	case r.end == len(r.buf) && r.start > 0:
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	case r.end == len(r.buf):
		grown := make([]byte, min(2*len(r.buf), prefix+MaxFrame))
		r.end = copy(grown, r.buf)
		r.buf = grown
	}
	n, err := r.src.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil // the next read returns the error again
	}
	if err == io.EOF && r.end > r.start {
		return io.ErrUnexpectedEOF
	}
	return err
}

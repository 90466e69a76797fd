package protocol

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Reader cuts a stream into frames. It refuses a frame's length before it makes
// room for the frame, and makes room only as bytes arrive.
type Reader struct {
	src        io.Reader
	buf        []byte
	start, end int // what has been read and not been returned: buf[start:end]
}

const readerRoom = 4096

// NewReader returns a Reader of src, which needs no buffer of its own.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Next returns the body of the next frame, valid until the next call. The error
// is io.EOF if the stream ends between two frames, io.ErrUnexpectedEOF if it
// ends inside one, a *ConnError if the length is not allowed, or the stream's
// own. After a temporary error of the stream (a deadline) Next may be called
// again.
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

// Buffered is the size of the next frame, its length included, if Next can
// return without reading from the stream; otherwise 0.
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

// size of the next frame, its length included; 0: not known yet.
func (r *Reader) size() (int, error) {
	if r.end-r.start < prefix {
		return 0, nil
	}
	n := binary.BigEndian.Uint32(r.buf[r.start:])
	if n == 0 || n > MaxFrame {
		return 0, &ConnError{BadFrame, fmt.Sprintf("a frame says that its body has %d bytes; 1 to %d are allowed", n, MaxFrame)}
	}
	return prefix + int(n), nil
}

// fill reads once, behind what is there.
func (r *Reader) fill() error {
	switch {
	case r.start == r.end && len(r.buf) != readerRoom:
		// The first read, or one after a long frame: a connection keeps only
		// little memory between frames.
		r.buf = make([]byte, readerRoom)
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
		return nil // an error comes again with the next read
	}
	if err == io.EOF && r.end > r.start {
		return io.ErrUnexpectedEOF
	}
	return err
}

package protocol

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

const prefix = 4 // bytes of a frame's length

// writer encodes one frame at the end of buf. The errors of enc are ignored, because a write to
// memory does not fail.
type writer struct {
	enc   *msgpack.Encoder
	buf   []byte
	start int // of the frame
	open  mapMark
}

// mapMark is a map that is being written: the offset of its header and the number of its fields
// so far.
type mapMark struct{ at, fields int }

func (w *writer) Write(p []byte) (int, error) { w.buf = append(w.buf, p...); return len(p), nil }
func (w *writer) WriteByte(c byte) error      { w.buf = append(w.buf, c); return nil }

var writers = sync.Pool{New: func() any {
	w := new(writer)
	w.enc = msgpack.NewEncoder(w)
	return w
}}

func newWriter(dst []byte) *writer {
	w := writers.Get().(*writer)
	w.buf, w.start, w.open = dst, len(dst), mapMark{}
	return w
}

func (w *writer) free() {
	w.buf = nil
	writers.Put(w)
}

// begin starts a frame whose first fields are op (if any) and id (if not 0).
func begin(dst []byte, op string, id uint64) *writer {
	w := newWriter(dst)
	w.buf = append(w.buf, make([]byte, prefix)...)
	w.beginMap()
	if op != "" {
		w.str("op", op)
	}
	w.uintIf("id", id)
	return w
}

// finish completes the frame, returns the buffer and frees the writer.
func (w *writer) finish() []byte {
	w.endMap(mapMark{})
	body := len(w.buf) - w.start - prefix
	if body > MaxFrame {
		panic(fmt.Sprintf("protocol: a message of %d bytes does not fit into a frame; names must pass CheckName, rows must keep to ListRoom", body))
	}
	binary.BigEndian.PutUint32(w.buf[w.start:], uint32(body))
	buf := w.buf
	w.free()
	return buf
}

// beginMap starts a map whose number of fields is not known yet. It returns the enclosing map,
// for endMap.
func (w *writer) beginMap() mapMark {
	outer := w.open
	w.open = mapMark{at: len(w.buf)}
	w.buf = append(w.buf, 0)
	return outer
}

func (w *writer) endMap(outer mapMark) {
	at, n := w.open.at, w.open.fields
	w.open = outer
	if n < 16 {
		w.buf[at] = 0x80 | byte(n)
		return
	}
	// The header of a map of 16 fields or more has 3 bytes.
	w.buf = append(w.buf, 0, 0)
	copy(w.buf[at+3:], w.buf[at+1:])
	w.buf[at] = 0xde
	binary.BigEndian.PutUint16(w.buf[at+1:], uint16(n))
}

func (w *writer) key(k string) {
	w.open.fields++
	_ = w.enc.EncodeString(k)
}

func (w *writer) str(k, v string) {
	w.key(k)
	_ = w.enc.EncodeString(v)
}

// text writes a text for people: at most limit bytes of valid UTF-8.
func (w *writer) text(k, v string, limit int) {
	if len(v) > limit {
		cut := limit
		for cut > limit-utf8.UTFMax && !utf8.RuneStart(v[cut]) {
			cut--
		}
		v = v[:cut]
	}
	w.str(k, strings.ToValidUTF8(v, "?"))
}

func (w *writer) textIf(k, v string, limit int) {
	if v != "" {
		w.text(k, v, limit)
	}
}

// ticketIf writes a ticket if there is one. It is never truncated, because a part of it would
// be another ticket.
func (w *writer) ticketIf(k, v string) {
	if len(v) > MaxTicket {
		panic(fmt.Sprintf("protocol: a ticket of %d bytes; at most %d are allowed", len(v), MaxTicket))
	}
	if v != "" {
		w.str(k, v)
	}
}

func (w *writer) uint(k string, v uint64) {
	w.key(k)
	_ = w.enc.EncodeUint(v)
}

func (w *writer) uintIf(k string, v uint64) {
	if v != 0 {
		w.uint(k, v)
	}
}

func (w *writer) int(k string, v int64) {
	w.key(k)
	_ = w.enc.EncodeInt(v)
}

func (w *writer) intIf(k string, v int64) {
	if v != 0 {
		w.int(k, v)
	}
}

func (w *writer) bool(k string, v bool) {
	w.key(k)
	_ = w.enc.EncodeBool(v)
}

func (w *writer) boolIf(k string, v bool) {
	if v {
		w.bool(k, true)
	}
}

func (w *writer) array(k string, n int) {
	w.key(k)
	_ = w.enc.EncodeArrayLen(n)
}

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

// writer encodes one frame at the end of buf. Its errors cannot happen: memory
// is the only thing it writes to.
type writer struct {
	enc   *msgpack.Encoder
	buf   []byte
	start int // of the frame
	open  mapMark
}

// mapMark is a map being written: where its header stands and how many fields
// it has so far.
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

func (w *writer) put() {
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

// finish ends the frame and gives the writer back.
func (w *writer) finish() []byte {
	w.endMap(mapMark{})
	body := len(w.buf) - w.start - prefix
	if body > MaxFrame {
		panic(fmt.Sprintf("protocol: a message of %d bytes does not fit into a frame; names must pass CheckName, rows must keep to ListRoom", body))
	}
	binary.BigEndian.PutUint32(w.buf[w.start:], uint32(body))
	buf := w.buf
	w.put()
	return buf
}

// beginMap starts a map whose number of fields is not known yet, and returns
// the map around it, which endMap goes back to.
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
	// A map of 16 fields or more has a header of 3 bytes.
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

// text writes what people read: cut to limit bytes, and UTF-8 whatever v is.
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

// ticketIf writes a ticket whole: a part of it would be another one.
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

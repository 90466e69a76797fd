package protocol

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// The Decoder of the msgpack library is not used: it wraps integers that are out of range,
// reads nil as zero and the last of two equal keys, ignores bytes after the value, allocates as
// much as a header claims, and recurses as deep as the input demands. This parser reads a slice
// in memory, and checks each length against the bytes that are left before it uses it.

// kind of a msgpack value.
type kind uint8

const (
	kindNone kind = iota // not msgpack, or cut short
	kindNil
	kindBool
	kindInt
	kindFloat
	kindStr
	kindBin
	kindExt
	kindArray
	kindMap
)

// format is the meaning of the first byte of a value.
type format struct {
	kind kind
	wide uint8 // how many of the following bytes hold the number, or the length
	n    uint8 // the length, if wide is 0
}

var formats = func() (f [256]format) {
	for c := range 256 {
		switch {
		case c <= 0x7f, c >= 0xe0:
			f[c] = format{kind: kindInt}
		case c <= 0x8f:
			f[c] = format{kind: kindMap, n: uint8(c & 0x0f)}
		case c <= 0x9f:
			f[c] = format{kind: kindArray, n: uint8(c & 0x0f)}
		case c <= 0xbf:
			f[c] = format{kind: kindStr, n: uint8(c & 0x1f)}
		case c == 0xc0:
			f[c] = format{kind: kindNil}
		case c == 0xc2, c == 0xc3:
			f[c] = format{kind: kindBool}
		case c >= 0xc4 && c <= 0xc6:
			f[c] = format{kind: kindBin, wide: 1 << (c - 0xc4)}
		case c >= 0xc7 && c <= 0xc9:
			f[c] = format{kind: kindExt, wide: 1 << (c - 0xc7)}
		case c == 0xca, c == 0xcb:
			f[c] = format{kind: kindFloat, n: 4 << (c - 0xca)}
		case c >= 0xcc && c <= 0xcf:
			f[c] = format{kind: kindInt, wide: 1 << (c - 0xcc)}
		case c >= 0xd0 && c <= 0xd3:
			f[c] = format{kind: kindInt, wide: 1 << (c - 0xd0)}
		case c >= 0xd4 && c <= 0xd8:
			f[c] = format{kind: kindExt, n: 1 << (c - 0xd4)}
		case c >= 0xd9 && c <= 0xdb:
			f[c] = format{kind: kindStr, wide: 1 << (c - 0xd9)}
		case c == 0xdc, c == 0xdd:
			f[c] = format{kind: kindArray, wide: 2 << (c - 0xdc)}
		case c == 0xde, c == 0xdf:
			f[c] = format{kind: kindMap, wide: 2 << (c - 0xde)}
		}
	}
	return f
}()

// head is the start of a value. It has size bytes; n bytes or n elements follow (for a map,
// twice the number of its fields).
type head struct {
	kind kind
	size int
	n    int
}

// readHead reads the head of the value at the start of b. Its kind is kindNone unless the head
// is complete, and b is long enough for the rest: every byte of a string, binary or extension,
// and at least one byte for each element.
func readHead(b []byte) head {
	if len(b) == 0 {
		return head{}
	}
	f := formats[b[0]]
	h := head{kind: f.kind, size: 1 + int(f.wide), n: int(f.n)}
	if len(b) < h.size {
		return head{}
	}
	if f.wide > 0 && f.kind != kindInt {
		n := number(b, f.wide)
		if n > uint64(len(b)) {
			return head{}
		}
		h.n = int(n)
	}
	switch f.kind {
	case kindMap:
		h.n *= 2
	case kindExt:
		h.n++ // its type
	}
	if h.n > len(b)-h.size {
		return head{}
	}
	return h
}

// number returns the wide bytes after the first as an unsigned number.
func number(b []byte, wide uint8) uint64 {
	switch wide {
	case 1:
		return uint64(b[1])
	case 2:
		return uint64(binary.BigEndian.Uint16(b[1:]))
	case 4:
		return uint64(binary.BigEndian.Uint32(b[1:]))
	}
	return binary.BigEndian.Uint64(b[1:])
}

// integer returns the value of a complete integer; big: it is 2^63 or more, and v has its bits.
func integer(b []byte) (v int64, big bool) {
	wide := formats[b[0]].wide
	switch {
	case wide == 0:
		return int64(int8(b[0])), false
	case b[0] >= 0xd0:
		shift := 64 - 8*wide
		return int64(number(b, wide)<<shift) >> shift, false
	}
	u := number(b, wide)
	return int64(u), u > math.MaxInt64
}

// parser parses the body of one frame.
type parser struct {
	body       []byte
	unknown    []uint16   // offsets of the unknown keys in the map that is being parsed
	fieldError string     // what is wrong with the first bad field; "": nothing
	connError  *ConnError // the first connection error
}

func badFrame(format string, args ...any) *ConnError {
	return &ConnError{BadFrame, fmt.Sprintf(format, args...)}
}

func (p *parser) fail(err *ConnError) {
	if p.connError == nil {
		p.connError = err
	}
}

func (p *parser) rejectField(format string, args ...any) {
	if p.fieldError == "" {
		p.fieldError = fmt.Sprintf(format, args...)
	}
}

// object is a map of the frame: the offset of the value of each field; 0: absent, because no
// value begins at 0.
type object struct {
	p  *parser
	at [fields]uint16
}

// open parses the map of the body, and requires that no bytes follow it. It validates the whole
// structure of the frame, but no value of a field.
func (p *parser) open(body []byte, o *object) *ConnError {
	p.body, p.fieldError, p.connError = body, "", nil
	if len(body) > MaxFrame {
		p.fail(badFrame("the frame's body has %d bytes; at most %d are allowed", len(body), MaxFrame))
		return p.connError
	}
	end := p.object(0, o)
	if p.connError == nil && end != len(body) {
		p.fail(badFrame("%d bytes follow the frame's map; a frame is one map", len(body)-end))
	}
	return p.connError
}

// object parses the map at the offset and returns the offset after it.
func (p *parser) object(at int, o *object) int {
	*o = object{p: p}
	h := readHead(p.body[at:])
	if h.kind != kindMap {
		if h.kind == kindNone {
			p.fail(badFrame("the frame's body is not whole msgpack"))
		} else {
			p.fail(badFrame("there must be a map at byte %d, and there is another value", at))
		}
		return 0
	}
	p.unknown = p.unknown[:0]
	at += h.size
	for range h.n / 2 {
		k := readHead(p.body[at:])
		if k.kind != kindStr || k.size == 5 { // 5: str32
			p.fail(badFrame("the key at byte %d is not a string of the formats fixstr, str8 and str16", at))
			return 0
		}
		start := at
		at += k.size + k.n
		key := p.body[start+k.size : at]
		f := fieldOf(key)
		switch {
		case f != 0 && o.at[f] != 0:
			p.fail(badFrame("the key %q occurs twice in a map", key))
			return 0
		case f != 0:
			o.at[f] = uint16(at)
		case !utf8.Valid(key):
			p.fail(badFrame("the key at byte %d is not UTF-8", start))
			return 0
		default:
			p.unknown = append(p.unknown, uint16(start))
		}
		if at = p.skip(at, nesting(f)); p.connError != nil {
			return 0
		}
	}
	p.checkUnknownKeys()
	return at
}

// checkUnknownKeys fails if an unknown key occurs twice. It sorts them, because a hostile frame
// may have very many.
func (p *parser) checkUnknownKeys() {
	if len(p.unknown) < 2 {
		return
	}
	key := func(at uint16) []byte {
		h := readHead(p.body[at:])
		return p.body[int(at)+h.size:][:h.n]
	}
	slices.SortFunc(p.unknown, func(a, b uint16) int { return bytes.Compare(key(a), key(b)) })
	for i, at := range p.unknown[1:] {
		if bytes.Equal(key(at), key(p.unknown[i])) {
			p.fail(badFrame("the key %.64q occurs twice in a map", key(at)))
			break
		}
	}
	if len(p.unknown) > 64 {
		p.unknown = nil // the memory for one unusual frame is not kept
	}
}

// skip returns the offset after the value at the offset, in which arrays and maps may nest at
// most depth deep.
func (p *parser) skip(at, depth int) int {
	h := readHead(p.body[at:])
	switch h.kind {
	case kindNone:
		p.fail(badFrame("the value at byte %d is cut short, or is not msgpack", at))
		return 0
	case kindArray, kindMap:
		return p.skipContainer(at, depth)
	}
	return at + h.size + h.n
}

// skipContainer is skip for an array or a map. It does not recurse, so that the input does not
// determine the depth of the stack.
func (p *parser) skipContainer(at, depth int) int {
	var left [maxNesting]int // elements that are left in each open container
	open := 0
	for {
		h := readHead(p.body[at:])
		switch h.kind {
		case kindNone:
			p.fail(badFrame("the value at byte %d is cut short, or is not msgpack", at))
			return 0
		case kindArray, kindMap:
			if open == depth {
				p.fail(badFrame("arrays and maps nest too deep at byte %d; %d may stand inside one another", at, MaxDepth))
				return 0
			}
			left[open] = h.n
			open++
			at += h.size
		default:
			left[open-1]--
			at += h.size + h.n
		}
		for left[open-1] == 0 {
			if open--; open == 0 {
				return at
			}
			left[open-1]--
		}
	}
}

// has reports whether the field is present.
func (o *object) has(f field) bool { return o.at[f] != 0 }

// require rejects the message if the field is absent.
func (o *object) require(f field) {
	if !o.has(f) {
		o.p.rejectField("%s is missing", f)
	}
}

// head returns the head of the field's value, which must be of the kind; false: it is absent or
// rejected.
func (o *object) head(f field, want kind) (head, bool) {
	if !o.has(f) {
		return head{}, false
	}
	h := readHead(o.p.body[o.at[f]:])
	if h.kind != want {
		o.p.rejectField("%s must be %s", f, kindNames[want])
		return head{}, false
	}
	return h, true
}

var kindNames = [...]string{kindBool: "true or false", kindInt: "an integer", kindStr: "a string", kindArray: "an array", kindMap: "a map"}

// int returns the field's value, which must be from low to high.
func (o *object) int(f field, absent, low, high int64) int64 {
	if !o.has(f) {
		return absent
	}
	v, end := o.p.int(int(o.at[f]), f.String(), low, high)
	if end == 0 {
		return absent
	}
	return v
}

// int returns the value at the offset, which must be an integer from low to high, and the
// offset after it; end 0: it is rejected, under the name what.
func (p *parser) int(at int, what string, low, high int64) (v int64, end int) {
	h := readHead(p.body[at:])
	if h.kind != kindInt {
		p.rejectField("%s must be %s", what, kindNames[kindInt])
		return 0, 0
	}
	v, big := integer(p.body[at:])
	switch {
	case big:
		p.rejectField("%s is %d; it must be from %d to %d", what, uint64(v), low, high)
		return 0, 0
	case v < low, v > high:
		p.rejectField("%s is %d; it must be from %d to %d", what, v, low, high)
		return 0, 0
	}
	return v, at + h.size
}

// uint returns the field's value, which must be from 0 to 2^63−1; absent: 0.
func (o *object) uint(f field) uint64 { return uint64(o.int(f, 0, 0, math.MaxInt64)) }

func (o *object) bool(f field, absent bool) bool {
	if _, ok := o.head(f, kindBool); !ok {
		return absent
	}
	return o.p.body[o.at[f]] == 0xc3
}

// bytes returns the content of a string, as a slice of the frame.
func (o *object) bytes(f field) []byte {
	h, ok := o.head(f, kindStr)
	if !ok {
		return nil
	}
	start := int(o.at[f]) + h.size
	b := o.p.body[start : start+h.n]
	if !utf8.Valid(b) {
		o.p.fail(badFrame("%s is not UTF-8", f))
		return nil
	}
	return b
}

// text returns a string of at most limit bytes; limit 0: of any length.
func (o *object) text(f field, limit int) string {
	b := o.bytes(f)
	if limit > 0 && len(b) > limit {
		o.p.rejectField("%s has %d bytes; at most %d are allowed", f, len(b), limit)
		return ""
	}
	return string(b)
}

// name returns the name of a lock.
func (o *object) name() string {
	o.require(fieldName)
	b := o.bytes(fieldName)
	if b == nil {
		return ""
	}
	if len(b) > MaxName { // before b is copied
		o.p.rejectField("the lock's name has %d bytes; at most %d are allowed", len(b), MaxName)
		return ""
	}
	name := string(b)
	if err := CheckName(name); err != nil {
		o.p.rejectField("%s", err)
		return ""
	}
	return name
}

// host returns the name of a host, or the uuid of its sidecar.
func (o *object) host() string {
	o.require(fieldHost)
	host := o.text(fieldHost, MaxClient)
	if host == "" && o.has(fieldHost) {
		o.p.rejectField("host is empty; name a host, or the uuid of its sidecar")
	}
	return host
}

// requestID returns the id; 0: absent. One that is not valid is a connection error, because the
// request could not be answered.
func (o *object) requestID() uint64 {
	if !o.has(fieldID) {
		return 0
	}
	b := o.p.body[o.at[fieldID]:]
	if readHead(b).kind == kindInt {
		if v, big := integer(b); v > 0 && !big {
			return uint64(v)
		}
	}
	o.p.fail(badFrame("id must be an integer from 1 to 2^63-1"))
	return 0
}

// each calls do with the offset of each element of an array; do returns the offset after it.
func (o *object) each(f field, do func(at int) int) {
	h, ok := o.head(f, kindArray)
	if !ok {
		return
	}
	at := int(o.at[f]) + h.size
	for range h.n {
		if at = do(at); o.p.connError != nil {
			return
		}
	}
}

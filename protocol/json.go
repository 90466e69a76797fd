package protocol

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// JSON lines, as docs/pipe.md describes them. The mapping follows the structure of a frame and
// knows no field, so every field of every message passes through it, also one of a later
// version.

// AppendJSON appends the body of a frame to dst as a JSON object without line feeds. The error
// is a *ConnError: the body breaks SPEC.md §2.
func AppendJSON(dst, body []byte) ([]byte, error) {
	var p parser
	var o object
	if err := p.open(body, &o); err != nil {
		return dst, err
	}
	dst, _ = appendJSONValue(dst, body, 0)
	return dst, nil
}

// appendJSONValue appends the value at the offset, which is whole and does not nest deeper than
// maxNesting, and returns the offset after it.
func appendJSONValue(dst, body []byte, at int) ([]byte, int) {
	h := readHead(body[at:])
	next := at + h.size + h.n
	switch h.kind {
	case kindBool:
		dst = strconv.AppendBool(dst, body[at] == 0xc3)
	case kindInt:
		if v, big := integer(body[at:]); big {
			dst = strconv.AppendUint(dst, uint64(v), 10)
		} else {
			dst = strconv.AppendInt(dst, v, 10)
		}
		next = at + h.size
	case kindStr:
		dst = appendJSONString(dst, body[at+h.size:next])
	case kindArray:
		next = at + h.size
		dst = append(dst, '[')
		for i := range h.n {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst, next = appendJSONValue(dst, body, next)
		}
		dst = append(dst, ']')
	case kindMap:
		dst, next = appendJSONObject(dst, body, at+h.size, h.n/2)

	// No field of SPEC.md has the types below; ignored fields may.
	case kindFloat:
		dst = appendJSONFloat(dst, body[at+h.size:next])
	case kindBin:
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, body[at+h.size:next])
		dst = append(dst, '"')
	default: // nil, and extensions
		dst = append(dst, "null"...)
	}
	return dst, next
}

// appendJSONObject appends a map of n fields, the first of which begins at the offset. A map
// with a key that is not a string is null.
func appendJSONObject(dst, body []byte, at, n int) ([]byte, int) {
	start := len(dst)
	isObject := true
	dst = append(dst, '{')
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		isObject = isObject && readHead(body[at:]).kind == kindStr
		dst, at = appendJSONValue(dst, body, at)
		dst = append(dst, ':')
		dst, at = appendJSONValue(dst, body, at)
	}
	if !isObject {
		return append(dst[:start], "null"...), at
	}
	return append(dst, '}'), at
}

func appendJSONFloat(dst, b []byte) []byte {
	size := 64
	var f float64
	if len(b) == 4 {
		size, f = 32, float64(math.Float32frombits(binary.BigEndian.Uint32(b)))
	} else {
		f = math.Float64frombits(binary.BigEndian.Uint64(b))
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	return strconv.AppendFloat(dst, f, 'g', -1, size)
}

// appendJSONString appends a string. It escapes every control character and line separator: a
// program that reads lines takes some of them for the end of a line.
func appendJSONString(dst, s []byte) []byte {
	dst = append(dst, '"')
	for len(s) > 0 {
		r, size := utf8.DecodeRune(s)
		switch {
		case r == '"', r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20, r >= 0x7f && r <= 0x9f, r == '\u2028', r == '\u2029':
			dst = fmt.Appendf(dst, `\u%04x`, r)
		default:
			dst = utf8.AppendRune(dst, r) // bytes that are not UTF-8: U+FFFD
		}
		s = s[size:]
	}
	return append(dst, '"')
}

// AppendFrame appends the frame that a line with one JSON object stands for. The error says what
// is wrong with the line. Whether the frame is a valid request is left to RequestDecoder.
func AppendFrame(dst, line []byte) ([]byte, error) {
	if !utf8.Valid(line) {
		return dst, errors.New("the line is not UTF-8")
	}
	if err := json.Unmarshal(line, new(json.RawMessage)); err != nil {
		return dst, fmt.Errorf("the line is not JSON: %w", err)
	}
	if hasLoneSurrogate(line) {
		return dst, errors.New("an escape \\u is one half of a surrogate pair without the other half")
	}
	c := jsonConverter{src: json.NewDecoder(bytes.NewReader(line)), w: newWriter(dst)}
	c.src.UseNumber()
	defer c.w.free()
	c.w.buf = append(c.w.buf, make([]byte, prefix)...)
	first, _ := c.src.Token() // no error: the line is valid JSON
	if first != json.Delim('{') {
		return dst, errors.New("the line is not a JSON object")
	}
	if err := c.value(first, 0); err != nil {
		return dst, err
	}
	size := len(c.w.buf) - len(dst) - prefix
	if size > MaxFrame {
		return dst, errTooLarge
	}
	binary.BigEndian.PutUint32(c.w.buf[len(dst):], uint32(size))
	return c.w.buf, nil
}

var errTooLarge = fmt.Errorf("the line does not fit into a frame of %d bytes", MaxFrame)

// jsonConverter writes valid JSON as msgpack, each value in its shortest format.
type jsonConverter struct {
	src *json.Decoder
	w   *writer
}

// value writes the value that begins with the token, inside of depth arrays and objects.
func (c *jsonConverter) value(first json.Token, depth int) error {
	w := c.w
	if len(w.buf)-w.start > prefix+MaxFrame {
		return errTooLarge
	}
	switch v := first.(type) {
	case nil:
		_ = w.enc.EncodeNil()
	case bool:
		_ = w.enc.EncodeBool(v)
	case string:
		_ = w.enc.EncodeString(v)
	case json.Number:
		return c.number(v.String())
	case json.Delim:
		if depth > maxNesting {
			return fmt.Errorf("arrays and objects nest too deep; %d may stand inside one another in a field", MaxDepth)
		}
		if v == '{' {
			return c.object(depth)
		}
		return c.array(depth)
	}
	return nil
}

func (c *jsonConverter) object(depth int) error {
	outer := c.w.beginMap()
	for c.src.More() {
		key, _ := c.src.Token()
		c.w.key(key.(string))
		value, _ := c.src.Token()
		if err := c.value(value, depth+1); err != nil {
			return err
		}
	}
	c.w.endMap(outer)
	_, _ = c.src.Token()
	return nil
}

func (c *jsonConverter) array(depth int) error {
	at, n := len(c.w.buf), 0
	for ; c.src.More(); n++ {
		value, _ := c.src.Token()
		if err := c.value(value, depth+1); err != nil {
			return err
		}
	}
	_, _ = c.src.Token()
	if n < 16 {
		c.w.buf = slices.Insert(c.w.buf, at, 0x90|byte(n))
	} else { // fewer than 2^16, because each has a byte, and the frame is not too large
		c.w.buf = slices.Insert(c.w.buf, at, 0xdc, byte(n>>8), byte(n))
	}
	return nil
}

// number writes an integer if the text has an integral value, and a float otherwise: 5000.0 and
// 5e3 are integers, as some languages print them so.
func (c *jsonConverter) number(text string) error {
	if u, err := strconv.ParseUint(text, 10, 64); err == nil {
		return c.w.enc.EncodeUint(u)
	}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return c.w.enc.EncodeInt(i)
	}
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return fmt.Errorf("the number %.40s is out of range", text)
	case f == math.Trunc(f) && math.Abs(f) <= 1<<53:
		return c.w.enc.EncodeInt(int64(f))
	}
	return c.w.enc.EncodeFloat64(f)
}

// hasLoneSurrogate reports whether valid JSON has an escape for one half of a surrogate pair
// without the other. The JSON package reads it as U+FFFD, so two names of locks could become one.
func hasLoneSurrogate(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		i++ // the escaped character
		switch half := surrogate(text[i:]); {
		case half == 0:
		case half < 0xdc00 && text[i+5] == '\\' && surrogate(text[i+6:]) >= 0xdc00:
			i += 10
		default:
			return true
		}
	}
	return false
}

// surrogate returns the half of a surrogate pair that stands after a backslash; 0: none.
func surrogate(escape []byte) uint64 {
	if len(escape) < 5 || escape[0] != 'u' {
		return 0
	}
	if r, _ := strconv.ParseUint(string(escape[1:5]), 16, 32); r >= 0xd800 && r <= 0xdfff {
		return r
	}
	return 0
}

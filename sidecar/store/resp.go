package store

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// What is sent and received on a command connection after its handshake: the part of
// RESP2 that scripts need. A client library would make an object of each command
// and each value of a reply, and costs more than the rest of the way of an
// operation through the sidecar.

// A command is an array of bulk strings.

func appendArray(dst []byte, n int) []byte { return appendHead(dst, '*', n) }

func appendString(dst []byte, s string) []byte {
	dst = appendHead(dst, '$', len(s))
	dst = append(dst, s...)
	return append(dst, '\r', '\n')
}

func appendNumber(dst []byte, n int64) []byte {
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], n, 10)
	dst = appendHead(dst, '$', len(text))
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

func appendHead(dst []byte, kind byte, n int) []byte {
	dst = append(dst, kind)
	dst = strconv.AppendInt(dst, int64(n), 10)
	return append(dst, '\r', '\n')
}

// A reply is one value that Redis answered.
type reply struct {
	kind byte    // ':' an integer, '$' a string, '-' an error, '*' a list, 0: nil
	num  int64   // integer
	text string  // string, error
	list []reply // good until the next reply is read
}

// Bounds of what our scripts answer, with room to spare.
const (
	maxReplyText = 64 << 10
	maxReplyList = 4 * runMax
)

// errStrange: this is not the RESP of a Redis that answers us.
var errStrange = errors.New("it gave a reply that is not RESP, or far too large")

// replies reads one reply after the other.
type replies struct {
	in    *bufio.Reader
	items []reply // of a list
}

func newReplies(r io.Reader) *replies { return &replies{in: bufio.NewReaderSize(r, maxReplyText)} }

func (r *replies) next() (reply, error) { return r.value(0) }

func (r *replies) value(depth int) (reply, error) {
	line, err := r.line()
	if err != nil {
		return reply{}, err
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return reply{kind: '$', text: string(rest)}, nil
	case '-':
		return reply{kind: '-', text: string(rest)}, nil
	}
	n, ok := number(rest)
	if !ok {
		return reply{}, errStrange
	}
	switch kind {
	case ':':
		return reply{kind: ':', num: n}, nil
	case '$':
		if n == -1 {
			return reply{}, nil
		}
		if n < 0 || n > maxReplyText {
			return reply{}, errStrange
		}
		text := make([]byte, n+2)
		if _, err := io.ReadFull(r.in, text); err != nil {
			return reply{}, err
		}
		if text[n] != '\r' || text[n+1] != '\n' {
			return reply{}, errStrange
		}
		return reply{kind: '$', text: string(text[:n])}, nil
	case '*':
		if n == -1 {
			return reply{}, nil
		}
		if n < 0 || n > maxReplyList || depth > 1 {
			return reply{}, errStrange
		}
		var items []reply
		if depth == 0 {
			items = r.items[:0]
		}
		for range n {
			item, err := r.value(depth + 1)
			if err != nil {
				return reply{}, err
			}
			items = append(items, item)
		}
		if depth == 0 {
			r.items = items
		}
		return reply{kind: '*', list: items}, nil
	}
	return reply{}, errStrange
}

// line reads up to CRLF, and returns at least the byte of the kind. It is
// good until the next read.
func (r *replies) line() ([]byte, error) {
	line, err := r.in.ReadSlice('\n')
	switch {
	case err == bufio.ErrBufferFull:
		return nil, errStrange
	case err == io.EOF && len(line) > 0:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	case len(line) < 3 || line[len(line)-2] != '\r':
		return nil, errStrange
	}
	return line[:len(line)-2], nil
}

// number reads a decimal integer.
func number(text []byte) (int64, bool) {
	digits := text
	negative := len(text) > 0 && text[0] == '-'
	if negative {
		digits = text[1:]
	}
	if len(digits) == 0 {
		return 0, false
	}
	n := int64(0)
	for _, c := range digits {
		if c < '0' || c > '9' || n > (math.MaxInt64-9)/10 {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	if negative {
		n = -n
	}
	return n, true
}

// String describes a reply that should not have been made, without its contents.
func (r reply) String() string {
	switch r.kind {
	case ':':
		return "the integer " + strconv.FormatInt(r.num, 10)
	case '$':
		return "a string"
	case '-':
		return "an error"
	case '*':
		return fmt.Sprintf("a list of %d", len(r.list))
	}
	return "nil"
}

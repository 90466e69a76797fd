package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// What is sent and received on a connection after its greeting: the part of RESP3 that
// scripts and subscriptions need. A client library would make an object of each command
// and each value of a reply, and costs more than the rest of the way of an operation
// through the sidecar.

// A command is an array of bulk strings.

func AppendArray(dst []byte, n int) []byte { return appendHead(dst, '*', n) }

func AppendString(dst []byte, s string) []byte {
	dst = appendHead(dst, '$', len(s))
	dst = append(dst, s...)
	return append(dst, '\r', '\n')
}

func AppendNumber(dst []byte, n int64) []byte {
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

// A Reply is one value that Redis sent: the answer to a command, or a push, which answers
// none.
type Reply struct {
	Kind byte    // see below
	Num  int64   // integer, boolean
	Text string  // string, error, other number
	List []Reply // good until the next reply is read; of a map, keys and values alternate
}

// Kinds of replies are the first bytes of their RESP. Strings of all forms are '$', and errors
// of both forms '-'. Nil is 0. No script of ours answers ',', '(', '#', '%' or '~': they are
// read, and refused by what expects something else.
//
// longText is a string that was read and not kept, because it is longer than any of ours. Any
// program may publish it, or store it under a key that a query reads.
const longText = 'L'

// Bounds of what our scripts answer, with room to spare.
const (
	MaxReplyText  = 64 << 10 // of a string that is kept; of a push, of all its strings
	maxReplyList  = 4 * RunMax
	maxReplyDepth = 4 // HELLO answers a map with a list of modules, which are maps with lists

	maxSkippedText = 1 << 40 // of a string that is read and not kept; Redis has less memory
)

// ErrStrange: this is not the RESP of a Redis that answers us.
var ErrStrange = errors.New("it gave a reply that is not RESP, or far too large")

// Replies reads one reply after the other.
type Replies struct {
	in    *bufio.Reader
	items []Reply // of a list

	Known [2]string // strings that pushes often have: they cost no memory

	inPush bool  // a push is being read
	room   int64 // how many bytes of strings are kept of the rest of the push
}

func NewReplies(r io.Reader) *Replies { return &Replies{in: bufio.NewReaderSize(r, MaxReplyText+2)} }

func (r *Replies) Next() (Reply, error) {
	r.inPush = false
	return r.value(0)
}

func (r *Replies) value(depth int) (Reply, error) {
	line, err := r.line()
	if err != nil {
		return Reply{}, err
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return Reply{Kind: '$', Text: string(rest)}, nil
	case '-', ',', '(':
		return Reply{Kind: kind, Text: string(rest)}, nil
	case '_':
		if len(rest) > 0 {
			return Reply{}, ErrStrange
		}
		return Reply{}, nil
	case '#':
		switch string(rest) {
		case "t":
			return Reply{Kind: '#', Num: 1}, nil
		case "f":
			return Reply{Kind: '#'}, nil
		}
		return Reply{}, ErrStrange
	}
	n, ok := number(rest)
	if !ok {
		return Reply{}, ErrStrange
	}
	switch kind {
	case ':':
		return Reply{Kind: ':', Num: n}, nil
	case '$', '=', '!':
		if kind == '$' && n == -1 {
			return Reply{}, nil
		}
		return r.text(kind, n)
	case '*', '~', '%', '>':
		if kind == '*' && n == -1 {
			return Reply{}, nil
		}
		if n < 0 || n > maxReplyList || depth > maxReplyDepth || kind == '>' && depth > 0 {
			return Reply{}, ErrStrange
		}
		if kind == '>' {
			r.inPush, r.room = true, MaxReplyText
		}
		if kind == '%' {
			n *= 2
		}
		return r.list(kind, n, depth)
	}
	return Reply{}, ErrStrange
}

// text reads the n bytes of a string, an error ('!'), or a string with its format ('=').
func (r *Replies) text(kind byte, n int64) (Reply, error) {
	switch {
	case n < 0, n > maxSkippedText:
		return Reply{}, ErrStrange
	case n > MaxReplyText, r.inPush && n > r.room:
		if _, err := r.in.Discard(int(n)); err != nil {
			return Reply{}, err
		}
		end, err := r.in.Peek(2)
		if err != nil {
			return Reply{}, err
		}
		if string(end) != "\r\n" {
			return Reply{}, ErrStrange
		}
		_, _ = r.in.Discard(2)
		return Reply{Kind: longText}, nil
	}
	if r.inPush {
		r.room -= n
	}
	bytes, err := r.in.Peek(int(n) + 2)
	if err != nil {
		return Reply{}, err
	}
	if bytes[n] != '\r' || bytes[n+1] != '\n' {
		return Reply{}, ErrStrange
	}
	text := r.string(bytes[:n])
	_, _ = r.in.Discard(len(bytes)) // they are in the buffer
	switch kind {
	case '!':
		kind = '-'
	case '=':
		if n < 4 || text[3] != ':' {
			return Reply{}, ErrStrange
		}
		kind, text = '$', text[4:]
	}
	return Reply{Kind: kind, Text: text}, nil
}

// string returns a string with these bytes.
func (r *Replies) string(bytes []byte) string {
	if r.inPush {
		for _, known := range r.Known {
			if string(bytes) == known {
				return known
			}
		}
	}
	return string(bytes)
}

// list reads n values.
func (r *Replies) list(kind byte, n int64, depth int) (Reply, error) {
	var items []Reply
	if depth == 0 {
		items = r.items[:0]
	}
	for range n {
		item, err := r.value(depth + 1)
		if err != nil {
			return Reply{}, err
		}
		items = append(items, item)
	}
	if depth == 0 {
		r.items = items
	}
	return Reply{Kind: kind, List: items}, nil
}

// line reads up to CRLF, and returns at least the byte of the kind. It is
// good until the next read.
func (r *Replies) line() ([]byte, error) {
	line, err := r.in.ReadSlice('\n')
	switch {
	case err == bufio.ErrBufferFull:
		return nil, ErrStrange
	case err == io.EOF && len(line) > 0:
		return nil, io.ErrUnexpectedEOF
	case err != nil:
		return nil, err
	case len(line) < 3 || line[len(line)-2] != '\r':
		return nil, ErrStrange
	}
	return line[:len(line)-2], nil
}

// number reads a decimal integer. What a script calculates beyond 64 bits, say with a score that another program has
// written, Redis answers as the smallest integer: here it is the largest.
func number(text []byte) (int64, bool) {
	if len(text) > 18 {
		n, err := strconv.ParseInt(string(text), 10, 64)
		if n == math.MinInt64 {
			n = math.MaxInt64
		}
		return n, err == nil && text[0] != '+'
	}
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
		if c < '0' || c > '9' {
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
func (r Reply) String() string {
	switch r.Kind {
	case ':':
		return "the integer " + strconv.FormatInt(r.Num, 10)
	case '$':
		return "a string"
	case '-':
		return "an error"
	case '*', '~', '%':
		return fmt.Sprintf("a list of %d", len(r.List))
	case '>':
		return "a push"
	case '#':
		return "a boolean"
	case ',', '(':
		return "a number that is no integer"
	}
	return "nil"
}

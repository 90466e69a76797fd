package store

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// A script is one verb: its text and the digest by which Redis knows it.
type script struct {
	text    string
	sha     string
	evalsha []byte // the first two arguments of its EVALSHA, encoded
}

var (
	//go:embed scripts/take.lua
	takeText string
	//go:embed scripts/keep.lua
	keepText string
	//go:embed scripts/drop.lua
	dropText string

	take = newScript(takeText)
	keep = newScript(keepText)
	drop = newScript(dropText)

	scripts = []*script{take, keep, drop}
)

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &script{text: text, sha: sha, evalsha: appendString(appendString(nil, "evalsha"), sha)}
}

// keepMax is how many locks one keep renews. Redis runs a script to its end
// before anybody else is served: at 1 to 2 µs a lock, this is well below 1 ms.
const keepMax = 128

// A call is one command under way: a run of a script, for one operation or for
// many that renew, or what keeps the connection in shape.
type call struct {
	form   form
	script *script // nil: a ping
	ops    int     // how many operations it carries out
	sent   int64   // CLOCK_BOOTTIME in ns, read before it was written
	from   int64   // where in the stream of the connection it begins, bytes
	again  bool    // Redis was taught the script after it did not know it for these operations
}

type form uint8

const (
	byDigest form = iota // EVALSHA: run a script that Redis knows
	byText               // EVAL: run and teach it
	loading              // SCRIPT LOAD: teach it
	alive                // PING
)

// encoder turns operations into commands.
type encoder struct {
	prefix string // "<uuid>:"
	floor  int64  // of this connection's tokens
}

// together returns how many of ops, at least one, are carried out by one run of a
// script, and of which: neighbours that renew with the same lease share one.
func together(ops []locktable.Op) (*script, int) {
	switch ops[0].Kind {
	case locktable.Take:
		return take, 1
	case locktable.Drop:
		return drop, 1
	case locktable.Keep:
		n := 1
		for n < len(ops) && n < keepMax && ops[n].Kind == locktable.Keep && ops[n].LeaseMS == ops[0].LeaseMS {
			n++
		}
		return keep, n
	}
	panic(fmt.Sprintf("store: operation of unknown kind %d", ops[0].Kind))
}

// run appends the command that runs a script for ops: EVALSHA, or EVAL, which also
// teaches Redis the script.
func (e *encoder) run(dst []byte, f form, s *script, ops []locktable.Op) []byte {
	op := &ops[0]
	begin := func(args int) {
		dst = appendArray(dst, 2+args)
		if f == byText {
			dst = appendString(dst, "eval")
			dst = appendString(dst, s.text)
		} else {
			dst = append(dst, s.evalsha...)
		}
	}
	switch s {
	case take:
		begin(11)
		dst = appendNumber(dst, 2)
		dst = appendString(dst, op.Name)
		dst = appendPrefixed(dst, counterPrefix, op.Name)
		dst = appendString(dst, e.prefix)
		dst = appendNumber(dst, int64(op.Num))
		dst = appendNumber(dst, int64(op.Count))
		dst = appendNumber(dst, int64(op.LeaseMS))
		dst = appendNumber(dst, int64(op.Reserve))
		dst = appendNumber(dst, e.floor)
		dst = appendPrefixed(dst, channelPrefix, op.Name)
		held := int64(0)
		if op.Held {
			held = 1
		}
		dst = appendNumber(dst, held)
	case keep:
		begin(3 + 3*len(ops))
		dst = appendNumber(dst, int64(len(ops)))
		for i := range ops {
			dst = appendString(dst, ops[i].Name)
		}
		dst = appendString(dst, e.prefix)
		dst = appendNumber(dst, int64(op.LeaseMS))
		for i := range ops {
			dst = appendNumber(dst, int64(ops[i].Num))
			dst = appendNumber(dst, int64(ops[i].Count))
		}
	case drop:
		begin(5)
		dst = appendNumber(dst, 1)
		dst = appendString(dst, op.Name)
		dst = appendString(dst, e.prefix)
		dst = appendNumber(dst, int64(op.Num))
		dst = appendPrefixed(dst, channelPrefix, op.Name)
	}
	return dst
}

func appendLoad(dst []byte, s *script) []byte {
	dst = appendArray(dst, 3)
	dst = appendString(dst, "script")
	dst = appendString(dst, "load")
	return appendString(dst, s.text)
}

func appendPing(dst []byte) []byte { return appendString(appendArray(dst, 1), "ping") }

// A reply that the script cannot have made. Whether it ran is anybody's guess.
type strangeReply struct {
	script *script
	reply  reply
}

func (e *strangeReply) Error() string {
	return fmt.Sprintf("it gave %v, which no script of ours makes", e.reply)
}

// decodeTake reads {1, token, listeners}, {0} or {2, pttl, field, listeners} into r.
func decodeTake(answer reply, r *locktable.Result) error {
	parts := answer.list
	switch {
	case len(parts) == 1 && parts[0].is(0):
		r.Outcome = locktable.Missing
		return nil
	case len(parts) == 3 && parts[0].is(1) && parts[1].kind == ':' && parts[2].kind == ':':
		r.Outcome = locktable.Done
		r.Token = uint64(parts[1].num)
		r.Listeners = int32(parts[2].num)
		return nil
	case len(parts) == 4 && parts[0].is(2) && parts[1].kind == ':' && parts[2].kind == '$' && parts[3].kind == ':':
		decodeOther(parts[1].num, parts[2].text, r)
		r.Listeners = int32(parts[3].num)
		return nil
	}
	return &strangeReply{take, answer}
}

// decodeKeep reads one status of keep into r: 1, 0, {pttl, field}, or the text of
// an error, which it returns.
func decodeKeep(status reply, r *locktable.Result) (refusal string, err error) {
	parts := status.list
	switch {
	case status.is(1):
		r.Outcome = locktable.Done
		return "", nil
	case status.is(0):
		r.Outcome = locktable.Missing
		return "", nil
	case len(parts) == 2 && parts[0].kind == ':' && parts[1].kind == '$':
		decodeOther(parts[0].num, parts[1].text, r)
		return "", nil
	case status.kind == '$':
		return status.text, nil
	}
	return "", &strangeReply{keep, status}
}

// is tells whether a reply is this integer.
func (r reply) is(n int64) bool { return r.kind == ':' && r.num == n }

func decodeOther(ttl int64, field string, r *locktable.Result) {
	r.Outcome = locktable.Other
	r.TTLMS = max(ttl, -1)
	r.Field = strings.ToValidUTF8(field, "\uFFFD")
}

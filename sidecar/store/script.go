package store

import (
	"cmp"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// A script carries out many operations: its text and the digest by which Redis knows it.
type script struct {
	text    string
	sha     string
	evalsha []byte // the first two arguments of its EVALSHA, encoded
}

var (
	//go:embed scripts/ownership.lua
	ownershipText string
	//go:embed scripts/acquire_release.lua
	acquireReleaseText string
	//go:embed scripts/renew.lua
	renewText string

	acquireRelease = newScript(ownershipText + acquireReleaseText) // takes and drops
	renew          = newScript(ownershipText + renewText)

	scripts = []*script{acquireRelease, renew}
)

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &script{text: text, sha: sha, evalsha: appendString(appendString(nil, "evalsha"), sha)}
}

// runMax is how many operations one run of a script carries out. Redis runs a script
// to its end before anybody else is served: at 1 to 3 µs each, this is well below 1 ms.
const runMax = 128

// A call is one command under way: a run of a script, or what keeps the connection in
// shape.
type call struct {
	form     form
	script   *script          // nil: a ping, or subscribing
	ops      int              // how many operations it carries out
	sent     int64            // CLOCK_BOOTTIME in ns, read before it was written
	from     int64            // where in the stream of the connection it begins, bytes
	again    bool             // Redis was taught the script after it did not know it for these operations
	channels *channelsRequest // subscribing
}

type form uint8

const (
	byDigest    form = iota // EVALSHA: run a script that Redis knows
	byText                  // EVAL: run and teach it
	loading                 // SCRIPT LOAD: teach it
	alive                   // PING
	subscribing             // SUBSCRIBE or UNSUBSCRIBE
)

// encoder turns operations into commands.
type encoder struct {
	prefix string // of this sidecar's owner fields: "<uuid>:"
	keys   keyspace
	floor  int64 // of this connection's tokens, µs
	expiry int64 // of token counters after their last use, ms; 0: none

	turns [turns][]locktable.Op // of the operations that are being arranged
}

// scriptOf is the script for operations of a kind.
func scriptOf(k locktable.OpKind) *script {
	switch k {
	case locktable.Take, locktable.Drop:
		return acquireRelease
	case locktable.Renew, locktable.Check:
		return renew
	}
	panic(fmt.Sprintf("store: operation of unknown kind %d", k))
}

// sortForBatching puts ops that are sent at one time into an order in which few scripts
// execute them: renewals first, because a late one costs a client its lock; then checks; then
// takes and drops, those with the same lease together.
func sortForBatching(ops []locktable.Op) {
	class := func(op *locktable.Op) int {
		switch op.Kind {
		case locktable.Renew:
			return 0
		case locktable.Check:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(ops, func(a, b locktable.Op) int {
		if c := cmp.Or(cmp.Compare(class(&a), class(&b)), cmp.Compare(a.LeaseMS, b.LeaseMS)); c != 0 || scriptOf(a.Kind) != renew {
			return c
		}
		return cmp.Compare(a.Count, b.Count)
	})
}

// batchPrefix returns how many of ops, at least one, one run of a script executes, and which
// script: neighbours with the same script and one lease; and if they are renewed or checked,
// with the same number of entries. Drops go with any lease.
func batchPrefix(ops []locktable.Op) (*script, int) {
	s := scriptOf(ops[0].Kind)
	var first *locktable.Op // with a lease
	n := 0
	for ; n < min(len(ops), runMax) && scriptOf(ops[n].Kind) == s; n++ {
		op := &ops[n]
		switch {
		case op.Kind == locktable.Drop:
		case first == nil:
			first = op
		case op.LeaseMS != first.LeaseMS, s == renew && op.Count != first.Count:
			return s, n
		}
	}
	return s, n
}

// argSection is the section of the script's arguments that an operation goes into. A script
// executes its sections in order.
type argSection int

const (
	taken argSection = iota // or renewed
	set
	// moved is like set, but ordered after it: once a script has written anything, Redis no
	// longer enforces maxmemory for it, so plain sets must run before.
	moved
	dropped
	retaken // by two operations, a drop and a take pipelined after it
	turns
)

func argSectionOf(op *locktable.Op) argSection {
	switch {
	case op.Kind == locktable.Renew, op.Kind == locktable.Check:
		return taken
	case op.Kind == locktable.Drop:
		return dropped
	case op.RequireExisting:
		return moved
	case op.Count != 1 || op.Reserve != 1:
		return set
	}
	return taken
}

// retakes reports whether the first two of ops are a lock that is dropped and taken again.
func retakes(ops []locktable.Op) bool {
	return len(ops) > 1 && ops[0].Kind == locktable.Drop && ops[1].AfterPendingDrop && argSectionOf(&ops[1]) == taken && ops[0].Name == ops[1].Name
}

// orderArgs puts ops, which one run executes, into the order of its script.
func (e *encoder) orderArgs(ops []locktable.Op) {
	if slices.ContainsFunc(ops, func(op locktable.Op) bool { return op.AfterPendingDrop }) {
		// Each of those follows its drop, if that is among ops, and makes one turn with it,
		// unless it is set: then it goes first, and the drop finds a later hold.
		slices.SortStableFunc(ops, func(a, b locktable.Op) int {
			return cmp.Or(strings.Compare(a.Name, b.Name), -cmp.Compare(argSectionOf(&a), argSectionOf(&b)))
		})
	}
	for i := range e.turns {
		e.turns[i] = e.turns[i][:0]
	}
	for i := 0; i < len(ops); {
		t, n := argSectionOf(&ops[i]), 1
		if retakes(ops[i:]) {
			t, n = retaken, 2
		}
		e.turns[t] = append(e.turns[t], ops[i:i+n]...)
		i += n
	}
	ops = ops[:0]
	for i := range e.turns {
		ops = append(ops, e.turns[i]...)
		clear(e.turns[i])
	}
}

// run appends the command that runs a script for ops, and arranges them: EVALSHA, or
// EVAL, which also teaches Redis the script. The first token of a new counter is above
// birth, µs.
func (e *encoder) run(dst []byte, f form, s *script, birth int64, ops []locktable.Op) []byte {
	e.orderArgs(ops)
	counts := [turns]int{}
	for i := range e.turns {
		counts[i] = len(e.turns[i])
	}
	pairs := counts[retaken] / 2
	again := len(ops) - counts[retaken] // there they begin
	sets := counts[set] + counts[moved]
	var leased locktable.Op
	for i := range ops {
		if ops[i].Kind != locktable.Drop {
			leased = ops[i]
		}
	}
	keys, args := len(ops)-pairs, 3+len(ops)
	if s == acquireRelease {
		keys += keys - counts[dropped]
		args += 5 + 3*sets + counts[dropped] + pairs
	}
	dst = appendArray(dst, 3+keys+args)
	if f == byText {
		dst = appendString(dst, "eval")
		dst = appendString(dst, s.text)
	} else {
		dst = append(dst, s.evalsha...)
	}
	dst = appendNumber(dst, int64(keys))
	for i := range ops {
		if i < again || ops[i].Kind == locktable.Drop {
			dst = e.keys.appendKey(dst, ops[i].Name)
		}
	}
	if s == acquireRelease {
		for i := range ops {
			if ops[i].Kind == locktable.Take {
				dst = e.keys.appendDerived(dst, counterPrefix, ops[i].Name)
			}
		}
	}
	dst = appendString(dst, e.prefix)
	if s == acquireRelease {
		dst = appendNumber(dst, int64(counts[taken]))
		dst = appendNumber(dst, int64(sets))
		dst = appendNumber(dst, int64(counts[dropped]))
		dst = appendNumber(dst, int64(leased.LeaseMS))
		dst = appendNumber(dst, e.floor)
		dst = appendNumber(dst, birth)
		dst = appendNumber(dst, e.expiry)
	} else {
		dst = appendNumber(dst, int64(leased.LeaseMS))
		dst = appendNumber(dst, int64(leased.Count))
	}
	for i := range ops {
		op := &ops[i]
		dst = appendNumber(dst, int64(op.HoldID))
		switch argSectionOf(op) {
		case set, moved:
			dst = appendNumber(dst, int64(op.Count))
			dst = appendNumber(dst, int64(op.Reserve))
			held := int64(0)
			if op.RequireExisting {
				held = 1
			}
			dst = appendNumber(dst, held)
		case dropped:
			dst = e.keys.appendDerived(dst, channelPrefix, op.Name)
		}
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
type unexpectedReply struct {
	script *script
	reply  reply
}

func (e *unexpectedReply) Error() string {
	return fmt.Sprintf("it gave %v, which no script of ours makes", e.reply)
}

// decode reads what a script answers to one operation into r. A refusal is the text
// of an error of Redis for this operation alone. silent: what was given back could not
// be published.
func decode(status reply, r *locktable.Result) (refusal string, silent bool, err error) {
	parts := status.list
	number := status.kind == ':'
	r.Listeners = locktable.Uncounted
	switch {
	case status.kind == '$' && status.text != "":
		return status.text, false, nil

	case scriptOf(r.Kind) == renew && number && status.num == 1:
		r.Outcome = locktable.Done
	case r.Kind == locktable.Check && number && status.num == 2:
		r.Outcome = locktable.Differs
	case scriptOf(r.Kind) == renew && number && status.num == 0:
		r.Outcome = locktable.KeyMissing
	case scriptOf(r.Kind) == renew && hasKinds(parts, ":$"):
		decodeOther(parts[0].num, parts[1].text, r)

	case r.Kind == locktable.Take && number && status.num != -1:
		decodeTaken(status.num, r)
	case r.Kind == locktable.Take && number && status.num == -1:
		r.Outcome = locktable.KeyMissing
	case r.Kind == locktable.Take && hasKinds(parts, "::") && parts[0].num != -1:
		decodeTaken(parts[0].num, r)
		r.Listeners = int32(parts[1].num)
	case r.Kind == locktable.Take && hasKinds(parts, ":$:"):
		decodeOther(parts[0].num, parts[1].text, r)
		r.Listeners = int32(parts[2].num)

	case scriptOf(r.Kind) == acquireRelease && hasKinds(parts, "$"):
		r.Outcome, r.Field = locktable.NotALock, readable(parts[0].text)

	case r.Kind == locktable.Drop && number && status.num >= -1:
		r.Outcome, r.Listeners = locktable.Done, int32(status.num)
	case r.Kind == locktable.Drop && number && status.num == -2:
		r.Outcome, r.Listeners = locktable.Done, -1
		return "", true, nil
	case r.Kind == locktable.Drop && number && status.num == -3:
		r.Outcome = locktable.Done

	default:
		return "", false, &unexpectedReply{scriptOf(r.Kind), status}
	}
	return "", false, nil
}

// hasKinds reports whether a list has items of these kinds, and no others.
func hasKinds(list []reply, kinds string) bool {
	if len(list) != len(kinds) {
		return false
	}
	for i := range list {
		if list[i].kind != kinds[i] {
			return false
		}
	}
	return true
}

func decodeTaken(last int64, r *locktable.Result) {
	r.Outcome, r.Made = locktable.Done, last < 0
	r.Token = uint64(max(last, -last))
}

func decodeOther(ttl int64, field string, r *locktable.Result) {
	r.Outcome = locktable.HeldByOther
	r.TTLMS = max(ttl, -1)
	r.Field = readable(field)
}

// readable makes text that another program has written to Redis fit for messages, logs
// and terminals: valid UTF-8 without control characters.
func readable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

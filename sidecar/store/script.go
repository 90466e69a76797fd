package store

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A script carries out many operations: its text and the digest by which Redis knows it.
type script struct {
	text    string
	sha     string
	evalsha []byte // the first two arguments of its EVALSHA, encoded
}

var (
	acquireRelease = newScript(acquireReleaseText())
	renew          = newScript(scriptText(ownershipText, renewText))
	arrive         = newScript(scriptText(arriveText))
	permissions    = newScript(scriptText(permissionsText))

	scripts        = []*script{acquireRelease, renew, arrive, permissions}
	clusterScripts = append(scripts[:len(scripts):len(scripts)], quietTake, quietDrop)
)

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &script{text: text, sha: sha, evalsha: appendString(appendString(nil, "evalsha"), sha)}
}

// runMax is how many operations one run of a script carries out. Redis runs a script
// to its end before anybody else is served: at 1 to 3 µs each, this is well below 1 ms.
const runMax = redisop.RenewalGroupSize

// A call is one command under way: a run of a script, or what keeps the connection in
// shape.
type call struct {
	form     form
	script   *script          // nil: a ping, subscribing, querying, probing, permitted, syncing, reading or informing
	ops      int              // how many operations it carries out
	sent     int64            // CLOCK_BOOTTIME in ns, read before it was written
	from     int64            // where in the stream of the connection it begins, bytes
	isAsking bool             // another node of the Cluster has its slot
	again    bool             // Redis was taught the script after it did not know it for these operations
	isOwed   bool             // a WAIT follows: its results are withheld until the answer to that
	channels *channelsRequest // subscribing
	query    *query           // querying
}

type form uint8

const (
	byDigest    form = iota // EVALSHA: run a script that Redis knows
	byText                  // EVAL: run and teach it
	loading                 // SCRIPT LOAD: teach it
	alive                   // ROLE, or PING if that is not permitted
	subscribing             // SUBSCRIBE or UNSUBSCRIBE
	querying                // a command of a query
	probing                 // EVALSHA: a probe
	permitted               // EVALSHA: which commands are, see probe.lacks
	syncing                 // WAIT
	permitting              // ASKING: the next command may be of a slot that another node has
	timing                  // TIME: see pipeline.askClock
	reading                 // CONFIG GET: see pipeline.onReplicas
	informing               // INFO: see pipeline.askEviction
)

// encoder turns operations into commands.
type encoder struct {
	prefix string // of this sidecar's owner fields: "<uuid>:"
	keys   keyspace
	floor  int64  // of this connection's tokens, µs; see tokensAbove
	lifts  bool   // each counter is lifted, see pipeline.askClock
	expiry int64  // of token counters after their last use, ms; 0: none
	origin string // what messages name as theirs

	confirms bool // replicas confirm operations

	// In a Cluster:
	declares  bool // each key that a script may make is among its KEYS: the queues and the signs of locks, too
	isSharded bool // the channels of locks are sharded

	turns [turns][]redisop.Op // of the operations that are being arranged
	words []byte              // to be used again
	text  [6]byte             // the same
}

// tokensAbove is the value, µs, that tokens of this connection are above. A counter that is not is
// lifted to Redis's clock.
func (e *encoder) tokensAbove() int64 {
	if e.lifts {
		return 1<<53 - 1
	}
	return e.floor
}

// scriptOf is the script for operations of a kind.
func scriptOf(k redisop.OpKind) *script {
	switch k {
	case redisop.Take, redisop.Drop:
		return acquireRelease
	case redisop.Renew, redisop.Check:
		return renew
	case redisop.Arrive:
		return arrive
	}
	panic(fmt.Sprintf("store: operation of unknown kind %d", k))
}

// sortForBatching puts ops that are sent at now, ns, into an order in which few scripts
// execute them: renewals first, because a late one costs a client its lock; then checks; then
// arrivals; then takes and drops, those with the same lease together. Of the renewals that one
// script executes, those that look for the fields of others come first, and then the locks of a
// renewal group stay together. A Drop stays with the Take that is pipelined after it: in one
// script, no other host gets the lock in between.
//
// slot is the slot of a name, whose locks stay together; nil: there are none.
func sortForBatching(now int64, ops []redisop.Op, slot func(name string) uint16) {
	class := func(op *redisop.Op) int {
		switch op.Kind {
		case redisop.Renew:
			return 0
		case redisop.Check:
			return 1
		case redisop.Arrive:
			return 2
		}
		return 3
	}
	var ofTake map[string]uint32 // leases of the Takes that are pipelined after a Drop
	for i := range ops {
		if op := &ops[i]; op.Has(redisop.AfterPendingDrop) {
			if ofTake == nil {
				ofTake = make(map[string]uint32)
			}
			ofTake[op.Name] = op.LeaseMS
		}
	}
	lease := func(op *redisop.Op) uint32 {
		if op.Kind == redisop.Drop {
			return ofTake[op.Name] // 0: with any other
		}
		return op.LeaseMS
	}
	slices.SortStableFunc(ops, func(a, b redisop.Op) int {
		c := cmp.Compare(class(&a), class(&b))
		if c == 0 && slot != nil {
			c = cmp.Compare(slot(a.Name), slot(b.Name))
		}
		if c = cmp.Or(c, cmp.Compare(lease(&a), lease(&b))); c != 0 || scriptOf(a.Kind) != renew {
			return c
		}
		if c := cmp.Compare(a.Count, b.Count); c != 0 {
			return c
		}
		switch looks := looksForOthers(now, &a); {
		case looks == looksForOthers(now, &b):
			return cmp.Compare(a.HoldID, b.HoldID)
		case looks:
			return -1
		}
		return 1
	})
}

// batchPrefix returns how many of ops, at least one, one run of a script executes, and which
// script: neighbours with the same script and one lease; and if they are renewed or checked,
// with the same number of entries. Drops, which have a lease for what they pass on, go with
// any lease of the others. slot: as in sortForBatching; one run has locks of one slot.
func batchPrefix(ops []redisop.Op, slot func(name string) uint16) (*script, int) {
	s := scriptOf(ops[0].Kind)
	var first, drop *redisop.Op // of those with a lease
	belongs := func(op *redisop.Op) bool {
		switch {
		case scriptOf(op.Kind) != s, slot != nil && op != &ops[0] && slot(op.Name) != slot(ops[0].Name):
			return false
		case op.Kind == redisop.Drop && drop != nil:
			return op.LeaseMS == drop.LeaseMS
		case op.Kind == redisop.Drop:
			drop = op
		case first == nil:
			first = op
		default:
			return op.LeaseMS == first.LeaseMS && (s != renew || op.Count == first.Count)
		}
		return true
	}
	n := 0
	for n < min(len(ops), runMax) && belongs(&ops[n]) {
		n++
	}
	if n > 1 && n < len(ops) && isPair(&ops[n-1], &ops[n]) {
		n-- // the next script executes both
	}
	return s, n
}

// isPair reports whether the second operation is a Take that is pipelined after the first, a Drop.
func isPair(drop, take *redisop.Op) bool {
	return drop.Kind == redisop.Drop && take.Has(redisop.AfterPendingDrop) && take.Name == drop.Name
}

// argSection is the section of the script's arguments that an operation goes into. A script
// executes its sections in order.
type argSection int

const (
	taken argSection = iota // or renewed
	set
	// setLate is like set, but ordered after it: these may write although Redis is out of
	// memory, and once a script has written anything, Redis no longer enforces maxmemory for
	// it, so plain sets must run before. A Take in order may write then as well, but nearly
	// every Take is one, and nearly every lock is free and has no queue.
	setLate
	dropped
	retaken // by two operations, a drop and a take pipelined after it
	turns
)

func argSectionOf(op *redisop.Op) argSection {
	switch {
	case op.Kind == redisop.Renew, op.Kind == redisop.Check, op.Kind == redisop.Arrive:
		return taken
	case op.Kind == redisop.Drop:
		return dropped
	case op.Has(redisop.RequireExisting), op.Ticket != 0:
		return setLate
	case op.Count != 1 || op.Reserve != 1 || op.Has(redisop.CountListeners):
		return set
	}
	return taken
}

// retakes reports whether the first two of ops are a lock that is dropped and taken again.
func retakes(ops []redisop.Op) bool {
	if len(ops) < 2 || ops[0].Kind != redisop.Drop || !ops[1].Has(redisop.AfterPendingDrop) || ops[0].Name != ops[1].Name {
		return false
	}
	take := &ops[1]
	return !take.Has(redisop.RequireExisting) && take.Count == 1 && take.Reserve != 0
}

// orderArgs puts ops, which one run executes, into the order of its script.
func (e *encoder) orderArgs(ops []redisop.Op) {
	if slices.ContainsFunc(ops, func(op redisop.Op) bool { return op.Has(redisop.AfterPendingDrop) }) {
		// Each of those follows its drop, if that is among ops, and makes one turn with it,
		// unless it is set: then it goes first, and the drop finds a later hold.
		slices.SortStableFunc(ops, func(a, b redisop.Op) int {
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
// EVAL, which also teaches Redis the script. It is sent at now, ns. The first token of a new
// counter is above birth, µs.
func (e *encoder) run(dst []byte, f form, s *script, now, birth int64, ops []redisop.Op) []byte {
	e.orderArgs(ops)
	counts := [turns]int{}
	for i := range e.turns {
		counts[i] = len(e.turns[i])
	}
	switch s {
	case quietTake, quietDrop:
		return e.quiet(dst, f, s, &ops[0])
	case renew:
		return e.renewals(dst, f, now, ops)
	case arrive:
		dst = appendCommand(dst, f, arrive, len(ops), 0)
		for i := range ops {
			dst = e.keys.appendKey(dst, ops[i].Name)
		}
		return dst
	}
	counts[set] += counts[setLate]
	pairs := counts[retaken] / 2
	again := len(ops) - counts[retaken] // there they begin
	var lease, passLease uint32
	for i := range ops {
		if ops[i].Kind == redisop.Drop {
			passLease = ops[i].LeaseMS
		} else {
			lease = ops[i].LeaseMS
		}
	}
	locks := len(ops) - pairs
	keys := locks + locks - counts[dropped]
	if e.declares {
		keys = 4 * locks
	}
	args := 9 + len(ops) + 3*counts[set] + counts[dropped] + 2*pairs
	dst = appendCommand(dst, f, s, keys, args)
	for i := range ops {
		if i < again || ops[i].Kind == redisop.Drop {
			dst = e.keys.appendKey(dst, ops[i].Name)
		}
	}
	for i := range ops {
		if ops[i].Kind == redisop.Take {
			dst = e.keys.appendDerived(dst, counterPrefix, ops[i].Name)
		}
	}
	if e.declares {
		for _, from := range []string{queuePrefix, signsPrefix} {
			for i := range ops {
				if i < again || ops[i].Kind == redisop.Drop {
					dst = e.keys.appendOurs(dst, from, ops[i].Name)
				}
			}
		}
		for i := range ops {
			if i < again && ops[i].Kind == redisop.Drop {
				dst = e.keys.appendDerived(dst, counterPrefix, ops[i].Name)
			}
		}
	}
	dst = appendString(dst, e.prefix)
	flags := byte(0)
	for i := again; i < len(ops); i += 2 {
		if ops[i].PassedMS >= redisop.MS(redisop.FreeAfterSubscribed) && waitOf(&ops[i+1]) == waitArrived {
			flags = 2
		}
	}
	if slices.ContainsFunc(ops, func(op redisop.Op) bool { return e.keys.isTagged(op.Name) }) {
		flags++
	}
	if e.confirms && slices.ContainsFunc(ops, func(op redisop.Op) bool { return op.Kind != redisop.Drop || isCovered(&op) }) {
		flags += 4
	}
	text := e.counts(byte(counts[taken]), byte(counts[set]), byte(counts[dropped]), flags)
	dst = append(append(appendHead(dst, '$', len(text)), text...), '\r', '\n')
	dst = appendNumber(dst, int64(lease))
	dst = appendNumber(dst, int64(passLease))
	dst = appendNumber(dst, e.tokensAbove())
	dst = appendNumber(dst, birth)
	dst = appendNumber(dst, e.expiry)
	dst = e.appendQueueWords(dst, ops)
	dst = appendString(dst, e.origin)
	for i := range ops {
		op := &ops[i]
		dst = appendNumber(dst, int64(op.HoldID))
		switch section := argSectionOf(op); {
		case i >= again && op.Kind == redisop.Take:
			dst = appendNumber(dst, int64(op.Reserve))
			dst = appendString(dst, flagsOf(op))
		case section == set, section == setLate:
			dst = appendNumber(dst, int64(op.Count))
			dst = appendNumber(dst, int64(op.Reserve))
			dst = appendString(dst, flagsOf(op))
		case i < again && section == dropped:
			dst = e.keys.appendDerived(dst, channelPrefix, op.Name)
		}
	}
	return dst
}

// counts returns the argument of bytes: how many locks are taken, are set and are dropped, flags, and in a
// Cluster two more: whether all keys are declared, and whether the channels of locks are sharded.
func (e *encoder) counts(taken, set, dropped, flags byte) []byte {
	text := append(e.text[:0], taken, set, dropped, flags)
	if e.declares || e.isSharded {
		text = append(text, 0, 0)
		if e.declares {
			text[4] = 1
		}
		if e.isSharded {
			text[5] = 1
		}
	}
	return text
}

// waitOf is how an operation waits in the queue of its lock: one of the numbers that the script has
// as wait.….
func waitOf(op *redisop.Op) wait {
	switch {
	case !op.Has(redisop.Enqueue):
		return waitNone
	case op.Arrived != 0:
		return waitArrived
	case op.Has(redisop.InOrder):
		return waitInOrder
	}
	return waitQueued
}

// flagsOf is what a Take that is not the usual one has as flags: see take.lua.
func flagsOf(op *redisop.Op) string {
	switch {
	case op.Has(redisop.CountListeners) && op.Has(redisop.RequireExisting):
		return "cm"
	case op.Has(redisop.CountListeners):
		return "c"
	case op.Has(redisop.RequireExisting):
		return "m"
	}
	return ""
}

// appendQueueWords appends, as one argument, what the operations say of queues. Most locks
// have none, and then Redis does not take it apart.
func (e *encoder) appendQueueWords(dst []byte, ops []redisop.Op) []byte {
	words, end := e.words[:0], 0 // of those that are not 0
	for i := range ops {
		op := &ops[i]
		wait, time := waitOf(op), uint64(op.PassedMS)
		if wait == waitArrived {
			time = op.Arrived
		}
		words = append(strconv.AppendUint(words, uint64(wait), 10), ' ')
		words = append(strconv.AppendUint(words, op.Ticket, 10), ' ')
		words = append(strconv.AppendUint(words, time, 10), ' ')
		if wait != waitNone || op.Ticket != 0 || time != 0 {
			end = len(words)
		}
	}
	e.words = words
	return append(append(appendHead(dst, '$', end), words[:end]...), '\r', '\n')
}

// renewals appends the command that renews or checks the locks of ops.
func (e *encoder) renewals(dst []byte, f form, now int64, ops []redisop.Op) []byte {
	dst = appendCommand(dst, f, renew, len(ops), 4+len(ops))
	for i := range ops {
		dst = e.keys.appendKey(dst, ops[i].Name)
	}
	dst = appendString(dst, e.prefix)
	dst = appendNumber(dst, int64(ops[0].LeaseMS))
	dst = appendNumber(dst, int64(ops[0].Count))
	looks := 0
	for looks < len(ops) && looksForOthers(now, &ops[looks]) {
		looks++
	}
	dst = appendNumber(dst, int64(looks))
	for i := range ops {
		dst = appendNumber(dst, int64(ops[i].HoldID))
	}
	return dst
}

// lookEvery is how many renewals of a lock there are, on average, for one that looks for the
// fields of others, which is a third of what a renewal costs Redis.
const lookEvery = 8

// looksForOthers reports whether an operation that is sent at a time, ns, looks for fields of
// others in the key. Time is divided into windows. The renewals of a lock in every eighth window
// look; which window that is depends on the renewal group, so that in each of them one group of
// eight is looked at.
//
// A window is two fifths of the lease. That is longer than any time between two renewals of a
// lock that Redis executes in time (see locktable.Table.renewalAfter), so no lock skips a window:
// each is looked at again after eight windows and a renewal at the latest.
func looksForOthers(now int64, op *redisop.Op) bool {
	if op.Kind == redisop.Check {
		return true
	}
	window := max(int64(op.LeaseMS)*1e6/5*2, 1)
	return (uint64(now/window)+redisop.RenewalGroup(op.HoldID))%lookEvery == 0
}

// appendCommand appends the beginning of a command that runs a script, up to the keys.
func appendCommand(dst []byte, f form, s *script, keys, args int) []byte {
	dst = appendArray(dst, 3+keys+args)
	if f == byText {
		dst = appendString(dst, "eval")
		dst = appendString(dst, s.text)
	} else {
		dst = append(dst, s.evalsha...)
	}
	return appendNumber(dst, int64(keys))
}

func appendLoad(dst []byte, s *script) []byte {
	dst = appendArray(dst, 3)
	dst = appendString(dst, "script")
	dst = appendString(dst, "load")
	return appendString(dst, s.text)
}

func appendPing(dst []byte) []byte { return appendString(appendArray(dst, 1), "ping") }

// appendTime appends the command that asks for Redis's clock.
func appendTime(dst []byte) []byte { return appendString(appendArray(dst, 1), "time") }

func appendRole(dst []byte) []byte { return appendString(appendArray(dst, 1), "role") }

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

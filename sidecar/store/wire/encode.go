package wire

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Encoder turns operations into commands.
type Encoder struct {
	Prefix string // of this sidecar's owner fields: "<uuid>:"
	Keys   Keyspace
	Floor  int64  // of this connection's tokens, µs; see tokensAbove
	Lifts  bool   // each counter is lifted, see pipeline.askClock
	Expiry int64  // of token counters after their last use, ms; 0: none
	Origin string // what messages name as theirs

	Confirms bool // replicas confirm operations

	// In a Cluster:
	Declares  bool // each key that a script may make is among its KEYS: the queues and the signs of locks, too
	IsSharded bool // the channels of locks are sharded

	sections [argSections][]redisop.Op // of the operations that are being arranged
	text     []byte                    // to be used again
}

// Params is what the arguments of a script that is no run of operations depend on.
type Params struct {
	Encoder *Encoder
	Birth   int64 // µs: the first token of a new counter is above it
}

// TokensAbove is the value, µs, that tokens of this connection are above. A counter that is not is
// lifted to Redis's clock.
func (e *Encoder) TokensAbove() int64 {
	if e.Lifts {
		return 1<<53 - 1
	}
	return e.Floor
}

// argSection is the section of the script's arguments that an operation goes into. A script
// executes its sections in order.
type argSection int

const (
	Taken argSection = iota // or renewed
	set
	// setLate is like set, but ordered after it: these may write although Redis is out of
	// memory, and once a script has written anything, Redis no longer enforces maxmemory for
	// it, so plain sets must run before. A Take in order may write then as well, but nearly
	// every Take is one, and nearly every lock is free and has no queue.
	setLate
	dropped
	retaken // by two operations, a drop and a take pipelined after it

	argSections = iota // how many there are
)

func ArgSectionOf(op *redisop.Op) argSection {
	switch {
	case op.Kind == redisop.Renew, op.Kind == redisop.Check, op.Kind == redisop.Arrive:
		return Taken
	case op.Kind == redisop.Drop:
		return dropped
	case op.Has(redisop.RequireExisting), op.Ticket != 0:
		return setLate
	case op.Count != 1 || op.Reserve != 1 || op.Has(redisop.CountListeners):
		return set
	}
	return Taken
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
func (e *Encoder) orderArgs(ops []redisop.Op) {
	if slices.ContainsFunc(ops, func(op redisop.Op) bool { return op.Has(redisop.AfterPendingDrop) }) {
		// Each of those follows its drop, if that is among ops, and goes into one section with it,
		// unless it is set: then it goes first, and the drop finds a later hold.
		slices.SortStableFunc(ops, func(a, b redisop.Op) int {
			return cmp.Or(strings.Compare(a.Name, b.Name), -cmp.Compare(ArgSectionOf(&a), ArgSectionOf(&b)))
		})
	}
	for i := range e.sections {
		e.sections[i] = e.sections[i][:0]
	}
	for i := 0; i < len(ops); {
		t, n := ArgSectionOf(&ops[i]), 1
		if retakes(ops[i:]) {
			t, n = retaken, 2
		}
		e.sections[t] = append(e.sections[t], ops[i:i+n]...)
		i += n
	}
	ops = ops[:0]
	for i := range e.sections {
		ops = append(ops, e.sections[i]...)
		clear(e.sections[i])
	}
}

// takesAndDrops appends the command that takes and drops the locks of ops, and arranges them. The first token of a new
// counter is above birth, µs.
func (e *Encoder) takesAndDrops(dst []byte, r Run, birth int64, ops []redisop.Op) []byte {
	e.orderArgs(ops)
	counts := [argSections]int{}
	for i := range e.sections {
		counts[i] = len(e.sections[i])
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
	if e.Declares {
		keys = 4 * locks
	}
	args := 1 + len(ops) + 3*counts[set] + 2*pairs
	hasLease := counts[dropped] < len(ops)
	if hasLease {
		args++
	}
	dst = AppendCommand(dst, r, keys, args)
	for i := range ops {
		if i < again || ops[i].Kind == redisop.Drop {
			dst = e.Keys.appendKey(dst, ops[i].Name)
		}
	}
	for i := range ops {
		if ops[i].Kind == redisop.Take {
			dst = e.Keys.appendDerived(dst, CounterPrefix, ops[i].Name)
		}
	}
	if e.Declares {
		for _, from := range []string{QueuePrefix, SignsPrefix} {
			for i := range ops {
				if i < again || ops[i].Kind == redisop.Drop {
					dst = e.Keys.AppendOurs(dst, from, ops[i].Name)
				}
			}
		}
		for i := range ops {
			if i < again && ops[i].Kind == redisop.Drop {
				dst = e.Keys.appendDerived(dst, CounterPrefix, ops[i].Name)
			}
		}
	}
	dst = e.appendField(dst, ops[0].HoldID)
	flags := byte(0)
	for i := again; i < len(ops); i += 2 {
		if ops[i].PassedMS >= redisop.MS(redisop.FreeAfterSubscribed) && waitOf(&ops[i+1]) == waitArrived {
			flags = 2
		}
	}
	if slices.ContainsFunc(ops, func(op redisop.Op) bool { return e.Keys.IsTagged(op.Name) }) {
		flags++
	}
	if e.Confirms && slices.ContainsFunc(ops, func(op redisop.Op) bool { return op.Kind != redisop.Drop || IsCovered(&op) }) {
		flags += 4
	}
	text := e.terms([...]byte{byte(counts[Taken]), byte(counts[set]), byte(counts[dropped]), flags}, birth, int64(passLease), ops)
	dst = appendText(dst, text)
	if hasLease {
		dst = AppendNumber(dst, int64(lease))
	}
	for i := range ops {
		op := &ops[i]
		if i > 0 { // that of the first is in its owner field
			dst = AppendNumber(dst, int64(op.HoldID))
		}
		switch section := ArgSectionOf(op); {
		case i >= again && op.Kind == redisop.Take:
			dst = AppendNumber(dst, int64(op.Reserve))
			dst = AppendString(dst, flagsOf(op))
		case section == set, section == setLate:
			dst = AppendNumber(dst, int64(op.Count))
			dst = AppendNumber(dst, int64(op.Reserve))
			dst = AppendString(dst, flagsOf(op))
		}
	}
	return dst
}

// IsCovered reports whether an operation is done only when replicas have it. Nothing waits for a Drop
// with CanWait: if it is lost, the key ends with its lease.
func IsCovered(op *redisop.Op) bool {
	return op.Kind == redisop.Take || op.Kind == redisop.Renew || op.Kind == redisop.Drop && !op.Has(redisop.CanWait)
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

// appendWhat appends what an operation of another kind than a lock does, as permits.lua and rw.lua have it.
func appendWhat(dst []byte, op *redisop.Op) []byte {
	switch op.Kind {
	case redisop.Drop:
		return append(dst, 'd')
	case redisop.Renew:
		return append(dst, 'r')
	case redisop.Check:
		return append(dst, 'c')
	}
	dst = append(dst, 't')
	if op.Has(redisop.Enqueue) {
		dst = append(dst, 'q')
	}
	if op.Has(redisop.RequireExisting) {
		dst = append(dst, 'm')
	}
	switch {
	case op.Has(redisop.Yields) && op.Ticket != 0:
		dst = append(dst, 'p')
	case op.Has(redisop.Yields):
		dst = append(dst, 'y')
	}
	return dst
}

// appendField appends the owner field of a hold as an argument of a command.
func (e *Encoder) appendField(dst []byte, holdID uint64) []byte {
	var digits [20]byte
	text := strconv.AppendUint(digits[:0], holdID, 10)
	dst = appendHead(dst, '$', len(e.Prefix)+len(text))
	dst = append(dst, e.Prefix...)
	dst = append(dst, text...)
	return append(dst, '\r', '\n')
}

// appendText appends an argument of a command.
func appendText(dst, text []byte) []byte {
	return append(append(appendHead(dst, '$', len(text)), text...), '\r', '\n')
}

// terms returns what a run has to know beside its locks, as one argument: see main.lua. counts: how many are
// taken, are set and are dropped; and flags.
func (e *Encoder) terms(counts [4]byte, birth, passLease int64, ops []redisop.Op) []byte {
	text := append(e.text[:0], counts[:]...)
	for _, is := range [...]bool{e.Declares, e.IsSharded} {
		if is {
			text = append(text, 1)
		} else {
			text = append(text, 0)
		}
	}
	for i := range 7 {
		text = append(text, byte(e.TokensAbove()>>(8*i)))
	}
	for _, n := range [...]int64{e.Expiry, birth, passLease} {
		text = append(strconv.AppendInt(text, n, 10), ' ')
	}
	text = append(append(text, e.Origin...), ' ')
	end := len(text) // without what is 0 for all operations that follow
	for i := range ops {
		op := &ops[i]
		wait, time := waitOf(op), uint64(op.PassedMS)
		if wait == waitArrived {
			time = op.Arrived
		}
		text = append(strconv.AppendUint(text, uint64(wait), 10), ' ')
		text = append(strconv.AppendUint(text, op.Ticket, 10), ' ')
		text = append(strconv.AppendUint(text, time, 10), ' ')
		if wait != waitNone || op.Ticket != 0 || time != 0 {
			end = len(text)
		}
	}
	e.text = text
	return text[:end]
}

// DropArgs returns, of a run that drops a lock for the owner of a field, the number of keys, the keys and the
// first arguments. It passes the lock on with a lease, ms.
func (e *Encoder) DropArgs(name, field string, birth, passLease int64) []string {
	k := &e.Keys
	args := []string{"1", k.Key(name)}
	if e.Declares {
		args = []string{"4", k.Key(name), k.Queue(name), k.Ours(SignsPrefix, name), k.Counter(name)}
	}
	flags := byte(0)
	if k.IsTagged(name) {
		flags = 1
	}
	return append(args, field, string(e.terms([...]byte{0, 0, 1, flags}, birth, passLease, nil)))
}

// arrivals appends the command that asks when requests for the locks of ops arrived.
func (e *Encoder) arrivals(dst []byte, r Run, ops []redisop.Op) []byte {
	dst = AppendCommand(dst, r, len(ops), 0)
	for i := range ops {
		dst = e.Keys.appendKey(dst, ops[i].Name)
	}
	return dst
}

// renewals appends the command that renews or checks the locks of ops.
func (e *Encoder) renewals(dst []byte, r Run, now int64, ops []redisop.Op) []byte {
	dst = AppendCommand(dst, r, len(ops), 4+len(ops))
	for i := range ops {
		dst = e.Keys.appendKey(dst, ops[i].Name)
	}
	dst = AppendString(dst, e.Prefix)
	dst = AppendNumber(dst, int64(ops[0].LeaseMS))
	dst = AppendNumber(dst, int64(ops[0].Count))
	looks := 0
	for looks < len(ops) && LooksForOthers(now, &ops[looks]) {
		looks++
	}
	dst = AppendNumber(dst, int64(looks))
	for i := range ops {
		dst = AppendNumber(dst, int64(ops[i].HoldID))
	}
	return dst
}

// LookEvery is how many renewals of a lock there are, on average, for one that looks for the
// fields of others, which is a third of what a renewal costs Redis.
const LookEvery = 8

// LooksForOthers reports whether an operation that is sent at a time, ns, looks for fields of
// others in the key. Time is divided into windows. The renewals of a lock in every eighth window
// look; which window that is depends on the renewal group, so that in each of them one group of
// eight is looked at.
//
// A window is two fifths of the lease. That is longer than any time between two renewals of a
// lock that Redis executes in time (see locktable.Table.renewalAfter), so no lock skips a window:
// each is looked at again after eight windows and a renewal at the latest.
func LooksForOthers(now int64, op *redisop.Op) bool {
	if op.Kind == redisop.Check {
		return true
	}
	window := max(int64(op.LeaseMS)*1e6/5*2, 1)
	return (uint64(now/window)+redisop.RenewalGroup(op.HoldID))%LookEvery == 0
}

// AppendCommand appends the beginning of a command that runs a script, up to the keys.
func AppendCommand(dst []byte, r Run, keys, args int) []byte {
	dst = AppendArray(dst, 3+keys+args)
	if r.ByText {
		dst = AppendString(dst, "eval")
		dst = AppendString(dst, r.Script.Text)
	} else {
		dst = append(dst, r.Script.evalsha...)
	}
	return AppendNumber(dst, int64(keys))
}

func AppendLoad(dst []byte, s *Script) []byte {
	dst = AppendArray(dst, 3)
	dst = AppendString(dst, "script")
	dst = AppendString(dst, "load")
	return AppendString(dst, s.Text)
}

func AppendPing(dst []byte) []byte { return AppendString(AppendArray(dst, 1), "ping") }

// AppendTime appends the command that asks for Redis's clock.
func AppendTime(dst []byte) []byte { return AppendString(AppendArray(dst, 1), "time") }

func AppendRole(dst []byte) []byte { return AppendString(AppendArray(dst, 1), "role") }

package history

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A write is one attempt to write to what a lock guards.
type write struct {
	event *Event
	by    *acquire // nil: nobody lived to tell
}

// checkRegister judges what the locks guard: for each lock one value that is
// written together with a fencing token, by a resource that refuses a token
// smaller than the largest it has seen.
//
// Two things have to hold. The writes are linearizable as those of such a
// register: there is an order of all of them, in which none takes effect before
// it was asked for or after it was answered, in which accepted tokens never
// fall, and in which each accepted write saw its predecessor's value. That is
// porcupine's to find out. And no write is refused of a client that certainly
// believed in its lock from before the write until after it: then the token of
// somebody who had no business there came first.
func (r *run) checkRegister(report *Report) {
	for lock, writes := range r.writes {
		slices.SortStableFunc(writes, func(a, b write) int { return cmp.Compare(a.event.earliest(), b.event.earliest()) })
		report.Writes += len(writes)
		for _, w := range writes {
			if w.event.Refused {
				report.WritesDenied++
				r.checkRefusal(report, lock, w)
			}
		}
		r.checkLinear(report, lock, writes)
	}
}

func (r *run) checkRefusal(report *Report, lock string, w write) {
	during := span{w.event.earliest(), w.event.At}
	if w.by == nil || w.by.believed() <= during.to {
		return
	}
	var mine, other *hold
	for _, h := range r.holds[lock] {
		switch {
		case slices.Contains(h.entries, w.by):
			mine = h
		case h.token == w.event.PrevToken:
			other = h
		}
	}
	if mine == nil || r.excused(lock, during, mine) || other != nil && r.drawnBefore(lock, mine, other) {
		return
	}
	events := append(excerpt(mine), r.near(during)...)
	if other != nil {
		events = append(events, excerpt(other)...)
	}
	report.violated("register", lock, during.from, append(events, *w.event),
		"a write of %v was refused for token %d while it held the lock", mine, w.event.PrevToken)
}

// fenced is the register: the token and the value of the last accepted write.
type fenced struct {
	token uint64
	value string
}

// fencedRegister is the sequential model of it. Inputs and outputs are both the
// event of a write, which says what was asked and what was answered.
var fencedRegister = porcupine.Model{
	Init: func() any { return fenced{} },
	Step: func(state, input, output any) (bool, any) {
		now, e := state.(fenced), output.(*Event)
		if e.Refused {
			return e.Token < now.token && e.PrevToken == now.token, now
		}
		return e.Token >= now.token && e.PrevToken == now.token && e.PrevValue == now.value, fenced{e.Token, e.Value}
	},
	DescribeOperation: func(_, output any) string {
		e := output.(*Event)
		if e.Refused {
			return fmt.Sprintf("write %s with %d: refused for %d", e.Value, e.Token, e.PrevToken)
		}
		return fmt.Sprintf("write %s with %d: over %s", e.Value, e.Token, e.PrevValue)
	},
}

// pieceSize bounds what porcupine is given at once: its memory grows with the
// square of it.
const pieceSize = 500

// linearTimeout is far more than any piece needs: most writes do not overlap.
const linearTimeout = time.Minute

// checkLinear gives porcupine the history in pieces that begin when no write is
// under way. What the register holds then is certain: the largest token that was
// accepted, and the last value that was written with it, since the writes of one
// hold follow each other.
func (r *run) checkLinear(report *Report, lock string, writes []write) {
	state := fenced{}
	for piece := range pieces(writes) {
		if n := brokenAt(state, piece); n > 0 {
			var events []Event
			for _, w := range piece[max(0, n-10):n] {
				events = append(events, *w.event)
			}
			report.violated("register", lock, piece[n-1].event.earliest(), events,
				"the last of these writes fits into no order with those before it")
			return // what follows has no certain beginning
		}
		for _, w := range piece {
			if e := w.event; !e.Refused && e.Token >= state.token {
				state = fenced{e.Token, e.Value}
			}
		}
	}
}

// pieces cuts writes, which are in the order in which they were asked for, where
// none is under way.
func pieces(writes []write) iter.Seq[[]write] {
	return func(yield func([]write) bool) {
		from, last := 0, int64(0)
		for i, w := range writes {
			if i-from >= pieceSize && w.event.earliest() > last {
				if !yield(writes[from:i]) {
					return
				}
				from = i
			}
			last = max(last, w.event.At)
		}
		if from < len(writes) {
			yield(writes[from:])
		}
	}
}

// brokenAt returns how many of the writes are too many for any order; 0: there
// is one for all of them.
func brokenAt(state fenced, writes []write) int {
	model := fencedRegister
	model.Init = func() any { return state }
	operations := make([]porcupine.Operation, len(writes))
	for i, w := range writes {
		operations[i] = porcupine.Operation{Input: w.event, Call: w.event.earliest(), Output: w.event, Return: w.event.At}
	}
	if porcupine.CheckOperationsTimeout(model, operations, linearTimeout) == porcupine.Ok {
		return 0
	}
	n := len(writes)
	for n > 1 && porcupine.CheckOperationsTimeout(model, operations[:n-1], linearTimeout) != porcupine.Ok {
		n--
	}
	return n
}

// collectWrites takes the word of the client, which saw less, and of the
// resource where the client did not live to tell.
func (r *run) collectWrites(events []Event, ops map[opKey]*acquire) {
	seen := map[string]bool{}
	for i := range events {
		e := &events[i]
		if e.Kind != Write {
			continue
		}
		a := ops[opKey{e.Client, e.Op}]
		if a == nil {
			r.nonsense(e, "a write belongs to an acquire")
			continue
		}
		seen[e.Value] = true
		a.events = append(a.events, e)
		r.writes[a.lock] = append(r.writes[a.lock], write{e, a})
	}
	for i := range events {
		if e := &events[i]; e.Kind == Applied && !seen[e.Value] {
			r.writes[e.Lock] = append(r.writes[e.Lock], write{e, nil})
		}
	}
}

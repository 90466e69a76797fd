package history

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A write is one attempt to write to the resource that a lock guards.
type write struct {
	event *Event
	by    *acquire // nil: the client was killed before it recorded the write
}

// checkRegister checks the resource that the locks guard: a register with one value for each lock,
// which is written with a fencing token, and refuses a token that is smaller than the largest
// one so far.
//
// Invariants: the writes are linearizable as those of such a register. That is, there is an
// order of all writes in which each takes effect between its request and its answer, accepted
// tokens never decrease, and each accepted write returns the value of its predecessor;
// porcupine searches for it. And no write of a client is refused that certainly believed in its
// lock during the whole write: otherwise a client without the lock wrote with a larger token.
func (r *timeline) checkRegister(report *Report) {
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

func (r *timeline) checkRefusal(report *Report, lock string, w write) {
	during := span{w.event.earliest(), w.event.At}
	if w.by == nil || w.by.believedUntil() <= during.to {
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
	if mine == nil || r.excused(lock, during, mine) || other != nil && r.mayPredateDataLoss(lock, mine, other) {
		return
	}
	events := append(holdEvents(mine), r.faultsNear(during)...)
	if other != nil {
		events = append(events, holdEvents(other)...)
	}
	report.violated("register", lock, during.from, append(events, *w.event),
		"a write of %v was refused for token %d while it held the lock", mine, w.event.PrevToken)
}

// registerState is the token and the value of the last accepted write.
type registerState struct {
	token uint64
	value string
}

// fencedRegister is the sequential model of the register. Input and output are the event of a
// write, which has both request and answer.
var fencedRegister = porcupine.Model{
	Init: func() any { return registerState{} },
	Step: func(state, input, output any) (bool, any) {
		now, e := state.(registerState), output.(*Event)
		if e.Refused {
			return e.Token < now.token && e.PrevToken == now.token, now
		}
		return e.Token >= now.token && e.PrevToken == now.token && e.PrevValue == now.value, registerState{e.Token, e.Value}
	},
	DescribeOperation: func(_, output any) string {
		e := output.(*Event)
		if e.Refused {
			return fmt.Sprintf("write %s with %d: refused for %d", e.Value, e.Token, e.PrevToken)
		}
		return fmt.Sprintf("write %s with %d: over %s", e.Value, e.Token, e.PrevValue)
	},
}

// pieceSize is the least number of writes in a piece for porcupine, whose memory grows with the
// square of it.
const pieceSize = 500

// linearTimeout is far more than a piece needs, because most writes do not overlap.
const linearTimeout = time.Minute

// checkLinear checks the history in pieces, each of which begins when no write is in flight. The
// state of the register is certain then: the largest accepted token, and the last value that was
// written with it, because the writes of one hold are sequential.
func (r *timeline) checkLinear(report *Report, lock string, writes []write) {
	state := registerState{}
	for piece := range pieces(writes) {
		if n := firstInvalid(state, piece); n > 0 {
			var events []Event
			for _, w := range piece[max(0, n-10):n] {
				events = append(events, *w.event)
			}
			report.violated("register", lock, piece[n-1].event.earliest(), events,
				"there is no order of these writes in which the last one is correct")
			return // the state before the next piece is not certain
		}
		for _, w := range piece {
			if e := w.event; !e.Refused && e.Token >= state.token {
				state = registerState{e.Token, e.Value}
			}
		}
	}
}

// pieces splits writes, which are ordered by request, at times at which none is in flight.
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

// firstInvalid returns the length of the shortest prefix of the writes that is not linearizable;
// 0: all of them are.
func firstInvalid(state registerState, writes []write) int {
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

// collectWrites collects the writes from the logs of the clients, and, for clients that were
// killed before they recorded a write, from that of the resource.
func (r *timeline) collectWrites(events []Event, ops map[opKey]*acquire) {
	seen := map[string]bool{}
	for i := range events {
		e := &events[i]
		if e.Kind != Write {
			continue
		}
		a := ops[opKey{e.Client, e.Op}]
		if a == nil {
			r.reportMalformed(e, "a write belongs to an acquire")
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

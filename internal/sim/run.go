package sim

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/protocol"
)

// Options change a run.
type Options struct {
	Mutant *Mutant // breaks the tables; nil: none does
	Trace  bool    // collect what happens
}

// Result is what one seed did.
type Result struct {
	Seed      uint64
	Steps     int
	Time      time.Duration // virtual
	Digest    Digest        // of all effects
	Violation *Violation    // nil: no rule was broken

	Met     Met
	Refused map[protocol.Code]int   // acquires
	Lost    map[protocol.Reason]int // holds

	Plan  string // what the seed makes possible, if a rule was broken
	Trace []TraceLine
}

// Run runs the world of a seed to its end, or to the first violation of a rule. The same
// seed always does the same.
func Run(seed uint64, o Options) (r *Result) {
	var newTable tableMaker
	if o.Mutant != nil {
		newTable = o.Mutant.newTable
	}
	w := newWorld(seed, newTable)
	w.trace.on = o.Trace
	if o.Mutant != nil {
		w.arrivesByClock, w.lowersLateScores = o.Mutant.arrivesByClock, o.Mutant.lowersLateScores
	}
	defer func() {
		r = &Result{
			Seed: seed, Steps: w.steps, Time: time.Duration(w.now), Digest: w.check.digest,
			Met: w.check.Met, Refused: w.check.refused, Lost: w.check.lost,
			Trace: w.trace.lines,
		}
		switch p := recover().(type) {
		case nil:
		case *Violation:
			r.Violation = p
		default:
			r.Violation = &Violation{invariant.NoPanic, seed, w.steps, w.now, fmt.Sprintf("panic: %v\n%s", p, debug.Stack()), -1}
		}
		if r.Violation != nil {
			r.Plan = fmt.Sprintf("%+v", w.plan)
			r.Trace = w.printLocks(r.Trace, r.Violation.name)
		}
	}()
	w.run()
	return
}

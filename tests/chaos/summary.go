package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/tests/history"
)

// An outcome is the result of a run.
type outcome struct {
	set     settings
	took    time.Duration
	report  *history.Report
	faults  map[faultKind]int
	skipped map[faultKind]int
	backs   []recovery
	kills   killResult
	// problems are failures that are not in the history: a process that crashed or hung, or a
	// data race.
	problems []string
}

func (o *outcome) failed() bool {
	return len(o.report.Violations) > 0 || len(o.problems) > 0 ||
		o.set.kills > 0 && (o.report.LostRenewed > 0 || o.kills.changed > 0)
}

// maxViolations is how many violations are printed in full.
const maxViolations = 10

func (o *outcome) print(w io.Writer) {
	line := func(what, format string, args ...any) {
		fmt.Fprintf(w, "  %-28s %s\n", what, fmt.Sprintf(format, args...))
	}
	r := o.report
	if o.set.kills > 0 {
		fmt.Fprintf(w, "chaos: seed %d, %d kill -9 of a daemon under load, %v in all\n", o.set.seed, o.kills.kills, o.took.Round(time.Second))
	} else {
		what := fmt.Sprintf("%v of faults", o.set.length)
		switch {
		case o.set.permitKills > 0:
			what = "kills of workers that use permits, and of daemons"
		case o.set.hostKills > 0:
			what = "deaths of hosts that use permits"
		case o.set.killEvery > 0:
			what = fmt.Sprintf("%v of kills, of each daemon %v after its start", o.set.length, o.set.killEvery)
		}
		fmt.Fprintf(w, "chaos: seed %d, %s, %v in all\n", o.set.seed, what, o.took.Round(time.Second))
		total := 0
		for _, n := range o.faults {
			total += n
		}
		line("faults", "%d", total)
		for _, kind := range slices.Sorted(maps.Keys(o.faults)) {
			line("  "+string(kind), "%d", o.faults[kind])
		}
		line("faults that met nothing", "%s", counts(o.skipped))
	}
	line("operations", "%d acquires, %d grants, %d writes (events in the history: %d)", r.Acquires, r.Grants, r.Writes, r.Events)
	line("holds", "%d", r.Holds)
	line("  to another process", "%d", r.Handovers)
	line("  to another host", "%d", r.Crossings)
	line("  outlived an interruption", "%d", r.Outlived)
	line("  of a worker that was killed", "%d", r.Killed)
	line("lost, by reason", "%s", counts(r.Lost))
	line("  of renewed locks", "%d", r.LostRenewed)
	line("acquires that failed", "%s", counts(r.Refused))
	line("releases that failed", "%s", counts(r.Unreleased))
	line("  may have happened", "%d", r.MayHaveHappened)
	line("writes refused by the fence", "%d", r.WritesDenied)
	line("overlaps, excused", "%d", r.Overlaps)
	line("smaller tokens, excused", "%d", r.Regressions)
	line("longest wait", "%v", r.LongestWait.Round(time.Millisecond))
	line("  for a free lock, in calm", "%v of %v allowed, in %v of calm",
		r.LongestFreeWait.Round(time.Microsecond), o.set.rules().Wake, r.Calm.Round(time.Second))
	if o.set.kills > 0 {
		line("tokens after a kill", "%d compared, %d changed", o.kills.compared, o.kills.changed)
		line("started to a new client", "%s", quantiles(o.kills.newClients))
		line("started to a waiter", "%s", quantiles(o.kills.waiters))
	} else {
		var kill, start []time.Duration
		for _, b := range o.backs {
			kill, start = append(kill, b.fromKill), append(start, b.fromStart)
		}
		line("kill to service", "%s", quantiles(kill))
		line("start to service", "%s", quantiles(start))
	}
	line("violations", "%d", len(r.Violations))
	for i, v := range r.Violations {
		if i == maxViolations {
			fmt.Fprintf(w, "… and %d more\n", len(r.Violations)-i)
			break
		}
		fmt.Fprintf(w, "VIOLATION %s", v.Describe(r.Begin))
	}
	for _, p := range o.problems {
		fmt.Fprintf(w, "PROBLEM %s\n", p)
	}
}

func counts[K ~string](n map[K]int) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(n)) {
		all = append(all, fmt.Sprintf("%s %d", k, n[k]))
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

func quantiles(times []time.Duration) string {
	if len(times) == 0 {
		return "not measured"
	}
	slices.Sort(times)
	at := func(q float64) time.Duration {
		return times[min(len(times)-1, int(q*float64(len(times))))].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p99 %v, max %v (%d times)", at(0.5), at(0.99), at(1), len(times))
}

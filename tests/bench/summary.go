package main

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// labels are metrics as tables call them, with how many digits a figure has behind
// the point.
var labels = map[Metric]struct {
	text   string
	digits int
}{
	PairsPerSecond:        {"pairs/s", 0},
	PairMS:                {"ms per pair", 3},
	PairP50MS:             {"pair p50 ms", 3},
	PairP99MS:             {"p99", 2},
	PairMaxMS:             {"max", 1},
	WaitP50MS:             {"wait p50 ms", 3},
	WaitP99MS:             {"p99", 2},
	WaitMaxMS:             {"longest wait ms", 1},
	OwnerChangesPerSecond: {"owner changes/s", 0},
	HostChangesPerSecond:  {"host changes/s", 0},
	Fairness:              {"max/min", 1},
	IdealShare:            {"share of the ideal", 3},
	WaitMaxOfMean:         {"longest wait / mean", 1},
	WaitMeanMS:            {"mean", 3},
	Violations:            {"overlaps", 0},
	ClientCPUPerPairUS:    {"client µs/pair", 1},
	ServerCPUPerPairUS:    {"Redis µs/pair", 1},
	ServerCPU:             {"Redis cores", 2},
	CommandsPerPair:       {"commands/pair", 1},
	ScriptsPerPair:        {"scripts/pair", 2},
	BytesPerPair:          {"bytes/pair", 0},
	Connections:           {"connections", 0},
	ClientRSSMB:           {"RSS MB", 0},
	ClientThreads:         {"threads", 0},
	TakeSeconds:           {"taken in s", 1},
	RenewalsPerSecond:     {"renewals/s", 0},
	ScriptsPerSecond:      {"scripts/s", 0},
	CommandsPerSecond:     {"commands/s", 0},
	ServerCPUPerSecMS:     {"Redis CPU ms/s", 1},
	ClientCPUPerSecMS:     {"client CPU ms/s", 1},
	ServerCPUPerRenewalUS: {"Redis µs/renewal", 2},
	LocksHeld:             {"locks", 0},
	CrashToGrantMS:        {"ms until grant", 2},
	Errors:                {"errors", 0},
}

// columns are what the full table shows of each kind of scenario.
var columns = map[Kind][]Metric{
	Uncontended: {PairsPerSecond, PairP50MS, PairP99MS, PairMaxMS, ClientCPUPerPairUS, ServerCPUPerPairUS, CommandsPerPair, ScriptsPerPair, BytesPerPair, Connections, ClientRSSMB, ClientThreads, Errors},
	Contended:   {OwnerChangesPerSecond, HostChangesPerSecond, PairsPerSecond, WaitP50MS, WaitP99MS, WaitMaxMS, Fairness, Violations, ClientCPUPerPairUS, ServerCPUPerPairUS, CommandsPerPair, Connections, Errors},
	Permits:     {IdealShare, PairsPerSecond, HostChangesPerSecond, WaitP50MS, WaitMeanMS, WaitP99MS, WaitMaxMS, WaitMaxOfMean, Fairness, Violations, ClientCPUPerPairUS, ServerCPUPerPairUS, CommandsPerPair, ScriptsPerPair, Connections, Errors},
	Held:        {LocksHeld, TakeSeconds, RenewalsPerSecond, ScriptsPerSecond, CommandsPerSecond, ServerCPUPerSecMS, ServerCPUPerRenewalUS, ClientCPUPerSecMS, ClientRSSMB, ClientThreads, Connections},
	Crash:       {CrashToGrantMS},
}

// printSummary writes the verdicts: one screen, at most 100 columns.
func (r *Results) printSummary(out io.Writer) error {
	fmt.Fprintf(out, "%s, %d cores, Linux %s, Redis %s; %d rounds of %.3g s; wan: %s\n\n", r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel,
		r.Machine.Versions["redis-server"], r.Settings.Rounds, r.Settings.WindowMS/1e3, r.measuredRTT())
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "scenario\tmetric\tours\tbest peer\tratio\ttarget\tmet")
	before := ""
	for _, v := range r.Verdicts {
		name := v.Scenario
		if name == before {
			name = ""
		}
		before = v.Scenario
		best, ratio := "", ""
		if v.Best != "" {
			best = number(v.Metric, v.BestIs) + " " + v.Best
			ratio = ratioText(v.Ratio)
		}
		met := ""
		if v.Met != nil && *v.Met {
			met = "yes"
		} else if v.Met != nil {
			met = "NO"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, labels[v.Metric].text, number(v.Metric, v.Ours), best, ratio, v.Target, met)
	}
	return t.Flush()
}

// measuredRTT says what the delaying proxy gave.
func (r *Results) measuredRTT() string {
	var all []float64
	for _, s := range r.Scenarios {
		if s.WAN && s.RTTMS > 0 {
			all = append(all, s.RTTMS)
		}
	}
	if len(all) == 0 {
		return "not measured"
	}
	return fmt.Sprintf("%.2f ms round trip", median(all))
}

// printTable writes everything that the runs have in common, contender by contender.
func (r *Results) printTable(out io.Writer) error {
	for _, s := range r.Scenarios {
		fmt.Fprintf(out, "\n%s (a PING takes %.2f ms)\n", s.Name, s.RTTMS)
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
		head := []string{""}
		for _, m := range columns[s.Kind] {
			head = append(head, labels[m].text)
		}
		fmt.Fprintln(t, strings.Join(head, "\t")+"\t")
		for _, c := range s.Contenders {
			line := []string{c.Name}
			for _, m := range columns[s.Kind] {
				value, ok := c.Median[m]
				cell := "–"
				if ok {
					cell = number(m, value)
				} else if m == Fairness && c.Median[GrantsMax] > 0 {
					cell = number(GrantsMax, c.Median[GrantsMax]) + "/0"
				}
				line = append(line, cell)
			}
			fmt.Fprintln(t, strings.Join(line, "\t")+"\t")
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for _, c := range s.Contenders {
			for _, run := range c.Runs {
				if text := strings.Trim(run.Error+"; "+run.Note, "; "); text != "" {
					fmt.Fprintf(out, "  %s, round %d: %s\n", c.Name, run.Round, text)
				}
			}
		}
	}
	return nil
}

// number is a figure as people read it: 12,345 and 0.123.
func number(m Metric, v float64) string {
	text := strconv.FormatFloat(v, 'f', labels[m].digits, 64)
	whole, rest, _ := strings.Cut(text, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if rest != "" {
		return whole + "." + rest
	}
	return whole
}

func ratioText(ratio float64) string {
	switch {
	case ratio == 0:
		return "–"
	case ratio == math.MaxFloat64:
		return "∞"
	case ratio >= 100:
		return strconv.FormatFloat(ratio, 'f', 0, 64) + "×"
	case ratio < 0.01:
		return strconv.FormatFloat(ratio, 'g', 1, 64) + "×"
	}
	return strconv.FormatFloat(ratio, 'f', 2, 64) + "×"
}

// print lists scenarios and who takes part.
func (p plan) print(out io.Writer) {
	for _, s := range p {
		var names []string
		for _, c := range s.contenders {
			names = append(names, c.name)
		}
		fmt.Fprintf(out, "%-24s %s\n", s.Name, strings.Join(names, " "))
	}
}

// complain writes what went wrong.
func (r *Results) complain(out io.Writer) error {
	ours, reported := problems(r)
	for _, text := range append(reported, ours...) {
		fmt.Fprintln(out, text)
	}
	if len(ours) > 0 {
		return fmt.Errorf("%d runs failed", len(ours))
	}
	return nil
}

// printSmoke says whether everything ran; how fast it was is no matter.
func (r *Results) printSmoke(out io.Writer, took time.Duration) error {
	runs := 0
	for _, s := range r.Scenarios {
		for _, c := range s.Contenders {
			runs += len(c.Runs)
		}
	}
	fmt.Fprintf(out, "%d runs in %d scenarios, %.0f s\n", runs, len(r.Scenarios), took.Seconds())
	return r.complain(out)
}

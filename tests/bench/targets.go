package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// A goal is a figure that the summary shows, and what we want of it.
type goal struct {
	scenario string
	metric   Metric
	want     bound
}

// A bound is a limit, for a ratio to the best peer or for the figure itself. The
// zero value wants nothing.
type bound struct {
	kind  boundKind
	limit float64
}

type boundKind int

const (
	none boundKind = iota
	ratioAtLeast
	ratioAtMost
	atMost
	// ratioOrNearIdeal is ratioAtLeast, and a figure of ours above nearIdeal is enough.
	ratioOrNearIdeal
)

// nearIdeal is a share of the ideal.
const nearIdeal = 0.9

func (b bound) String() string {
	limit := strconv.FormatFloat(b.limit, 'g', -1, 64)
	switch b.kind {
	case ratioAtLeast:
		return "≥ " + limit + "×"
	case ratioAtMost:
		return "≤ " + limit + "×"
	case atMost:
		return "≤ " + limit
	case ratioOrNearIdeal:
		return fmt.Sprintf("≥ %s× or %v", limit, nearIdeal)
	}
	return ""
}

// goals are the summary, line by line.
var goals = []goal{
	{"uncontended 1x1", PairsPerSecond, bound{ratioAtLeast, 3}},
	{"uncontended 8x8", PairsPerSecond, bound{ratioAtLeast, 3}},
	{"uncontended 8x8", ServerCPUPerPairUS, bound{ratioAtMost, 0.1}},
	{"uncontended 8x8 no linger", ServerCPUPerPairUS, bound{ratioAtMost, 0.75}},
	{"uncontended 64x1", PairsPerSecond, bound{ratioAtLeast, 1.2}},
	{"uncontended 64x1", Connections, bound{atMost, 2}},
	{"uncontended 1x1 wan", PairMS, bound{ratioAtMost, 0.02}},
	{"uncontended 8x8 wan", PairsPerSecond, bound{ratioAtLeast, 8}},
	{"uncontended 64x1 wan", PairsPerSecond, bound{}},
	{"contended 16x1", OwnerChangesPerSecond, bound{ratioAtLeast, 3}},
	{"contended 16x1", WaitMaxMS, bound{ratioAtMost, 0.2}},
	{"contended 16x1 1ms", OwnerChangesPerSecond, bound{}},
	{"contended 16x1 1ms", WaitMaxMS, bound{}},
	{"two hosts 2x8x1", HostChangesPerSecond, bound{ratioAtLeast, 1}},
	{"two hosts 2x8x1", OwnerChangesPerSecond, bound{}},
	{"two hosts 2x8x1", WaitMaxMS, bound{}},
	{"two hosts alternating", HostChangesPerSecond, bound{ratioAtLeast, 2}},
	{"two hosts alternating", WaitMaxMS, bound{ratioAtMost, 0.25}},
	{"two hosts in order", OwnerChangesPerSecond, bound{}},
	{"two hosts in order", WaitMaxMS, bound{}},
	{"contended 16x1 wan", OwnerChangesPerSecond, bound{ratioAtLeast, 20}},
	{"contended 16x1 wan", WaitMaxMS, bound{}},
	{"contended 16x1 1ms wan", OwnerChangesPerSecond, bound{}},
	{"contended 16x1 1ms wan", WaitMaxMS, bound{}},
	{"two hosts 2x8x1 wan", HostChangesPerSecond, bound{}},
	{"two hosts alternating wan", HostChangesPerSecond, bound{ratioAtLeast, 2}},
	{"two hosts 2x8x1 wan", WaitMaxMS, bound{}},
	{"two hosts in order wan", OwnerChangesPerSecond, bound{}},
	{"two hosts in order wan", WaitMaxMS, bound{}},
	{"permits 8x8", IdealShare, bound{ratioOrNearIdeal, 1.75}}, // of Redisson, which it was to be twice, it is seven times
	{"permits 8x8", WaitMaxOfMean, bound{atMost, 3}},
	{"permits four hosts", IdealShare, bound{ratioAtLeast, 0.6}},
	{"permits four hosts", WaitMaxOfMean, bound{}},
	{"held 10k", ServerCPUPerSecMS, bound{}},
	{"held 100k", ServerCPUPerSecMS, bound{ratioAtMost, 0.95}},
	// A thousandth of the lease of 10 s.
	{"crash", CrashToGrantMS, bound{atMost, 10}},
	{"crash two hosts", CrashToGrantMS, bound{atMost, 10}},
}

// moreIsBetter is true of what one wants much of.
func (m Metric) moreIsBetter() bool {
	switch m {
	case PairsPerSecond, OwnerChangesPerSecond, HostChangesPerSecond, LocksHeld, GrantsMin, IdealShare:
		return true
	}
	return false
}

func (m Metric) better(a, b float64) bool {
	if m.moreIsBetter() {
		return a > b
	}
	return a < b
}

// judge compares us with the best peer wherever we took part.
func judge(scenarios []ScenarioResult) []Verdict {
	var verdicts []Verdict
	for _, g := range goals {
		i := slices.IndexFunc(scenarios, func(s ScenarioResult) bool { return s.Name == g.scenario })
		if i < 0 {
			continue
		}
		if v, ok := g.judge(scenarios[i].against(scenarios)); ok {
			verdicts = append(verdicts, v)
		}
	}
	return verdicts
}

// against returns the scenario with its peers, or with ours in the one that it is compared with.
func (s ScenarioResult) against(all []ScenarioResult) ScenarioResult {
	if s.Against == "" {
		return s
	}
	var contenders []ContenderResult
	add := func(of ScenarioResult, name string, role Role) {
		for _, c := range of.Contenders {
			if c.Role == Ours {
				c.Name, c.Role = name, role
				contenders = append(contenders, c)
			}
		}
	}
	add(s, s.Name, Ours)
	for _, other := range all {
		if other.Name == s.Against {
			add(other, other.Name, Peer)
		}
	}
	s.Contenders = contenders
	return s
}

func (g goal) judge(s ScenarioResult) (v Verdict, ok bool) {
	v = Verdict{Scenario: g.scenario, Metric: g.metric, Target: g.want.String()}
	var ours *ContenderResult
	var peers []*ContenderResult
	for i := range s.Contenders {
		c := &s.Contenders[i]
		value, measured := c.Median[g.metric]
		switch {
		case c.Role == Ours && measured:
			ours, v.Ours = c, value
		case c.Role == Peer && measured && c.comparable(s):
			peers = append(peers, c)
			if v.Best == "" || g.metric.better(value, v.BestIs) {
				v.Best, v.BestIs = c.Name, value
			}
		}
	}
	if ours == nil {
		return v, false
	}
	ratios := g.ratios(s.Kind, ours, peers)
	if len(ratios) > 0 {
		v.RatioMin, v.RatioMax = slices.Min(ratios), slices.Max(ratios)
		v.Ratio = median(ratios)
	}
	var met bool
	switch {
	case g.want.kind == atMost:
		met = v.Ours <= g.want.limit
	case g.want.kind == ratioOrNearIdeal && v.Ours >= nearIdeal:
		met = true
	case g.want.kind == none || len(ratios) == 0:
		return v, true
	case g.want.kind == ratioAtLeast, g.want.kind == ratioOrNearIdeal:
		met = v.Ratio >= g.want.limit
	case g.want.kind == ratioAtMost:
		met = v.Ratio <= g.want.limit
	}
	v.Met = &met
	return v, true
}

// comparable tells whether a contender did what the scenario asks for.
func (c *ContenderResult) comparable(s ScenarioResult) bool {
	return s.Kind != Held || c.Median[LocksHeld] >= float64(s.Count)
}

// ratios are ours to the best peer of the same round, for each round. In a Crash
// there are no rounds, and the medians are compared.
func (g goal) ratios(k Kind, ours *ContenderResult, peers []*ContenderResult) []float64 {
	if k == Crash {
		var medians []Figures
		for _, p := range peers {
			medians = append(medians, p.Median)
		}
		return g.ratio(nil, ours.Median, medians)
	}
	var ratios []float64
	for _, run := range ours.Runs {
		var same []Figures
		for _, p := range peers {
			for _, r := range p.Runs {
				if r.Round == run.Round {
					same = append(same, r.Figures)
				}
			}
		}
		ratios = g.ratio(ratios, run.Figures, same)
	}
	return ratios
}

// ratio appends ours to the best of the peers, if both were measured. A peer that
// has nothing of what one wants much of cannot be divided by: the ratio is then as
// large as a float can be.
func (g goal) ratio(ratios []float64, ours Figures, peers []Figures) []float64 {
	value, ok := ours[g.metric]
	best, found := 0.0, false
	for _, p := range peers {
		if v, ok := p[g.metric]; ok && (!found || g.metric.better(v, best)) {
			best, found = v, true
		}
	}
	switch {
	case !ok || !found || value == 0 && best == 0:
		return ratios
	case best == 0:
		return append(ratios, math.MaxFloat64)
	}
	return append(ratios, value/best)
}

// problems are what makes a run worthless whatever its figures: a contender that
// did not work, a lock that two had. A peer's violation is its own affair, and
// only reported.
func problems(r *Results) (ours, reported []string) {
	for _, s := range r.Scenarios {
		for _, c := range s.Contenders {
			for _, run := range c.Runs {
				where := fmt.Sprintf("%s, %s, round %d", s.Name, c.Name, run.Round)
				if run.Error != "" {
					ours = append(ours, where+": "+run.Error)
				}
				n := run.Figures[Violations]
				switch {
				case n > 0 && c.Role == Peer:
					reported = append(reported, fmt.Sprintf("%s: two had the lock at one time, %.0f times", where, n))
				case n > 0:
					ours = append(ours, fmt.Sprintf("%s: two had the lock at one time, %.0f times", where, n))
				}
			}
		}
	}
	return ours, reported
}

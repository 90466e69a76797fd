package main

import (
	"math"
	"slices"
	"testing"
)

// result is a contender with one figure a round.
func result(name string, role Role, m Metric, rounds ...float64) ContenderResult {
	c := ContenderResult{Name: name, Role: role}
	for i, v := range rounds {
		c.Runs = append(c.Runs, Run{Round: i + 1, Figures: Figures{m: v}})
	}
	c.summarize()
	return c
}

func TestRatiosAreToTheBestPeerOfTheSameRound(t *testing.T) {
	// The machine is half as fast in the second round, and another peer is best in
	// the third.
	s := ScenarioResult{
		Scenario: Scenario{Name: "x", Kind: Uncontended},
		Contenders: []ContenderResult{
			result("ours", Ours, PairsPerSecond, 300, 150, 320),
			result("sibling", Sibling, PairsPerSecond, 900, 900, 900),
			result("limit", Limit, PairsPerSecond, 9000, 9000, 9000),
			result("a", Peer, PairsPerSecond, 200, 100, 100),
			result("b", Peer, PairsPerSecond, 50, 50, 160),
		},
	}
	v, ok := goal{"x", PairsPerSecond, bound{ratioAtLeast, 1.5}}.judge(s)
	if !ok || v.Ratio != 1.5 || v.RatioMin != 1.5 || v.RatioMax != 2 || v.Best != "a" || v.BestIs != 100 || v.Ours != 300 || v.Met == nil || !*v.Met {
		t.Errorf("%+v", v)
	}
}

func TestOfTimesTheShortestIsBest(t *testing.T) {
	s := ScenarioResult{
		Scenario: Scenario{Name: "x", Kind: Contended},
		Contenders: []ContenderResult{
			result("ours", Ours, WaitMaxMS, 5, 10, 30),
			result("a", Peer, WaitMaxMS, 100, 100, 100),
			result("b", Peer, WaitMaxMS, 50, 40, 60),
		},
	}
	v, _ := goal{"x", WaitMaxMS, bound{ratioAtMost, 0.2}}.judge(s)
	if v.Best != "b" || v.Ratio != 0.25 || v.Met == nil || *v.Met {
		t.Errorf("%+v", v)
	}
}

func TestKillsHaveNoRounds(t *testing.T) {
	s := ScenarioResult{
		Scenario: Scenario{Name: "x", Kind: Crash},
		Contenders: []ContenderResult{
			result("ours", Ours, CrashToGrantMS, 4, 1, 2, 1, 3),
			result("a", Peer, CrashToGrantMS, 9000, 7000),
		},
	}
	v, _ := goal{"x", CrashToGrantMS, bound{atMost, 10}}.judge(s)
	if v.Ours != 2 || v.BestIs != 8000 || v.Ratio != 2.0/8000 || !*v.Met {
		t.Errorf("%+v", v)
	}
}

func TestWhatWasNotMeasuredIsNotJudged(t *testing.T) {
	g := goal{"x", OwnerChangesPerSecond, bound{ratioAtLeast, 3}}
	s := ScenarioResult{Scenario: Scenario{Name: "x", Kind: Contended}, Contenders: []ContenderResult{
		{Name: "ours", Role: Ours, Runs: []Run{{Round: 1, Error: "it died"}}},
		result("a", Peer, OwnerChangesPerSecond, 1),
	}}
	if v, ok := g.judge(s); ok {
		t.Errorf("without figures of ours: %+v", v)
	}
	s.Contenders[0] = result("ours", Ours, OwnerChangesPerSecond, 7)
	s.Contenders = s.Contenders[:1]
	if v, ok := g.judge(s); !ok || v.Met != nil || v.Best != "" {
		t.Errorf("without a peer: %t %+v", ok, v)
	}
	// A peer in which nobody ever changes is worse than any multiple.
	s.Contenders = append(s.Contenders, result("a", Peer, OwnerChangesPerSecond, 0))
	if v, _ := g.judge(s); v.Ratio != math.MaxFloat64 || v.Met == nil || !*v.Met {
		t.Errorf("with a peer that never changes: %+v", v)
	}
}

func TestAPeerThatHoldsFewerLocksIsNotCompared(t *testing.T) {
	few := result("few", Peer, ServerCPUPerSecMS, 1)
	few.Median[LocksHeld] = 10
	all := result("all", Peer, ServerCPUPerSecMS, 8)
	all.Median[LocksHeld] = 100
	s := ScenarioResult{
		Scenario:   Scenario{Name: "x", Kind: Held, Count: 100},
		Contenders: []ContenderResult{result("ours", Ours, ServerCPUPerSecMS, 2), few, all},
	}
	v, _ := goal{"x", ServerCPUPerSecMS, bound{ratioAtMost, 0.5}}.judge(s)
	if v.Best != "all" || v.Ratio != 0.25 {
		t.Errorf("%+v", v)
	}
}

func TestNearTheIdealNoPeerCounts(t *testing.T) {
	g := goal{"x", IdealShare, bound{ratioOrNearIdeal, 2}}
	for _, c := range []struct {
		ours, peer float64
		met        bool
	}{{0.9, 0.8, true}, {0.8, 0.4, true}, {0.8, 0.5, false}} {
		s := ScenarioResult{Scenario: Scenario{Name: "x", Kind: Permits}, Contenders: []ContenderResult{
			result("ours", Ours, IdealShare, c.ours), result("a", Peer, IdealShare, c.peer),
		}}
		if v, ok := g.judge(s); !ok || v.Met == nil || *v.Met != c.met || v.Ratio != c.ours/c.peer {
			t.Errorf("%v: %+v", c, v)
		}
	}
}

func TestScenarioIsComparedWithAnotherOneOfOurs(t *testing.T) {
	all := []ScenarioResult{
		{Scenario: Scenario{Name: "one", Kind: Permits}, Contenders: []ContenderResult{
			result("ours", Ours, IdealShare, 0.8, 0.4), result("a", Peer, IdealShare, 0.1, 0.1),
		}},
		{Scenario: Scenario{Name: "four", Kind: Permits, Against: "one"}, Contenders: []ContenderResult{
			result("ours", Ours, IdealShare, 0.6, 0.3), result("a", Peer, IdealShare, 0.1, 0.1),
		}},
	}
	g := goal{"four", IdealShare, bound{ratioAtLeast, 0.7}}
	if v, ok := g.judge(all[1].against(all)); !ok || v.Best != "one" || math.Abs(v.Ratio-0.75) > 1e-9 || !*v.Met {
		t.Errorf("%+v", v)
	}
	if v, ok := g.judge(all[1].against(all[1:])); !ok || v.Best != "" || v.Met != nil {
		t.Errorf("without the other one: %+v", v)
	}
}

func TestEveryGoalIsOfAScenarioThatIsRun(t *testing.T) {
	all := scenarios()
	for _, g := range goals {
		if !slices.ContainsFunc(all, func(s Scenario) bool { return s.Name == g.scenario }) {
			t.Errorf("no scenario %q", g.scenario)
		}
		if _, ok := labels[g.metric]; !ok {
			t.Errorf("no label for %s", g.metric)
		}
	}
	for _, s := range all {
		if s.Against != "" && !slices.ContainsFunc(all, func(other Scenario) bool { return other.Name == s.Against }) {
			t.Errorf("%s is compared with %q, which is no scenario", s.Name, s.Against)
		}
	}
}

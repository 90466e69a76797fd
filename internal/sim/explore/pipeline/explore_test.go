package pipeline

import (
	"flag"
	"runtime/debug"
	"slices"
	"testing"
)

var limit = flag.Int("explore.states", 10_000, "states of each world, at most")

// worlds are small: each has what some rule needs.
var worlds = map[string]Budget{
	"batches and cuts":       {Batches: 3, Cuts: 2},
	"forgotten scripts":      {Batches: 3, Cuts: 1, Flushes: 2},
	"scripts by text":        {Batches: 2, Cuts: 1, Flushes: 2, NoLoad: true},
	"a channel":              {Batches: 2, Cuts: 1, Wants: 3},
	"a channel alone":        {Cuts: 2, Wants: 3},
	"replicas":               {Batches: 2, Cuts: 1, Flushes: 1, Lags: 1, Replicas: 1},
	"replicas and a channel": {Batches: 2, Cuts: 1, Wants: 2, Lags: 1, Replicas: 1},
	"a script between":       {Batches: 1, Flushes: 1, Wants: 3, Replicas: 1},
	"a slot that moves":      {Batches: 3, Cuts: 1, Moves: 4, IsNode: true},
	"a silent server":        {Batches: 2, Late: 2},
	"lost counters":          {Batches: 3, Cuts: 1, Losses: 2},
	"a channel of three":     {Batches: 1, Cuts: 1, Wants: 4, Channels: 3, IsDenied: true},
	"transfers":              {Batches: 1, Cuts: 1, Gifts: 2},
	"transfers and replicas": {Batches: 1, Gifts: 2, Lags: 1, Replicas: 1},
	"all of it":              {Batches: 5, Cuts: 1, Flushes: 1, Moves: 3, Wants: 1, IsNode: true},
}

// In each order, the store keeps its contract with the lock table.
func TestExplorePipeline(t *testing.T) {
	percent := debug.SetGCPercent(400) // worlds are made again and again
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	for name, b := range worlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := Explore(b, *limit)
			t.Logf("%d states, %d settled, at most %d actions", found.States, found.Settled, found.Deepest)
			if found.Why != "" {
				t.Error(found.Why)
			}
			if found.Settled == 0 {
				t.Error("no world settles")
			}
		})
	}
}

// These paths broke the contract, deeper than the search of each commit.
func TestPathsThatBrokeTheContract(t *testing.T) {
	for _, path := range []struct {
		rule string
		b    Budget
		path []actionKind
	}{
		{
			"a withheld confirmation is of no use when the channel was unsubscribed since", Budget{Batches: 1, Flushes: 1, Wants: 3, Replicas: 1},
			[]actionKind{
				connect, flush, ask, execute, read, rest, want, check, execute, execute, execute, read, read, read, rest,
				execute, execute, execute, execute, read, read, read, read, rest, want, check, execute, execute, want, read, read, rest,
			},
		},
	} {
		t.Run(path.rule, func(t *testing.T) {
			w := newWorld(path.b)
			for _, kind := range path.path {
				a := action{kind: kind}
				if !slices.Contains(w.actions(), a) {
					t.Fatalf("the path has an end: %v cannot happen", a)
				}
				w.do(a)
			}
			if w.monitor.violated != "" {
				t.Error(w.monitor.violated)
			}
		})
	}
}

package explore

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"testing"
	"time"
)

var (
	long   = flag.Bool("explore.long", os.Getenv("LOCKSIDECAR_LONG") != "", "explore with the larger budgets")
	budget = flag.String("explore.budget", "", "explore with this budget: what clients do, faults and passages of time, and if any, jumps of Redis's clock, migrations and failovers, as in 3,1,0 or 3,0,0,1 or 2,0,0,0,1,0")
	states = flag.Int("explore.states", 0, "end the search from a root with a budget when it has found so many states; 0: all, or a million of the larger budgets")
)

// A search makes many worlds and keeps few of them.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	debug.SetMemoryLimit(2 << 30)
	os.Exit(m.Run())
}

// Each budget is explored from each root, until there is no further state.
var (
	budgets = []Budget{{Clients: 4}, {Clients: 2, Ticks: 1}, {Clients: 2, Faults: 1}, {Clients: 3, Jumps: 1}}
	larger  = []Budget{
		{Clients: 6}, {Clients: 4, Ticks: 1}, {Clients: 3, Ticks: 2}, {Clients: 3, Faults: 1},
		{Clients: 1, Faults: 1, Ticks: 1}, {Clients: 2, Faults: 1, Ticks: 1}, {Clients: 2, Faults: 2}, {Clients: 1, Faults: 2, Ticks: 1}, {Clients: 1, Faults: 1, Ticks: 2},
		{Clients: 4, Jumps: 2}, {Clients: 3, Ticks: 1, Jumps: 2}, {Clients: 2, Faults: 1, Jumps: 1},
	}

	// The same if requests want strict order. There are more states: it matters which of two
	// arrived first.
	allFairBudgets  = []Budget{{Clients: 4}, {Clients: 2, Ticks: 1}, {Clients: 2, Faults: 1}, {Clients: 2, Jumps: 1}}
	crowdBudgets    = []Budget{{Clients: 4}, {Clients: 1, Ticks: 1}, {Clients: 1, Faults: 1}, {Clients: 2, Jumps: 1}} // the same from a crowd, from which most follow
	someFairBudgets = []Budget{{Clients: 3}, {Clients: 2, Ticks: 1}, {Clients: 1, Faults: 1}, {Clients: 2, Jumps: 1}}
	largerFair      = []Budget{{Clients: 5}, {Clients: 3, Ticks: 1}, {Clients: 2, Ticks: 2}, {Clients: 3, Faults: 1}, {Clients: 1, Faults: 1, Ticks: 1}, {Clients: 3, Jumps: 1}, {Clients: 2, Ticks: 1, Jumps: 1}}

	// A semaphore, whose clients ask for one permit or two.
	permitBudgets = []Budget{{Clients: 4}, {Clients: 2, Ticks: 1}, {Clients: 2, Faults: 1}}
	largerPermits = []Budget{{Clients: 6}, {Clients: 4, Ticks: 1}, {Clients: 3, Ticks: 2}, {Clients: 3, Faults: 1}, {Clients: 2, Faults: 1, Ticks: 1}, {Clients: 2, Faults: 2}}

	// In a Cluster, with a migration or a failover. Most states follow from a transfer that is on the way, and from a lock that lingers.
	clusterBudgets      = []Budget{{Clients: 1, Moves: 1}, {Failovers: 1}}
	clusterFaultBudgets = []Budget{{Faults: 1, Moves: 1}, {Faults: 1, Failovers: 1}}
	clusterCalmBudgets  = append([]Budget{{Clients: 2, Moves: 1}, {Clients: 1, Failovers: 1}, {Ticks: 1, Moves: 1}, {Ticks: 1, Failovers: 1}}, clusterFaultBudgets...)
	clusterFairBudgets  = []Budget{{Clients: 1, Moves: 1}}
	largerCluster       = []Budget{
		{Clients: 3, Moves: 1}, {Clients: 2, Failovers: 1}, {Clients: 1, Ticks: 1, Moves: 1}, {Clients: 1, Ticks: 1, Failovers: 1},
		{Faults: 1, Moves: 1, Failovers: 1}, {Clients: 1, Faults: 1, Moves: 1}, {Clients: 1, Faults: 1, Failovers: 1},
	}
)

func TestExplore(t *testing.T) {
	t.Parallel()
	explore(t, Plan{}, roots, longer(budgets, larger))
}

// Shows docs/queue.md: Strict order.
func TestExploreStrictOrder(t *testing.T) {
	t.Parallel()
	explore(t, Plan{Fair: allFair}, from("nothing", "queued", "transfer"), longer(allFairBudgets, largerFair))
	explore(t, Plan{Fair: allFair}, from("crowd"), longer(crowdBudgets, largerFair))
	explore(t, Plan{Fair: someFair}, rootsOf(someFair), longer(someFairBudgets, largerFair))
}

func TestExploreCluster(t *testing.T) {
	t.Parallel()
	c := Plan{Cluster: true}
	if *long || *budget != "" {
		explore(t, c, roots, largerCluster)
		return
	}
	calm := from("nothing", "queued", "crowd")
	explore(t, c, roots, clusterBudgets)
	explore(t, c, calm, clusterCalmBudgets)
	explore(t, c, from("lingering"), clusterFaultBudgets)
	explore(t, Plan{Cluster: true, Fair: allFair}, calm, clusterFairBudgets)
}

func TestExplorePermits(t *testing.T) {
	t.Parallel()
	explore(t, Plan{Permits: true}, permitRoots, longer(permitBudgets, largerPermits))
}

// longer returns the budgets of the long form if that is wanted, or the others.
func longer(small, large []Budget) []Budget {
	if *long {
		return large
	}
	return small
}

// explore explores each budget from each root.
func explore(t *testing.T, of Plan, roots []root, all []Budget) {
	settle, most := 16, *states
	if *long {
		settle = 64
		if most == 0 {
			most = 1_000_000
		}
	}
	if *budget != "" {
		var b Budget
		if n, err := fmt.Sscanf(*budget, "%d,%d,%d,%d,%d,%d", &b.Clients, &b.Faults, &b.Ticks, &b.Jumps, &b.Moves, &b.Failovers); n < 3 {
			t.Fatalf("-explore.budget: %v", err)
		}
		all = []Budget{b}
	}
	for _, b := range all {
		for _, root := range roots {
			t.Run(fmt.Sprintf("%s fair, %s from %s", of.Fair, b, root.name), func(t *testing.T) {
				t.Parallel()
				p := of
				p.Budget, p.Prefix, p.Settle, p.States = b, root.steps, settle, most
				start := time.Now()
				r := Explore(&p)
				if v := r.Violation; v != nil {
					t.Fatalf("%d steps from here: %s\n%s", v.Depth, v.Text, v.Trace())
				}
				complete := "all"
				if !r.Complete {
					complete = "not all"
				}
				t.Logf("%s: %d states, %d transitions, %d steps deep, %.0f transitions a second; %d states were run to the end, for %v at most",
					complete, r.States, r.Transitions, r.Depth, float64(r.Transitions)/time.Since(start).Seconds(), r.Settled, r.Longest)
			})
		}
	}
}

// These paths met violations in explorations that are too long for each commit.
func TestPathsThatMetViolations(t *testing.T) {
	at := func(k actionKind, i int) action { return actionOf(k, i, 1) } // shard 2
	of := func(k actionKind, i int) action { return actionOf(k, i, 0) }
	for _, path := range []struct {
		rule, root string
		steps      []action
	}{
		{"a loss that is found in the last input of a process is in its journal", "transfer", []action{
			d1, of(failOver, 0), of(giveUp, 1), of(learn, 1), of(dieBetween, 1),
		}},
		{"a ticket that a failover brings back may be a ghost", "transfer", []action{
			at(passOn, 1), d1, at(deliver, 1), of(failOver, 0), of(learn, 1), of(learn, 0), of(giveUp, 1), at(execute, 1), d0, of(dieBefore, 1),
		}},
		{"a message of a transfer that a failover lost tells a host nothing", "transfer", []action{
			at(passOn, 1), of(failOver, 0), d1, at(deliver, 1), of(learn, 1), of(learn, 0), of(giveUp, 1), at(execute, 1), d0, of(dieBefore, 1),
		}},
		{"the ticket of a process that died may be a ghost", "queued", []action{
			of(die, 0), of(crash, 1), of(restart, 1), of(learn, 1), of(reconnect, 1), x1, d1, of(loseSince, 0), of(giveUp, 0), of(learn, 0), at(execute, 0),
		}},
		{"so it may if a try has found another owner", "queued", []action{
			of(die, 0), of(crash, 1), of(restart, 1), of(learn, 1), of(try, 1), of(reconnect, 1), x1, d1, of(cut, 1), x0,
		}},
		{"a waiter queues at once when another host has the key of the hold before it", "transfer", []action{
			at(passOn, 1), d1, b1, at(deliver, 1), of(passTime, 0), of(failOver, 0), of(learn, 1), at(execute, 1), at(deliver, 1),
		}},
	} {
		t.Run(path.rule, func(t *testing.T) {
			w := newRoot(&Plan{Budget: Budget{Clients: 2, Faults: 2, Ticks: 1, Failovers: 1}, Cluster: true, Prefix: from(path.root)[0].steps})
			for _, a := range path.steps {
				if !slices.Contains(w.actions(nil), a) {
					t.Fatalf("the path has an end: %s cannot happen", a)
				}
				w = w.step(a)
			}
			if w.violation == "" {
				w, _ = w.settle()
			}
			if w.violation != "" {
				t.Error(w.violation)
			}
		})
	}
}

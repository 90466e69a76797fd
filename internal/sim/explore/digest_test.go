package explore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

var unlimited = Budget{Clients: 100, Faults: 3, Ticks: 100}

// The search forgets a state whose digest it has met. So two states with one digest must have
// the same future: what follows them must have the same digests, too.
func TestStatesWithOneDigestHaveTheSameSuccessors(t *testing.T) {
	for _, fair := range []fairness{noneFair, allFair, someFair} {
		for _, root := range rootsOf(fair) {
			depth := 3
			if *long || fair == noneFair || root.name == "nothing" {
				depth = 4
			}
			t.Run(fmt.Sprintf("%s fair, from %s", fair, root.name), func(t *testing.T) {
				t.Parallel()
				testDigests(t, &Plan{Prefix: root.steps, Budget: unlimited, Fair: fair}, depth)
				withJumps := unlimited
				withJumps.Jumps = 2
				testDigests(t, &Plan{Prefix: root.steps, Budget: withJumps, Fair: fair}, 3)
			})
		}
	}
	for _, root := range permitRoots {
		t.Run(fmt.Sprintf("permits, from %s", root.name), func(t *testing.T) {
			t.Parallel()
			testDigests(t, &Plan{Prefix: root.steps, Budget: unlimited, Permits: true}, 4)
		})
	}
	for _, root := range from("nothing", "queued", "crowd") {
		t.Run(fmt.Sprintf("in a Cluster, from %s", root.name), func(t *testing.T) {
			t.Parallel()
			testDigests(t, &Plan{Prefix: root.steps, Budget: Budget{Clients: 100, Faults: 1, Ticks: 100, Moves: 1, Failovers: 1}, Cluster: true}, 3)
			testDigests(t, &Plan{Prefix: append(slices.Clip(root.steps), actionOf(failOver, 0, 0)), Budget: Budget{Clients: 100, Ticks: 100}, Cluster: true}, 3)
		})
	}
}

func testDigests(t *testing.T, p *Plan, depth int) {
	var g digester
	successors := func(w *world) map[uint64]action {
		all := make(map[uint64]action)
		for _, a := range w.actions(nil) {
			all[g.digest(w.step(a))] = a
		}
		return all
	}
	type visit struct {
		w    *world
		path []action
	}
	first := newRoot(p)
	met := map[uint64]visit{g.digest(first): {w: first}}
	level := []visit{{w: first}}
	merged := 0
	for range depth {
		var next []visit
		for _, v := range level {
			for _, a := range v.w.actions(nil) {
				w := v.w.step(a)
				d := g.digest(w)
				n := visit{w, append(slices.Clip(v.path), a)}
				before, isKnown := met[d]
				if !isKnown {
					met[d] = n
					next = append(next, n)
					continue
				}
				if merged++; merged%7 != 0 {
					continue
				}
				is, was := successors(w), successors(before.w)
				if !maps.EqualFunc(is, was, func(action, action) bool { return true }) {
					t.Fatalf("after %v and after %v there is one digest, and what follows differs: %v", before.path, n.path, difference(is, was))
				}
			}
		}
		level = next
	}
	t.Logf("%d states, %d merges", len(met), merged)
}

// difference returns the actions to states that only one of two maps has.
func difference(a, b map[uint64]action) (only [2][]action) {
	for d, x := range a {
		if _, has := b[d]; !has {
			only[0] = append(only[0], x)
		}
	}
	for d, x := range b {
		if _, has := a[d]; !has {
			only[1] = append(only[1], x)
		}
	}
	return only
}

// A step copies a table and goes on with the copy. So a copy must behave as the table does.
func TestCopiesOfATableBehaveAsTheTable(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		fair := fairness(seed % 3)
		p := Plan{Budget: unlimited, Fair: fair}
		switch seed % 4 {
		case 0:
			p.Cluster, p.Moves = true, 1
			p.Failovers = int(seed / 4 % 2)
		case 1:
			p.Permits, p.Fair = true, noneFair
		}
		withoutCopies := p
		withoutCopies.noCopies = true
		copied, table := newRoot(&p), newRoot(&withoutCopies)
		var g, h digester
		for i := range 200 {
			all := copied.actions(nil)
			if len(all) == 0 {
				break
			}
			a := all[random.IntN(len(all))]
			copied, table = copied.step(a), table.step(a)
			if copied.violation != table.violation || g.digest(copied) != h.digest(table) {
				t.Fatalf("seed %d: after %d steps, at last %q, the copy differs from the table: %q, %q", seed, i+1, a, copied.violation, table.violation)
			}
			if copied.violation != "" {
				t.Fatalf("seed %d: after %d steps, at last %q: %s", seed, i+1, a, copied.violation)
			}
		}
	}
}

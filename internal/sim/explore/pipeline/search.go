package pipeline

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// Found is what a search found.
type Found struct {
	States  int
	Settled int    // states in which nothing more can happen
	Deepest int    // actions
	Why     string // the rule of the contract that is broken, with the actions before; "": none is
}

// Explore looks at all states of a world, or at the first limit of them.
func Explore(b Budget, limit int) (f Found) {
	seed := maphash.MakeSeed()
	seen := map[uint64]bool{}
	var text []byte
	isNew := func(w *world) bool {
		text = w.describe(text[:0])
		h := maphash.Bytes(seed, text)
		if seen[h] {
			return false
		}
		seen[h] = true
		return true
	}
	type node struct {
		parent *node
		action action
		depth  int
	}
	pathOf := func(n *node) []action {
		path := make([]action, n.depth)
		for ; n.parent != nil; n = n.parent {
			path[n.depth-1] = n.action
		}
		return path
	}
	replay := func(path []action) *world {
		w := newWorld(b)
		for _, a := range path {
			w.do(a)
		}
		return w
	}
	root := &node{}
	isNew(newWorld(b))
	f.States = 1
	stack := []*node{root}
	for len(stack) > 0 && f.States < limit {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		path := pathOf(n)
		w := replay(path)
		actions := w.actions()
		for i, a := range actions {
			if i > 0 {
				w = replay(path)
			}
			w.do(a)
			if isKnown := !isNew(w); !isKnown {
				f.States++
				f.Deepest = max(f.Deepest, n.depth+1)
				if len(w.actions()) == 0 || w.isSettled() {
					f.Settled++
					w.monitor.settled(w)
				}
			} else if w.monitor.violated == "" {
				continue
			}
			if w.monitor.violated != "" { // also on the way to a state that is known
				f.Why = explain(w.monitor.violated, append(path, a))
				return f
			}
			stack = append(stack, &node{n, a, n.depth + 1})
		}
	}
	return f
}

// isSettled reports whether all that was asked must have its result: the connection is up, and nothing is in flight.
func (w *world) isSettled() bool {
	return w.isUp && !w.unchecked && len(w.replies) == 0 && !w.unsettled && len(w.m.Commands()) == 0
}

func explain(why string, path []action) string {
	var b strings.Builder
	fmt.Fprintln(&b, why)
	for i, a := range path {
		fmt.Fprintf(&b, "%4d %v\n", i+1, a)
	}
	return b.String()
}

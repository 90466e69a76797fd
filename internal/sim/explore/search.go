package explore

import (
	"fmt"
	"slices"
	"time"
)

// Plan says what is explored.
type Plan struct {
	Budget
	Prefix []action // from the initial state to the first
	Settle int      // one in so many states is run fairly to its end; 0: none
	States int      // the search ends when it has found so many; 0: when there are no more

	Fair    fairness
	Permits bool // the lock is a semaphore: see permits.go

	// There are two shards, and the slot of the lock is at the first one: see cluster.go.
	Cluster bool

	mutant   *Mutant
	noCopies bool // the tables are not copied, so that each world can be used once
}

// fairness is which of the requests that wait want strict order between hosts.
type fairness uint8

const (
	noneFair fairness = iota
	allFair           // all: the setting names the lock
	someFair          // a client chooses with each request
)

func (f fairness) String() string { return [...]string{"none", "all", "some"}[f] }

// Budget is how many steps of a kind one path may have. It makes the number of states finite.
type Budget struct {
	Clients int // that clients acquire, cancel, release or die
	Faults  int
	Ticks   int // that time passes
	Jumps   int // that Redis's clock is set back or forward

	// In a Cluster, whether the slot moves.
	Moves     int // with its data; 0 or 1
	Failovers int // without some of it; 0 or 1
}

func (b Budget) String() string {
	text := fmt.Sprintf("%d actions of clients, %d faults, %d passages of time", b.Clients, b.Faults, b.Ticks)
	if b.Jumps > 0 {
		text += fmt.Sprintf(", %d jumps of Redis's clock", b.Jumps)
	}
	if b.Moves > 0 {
		text += ", a migration"
	}
	if b.Failovers > 0 {
		text += ", a failover"
	}
	return text
}

// Report is what an exploration has found.
type Report struct {
	Complete    bool // there are no further states
	Depth       int  // to which all states were found
	States      int  // different ones
	Transitions int  // in all
	Settled     int
	Longest     time.Duration
	Violation   *Violation
}

// Violation is a state that breaks a rule, and the shortest way to it.
type Violation struct {
	Text  string
	Path  []action
	Plan  *Plan
	Depth int
}

func (v *Violation) Error() string { return v.Text }

// seen is a set of digests: open addressing, and 0 is an empty slot.
type seen struct {
	slots []uint64
	n     int
}

// add adds a digest, and reports whether it was not there.
func (s *seen) add(x uint64) bool {
	x |= 1 // 0 is no digest
	if s.n*4 >= len(s.slots)*3 {
		old := s.slots
		s.slots = make([]uint64, max(1024, 2*len(old)))
		for _, y := range old {
			if y != 0 {
				s.slots[s.find(y)] = y
			}
		}
	}
	i := s.find(x)
	if s.slots[i] == x {
		return false
	}
	s.slots[i] = x
	s.n++
	return true
}

func (s *seen) find(x uint64) int {
	mask := len(s.slots) - 1
	i := int(x>>1) & mask
	for s.slots[i] != 0 && s.slots[i] != x {
		i = (i + 1) & mask
	}
	return i
}

// node is a state, by the step that led to it first.
type node struct {
	parent int32 // index of the node before; -1: it is the first
	action action
}

// search is a breadth-first search, in one goroutine: which way to a state is found first is the same each
// time. It keeps the worlds of the path to the node whose successors it made last.
type search struct {
	plan     *Plan
	seen     seen
	nodes    []node // of all levels, in their order
	digester digester
	path     []action
	worlds   []*world // worlds[i] is that after path[:i]
	actions  []action

	report Report
}

// Explore explores all states of a plan, level by level.
func Explore(p *Plan) *Report {
	first := newRoot(p)
	s := &search{plan: p, nodes: []node{{parent: -1}}, worlds: []*world{first}}
	r := &s.report
	if first.violation != "" {
		s.fail(first.violation)
	}
	s.seen.add(s.digester.digest(first))
	mayGoOn := func() bool { return r.Violation == nil && (p.States == 0 || len(s.nodes) < p.States) }
	for from := 0; mayGoOn(); r.Depth++ {
		to := len(s.nodes)
		if r.Complete = from == to; r.Complete {
			break
		}
		for ; from < to && mayGoOn(); from++ {
			s.expand(from)
		}
	}
	r.States = len(s.nodes)
	return r
}

// newRoot makes the first world of a plan.
func newRoot(p *Plan) *world {
	w := newWorld(p)
	for _, a := range p.Prefix {
		w = w.step(a)
	}
	w.beginHere()
	return w
}

// beginHere makes the world a root: what happened before counts against no budget.
func (w *world) beginHere() {
	w.clients, w.faults, w.ticks, w.jumps, w.wasLate, w.hasLapsed = 0, 0, 0, 0, false, false
	w.first = w.data
}

// fail notes a violation after these steps from the root.
func (s *search) fail(text string, path ...action) {
	s.report.Violation = &Violation{Text: text, Path: slices.Concat(s.plan.Prefix, path), Plan: s.plan, Depth: len(path)}
}

// expand adds the new states that follow a node.
func (s *search) expand(i int) {
	w := s.world(i)
	s.actions = w.actions(s.actions[:0])
	s.report.Transitions += len(s.actions)
	for _, a := range s.actions {
		n := w.step(a)
		if n.violation != "" {
			s.fail(n.violation, append(s.path, a)...)
			return
		}
		d := s.digester.digest(n)
		if !s.seen.add(d) {
			continue
		}
		s.nodes = append(s.nodes, node{int32(i), a})
		if s.plan.Settle > 0 && d>>8%uint64(s.plan.Settle) == 0 {
			s.report.Settled++
			last, longest := n.settle()
			if last.violation != "" {
				s.fail("run fairly from here: "+last.violation, append(s.path, a)...)
				return
			}
			s.report.Longest = max(s.report.Longest, time.Duration(longest))
		}
	}
}

// world makes the world of a node again.
func (s *search) world(i int) *world {
	var path []action
	for ; i > 0; i = int(s.nodes[i].parent) {
		path = append(path, s.nodes[i].action)
	}
	slices.Reverse(path)
	common := 0
	for common < len(s.path) && common < len(path) && s.path[common] == path[common] {
		common++
	}
	s.path, s.worlds = s.path[:common], s.worlds[:common+1]
	for _, a := range path[common:] {
		s.worlds = append(s.worlds, s.worlds[len(s.worlds)-1].step(a))
		s.path = append(s.path, a)
	}
	return s.worlds[len(s.worlds)-1]
}

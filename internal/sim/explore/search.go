package explore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Plan says what is explored.
type Plan struct {
	Budget
	Prefix  []action      // from the initial state to the first
	Settle  int           // one in so many states is run fairly to its end; 0: none
	Limit   time.Duration // no level is begun after it; 0: none
	Workers int

	Fair fairness

	// There are two shards, and the slot of the lock is at the first one: see cluster.go.
	Cluster bool

	// A message that a script publishes to its own connection comes after its result, as Redis
	// has it since 7.2, and not before it.
	PushAfterReply bool

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
	Complete    bool  // there are no further states
	Depth       int   // to which all states were found
	States      int   // different ones
	Transitions int   // in all
	Levels      []int // states that were met first at each depth
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

// seen is a set of digests, for several goroutines.
type seen struct{ shards [64]shard }

type shard struct {
	sync.Mutex
	slots []uint64 // open addressing; 0: empty
	n     int
}

// add adds a digest, and reports whether it was not there.
func (s *seen) add(x uint64) bool {
	x |= 1 // 0 is no digest
	sh := &s.shards[x>>58]
	sh.Lock()
	defer sh.Unlock()
	if sh.n*4 >= len(sh.slots)*3 {
		old := sh.slots
		sh.slots = make([]uint64, max(1024, 2*len(old)))
		for _, y := range old {
			if y != 0 {
				sh.slots[sh.find(y)] = y
			}
		}
	}
	i := sh.find(x)
	if sh.slots[i] == x {
		return false
	}
	sh.slots[i] = x
	sh.n++
	return true
}

func (sh *shard) find(x uint64) int {
	mask := len(sh.slots) - 1
	i := int(x>>1) & mask
	for sh.slots[i] != 0 && sh.slots[i] != x {
		i = (i + 1) & mask
	}
	return i
}

// node is a state, by the step that led to it first.
type node struct {
	parent int32 // index of the node before; -1: it is the first
	action action
}

// search is a breadth-first search.
type search struct {
	plan  *Plan
	first *world
	seen  seen
	nodes []node // of all levels, in their order

	transitions, settled atomic.Int64
	longest              atomic.Int64

	mu        sync.Mutex // guards violation
	violation *Violation
}

// Explore explores all states of a plan, level by level.
func Explore(p *Plan) *Report {
	s := &search{plan: p, first: newRoot(p)}
	start := time.Now()
	report := &Report{Levels: []int{1}}
	s.nodes = append(s.nodes, node{parent: -1})
	if s.first.violation != "" {
		s.violation = &Violation{Text: s.first.violation, Path: p.Prefix, Plan: p}
	}
	var g digester
	s.seen.add(g.digest(s.first))
	for from := 0; s.violation == nil; report.Depth++ {
		if p.Limit != 0 && time.Since(start) > p.Limit {
			break
		}
		to := len(s.nodes)
		if report.Complete = from == to; report.Complete {
			break
		}
		s.level(from, to)
		report.Levels = append(report.Levels, len(s.nodes)-to)
		from = to
	}
	report.States, report.Transitions = len(s.nodes), int(s.transitions.Load())
	report.Settled, report.Longest = int(s.settled.Load()), time.Duration(s.longest.Load())
	report.Violation = s.violation
	return report
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

// chunk is how many nodes a worker takes at one time. Neighbours have most of their path in
// common.
const chunk = 256

// level finds the states that follow those of nodes[from:to].
func (s *search) level(from, to int) {
	chunks := make([][]node, (to-from+chunk-1)/chunk)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range max(1, s.plan.Workers) {
		wg.Go(func() {
			x := expander{search: s}
			for {
				i := int(next.Add(1)) - 1
				if i >= len(chunks) || s.failed() {
					return
				}
				first := from + i*chunk
				chunks[i] = x.expand(first, min(first+chunk, to))
			}
		})
	}
	wg.Wait()
	for _, c := range chunks {
		s.nodes = append(s.nodes, c...)
	}
}

func (s *search) failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.violation != nil
}

func (s *search) fail(text string, path []action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.violation == nil {
		s.violation = &Violation{Text: text, Path: append(append([]action(nil), s.plan.Prefix...), path...), Plan: s.plan, Depth: len(path)}
	}
}

// expander makes the worlds of nodes again, and their successors. It keeps the worlds of the
// path to the last node.
type expander struct {
	*search
	digester digester
	path     []action
	worlds   []*world // worlds[i] is that after path[:i]
	actions  []action
}

// expand returns the new states that follow those of nodes[from:to].
func (x *expander) expand(from, to int) (found []node) {
	for i := from; i < to; i++ {
		w := x.world(i)
		x.actions = w.actions(x.actions[:0])
		x.transitions.Add(int64(len(x.actions)))
		for _, a := range x.actions {
			n := w.step(a)
			if n.violation != "" {
				x.fail(n.violation, append(x.path, a))
				return nil
			}
			d := x.digester.digest(n)
			if !x.seen.add(d) {
				continue
			}
			found = append(found, node{int32(i), a})
			if x.plan.Settle > 0 && d>>8%uint64(x.plan.Settle) == 0 {
				x.settled.Add(1)
				last, longest := n.settle()
				if last.violation != "" {
					x.fail("run fairly from here: "+last.violation, append(x.path, a))
					return nil
				}
				for was := x.longest.Load(); longest > was && !x.longest.CompareAndSwap(was, longest); was = x.longest.Load() {
				}
			}
		}
	}
	return found
}

// world makes the world of a node.
func (x *expander) world(i int) *world {
	var path []action
	for ; i > 0; i = int(x.nodes[i].parent) {
		path = append(path, x.nodes[i].action)
	}
	if len(x.worlds) == 0 {
		x.worlds = append(x.worlds, x.first)
	}
	common := 0
	for common < len(x.path) && common < len(path) && x.path[common] == path[len(path)-1-common] {
		common++
	}
	x.path, x.worlds = x.path[:common], x.worlds[:common+1]
	for j := len(path) - 1 - common; j >= 0; j-- {
		x.worlds = append(x.worlds, x.worlds[len(x.worlds)-1].step(path[j]))
		x.path = append(x.path, path[j])
	}
	return x.worlds[len(x.worlds)-1]
}

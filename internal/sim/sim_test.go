package sim_test

import (
	"flag"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim"
	"github.com/locksidecar/locksidecar/protocol"
)

var (
	simSeed   = flag.Uint64("sim.seed", 0, "run this one seed (with -sim.steps: start a search there)")
	simSteps  = flag.Int("sim.steps", 0, "search: run seeds until this many steps are done")
	simDigest = flag.Uint64("sim.digest", 0, "run the seeds up to this one; with -v, their digest is printed")
	simTrace  = flag.Bool("sim.trace", false, "with -sim.seed: print everything that happens")
)

// ofACommit is what each commit runs: always the same seeds. make sim searches elsewhere.
var ofACommit = sync.OnceValue(func() *search {
	s := &search{first: 1, last: 5000, steps: math.MaxInt}
	s.run()
	return s
})

// Shows docs/guarantees.md: Tokens grow.
// Shows docs/guarantees.md: Nothing is freed early.
// Shows docs/guarantees.md: A lost lock is reported once, with the reason.
// Shows docs/guarantees.md: Every waiter is answered.
// Shows docs/guarantees.md: On one host, first come, first served.
// Shows docs/guarantees.md: A transfer that a host does not accept costs a round trip.
// Shows docs/guarantees.md: Exclusion.
// Shows docs/guarantees.md: A lock with a keep stays held until so long after its grant.
// Shows docs/guarantees.md: Fairness between hosts.
// Shows docs/guarantees.md: First come, first served over all hosts, if every request asks for it.
// Shows docs/guarantees.md: A release returns before Redis has executed it, unless it is confirmed.
// Shows docs/guarantees.md: kill -9, crash, SIGTERM, upgrade.
// Shows docs/guarantees.md: No daemon starts, or only after the deadlines.
// Shows docs/guarantees.md: The file system of the state file is full.
// Shows docs/guarantees.md: The same, of a daemon that died.
// Shows docs/guarantees.md: FLUSHALL, a deleted key, `forceUnlock` of a Redisson program.
// Shows docs/guarantees.md: Failover to a replica, with `durability = "replicas:N"` on all hosts.
// Shows docs/guarantees.md: Failover to a replica that lags.
// Shows docs/guarantees.md: Messages lost.
// Shows docs/guarantees.md: A host dies that waits for a lock.
// Shows docs/guarantees.md: Its clock jumps.
// Shows docs/guarantees.md: Its host is suspended.
// Shows docs/guarantees.md: Takes all it can get.
// Shows docs/queue.md: Origins.
// Shows docs/queue.md: Strict order.
// Shows docs/queue.md: Faults.
// Shows docs/renewals.md: When.
func TestSimulation(t *testing.T) {
	start := time.Now()
	s := &search{first: 1, last: math.MaxUint64, steps: math.MaxInt}
	switch {
	case *simSteps > 0:
		s.first, s.steps = max(s.first, *simSeed), *simSteps
		s.run()
	case *simSeed > 0:
		runOne(t, *simSeed)
		return
	case *simDigest > 0:
		s.last = *simDigest
		s.run()
	case testing.Short():
		s.last = 60
		s.run()
	default:
		s = ofACommit()
	}
	if s.failed != 0 {
		report(t, s.failed)
	}
	t.Logf("%d seeds from %d, %d steps, %s of virtual time, digest %016x, %.2f million steps/s", s.seeds, s.first, s.steps,
		s.virtual.Round(time.Second), uint64(s.digest), float64(s.steps)/1e6/time.Since(start).Seconds())
}

// search runs seeds, on all processors.
type search struct {
	first, last uint64
	steps       int // at most, but for the seeds that have begun; then those that were done

	seeds   int
	digest  sim.Digest // the sum of those of the seeds, which end in any order
	virtual time.Duration
	met     sim.Met
	refused map[protocol.Code]int
	lost    map[protocol.Reason]int
	failed  uint64 // the smallest seed that broke a rule; 0: none did
}

func (s *search) run() {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // worlds are made again and again
	var (
		mu   sync.Mutex // guards s and next
		wg   sync.WaitGroup
		next = s.first
		left = s.steps
	)
	s.steps, s.refused, s.lost = 0, make(map[protocol.Code]int), make(map[protocol.Reason]int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for next <= s.last && s.steps < left {
				seed := next
				next++
				mu.Unlock()
				r := sim.Run(seed, sim.Options{})
				mu.Lock()
				s.add(seed, r)
			}
		})
	}
	wg.Wait()
}

// add adds what a seed did. Those after one that failed need not be run.
func (s *search) add(seed uint64, r *sim.Result) {
	if r.Violation != nil {
		if s.last = min(s.last, seed-1); s.last == seed-1 {
			s.failed = seed
		}
		return
	}
	s.seeds++
	s.steps += r.Steps
	s.virtual += r.Time
	s.digest += r.Digest.Add(seed).Add(uint64(r.Steps)).Add(uint64(r.Time))
	for situation, n := range r.Met {
		s.met[situation] += n
	}
	for code, n := range r.Refused {
		s.refused[code] += n
	}
	for reason, n := range r.Lost {
		s.lost[reason] += n
	}
}

// runOne runs one seed.
func runOne(t *testing.T, seed uint64) {
	r := sim.Run(seed, sim.Options{Trace: *simTrace})
	if r.Violation != nil {
		report(t, seed)
	}
	for _, l := range r.Trace {
		fmt.Println(l.Text)
	}
	t.Logf("seed %d: %d steps, %s of virtual time", seed, r.Steps, r.Time)
}

// report runs a failing seed again, with a trace, and fails the test with it.
func report(t *testing.T, seed uint64) {
	t.Helper()
	r := sim.Run(seed, sim.Options{Trace: true})
	if r.Violation == nil {
		t.Fatalf("seed %d failed once and does not fail again: the table is not deterministic", seed)
	}
	var lines []string
	for i := range r.Trace {
		if l := &r.Trace[i]; *simTrace || l.IsAbout(r.Violation) {
			lines = append(lines, l.Text)
		}
	}
	if !*simTrace {
		lines = lines[max(0, len(lines)-60):]
	}
	t.Fatalf("%v\n\nto replay: go test ./internal/sim -run 'TestSimulation$' -sim.seed=%d -sim.trace\nplan: %s\n\n%s",
		r.Violation, seed, r.Plan, strings.Join(lines, "\n"))
}

// A seed that fails must fail again, or nothing can be found out about it.
func TestTheSameSeedGivesTheSameEffects(t *testing.T) {
	for seed := uint64(1); seed <= 50; seed++ {
		a, b := sim.Run(seed, sim.Options{}), sim.Run(seed, sim.Options{Trace: true})
		if a.Digest != b.Digest || a.Steps != b.Steps || a.Time != b.Time {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}

// Shows docs/queue.md: Faults.
func TestSimulationMeetsEverySituation(t *testing.T) {
	if testing.Short() {
		t.Skip("few seeds meet few situations")
	}
	const least = 10
	s := ofACommit()
	if s.failed != 0 {
		t.Fatalf("seed %d broke a rule, and none after it was run: see TestSimulation", s.failed)
	}
	for situation, n := range s.met {
		if n < least {
			t.Errorf("situation %v: met %d times, want %d", sim.Situation(situation), n, least)
		}
		t.Logf("%-28v %d", sim.Situation(situation), n)
	}
	for _, code := range []protocol.Code{
		protocol.Timeout, protocol.Deadlock, protocol.Unavailable, protocol.Denied, protocol.Limit, protocol.Canceled,
	} {
		if s.refused[code] < least {
			t.Errorf("acquires refused with %s: %d, want %d", code, s.refused[code], least)
		}
	}
	for _, reason := range []protocol.Reason{
		protocol.Expired, protocol.Deleted, protocol.Stolen, protocol.ByForce, protocol.MaxHold, protocol.Forgotten,
	} {
		if s.lost[reason] < least {
			t.Errorf("holds lost with reason %s: %d, want %d", reason, s.lost[reason], least)
		}
	}
	t.Log(s.refused, s.lost)
}

func TestSituationsHaveNames(t *testing.T) {
	var met sim.Met
	names := make(map[string]bool)
	for s := range met {
		name := sim.Situation(s).String()
		if name == "" || names[name] {
			t.Errorf("situation %d has the name %q, which is empty or another one's", s, name)
		}
		names[name] = true
	}
}

// These seeds met violations that hundreds of millions of other steps did not: each breaks again if its
// rule is lost, unless a change of the simulation changes what the seed does.
func TestSeedsThatMetRareViolations(t *testing.T) {
	for rule, seed := range map[string]uint64{
		"a renewal that finds another owner confirms no release":                        3724,
		"a host knows of the clock of a shard when that is up":                          300001086,
		"a late take of a ticket that has got the lock leaves its number and its lease": 41200009221,
		"the floor of a connection is Redis's clock as it was read":                     41400019370,
		"what a node told after the route of another is above no token of that one":     1129044994,
		"permits whose shard is down end no hold of another shard":                      1128503051,
		"permits of a request that is gone are for the next one of its host":            1128181588,
		"a release is not confirmed before its slot has moved":                          3100036002,
		"a drop that is late passes on what the take after it has no more":              3710003114,
		"what no replica has confirmed ends no excuse":                                  3700008065,
		"a lock that has passed to a ticket is not that of a hold that ended":           3800066430,
		"a recall says more than a take that was executed before it":                    3450056292,
		"a hold is given up for one whose grant its client does not get":                4200090640,
		"a hold is given up for permits that end in the same step":                      4500061046,
		"a pass without tokens has the number of the one before":                        4200015576,
	} {
		t.Run(rule, func(t *testing.T) { runOne(t, seed) })
	}
}

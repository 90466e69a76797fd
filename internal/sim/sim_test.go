package sim

import (
	"flag"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

var (
	simSeed   = flag.Uint64("sim.seed", 0, "play this one seed (with -sim.steps: start a hunt there)")
	simSteps  = flag.Int("sim.steps", 0, "hunt: play seeds until this many steps are done")
	simDigest = flag.Uint64("sim.digest", 0, "play the seeds up to this one, and print a digest of all their effects")
	simTrace  = flag.Bool("sim.trace", false, "with -sim.seed: print everything that happens")
)

// report plays a failing seed again, with a trace, and tells the story.
func report(t *testing.T, seed uint64) {
	t.Helper()
	w, err := play(seed, nil, true)
	if err == nil {
		t.Fatalf("seed %d failed once and does not fail again: the table is not deterministic", seed)
	}
	v := err.(violation)
	var lines []string
	for _, l := range w.trace.lines {
		if *simTrace || v.name < 0 || l.name < 0 || l.name == v.name {
			lines = append(lines, l.text)
		}
	}
	if !*simTrace {
		lines = lines[max(0, len(lines)-60):]
	}
	t.Fatalf("%v\n\nreplay: go test ./internal/sim -run 'TestSimulation$' -sim.seed=%d -sim.trace\nplan: %+v\n\n%s",
		v, seed, w.plan, strings.Join(lines, "\n"))
}

func TestSimulation(t *testing.T) {
	steps := 5_000_000
	if testing.Short() {
		steps = 300_000
	}
	first := uint64(1)
	if *simSteps > 0 {
		steps = *simSteps
		first = max(first, *simSeed)
	} else if *simSeed > 0 {
		w, err := play(*simSeed, nil, false)
		if err != nil {
			report(t, *simSeed)
		}
		if *simTrace {
			w, _ = play(*simSeed, nil, true)
			for _, l := range w.trace.lines {
				fmt.Println(l.text)
			}
		}
		t.Logf("seed %d: %d steps, %s of virtual time", *simSeed, w.steps, time.Duration(w.now))
		return
	}

	last := uint64(math.MaxUint64)
	if *simDigest > 0 {
		steps, last = math.MaxInt, *simDigest
	}

	var (
		next    atomic.Uint64
		sum     atomic.Uint64 // of the digests: seeds end in any order
		played  atomic.Int64
		virtual atomic.Int64
		mu      sync.Mutex // guards failed
		failed  uint64
		wg      sync.WaitGroup
	)
	next.Store(first - 1)
	began := time.Now()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for played.Load() < int64(steps) {
				seed := next.Add(1)
				if seed > last {
					return
				}
				w, err := play(seed, nil, false)
				played.Add(int64(w.steps))
				virtual.Add(w.now)
				sum.Add(uint64(w.check.digest.add(seed).add(uint64(w.steps)).add(uint64(w.now))))
				if err != nil {
					played.Store(1 << 60)
					mu.Lock()
					if failed == 0 || seed < failed {
						failed = seed
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if failed != 0 {
		report(t, failed)
	}
	if *simDigest > 0 {
		t.Logf("digest of seeds %d to %d: %016x", first, last, sum.Load())
	}
	t.Logf("%d seeds, %d steps, %s of virtual time, %.2f million steps/s", next.Load()-first+1, played.Load(),
		time.Duration(virtual.Load()).Round(time.Second), float64(played.Load())/1e6/time.Since(began).Seconds())
}

// A seed that fails must fail again, or nobody can find out why.
func TestTheSameSeedGivesTheSameEffects(t *testing.T) {
	for seed := uint64(1); seed <= 50; seed++ {
		a, _ := play(seed, nil, false)
		b, _ := play(seed, nil, true)
		if a.check.digest != b.check.digest || a.steps != b.steps || a.now != b.now {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}

// A world in which little happens proves little.
func TestSimulationGetsIntoEverySituation(t *testing.T) {
	var met [situations]int
	refused, lost := make(map[protocol.Code]int), make(map[protocol.Reason]int)
	for seed := uint64(1); seed <= 1200; seed++ {
		w, _ := play(seed, nil, false)
		for i, n := range w.check.met {
			met[i] += n
		}
		for code, n := range w.check.refused {
			refused[code] += n
		}
		for reason, n := range w.check.lost {
			lost[reason] += n
		}
	}
	for i, n := range met {
		if n < 10 {
			t.Errorf("situation %d: met %d times", i, n)
		}
	}
	for _, code := range []protocol.Code{
		protocol.Timeout, protocol.Deadlock, protocol.Unavailable, protocol.Denied, protocol.Limit, protocol.Canceled,
	} {
		if refused[code] < 10 {
			t.Errorf("%d acquires were refused with %s", refused[code], code)
		}
	}
	for _, reason := range []protocol.Reason{
		protocol.Expired, protocol.Deleted, protocol.Stolen, protocol.ByForce, protocol.MaxHold, protocol.Forgotten,
	} {
		if lost[reason] < 10 {
			t.Errorf("%d holds were lost, reason %s", lost[reason], reason)
		}
	}
	t.Log(met, refused, lost)
}

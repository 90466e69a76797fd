package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// A bench is one run of the benchmark.
type bench struct {
	plan     plan
	window   time.Duration
	rounds   int
	rtt      time.Duration // asked of the proxy
	smoke    bool
	programs programs
	progress io.Writer
}

// inSmoke is how many runs there are at one time where no figure counts: most of
// their time they wait for something to start.
const inSmoke = 8

// conduct runs everything, interleaved: what the machine is slower at for a while
// then hits all contenders of a round, and their ratio stays.
func (b *bench) conduct(ctx context.Context) *Results {
	res := &Results{
		Date:    time.Now().UTC().Truncate(time.Second),
		Machine: b.machine(ctx),
		Settings: Settings{
			WindowMS: ms(int64(b.window)), Rounds: b.rounds, RTTMS: ms(int64(b.rtt)), Smoke: b.smoke,
		},
	}
	for _, p := range b.plan {
		s := ScenarioResult{Scenario: p.Scenario}
		if b.smoke {
			s.Scenario = s.shrunk()
		}
		for _, c := range p.contenders {
			s.Contenders = append(s.Contenders, ContenderResult{Name: c.name, Role: c.role})
		}
		res.Scenarios = append(res.Scenarios, s)
	}
	count := &counter{out: b.progress, began: time.Now()}
	for _, p := range b.plan {
		for _, c := range p.contenders {
			count.all += b.roundsOf(p.Scenario, c)
		}
	}
	if b.smoke {
		b.everything(ctx, res.Scenarios, count)
	}
	for round := range b.rounds {
		for i, p := range b.plan {
			if !b.smoke {
				b.scenario(ctx, &res.Scenarios[i], p.contenders, round, count)
			}
		}
	}
	for i := range res.Scenarios {
		res.Scenarios[i].summarize()
	}
	if !b.smoke {
		res.Verdicts = judge(res.Scenarios)
	}
	return res
}

// manyJVMs is how many of them take tens of seconds to start and to get warm.
const manyJVMs = 8

// roundsOf is in how many rounds a contender takes part: in one where a run is long
// enough to be its own average, or takes longest to begin.
func (b *bench) roundsOf(s Scenario, c contender) int {
	if s.Kind == Held || s.Kind == Crash || c.language == inJava && s.Processes >= manyJVMs {
		return 1
	}
	return b.rounds
}

// scenario runs all contenders of one scenario in a round, one after the other.
func (b *bench) scenario(ctx context.Context, s *ScenarioResult, who []contender, round int, count *counter) {
	if s.Kind != Crash {
		for i, c := range who {
			if round < b.roundsOf(s.Scenario, c) {
				b.turn(ctx, s, i, c, round+1, count)
			}
		}
		return
	}
	if round > 0 {
		return
	}
	// The peers do nothing for the length of a lease, which they may do together.
	var waiting sync.WaitGroup
	for i, c := range who {
		if c.role == Ours {
			b.turn(ctx, s, i, c, 1, count)
		}
	}
	for i, c := range who {
		if c.role != Ours {
			waiting.Go(func() { b.turn(ctx, s, i, c, 1, count) })
		}
	}
	waiting.Wait()
}

// everything runs all scenarios at one time: those that take longest, because they
// wait for leases to end, begin first.
func (b *bench) everything(ctx context.Context, scenarios []ScenarioResult, count *counter) {
	slots := make(chan struct{}, inSmoke)
	var all sync.WaitGroup
	for i, p := range slices.Backward(b.plan) {
		for j, c := range p.contenders {
			slots <- struct{}{}
			all.Go(func() {
				b.turn(ctx, &scenarios[i], j, c, 1, count)
				<-slots
			})
		}
	}
	all.Wait()
}

// turn is one run of one contender, the i-th of the scenario.
func (b *bench) turn(ctx context.Context, s *ScenarioResult, i int, c contender, round int, count *counter) {
	if ctx.Err() != nil {
		return
	}
	runs := b.run(ctx, s.Scenario, c, round)
	if ctx.Err() != nil {
		return // what ended the processes is not their fault
	}
	s.Contenders[i].Runs = append(s.Contenders[i].Runs, runs...)
	count.line(s.Scenario, c, runs)
}

// summarize fills in what the runs have in common.
func (s *ScenarioResult) summarize() {
	var rtts []float64
	for i := range s.Contenders {
		c := &s.Contenders[i]
		c.summarize()
		for _, r := range c.Runs {
			if r.Error == "" {
				rtts = append(rtts, r.RTTMS)
			}
		}
	}
	if len(rtts) > 0 {
		s.RTTMS = median(rtts)
	}
}

// A counter writes a line for each run that is over.
type counter struct {
	mu    sync.Mutex // guards done and the writing
	out   io.Writer
	began time.Time
	done  int
	all   int
}

func (c *counter) line(s Scenario, who contender, runs []Run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done++
	fmt.Fprintf(c.out, "%3d/%d %5.0fs  %-24s %-18s %s\n", c.done, c.all, time.Since(c.began).Seconds(), s.Name, who.name, headline(s.Kind, runs))
}

// headline is what one wants to see of a run while the others go on.
func headline(k Kind, runs []Run) string {
	r := runs[len(runs)-1]
	f := r.Figures
	if r.Error != "" {
		return "failed: " + r.Error
	}
	var text string
	switch k {
	case Held:
		text = fmt.Sprintf("%.0f locks, %.0f renewals/s, Redis %.1f ms/s, client %.1f ms/s", f[LocksHeld], f[RenewalsPerSecond], f[ServerCPUPerSecMS], f[ClientCPUPerSecMS])
	case Crash:
		text = fmt.Sprintf("%.3g ms until the next grant", f[CrashToGrantMS])
	case Contended:
		text = fmt.Sprintf("%.0f changes/s, %.0f pairs/s, longest wait %.3g ms", f[OwnerChangesPerSecond], f[PairsPerSecond], f[WaitMaxMS])
	case Permits:
		text = fmt.Sprintf("%.3f of the ideal, %.0f pairs/s, longest wait %.3g ms, %.2g times the mean", f[IdealShare], f[PairsPerSecond], f[WaitMaxMS], f[WaitMaxOfMean])
	default:
		text = fmt.Sprintf("%.0f pairs/s, p99 %.3g ms", f[PairsPerSecond], f[PairP99MS])
	}
	if f[Violations] > 0 {
		text += fmt.Sprintf("; MORE HAD IT THAN MAY, %.0f times", f[Violations])
	}
	if f[Errors] > 0 {
		text += fmt.Sprintf("; %.0f errors", f[Errors])
	}
	if r.Note != "" {
		text += " (" + r.Note + ")"
	}
	return text
}

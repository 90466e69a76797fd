package sim_test

// The scale study of a Cluster: these tests write tables of docs/scaling-tables.md. Time is virtual.

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

const masters = 30

// The masters have the same number of slots. With names as fleets have them, none has many more locks.
func TestScaleClusterDividesNames(t *testing.T) {
	const names = 100_000
	var rows []string
	for _, format := range []string{"order/%d", "invoice:%08d", "tenant-%d:import", "{tenant-%d}:import"} {
		var locks [masters]int
		most := 0
		for i := range names {
			n := &locks[int(redisop.SlotOf(fmt.Sprintf(format, i)))*masters/redisop.Slots]
			*n++
			most = max(most, *n)
		}
		share := float64(most) * masters / names
		t.Logf("%d names like %q: the busiest master has %.2f × the mean", names, fmt.Sprintf(format, 17), share)
		if share > 1.3 {
			t.Errorf("%q: the busiest master has %.2f × the mean, more than 1.3", format, share)
		}
		rows = append(rows, row("`"+fmt.Sprintf(format, 17)+"`", fmt.Sprintf("%.2f ×", share)))
	}
	writeTable(t, divideNames, "Each master has as many slots. At most 1.3 × is wanted.", row("names like", "the busiest master has of the mean"), rows)
}

// One host with a hundred thousand locks: the size at which TestMeasureClusterRenewals (tests/bench/measure)
// measures real masters.
func TestScaleClusterOfOneHost(t *testing.T) {
	held := 10_000
	if *scale {
		held = 100_000
	}
	f := sim.Hold(sim.FleetPlan{Seed: 1, Hosts: 1, Held: held, Masters: 3, Trip: near})
	for range 2 {
		f.Reset()
		f.RunFor(33*time.Second, nil)
	}
	l := f.ClusterLoad()
	t.Logf("%d locks: %v | runs/s=%.0f", held, l, l.Renewals/l.Keys)
	if l.Lost > 0 {
		t.Errorf("%d holds were lost", l.Lost)
	}
}

// The danger: a master that fails delays the locks of the others, because all hosts notice at one moment,
// or its locks are asserted too late. The hosts of a smaller fleet believe that there are 10,000, and their
// questions count as if it had so many.
//
// Shows docs/scaling.md: A Cluster of 30 masters.
func TestScaleCluster(t *testing.T) {
	const (
		trip     = 2 * time.Millisecond
		longest  = trip * 6 / 5 // of a round trip
		allHosts = 10_000
		victim   = 7
	)
	hosts, held := 100, 300
	if *scale {
		hosts = allHosts
		defer debug.SetGCPercent(debug.SetGCPercent(20))
		defer debug.SetMemoryLimit(debug.SetMemoryLimit(7 << 30))
	}
	begun := time.Now()
	note := func(what string, l sim.ClusterLoad) {
		t.Helper()
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		t.Logf("%s: %v (%.0f s, %.1f GB)", what, l, time.Since(begun).Seconds(), float64(memory.Sys-memory.HeapReleased)/1e9)
	}
	lost, leastLease := 0, 30*time.Second
	check := func(what string, l sim.ClusterLoad) {
		t.Helper()
		note(what, l)
		lost, leastLease = lost+l.Lost, min(leastLease, l.LeastLease)
		if l.PairLongest > longest+10*time.Millisecond {
			t.Errorf("%s: an acquire at a master without a fault took %v", what, l.PairLongest)
		}
		if l.Lost > 0 {
			t.Errorf("%s: %d holds were lost, %d of masters without a fault", what, l.Lost, l.LostOther)
		}
		if l.LeastLease < 18*time.Second { // it is due when 18.5 s to 20 s are left
			t.Errorf("%s: a renewal at a master without a fault was late: %v were left", what, l.LeastLease)
		}
		share := l.Questions
		if hosts < allHosts { // few questions are spread unevenly
			share = l.MeanQuestions * allHosts / float64(hosts)
		}
		if share > 0.01 {
			t.Errorf("%s: which master has which slot costs one %.2f %% of its core, more than 1 %%", what, 100*share)
		}
	}
	f := sim.Hold(sim.FleetPlan{Seed: 1, Hosts: hosts, Held: held, Masters: masters, Counted: allHosts, Pairs: time.Second, Trip: trip})
	note(fmt.Sprintf("%d hosts take %d locks each at once", hosts, held), f.ClusterLoad())
	f.RunPeriods(3)
	steady := f.ClusterLoad()
	check("renewed, 3rd time", steady)
	if steady.Busiest > 1.3*steady.Mean {
		t.Errorf("the busiest master needs %.2f × the mean", steady.Busiest/steady.Mean)
	}

	f.Reset()
	f.Lose(victim)
	f.RunFor(5*time.Second, nil)
	away := f.ClusterLoad()
	check("a master is away for 5 s", away)
	f.Reset()
	f.TakeOver(victim)
	f.RunFor(10*time.Second, nil)
	l := f.ClusterLoad()
	replaced := l
	check("its replica has taken over", l)
	if l.Asserted < l.Affected {
		t.Errorf("%d of %d locks were asserted within 10 s", l.Asserted, l.Affected)
	}
	if l.Informed < hosts || l.InformedAfter > 2*time.Second {
		t.Errorf("the last host learned of the new master after %v", l.InformedAfter)
	}

	f.RunPeriods(1)
	f.Reset()
	f.Move(3, 4, 55)
	f.RunFor(12*time.Second, nil)
	l = f.ClusterLoad()
	check("55 slots move", l)
	if l.DisturbedLongest > 2*longest+10*time.Millisecond {
		t.Errorf("an acquire in a slot that moved took %v", l.DisturbedLongest)
	}
	if l.Asserted < l.Affected {
		t.Errorf("%d of %d locks of the slots that moved were asserted in a period of renewal", l.Asserted, l.Affected)
	}
	ms := func(d time.Duration) string { return fmt.Sprintf("%.3g ms", d.Seconds()*1e3) }
	s := func(d time.Duration, digits int) string { return fmt.Sprintf("%.*f s", digits, d.Seconds()) }
	questions := func(l sim.ClusterLoad) string { return fmt.Sprintf("%.2f %%", 100*l.Questions) }
	pair := ms(longest + 10*time.Millisecond)
	writeTable(t, cluster, fmt.Sprintf("%s hosts hold %d locks each, and take and release a quiet lock once a second; round trip 2 ms, a core for each master.", whole(hosts), held),
		row("", "at most; of a lease at least", "found"), []string{
			row("renewals a second", "", about(steady.Renewals)),
			row("core of a master: mean; busiest", "", fmt.Sprintf("%.1f %%; %.1f %%", 100*steady.Mean, 100*steady.Busiest)),
			row("**a master is away for 5 s**: longest acquire at the others", pair, ms(away.PairLongest)),
			row("in the next 10 s, while all hosts connect to its replica: longest acquire at the others", pair, ms(replaced.PairLongest)),
			row("the last host knows of the replica", s(2*time.Second, 2), s(replaced.InformedAfter, 2)),
			row("held locks that are asserted at the replica; the last one", s(10*time.Second, 1), whole(replaced.Asserted)+"; "+s(replaced.AssertedAfter, 1)),
			row("core for questions: while the master is away; in the next 10 s; else", "1 %", questions(away)+"; "+questions(replaced)+"; "+questions(steady)),
			row("core of the replica for connections; longest that a batch is in it", "", fmt.Sprintf("%.1f s; %s", replaced.Connects*replaced.Span, s(replaced.LongestAt, 2))),
			row("**55 slots move at once**: longest acquire there", ms(2*longest+10*time.Millisecond), ms(l.DisturbedLongest)),
			row("held locks that are asserted at the other master; the last one", "", whole(l.Asserted)+"; "+s(l.AssertedAfter, 1)),
			row("least that was left of a lease of 30 s at a renewal by an undisturbed master", s(18*time.Second, 1), s(leastLease, 1)),
			row("holds lost", "0", whole(lost)),
		})
	if !*scale {
		f.RunFor(64*time.Second, f.IsInformed)
		check("after a minute", f.ClusterLoad())
		if !f.IsInformed() {
			t.Errorf("%d of %d hosts know of the slots that moved", f.ClusterLoad().Informed, hosts)
		}
	}
}

// Hosts that know how few they are ask more often, and learn of a new master sooner.
//
// Shows docs/topologies.md: Which master has which slot.
func TestScaleSmallClusterLearnsSoon(t *testing.T) {
	for _, tt := range []struct {
		hosts, masters int
		within         time.Duration
	}{
		{1, 3, 300 * time.Millisecond},
		{100, 3, 350 * time.Millisecond},
		{100, 30, 300 * time.Millisecond},
		{1000, 30, 300 * time.Millisecond},
		{1000, 3, 2 * time.Second},
	} {
		f := sim.Hold(sim.FleetPlan{Seed: 1, Hosts: tt.hosts, Held: 30, Masters: tt.masters, Trip: 2 * time.Millisecond})
		f.RunPeriods(1)
		f.Reset()
		f.Lose(1)
		f.RunFor(5*time.Second, nil)
		f.TakeOver(1)
		f.RunFor(5*time.Second, nil)
		l := f.ClusterLoad()
		t.Logf("%d hosts, %d masters: %v", tt.hosts, tt.masters, l)
		if l.Informed < tt.hosts || l.InformedAfter > tt.within {
			t.Errorf("%d hosts, %d masters: %d hosts learned of the new master, the last after %v, want %v", tt.hosts, tt.masters, l.Informed, l.InformedAfter, tt.within)
		}
		if l.MeanQuestions > 0.01 {
			t.Errorf("%d hosts, %d masters: the questions cost a master %.2f %% of its core", tt.hosts, tt.masters, 100*l.MeanQuestions)
		}
	}
}

package sim_test

// The scale study: what becomes of Redis, and of clients that wait, when there are very
// many hosts. These tests write the tables of docs/scaling-tables.md, from which docs/scaling.md concludes:
//
//	go test ./internal/sim -run TestScale -v -scale -update
//
// Time is virtual: the bounds do not depend on the machine.

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim"
)

var scale = flag.Bool("scale", false, "with -run TestScale: 1,000 hosts and more, and what docs/scaling.md and its tables have; takes minutes")

const (
	near = 200 * time.Microsecond // a round trip within a data center
	far  = 20 * time.Millisecond
)

// checkOrder checks that hosts got the lock in the order in which they asked for it, but for
// the moments in which it was left free.
func checkOrder(t *testing.T, c sim.Contention) {
	t.Helper()
	if most := c.Plan.Hosts + 10; c.PassedOver > most {
		t.Errorf("%v: %d turns of others while a host stood in the queue, more than %d", c, c.PassedOver, most)
	}
	if c.Never > 0 {
		t.Errorf("%v: %d hosts never got the lock", c, c.Never)
	}
}

// Shows docs/scaling.md: One lock that 1,000 hosts want.
func TestScaleOneLock(t *testing.T) {
	hosts, turns := 50, 4
	trips, works := []time.Duration{near, far}, []time.Duration{0, 10 * time.Millisecond}
	if *scale {
		hosts, turns = 1000, 10
		trips = []time.Duration{near, 2 * time.Millisecond, far}
		works = []time.Duration{0, time.Millisecond, 10 * time.Millisecond}
	}
	var rows []string
	for _, trip := range trips {
		for _, work := range works {
			for _, clients := range []int{1, 10} {
				p := sim.FleetPlan{Seed: 1, Hosts: hosts, Clients: clients, Trip: trip, Work: work}
				c := sim.Contend(p, turns).Contention()
				t.Log(c)
				checkOrder(t, c)
				// A drop and a take; the hold that is granted may have a later number than the
				// ticket, which Redis is told. Hosts that wait show that they live.
				if most := 3.1 + c.Refreshes; c.Scripts > most {
					t.Errorf("%v: %.1f scripts for each turn, more than %.1f", p, c.Scripts, most)
				}
				if most := 1.2; c.Messages > most {
					t.Errorf("%v: %.1f messages for each turn, more than %.1f", p, c.Messages, most)
				}
				if longest := p.LongestTurn(); 1/c.Turns > longest {
					t.Errorf("%v: one turn in %.4f s, more than %.4f", p, 1/c.Turns, longest)
				}
				if work == time.Millisecond {
					continue // between the others, and only printed
				}
				grants := whole(c.Most)
				if c.Least != c.Most {
					grants = whole(c.Least) + " to " + grants
				}
				rows = append(rows, row(millis(trip), millis(work), whole(clients), whole(c.Grants), whole(c.Turns), fmt.Sprintf("%.1f", c.Scripts),
					fmt.Sprintf("%.0f µs", c.Cost), fmt.Sprintf("%.1f %%", 100*c.Core), span(c.Median), span(c.Longest), grants))
			}
		}
	}
	writeTable(t, oneLock, fmt.Sprintf("%d turns for each of %s hosts, or ten minutes.", turns, whole(hosts)),
		row("round trip", "work", "clients a host", "grants/s", "turns/s", "scripts of a turn", "Redis of a turn", "Redis core", "median wait", "longest", "grants of a host"), rows)
}

// What a grant costs does not depend on how many hosts wait.
//
// Shows docs/scaling.md: A turn costs the same for any number of hosts.
func TestScaleGrantCostsTheSameForAnyNumberOfHosts(t *testing.T) {
	sizes := []int{2, 8, 40, 200}
	if *scale {
		sizes = append(sizes, 1000, 10000)
	}
	least, most := 1e9, 0.0
	for _, hosts := range sizes {
		c := sim.Contend(sim.FleetPlan{Seed: 1, Hosts: hosts, Clients: 1, Trip: near}, max(2, 1000/hosts)).Contention()
		t.Log(c)
		checkOrder(t, c)
		least, most = min(least, c.Turns), max(most, c.Turns)
		if c.Turns < 3000 || c.Cost > 60 {
			t.Errorf("%d hosts: %.0f grants a second to another host, %.0f µs of Redis each, want 3,000 and 60 µs", hosts, c.Turns, c.Cost)
		}
	}
	if least < 0.8*most {
		t.Errorf("from %.0f to %.0f grants a second, more than a fifth apart", least, most)
	}
}

// What a permit costs Redis does not depend on how many hosts wait. With as many permits as hosts it costs less: an
// operation often finds one that is free, and no message is sent.
//
// Shows docs/kinds.md: Permits.
func TestScalePermitCostsTheSameForAnyNumberOfHosts(t *testing.T) {
	sizes := []int{10, 40, 200}
	if *scale {
		sizes = append(sizes, 1000)
	}
	for _, p := range []sim.FleetPlan{
		{Of: 3, Clients: 1}, {Of: 3, Clients: 1, Work: time.Millisecond},
		{Of: 10, Clients: 10}, {Of: 10, Clients: 10, Work: time.Millisecond},
	} {
		few := 0.0 // what a grant costs if hosts wait, and few do
		for _, hosts := range sizes {
			p.Seed, p.Hosts, p.Trip = 1, hosts, near
			c := sim.Contend(p, max(4, 1000/hosts)).Contention()
			t.Logf("%d permits: %v", p.Of, c)
			if few == 0 && hosts > p.Of {
				few = c.Cost
			}
			if hosts > p.Of && c.Cost > 1.2*few {
				t.Errorf("%d hosts: a grant costs %.0f µs of Redis, with few hosts %.0f", hosts, c.Cost, few)
			}
			if most := 2.1 + c.Refreshes; c.Scripts > most || c.Messages > 1.2 {
				t.Errorf("%d hosts: %.1f scripts and %.1f messages for a grant, more than %.1f and 1.2", hosts, c.Scripts, c.Messages, most)
			}
			if c.Never > 0 || c.Most > c.Least+c.Least/2+2 {
				t.Errorf("%d hosts: %d to %d grants of a host, %d hosts never got a permit", hosts, c.Least, c.Most, c.Never)
			}
		}
	}
}

// Hosts that are 200 times as far from Redis as others get the lock in the same order, however
// long the lock is held, and however soon the hosts that had it want it again: also if it is
// left free after each turn.
//
// Shows docs/scaling.md: Also at different distances.
func TestScaleEveryHostGetsTheLock(t *testing.T) {
	turns := 30
	if *scale {
		turns = 100
	}
	thinks := []time.Duration{0, 100 * time.Microsecond, 5 * time.Millisecond, 15 * time.Millisecond}
	for _, hosts := range []int{2, 3, 8, 40} {
		for _, work := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 60 * time.Millisecond, 200 * time.Millisecond} {
			for _, think := range thinks {
				p := sim.FleetPlan{Seed: 1, Hosts: hosts, Clients: 1, Trip: 100 * time.Microsecond, FarTrip: far, Work: work, Think: think}
				c := sim.Contend(p, turns).Contention()
				if think == thinks[0] || !*scale {
					t.Log(c)
				}
				checkOrder(t, c)
				if work >= 60*time.Millisecond && c.Most > c.Least+2 {
					t.Errorf("%v: %d to %d grants of a host", c, c.Least, c.Most)
				}
			}
		}
	}
}

// Without a queue a host that is near gets the lock each time.
//
// Shows docs/scaling.md: Also at different distances.
func TestScaleHostsGetNoTurnWithoutQueue(t *testing.T) {
	p := sim.FleetPlan{Seed: 1, Hosts: 40, Clients: 1, Trip: 100 * time.Microsecond, FarTrip: far, Work: 60 * time.Millisecond, DenyQueues: true}
	c := sim.Contend(p, 30).Contention()
	t.Log(c)
	if c.Never == 0 {
		t.Error("every host gets the lock: TestScaleEveryHostGetsTheLock cannot fail")
	}
}

func TestScaleTheSameSeedGivesTheSameCounts(t *testing.T) {
	p := sim.FleetPlan{Seed: 7, Hosts: 30, Clients: 2, Trip: 2 * time.Millisecond, FarTrip: 3 * time.Millisecond, Work: time.Millisecond}
	if a, b := sim.Contend(p, 5).Contention(), sim.Contend(p, 5).Contention(); a != b {
		t.Errorf("the same seed gives\n%v and\n%v", a, b)
	}
}

func TestScaleHeldLocks(t *testing.T) {
	hosts, held := 20, 100
	if *scale {
		hosts, held = 1000, 1000
	}
	f := sim.Hold(sim.FleetPlan{Seed: 1, Hosts: hosts, Held: held, Trip: 2 * time.Millisecond})
	var rows []string
	note := func(what string, h sim.Holding, isBurst bool) {
		t.Logf("%s: %v", what, h)
		inScript, mean, most10, most100 := "", "", about(h.Peak10), about(h.Peak100)
		if h.Keys > 0 {
			inScript = fmt.Sprintf("%.0f", h.Keys)
		}
		if !isBurst {
			mean = fmt.Sprintf("%.2g", h.Unevenness)
		}
		if len(rows) == 0 {
			most10, most100 = "", "" // as many as Redis can execute
		}
		rows = append(rows, row(what, fmt.Sprintf("%.1f s", h.Span), about(h.Ops), about(h.Scripts), inScript, fmt.Sprintf("%.2g", h.Bytes/1e6), percent(h.Core), most10, most100, mean, whole(h.Lost)))
	}
	note("all taken at once, each in a script", f.Holding(), true)
	note("their 1st renewal", f.RunPeriods(1), false)
	f.RunPeriods(4)
	note("the 6th, a minute later", f.RunPeriods(1), false)
	for _, lost := range []bool{false, true} {
		f.Reset()
		f.Outage(10*time.Second, lost)
		f.RunFor(10*time.Second, nil)
		f.Reset()
		connected := f.Now() + sim.ReconnectDelay
		f.RunFor(100*time.Second, func() bool { return f.Now() > connected && f.IsIdle() })
		back := f.Holding()
		if what := "Redis away for 10 s, back with its data"; !lost {
			note(what, back, true)
		} else {
			note("the same, without its data", back, true)
		}
		if back.Lost > 0 && !*scale {
			t.Errorf("%d locks were lost by an outage of a third of their lease", back.Lost)
		}
		for range 3 {
			t.Log("after that:", f.RunPeriods(1))
		}
	}
	writeTable(t, heldLocks, fmt.Sprintf("%s hosts with %s locks each.", whole(hosts), whole(held)),
		row("", "for", "locks/s", "scripts/s", "locks in a script", "MB/s", "Redis core", "most in 10 ms", "most in 100 ms", "× the mean", "lost"), rows)
}

// Renewals of locks that were taken together drift apart, and stay apart.
//
// Shows docs/renewals.md: When.
// Shows docs/scaling.md: 1,000 locks held on each of 1,000 hosts.
func TestScaleRenewalsSpread(t *testing.T) {
	hosts, held, periods := 200, 100, 60
	if *scale {
		hosts, held, periods = 1000, 1000, 60
	}
	f := sim.Hold(sim.FleetPlan{Seed: 1, Hosts: hosts, Held: held, Trip: 2 * time.Millisecond})
	first, later, last := f.RunPeriods(2), f.RunPeriods(19), f.RunPeriods(periods-21)
	t.Logf("2nd period: %v", first)
	t.Logf("21st: %v", later)
	t.Logf("%dth: %v", periods, last)
	if !(later.Unevenness < first.Unevenness/2 && last.Unevenness < 1.2*later.Unevenness && last.Unevenness < 5) {
		t.Errorf("the busiest 100 ms of the 2nd period have %.1f times their share, of the 21st %.1f, of the %dth %.1f",
			first.Unevenness, later.Unevenness, periods, last.Unevenness)
	}
	times := func(h sim.Holding) string { return fmt.Sprintf("%.1f", h.Unevenness) }
	writeTable(t, spread, fmt.Sprintf("%s hosts with %s locks each. Most renewals in 100 ms, as a multiple of the mean.", whole(hosts), whole(held)),
		row("period of 11 s", "× the mean"), []string{row("2nd", times(first)), row("21st", times(later)), row(fmt.Sprintf("%dth", periods), times(last))})
}

// Shows docs/scaling.md: 1,000 waiting hosts connect again.
func TestScaleWaitersComeBack(t *testing.T) {
	hosts := 50
	if *scale {
		hosts = 1000
	}
	var rows []string
	for _, lost := range []bool{false, true} {
		f := sim.NewFleet(sim.FleetPlan{Seed: 1, Hosts: hosts, Clients: 1, Trip: 2 * time.Millisecond, Work: time.Millisecond})
		f.RunFor(2*time.Second, nil)
		f.Reset()
		f.RunFor(500*time.Millisecond, nil)
		before := f.Contention()
		t.Log("before:", before)
		turns, core := []string{"turns/s, Redis back with its data", whole(before.Turns)}, []string{"Redis core", percent(before.Core)}
		if lost {
			turns[0] = "turns/s, without its data"
		}
		f.Outage(10*time.Second, lost)
		f.RunFor(10*time.Second, nil)
		back := f.Now() + sim.ReconnectDelay // the host that has the lock may come back last
		for half := range 5 {
			f.Reset()
			since := f.Now()
			f.RunFor(500*time.Millisecond, nil)
			c := f.Contention()
			t.Logf("back, data lost %v: %v", lost, c)
			if half != 3 {
				turns, core = append(turns, whole(c.Turns)), append(core, percent(c.Core))
			}
			if since > back && c.Turns < 0.9*before.Turns {
				t.Errorf("%.0f turns a second, before the outage %.0f", c.Turns, before.Turns)
			}
		}
		rows = append(rows, row(turns...), row(core...))
	}
	writeTable(t, comeBack, fmt.Sprintf("%s hosts want one lock; round trip 2 ms, work 1 ms. Redis was away for 10 s. By half seconds.", whole(hosts)),
		row("", "before", "first", "second", "third", "fifth"), rows)
}

// Hosts that die at one time keep the lock from the others for one lease in all, and hosts
// whose connections end keep it for nothing beyond the lease of the holder.
//
// Shows docs/scaling.md: Hosts that die.
func TestScaleDeadHosts(t *testing.T) {
	hosts, dead := 50, 20
	if *scale {
		hosts, dead = 1000, 100
	}
	const lease = 30 * time.Second
	rows := []string{fmt.Sprintf("%d that wait, near the head of the queue", dead), fmt.Sprintf("the holder, and %d that wait", dead)}
	for _, silently := range []bool{false, true} {
		for _, holderDies := range []bool{false, true} {
			f := sim.NewFleet(sim.FleetPlan{Seed: 1, Hosts: hosts, Clients: 1, Trip: 2 * time.Millisecond, Work: time.Millisecond})
			f.RunFor(10*time.Second, nil)
			came := f.Came()
			f.RunFor(time.Second, func() bool { return f.Came() > came }) // to a host that does not know yet
			waiting := f.First(dead + 2)[2:]                              // the first may get the lock before Redis knows
			if holderDies {
				f.Kill(f.Holder(), silently)
			}
			for _, h := range waiting {
				f.Kill(h, silently)
			}
			f.RunFor(20*time.Millisecond, nil) // what was on its way
			f.Reset()
			died := f.Now()
			longest := time.Duration(0)
			for f.Now() < died+2*lease {
				before, since := f.Came(), f.Now()
				f.RunFor(2*lease, func() bool { return f.Came() > before })
				longest = max(longest, f.Now()-since)
			}
			t.Logf("%d of %d hosts die, holder %v, silently %v: at most %v without a turn; %v", dead, hosts, holderDies, silently, longest, f.Contention())
			which := 0
			if holderDies {
				which = 1
			}
			if longest < time.Second {
				rows[which] += fmt.Sprintf(" | %.0f ms", longest.Seconds()*1e3)
			} else {
				rows[which] += fmt.Sprintf(" | %.1f s", longest.Seconds())
			}
			// The first live host asks when the lease has ended, and 5 ms later for each one
			// before it.
			most := 20 * time.Millisecond
			least := time.Duration(0)
			if holderDies || silently {
				least = lease - 20*time.Millisecond
				most += lease + time.Duration(dead+2)*5*time.Millisecond
			}
			if longest < least || longest > most {
				t.Errorf("no host got the lock for %v, want %v to %v", longest, least, most)
			}
		}
	}
	writeTable(t, deadHosts, fmt.Sprintf("Of %s hosts that want one lock; round trip 2 ms, work 1 ms. For so long no other host gets it.", whole(hosts)),
		row("hosts that die", "connections end", "hosts lose their power or network"), []string{row(rows[0]), row(rows[1])})
}

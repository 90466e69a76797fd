package sim_test

// The scale study: what becomes of Redis, and of clients that wait, when there are very
// many hosts. docs/scaling.md quotes what these tests print:
//
//	go test ./internal/sim -run TestScale -v -scale

import (
	"flag"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/sim"
)

var scale = flag.Bool("scale", false, "with -run TestScale: 1,000 hosts, and every line of docs/scaling.md; takes some minutes")

func TestScaleOneLock(t *testing.T) {
	hosts, turns := 50, 2
	trips, works := []time.Duration{200 * time.Microsecond, 20 * time.Millisecond}, []time.Duration{0, 10 * time.Millisecond}
	if *scale {
		hosts, turns = 1000, 10
		trips = []time.Duration{200 * time.Microsecond, 2 * time.Millisecond, 20 * time.Millisecond}
		works = []time.Duration{0, time.Millisecond, 10 * time.Millisecond}
	}
	for _, trip := range trips {
		for _, work := range works {
			for _, clients := range []int{1, 10} {
				p := sim.FleetPlan{Seed: 1, Hosts: hosts, Clients: clients, Trip: trip, Work: work}
				c := sim.Contend(p, turns).Contention()
				t.Log(c)
				// One client of each host asks Redis, however many wait there; what a host
				// takes for its own queue comes on top.
				if most := float64(hosts)*1.1 + 64; c.PerChange > most {
					t.Errorf("%v: %.1f scripts for each time that Redis granted the lock, more than %.1f", p, c.PerChange, most)
				}
				longest := p.LongestGap()
				if clients > 1 {
					longest += 0.05 // the time of handoffs
				}
				if 1/c.Changes > longest {
					t.Errorf("%v: granted by Redis once in %.4f s; no host asks for %.4f s", p, 1/c.Changes, longest)
				}
			}
		}
	}
}

// missedPerHost is how many turns of others a host may miss, for each host.
const missedPerHost = 50

// Hosts that are 200 times as far from Redis as others, all of which want the lock again as
// soon as they have released it, get it as well: no host misses more than so many turns of
// all others. Redis writes to its subscribers in the same order every time.
func TestScaleEveryHostGetsTheLock(t *testing.T) {
	const turns = 100
	for _, hosts := range []int{2, 3, 8, 40} {
		for _, work := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond} {
			p := sim.FleetPlan{Seed: 1, Hosts: hosts, Clients: 1, Trip: 100 * time.Microsecond, FarTrip: 20 * time.Millisecond, Work: work}
			c := sim.Contend(p, turns).Contention()
			t.Log(c)
			if c.Missed > missedPerHost*hosts {
				t.Errorf("%d hosts, work %v: a host missed %d turns of others, more than %d for each", hosts, work, c.Missed, missedPerHost)
			}
			if most := 5 + work.Seconds()/0.0025; c.PerChange > min(most, float64(2*hosts)) {
				t.Errorf("%d hosts, work %v: %.1f scripts for each turn", hosts, work, c.PerChange)
			}
		}
	}
}

// Where Redis does not tell how many are subscribed, all of them ask at once; so would they
// if the table did not weight their retries.
func TestScaleHostsMissTurnsWithoutWeightedRetries(t *testing.T) {
	p := sim.FleetPlan{Seed: 1, Hosts: 40, Clients: 1, Trip: 100 * time.Microsecond, FarTrip: 20 * time.Millisecond, Work: 10 * time.Millisecond, HideListeners: true}
	c := sim.Contend(p, 100).Contention()
	t.Log(c)
	if c.Missed <= missedPerHost*40 {
		t.Errorf("no host misses more than %d turns of others: TestScaleEveryHostGetsTheLock cannot fail", c.Missed)
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
	t.Log("taken at once:", f.Holding())
	t.Log("renewed, 1st time:", f.RunPeriods(1))
	for range 5 {
		t.Log("renewed:", f.RunPeriods(1))
	}
	for _, lost := range []bool{false, true} {
		f.Reset()
		f.Outage(10*time.Second, lost)
		f.RunFor(10*time.Second, nil)
		f.Reset()
		connected := f.Now() + sim.ReconnectDelay
		f.RunFor(100*time.Second, func() bool { return f.Now() > connected && f.IsIdle() })
		back := f.Holding()
		t.Logf("back after 10 s, data lost %v: %v", lost, back)
		if back.Lost > 0 && !*scale {
			t.Errorf("%d locks were lost by an outage of a third of their lease", back.Lost)
		}
		for range 3 {
			t.Log("after that:", f.RunPeriods(1))
		}
	}
}

// Renewals of locks that were taken together drift apart, and stay apart.
func TestScaleRenewalsSpread(t *testing.T) {
	hosts, held, periods := 20, 100, 60
	if *scale {
		held, periods = 1000, 350
	}
	f := sim.Hold(sim.FleetPlan{Seed: 1, Hosts: hosts, Held: held, Trip: 2 * time.Millisecond})
	first, later, last := f.RunPeriods(2), f.RunPeriods(19), f.RunPeriods(periods-21)
	t.Logf("2nd period: %v", first)
	t.Logf("21st: %v", later)
	t.Logf("%dth: %v", periods, last)
	if !(later.Unevenness < first.Unevenness/2 && last.Unevenness < later.Unevenness && last.Unevenness < 5) {
		t.Errorf("the busiest 100 ms of the 2nd period have %.1f times their share, of the 21st %.1f, of the %dth %.1f",
			first.Unevenness, later.Unevenness, periods, last.Unevenness)
	}
}

func TestScaleWaitersComeBack(t *testing.T) {
	hosts := 50
	if *scale {
		hosts = 1000
	}
	f := sim.NewFleet(sim.FleetPlan{Seed: 1, Hosts: hosts, Clients: 1, Trip: 2 * time.Millisecond, Work: time.Millisecond})
	f.RunFor(2*time.Second, nil)
	f.Reset()
	f.Outage(10*time.Second, false)
	f.RunFor(10*time.Second, nil)
	back := f.Now() + sim.ReconnectDelay // the host that has the lock may come back last
	for range 5 {
		f.Reset()
		since := f.Now()
		f.RunFor(500*time.Millisecond, nil)
		t.Log("back:", f.Contention())
		if f.Taken() == 0 && since > back {
			t.Error("no host got the lock for half a second")
		}
	}
}

package sim

// What becomes of Redis, and of those who wait, when there are very many hosts:
// fleet.go has the hosts and their Redis. docs/scaling.md quotes what this prints:
//
//	go test ./internal/sim -run TestScale -v -scale

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

var scale = flag.Bool("scale", false, "with -run TestScale: 1,000 hosts, and every line of docs/scaling.md; takes some minutes")

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// contend plays a crowd that contends for one lock until it has gone from host to
// host so many times for each of them.
func contend(p crowdPlan, turns int) *crowd {
	w := newCrowd(p)
	w.until(600*sec, func() bool { return w.taken >= turns*p.hosts })
	return w
}

// contention is what was seen of one lock.
type contention struct {
	plan                  crowdPlan
	span                  float64 // s
	grants, changes       float64 // per second; changes: grants by Redis, the others are handoffs
	scripts, messages     float64 // per second
	perChange             float64 // scripts
	herd, largest         int     // takes in vain between two releases: median, largest
	core                  float64 // of Redis that is busy
	median, tail, longest float64 // wait, s; those that still wait, too
	least, most, never    int     // grants of a host; hosts without any
	passed                int     // turns of others in a row that a host let pass, at most
}

func (w *crowd) contention() contention {
	waits := slices.Clone(w.waits)
	c := contention{plan: w.plan, span: seconds(w.now - w.since), least: w.grants}
	for _, h := range w.hosts {
		for _, client := range h.clients {
			if client.askedAt != neverServed {
				waits = append(waits, w.now-max(client.askedAt, w.since))
			}
		}
		c.least, c.most = min(c.least, h.grants), max(c.most, h.grants)
		if h.grants == 0 {
			c.never++
		}
		c.passed = max(c.passed, h.passed, w.taken-h.last)
	}
	slices.Sort(waits)
	c.median, c.tail, c.longest = seconds(waits[len(waits)/2]), seconds(waits[len(waits)*99/100]), seconds(waits[len(waits)-1])
	herds := append(slices.Clone(w.herds), w.herd)
	slices.Sort(herds)
	c.herd, c.largest = herds[len(herds)/2], herds[len(herds)-1]
	c.grants, c.changes = float64(w.grants)/c.span, float64(w.taken)/c.span
	c.scripts, c.messages = float64(w.ran)/c.span, float64(w.messages)/c.span
	c.perChange = float64(w.ran) / float64(max(1, w.taken))
	c.core = seconds(w.served) / c.span
	return c
}

func (c contention) String() string {
	p := c.plan
	return fmt.Sprintf("hosts=%d×%d trip=%v to %v work=%v | grants/s=%.0f changes/s=%.0f | scripts/s=%.0f per change=%.1f messages/s=%.0f herd=%d, at most %d | core=%.0f%% | wait p50=%.2fs p99=%.1fs max=%.1fs | grants of a host %d to %d, none: %d hosts, passed over %d times | %.1fs",
		p.hosts, p.clients, time.Duration(p.trip), time.Duration(max(p.trip, p.far)), time.Duration(p.work),
		c.grants, c.changes, c.scripts, c.perChange, c.messages, c.herd, c.largest, 100*c.core,
		c.median, c.tail, c.longest, c.least, c.most, c.never, c.passed, c.span)
}

func TestScaleOneLock(t *testing.T) {
	hosts, turns := 50, 2
	trips, works := []int64{200 * µs, 20 * ms}, []int64{0, 10 * ms}
	if *scale {
		hosts, turns = 1000, 10
		trips, works = []int64{200 * µs, 2 * ms, 20 * ms}, []int64{0, ms, 10 * ms}
	}
	for _, trip := range trips {
		for _, work := range works {
			for _, clients := range []int{1, 10} {
				p := crowdPlan{seed: 1, hosts: hosts, clients: clients, trip: trip, work: work}
				c := contend(p, turns).contention()
				t.Log(c)
				// One asker per host, however many wait there; and what a host takes
				// for its own queue comes on top.
				if most := float64(hosts)*1.1 + 64; c.perChange > most {
					t.Errorf("%v: %.1f scripts for each time that Redis granted the lock, more than %.1f", p, c.perChange, most)
				}
				// A release, a message, a take: one trip, with its variance, and what
				// Redis needs for a herd and the one before. With handoffs, their time.
				longest := 2.5*seconds(trip) + 2*seconds(work) + float64(2*hosts)*seconds(costArrival+costOther+costListener) + 0.01
				if clients > 1 {
					longest += 0.05
				}
				if 1/c.changes > longest {
					t.Errorf("%v: granted by Redis once in %.4f s: nobody asks for %.4f s", p, 1/c.changes, longest)
				}
			}
		}
	}
}

// Hosts that are 200 times as far from Redis as others, all of which want the lock again
// as soon as they have given it back, are served as well: nobody is passed over for more
// than so many turns of everybody. Redis writes to its listeners in the same order every
// time.
func TestScaleEverybodyIsServed(t *testing.T) {
	const turns = 100
	for _, hosts := range []int{2, 3, 8, 40} {
		for _, work := range []int64{ms, 10 * ms, 100 * ms} {
			p := crowdPlan{seed: 1, hosts: hosts, clients: 1, trip: 100 * µs, far: 20 * ms, work: work}
			c := contend(p, turns).contention()
			t.Log(c)
			if c.passed > passedOver*hosts {
				t.Errorf("%d hosts, work %v: one let %d turns of others pass, more than %d for each", hosts, time.Duration(work), c.passed, passedOver)
			}
			if most := 5 + seconds(work)/0.0025; c.perChange > min(most, float64(2*hosts)) {
				t.Errorf("%d hosts, work %v: %.1f scripts for each turn", hosts, time.Duration(work), c.perChange)
			}
		}
	}
}

const passedOver = 50

// Where Redis does not say how many listen, all of them ask at once; so would they
// without turn.go.
func TestScaleEverybodyIsServedOnlyByDrawing(t *testing.T) {
	c := contend(crowdPlan{seed: 1, hosts: 40, clients: 1, trip: 100 * µs, far: 20 * ms, work: 10 * ms, blind: true}, 100).contention()
	t.Log(c)
	if c.passed <= passedOver*40 {
		t.Errorf("nobody lets more than %d turns of others pass: the rule has no teeth", c.passed)
	}
}

func TestScaleIsReplayed(t *testing.T) {
	p := crowdPlan{seed: 7, hosts: 30, clients: 2, trip: 2 * ms, far: 3 * ms, work: ms}
	if a, b := contend(p, 5).contention(), contend(p, 5).contention(); a != b {
		t.Errorf("the same seed gives\n%v and\n%v", a, b)
	}
}

// ---- locks that are held

// peak is the largest number in so many buckets in a row.
func peak(load []int, buckets int) (most int) {
	sum := 0
	for i, n := range load {
		if sum += n; i >= buckets {
			sum -= load[i-buckets]
		}
		most = max(most, sum)
	}
	return most
}

// period is about the time in which every lock is renewed once.
const period = 10*sec + 250*ms

// holding is what was seen of locks that are held.
type holding struct {
	span            float64
	asked, scripts  float64 // locks, scripts; per second
	keys            float64 // of a keep
	bytes, core     float64 // per second; of Redis
	peak10, peak100 int     // locks asked about in 10 ms, in 100 ms
	unevenness      float64 // peak100, as a multiple of the mean
	lost            int
}

func (w *crowd) holding() holding {
	h := holding{span: seconds(w.now - w.since), lost: w.lost, peak10: peak(w.load, 1), peak100: peak(w.load, 10)}
	for i := range w.load {
		h.asked += float64(w.load[i])
		h.scripts += float64(w.scripts[i])
	}
	h.unevenness = float64(h.peak100) / (h.asked / h.span / 10)
	h.asked /= h.span
	h.scripts /= h.span
	h.keys = float64(w.renewed) / float64(max(1, w.keeps))
	h.bytes, h.core = float64(w.bytes)/h.span, seconds(w.served)/h.span
	return h
}

func (h holding) String() string {
	return fmt.Sprintf("%.1fs: locks/s=%.0f scripts/s=%.0f keys per keep=%.1f MB/s=%.1f core=%.1f%% most in 10ms=%d in 100ms=%d (%.1f × mean) lost=%d",
		h.span, h.asked, h.scripts, h.keys, h.bytes/1e6, 100*h.core, h.peak10, h.peak100, h.unevenness, h.lost)
}

// holdAll has every host take its locks, all at the same time.
func holdAll(p crowdPlan) *crowd {
	w := newCrowd(p)
	w.until(600*sec, func() bool { return w.grants == p.hosts*p.held })
	return w
}

// periods plays so many, and tells of the last.
func (w *crowd) periods(n int) holding {
	for range n {
		w.reset()
		w.until(w.now+period, nil)
	}
	return w.holding()
}

// asks tells whether anybody has something to ask, or cannot.
func (w *crowd) asks() bool {
	for _, h := range w.hosts {
		if !h.up || len(h.flight)+len(h.keeps)+len(h.others) > 0 {
			return true
		}
	}
	return false
}

func TestScaleHeldLocks(t *testing.T) {
	hosts, held := 20, 100
	if *scale {
		hosts, held = 1000, 1000
	}
	w := holdAll(crowdPlan{seed: 1, hosts: hosts, held: held, trip: 2 * ms})
	t.Log("taken at once:", w.holding())
	first := w.periods(1)
	t.Log("renewed, 1st time:", first)
	for range 5 {
		t.Log("renewed:", w.periods(1))
	}
	for _, lost := range []bool{false, true} {
		w.reset()
		w.outage(10*sec, lost)
		w.until(w.now+10*sec, nil)
		w.reset()
		w.until(w.now+100*sec, func() bool { return w.now > w.since+storeDelay && !w.asks() })
		back := w.holding()
		t.Logf("back after 10 s, data lost %v: %v", lost, back)
		if back.lost > 0 && !*scale {
			t.Errorf("%d locks were lost by an outage of a third of their lease", back.lost)
		}
		for range 3 {
			t.Log("after that:", w.periods(1))
		}
	}
}

// Renewals of locks that were taken together drift apart, and stay apart.
func TestScaleRenewalsSpread(t *testing.T) {
	hosts, held, periods := 20, 100, 60
	if *scale {
		held, periods = 1000, 350
	}
	w := holdAll(crowdPlan{seed: 1, hosts: hosts, held: held, trip: 2 * ms})
	first, later, last := w.periods(2), w.periods(19), w.periods(periods-21)
	t.Logf("2nd period: %v", first)
	t.Logf("21st: %v", later)
	t.Logf("%dth: %v", periods, last)
	if !(later.unevenness < first.unevenness/2 && last.unevenness < later.unevenness && last.unevenness < 5) {
		t.Errorf("the busiest 100 ms of the 2nd period have %.1f times their share, of the 21st %.1f, of the %dth %.1f",
			first.unevenness, later.unevenness, periods, last.unevenness)
	}
}

// ---- Redis comes back

func TestScaleWaitersComeBack(t *testing.T) {
	hosts := 50
	if *scale {
		hosts = 1000
	}
	p := crowdPlan{seed: 1, hosts: hosts, clients: 1, trip: 2 * ms, work: ms}
	w := newCrowd(p)
	w.until(2*sec, nil)
	w.reset()
	w.outage(10*sec, false)
	w.until(w.now+10*sec, nil)
	back := w.now + storeDelay // who has the lock may come back last
	for range 5 {
		w.reset()
		w.until(w.now+500*ms, nil)
		c := w.contention()
		t.Log("back:", c)
		if w.taken == 0 && w.since > back {
			t.Error("nobody got the lock for half a second")
		}
	}
}

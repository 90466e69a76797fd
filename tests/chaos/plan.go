package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/tests/history"
)

// A faultKind is a way to break something.
type faultKind string

const (
	daemonKill faultKind = "daemon kill -9"
	daemonTerm faultKind = "daemon SIGTERM"
	daemonStop faultKind = "daemon SIGSTOP"
	forced     faultKind = "force release"

	redisStop    faultKind = "redis SIGSTOP"
	redisRestart faultKind = "redis restart without data"
	redisFull    faultKind = "redis full"
	flushAll     faultKind = "FLUSHALL"
	deleteLock   faultKind = "DEL of a lock"
	scriptFlush  faultKind = "SCRIPT FLUSH"
	failover     faultKind = "failover to a lagging replica"

	linkDrop     faultKind = "connections dropped"
	linkRefuse   faultKind = "connections refused"
	linkStall    faultKind = "link stalled"
	linkHalfOpen faultKind = "connections half-open"

	workerKill faultKind = "worker kill -9"
	workerStop faultKind = "worker SIGSTOP"
)

// effects says what each fault may excuse. What is not here must be harmless.
var effects = map[faultKind][]history.Effect{
	daemonKill:   {history.Interrupts},
	daemonTerm:   {history.Interrupts},
	daemonStop:   {history.Interrupts},
	forced:       {history.Forces},
	redisStop:    {history.Interrupts},
	redisRestart: {history.Interrupts, history.LosesData},
	redisFull:    {history.Interrupts},
	flushAll:     {history.LosesData},
	deleteLock:   {history.LosesData},
	failover:     {history.Interrupts, history.LosesData},
	linkDrop:     {history.Interrupts},
	linkRefuse:   {history.Interrupts},
	linkStall:    {history.Interrupts},
	linkHalfOpen: {history.Interrupts},
}

// A lane is what can have one fault at a time: a daemon, the link of a host to
// Redis, Redis, the fleet of workers. Lanes know nothing of each other, so faults
// meet.
type lane struct {
	name   string
	host   int           // whose daemon or link it is
	every  time.Duration // mean pause between two of its faults
	always bool          // it has its faults in the calm too: they trouble nobody but their own
	faults []chance
}

// A chance is a kind of fault, how often it is drawn, and for how long it lasts.
type chance struct {
	kind   faultKind
	weight int
	last   []within // one of them is drawn; none: it has no length
}

type within struct{ from, to time.Duration }

// A fault is one entry of the plan.
type fault struct {
	at   time.Duration
	lane string
	host int
	kind faultKind
	last time.Duration
	pick uint64 // chooses among what there is when its time comes: a worker, a lock
}

func (f fault) String() string {
	return fmt.Sprintf("%8.3fs %-8s %-30s for %v", f.at.Seconds(), f.lane, f.kind, f.last)
}

// lanes returns what is broken how often. Most of what interrupts is short
// against the lease, and some of it is longer.
func lanes(hosts int, lease time.Duration) []lane {
	short := within{0, lease / 4}
	long := within{lease, lease + lease/2}
	mostlyShort := []within{short, short, short, short, short, long}
	all := []lane{
		{name: "redis", every: 4 * time.Second, faults: []chance{
			{redisStop, 3, mostlyShort}, {redisRestart, 2, mostlyShort}, {redisFull, 1, mostlyShort}, {flushAll, 2, nil},
			{deleteLock, 5, nil}, {scriptFlush, 2, nil}, {failover, 2, []within{short}},
		}},
		{name: "fleet", every: 1500 * time.Millisecond, always: true, faults: []chance{
			{workerKill, 3, nil}, {workerStop, 3, []within{short, short, long}},
		}},
	}
	for i := range hosts {
		all = append(all,
			lane{name: fmt.Sprintf("host%d", i), host: i, every: 4 * time.Second, faults: []chance{
				{daemonKill, 6, mostlyShort}, {daemonTerm, 3, mostlyShort}, {daemonStop, 2, mostlyShort}, {forced, 2, nil},
			}},
			lane{name: fmt.Sprintf("link%d", i), host: i, every: 4 * time.Second, faults: []chance{
				{linkDrop, 4, nil}, {linkRefuse, 2, mostlyShort}, {linkStall, 3, mostlyShort}, {linkHalfOpen, 2, nil},
			}})
	}
	return all
}

// A weather is how storms, in which all lanes have their faults, and calms
// follow each other.
type weather struct{ storm, calm time.Duration }

// draw makes the plan of a run. The same seed draws the same plan; what the
// faults meet when their time comes is the machine's to decide.
func draw(seed uint64, length time.Duration, all []lane, w weather) []fault {
	var plan []fault
	for i, l := range all {
		// Each lane has dice of its own: one more fault here changes nothing there.
		dice := rand.New(rand.NewPCG(seed, uint64(i)))
		sum := 0
		for _, c := range l.faults {
			sum += c.weight
		}
		for at := time.Duration(0); ; {
			at += time.Duration((0.3 + 1.4*dice.Float64()) * float64(l.every))
			if at >= length {
				break
			}
			n, c := dice.IntN(sum), 0
			for ; n >= l.faults[c].weight; c++ {
				n -= l.faults[c].weight
			}
			f := fault{at: at, lane: l.name, host: l.host, kind: l.faults[c].kind, pick: dice.Uint64()}
			if last := l.faults[c].last; len(last) > 0 {
				one := last[dice.IntN(len(last))]
				f.last = one.from + time.Duration(dice.Float64()*float64(one.to-one.from))
			}
			at += f.last
			if calm := at % (w.storm + w.calm); calm >= w.storm && !l.always {
				at += w.storm + w.calm - calm // the rest of the calm
				if f.at%(w.storm+w.calm) >= w.storm {
					continue
				}
			}
			plan = append(plan, f)
		}
	}
	slices.SortStableFunc(plan, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return plan
}

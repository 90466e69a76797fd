package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/tests/history"
)

// A faultKind is a kind of fault.
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
	exchange     faultKind = "roles exchanged"

	linkDrop     faultKind = "connections dropped"
	linkRefuse   faultKind = "connections refused"
	linkStall    faultKind = "link stalled"
	linkHalfOpen faultKind = "connections half-open"

	daemonBarrage faultKind = "daemons killed again and again"

	hostDeath faultKind = "host dies"

	workerKill faultKind = "worker kill -9"
	workerStop faultKind = "worker SIGSTOP"
)

// effects are the consequences that a fault may have. Other faults must have none.
var effects = map[faultKind][]history.Effect{
	daemonKill:    {history.Interrupts},
	daemonTerm:    {history.Interrupts},
	daemonBarrage: {history.Interrupts},
	daemonStop:    {history.Interrupts},
	hostDeath:     {history.Interrupts},
	forced:        {history.Forces},
	redisStop:     {history.Interrupts},
	redisRestart:  {history.Interrupts, history.LosesData},
	redisFull:     {history.Interrupts},
	flushAll:      {history.LosesData},
	deleteLock:    {history.LosesData},
	failover:      {history.Interrupts, history.LosesData},
	exchange:      {history.Interrupts}, // the replica has all data before it is promoted
	linkDrop:      {history.Interrupts},
	linkRefuse:    {history.Interrupts},
	linkStall:     {history.Interrupts},
	linkHalfOpen:  {history.Interrupts},
}

// A lane has one fault at a time: a daemon, the link of a host to Redis, Redis, or the fleet of
// workers. Lanes are independent, so faults of different lanes overlap.
type lane struct {
	name    string
	host    int           // whose daemon or link it is
	every   time.Duration // mean pause between two of its faults
	inCalms bool          // its faults also occur in calms, because they affect no other client
	faults  []faultChance
}

// A faultChance is a kind of fault with its weight and its duration.
type faultChance struct {
	kind      faultKind
	weight    int
	durations []durationRange // one of them is drawn; none: the fault has no duration
}

type durationRange struct{ from, to time.Duration }

// A fault is one entry of the plan.
type fault struct {
	at       time.Duration
	lane     string
	host     int
	kind     faultKind
	duration time.Duration
	pick     uint64 // chooses a worker or a lock when the fault is injected
}

func (f fault) String() string {
	return fmt.Sprintf("%8.3fs %-8s %-30s for %v", f.at.Seconds(), f.lane, f.kind, f.duration)
}

// lanes returns the lanes of a run. Most interruptions are short compared with the lease, and some
// are longer.
func lanes(hosts int, lease time.Duration) []lane {
	short := durationRange{0, lease / 4}
	long := durationRange{lease, lease + lease/2}
	mostlyShort := []durationRange{short, short, short, short, short, long}
	all := []lane{
		{name: "redis", every: 4 * time.Second, faults: []faultChance{
			{redisStop, 3, mostlyShort}, {redisRestart, 2, mostlyShort}, {redisFull, 1, mostlyShort}, {flushAll, 2, nil},
			{deleteLock, 5, nil}, {scriptFlush, 2, nil}, {failover, 2, []durationRange{short}}, {exchange, 2, nil},
		}},
		{name: "fleet", every: 1500 * time.Millisecond, inCalms: true, faults: []faultChance{
			{workerKill, 3, nil}, {workerStop, 3, []durationRange{short, short, long}},
		}},
	}
	for i := range hosts {
		all = append(all,
			lane{name: fmt.Sprintf("host%d", i), host: i, every: 4 * time.Second, faults: []faultChance{
				{daemonKill, 6, mostlyShort}, {daemonTerm, 3, mostlyShort}, {daemonStop, 2, mostlyShort}, {forced, 2, nil},
			}},
			lane{name: fmt.Sprintf("link%d", i), host: i, every: 4 * time.Second, faults: []faultChance{
				{linkDrop, 4, nil}, {linkRefuse, 2, mostlyShort}, {linkStall, 3, mostlyShort}, {linkHalfOpen, 2, nil},
			}})
	}
	return all
}

// A schedule has the durations of storms, in which all lanes have faults, and of the calms between
// them.
type schedule struct{ storm, calm time.Duration }

// exchangeLanes returns the lanes of a run in which the roles of master and replica are exchanged
// again and again. No other fault loses data, so no overlap of two holders is excused.
func exchangeLanes(hosts int, lease, every time.Duration) []lane {
	short := []durationRange{{0, lease / 4}}
	all := []lane{
		{name: "redis", every: every, faults: []faultChance{{exchange, 1, nil}}},
		{name: "fleet", every: 3 * time.Second, inCalms: true, faults: []faultChance{{workerKill, 3, nil}, {workerStop, 3, short}}},
	}
	for i := range hosts {
		all = append(all,
			lane{name: fmt.Sprintf("host%d", i), host: i, every: 8 * time.Second, faults: []faultChance{{daemonKill, 3, short}, {daemonTerm, 2, short}, {daemonStop, 2, short}}},
			lane{name: fmt.Sprintf("link%d", i), host: i, every: 8 * time.Second, faults: []faultChance{{linkDrop, 4, nil}, {linkStall, 3, short}}})
	}
	return all
}

// drawPlan draws the plan of a run, which depends only on the arguments.
func drawPlan(seed uint64, length time.Duration, all []lane, w schedule) []fault {
	var plan []fault
	for i, l := range all {
		// Each lane has its own generator, so that one more fault in a lane does not change
		// the others.
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
			if last := l.faults[c].durations; len(last) > 0 {
				one := last[dice.IntN(len(last))]
				f.duration = one.from + time.Duration(dice.Float64()*float64(one.to-one.from))
			}
			at += f.duration
			if calm := at % (w.storm + w.calm); calm >= w.storm && !l.inCalms {
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

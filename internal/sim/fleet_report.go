package sim

import (
	"fmt"
	"slices"
	"time"
)

// Now is how long the fleet has run.
func (f *Fleet) Now() time.Duration { return time.Duration(f.now) }

// Came is how often the lock has come to a host since the last Reset.
func (f *Fleet) Came() int { return f.came }

// Granted is how many acquires were answered with a lock since the last Reset.
func (f *Fleet) Granted() int { return f.grants }

// IsIdle reports whether all hosts are connected, and none has anything in flight or to
// send.
func (f *Fleet) IsIdle() bool {
	for _, h := range f.hosts {
		if h.dead {
			continue
		}
		for shard := range h.conns {
			c := &h.conns[shard]
			if f.isWanted(h, c.shard) && !c.up || len(c.inFlight)+c.waiting.Len() > 0 {
				return false
			}
		}
	}
	return true
}

// Contend runs a fleet that contends for one lock, until it has come to a host so many times
// for each of them. It counts from when it has come once for each.
func Contend(p FleetPlan, turns int) *Fleet {
	f := NewFleet(p)
	f.RunFor(10*time.Minute, func() bool { return f.came >= p.Hosts })
	f.Reset()
	f.RunFor(10*time.Minute, func() bool { return f.came >= turns*p.Hosts })
	return f
}

// Holder is the host that has the lock in Redis, or -1.
func (f *Fleet) Holder() int {
	l := &f.locks[0]
	l.key.Expire(f.now)
	return int(l.key.Owner)
}

// First returns the hosts of the first tickets in the queue.
func (f *Fleet) First(n int) (hosts []int) {
	tickets := f.locks[0].queue.Tickets
	for i := range tickets[:min(n, len(tickets))] {
		hosts = append(hosts, int(tickets[i].Owner))
	}
	return hosts
}

// Contention is what was counted of one lock since the last Reset. Hosts that died do not
// count.
type Contention struct {
	Plan                  FleetPlan
	Span                  float64 // s
	Grants, Turns         float64 // per second; a turn begins when the lock comes to a host, the other grants are handoffs
	Scripts, Messages     float64 // of a turn
	Refreshes             float64 // of a turn: takes of hosts that wait already, which did not get the lock
	Cost                  float64 // of a turn: time of Redis, µs
	Core                  float64 // of Redis that is busy
	Median, Tail, Longest float64 // wait, s: of half of the clients, of 99 of 100, of all; including those that still wait
	Least, Most, Never    int     // grants of a host; hosts without any
	PassedOver            int     // turns of others while a host stood in the queue, at most
}

// Contention returns what was counted.
func (f *Fleet) Contention() Contention {
	waits := slices.Clone(f.waits)
	c := Contention{Plan: f.plan, Span: seconds(f.now - f.since), Least: f.grants}
	for _, h := range f.hosts {
		if h.dead {
			continue
		}
		for _, client := range h.clients {
			if client.askedAt != never {
				waits = append(waits, f.now-max(client.askedAt, f.since))
			}
		}
		c.Least, c.Most = min(c.Least, h.grants), max(c.Most, h.grants)
		if h.grants == 0 {
			c.Never++
		}
		c.PassedOver = max(c.PassedOver, h.passedOver)
		if h.stands {
			c.PassedOver = max(c.PassedOver, f.came-h.standsAt)
		}
	}
	slices.Sort(waits)
	c.Median, c.Tail, c.Longest = seconds(waits[len(waits)/2]), seconds(waits[len(waits)*99/100]), seconds(waits[len(waits)-1])
	turns := float64(max(1, f.came))
	c.Grants, c.Turns = float64(f.grants)/c.Span, float64(f.came)/c.Span
	c.Scripts, c.Messages, c.Refreshes = float64(f.ran)/turns, float64(f.messages)/turns, float64(f.asked)/turns
	c.Cost = float64(f.served) / turns / 1e3
	c.Core = seconds(f.served) / c.Span
	return c
}

func (c Contention) String() string {
	p := c.Plan
	return fmt.Sprintf("hosts=%d×%d trip=%v to %v work=%v | grants/s=%.0f turns/s=%.0f | of a turn: scripts=%.2f messages=%.2f refreshes=%.2f Redis=%.0fµs | core=%.1f%% | wait p50=%.4fs p99=%.3fs max=%.3fs | grants of a host %d to %d, none: %d hosts, passed over %d | %.2fs",
		p.Hosts, p.Clients, p.Trip, max(p.Trip, p.FarTrip), p.Work,
		c.Grants, c.Turns, c.Scripts, c.Messages, c.Refreshes, c.Cost, 100*c.Core,
		c.Median, c.Tail, c.Longest, c.Least, c.Most, c.Never, c.PassedOver, c.Span)
}

// LongestTurn is how long it may take on average from one turn to the next one, s: the ways
// of a transfer and of the drop before it, each up to a fifth longer than the shortest; a
// turn of several grants; what Redis needs; and once in 100 ms a moment in which the lock is
// left free.
func (p FleetPlan) LongestTurn() float64 {
	trip := 1.2 * p.Trip.Seconds()
	grant := 2*seconds(localHop) + p.Work.Seconds()
	turn := trip + min(max(4*trip, 0.0003), 0.02) + grant + 0.00015
	return turn * (1 + (0.01+2*trip)/max(0.1, turn))
}

// RenewalPeriod is about the time in which every lock is renewed once.
const RenewalPeriod = 11 * time.Second

// Holding is what was counted of locks that are held since the last Reset.
type Holding struct {
	Span            float64 // s
	Ops, Scripts    float64 // per second
	Keys            float64 // of a script of renewals
	Bytes, Core     float64 // per second; of Redis
	Peak10, Peak100 int     // operations in 10 ms, in 100 ms, at most
	Unevenness      float64 // Peak100, as a multiple of the mean
	Lost            int
}

// Holding returns what was counted.
func (f *Fleet) Holding() Holding {
	h := Holding{Span: seconds(f.now - f.since), Lost: f.lost, Peak10: peak(f.load, 1), Peak100: peak(f.load, 10)}
	for i := range f.load {
		h.Ops += float64(f.load[i])
		h.Scripts += float64(f.scripts[i])
	}
	h.Unevenness = float64(h.Peak100) / (h.Ops / h.Span / 10)
	h.Ops /= h.Span
	h.Scripts /= h.Span
	h.Keys = float64(f.renewed) / float64(max(1, f.renewalScripts))
	h.Bytes, h.Core = float64(f.bytes)/h.Span, seconds(f.served)/h.Span
	return h
}

func (h Holding) String() string {
	return fmt.Sprintf("%.1fs: locks/s=%.0f scripts/s=%.0f keys per renewal script=%.1f MB/s=%.1f core=%.1f%% most in 10ms=%d in 100ms=%d (%.1f × mean) lost=%d",
		h.Span, h.Ops, h.Scripts, h.Keys, h.Bytes/1e6, 100*h.Core, h.Peak10, h.Peak100, h.Unevenness, h.Lost)
}

// Hold runs a fleet until every host has taken its locks, all at the same time.
func Hold(p FleetPlan) *Fleet {
	f := NewFleet(p)
	f.RunFor(10*time.Minute, func() bool { return f.grants == p.Hosts*p.Held })
	return f
}

// RunPeriods runs so many periods of renewal, and returns what was counted in the last one.
func (f *Fleet) RunPeriods(n int) Holding {
	for range n {
		f.Reset()
		f.RunFor(RenewalPeriod, nil)
	}
	return f.Holding()
}

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

// peak returns the largest sum of so many buckets in a row.
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

// ReconnectDelay is the longest pause between two attempts of a host to connect.
const ReconnectDelay = time.Duration(storeDelay)

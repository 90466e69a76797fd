package sim

import (
	"fmt"
	"slices"
	"time"
)

// Now is how long the fleet has run.
func (f *Fleet) Now() time.Duration { return time.Duration(f.now) }

// Taken is how often Redis has granted a free lock since the last Reset.
func (f *Fleet) Taken() int { return f.taken }

// Granted is how many acquires were answered with a lock since the last Reset.
func (f *Fleet) Granted() int { return f.grants }

// IsIdle reports whether all hosts are connected, and none has anything in flight or to
// send.
func (f *Fleet) IsIdle() bool {
	for _, h := range f.hosts {
		if !h.up || len(h.inFlight)+len(h.renewals)+len(h.others) > 0 {
			return false
		}
	}
	return true
}

// Contend runs a fleet that contends for one lock, until it has passed from host to host so
// many times for each of them.
func Contend(p FleetPlan, turns int) *Fleet {
	f := NewFleet(p)
	f.RunFor(10*time.Minute, func() bool { return f.taken >= turns*p.Hosts })
	return f
}

// Contention is what was counted of one lock since the last Reset.
type Contention struct {
	Plan                  FleetPlan
	Span                  float64 // s
	Grants, Changes       float64 // per second; changes: grants by Redis, the others are handoffs
	Scripts, Messages     float64 // per second
	PerChange             float64 // scripts
	Retries, MostRetries  int     // failed takes between two releases: median, most
	Core                  float64 // of Redis that is busy
	Median, Tail, Longest float64 // wait, s: of half of the clients, of 99 of 100, of all; including those that still wait
	Least, Most, Never    int     // grants of a host; hosts without any
	Missed                int     // turns of others in a row that a host missed, at most
}

// Contention returns what was counted.
func (f *Fleet) Contention() Contention {
	waits := slices.Clone(f.waits)
	c := Contention{Plan: f.plan, Span: seconds(f.now - f.since), Least: f.grants}
	for _, h := range f.hosts {
		for _, client := range h.clients {
			if client.askedAt != never {
				waits = append(waits, f.now-max(client.askedAt, f.since))
			}
		}
		c.Least, c.Most = min(c.Least, h.grants), max(c.Most, h.grants)
		if h.grants == 0 {
			c.Never++
		}
		c.Missed = max(c.Missed, h.missed, f.taken-h.last)
	}
	slices.Sort(waits)
	c.Median, c.Tail, c.Longest = seconds(waits[len(waits)/2]), seconds(waits[len(waits)*99/100]), seconds(waits[len(waits)-1])
	retries := append(slices.Clone(f.retries), f.retry)
	slices.Sort(retries)
	c.Retries, c.MostRetries = retries[len(retries)/2], retries[len(retries)-1]
	c.Grants, c.Changes = float64(f.grants)/c.Span, float64(f.taken)/c.Span
	c.Scripts, c.Messages = float64(f.ran)/c.Span, float64(f.messages)/c.Span
	c.PerChange = float64(f.ran) / float64(max(1, f.taken))
	c.Core = seconds(f.served) / c.Span
	return c
}

func (c Contention) String() string {
	p := c.Plan
	return fmt.Sprintf("hosts=%d×%d trip=%v to %v work=%v | grants/s=%.0f changes/s=%.0f | scripts/s=%.0f per change=%.1f messages/s=%.0f retries=%d, at most %d | core=%.0f%% | wait p50=%.2fs p99=%.1fs max=%.1fs | grants of a host %d to %d, none: %d hosts, missed turns %d | %.1fs",
		p.Hosts, p.Clients, p.Trip, max(p.Trip, p.FarTrip), p.Work,
		c.Grants, c.Changes, c.Scripts, c.PerChange, c.Messages, c.Retries, c.MostRetries, 100*c.Core,
		c.Median, c.Tail, c.Longest, c.Least, c.Most, c.Never, c.Missed, c.Span)
}

// LongestGap is how long it may take from one grant by Redis to the next one, s: a release,
// a message and a take, with the variance of their ways, and what Redis needs for the failed
// takes of all hosts, twice.
func (p FleetPlan) LongestGap() float64 {
	return 2.5*p.Trip.Seconds() + 2*p.Work.Seconds() + float64(2*p.Hosts)*seconds(costArrival+costOther+costListener) + 0.01
}

// RenewalPeriod is about the time in which every lock is renewed once.
const RenewalPeriod = 10*time.Second + 250*time.Millisecond

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
	h.Keys = float64(f.renewed) / float64(max(1, f.keeps))
	h.Bytes, h.Core = float64(f.bytes)/h.Span, seconds(f.served)/h.Span
	return h
}

func (h Holding) String() string {
	return fmt.Sprintf("%.1fs: locks/s=%.0f scripts/s=%.0f keys per keep=%.1f MB/s=%.1f core=%.1f%% most in 10ms=%d in 100ms=%d (%.1f × mean) lost=%d",
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

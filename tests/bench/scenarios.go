package main

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// scenarios are everything that is measured, in the order of the tables.
func scenarios() []Scenario {
	both := []Scenario{
		{Name: "uncontended 1x1", Kind: Uncontended, Hosts: 1, Processes: 1, Workers: 1},
		{Name: "uncontended 8x8", Kind: Uncontended, Hosts: 1, Processes: 8, Workers: 8},
		{Name: "uncontended 8x8 no linger", Kind: Uncontended, Hosts: 1, Processes: 8, Workers: 8, Setting: "--linger=0"},
		{Name: "uncontended 64x1", Kind: Uncontended, Hosts: 1, Processes: 64, Workers: 1},
		{Name: "contended 16x1", Kind: Contended, Hosts: 1, Processes: 16, Workers: 1},
		{Name: "contended 16x1 1ms", Kind: Contended, Hosts: 1, Processes: 16, Workers: 1, WorkUS: 1000},
		{Name: "two hosts 2x8x1", Kind: Contended, Hosts: 2, Processes: 16, Workers: 1},
		// As the peers do: whichever host has the lock, another one may get it next.
		{Name: "two hosts alternating", Kind: Contended, Hosts: 2, Processes: 16, Workers: 1, Setting: "--turn=0"},
		{Name: "two hosts in order", Kind: Contended, Hosts: 2, Processes: 16, Workers: 1, Setting: "--fair=*"},
	}
	var all []Scenario
	for _, wan := range []bool{false, true} {
		for _, s := range both {
			if s.WAN = wan; wan {
				s.Name += " wan"
			}
			all = append(all, s)
		}
	}
	all = append(all,
		Scenario{Name: "permits 8x8", Kind: Permits, Hosts: 1, Processes: 8, Workers: 8, WorkUS: 1000, Of: 10},
		Scenario{Name: "permits four hosts", Kind: Permits, Hosts: 4, Processes: 8, Workers: 8, WorkUS: 1000, Of: 10, Against: "permits 8x8"},
		Scenario{Name: "held 10k", Kind: Held, Hosts: 1, Processes: 1, Count: 10_000},
		Scenario{Name: "held 100k", Kind: Held, Hosts: 1, Processes: 1, Count: 100_000},
		// 10 s for everybody, so that those who wait for its end are done some day.
		Scenario{Name: "crash", Kind: Crash, Hosts: 1, Processes: 2, LeaseMS: 10_000},
		Scenario{Name: "crash two hosts", Kind: Crash, Hosts: 2, Processes: 2, LeaseMS: 10_000},
	)
	for i := range all {
		if all[i].LeaseMS == 0 {
			all[i].LeaseMS = 30_000
		}
	}
	return all
}

// lease is how long a lock lives that nobody renews: what daemons and libraries are told.
func (s Scenario) lease() time.Duration {
	return time.Duration(s.LeaseMS * float64(time.Millisecond))
}

// shrunk is the scenario with as little of everything as still shows whether it works.
func (s Scenario) shrunk() Scenario {
	s.Processes = min(s.Processes, 2)
	s.Workers = min(s.Workers, 2)
	s.Hosts = min(s.Hosts, s.Processes)
	s.Of = min(s.Of, 2)
	switch s.Kind {
	case Held:
		s.Count /= 200
		s.LeaseMS = 6000
	case Crash:
		s.LeaseMS = 3000
	}
	return s
}

// A contender is one way to lock.
type contender struct {
	name     string
	role     Role
	language language
	in       []Kind
	// heldAtMost is how many locks it can hold; asked for more it is given so many,
	// and the run says so. 0: as many as wanted.
	heldAtMost int
	// heldWhy says what stands in the way of more.
	heldWhy string
	// fleetAtMost is in how many processes it takes part; 0: as many as wanted.
	fleetAtMost int
	etcd        bool // needs etcd beside Redis
	// together: one process has the locks of all.
	together bool
	// noRedis: it has no use for one, near or far.
	noRedis bool
	// server is what a process that serves the workers is told to be; "": it needs none.
	server string
}

type language string

const (
	inGo     language = "go"
	inJava   language = "java"
	inPython language = "python"
)

var contenders = []contender{
	{name: "locksidecar", role: Ours, language: inGo, in: []Kind{Uncontended, Contended, Permits, Held, Crash}},
	{name: "locksidecar-py", role: Sibling, language: inPython, in: []Kind{Uncontended, Contended, Permits}},
	// 64 JVMs on a few cores have not compiled themselves when they are measured, and
	// their figure would say nothing of Redisson.
	{name: "redisson", role: Peer, language: inJava, in: []Kind{Uncontended, Contended, Held, Crash}, fleetAtMost: 16},
	// Its permits end with a lease; those of its RSemaphore are gone for good with a process that dies.
	{name: "redisson-expirable", role: Peer, language: inJava, in: []Kind{Permits}, fleetAtMost: 16},
	{name: "redisson-semaphore", role: Peer, language: inJava, in: []Kind{Permits}, fleetAtMost: 16},
	{name: "redsync", role: Peer, language: inGo, in: []Kind{Uncontended, Contended, Held, Crash}},
	{name: "redsync-1ms", role: Peer, language: inGo, in: []Kind{Contended}},
	{name: "redislock", role: Peer, language: inGo, in: []Kind{Uncontended, Contended, Held, Crash}},
	{name: "redislock-1ms", role: Peer, language: inGo, in: []Kind{Contended}},
	{name: "rueidislock", role: Peer, language: inGo, in: []Kind{Uncontended, Contended, Held, Crash}},
	{name: "etcd", role: Peer, language: inGo, in: []Kind{Contended}, etcd: true},
	{name: "redis-py", role: Peer, language: inPython, in: []Kind{Uncontended, Contended, Crash}},
	{name: "redis-py-1ms", role: Peer, language: inPython, in: []Kind{Contended}},
	{name: "python-redis-lock", role: Peer, language: inPython, in: []Kind{Uncontended, Contended, Held, Crash},
		heldAtMost: 5_000, heldWhy: "it has a thread for each lock, and of 10,000 it loses some"},
	{name: "redis-semaphore", role: Peer, language: inPython, in: []Kind{Permits}},
	{name: "self-limiters", role: Peer, language: inPython, in: []Kind{Permits}},
	{name: "raw-evalsha", role: Limit, language: inGo, in: []Kind{Uncontended}, together: true},
	{name: "unix-echo", role: Limit, language: inGo, in: []Kind{Uncontended}, noRedis: true, server: "unix-echo-server"},
}

// plan is which contenders run in which scenarios.
type plan []planned

type planned struct {
	Scenario
	contenders []contender
}

// draw picks from all scenarios those whose name matches, and from all contenders
// those with one of the names, if there are any.
func draw(only *regexp.Regexp, names []string) plan {
	var p plan
	for _, s := range scenarios() {
		if !only.MatchString(s.Name) {
			continue
		}
		var who []contender
		for _, c := range contenders {
			if slices.Contains(c.in, s.Kind) && !(s.WAN && c.noRedis) && (c.fleetAtMost == 0 || s.Processes <= c.fleetAtMost) && (len(names) == 0 || slices.Contains(names, c.name)) {
				who = append(who, c)
			}
		}
		if len(who) > 0 {
			p = append(p, planned{s, who})
		}
	}
	return p
}

// needs tells whether there is such a contender in the plan.
func (p plan) needs(is func(contender) bool) bool {
	return slices.ContainsFunc(p, func(s planned) bool { return slices.ContainsFunc(s.contenders, is) })
}

func contenderNames() string {
	var names []string
	for _, c := range contenders {
		names = append(names, c.name)
	}
	return strings.Join(names, ", ")
}

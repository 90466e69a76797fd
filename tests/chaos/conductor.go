package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/history"
)

// settings say how large a run is.
type settings struct {
	seed   uint64
	length time.Duration // of the faults; the run takes as much longer as its workers need to finish
	kills  int           // instead: only kills of the daemons, so many
	lease  time.Duration
	hosts  int
	goes   int // Go workers a host
	pys    int // Python workers a host
	actors int // of a worker
	think  int // ms that an actor pauses between two sections, on average
	hot    int
	cool   int

	program string // the daemon
	python  string // that can import locksidecar; "": none
	dir     string // where everything is kept; must not be long: sockets are in it
}

// rules says what the configuration promises. Nothing in it is about how fast
// the machine is, but for the grace in Wake and Answer.
func (s settings) rules() history.Rules {
	const (
		poll     = 5 * time.Second // a sidecar's waiters look at a lock by themselves after this long
		command  = 2 * time.Second // for so long it waits for an answer of Redis
		backoff  = time.Second     // between two attempts to connect, at most
		silence  = 3 * time.Second // after which a subscription is asked whether it lives
		grace    = 5 * time.Second
		sdkGrace = 5 * time.Second // for so long a Python client waits for a late answer
	)
	return history.Rules{
		Lease: s.lease,
		// Renewed every third of the lease and up to a twentieth later: what is left
		// is more than half.
		Outage: s.lease / 2,
		Settle: s.lease + silence + command + backoff + command,
		Wake:   poll + grace,
		Answer: sdkGrace + command + grace,
		Errors: []string{"canceled", "timeout", "held", "unavailable"},
	}
}

// weather leaves calms long enough for a waiter that was forgotten to be missed.
func (s settings) weather() weather {
	r := s.rules()
	return weather{storm: 20 * time.Second, calm: r.Settle + r.Wake + 4*time.Second}
}

// A conductor starts everything, breaks it, and ends it.
type conductor struct {
	set  settings
	dir  string
	logs string // of the history
	log  *history.Recorder

	register *register
	servers  []*server // the first is the master, the second its replica
	replica  *link     // from the replica to its master
	hosts    []*host
	fleet    *fleet

	lastFault atomic.Int64
	broken    atomic.Int64 // how many faults with an effect last at the moment
	probes    sync.WaitGroup

	mu       sync.Mutex // guards what follows
	done     map[faultKind]int
	skipped  map[faultKind]int
	backs    []back
	problems []string
}

// back is how long it took until a daemon that was killed served again.
type back struct {
	fromKill  time.Duration
	fromStart time.Duration
}

func (c *conductor) registerSocket() string { return filepath.Join(c.dir, "register.sock") }

// newConductor starts everything. What it returns must be closed, an error or not.
func newConductor(ctx context.Context, set settings) (*conductor, error) {
	c := &conductor{set: set, dir: set.dir, logs: filepath.Join(set.dir, "history"), done: map[faultKind]int{}, skipped: map[faultKind]int{}}
	if err := os.MkdirAll(c.logs, 0o755); err != nil {
		return c, err
	}
	var err error
	if c.log, err = history.Record(c.logs, "conductor"); err != nil {
		return c, err
	}
	if c.register, err = newRegister(c.registerSocket(), c.log); err != nil {
		return c, err
	}
	for i := range 2 {
		name := fmt.Sprintf("redis%d", i)
		s, err := startServer(ctx, filepath.Join(c.dir, name), filepath.Join(c.dir, name+".log"))
		if s != nil {
			c.servers = append(c.servers, s)
		}
		if err != nil {
			return c, err
		}
	}
	if c.replica, err = newLink(c.servers[0].socket()); err != nil {
		return c, err
	}
	if err := c.servers[1].follow(ctx, c.replica); err != nil {
		return c, err
	}
	for i := range set.hosts {
		name := fmt.Sprintf("host%d", i)
		l, err := newLink(c.servers[0].socket())
		if err != nil {
			return c, err
		}
		h := &host{
			name: name, program: set.program, lease: set.lease, link: l,
			socket: filepath.Join(c.dir, name+".sock"), log: filepath.Join(c.dir, name+".log"),
		}
		c.hosts = append(c.hosts, h)
		if err := h.start(); err != nil {
			return c, err
		}
	}
	for _, h := range c.hosts {
		if _, err := h.serves(ctx); err != nil {
			return c, err
		}
	}
	if c.fleet, err = newFleet(c); err != nil {
		return c, err
	}
	for _, h := range c.hosts {
		for i := range set.goes + set.pys {
			python := i >= set.goes && set.python != ""
			if err := c.fleet.launch(h, python); err != nil {
				return c, err
			}
		}
	}
	return c, nil
}

// storm carries out a plan, each lane for itself, and returns when everything
// works again.
func (c *conductor) storm(ctx context.Context, plan []fault) error {
	began := time.Now()
	byLane := map[string][]fault{}
	for _, f := range plan {
		byLane[f.lane] = append(byLane[f.lane], f)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, faults := range byLane {
		wg.Go(func() {
			for _, f := range faults {
				if pause(ctx, time.Until(began.Add(f.at))) != nil {
					return
				}
				if err := c.inject(ctx, f); err != nil {
					cancel(fmt.Errorf("%v: %w", f, err))
					return
				}
			}
		})
	}
	wg.Wait()
	c.probes.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return pause(ctx, time.Until(began.Add(c.set.length)))
}

// finish has the workers finish in the calm, and the daemons end in order.
func (c *conductor) finish(ctx context.Context) error {
	rules := c.set.rules()
	// Whoever waits is served in turn; sections are cut short.
	if err := c.fleet.finish(ctx, rules.Settle+rules.Wake+rules.Answer); err != nil {
		return err
	}
	for _, w := range c.fleet.sunk {
		c.problem(w)
	}
	for _, h := range c.hosts {
		if h.crashed() {
			c.problem(fmt.Sprintf("%s: the daemon crashed; its log: %s", h.name, h.log))
			continue
		}
		if err := h.end(ctx, syscall.SIGTERM); err == errInterrupted {
			return err
		} else if err != nil {
			c.problem(err.Error())
		}
	}
	for _, h := range c.hosts {
		if bad := h.complaints(); bad != "" {
			c.problem(bad)
		}
	}
	c.log.Write(history.Event{Kind: history.End, At: protocol.Now()})
	return nil
}

func (c *conductor) problem(what string) {
	c.mu.Lock()
	c.problems = append(c.problems, what)
	c.mu.Unlock()
}

// close ends everything that was started.
func (c *conductor) close() {
	if c.fleet != nil {
		c.fleet.close()
	}
	for _, h := range c.hosts {
		h.kill()
		h.link.close()
	}
	if c.replica != nil {
		c.replica.close()
	}
	for _, s := range c.servers {
		s.close()
	}
	if c.register != nil {
		c.register.close()
	}
	if c.log != nil {
		c.log.Close()
	}
}

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/history"
)

// settings are the settings of a run.
type settings struct {
	seed          uint64
	length        time.Duration // of the faults; after that the workers finish
	kills         int           // instead of length: the number of kills of daemons, without other faults
	permitKills   int           // instead of length: workers use permits alone, so many of them are killed, and daemons
	hostKills     int           // instead of length: the same, and so many hosts die
	killEvery     time.Duration // if above 0, the faults are a barrage of kills: the mean life of a daemon
	exchangeEvery time.Duration // if above 0, the plan is exchanges of roles, this far apart, and faults that lose nothing
	lease         time.Duration
	hosts         int
	goWorkers     int // Go workers a host
	pyWorkers     int // Python workers a host
	plain         int // workers a host whose sessions are not resumable
	actors        int // of a worker
	think         int // mean pause of an actor between two sections, ms
	hot           int
	cool          int
	of            int // permits of the semaphore; 0: there is none

	program string // the daemon
	older   string // a daemon of an older version, on each second host; "": none
	python  string // that can import locksidecar; "": none
	dir     string // of all files; a short path, because sockets are in it
}

// rules returns the bounds that follow from the configuration. Only the grace in Wake and Answer
// depends on the speed of the machine.
func (s settings) rules() history.Rules {
	const (
		poll     = 5 * time.Second // interval at which a sidecar polls a lock for its waiters
		command  = 2 * time.Second // timeout of a command to Redis
		backoff  = time.Second     // longest pause between two attempts to connect
		silence  = 3 * time.Second // after which a sidecar pings its subscription
		grace    = 5 * time.Second
		sdkGrace = 5 * time.Second // how long a Python client waits for a late answer
	)
	return history.Rules{
		Lease: s.lease,
		// A lock is renewed every third of the lease, and up to a twentieth later: more
		// than half of the lease is left.
		Outage: s.lease / 2,
		Settle: s.lease + silence + command + backoff + command,
		Wake:   poll + grace,
		Answer: sdkGrace + command + grace,
		Errors: []string{"canceled", "timeout", "held", "unavailable"},
	}
}

// plan draws the plan of faults of the run.
func (s settings) plan() []fault {
	all := lanes(s.hosts, s.lease)
	if s.exchangeEvery > 0 {
		all = exchangeLanes(s.hosts, s.lease, s.exchangeEvery)
	}
	return drawPlan(s.seed, s.length, all, s.schedule())
}

// schedule returns calms that are long enough to detect a forgotten waiter.
func (s settings) schedule() schedule {
	r := s.rules()
	return schedule{storm: 20 * time.Second, calm: r.Settle + r.Wake + 4*time.Second}
}

// A conductor starts all processes, injects the faults, and ends the processes.
type conductor struct {
	set  settings
	dir  string
	logs string // of the history
	log  *history.Recorder

	register *register
	replica  *link // from the replica to its master
	hosts    []*host
	fleet    *fleet
	takes    int // clients that took all permits

	lastFault    atomic.Int64
	activeFaults atomic.Int64 // faults with an effect that have not ended
	probes       sync.WaitGroup

	mu         sync.Mutex // guards what follows
	done       map[faultKind]int
	skipped    map[faultKind]int
	recoveries []recovery
	problems   []string
	servers    []*server // the first is the master, the second its replica
}

// pair returns the master and its replica.
func (c *conductor) pair() (master, replica *server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[0], c.servers[1]
}

// swapServers notes that the replica has become the master.
func (c *conductor) swapServers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.servers[0], c.servers[1] = c.servers[1], c.servers[0]
}

// recovery is the time until the successor of a killed daemon grants a lock.
type recovery struct {
	fromKill  time.Duration
	fromStart time.Duration
}

func (c *conductor) registerSocket() string { return filepath.Join(c.dir, "register.sock") }

// newConductor starts all processes. The caller closes what it returns, also with an error.
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
	if err := c.servers[1].replicate(ctx, c.replica); err != nil {
		return c, err
	}
	for range set.hosts {
		if _, err := c.addHost(); err != nil {
			return c, err
		}
	}
	if c.fleet, err = newFleet(c); err != nil {
		return c, err
	}
	for _, h := range c.hosts {
		if err := c.populate(ctx, h); err != nil {
			return c, err
		}
	}
	return c, nil
}

// addHost starts the daemon of one more host.
func (c *conductor) addHost() (*host, error) {
	name := fmt.Sprintf("host%d", len(c.hosts))
	master, _ := c.pair()
	l, err := newLink(master.socket())
	if err != nil {
		return nil, err
	}
	h := &host{
		name: name, program: c.set.program, lease: c.set.lease, link: l,
		socket: filepath.Join(c.dir, name+".sock"), log: filepath.Join(c.dir, name+".log"),
	}
	if c.set.older != "" && len(c.hosts)%2 == 1 {
		h.program, h.follows = c.set.older, true
	}
	c.hosts = append(c.hosts, h)
	return h, h.start()
}

// populate starts the clients of a host.
func (c *conductor) populate(ctx context.Context, h *host) error {
	if _, err := h.awaitGrant(ctx); err != nil {
		return err
	}
	python := pythonKind
	if c.set.python == "" {
		python = goKind
	}
	for _, kind := range slices.Concat(
		slices.Repeat([]workerKind{goKind}, c.set.goWorkers), slices.Repeat([]workerKind{python}, c.set.pyWorkers),
		slices.Repeat([]workerKind{plainKind}, c.set.plain),
	) {
		if err := c.fleet.launch(h, kind); err != nil {
			return err
		}
	}
	return nil
}

// storm injects the faults of a plan, with a goroutine for each lane, and returns when all faults
// have ended.
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

// finish lets the workers finish without faults, and then stops the daemons.
func (c *conductor) finish(ctx context.Context) error {
	rules := c.set.rules()
	// Workers end their sections early; their waiters are granted the locks in turn.
	if err := c.fleet.finish(ctx, min(rules.Settle, eventTimeout)+rules.Wake+rules.Answer); err != nil {
		return err
	}
	for _, w := range c.fleet.problems {
		c.addProblem(w)
	}
	for _, h := range c.liveHosts() {
		if c.set.of == 0 || h.hasCrashed() {
			continue
		}
		if err := c.takeAllPermits(ctx, h); err == errInterrupted {
			return err
		} else if err != nil {
			c.addProblem(err.Error())
		}
	}
	for _, h := range c.liveHosts() {
		if h.hasCrashed() {
			c.addProblem(fmt.Sprintf("%s: the daemon crashed; its log: %s", h.name, h.log))
			continue
		}
		if err := h.stop(ctx, syscall.SIGTERM); err == errInterrupted {
			return err
		} else if err != nil {
			c.addProblem(err.Error())
		}
	}
	for _, h := range c.hosts {
		if bad := h.logProblems(); bad != "" {
			c.addProblem(bad)
		}
	}
	c.log.Write(history.Event{Kind: history.End, At: protocol.Now()})
	return nil
}

func (c *conductor) addProblem(what string) {
	c.mu.Lock()
	c.problems = append(c.problems, what)
	c.mu.Unlock()
}

// close ends all processes.
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

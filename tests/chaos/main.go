// Command chaos injects faults: it runs daemons, Redis and a fleet of Go and Python processes
// that use locks, kills, stops and disconnects them, and checks the history that the processes
// recorded against the guarantees.
//
// A seed determines the plan of faults. The state of the processes at the time of a fault is not
// reproducible.
//
//	go build -o bin/chaos ./tests/chaos && bin/chaos -time 10m -seed 1
//	bin/chaos -kills 500        # nothing but kill -9 of the daemons
//	bin/chaos -permit-kills 10000 # workers use permits alone; kill -9 of them, and of the daemons
//	bin/chaos -host-kills 50      # the same, of all processes of a host
//	bin/chaos -exchange-every 1s -older bin/older -time 10m # roles of Redis, two hosts of a version before this
//	bin/chaos -kill-every 150ms -plain 1 -lease 1s -time 30m # and kills and stops of workers
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/tests/history"
)

func main() {
	if config := os.Getenv(workerEnv); config != "" {
		if err := runWorker(config); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(mainConductor())
}

func mainConductor() int {
	set := settings{hosts: 2, lease: 4 * time.Second, hot: 6, cool: 40, of: 10}
	plan := flag.Bool("plan", false, "print the plan of faults and do nothing")
	flag.DurationVar(&set.length, "time", time.Minute, "duration of the faults")
	flag.Uint64Var(&set.seed, "seed", 1, "seed of the plan of faults and of the workers' actions")
	flag.IntVar(&set.kills, "kills", 0, "instead of -time: kill the daemons this many times, without other faults")
	flag.IntVar(&set.permitKills, "permit-kills", 0, fmt.Sprintf("instead of -time: workers use permits alone; kill this many, and one daemon for each %d", killsOfADaemon))
	flag.IntVar(&set.hostKills, "host-kills", 0, "instead of -time: workers use permits alone; kill all processes of a host this many times")
	flag.DurationVar(&set.killEvery, "kill-every", 0, "instead of the plan of faults: kill each daemon this long after its start on average, and kill and stop workers")
	flag.DurationVar(&set.exchangeEvery, "exchange-every", 0, "instead of the plan of faults: exchange the roles of master and replica this long after each other on average, with faults that lose no data")
	flag.StringVar(&set.older, "older", "", "an older locksidecar binary, for two hosts more")
	flag.DurationVar(&set.lease, "lease", set.lease, "the daemons' lease")
	flag.IntVar(&set.goWorkers, "go", 2, "Go workers a host")
	flag.IntVar(&set.pyWorkers, "py", 2, "Python workers a host")
	flag.IntVar(&set.plain, "plain", 0, "workers a host whose sessions are not resumable")
	flag.IntVar(&set.actors, "actors", 4, "threads, tasks or goroutines of a worker that use locks")
	flag.IntVar(&set.think, "think", 60, "mean pause of each of them between two locks, ms")
	flag.StringVar(&set.program, "daemon", "", "locksidecar binary (default: build it)")
	flag.StringVar(&set.python, "python", "", "Python that can import locksidecar (default: search for it)")
	keep := flag.Bool("keep", false, "keep the logs also of a run without violations")
	flag.Parse()
	if flag.NArg() > 0 || set.length <= 0 || set.kills < 0 || set.permitKills < 0 || set.hostKills < 0 || set.lease < time.Second || set.goWorkers < 0 || set.pyWorkers < 0 || set.plain < 0 || set.killEvery < 0 ||
		set.exchangeEvery < 0 || set.modes() > 1 || set.actors < 1 || set.think < 0 {
		flag.Usage()
		return 2
	}
	if set.killEvery > 0 {
		// A lock whose holder cannot resume its session stays taken until its deadline.
		set.hot, set.cool = 3*set.hot, 3*set.cool
	}
	if set.exchangeEvery > 0 {
		// A lock that all hosts want all the time passes from host to host by transfers.
		set.hot, set.cool = 3, 12
	}
	if set.permitKills > 0 {
		set.usePermits(permitLease)
	}
	if set.hostKills > 0 {
		set.usePermits(hostLease)
	}
	if set.older != "" {
		set.hosts += 2
		set.of = 0 // an older daemon has no permits
	}
	if *plan {
		for _, f := range set.plan() {
			fmt.Println(f)
		}
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := prepare(&set); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	result, err := conduct(ctx, set, os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\nseed %d; the logs are kept in %s\n", err, set.seed, set.dir)
		return 1
	}
	result.print(os.Stdout)
	if result.failed() {
		fmt.Printf("failed with seed %d; the logs are kept in %s\n", set.seed, set.dir)
		return 1
	}
	if *keep {
		fmt.Printf("the logs are kept in %s\n", set.dir)
		return 0
	}
	if err := os.RemoveAll(set.dir); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
	}
	return 0
}

// modes returns how many of the modes that take the place of the plan of faults are set.
func (s settings) modes() (n int) {
	for _, isSet := range []bool{s.kills > 0, s.permitKills > 0, s.hostKills > 0, s.killEvery > 0, s.exchangeEvery > 0} {
		if isSet {
			n++
		}
	}
	return n
}

// prepare finds or builds the programs of a run.
func prepare(set *settings) error {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return errors.New("redis-server is not installed: apt-get install redis-server")
	}
	var err error
	// Not in $TMPDIR: the path of a socket may have at most 107 bytes.
	if set.dir, err = os.MkdirTemp("/tmp", "chaos"); err != nil {
		return err
	}
	if set.program == "" {
		if set.program, err = buildDaemon(set.dir); err != nil {
			return err
		}
	}
	for _, program := range []*string{&set.program, &set.older} {
		if *program == "" {
			continue
		}
		if *program, err = filepath.Abs(*program); err != nil {
			return err
		}
	}
	if set.python == "" && set.pyWorkers > 0 {
		set.python = findPython()
	}
	if set.python == "" {
		fmt.Fprintln(os.Stderr, "no Python that can import locksidecar: the fleet is Go alone (`make venv` makes one)")
	}
	return nil
}

// findPython returns a Python that has the SDK; "": there is none.
func findPython() string {
	for _, p := range []string{os.Getenv("LOCKSIDECAR_PYTHON"), ".venv/bin/python", "../../.venv/bin/python", "python3"} {
		if p == "" || exec.Command(p, "-c", "import locksidecar").Run() != nil {
			continue
		}
		if strings.Contains(p, "/") {
			p, _ = filepath.Abs(p)
		}
		return p
	}
	return ""
}

// conduct executes one run. When it returns, all its processes have ended.
func conduct(ctx context.Context, set settings, progress io.Writer) (*outcome, error) {
	began := time.Now()
	c, err := newConductor(ctx, set)
	defer c.close()
	if err != nil {
		return nil, err
	}
	o := &outcome{set: set, faults: c.done, skipped: c.skipped}
	switch {
	case set.kills > 0:
		o.kills, err = c.killDaemons(ctx, set.kills, func(done int) {
			if done%50 == 0 {
				fmt.Fprintf(progress, "%d kills\n", done)
			}
		})
	case set.permitKills > 0:
		err = c.killPermitHolders(ctx, set.permitKills, func(done int) {
			if done%1000 == 0 {
				fmt.Fprintf(progress, "%d kills\n", done)
			}
		})
	case set.hostKills > 0:
		err = c.killHosts(ctx, set.hostKills)
	case set.killEvery > 0:
		err = c.barrage(ctx)
	default:
		err = c.storm(ctx, set.plan())
	}
	if err != nil {
		return nil, err
	}
	if err := c.finish(ctx); err != nil {
		return nil, err
	}
	events, err := history.Load(c.logs)
	if err != nil {
		return nil, err
	}
	o.report = history.Check(events, set.rules())
	o.took, o.backs, o.problems = time.Since(began), c.recoveries, c.problems
	return o, nil
}

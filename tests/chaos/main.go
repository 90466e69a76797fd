// Command chaos breaks locks: it runs daemons, Redis and a fleet of Go and Python
// processes that lock, breaks all of them in the ways in which they break, and
// judges by what the processes saw whether the promises held.
//
// The plan of faults comes from a seed and is the same for the same seed. What a
// fault meets is not: that is decided by the machine.
//
//	go build -o bin/chaos ./tests/chaos && bin/chaos -time 10m -seed 1
//	bin/chaos -kills 500        # nothing but kill -9 of the daemons
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
	if told := os.Getenv(ordersVar); told != "" {
		if err := runWorker(told); err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(mainConductor())
}

func mainConductor() int {
	set := settings{hosts: 2, lease: 4 * time.Second, hot: 6, cool: 40}
	plan := flag.Bool("plan", false, "print the plan of faults and do nothing")
	flag.DurationVar(&set.length, "time", time.Minute, "how long things are broken")
	flag.Uint64Var(&set.seed, "seed", 1, "draws the plan of faults and what the workers do")
	flag.IntVar(&set.kills, "kills", 0, "instead: kill the daemons so many times, and break nothing else")
	flag.DurationVar(&set.lease, "lease", set.lease, "the daemons' lease")
	flag.IntVar(&set.goes, "go", 2, "Go workers a host")
	flag.IntVar(&set.pys, "py", 2, "Python workers a host")
	flag.IntVar(&set.actors, "actors", 4, "threads, tasks or goroutines of a worker that lock")
	flag.IntVar(&set.think, "think", 60, "ms that each of them pauses between two locks, on average")
	flag.StringVar(&set.program, "daemon", "", "locksidecar binary (default: it is built)")
	flag.StringVar(&set.python, "python", "", "Python that can import locksidecar (default: it is looked for)")
	keep := flag.Bool("keep", false, "keep the logs of a run that shows nothing wrong, too")
	flag.Parse()
	if flag.NArg() > 0 || set.length <= 0 || set.kills < 0 || set.lease < time.Second || set.goes < 0 || set.pys < 0 || set.actors < 1 || set.think < 0 {
		flag.Usage()
		return 2
	}
	if *plan {
		for _, f := range draw(set.seed, set.length, lanes(set.hosts, set.lease), set.weather()) {
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

// prepare finds or makes what a run needs.
func prepare(set *settings) error {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return errors.New("redis-server is not installed: apt-get install redis-server")
	}
	var err error
	// Not below $TMPDIR: the path of a socket may have 107 bytes.
	if set.dir, err = os.MkdirTemp("/tmp", "chaos"); err != nil {
		return err
	}
	if set.program == "" {
		if set.program, err = buildDaemon(set.dir, false); err != nil {
			return err
		}
	}
	if set.program, err = filepath.Abs(set.program); err != nil {
		return err
	}
	if set.python == "" && set.pys > 0 {
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

// conduct makes one run. Whatever it started has ended when it returns.
func conduct(ctx context.Context, set settings, progress io.Writer) (*outcome, error) {
	began := time.Now()
	c, err := newConductor(ctx, set)
	defer c.close()
	if err != nil {
		return nil, err
	}
	o := &outcome{set: set, faults: c.done, skipped: c.skipped}
	if set.kills > 0 {
		o.kills, err = c.killDaemons(ctx, set.kills, func(done int) {
			if done%50 == 0 {
				fmt.Fprintf(progress, "%d kills\n", done)
			}
		})
	} else {
		err = c.storm(ctx, draw(set.seed, set.length, lanes(set.hosts, set.lease), set.weather()))
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
	o.took, o.backs, o.problems = time.Since(began), c.backs, c.problems
	return o, nil
}

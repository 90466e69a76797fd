// Command bench measures locks: ours and those that one could use instead, on the
// same Redis, in the same minutes, with real processes.
//
//	make bench          # everything, about an hour
//	make bench-smoke    # does it run? a minute; the figures mean nothing
//
// Each contender's workers are processes of their own (worker/, redisson/,
// python/), told what to do by lines on their standard input. What they did they
// write down pair by pair; all that is said of speed is computed here from these
// records, by the same code for everybody.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/tests/bench/wan"
)

// proxyCommand is what the program is told to be the delaying proxy by.
const proxyCommand = "proxy"

func main() {
	var err error
	if len(os.Args) == 4 && os.Args[1] == proxyCommand {
		err = proxy(os.Args[2], os.Args[3])
	} else {
		err = conductor()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// proxy delays a server until it is killed.
func proxy(target, oneWay string) error {
	d, err := time.ParseDuration(oneWay)
	if err != nil {
		return err
	}
	p, err := wan.Listen(target, d)
	if err != nil {
		return err
	}
	fmt.Println(p.Addr())
	return p.Wait()
}

const usage = `Usage: bench [flags]

Measures locksidecar and its peers on the same Redis, interleaved, and prints how
they compare. What is not given as a program is built or looked for; a contender
for whose language there is nothing is left out, and that is said.

Examples:

    bench -out results.json
    bench -only 'contended 16x1$' -contenders locksidecar,redisson -rounds 1 -v
    bench -smoke

Contenders: %s

Flags:
`

func conductor() error {
	b := &bench{progress: os.Stderr}
	var (
		out     = flag.String("out", "", "write everything to this `file` as JSON")
		show    = flag.String("show", "", "run nothing: print the results in this `file`")
		only    = flag.String("only", "", "only the scenarios whose name matches this `regexp`")
		names   = flag.String("contenders", "", "only these, a comma between `names`")
		list    = flag.Bool("list", false, "print the scenarios and who takes part, and run nothing")
		verbose = flag.Bool("v", false, "print the full table, too")
		plots   = flag.String("plots", "", "draw the plots into this `directory`")
	)
	flag.DurationVar(&b.window, "time", 2*time.Second, "how long each run is measured; locks held at least twice the lease")
	flag.IntVar(&b.rounds, "rounds", 3, "how often each contender runs in each scenario")
	flag.DurationVar(&b.rtt, "rtt", 2*time.Millisecond, "round trip of the delaying proxy")
	flag.BoolVar(&b.smoke, "smoke", false, "everything as shortly as possible; fails if something does not work")
	flag.StringVar(&b.programs.daemon, "daemon", "", "the locksidecar `binary` (default: it is built)")
	flag.StringVar(&b.programs.goWorker, "worker-go", "", "the Go worker `binary` (default: it is built)")
	flag.StringVar(&b.programs.etcd, "etcd", "", "the etcd server's `binary` (default: it is built)")
	flag.StringVar(&b.programs.java, "java", "java", "the Java `program`")
	flag.StringVar(&b.programs.javaWorker, "worker-java", "", "the Java worker's `jar` (default: Maven makes it)")
	flag.StringVar(&b.programs.python, "python", "", "a `Python` that has the peers and our SDK (default: .venv/bin/python)")
	flag.StringVar(&b.programs.pythonWorker, "worker-python", "", "the Python worker `script` (default: that of this repository)")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), usage, contenderNames())
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() > 0 || b.window <= 0 || b.rounds < 1 || b.rtt < 0 {
		flag.Usage()
		os.Exit(2)
	}
	if *show != "" {
		return present(*show, *plots)
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	var who []string
	if *names != "" {
		who = strings.Split(*names, ",")
	}
	for _, name := range who {
		if !slices.ContainsFunc(contenders, func(c contender) bool { return c.name == name }) {
			return fmt.Errorf("-contenders: there is no %q; there are %s", name, contenderNames())
		}
	}
	if b.plan = draw(match, who); len(b.plan) == 0 {
		return errors.New("-only and -contenders leave nothing to run; -list shows what there is")
	}
	if *list {
		b.plan.print(os.Stdout)
		return nil
	}
	if b.smoke {
		b.rounds, b.window = 1, min(b.window, 400*time.Millisecond)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // whoever asks twice does not wait for our tidying up
	built, err := os.MkdirTemp("", "bench-programs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(built)
	if err := b.prepare(ctx, built); err != nil {
		return err
	}
	began := time.Now()
	res := b.conduct(ctx)
	if ctx.Err() != nil {
		return errors.New("interrupted: nothing was written")
	}
	if *out != "" {
		if err := res.write(*out); err != nil {
			return err
		}
	}
	if b.smoke {
		return res.printSmoke(os.Stdout, time.Since(began))
	}
	if *verbose {
		if err := res.printTable(os.Stdout); err != nil {
			return err
		}
		fmt.Println()
	}
	if err := res.printSummary(os.Stdout); err != nil {
		return err
	}
	return res.complain(os.Stdout)
}

// present prints results of an earlier run.
func present(file, plots string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var res Results
	if err := json.Unmarshal(text, &res); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if plots != "" {
		return drawPlots(&res, plots)
	}
	if err := res.printTable(os.Stdout); err != nil {
		return err
	}
	fmt.Println()
	return res.printSummary(os.Stdout)
}

func (r *Results) write(file string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// Mutants breaks the rules of this code on purpose, one at a time, and reports the broken
// rules that no test notices. The source is not changed: the Go command reads the mutated
// file through an overlay.
//
//	go run ./tests/mutants                     all mutants
//	go run ./tests/mutants -run 'deadline'     those whose rule or place matches
//	go run ./tests/mutants -list               print the rules
//
// The exit status is 1 if a mutant survives, does not apply or does not compile.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// mutant is one rule, and the change of the source that breaks it.
type mutant struct {
	rule string // a sentence; unique
	in   place
	find string // a node that occurs there once, written in any way; in a file that is not of Go, a text
	put  string
	by   check // must fail
}

// check is a call of one package's tests.
type check struct {
	pkg string // its directory
	run string // the tests, as -run of go test takes them
}

func (c check) String() string { return fmt.Sprintf("go test ./%s -run '%s'", c.pkg, c.run) }

// withoutAssertions goes with each mutant of the lock table. The table asserts its invariants,
// and an assertion stops the process that a mutant runs in. A mutant is killed only if a test
// notices the broken rule by itself.
var withoutAssertions = []mutant{
	{
		rule: "an assertion of the table stops nothing",
		in:   "sidecar/locktable violated",
		find: `panic(fmt.Sprintf("locktable: %q: invariant %q is violated: %s; this is a defect of the sidecar, report it", l.name, invariant, fmt.Sprintf(format, args...)))`,
		put:  `_ = (fmt.Sprintf("locktable: %q: invariant %q is violated: %s; this is a defect of the sidecar, report it", l.name, invariant, fmt.Sprintf(format, args...)))`,
	},
	{
		rule: "an assertion of a claim stops nothing",
		in:   "sidecar/locktable/claim violated",
		find: `panic(fmt.Sprintf("locktable: invariant %q is violated: %s; this is a defect of the sidecar, report it", invariant, fmt.Sprintf(format, args...)))`,
		put:  `_ = (fmt.Sprintf("locktable: invariant %q is violated: %s; this is a defect of the sidecar, report it", invariant, fmt.Sprintf(format, args...)))`,
	},
}

// changes returns what is changed in the source for a mutant.
func (m *mutant) changes() []*mutant {
	changes := []*mutant{m}
	if strings.HasPrefix(m.in.dir(), "sidecar/locktable") {
		for i := range withoutAssertions {
			changes = append(changes, &withoutAssertions[i])
		}
	}
	return changes
}

// verdict is the result of one mutant.
type verdict string

const (
	killed   verdict = "killed"           // its check fails
	survived verdict = "SURVIVED"         // its check passes
	misfit   verdict = "DOES NOT APPLY"   // what is to be found is not there exactly once
	broken   verdict = "DOES NOT COMPILE" // so no test can notice it
)

func main() {
	pattern := flag.String("run", "", "only mutants whose rule or place matches this regular expression")
	list := flag.Bool("list", false, "print the rules, and break none")
	parallel := flag.Int("p", 2, "number of mutants at a time")
	limit := flag.Duration("timeout", time.Minute, "limit of one call of tests")
	flag.Parse()
	wanted, err := regexp.Compile(*pattern)
	if err != nil {
		fail(err)
	}
	var chosen []*mutant
	for i := range mutants {
		if m := &mutants[i]; wanted.MatchString(m.rule) || wanted.MatchString(string(m.in)) {
			chosen = append(chosen, m)
		}
	}
	if *list {
		for _, m := range chosen {
			fmt.Printf("%-44s %s\n", m.in, m.rule)
		}
		return
	}
	if len(chosen) == 0 {
		fail(fmt.Errorf("no mutant matches %q", *pattern))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	alive, err := breakAll(ctx, chosen, max(1, *parallel), *limit)
	if err != nil {
		fail(err)
	}
	fmt.Printf("%d of %d mutants killed in %v\n", len(chosen)-len(alive), len(chosen), time.Since(began).Round(time.Second))
	for _, line := range alive {
		fmt.Println(line)
	}
	if len(alive) > 0 {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "mutants:", err)
	os.Exit(2)
}

// bench is where mutants are compiled and checked. Each worker has one.
type bench struct {
	root     string // of the module
	dir      string // for the overlay, the mutated file and the test binary
	overlaid string // the overlay of the last compile; "": none
	tries    int
}

// triesOfCache is for how many mutants one build cache is good. What is compiled of a mutant is never used again, and is
// about 100 MB.
const triesOfCache = 40

// cache is the build cache of the bench.
func (b *bench) cache() string { return filepath.Join(b.dir, "cache") }

// A mutant may have its check wait for what never happens. The check fails when it takes
// several times as long as it does on the unchanged source.
func limitOf(healthy time.Duration) time.Duration { return 10*time.Second + 4*healthy }

// breakAll checks that the tests pass on the unchanged source, and then tries each mutant.
// It returns a line for each mutant that is not killed.
func breakAll(ctx context.Context, chosen []*mutant, parallel int, limit time.Duration) (alive []string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	benches := make(chan *bench, parallel)
	for i := range parallel {
		b := &bench{root: root, dir: filepath.Join(temp, fmt.Sprint(i))}
		if err := os.Mkdir(b.dir, 0o700); err != nil {
			return nil, err
		}
		benches <- b
	}

	var (
		mu     sync.Mutex // guards what follows
		failed error
		limits = make(map[check]time.Duration)
	)
	var checks []check
	for _, m := range chosen {
		if !slices.Contains(checks, m.by) {
			checks = append(checks, m.by)
		}
	}
	eachOf(checks, benches, func(b *bench, c check) {
		out, err := b.compile(ctx, c, "")
		start := time.Now()
		if err == nil {
			out, err = b.call(ctx, c, limit)
		}
		mu.Lock()
		defer mu.Unlock()
		limits[c] = min(limit, limitOf(time.Since(start)))
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%v fails although no rule is broken: %w\n%s", c, err, out))
		}
	})
	if err := first(ctx.Err(), failed); err != nil {
		return nil, err
	}
	eachOf(chosen, benches, func(b *bench, m *mutant) {
		start := time.Now()
		v, how := b.try(ctx, m, limits[m.by])
		if ctx.Err() != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf("%-16s %5.1fs  %s: %s\n", v, time.Since(start).Seconds(), m.in, m.rule)
		if how != "" {
			fmt.Printf("%24s%s\n", "", how)
		}
		if v != killed {
			alive = append(alive, fmt.Sprintf("%-16s %s: %s", v, m.in, m.rule))
		}
	})
	return alive, ctx.Err()
}

// first returns the first error that is one.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// eachOf calls f once for each item, with a bench that no other call has meanwhile.
func eachOf[T any](items []T, benches chan *bench, f func(b *bench, item T)) {
	var calls sync.WaitGroup
	for _, item := range items {
		b := <-benches
		calls.Go(func() {
			f(b, item)
			benches <- b
		})
	}
	calls.Wait()
}

func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", errors.New("not within a Go module")
	}
	return filepath.Dir(mod), nil
}

// try breaks a rule and calls the check. how says what failed.
func (b *bench) try(ctx context.Context, m *mutant, limit time.Duration) (v verdict, how string) {
	if b.tries++; b.tries%triesOfCache == 0 {
		_ = os.RemoveAll(b.cache()) // the disk is full before what it is for fails
	}
	overlay, err := b.overlay(m)
	if err != nil {
		return misfit, err.Error()
	}
	if out, err := b.build(ctx, m, overlay); err != nil {
		return broken, firstLine(out, ".go:")
	}
	if out, err := b.compile(ctx, m.by, overlay); err != nil {
		return broken, firstLine(out, ".go:")
	}
	var out string
	for range 2 { // on a busy host, a check may pass by chance
		if out, err = b.call(ctx, m.by, limit); err != nil {
			break
		}
	}
	switch {
	case err == nil:
		return survived, m.by.String()
	case errors.Is(err, context.DeadlineExceeded):
		return killed, fmt.Sprintf("%v takes longer than %v", m.by, limit)
	}
	for _, mark := range []string{"_test.go:", "panic: ", ""} {
		if how = firstLine(out, mark); how != "" {
			break
		}
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(firstLine(out, "--- FAIL: "), "--- FAIL: "), " ")
	return killed, fmt.Sprintf("%s: %.160s", name, how)
}

// overlay writes the mutated files, and the list of replaced files for the Go command.
func (b *bench) overlay(m *mutant) (string, error) {
	replaced := make(map[string]string)
	for i, change := range m.changes() {
		path, text, err := change.apply(b.root)
		if err != nil {
			return "", err
		}
		source := filepath.Join(b.root, path)
		if replaced[source] != "" { // a mutant of the file that has the assertion
			continue
		}
		file := filepath.Join(b.dir, fmt.Sprint("mutated", i, filepath.Ext(path)))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
		replaced[source] = file
	}
	list, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	name := filepath.Join(b.dir, "overlay.json")
	return name, os.WriteFile(name, list, 0o600)
}

// firstLine is the first line of an output that has this text in it.
func firstLine(out, with string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, with) && strings.TrimSpace(line) != "" {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func (b *bench) binary() string { return filepath.Join(b.dir, "test") }

// build builds the package of a mutant. Tests that start the daemon do not import it: they
// would build the daemon, and fail.
func (b *bench) build(ctx context.Context, m *mutant, overlay string) (string, error) {
	b.overlaid = overlay
	if !m.in.isGo() {
		return "", nil
	}
	return b.output(ctx, 5*time.Minute, b.root, "go", "build", "-o", os.DevNull, "./"+m.in.dir())
}

// compile builds the tests of a check. overlay "": of the unchanged source.
func (b *bench) compile(ctx context.Context, c check, overlay string) (string, error) {
	b.overlaid = overlay
	return b.output(ctx, 5*time.Minute, b.root, "go", "test", "-c", "-vet=off", "-o", b.binary(), "./"+c.pkg)
}

// call runs the tests that compile has built.
func (b *bench) call(ctx context.Context, c check, limit time.Duration) (string, error) {
	return b.output(ctx, limit, filepath.Join(b.root, c.pkg), b.binary(), "-test.run="+c.run, "-test.failfast")
}

// output runs a command and returns what it prints. After limit, it ends the command and
// all processes that the command has started. The tests of the daemon build it themselves,
// so that the Go command has to find the overlay in the environment.
func (b *bench) output(ctx context.Context, limit time.Duration, dir, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_REQUIRE_REDIS=1", "GOCACHE="+b.cache(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+b.overlaid)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return string(out), err
}

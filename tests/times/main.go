// Times lists the slowest tests of this repository: how long each one took, how much of that it waited, and how
// much CPU it and the processes that it started used.
//
//	go run ./tests/times                              all packages
//	go run ./tests/times -n 5 ./tests/daemon          the five slowest of one package
//	go run ./tests/times -python .venv/bin/python     the tests of the Python SDK, too
//
// One test runs at a time, so that the CPU of all processes below this one is the test's. The exit status is 1
// if a test fails.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// event is a line of `go test -json`, or of slow.py, which writes the same lines for pytest.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds; of the end of a test
	Output  string
}

// row is a test that has ended. A test that goes on in parallel is measured in pieces.
type row struct {
	name  string
	took  time.Duration
	cpu   time.Duration
	began time.Duration // CPU of all processes when the piece that runs began
}

// meter attributes the CPU of all processes below this one to the test that runs.
type meter struct {
	cpu    func() time.Duration
	open   map[string]*row
	rows   []*row
	failed bool
	log    io.Writer // output of tests; of those that fail, a person reads it
}

func (m *meter) on(e event) {
	if e.Action == "output" || e.Action == "build-output" {
		io.WriteString(m.log, e.Output)
	}
	if e.Test == "" || strings.Contains(e.Test, "/") {
		m.failed = m.failed || e.Action == "fail"
		return
	}
	name := e.Package + " " + e.Test
	r := m.open[name]
	switch e.Action {
	case "run":
		m.open[name] = &row{name: name, began: m.cpu()}
	case "pause":
		r.cpu += m.cpu() - r.began
	case "cont":
		r.began = m.cpu()
	case "pass", "fail", "skip":
		r.cpu += m.cpu() - r.began
		r.took = time.Duration(e.Elapsed * float64(time.Second))
		m.rows = append(m.rows, r)
		delete(m.open, name)
	}
}

// read handles the events of one command.
func (m *meter) read(events io.Reader) error {
	for lines := bufio.NewReader(events); ; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil // the command has ended: its status says how
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("no event of a test: %q: %w", line, err)
		}
		m.on(e)
	}
}

// print writes the n slowest tests. A test on several processors may use more CPU than it takes time.
func (m *meter) print(w io.Writer, n int) {
	slices.SortFunc(m.rows, func(a, b *row) int { return int(b.took - a.took) })
	var took, cpu time.Duration
	for _, r := range m.rows {
		took, cpu = took+r.took, cpu+r.cpu
	}
	fmt.Fprintf(w, "%8s %8s %8s  test\n", "seconds", "waiting", "CPU")
	line := func(name string, took, cpu time.Duration) {
		fmt.Fprintf(w, "%8.2f %8.2f %8.2f  %s\n", took.Seconds(), max(0, took-cpu).Seconds(), cpu.Seconds(), name)
	}
	for _, r := range m.rows[:min(n, len(m.rows))] {
		line(r.name, r.took, r.cpu)
	}
	line(fmt.Sprintf("all %d tests", len(m.rows)), took, cpu)
}

// cpuBelow returns the CPU that this process's descendants have used, with those that have ended.
func cpuBelow() time.Duration {
	entries, _ := os.ReadDir("/proc")
	parents, ticks := make(map[int]int), make(map[int]int64)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended meanwhile
		}
		// proc(5): pid (comm) state ppid …; utime, stime, cutime, cstime are fields 14 to 17.
		f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		parents[pid], _ = strconv.Atoi(string(f[1]))
		for _, field := range f[11:15] {
			n, _ := strconv.ParseInt(string(field), 10, 64)
			ticks[pid] += n
		}
	}
	var sum int64
	for pid, n := range ticks {
		for p := parents[pid]; p > 1; p = parents[p] {
			if p == os.Getpid() {
				sum += n
				break
			}
		}
	}
	return time.Duration(sum) * (time.Second / 100) // USER_HZ is 100
}

// goTests runs the tests of packages.
func goTests(m *meter, packages []string) error {
	args := []string{"test", "-json", "-p", "1", "-parallel", "1", "-count", "1", "-timeout", "60m"}
	cmd := exec.Command("go", append(args, packages...)...)
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	err = m.read(events)
	m.failed = cmd.Wait() != nil || m.failed
	return err
}

// pythonTests runs those of the Python SDK.
func pythonTests(m *meter, python string) error {
	events, plugin, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command(python, "-m", "pytest", "-q", "-p", "slow", "sdk/python")
	cmd.Env = append(os.Environ(), "PYTHONPATH=tests/times")
	cmd.ExtraFiles = []*os.File{plugin} // descriptor 3
	cmd.Stdout, cmd.Stderr = m.log, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	plugin.Close()
	err = m.read(events)
	m.failed = cmd.Wait() != nil || m.failed
	return err
}

func main() {
	n := flag.Int("n", 20, "how many tests are listed")
	python := flag.String("python", "", "a Python with pytest: the tests of the Python SDK are run with it, too")
	verbose := flag.Bool("v", false, "print what the tests print")
	flag.Parse()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	// A daemon whose parent has ended is still below this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "error: PR_SET_CHILD_SUBREAPER:", err)
		os.Exit(2)
	}
	m := &meter{cpu: cpuBelow, open: make(map[string]*row), log: io.Discard}
	if *verbose {
		m.log = os.Stderr
	}
	err := goTests(m, packages)
	if err == nil && *python != "" {
		err = pythonTests(m, *python)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(2)
	}
	m.print(os.Stdout, *n)
	if m.failed {
		fmt.Fprintln(os.Stderr, "error: tests failed: run again with -v")
		os.Exit(1)
	}
}

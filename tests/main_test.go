// Package tests looks at locksidecar from outside: the binary that ships, real
// Redis servers, real client processes in Go and Python.
//
// Every daemon here stands for one host: it has a socket and a uuid of its own
// and shares nothing with the others but Redis.
package tests

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// program is the locksidecar that all tests run.
var program string

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(runRole(role))
	}
	flag.Parse()
	// With the race detector each process would end a second late.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Exit(runTests(m))
}

// otherProgram names a daemon to be measured in place of this tree's, for instance an
// earlier version.
const otherProgram = "LOCKSIDECAR_MEASURED_PROGRAM"

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lsc-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	// Another uid must be able to start it (TestSocketNotPermitted).
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	program = filepath.Join(dir, "locksidecar")

	args := []string{"build", "-o", program}
	if raceEnabled {
		// A race in the daemon ends it with a report, and the test that runs it.
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "../cmd/locksidecar")...)
	if other := os.Getenv(otherProgram); other != "" && *measure {
		program = other
	} else if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the binary: %v\n%s", err, out)
		return 1
	}

	code := m.Run()
	endRedissonProcess()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// patience is how long a test waits for something that must happen. It is no
// measure of speed: a machine that is busy with other things needs it.
const patience = 30 * time.Second

// eventually waits until cond is true.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		if cond() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// shortDir is a directory whose path leaves room for a socket's name; that of
// t.TempDir may not (sun_path has 108 bytes).
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lsc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// output collects what a process writes, for the test to read while it runs.
type output struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func (o *output) contains(s string) bool { return strings.Contains(o.String(), s) }

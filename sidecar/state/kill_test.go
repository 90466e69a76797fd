package state

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// What a child process of the tests does, by the value of the variable.
const childEnv = "LOCKSIDECAR_STATE_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "":
		os.Exit(m.Run())
	case "work":
		childWorks(os.Args[1], os.Args[2], os.Args[3])
	case "limited":
		childIsLimited(os.Args[1])
	case "hold":
		f, err := Open(os.Args[1])
		if err != nil {
			childFails(err)
		}
		fmt.Println("holding")
		_, _ = io.Copy(io.Discard, os.Stdin)
		f.Close()
	}
}

func childFails(why any) {
	fmt.Fprintln(os.Stderr, "child:", why)
	os.Exit(1)
}

func child(t *testing.T, does string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, args...)
	c.Env = append(os.Environ(), childEnv+"="+does)
	c.Stderr = os.Stderr
	return c
}

// chunk is how many calls a child generates before it makes them in a row, so that it is in
// one of them most of the time.
const chunk = 2000

// childWorks takes the file over and makes calls, which follow from the seed, until it is
// killed. It counts them in another file, which outlives it as the state does.
func childWorks(path, counter, seed string) {
	n, err := strconv.ParseUint(seed, 10, 64)
	if err != nil {
		childFails(err)
	}
	fd, err := unix.Open(counter, unix.O_RDWR, 0)
	if err != nil {
		childFails(err)
	}
	mem, err := unix.Mmap(fd, 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		childFails(err)
	}
	done := (*uint64)(unsafe.Pointer(&mem[0]))
	f, err := Open(path)
	if err != nil {
		childFails(err)
	}
	w, at, err := recoverFrom(f)
	if err != nil {
		childFails(err)
	}
	g := newSource(n, w)
	for {
		calls := make([]call, chunk)
		for i := range calls {
			calls[i] = g.call(w)
			calls[i].apply(&w)
		}
		fmt.Println("ready")
		for _, c := range calls {
			if !c.on(f, at) {
				childFails(f.completeness.reason)
			}
			f.Commit(0)
			atomic.AddUint64(done, 1)
		}
	}
}

// Processes that are killed while they work leave all calls that they made, and a stage of
// the one in which they died. A copy that was made while they worked is refused, unless it
// has that too.
//
// Shows docs/guarantees.md: The state file is gone, damaged, of another boot.
func TestKilledAtAnyMoment(t *testing.T) {
	lives := harness.Pick(12, 120)
	seed, random := harness.Seed(t), harness.Random(t)
	dir := t.TempDir()
	path, counter := filepath.Join(dir, "state"), filepath.Join(dir, "done")
	f := mustOpen(t, path, thisHost())
	uuid := f.Recovered().UUID
	f.Close()
	w := emptyWorld()
	total, torn, stale := uint64(0), 0, 0
	for life := range lives {
		writeFile(t, counter, make([]byte, 8))
		c := child(t, "work", path, counter, strconv.FormatUint(seed+uint64(life), 10))
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		var backup []byte
		for i := range 1 + random.IntN(4) {
			if !lines.Scan() {
				t.Fatalf("the child ended: %v", c.Wait())
			}
			if i == 0 {
				backup = readFile(t, path)
			}
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the child ended before it was killed: %v", err)
		}

		done := words(readFile(t, counter))[0]
		total += done
		g := newSource(seed+uint64(life), w)
		for range done {
			g.call(w).apply(&w)
		}
		stages := g.call(w).stages(w)
		isStage := func(got world) int {
			return slices.IndexFunc(stages, func(s world) bool { return got.equal(s.recovered()) })
		}

		state, sequence := readFile(t, path), readFile(t, path+".seq")
		writeFile(t, path, backup)
		if f, err = Open(path); err != nil {
			t.Fatal(err)
		}
		r := f.Recovered()
		f.Close()
		if r.Reset {
			stale++
		} else if got, err := worldOf(r); err != nil || isStage(got) < 0 {
			t.Fatalf("life %d: a stale copy is accepted: %v\n%s", life, err, got.diff(w.recovered()))
		}
		writeFile(t, path, state)
		writeFile(t, path+".seq", sequence)

		if f, err = Open(path); err != nil {
			t.Fatal(err)
		}
		r = f.Recovered()
		f.Close()
		got, err := worldOf(r)
		if err != nil {
			t.Fatal(err)
		}
		if r.Reset || r.UUID != uuid {
			t.Fatalf("life %d: reset: %s", life, r.ResetReason)
		}
		i := isStage(got)
		if i < 0 {
			t.Fatalf("life %d, after %d calls, recovered and expected:\n%s", life, done, got.diff(w.recovered()))
		}
		if i > 0 {
			torn++
		}
		w = got
	}
	t.Logf("%d processes killed, %d calls, %d of the last ones begun and seen, %d stale copies refused", lives, total, torn, stale)
	if stale < lives/4 { // the scheduler decides how far each process gets
		t.Error("too few stale copies to prove anything")
	}
}

func TestOneProcessHasTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	c := child(t, "hold", path)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if !bufio.NewScanner(out).Scan() {
		t.Fatal(c.Wait())
	}
	before := readFile(t, path)
	if f, err := Open(path); err == nil {
		f.Close()
		t.Error("two processes have the file")
	} else if !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", c.Process.Pid)) {
		t.Error(err)
	}
	if !slices.Equal(before, readFile(t, path)) {
		t.Error("the process that was refused changed the file")
	}
	in.Close()
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, path, thisHost())
	if r := f.Recovered(); r.Reset {
		t.Error(r.ResetReason)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", os.Getpid())) {
		t.Errorf("the same process again: %v", err)
	}
}

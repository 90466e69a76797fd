package state

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
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

// chunk is how many deeds a child has ready before it does them in a row, so that
// it is in the middle of one most of the time.
const chunk = 2000

// childWorks takes the file over and does what the seed says until it is killed. It
// counts what is done in a file of its own, which outlives it as the state does.
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
	w, at, err := takenOver(f)
	if err != nil {
		childFails(err)
	}
	g := newSource(n, w)
	for {
		deeds := make([]deed, chunk)
		for i := range deeds {
			deeds[i] = g.deed(w)
			deeds[i].apply(&w)
		}
		fmt.Println("ready")
		for _, d := range deeds {
			if !d.doIn(f, at) {
				childFails(f.gap.reason)
			}
			f.Commit(0)
			atomic.AddUint64(done, 1)
		}
	}
}

// Processes that are killed while they work leave what they had done, and of the one
// deed that they died in a stage of it. A copy that was made while they worked is
// refused, unless it has that too.
func TestKilledAtAnyMoment(t *testing.T) {
	lives := 120
	if testing.Short() {
		lives = 10
	}
	dir := t.TempDir()
	path, counter := filepath.Join(dir, "state"), filepath.Join(dir, "done")
	f := mustOpen(t, path, thisHost())
	uuid := f.Left().UUID
	f.Close()
	w := emptyWorld()
	total, torn, stale := uint64(0), 0, 0
	for life := range lives {
		writeFile(t, counter, make([]byte, 8))
		c := child(t, "work", path, counter, strconv.Itoa(life))
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		var backup []byte
		for i := range 1 + rand.IntN(4) {
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
		g := newSource(uint64(life), w)
		for range done {
			g.deed(w).apply(&w)
		}
		stages := g.deed(w).stages(w)
		isStage := func(got world) int {
			return slices.IndexFunc(stages, func(s world) bool { return got.equal(s.remembered()) })
		}

		state, sequence := readFile(t, path), readFile(t, path+".seq")
		writeFile(t, path, backup)
		if f, err = Open(path); err != nil {
			t.Fatal(err)
		}
		left := f.Left()
		f.Close()
		if left.Fresh {
			stale++
		} else if got, err := worldOf(left); err != nil || isStage(got) < 0 {
			t.Fatalf("life %d: a stale copy is accepted: %v\n%s", life, err, got.diff(w.remembered()))
		}
		writeFile(t, path, state)
		writeFile(t, path+".seq", sequence)

		if f, err = Open(path); err != nil {
			t.Fatal(err)
		}
		left = f.Left()
		f.Close()
		got, err := worldOf(left)
		if err != nil {
			t.Fatal(err)
		}
		if left.Fresh || left.UUID != uuid {
			t.Fatalf("life %d: fresh: %s", life, left.Why)
		}
		i := isStage(got)
		if i < 0 {
			t.Fatalf("life %d, after %d deeds, left and expected:\n%s", life, done, got.diff(w.remembered()))
		}
		if i > 0 {
			torn++
		}
		w = got
	}
	t.Logf("%d processes killed, %d deeds, %d of the last ones begun and seen, %d stale copies refused", lives, total, torn, stale)
	if stale < lives/2 {
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
		t.Error("the one that was refused changed the file")
	}
	in.Close()
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, path, thisHost())
	if left := f.Left(); left.Fresh {
		t.Error(left.Why)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", os.Getpid())) {
		t.Errorf("the same process again: %v", err)
	}
}

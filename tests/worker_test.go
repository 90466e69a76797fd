package tests

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// A worker is a client process: this test binary started again, or worker.py. Both read
// one JSON command a line and write one JSON answer a line, in any order; a command that
// waits keeps no other from being carried out. A thread of a Redisson program is a
// worker too (redisson_worker_test.go), but carries out one command at a time.

// command is one line to a worker.
type command struct {
	N  int    `json:"n"`
	Do string `json:"do"` // lock, unlock, check, lost, lock_many, hammer, poll, stop; Go: pairs, hammer_forever; Python: fork; Redisson: below

	As     string `json:"as,omitempty"`   // the handle's name in the worker
	Name   string `json:"name,omitempty"` // the lock's; a prefix for lock_many
	WaitMS int64  `json:"wait_ms"`        // -1: forever
	Lease  int64  `json:"lease_ms,omitempty"`
	Hold   int64  `json:"max_hold_ms,omitempty"`
	Count  int    `json:"count,omitempty"`    // of locks, or of rounds
	Redis  string `json:"redis,omitempty"`    // a Unix socket: where the counter is
	Key    string `json:"key,omitempty"`      // of the counter
	Shared bool   `json:"shared,omitempty"`   // pairs: all on one lock
	Many   bool   `json:"many,omitempty"`     // pairs: each on a hundred locks in turn
	ForMS  int64  `json:"for_ms,omitempty"`   // poll: how long; it ends before, after Count grants if that is not 0
	Pause  int64  `json:"pause_ms,omitempty"` // poll: after each grant

	// Redisson: lock, unlock, hammer, poll, stop (ends the poll), look, get_token,
	// force_unlock, set_bucket, delete, set_permits, connect, disconnect.
	Client   string   `json:"client,omitempty"`      // the RedissonClient's name; ask fills it in
	Thread   string   `json:"thread,omitempty"`      // the same
	Object   string   `json:"object,omitempty"`      // "": lock; nonreentrant, fenced, spin, fair, multi, read, write, semaphore
	Names    []string `json:"names,omitempty"`       // multi: of the locks in it
	Watchdog int64    `json:"watchdog_ms,omitempty"` // connect: lockWatchdogTimeout; 0: Redisson's default
	Prefix   string   `json:"prefix,omitempty"`      // connect: what a NameMapper puts before each name; "": there is none

	Confirm bool `json:"confirm,omitempty"` // unlock: wait until Redis has executed the release
}

// answer is one line from a worker.
type answer struct {
	N          int     `json:"n"`
	Err        string  `json:"err,omitempty"` // "": done. held, timeout, lost, not_held, …
	Msg        string  `json:"msg,omitempty"`
	Token      uint64  `json:"token,omitempty"`
	Rounds     []round `json:"rounds,omitempty"`      // of hammer
	Reason     string  `json:"reason,omitempty"`      // lost, check: why the lock was lost
	Waits      []int64 `json:"waits,omitempty"`       // pairs: of each acquire, ns
	AtNS       int64   `json:"at_ns,omitempty"`       // CLOCK_BOOTTIME when it was done
	DeadlineNS int64   `json:"deadline_ns,omitempty"` // lost: that the handle had, on CLOCK_BOOTTIME
	PID        int     `json:"pid,omitempty"`         // fork: of the child
	Tries      int     `json:"tries,omitempty"`       // poll: how often it tried,
	Grants     int     `json:"grants,omitempty"`      // and had the lock,
	LongestNS  int64   `json:"longest_ns,omitempty"`  // and the longest time that it tried for one grant
	Yes        bool    `json:"yes,omitempty"`         // look: it is locked; force_unlock, delete, set_permits: it was done
	Mine       bool    `json:"mine,omitempty"`        // look: the thread holds it,
	Entries    int     `json:"entries,omitempty"`     // so many times
	TTLMS      int64   `json:"ttl_ms,omitempty"`      // look: until it expires; -1: it does not; -2: there is no key
}

// A round is one pass of hammer: what was read from the counter while the lock
// was held with this token.
type round struct {
	Value int    `json:"value"`
	Token uint64 `json:"token"`
}

// ---- the test's side ----------------------------------------------------------

type worker struct {
	*workerProcess
	t testing.TB

	client, thread string // of Redisson, that every command is for
}

// A workerProcess is a process that reads commands and writes answers.
type workerProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr output
	exited chan struct{}

	mu      sync.Mutex // guards what follows
	lastN   int
	waiting map[int]chan answer
}

// startGoWorker starts a process that uses the Go SDK.
func startGoWorker(t testing.TB, d *daemon) *worker {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVar+"=worker", "LOCKSIDECAR_SOCKET="+d.socket)
	return startWorker(t, cmd)
}

// startPythonWorker starts a process that uses the Python SDK.
func startPythonWorker(t testing.TB, d *daemon) *worker {
	t.Helper()
	cmd := exec.Command(python(t), "-u", "worker.py")
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_SOCKET="+d.socket)
	return startWorker(t, cmd)
}

// startAnyWorker starts the i-th process of a mixed fleet: Go and Python in
// turn, Go only where there is no Python to be had.
func startAnyWorker(t testing.TB, d *daemon, i int) *worker {
	if i%2 == 1 && havePython() {
		return startPythonWorker(t, d)
	}
	return startGoWorker(t, d)
}

var pythonPath = sync.OnceValue(func() string {
	for _, p := range []string{os.Getenv("LOCKSIDECAR_PYTHON"), "../.venv/bin/python", "python3"} {
		if p == "" {
			continue
		}
		if exec.Command(p, "-c", "import locksidecar, redis").Run() == nil {
			if strings.Contains(p, "/") {
				p, _ = filepath.Abs(p)
			}
			return p
		}
	}
	return ""
})

func havePython() bool { return pythonPath() != "" || os.Getenv("LOCKSIDECAR_REQUIRE_PYTHON") != "" }

func python(t testing.TB) string {
	t.Helper()
	p := pythonPath()
	if p == "" {
		msg := "no Python that can import locksidecar and redis: run `make venv`, or set LOCKSIDECAR_PYTHON"
		if os.Getenv("LOCKSIDECAR_REQUIRE_PYTHON") != "" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	return p
}

func startWorker(t testing.TB, cmd *exec.Cmd) *worker {
	t.Helper()
	p, err := startWorkerProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{workerProcess: p, t: t}
	t.Cleanup(func() {
		w.kill9()
		if t.Failed() && w.stderr.String() != "" {
			t.Logf("worker %d:\n%s", w.pid(), tail(w.stderr.String(), 40))
		}
	})
	return w
}

func startWorkerProcess(cmd *exec.Cmd) (*workerProcess, error) {
	w := &workerProcess{cmd: cmd, exited: make(chan struct{}), waiting: map[int]chan answer{}}
	cmd.Stderr = &w.stderr
	var err error
	if w.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		lines := bufio.NewReader(stdout)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			var a answer
			if err := json.Unmarshal(line, &a); err != nil {
				a = answer{Err: "garbage", Msg: string(line)}
			}
			w.mu.Lock()
			ch := w.waiting[a.N]
			delete(w.waiting, a.N)
			w.mu.Unlock()
			if ch != nil {
				ch <- a
			}
		}
		cmd.Wait()
		close(w.exited)
	}()
	return w, nil
}

func (w *workerProcess) pid() int { return w.cmd.Process.Pid }

func (w *workerProcess) ended() bool {
	select {
	case <-w.exited:
		return true
	default:
		return false
	}
}

// signal sends a signal to the worker.
func (w *worker) signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workerProcess) kill9() {
	w.cmd.Process.Kill()
	w.stdin.Close()
	<-w.exited
}

// ask sends a command and returns where its answer will be.
func (w *worker) ask(c command) <-chan answer {
	w.t.Helper()
	ch := make(chan answer, 1)
	c.Client, c.Thread = w.client, w.thread
	w.mu.Lock()
	w.lastN++
	c.N = w.lastN
	w.waiting[c.N] = ch
	w.mu.Unlock()
	line, err := json.Marshal(c)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.stdin.Write(append(line, '\n')); err != nil {
		w.t.Fatalf("worker %d: %v\n%s", w.pid(), err, w.stderr.String())
	}
	return ch
}

// await returns an answer that must come.
func (w *worker) await(ch <-chan answer) answer {
	w.t.Helper()
	select {
	case a := <-ch:
		return a
	case <-w.exited:
		w.t.Fatalf("worker %d ended:\n%s", w.pid(), w.stderr.String())
	case <-time.After(patience):
		w.t.Fatalf("worker %d did not answer within %v:\n%s", w.pid(), patience, w.stderr.String())
	}
	panic("unreachable")
}

// try carries out a command that may fail.
func (w *worker) try(c command) answer {
	w.t.Helper()
	return w.await(w.ask(c))
}

// must carries out a command that must not fail.
func (w *worker) must(c command) answer {
	w.t.Helper()
	a := w.try(c)
	if a.Err != "" {
		w.t.Fatalf("worker %d: %s %s: %s: %s", w.pid(), c.Do, c.Name, a.Err, a.Msg)
	}
	return a
}

// lock waits for a lock; the handle has the lock's name.
func (w *worker) lock(name string) answer {
	w.t.Helper()
	return w.must(command{Do: "lock", As: name, Name: name, WaitMS: -1})
}

func (w *worker) unlock(name string) {
	w.t.Helper()
	w.must(command{Do: "unlock", As: name, Name: name})
}

// ---- the process's side ---------------------------------------------------------

// roleVar is set for a process that is not the test itself but started by it.
const roleVar = "LOCKSIDECAR_TEST_ROLE"

func runRole(role string) int {
	switch role {
	case "worker":
		if err := runWorker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	case attackRole:
		return runAttack()
	case "shared-socket":
		return runSharedSocket()
	case quitter:
		return runQuitter()
	case deafToLists, deafToPings:
		return runDeaf(role)
	}
	fmt.Fprintf(os.Stderr, "no role %q\n", role)
	return 2
}

// goWorker is the state of a worker process.
type goWorker struct {
	client *locksidecar.Client

	mu       sync.Mutex // guards what follows
	locks    map[string]*locksidecar.Lock
	stopPoll context.CancelFunc // of the last poll
	out      *json.Encoder
}

func runWorker() error {
	client, err := locksidecar.Dial(context.Background(), "")
	if err != nil {
		return err
	}
	w := &goWorker{client: client, locks: map[string]*locksidecar.Lock{}, out: json.NewEncoder(os.Stdout)}
	in := json.NewDecoder(os.Stdin)
	for {
		var c command
		if err := in.Decode(&c); err != nil {
			return nil // the test is over
		}
		go func() {
			a := w.do(c)
			a.N = c.N
			w.mu.Lock()
			defer w.mu.Unlock()
			w.out.Encode(a)
		}()
	}
}

func (w *goWorker) do(c command) answer {
	ctx := context.Background()
	switch c.Do {
	case "lock":
		l, err := w.lock(ctx, c, c.Name)
		if err != nil {
			return failed(err)
		}
		w.mu.Lock()
		w.locks[c.As] = l
		w.mu.Unlock()
		return answer{Token: l.Token(), AtNS: protocol.Now()}
	case "unlock":
		var options []locksidecar.UnlockOption
		if c.Confirm {
			options = append(options, locksidecar.Confirmed(ctx))
		}
		return failed(w.handle(c.As).Unlock(options...))
	case "check":
		return failed(w.handle(c.As).Err())
	case "lost":
		l := w.handle(c.As)
		<-l.Done()
		a := failed(l.Err())
		a.AtNS = protocol.Now()
		a.DeadlineNS = a.AtNS + int64(time.Until(l.Deadline()))
		return a
	case "lock_many":
		for i := range c.Count {
			name := fmt.Sprintf("%s%d", c.Name, i)
			l, err := w.lock(ctx, c, name)
			if err != nil {
				return failed(err)
			}
			w.mu.Lock()
			w.locks[name] = l
			w.mu.Unlock()
		}
		return answer{}
	case "hammer":
		return w.hammer(ctx, c)
	case "hammer_forever":
		for {
			l, err := w.client.Lock(ctx, c.Name)
			if err != nil {
				return failed(err)
			}
			if err := l.Unlock(); err != nil {
				return failed(err)
			}
		}
	case "poll":
		return w.poll(ctx, c)
	case "stop":
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopPoll()
		return answer{}
	case "pairs":
		return w.pairs(ctx, c)
	}
	return answer{Err: "unknown", Msg: c.Do}
}

// poll acquires and releases, tries again a millisecond after a try in vain, and counts
// how often it is granted.
func (w *goWorker) poll(ctx context.Context, c command) answer {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.ForMS)*time.Millisecond)
	defer cancel()
	w.mu.Lock()
	w.stopPoll = cancel
	w.mu.Unlock()
	var a answer
	asked := time.Now()
	for ctx.Err() == nil && (c.Count == 0 || a.Grants < c.Count) {
		a.Tries++
		l, err := w.lock(ctx, c, c.Name)
		switch {
		case err == nil:
			a.LongestNS = max(a.LongestNS, int64(time.Since(asked)))
			a.Grants++
			if err := l.Unlock(); err != nil {
				return failed(err)
			}
			time.Sleep(time.Duration(c.Pause) * time.Millisecond)
			asked = time.Now()
		case ctx.Err() == nil && !errors.Is(err, locksidecar.ErrHeld) && !errors.Is(err, locksidecar.ErrTimeout):
			return failed(err)
		default:
			time.Sleep(time.Millisecond)
		}
	}
	a.LongestNS = max(a.LongestNS, int64(time.Since(asked)))
	return a
}

// pairs acquires and releases for WaitMS with Count goroutines.
func (w *goWorker) pairs(ctx context.Context, c command) answer {
	end := time.Now().Add(time.Duration(c.WaitMS) * time.Millisecond)
	each := make([][]int64, c.Count)
	errs := make([]error, c.Count)
	var wg sync.WaitGroup
	for i := range c.Count {
		name := c.Name
		if !c.Shared {
			name += fmt.Sprintf(":%d", i)
		}
		wg.Go(func() {
			names := []string{name}
			for n := 1; c.Many && n < 100; n++ {
				names = append(names, fmt.Sprintf("%s:%d", name, n))
			}
			for asked, n := time.Now(), 0; asked.Before(end); asked, n = time.Now(), n+1 {
				l, err := w.client.Lock(ctx, names[n%len(names)])
				if err == nil {
					each[i] = append(each[i], int64(time.Since(asked)))
					err = l.Unlock()
				}
				if err != nil {
					errs[i] = err
					return
				}
			}
		})
	}
	wg.Wait()
	a := failed(errors.Join(errs...))
	a.Waits = slices.Concat(each...)
	return a
}

func (w *goWorker) lock(ctx context.Context, c command, name string) (*locksidecar.Lock, error) {
	var opts []locksidecar.Option
	if c.Lease > 0 {
		opts = append(opts, locksidecar.WithLease(time.Duration(c.Lease)*time.Millisecond))
	}
	if c.Hold > 0 {
		opts = append(opts, locksidecar.WithMaxHold(time.Duration(c.Hold)*time.Millisecond))
	}
	switch {
	case c.WaitMS == 0:
		return w.client.TryLock(ctx, name, opts...)
	case c.WaitMS > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.WaitMS)*time.Millisecond)
		defer cancel()
	}
	return w.client.Lock(ctx, name, opts...)
}

func (w *goWorker) handle(as string) *locksidecar.Lock {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.locks[as]
}

// hammer adds one to a counter again and again, by reading it and writing what
// it read plus one: without mutual exclusion additions are lost.
func (w *goWorker) hammer(ctx context.Context, c command) answer {
	counter := redis.NewClient(&redis.Options{Network: "unix", Addr: c.Redis, ClientName: "counter", PoolSize: 1})
	defer counter.Close()
	var a answer
	for range c.Count {
		l, err := w.lock(ctx, c, c.Name)
		if err != nil {
			return failed(err)
		}
		n, err := counter.Get(ctx, c.Key).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return failed(err)
		}
		if err := counter.Set(ctx, c.Key, n+1, 0).Err(); err != nil {
			return failed(err)
		}
		a.Rounds = append(a.Rounds, round{Value: n, Token: l.Token()})
		if err := l.Unlock(); err != nil {
			return failed(err)
		}
	}
	return a
}

// failed turns an error into an answer; nil is done.
func failed(err error) answer {
	if err == nil {
		return answer{}
	}
	a := answer{Err: "other", Msg: err.Error()}
	if lost := (*locksidecar.LostError)(nil); errors.As(err, &lost) {
		a.Reason = string(lost.Reason)
	}
	for _, e := range []struct {
		is   error
		name string
	}{
		{locksidecar.ErrUnconfirmed, "unconfirmed"}, {locksidecar.ErrHeld, "held"}, {locksidecar.ErrLost, "lost"}, {locksidecar.ErrNotHeld, "not_held"},
		{locksidecar.ErrDeadlock, "deadlock"}, {locksidecar.ErrUnavailable, "unavailable"},
		{locksidecar.ErrClosed, "closed"}, {locksidecar.ErrDenied, "denied"}, {locksidecar.ErrTimeout, "timeout"},
	} {
		if errors.Is(err, e.is) {
			a.Err = e.name
			break
		}
	}
	return a
}

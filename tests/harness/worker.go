package harness

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Command is what a worker reads from its standard input, as one line of JSON. A field that
// is not described applies to the command that has its name in it.
type Command struct {
	N  int    `json:"n"`
	Do string `json:"do"` // lock, unlock, check, lost, lock_many, hammer, poll, stop; in Go also pairs, hammer_forever; in Python also fork; in Redisson see below

	As     string `json:"as,omitempty"`   // the name of the handle in the worker
	Name   string `json:"name,omitempty"` // of the lock; lock_many: prefix of the names
	WaitMS int64  `json:"wait_ms"`        // -1: forever
	Lease  int64  `json:"lease_ms,omitempty"`
	Hold   int64  `json:"max_hold_ms,omitempty"`
	Count  int    `json:"count,omitempty"`    // of locks, or of rounds
	Redis  string `json:"redis,omitempty"`    // hammer: the Unix socket of the Redis with the counter
	Key    string `json:"key,omitempty"`      // hammer: of the counter
	Shared bool   `json:"shared,omitempty"`   // pairs: all goroutines use one lock
	Many   bool   `json:"many,omitempty"`     // pairs: each goroutine uses a hundred locks in turn
	ForMS  int64  `json:"for_ms,omitempty"`   // poll: how long, or until there were Count grants if that is not 0
	Pause  int64  `json:"pause_ms,omitempty"` // poll: after each grant

	// Redisson: lock, unlock, hammer, poll, stop (ends the poll), look, get_token,
	// force_unlock, set_bucket, put_map, set_rate, acquire_rate, delete, set_permits, connect,
	// disconnect; interrupt (the command that the thread carries out), is_waiting (whether the
	// thread stands still within one).
	Client   string   `json:"client,omitempty"`      // name of the RedissonClient; Send sets it
	Thread   string   `json:"thread,omitempty"`      // name of the thread; Send sets it
	Object   string   `json:"object,omitempty"`      // "": lock; nonreentrant, fenced, spin, fair, multi, group, read, write, semaphore
	Names    []string `json:"names,omitempty"`       // multi: names of its locks; group: its values
	Watchdog int64    `json:"watchdog_ms,omitempty"` // connect: lockWatchdogTimeout; 0: Redisson's default
	Prefix   string   `json:"prefix,omitempty"`      // connect: what a NameMapper puts before each name; "": no NameMapper

	Confirm bool `json:"confirm,omitempty"` // unlock: wait until Redis has executed the release
}

// Answer is what a worker writes to its standard output, as one line of JSON.
type Answer struct {
	N          int     `json:"n"`
	Err        string  `json:"err,omitempty"` // held, timeout, lost, not_held, …; "": the command has succeeded
	Msg        string  `json:"msg,omitempty"`
	Token      uint64  `json:"token,omitempty"`
	Rounds     []Round `json:"rounds,omitempty"`      // of hammer
	Reason     string  `json:"reason,omitempty"`      // lost, check: why the lock was lost
	Waits      []int64 `json:"waits,omitempty"`       // pairs, and poll of a Redisson client: time of each acquire, in ns
	AtNS       int64   `json:"at_ns,omitempty"`       // CLOCK_BOOTTIME when the command ended
	DeadlineNS int64   `json:"deadline_ns,omitempty"` // lost: deadline of the hold, in CLOCK_BOOTTIME
	PID        int     `json:"pid,omitempty"`         // fork: the child
	Tries      int     `json:"tries,omitempty"`       // poll: number of tries
	Grants     int     `json:"grants,omitempty"`      // poll: number of grants
	LongestNS  int64   `json:"longest_ns,omitempty"`  // poll: the longest time until a grant
	Yes        bool    `json:"yes,omitempty"`         // look: it is locked; force_unlock, put_map, set_rate, acquire_rate, delete, set_permits: it had an effect; is_waiting: it does
	Mine       bool    `json:"mine,omitempty"`        // look: the thread holds it
	Entries    int     `json:"entries,omitempty"`     // look: how many times the thread holds it
	TTLMS      int64   `json:"ttl_ms,omitempty"`      // look: until the key expires; -1: never; -2: there is no key
}

// A Round is one increment by hammer: the value that was read while the lock was held with
// this fencing token.
type Round struct {
	Value int    `json:"value"`
	Token uint64 `json:"token"`
}

// A Worker is a client process that executes commands: this test binary in another role, or
// worker.py. It executes commands at the same time, so that a command that waits does not
// delay others, and answers in any order. A thread in the process of Redisson is a worker,
// too, but executes one command at a time.
type Worker struct {
	*workerProcess
	t testing.TB

	client, thread string // Redisson: addressed by every command
	disconnect     func() // Redisson: closes the client; later calls do nothing
	version        string // Redisson: of the jar
}

// A workerProcess is a process that reads commands and writes answers. The process of
// Redisson has several workers.
type workerProcess struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	Stderr Output
	exited chan struct{}

	mu      sync.Mutex // guards what follows
	lastN   int
	waiting map[int]chan Answer
}

// StartGoWorker starts a process that uses the Go SDK.
func StartGoWorker(t testing.TB, d *Daemon) *Worker {
	t.Helper()
	return StartWorker(t, RoleCommand(t, d, workerRole))
}

// StartPythonWorker starts a process that uses the Python SDK.
func StartPythonWorker(t testing.TB, d *Daemon) *Worker {
	t.Helper()
	cmd := exec.Command(Python(t), "-u", filepath.Join(root, "tests", "harness", "worker.py"))
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_SOCKET="+d.Socket)
	return StartWorker(t, cmd)
}

// An SDK is a language with an SDK of locksidecar.
type SDK struct {
	Name        string
	StartWorker func(testing.TB, *Daemon) *Worker
}

// sdks are all of them.
var sdks = []SDK{{"Go", StartGoWorker}, {"Python", StartPythonWorker}}

// SDKs returns the SDKs that can be used here.
func SDKs() []SDK {
	if HasPython() {
		return sdks
	}
	return sdks[:1]
}

// ForEachSDK runs a subtest for each SDK. A subtest is skipped if its SDK cannot be used here.
func ForEachSDK(t *testing.T, test func(*testing.T, SDK)) {
	for _, sdk := range sdks {
		t.Run(sdk.Name, func(t *testing.T) { test(t, sdk) })
	}
}

// StartWorkerPerSDK starts a process that uses each of SDKs.
func StartWorkerPerSDK(t testing.TB, d *Daemon) []*Worker {
	t.Helper()
	var all []*Worker
	for _, sdk := range SDKs() {
		all = append(all, sdk.StartWorker(t, d))
	}
	return all
}

// StartNthWorker starts the i-th of several processes: Go and Python in turn, or only Go if
// there is no Python with the SDK.
func StartNthWorker(t testing.TB, d *Daemon, i int) *Worker {
	if i%2 == 1 && HasPython() {
		return StartPythonWorker(t, d)
	}
	return StartGoWorker(t, d)
}

// StartFleet starts so many workers on each host, in Go and Python by turns.
func StartFleet(t testing.TB, workersPerHost int, hosts ...*Daemon) (fleet []*Worker) {
	t.Helper()
	for _, d := range hosts {
		for i := range workersPerHost {
			fleet = append(fleet, StartNthWorker(t, d, i))
		}
	}
	return fleet
}

var pythonPath = sync.OnceValue(func() string {
	for _, p := range []string{os.Getenv("LOCKSIDECAR_PYTHON"), filepath.Join(root, ".venv/bin/python"), "python3"} {
		if p == "" {
			continue
		}
		if exec.Command(p, "-c", "import locksidecar, redis").Run() == nil {
			return p
		}
	}
	return ""
})

// HasPython reports whether there is a Python with the SDK, or has to be one.
func HasPython() bool { return pythonPath() != "" || os.Getenv("LOCKSIDECAR_REQUIRE_PYTHON") != "" }

// Python returns the path of a Python with the SDK. Without one the test is skipped, or
// fails if LOCKSIDECAR_REQUIRE_PYTHON is set.
func Python(t testing.TB) string {
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

// StartWorker starts a command that behaves as a worker.
func StartWorker(t testing.TB, cmd *exec.Cmd) *Worker {
	t.Helper()
	p, err := startWorkerProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	w := &Worker{workerProcess: p, t: t}
	t.Cleanup(func() {
		w.Kill()
		if t.Failed() && w.Stderr.String() != "" {
			t.Logf("worker %d:\n%s", w.PID(), Tail(w.Stderr.String(), 40))
		}
	})
	return w
}

func startWorkerProcess(cmd *exec.Cmd) (*workerProcess, error) {
	w := &workerProcess{cmd: cmd, exited: make(chan struct{}), waiting: map[int]chan Answer{}}
	cmd.Stderr = &w.Stderr
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
			var a Answer
			if err := json.Unmarshal(line, &a); err != nil {
				a = Answer{Err: "garbage", Msg: string(line)}
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

// PID returns the id of the process.
func (w *workerProcess) PID() int { return w.cmd.Process.Pid }

// HasEnded reports whether the process has ended.
func (w *workerProcess) HasEnded() bool {
	select {
	case <-w.exited:
		return true
	default:
		return false
	}
}

// Signal sends a signal to the process.
func (w *Worker) Signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		w.t.Fatal(err)
	}
}

// Kill ends the process with SIGKILL and waits until it has ended.
func (w *workerProcess) Kill() {
	w.cmd.Process.Kill()
	w.stdin.Close()
	<-w.exited
}

// Send sends a command. The returned channel receives its answer.
func (w *Worker) Send(c Command) <-chan Answer {
	w.t.Helper()
	ch := make(chan Answer, 1)
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
		w.t.Fatalf("worker %d: %v\n%s", w.PID(), err, w.Stderr.String())
	}
	return ch
}

// Await returns the answer to a command that Send has sent.
func (w *Worker) Await(ch <-chan Answer) Answer {
	w.t.Helper()
	select {
	case a := <-ch:
		return a
	case <-w.exited:
		w.t.Fatalf("worker %d ended:\n%s", w.PID(), w.Stderr.String())
	case <-time.After(Patience):
		w.t.Fatalf("worker %d did not answer within %v:\n%s", w.PID(), Patience, w.Stderr.String())
	}
	panic("unreachable")
}

// Try executes a command that may fail.
func (w *Worker) Try(c Command) Answer {
	w.t.Helper()
	return w.Await(w.Send(c))
}

// Must executes a command that must not fail.
func (w *Worker) Must(c Command) Answer {
	w.t.Helper()
	a := w.Try(c)
	if a.Err != "" {
		w.t.Fatalf("worker %d: %s %s: %s: %s", w.PID(), c.Do, c.Name, a.Err, a.Msg)
	}
	return a
}

// Lock acquires a lock, however long that takes. The handle has the name of the lock.
func (w *Worker) Lock(name string) Answer {
	w.t.Helper()
	return w.Must(Command{Do: "lock", As: name, Name: name, WaitMS: -1})
}

// Unlock releases the lock that Lock has acquired.
func (w *Worker) Unlock(name string) {
	w.t.Helper()
	w.Must(Command{Do: "unlock", As: name, Name: name})
}

// Enqueue has the worker acquire a lock that is held, and returns when its daemon has
// queued the request. The returned channel receives the answer.
func (w *Worker) Enqueue(d *Daemon, name string) <-chan Answer {
	w.t.Helper()
	before := Waiters(w.t, d, name)
	granted := w.Send(Command{Do: "lock", As: name, Name: name, WaitMS: -1})
	Eventually(w.t, "the request for "+name+" is queued", func() bool { return Waiters(w.t, d, name) > before })
	return granted
}

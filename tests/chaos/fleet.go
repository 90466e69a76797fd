package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/history"
)

// workerConfig is the configuration of a worker in Go or Python.
type workerConfig struct {
	Client   string     `json:"client"` // its name in the history
	Kind     workerKind `json:"kind"`
	Socket   string     `json:"socket"`   // of its host's daemon
	Logs     string     `json:"logs"`     // directory of the history
	Register string     `json:"register"` // socket of the resource that the locks guard
	Seed     uint64     `json:"seed"`
	Actors   int        `json:"actors"` // how many acquire locks at the same time
	ThinkMS  int        `json:"think_ms"`
	LeaseMS  int64      `json:"lease_ms"` // the daemon's
	Hot      int        `json:"hot"`      // number of locks that all actors want, for short times; 0: the actors use permits alone
	Cool     int        `json:"cool"`     // number of locks that are held for longer times
	Of       int        `json:"of"`       // number of permits of the semaphore; 0: there is none
}

// A workerKind is the kind of client of a worker.
type workerKind string

const (
	goKind     workerKind = "go"
	pythonKind workerKind = "py"
	plainKind  workerKind = "plain" // in Go, with sessions that are not resumable
)

// workerEnv is the variable with the configuration; a process that has it is a worker.
const workerEnv = "CHAOS_WORKER"

// A worker is a client process. When its standard input ends, it finishes its sections and exits
// with 0.
type worker struct {
	name   string
	host   *host
	kind   workerKind
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{}
	log    string
}

// A fleet is the workers of all hosts. One that is killed is replaced.
type fleet struct {
	c      *conductor
	python string // program; "": Go workers only

	mu       sync.Mutex // guards what follows
	workers  []*worker
	started  int
	problems []string // workers that ended by themselves
}

//go:embed worker.py
var workerPy []byte

func newFleet(c *conductor) (*fleet, error) {
	f := &fleet{c: c, python: c.set.python}
	script := filepath.Join(c.dir, "worker.py")
	return f, os.WriteFile(script, workerPy, 0o644)
}

// launch starts one more worker.
func (f *fleet) launch(h *host, kind workerKind) error {
	f.mu.Lock()
	f.started++
	n := f.started
	f.mu.Unlock()
	w := &worker{name: fmt.Sprintf("%s-%s-%d", h.name, kind, n), host: h, kind: kind}
	w.log = filepath.Join(f.c.dir, w.name+".log")
	config, err := json.Marshal(workerConfig{
		Client: w.name, Kind: kind, Socket: h.socket, Logs: f.c.logs, Register: f.c.registerSocket(),
		Seed: f.c.set.seed<<16 + uint64(n), Actors: f.c.set.actors, ThinkMS: f.c.set.think, LeaseMS: f.c.set.lease.Milliseconds(),
		Hot: f.c.set.hot, Cool: f.c.set.cool, Of: f.c.set.of,
	})
	if err != nil {
		return err
	}
	if kind == pythonKind {
		w.cmd = exec.Command(f.python, "-u", filepath.Join(f.c.dir, "worker.py"))
	} else {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		w.cmd = exec.Command(exe)
	}
	w.cmd.Env = append(plainEnv(), workerEnv+"="+string(config), "GOTRACEBACK=all")
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return err
	}
	f.c.log.Write(history.Event{Kind: history.Start, At: protocol.Now(), Client: w.name, Host: h.name})
	if w.exited, err = launch(w.cmd, w.log); err != nil {
		return err
	}
	f.mu.Lock()
	f.workers = append(f.workers, w)
	f.mu.Unlock()
	return nil
}

// pick returns a running worker; nil: there is none.
func (f *fleet) pick(n uint64) *worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.workers) == 0 {
		return nil
	}
	return f.workers[n%uint64(len(f.workers))]
}

// of returns the running workers of a host.
func (f *fleet) of(h *host) []*worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.workers), func(w *worker) bool { return w.host != h })
}

// kill ends a worker by kill -9, and starts another one.
func (f *fleet) kill(w *worker) error {
	f.end(w)
	return f.launch(w.host, w.kind)
}

// end ends a worker by kill -9.
func (f *fleet) end(w *worker) {
	f.mu.Lock()
	f.workers = slices.DeleteFunc(f.workers, func(other *worker) bool { return other == w })
	f.mu.Unlock()
	before := protocol.Now()
	if w.hasEnded() {
		f.reportWorker(w)
	} else {
		_ = w.cmd.Process.Kill()
		<-w.exited
		w.stdin.Close()
		f.c.log.Write(history.Event{Kind: history.Kill, Before: before, At: protocol.Now(), Client: w.name})
	}
}

// stop stops a worker with SIGSTOP for a while.
func (f *fleet) stop(ctx context.Context, w *worker, duration time.Duration) error {
	before := protocol.Now()
	_ = w.cmd.Process.Signal(syscall.SIGSTOP)
	f.c.log.Write(history.Event{Kind: history.Stop, Before: before, At: protocol.Now(), Client: w.name})
	err := pause(ctx, duration)
	before = protocol.Now()
	_ = w.cmd.Process.Signal(syscall.SIGCONT)
	f.c.log.Write(history.Event{Kind: history.Cont, Before: before, At: protocol.Now(), Client: w.name})
	return err
}

func (w *worker) hasEnded() bool {
	select {
	case <-w.exited:
		return true
	default:
		return false
	}
}

// reportWorker records a worker that ended unexpectedly, or that does not end.
func (f *fleet) reportWorker(w *worker) {
	how := "hangs"
	if w.hasEnded() {
		how = "ended with " + w.cmd.ProcessState.String()
	}
	f.mu.Lock()
	f.problems = append(f.problems, fmt.Sprintf("worker %s %s; its log: %s", w.name, how, w.log))
	f.mu.Unlock()
}

// finish has all workers finish, and waits until they have ended. A worker that has not ended by
// then hangs: finish has it write its stacks and kills it, and its log lacks an answer.
func (f *fleet) finish(ctx context.Context, limit time.Duration) error {
	f.mu.Lock()
	workers := f.workers
	f.workers = nil
	f.mu.Unlock()
	for _, w := range workers {
		if w.hasEnded() {
			f.reportWorker(w)
		}
		w.stdin.Close()
	}
	defer f.killAll(workers)
	finished := func() bool {
		return !slices.ContainsFunc(workers, func(w *worker) bool { return !w.hasEnded() })
	}
	if err := waitUntil(ctx, limit, "all workers finish", finished); err == errInterrupted {
		return err
	}
	for _, w := range workers {
		if !w.hasEnded() {
			_ = w.cmd.Process.Signal(syscall.SIGQUIT) // both languages write their stacks
			f.reportWorker(w)
		}
	}
	if err := waitUntil(ctx, time.Second, "the stacks are written", finished); err == errInterrupted {
		return err
	}
	for _, w := range workers {
		if w.hasEnded() && !w.cmd.ProcessState.Success() {
			f.reportWorker(w)
		}
	}
	return nil
}

// killAll kills workers, without an event in the history.
func (f *fleet) killAll(workers []*worker) {
	for _, w := range workers {
		_ = w.cmd.Process.Kill()
		<-w.exited
		w.stdin.Close()
	}
}

func (f *fleet) close() {
	f.mu.Lock()
	workers := f.workers
	f.workers = nil
	f.mu.Unlock()
	f.killAll(workers)
}

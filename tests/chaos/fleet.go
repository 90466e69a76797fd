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

// orders are what a worker is told when it starts, in both languages.
type orders struct {
	Client   string `json:"client"`   // its name in the history
	Socket   string `json:"socket"`   // of its host's daemon
	Logs     string `json:"logs"`     // directory of the history
	Register string `json:"register"` // socket of what the locks guard
	Seed     uint64 `json:"seed"`
	Actors   int    `json:"actors"` // how much it does at a time
	ThinkMS  int    `json:"think_ms"`
	LeaseMS  int64  `json:"lease_ms"` // the daemon's
	Hot      int    `json:"hot"`      // locks that everybody wants, for moments
	Cool     int    `json:"cool"`     // locks that are held for longer
}

// ordersVar is where they stand; a process that has it is a worker.
const ordersVar = "CHAOS_WORKER"

// A worker is a client process. It works until its standard input ends; then it
// finishes what it began and ends with 0.
type worker struct {
	name   string
	host   *host
	python bool
	cmd    *exec.Cmd
	stdin  io.Closer
	exited chan struct{}
	log    string
}

// A fleet is the workers of all hosts. One that is killed is replaced.
type fleet struct {
	c      *conductor
	python string // program; "": Go workers only

	mu      sync.Mutex // guards what follows
	workers []*worker
	started int
	sunk    []string // workers that ended by themselves
}

//go:embed worker.py
var workerPy []byte

func newFleet(c *conductor) (*fleet, error) {
	f := &fleet{c: c, python: c.set.python}
	script := filepath.Join(c.dir, "worker.py")
	return f, os.WriteFile(script, workerPy, 0o644)
}

// launch starts one more worker.
func (f *fleet) launch(h *host, python bool) error {
	f.mu.Lock()
	f.started++
	n := f.started
	f.mu.Unlock()
	lang := "go"
	if python {
		lang = "py"
	}
	w := &worker{name: fmt.Sprintf("%s-%s-%d", h.name, lang, n), host: h, python: python}
	w.log = filepath.Join(f.c.dir, w.name+".log")
	told, err := json.Marshal(orders{
		Client: w.name, Socket: h.socket, Logs: f.c.logs, Register: f.c.registerSocket(),
		Seed: f.c.set.seed<<16 + uint64(n), Actors: f.c.set.actors, ThinkMS: f.c.set.think, LeaseMS: f.c.set.lease.Milliseconds(),
		Hot: f.c.set.hot, Cool: f.c.set.cool,
	})
	if err != nil {
		return err
	}
	if python {
		w.cmd = exec.Command(f.python, "-u", filepath.Join(f.c.dir, "worker.py"))
	} else {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		w.cmd = exec.Command(exe)
	}
	w.cmd.Env = append(plainEnv(), ordersVar+"="+string(told), "GOTRACEBACK=all")
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

// pick returns a worker that runs; nil if there is none.
func (f *fleet) pick(n uint64) *worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.workers) == 0 {
		return nil
	}
	return f.workers[n%uint64(len(f.workers))]
}

// kill ends a worker as a crash would, and starts another one in its place.
func (f *fleet) kill(w *worker) error {
	f.mu.Lock()
	f.workers = slices.DeleteFunc(f.workers, func(other *worker) bool { return other == w })
	f.mu.Unlock()
	before := protocol.Now()
	if w.ended() {
		f.sink(w)
	} else {
		_ = w.cmd.Process.Kill()
		<-w.exited
		w.stdin.Close()
		f.c.log.Write(history.Event{Kind: history.Kill, Before: before, At: protocol.Now(), Client: w.name})
	}
	return f.launch(w.host, w.python)
}

// stop has a worker stand still for a while.
func (f *fleet) stop(ctx context.Context, w *worker, last time.Duration) error {
	before := protocol.Now()
	_ = w.cmd.Process.Signal(syscall.SIGSTOP)
	f.c.log.Write(history.Event{Kind: history.Stop, Before: before, At: protocol.Now(), Client: w.name})
	err := pause(ctx, last)
	before = protocol.Now()
	_ = w.cmd.Process.Signal(syscall.SIGCONT)
	f.c.log.Write(history.Event{Kind: history.Cont, Before: before, At: protocol.Now(), Client: w.name})
	return err
}

func (w *worker) ended() bool {
	select {
	case <-w.exited:
		return true
	default:
		return false
	}
}

// sink notes a worker that ended though nobody told it to, or does not though it
// should.
func (f *fleet) sink(w *worker) {
	how := "hangs"
	if w.ended() {
		how = "ended with " + w.cmd.ProcessState.String()
	}
	f.mu.Lock()
	f.sunk = append(f.sunk, fmt.Sprintf("worker %s %s; its log: %s", w.name, how, w.log))
	f.mu.Unlock()
}

// finish tells all workers to finish and waits until they have. What is not over
// by then hangs: it is made to say where, and ended; its log then lacks an answer.
func (f *fleet) finish(ctx context.Context, limit time.Duration) error {
	f.mu.Lock()
	workers := f.workers
	f.workers = nil
	f.mu.Unlock()
	for _, w := range workers {
		if w.ended() {
			f.sink(w)
		}
		w.stdin.Close()
	}
	defer f.end(workers)
	finished := func() bool {
		return !slices.ContainsFunc(workers, func(w *worker) bool { return !w.ended() })
	}
	if err := until(ctx, limit, "all workers finish", finished); err == errInterrupted {
		return err
	}
	for _, w := range workers {
		if !w.ended() {
			_ = w.cmd.Process.Signal(syscall.SIGQUIT) // both languages write their stacks
			f.sink(w)
		}
	}
	if err := until(ctx, time.Second, "the stacks are written", finished); err == errInterrupted {
		return err
	}
	for _, w := range workers {
		if w.ended() && !w.cmd.ProcessState.Success() {
			f.sink(w)
		}
	}
	return nil
}

// end kills workers. It is no part of the history.
func (f *fleet) end(workers []*worker) {
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
	f.end(workers)
}

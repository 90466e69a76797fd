package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// A spec is what a worker process is told before it starts: the first line of its
// standard input.
type spec struct {
	Contender string   `json:"contender"`
	Mode      mode     `json:"mode"`
	Redis     string   `json:"redis"`
	Socket    string   `json:"socket,omitempty"`
	Etcd      string   `json:"etcd,omitempty"`
	Names     []string `json:"names,omitempty"`
	WorkUS    int      `json:"work_us"`
	LeaseMS   int64    `json:"lease_ms"`
	Prefix    string   `json:"prefix,omitempty"`
	Count     int      `json:"count,omitempty"`
	Of        int      `json:"of,omitempty"`
	Records   string   `json:"records,omitempty"`
}

type mode string

const (
	pairs mode = "pairs" // acquire and release until told to stop
	hold  mode = "hold"  // take Count locks and keep them
	wait  mode = "wait"  // acquire one lock and say when
)

// An event is a line that a worker writes.
type event struct {
	Event      string `json:"event"`
	Msg        string `json:"msg"`
	Count      int    `json:"count"`
	At         int64  `json:"at"` // CLOCK_MONOTONIC, ns
	Errors     int    `json:"errors"`
	FirstError string `json:"first_error"`
}

// A worker is a process that locks, in whatever language.
type worker struct {
	*process
	spec  spec
	stdin io.WriteCloser
	lines chan event // closed when it writes no more
}

// startWorker starts a process and tells it what to do once it is told to go.
func startWorker(name string, cmd *exec.Cmd, s spec) (*worker, error) {
	w := &worker{spec: s, lines: make(chan event, 4)}
	var err error
	if w.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p, stdout, err := startPiped(name, cmd)
	if err != nil {
		return nil, err
	}
	w.process = p
	go func() {
		defer close(w.lines)
		defer stdout.Close()
		in := bufio.NewScanner(stdout)
		for in.Scan() {
			var e event
			if err := json.Unmarshal(in.Bytes(), &e); err != nil || e.Event == "" {
				fmt.Fprintf(&p.log, "not an event: %.200s\n", in.Bytes())
				continue
			}
			w.lines <- e
		}
	}()
	line, err := json.Marshal(s)
	if err == nil {
		err = w.tell(string(line))
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	return w, nil
}

// tell writes a line to the worker.
func (w *worker) tell(line string) error {
	if _, err := io.WriteString(w.stdin, line+"\n"); err != nil {
		if w.ended() {
			return w.died()
		}
		return fmt.Errorf("%s: %w: %s", w.name, err, w.log.last())
	}
	return nil
}

// await returns the next event, which must be the one that is wanted.
func (w *worker) await(ctx context.Context, want string, within time.Duration) (event, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case e, ok := <-w.lines:
		switch {
		case !ok:
			return e, w.died()
		case e.Event == "error":
			return e, fmt.Errorf("%s: %s", w.name, e.Msg)
		case e.Event != want:
			return e, fmt.Errorf("%s: said %q instead of %q: %s", w.name, e.Event, want, w.log.last())
		}
		return e, nil
	case <-ctx.Done():
		return event{}, fmt.Errorf("%s: did not say %q: %w: %s", w.name, want, ctx.Err(), w.log.last())
	}
}

// A fleet is the worker processes of one run.
type fleet []*worker

func (f fleet) tell(line string) error {
	for _, w := range f {
		if err := w.tell(line); err != nil {
			return err
		}
	}
	return nil
}

// await waits for the same event of all, and returns it of each.
func (f fleet) await(ctx context.Context, want string, within time.Duration) ([]event, error) {
	events := make([]event, len(f))
	deadline := time.Now().Add(within)
	for i, w := range f {
		var err error
		if events[i], err = w.await(ctx, want, time.Until(deadline)); err != nil {
			return nil, err
		}
	}
	return events, nil
}

// lasts lets time pass, in which no worker may end or complain.
func (f fleet) lasts(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, w := range f {
		select {
		case e, ok := <-w.lines:
			if !ok {
				return w.died()
			}
			return fmt.Errorf("%s: said %q while it was measured: %s", w.name, e.Event, e.Msg)
		default:
		}
	}
	return nil
}

func (f fleet) processes() []*process {
	all := make([]*process, len(f))
	for i, w := range f {
		all[i] = w.process
	}
	return all
}

// kill ends all at once, and returns when they are gone.
func (f fleet) kill() {
	for _, w := range f {
		_ = w.cmd.Process.Kill()
	}
	for _, w := range f {
		<-w.exited
		w.stdin.Close()
		for range w.lines {
		}
	}
}

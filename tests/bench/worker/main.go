// Command worker is one client process of the benchmark: it takes and gives back
// locks with one of the Go contenders, and writes down when.
//
// It is driven by lines on its standard input and answers with JSON lines on its
// standard output: a spec in, "ready" out, "go" in, what the mode has to tell out,
// "stop" in, "done" out. The end of its input is a stop as well, so no worker
// outlives the one who started it.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A spec is the first line of a worker's input: what to do.
type spec struct {
	Contender string `json:"contender"`
	Mode      string `json:"mode"` // pairs, hold or wait

	Redis  string `json:"redis"`  // URL
	Socket string `json:"socket"` // of the sidecar; an echo server's is this and ".echo"
	Etcd   string `json:"etcd"`   // URL

	Names  []string `json:"names"`   // pairs: one worker each; wait: the first is waited for
	WorkUS int64    `json:"work_us"` // pairs: asleep for so long with the lock held; 0: not at all

	// LeaseMS is the time to live of a lock that is not renewed. The sidecar has
	// one of its own.
	LeaseMS int64 `json:"lease_ms"`

	Prefix string `json:"prefix"` // hold: the locks are this and a number from 0
	Count  int    `json:"count"`  // hold: how many

	Of int `json:"of"` // pairs: one permit each of semaphores with so many, in place of locks; 0: locks

	Records string `json:"records"` // pairs: the file for the times of all pairs
}

func (s *spec) lease() time.Duration { return time.Duration(s.LeaseMS) * time.Millisecond }

// An event is a line of a worker's output.
type event struct {
	Event      string `json:"event"`
	Msg        string `json:"msg,omitempty"`         // error
	Count      int    `json:"count,omitempty"`       // held
	At         int64  `json:"at,omitempty"`          // granted: when, by the clock
	Errors     *int64 `json:"errors,omitempty"`      // done
	FirstError string `json:"first_error,omitempty"` // done
}

func say(e event) {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = os.Stdout.Write(append(line, '\n'))
	}
	if err != nil {
		// Whom this was for is gone.
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A run is what all parts of a worker share.
type run struct {
	spec
	clock
	stopped atomic.Bool // nothing new is to be begun
	failures
}

// failures are errors of a library while it is measured: counted, and gone on from.
type failures struct {
	mu    sync.Mutex // guards all
	count int64
	first string
}

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count++; f.count == 1 {
		f.first = err.Error()
	}
}

// done is the event that ends a run.
func (f *failures) done() event {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := f.count
	return event{Event: "done", Errors: &count, FirstError: f.first}
}

func main() {
	if err := work(os.Stdin); err != nil {
		say(event{Event: "error", Msg: err.Error()})
		os.Exit(1)
	}
	// Nothing is closed: the locks that are held now are left as a process leaves
	// them that ends.
	os.Exit(0)
}

// A measurement is a mode of a spec: prepare makes it ready, start sets it going
// and returns, finish is called after the stop.
type measurement interface {
	prepare() error
	start()
	finish() error
}

func work(input io.Reader) error {
	in := bufio.NewReader(input)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("no spec: the first line of standard input must be one: %w", err)
	}
	r := &run{clock: newClock()}
	if err := json.Unmarshal(line, &r.spec); err != nil {
		return fmt.Errorf("the spec, line 1 of standard input: %w", err)
	}
	m, err := r.measurement()
	if err != nil {
		return err
	}
	lines := listen(in)
	prepared := make(chan error, 1)
	go func() { prepared <- m.prepare() }()
	select {
	case err := <-prepared:
		if err != nil {
			return fmt.Errorf("%s: %w", r.Contender, err)
		}
	case line := <-lines:
		return fmt.Errorf("%q before all was ready", line)
	}
	say(event{Event: "ready"})

	if line := <-lines; line == "go" {
		m.start()
		line = <-lines
		if line != "stop" {
			return fmt.Errorf("%q: expected stop", line)
		}
	} else if line != "stop" {
		return fmt.Errorf("%q: expected go or stop", line)
	}
	r.stopped.Store(true)
	if err := m.finish(); err != nil {
		return err
	}
	say(r.done())
	return nil
}

// listen returns the lines of in, and "stop" for its end.
func listen(in *bufio.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		scan := bufio.NewScanner(in)
		for scan.Scan() {
			lines <- scan.Text()
		}
		for {
			lines <- "stop"
		}
	}()
	return lines
}

func (r *run) measurement() (measurement, error) {
	if r.LeaseMS <= 0 {
		return nil, fmt.Errorf("lease_ms %d in the spec: it must be positive", r.LeaseMS)
	}
	if r.Mode == "pairs" {
		if limit, ok := limits[r.Contender]; ok {
			return limit(r), nil
		}
	}
	connect, ok := contenders[r.Contender]
	if !ok {
		return nil, fmt.Errorf("no contender %q for mode %q: see contender.go for those there are", r.Contender, r.Mode)
	}
	if r.Of > 0 && (r.Contender != "locksidecar" || r.Mode != "pairs") {
		return nil, fmt.Errorf("of %d in the spec: contender %q has no permits in mode %q", r.Of, r.Contender, r.Mode)
	}
	switch r.Mode {
	case "pairs":
		return &pairs{run: r, connect: connect}, nil
	case "hold":
		return &hold{run: r, connect: connect}, nil
	case "wait":
		if len(r.Names) == 0 {
			return nil, fmt.Errorf("no names in the spec: mode wait needs one")
		}
		return &wait{run: r, connect: connect}, nil
	}
	return nil, fmt.Errorf("mode %q in the spec: it must be pairs, hold or wait", r.Mode)
}

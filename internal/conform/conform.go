// Package conform is a scripted sidecar that plays scenes to a client under test and judges
// what the client sends.
//
// The client is driven by a small program, the driver: it reads commands as lines of JSON and
// reports what happened. docs/conformance.md describes the commands and has the list of the
// scenes. Each scene is a function that sends commands to the driver, is the sidecar at the
// other end of the client's socket, and demands what protocol/SPEC.md demands there.
package conform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Options are what Run does.
type Options struct {
	Command  []string      // the driver and its arguments
	Scenes   []Scene       // in the order in which they are reported
	Jobs     int           // scenes that are played at the same time, each by a driver of its own; at least 1
	Patience time.Duration // how long a scene waits for what it expects
}

// Verdict is the result of a scene.
type Verdict string

const (
	OK      Verdict = "ok"
	Failed  Verdict = "FAILED"
	Skipped Verdict = "skipped" // the driver does not name a feature that the scene needs
)

// Result is what a scene has shown.
type Result struct {
	Scene    Scene
	Verdict  Verdict
	Missing  Feature  // of a skipped scene
	Expected string   // of a failed scene
	Received string   // of a failed scene
	Trace    []string // the scene's frames, commands and reports, in order
}

// ErrDriver is the kind of an error for a driver that cannot be started.
var ErrDriver = errors.New("the driver cannot be started")

// Run plays the scenes and calls report for each of them, in their order. The error is an
// ErrDriver, or that of ctx.
func Run(ctx context.Context, o Options, report func(Result)) error {
	dir, err := os.MkdirTemp("", "conform")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	results := make([]chan Result, len(o.Scenes))
	for i := range results {
		results[i] = make(chan Result, 1)
	}
	next := make(chan int)
	var workers sync.WaitGroup
	defer workers.Wait()
	for range max(1, o.Jobs) {
		workers.Go(func() {
			var d *driver // plays one scene after another, until one fails
			defer func() { d.stop() }()
			for i := range next {
				if d == nil {
					started, err := startDriver(ctx, o.Command)
					if err != nil {
						cancel(fmt.Errorf("%w: %w", ErrDriver, err))
						return
					}
					d = started
				}
				r := play(ctx, o.Scenes[i], d, filepath.Join(dir, fmt.Sprint(i)), o.Patience)
				if r.Verdict == Failed {
					d.stop()
					d = nil
				}
				results[i] <- r
			}
		})
	}
	workers.Go(func() {
		defer close(next)
		for i := range o.Scenes {
			select {
			case next <- i:
			case <-ctx.Done():
				return
			}
		}
	})
	for i := range o.Scenes {
		select {
		case r := <-results[i]:
			report(r)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

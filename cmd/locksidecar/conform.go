package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/locksidecar/locksidecar/internal/conform"
)

type conformCmd struct {
	Only     string        `help:"Play only the scenes whose names match this regular expression." placeholder:"REGEXP"`
	List     bool          `help:"Print the scenes, what each demands and where SPEC.md demands it, and play none."`
	JSON     bool          `help:"One JSON object for each scene, for programs." name:"json"`
	Trace    bool          `help:"After a failed scene print what was sent and received, in order."`
	Jobs     int           `help:"Scenes that are played at the same time, each by a driver of its own (default: ${default})." default:"4" placeholder:"N"`
	Patience time.Duration `help:"How long a scene waits for what it expects (default: ${default})." default:"10s" placeholder:"DURATION"`

	Command []string `arg:"" optional:"" passthrough:"partial" name:"command" help:"The driver of the client under test and its arguments, best behind --."`
}

func (conformCmd) Help() string {
	return `Tests a client of the protocol, in any language: plays the sidecar in scenes of which many are hard to bring about
with a real one (a connection that breaks between two claims, a grant that crosses a cancel, a lease event that arrives
late), and judges what the client sends. It needs neither a daemon nor Redis.

COMMAND is a small program, the driver: it executes commands with the client and reports the results, both as lines
of JSON. It names the features that its client has; scenes that need others are skipped. docs/conformance.md describes
the driver, and lists the scenes.

Examples:

    locksidecar conform --list
    locksidecar conform -- python3 driver.py
    locksidecar conform --only '^claims/' --jobs 1 --trace -- ./driver

Exit codes:

    0    no scene has failed
    1    a scene has failed
    64   wrong usage
    126  the driver cannot be run
    127  the driver is not found`
}

func (c *conformCmd) Validate() error {
	switch {
	case c.Jobs < 1:
		return errors.New("--jobs must be at least 1")
	case c.Patience <= 0:
		return errors.New("--patience must be more than 0")
	}
	_, err := regexp.Compile(c.Only)
	return err
}

func (c *conformCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	scenes := c.scenes()
	if len(scenes) == 0 {
		return coded{exitUsage, fmt.Errorf("no scene matches %q (see locksidecar conform --list)", c.Only)}
	}
	if c.List {
		return c.list(out, scenes)
	}
	argv := c.Command
	if len(argv) > 0 && argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return coded{exitUsage, errors.New("no driver; write: locksidecar conform -- COMMAND")}
	}
	if _, err := exec.LookPath(argv[0]); err != nil && !errors.Is(err, exec.ErrDot) {
		return cannotRun(argv[0], err)
	}
	counts := make(map[conform.Verdict]int)
	err := conform.Run(ctx, conform.Options{Command: argv, Scenes: scenes, Jobs: c.Jobs, Patience: c.Patience}, func(r conform.Result) {
		counts[r.Verdict]++
		if c.JSON {
			printResultJSON(out, r)
		} else {
			printResult(out, r, c.Trace)
		}
	})
	if errors.Is(err, conform.ErrDriver) {
		return coded{exitCannotRun, err}
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case err != nil:
		return err
	}
	if !c.JSON {
		fmt.Fprintf(out, "%d scenes: %d ok, %d failed, %d skipped\n", len(scenes), counts[conform.OK], counts[conform.Failed], counts[conform.Skipped])
	}
	if counts[conform.Failed] > 0 {
		return exitStatus(exitFailure)
	}
	return nil
}

// scenes returns the scenes that --only selects.
func (c *conformCmd) scenes() []conform.Scene {
	only := regexp.MustCompile(c.Only)
	var selected []conform.Scene
	for _, s := range conform.Scenes() {
		if only.MatchString(s.Name) {
			selected = append(selected, s)
		}
	}
	return selected
}

func (c *conformCmd) list(out io.Writer, scenes []conform.Scene) error {
	if c.JSON {
		for _, s := range scenes {
			if err := json.NewEncoder(out).Encode(sceneJSON(s)); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "SCENE\tNEEDS\tSPEC.md\tDEMANDS")
	for _, s := range scenes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, joinFeatures(s.Needs), s.Spec, s.Demand)
	}
	return w.Flush()
}

func joinFeatures(features []conform.Feature) string {
	if len(features) == 0 {
		return "-"
	}
	var names []string
	for _, f := range features {
		names = append(names, string(f))
	}
	return strings.Join(names, ",")
}

func printResult(out io.Writer, r conform.Result, withTrace bool) {
	switch r.Verdict {
	case conform.OK:
		fmt.Fprintf(out, "ok       %s\n", r.Scene.Name)
	case conform.Skipped:
		fmt.Fprintf(out, "skipped  %s: the driver does not name the feature %s\n", r.Scene.Name, r.Missing)
	case conform.Failed:
		fmt.Fprintf(out, "FAILED   %s (SPEC.md %s): expected %s; received %s\n", r.Scene.Name, r.Scene.Spec, r.Expected, oneLine(r.Received))
		if withTrace {
			for _, line := range r.Trace {
				fmt.Fprintf(out, "         | %s\n", line)
			}
		}
	}
}

// oneLine keeps the output of a driver within the line of its scene.
func oneLine(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", " | ") }

type sceneObject struct {
	Scene    string            `json:"scene"`
	Demands  string            `json:"demands"`
	Spec     string            `json:"spec"`
	Needs    []conform.Feature `json:"needs,omitempty"`
	Verdict  conform.Verdict   `json:"verdict,omitempty"`
	Missing  conform.Feature   `json:"missing,omitempty"`
	Expected string            `json:"expected,omitempty"`
	Received string            `json:"received,omitempty"`
	Trace    []string          `json:"trace,omitempty"`
}

func sceneJSON(s conform.Scene) sceneObject {
	return sceneObject{Scene: s.Name, Demands: s.Demand, Spec: s.Spec, Needs: s.Needs}
}

func printResultJSON(out io.Writer, r conform.Result) {
	o := sceneJSON(r.Scene)
	o.Verdict, o.Missing, o.Expected, o.Received = r.Verdict, r.Missing, r.Expected, r.Received
	if r.Verdict == conform.Failed {
		o.Trace = r.Trace
	}
	_ = json.NewEncoder(out).Encode(o)
}

package conform

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/locksidecar/locksidecar/internal/conform"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// play plays scenes to a client and returns the results.
func play(t *testing.T, scenes []conform.Scene, driver ...string) []conform.Result {
	t.Helper()
	var results []conform.Result
	o := conform.Options{Command: driver, Scenes: scenes, Jobs: 4, Patience: harness.Patience}
	if err := conform.Run(context.Background(), o, func(r conform.Result) { results = append(results, r) }); err != nil {
		t.Fatal(err)
	}
	if len(results) != len(scenes) {
		t.Fatalf("%d results of %d scenes", len(results), len(scenes))
	}
	return results
}

// wantConforming plays all scenes to a client, which must fail none and lack the features only.
func wantConforming(t *testing.T, lacks []conform.Feature, driver ...string) {
	t.Helper()
	missing := make(map[conform.Feature]bool)
	for _, f := range lacks {
		missing[f] = true
	}
	for _, r := range play(t, conform.Scenes(), driver...) {
		switch {
		case r.Verdict == conform.Failed:
			t.Errorf("%s (SPEC.md %s): expected %s; received %s", r.Scene.Name, r.Scene.Spec, r.Expected, r.Received)
			for _, line := range r.Trace {
				t.Log(line)
			}
		case r.Verdict == conform.Skipped && !missing[r.Missing]:
			t.Errorf("%s is skipped: the driver does not name %s", r.Scene.Name, r.Missing)
		}
	}
}

// goDriver compiles the driver of the Go SDK.
func goDriver(t *testing.T) string {
	t.Helper()
	return harness.Build(t, "conform-driver", "./tests/conform/driver")
}

func TestGoSDKConforms(t *testing.T) {
	t.Parallel()
	wantConforming(t, nil, goDriver(t))
}

func TestPythonSDKConforms(t *testing.T) {
	t.Parallel()
	for client, lacks := range map[string][]conform.Feature{
		"threads": {conform.Notify, conform.Cancel},
		"asyncio": {conform.Notify},
	} {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			wantConforming(t, lacks, harness.Python(t), "driver.py", client)
		})
	}
}

func TestTypeScriptClientConforms(t *testing.T) {
	t.Parallel()
	node, dist := harness.TypeScript(t)
	wantConforming(t, []conform.Feature{conform.ReadWrite}, node, filepath.Join(dist, "driver.js"))
}

package conform

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/conform"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// liar is a driver that reports success and does nothing.
const liar = `echo '{"driver":"liar","features":[]}'; n=0; while read -r line; do n=$((n+1)); echo "{\"n\":$n,\"ok\":true}"; done`

func TestConformReportsEachSceneInALine(t *testing.T) {
	t.Parallel()
	driver := goDriver(t)
	for _, c := range []struct {
		args []string
		code int
		want []string // lines, or their beginnings with …
	}{
		{
			[]string{"--only", "^(hello/first|lock/try)$", "--", driver}, 0,
			[]string{"ok       hello/first", "ok       lock/try", "2 scenes: 2 ok, 0 failed, 0 skipped"},
		},
		{
			[]string{"--only", "^(hello/first|lock/owners)$", "--jobs", "1", "--patience", "100ms", "--", "sh", "-c", liar}, 1,
			[]string{
				"FAILED   hello/first (SPEC.md §4.1): expected the client connects; received no connection in 100ms",
				"skipped  lock/owners: the driver does not name the feature owners",
				"2 scenes: 0 ok, 1 failed, 1 skipped",
			},
		},
		{
			[]string{"--only", "^hello/first$", "--patience", "100ms", "--trace", "--", "sh", "-c", liar}, 1,
			[]string{"FAILED   hello/first …", `         | …driver ← {"n":1,"do":"open",…`, `         | …driver → {"n":1,"ok":true}`, "1 scenes: …"},
		},
	} {
		r := harness.RunProgram(t, nil, append([]string{"conform"}, c.args...)...)
		lines := strings.Split(strings.TrimSuffix(r.Stdout, "\n"), "\n")
		if r.Code != c.code || len(lines) < len(c.want) {
			t.Errorf("conform %q exits with %d and prints %q; %s", c.args, r.Code, lines, r.Stderr)
			continue
		}
		for i, want := range c.want {
			if !containsParts(lines[i], want) {
				t.Errorf("conform %q prints %q as line %d; want %q", c.args, lines[i], i+1, want)
			}
		}
	}
}

// containsParts reports whether a line has the parts between the …, in order.
func containsParts(line, pattern string) bool {
	for part := range strings.SplitSeq(pattern, "…") {
		at := strings.Index(line, part)
		if at < 0 {
			return false
		}
		line = line[at+len(part):]
	}
	return true
}

func TestConformRefusesWrongUsage(t *testing.T) {
	t.Parallel()
	notExecutable := filepath.Join(t.TempDir(), "driver")
	if err := os.WriteFile(notExecutable, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 64, "no driver"},
		{[]string{"--only", "nothing", "--", "true"}, 64, `no scene matches "nothing"`},
		{[]string{"--only", "(", "--", "true"}, 64, "missing closing )"},
		{[]string{"--jobs", "0", "--", "true"}, 64, "--jobs must be at least 1"},
		{[]string{"--", "no-such-driver"}, 127, "cannot run no-such-driver"},
		{[]string{"--", notExecutable}, 126, "permission denied"},
		{[]string{"--", "true"}, 126, "the driver ended: exit status 0"},
		{[]string{"--", "echo", "hello"}, 126, `the driver printed "hello", which is not a report`},
		{[]string{"--", "echo", "{}"}, 126, "its first line is {}"},
	} {
		r := harness.RunProgram(t, nil, append([]string{"conform"}, c.args...)...)
		if r.Code != c.code || !strings.Contains(r.Stderr, c.want) {
			t.Errorf("conform %q exits with %d and says %q; want %d and %q", c.args, r.Code, r.Stderr, c.code, c.want)
		}
	}
}

func TestConformJSONHasEachScene(t *testing.T) {
	t.Parallel()
	scenes := conform.Scenes()
	list := harness.RunProgram(t, nil, "conform", "--list", "--json")
	lines := strings.Split(strings.TrimSuffix(list.Stdout, "\n"), "\n")
	if list.Code != 0 || len(lines) != len(scenes) {
		t.Fatalf("--list --json exits with %d and prints %d lines; want %d", list.Code, len(lines), len(scenes))
	}
	for i, line := range lines {
		var got struct{ Scene, Demands, Spec string }
		if err := json.Unmarshal([]byte(line), &got); err != nil || got.Scene != scenes[i].Name || got.Demands != scenes[i].Demand {
			t.Errorf("%s: %v", line, err)
		}
	}
	r := harness.RunProgram(t, nil, "conform", "--json", "--only", "^hello/first$", "--patience", "100ms", "--", "sh", "-c", liar)
	var got struct {
		Scene, Verdict, Expected, Received string
		Trace                              []string
	}
	if err := json.Unmarshal([]byte(r.Stdout), &got); err != nil || got.Verdict != "FAILED" || got.Expected == "" || got.Received == "" || len(got.Trace) == 0 {
		t.Errorf("--json prints %q: %v", r.Stdout, err)
	}
}

// docs/conformance.md has every feature; conform --list prints the scenes.
func TestConformanceDocumentHasEachFeature(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "conformance.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range conform.Features {
		if row := "| `" + string(f.Feature) + "` | " + f.Means + " |\n"; !strings.Contains(string(text), row) {
			t.Errorf("docs/conformance.md does not have the row\n%s", row)
		}
	}
}

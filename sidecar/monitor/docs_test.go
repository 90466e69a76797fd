package monitor_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"go.yaml.in/yaml/v3"

	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/sentinel"
)

var goVersion = runtime.Version()

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// allMetrics returns each metric that there is.
func allMetrics(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	s := start(t, func(c *sidecar.Config) {
		c.MetricsNames, c.ExpectedHold = []string{"a*"}, []string{"a*=1m"}
		c.Policy = []policy.Entry{{Name: "others", Users: []string{"4711"}, Holds: 1}}
	})
	s.await(func() bool { return s.server.Redis() == "ok" }) // redis_info is there only then
	metrics := s.scrape()
	maps.Copy(metrics, gatherTopology(t, &sidecar.Stats{Shards: []sidecar.Shard{shard("a:1", 1, true)}, Sentinels: sentinel.Count{Known: 3, Answering: 3}, OpenSlots: []cluster.OpenSlot{{Slot: 42}}}))
	return metrics
}

// docs/metrics.md has each metric with its type, its labels and their values, and no other one.
func TestDocumentHasEachMetric(t *testing.T) {
	metrics := allMetrics(t)
	text := readFile(t, "../../docs/metrics.md")
	row := regexp.MustCompile("(?m)^\\| `(locksidecar_[a-z_]+)(?:\\{([a-z_,]+)\\})?` \\| (\\w+) \\| (.+) \\|$")
	seen := make(map[string]bool)
	for _, m := range row.FindAllStringSubmatch(text, -1) {
		name, labels, kind, meaning := m[1], m[2], m[3], m[4]
		seen[name] = true
		f := metrics[name]
		if f == nil {
			t.Errorf("the document has %s, which does not exist", name)
			continue
		}
		if want := strings.ToLower(f.GetType().String()); kind != want {
			t.Errorf("%s is a %s, and a %s in the document", name, want, kind)
		}
		var has []string
		for _, l := range f.Metric[0].Label {
			has = append(has, l.GetName())
		}
		if strings.Join(has, ",") != labels {
			t.Errorf("%s has the labels %v, and %q in the document", name, has, labels)
		}
		if !strings.HasPrefix(meaning, f.GetHelp()) {
			t.Errorf("%s: the document begins with %q, and its help is %q", name, meaning, f.GetHelp())
		}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if slices.Contains([]string{"result", "reason", "kind"}, l.GetName()) && !strings.Contains(text, "`"+l.GetValue()+"`") {
					t.Errorf("the document does not explain %s %q of %s", l.GetName(), l.GetValue(), name)
				}
			}
		}
	}
	for name := range metrics {
		if strings.HasPrefix(name, "locksidecar_") && !seen[name] {
			t.Errorf("the document lacks %s", name)
		}
	}
}

// named returns the metrics that a text of queries names.
func named(text string) []string {
	return regexp.MustCompile(`\b(?:locksidecar|process|go)_[a-z_]+`).FindAllString(text, -1)
}

// exists reports whether a query can name a metric.
func exists(metrics map[string]*dto.MetricFamily, name string) bool {
	if f := metrics[name]; f != nil {
		return f.GetType() != dto.MetricType_HISTOGRAM // which has no series of its own name
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && metrics[base] != nil && metrics[base].GetType() == dto.MetricType_HISTOGRAM {
			return true
		}
	}
	return false
}

func TestAlertRulesNameMetricsThatExist(t *testing.T) {
	metrics := allMetrics(t)
	text := readFile(t, "../../deploy/locksidecar-alerts.yml")
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	document := readFile(t, "../../docs/metrics.md")
	rules := 0
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			rules++
			names := named(r.Expr)
			if len(names) == 0 {
				t.Errorf("%s names no metric: %s", r.Alert, r.Expr)
			}
			for _, name := range names {
				if !exists(metrics, name) {
					t.Errorf("%s names %s, which does not exist", r.Alert, name)
				}
			}
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s lacks a severity, a summary or a description", r.Alert)
			}
			_, page, _ := strings.Cut(r.Annotations["runbook_url"], "{{ end }}/")
			pages := regexp.MustCompile(`^(?:([a-z-]+)|\{\{ if match "[a-z_|]+" \$labels\.reason \}\}([a-z-]+)\{\{ else \}\}([a-z-]+)\{\{ end \}\})\.md$`).FindStringSubmatch(page)
			if pages == nil {
				t.Errorf("%s has the runbook %q", r.Alert, r.Annotations["runbook_url"])
				continue
			}
			for _, page := range pages[1:] {
				if page != "" && !strings.Contains(runbookOf(t, r.Alert), "["+page+".md]") {
					t.Errorf("%s has the runbook %s, and docs/runbooks/README.md has it in the row %q", r.Alert, page, runbookOf(t, r.Alert))
				}
			}
			if !strings.Contains(document, "`"+r.Alert+"`") {
				t.Errorf("docs/metrics.md does not name the alert %s", r.Alert)
			}
		}
	}
	if rules != 20 {
		t.Errorf("there are %d rules, want 20", rules)
	}
}

// runbookOf returns the rows of docs/runbooks/README.md that name an alert.
func runbookOf(t *testing.T, alert string) (rows string) {
	for line := range strings.Lines(readFile(t, "../../docs/runbooks/README.md")) {
		if strings.Contains(line, "`"+alert+"`") {
			rows += line
		}
	}
	return rows
}

func TestDashboardNamesMetricsThatExist(t *testing.T) {
	metrics := allMetrics(t)
	var dashboard struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ Expr, LegendFormat string }
			GridPos struct{ X, Y, W, H int }
		}
	}
	text := readFile(t, "../../deploy/locksidecar-dashboard.json")
	if err := json.Unmarshal([]byte(text), &dashboard); err != nil {
		t.Fatal(err)
	}
	type place struct{ x, y int }
	places := make(map[place]string) // the titles of their panels
	ids := make(map[int]bool)
	queries := 0
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d %q: the id is used twice, or it has no title or no place", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := places[place{x, y}]; other != "" {
					t.Fatalf("the panels %q and %q overlap", other, p.Title)
				}
				places[place{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			queries++
			if strings.Contains(target.LegendFormat, "{{instance}}") && !strings.HasPrefix(target.Expr, "topk(") {
				t.Errorf("%s has a line for each of 200 hosts: %s", p.Title, target.Expr)
			}
			names := named(target.Expr)
			if len(names) == 0 {
				t.Errorf("%s names no metric: %s", p.Title, target.Expr)
			}
			for _, name := range names {
				if !exists(metrics, name) {
					t.Errorf("%s names %s, which does not exist", p.Title, name)
				}
			}
		}
	}
	// Losses that are an alert are shown as losses.
	for _, reason := range []string{"expired", "deleted", "stolen", "cut_short", "forced"} {
		if !regexp.MustCompile(`"expr": "sum\(increase\(locksidecar_losses_total[^\n]*` + reason).MatchString(text) {
			t.Errorf("the number of lost locks has none with the reason %s", reason)
		}
	}
	for _, metric := range []string{"redis_degraded", "redis_shard_up", "redis_slots", "redirects_total", "sentinels_answering", "trouble", "redis_open_slot_seconds"} {
		if !strings.Contains(text, "locksidecar_"+metric+"{") {
			t.Errorf("the dashboard does not show %s", metric)
		}
	}
	if queries < 10 {
		t.Errorf("the dashboard has %d queries", queries)
	}
}

package alerts

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// interval is the time between two scrapes, and between two evaluations of the rules.
const interval = 5 * time.Second

// recording is one outage. It is stored in testdata, as YAML.
type recording struct {
	Outage string             // what happened, for people
	Events map[string]float64 // when, in seconds since the first scrape
	Series map[string]string  // the values of each series, one for each scrape; "_": the scrape did not have it
}

func (r *recording) scrapes() (n int) {
	for _, values := range r.Series {
		n = max(n, len(strings.Fields(values)))
	}
	return n
}

const rulesFile = "deploy/locksidecar-alerts.yml"

// rule is an alert rule, as far as the tests look at it.
type rule struct {
	Alert string
	Expr  string
	For   string
}

func readRules(t *testing.T) (rules []rule) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(), rulesFile))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

var metricName = regexp.MustCompile(`\blocksidecar_[a-z_]+`)

// metricsOfRules returns the names of the metrics that the rules read.
func metricsOfRules(t *testing.T) (names []string) {
	t.Helper()
	for _, r := range readRules(t) {
		names = append(names, metricName.FindAllString(r.Expr, -1)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func readRecording(t *testing.T, name string) *recording {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".yml"))
	if err != nil {
		t.Fatal(err)
	}
	var r recording
	if err := yaml.Unmarshal(text, &r); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return &r
}

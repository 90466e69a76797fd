package alerts

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// incident is what the rules make of an outage.
type incident struct {
	// firing names what fires from when: so many seconds after the event "outage", or, if it is
	// negative, so many before the event "lost", the first loss of a lock.
	firing map[string]float64

	// meanwhile may fire, too, at any time after the outage.
	meanwhile []string

	// hosts is how many hosts have the outage that was recorded on one as of; 0: the one.
	hosts int
	of    string
}

var incidents = map[string]incident{
	"nothing": {},
	"redis-stopped": {
		firing: map[string]float64{"LocksidecarRedisUnreachable": 20, "LocksidecarRenewalsLate": -1, "LocksidecarLocksLost": 30},
	},
	"redis-hangs": {
		firing: map[string]float64{"LocksidecarRedisUnreachable": 25, "LocksidecarRenewalsLate": -1, "LocksidecarLocksLost": 30},
	},
	"shard-down": {
		firing: map[string]float64{
			"LocksidecarRedisShardDown": 75, "LocksidecarAcquiresFail": 90, "LocksidecarRenewalsLate": -1, "LocksidecarLocksLost": 30,
		},
	},
	"redis-full":        {firing: map[string]float64{"LocksidecarRedisDegraded": 45, "LocksidecarAcquiresFail": 90}},
	"acl-refuses":       {firing: map[string]float64{"LocksidecarRedisDegraded": 45, "LocksidecarAcquiresFail": 90}},
	"redis-stalls":      {},
	"forced":            {firing: map[string]float64{"LocksidecarLocksForced": 10}},
	"two-redis":         {firing: map[string]float64{"LocksidecarRedisDiffers": 75}},
	"data-lost":         {firing: map[string]float64{"LocksidecarLocksLost": 20}},
	"daemon-killed":     {firing: map[string]float64{"LocksidecarDown": 20}},
	"daemon-hangs":      {firing: map[string]float64{"LocksidecarDown": 20}, meanwhile: []string{"LocksidecarLocksLost", "LocksidecarRenewalsLate"}},
	"waiter-stuck":      {firing: map[string]float64{"LocksidecarWaiterStuck": 375}},
	"permits-saturated": {firing: map[string]float64{"LocksidecarPermitsSaturated": 135}},
	"slot-open":         {firing: map[string]float64{"LocksidecarSlotOpen": 105}},
	"sentinels-lost":    {firing: map[string]float64{"LocksidecarSentinelsLost": 45}},
	"state-replaced":    {firing: map[string]float64{"LocksidecarTrouble": 45}},
	"fleet-redis": {
		of: "redis-stopped", hosts: 20,
		firing:    map[string]float64{"LocksidecarFleetRedis": 20, "LocksidecarFleetLocksLost": 30},
		meanwhile: []string{"LocksidecarRedisUnreachable", "LocksidecarRenewalsLate", "LocksidecarLocksLost"},
	},
	"fleet-down": {of: "daemon-killed", hosts: 20, firing: map[string]float64{"LocksidecarFleetDown": 20}, meanwhile: []string{"LocksidecarDown"}},
	"leak":       {firing: map[string]float64{"LocksidecarLimitNear": 75, "LocksidecarHoldOverdue": 105}},
	"state-full": {firing: map[string]float64{"LocksidecarStateIncomplete": 80}},
}

// Each rule fires in its outage, before locks are lost where that is possible, and in no other.
func TestRulesFireInTheirOutages(t *testing.T) {
	tests := promtoolFile{
		RuleFiles:          []string{filepath.Join(harness.Root(), rulesFile)},
		EvaluationInterval: interval.String(),
	}
	for _, name := range slices.Sorted(maps.Keys(incidents)) {
		tests.Tests = append(tests.Tests, incidents[name].test(t, name))
	}
	text, err := yaml.Marshal(tests)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tests.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool(t), "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// A rule that no recorded outage lets fire is not tested, and neither is a metric that no
// recording has.
func TestEachRuleHasAnOutage(t *testing.T) {
	var fires []string
	recorded := make(map[string]bool)
	for name, i := range incidents {
		fires = append(fires, slices.Collect(maps.Keys(i.firing))...)
		for series := range readRecording(t, cmp.Or(i.of, name)).Series {
			recorded[strings.SplitN(series, "{", 2)[0]] = true
		}
	}
	for _, r := range readRules(t) {
		if !slices.Contains(fires, r.Alert) {
			t.Errorf("no outage lets %s fire", r.Alert)
		}
	}
	for _, m := range metricsOfRules(t) {
		if !recorded[m] {
			t.Errorf("no recording has %s: go test ./tests/alerts -run Record -record -parallel 16", m)
		}
	}
}

// The danger: an outage of Redis is a message for each of 600 hosts. Each alert of a host that an outage of the fleet
// has is silenced by one of the fleet, and of these one is left.
func TestOneOutageOfTheFleetIsOneMessage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(harness.Root(), "deploy/alertmanager-example.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Rules []struct {
			Source []string `yaml:"source_matchers"`
			Target []string `yaml:"target_matchers"`
			Equal  []string `yaml:"equal"`
		} `yaml:"inhibit_rules"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	names := func(matchers []string) []string {
		if len(matchers) != 1 {
			t.Fatalf("%q", matchers)
		}
		_, value, _ := strings.Cut(matchers[0], `"`)
		return strings.Split(strings.TrimSuffix(value, `"`), "|")
	}
	var known []string
	for _, r := range readRules(t) {
		known = append(known, r.Alert)
	}
	silences := make(map[string][]string) // by the alert that does
	for _, r := range file.Rules {
		source := names(r.Source)[0]
		silences[source] = append(silences[source], names(r.Target)...)
		if !slices.Equal(r.Equal, []string{"job"}) {
			t.Errorf("%s: equal is %q", source, r.Equal)
		}
		for _, name := range append(names(r.Target), source) {
			if !slices.Contains(known, name) {
				t.Errorf("there is no alert %s", name)
			}
		}
	}
	for name, i := range incidents {
		if i.hosts == 0 {
			continue
		}
		left := append(slices.Collect(maps.Keys(i.firing)), i.meanwhile...)
		for source := range i.firing {
			left = slices.DeleteFunc(left, func(alert string) bool { return slices.Contains(silences[source], alert) })
		}
		if len(left) != 1 {
			t.Errorf("%s: %q are left", name, left)
		}
	}
}

// What Prometheus sums up keeps the label of the job: an alert is about one of them.
func TestEachRuleKeepsTheJob(t *testing.T) {
	for _, r := range readRules(t) {
		for _, m := range regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`).FindAllStringSubmatch(r.Expr, -1) {
			if !slices.Contains(strings.Split(m[1], ", "), "job") {
				t.Errorf("%s: %s", r.Alert, m[0])
			}
		}
	}
}

// The format of the tests of promtool.
type (
	promtoolFile struct {
		RuleFiles          []string       `yaml:"rule_files"`
		EvaluationInterval string         `yaml:"evaluation_interval"`
		Tests              []promtoolTest `yaml:"tests"`
	}
	promtoolTest struct {
		Name     string           `yaml:"name"`
		Interval string           `yaml:"interval"`
		Input    []promtoolSeries `yaml:"input_series"`
		Exprs    []promtoolExpr   `yaml:"promql_expr_test"`
	}
	promtoolSeries struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	promtoolExpr struct {
		Expr    string           `yaml:"expr"`
		At      string           `yaml:"eval_time"`
		Samples []promtoolSample `yaml:"exp_samples"`
	}
	promtoolSample struct {
		Labels string  `yaml:"labels"`
		Value  float64 `yaml:"value"`
	}
)

// test returns what promtool is to find at each scrape of a recording.
func (i incident) test(t *testing.T, name string) promtoolTest {
	t.Helper()
	r := readRecording(t, cmp.Or(i.of, name))
	test := promtoolTest{Name: name, Interval: interval.String()}
	for _, series := range slices.Sorted(maps.Keys(r.Series)) {
		test.Input = append(test.Input, promtoolSeries{series, r.Series[series]})
		for n := 1; n < i.hosts; n++ {
			of := strings.Replace(series, `instance="db-7"`, fmt.Sprintf(`instance="db-7-%d"`, n), 1)
			test.Input = append(test.Input, promtoolSeries{of, r.Series[series]})
		}
	}
	event := func(what string) float64 {
		at, is := r.Events[what]
		if !is {
			t.Fatalf("%s has no event %q", name, what)
		}
		return at
	}
	expect := func(at time.Duration, expr string, fires bool) {
		e := promtoolExpr{Expr: expr, At: at.String()}
		if fires {
			e.Samples = []promtoolSample{{Labels: "{}", Value: 1}}
		}
		test.Exprs = append(test.Exprs, e)
	}
	const firing = `group(ALERTS{alertstate="firing",alertname%s})`
	known := append(slices.Sorted(maps.Keys(i.firing)), i.meanwhile...)
	for n := range r.scrapes() {
		at := time.Duration(n) * interval
		expect(at, fmt.Sprintf(firing, `!~"`+strings.Join(known, "|")+`"`), false)
		if len(known) > 0 && at.Seconds() < event("outage") {
			expect(at, fmt.Sprintf(firing, `=~".+"`), false)
		}
		for alert, after := range i.firing {
			from := event("outage") + after
			if after < 0 {
				from = event("lost") + after
			}
			// A rule fires at the first evaluation of the time that is asked for.
			if seconds := at.Seconds(); seconds <= from && seconds > from-interval.Seconds() {
				expect(at, fmt.Sprintf(firing, `="`+alert+`"`), true)
				if i.hosts > 0 { // once for all hosts
					expect(at, `count(ALERTS{alertstate="firing",alertname="`+alert+`"})`, true)
				}
			}
		}
	}
	return test
}

// promtool returns the path of Prometheus's promtool.
func promtool(t *testing.T) string {
	t.Helper()
	for _, name := range []string{filepath.Join(harness.Root(), ".promtool", "promtool"), "promtool"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	const why = "no promtool: run `make promtool`"
	if os.Getenv("LOCKSIDECAR_REQUIRE_PROMTOOL") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
	return ""
}

package alerts

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// Prometheus can parse each query of the dashboard. That they name metrics that exist,
// sidecar/monitor tests.
func TestQueriesOfTheDashboardAreValid(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(harness.Root(), "deploy/locksidecar-dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	type recorded struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	type group struct {
		Name  string     `yaml:"name"`
		Rules []recorded `yaml:"rules"`
	}
	g := group{Name: "dashboard"}
	variables := strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m")
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			g.Rules = append(g.Rules, recorded{fmt.Sprintf("query:%d", len(g.Rules)), variables.Replace(target.Expr)})
		}
	}
	if len(g.Rules) < 20 {
		t.Fatalf("there are %d queries", len(g.Rules))
	}
	rules, err := yaml.Marshal(map[string][]group{"groups": {g}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, rules, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool(t), "check", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

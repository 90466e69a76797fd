package settings

import (
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// maxNamePattern is how many bytes a pattern of names may have: it may become a label of metrics.
const maxNamePattern = 64

// CheckPatterns checks a setting that is a list of patterns of names.
func CheckPatterns(setting string, patterns []string) error {
	seen := make(map[string]bool)
	for _, p := range patterns {
		if fault := locktable.NamePattern(p).Fault(maxNamePattern); fault != "" {
			return fmt.Errorf("%s: the pattern %q: %s", setting, p, fault)
		}
		if seen[p] {
			return fmt.Errorf("%s: the pattern %q is there twice", setting, p)
		}
		seen[p] = true
	}
	return nil
}

// NamePatterns returns patterns as the lock table has them.
func NamePatterns(patterns []string) []locktable.NamePattern {
	var named []locktable.NamePattern
	for _, p := range patterns {
		named = append(named, locktable.NamePattern(p))
	}
	return named
}

// parseExpectedHold parses an element of the setting ExpectedHold.
func parseExpectedHold(text string) (locktable.ExpectedHold, error) {
	at := strings.LastIndexByte(text, '=') // a name may have one
	if at < 0 {
		return locktable.ExpectedHold{}, fmt.Errorf("expected-hold: %q has no time; write a pattern of names, = and a time, such as invoice:*=10m", text)
	}
	most, err := time.ParseDuration(text[at+1:])
	if err != nil || most <= 0 {
		return locktable.ExpectedHold{}, fmt.Errorf("expected-hold: %q: %q is no time above 0; write one such as 90s, 10m or 2h", text, text[at+1:])
	}
	return locktable.ExpectedHold{Names: locktable.NamePattern(text[:at]), Most: most}, nil
}

// ExpectedHolds parses the setting ExpectedHold.
func ExpectedHolds(all []string) ([]locktable.ExpectedHold, error) {
	if len(all) > locktable.MaxNamePatterns {
		return nil, fmt.Errorf("expected-hold: there are %d patterns; choose at most %d", len(all), locktable.MaxNamePatterns)
	}
	var holds []locktable.ExpectedHold
	var patterns []string
	for _, text := range all {
		e, err := parseExpectedHold(text)
		if err != nil {
			return nil, err
		}
		holds, patterns = append(holds, e), append(patterns, string(e.Names))
	}
	return holds, CheckPatterns("expected-hold", patterns)
}

// CheckMetricsNames checks the setting MetricsNames.
func CheckMetricsNames(patterns []string) error {
	if len(patterns) > locktable.MaxNamePatterns {
		return fmt.Errorf("metrics-names: there are %d patterns; choose at most %d, because each of them makes some 60 time series", len(patterns), locktable.MaxNamePatterns)
	}
	return CheckPatterns("metrics-names", patterns)
}

package sidecar

import (
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// maxNamePattern is how many bytes a pattern of names may have: it may become a label of metrics.
const maxNamePattern = 64

// checkPatterns checks a setting that is a list of patterns of names.
func checkPatterns(setting string, patterns []string) error {
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

func namePatterns(patterns []string) []locktable.NamePattern {
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

// checkExpectedHolds checks the setting ExpectedHold.
func checkExpectedHolds(all []string) error {
	if len(all) > locktable.MaxNamePatterns {
		return fmt.Errorf("expected-hold: there are %d patterns; choose at most %d", len(all), locktable.MaxNamePatterns)
	}
	var patterns []string
	for _, text := range all {
		e, err := parseExpectedHold(text)
		if err != nil {
			return err
		}
		patterns = append(patterns, string(e.Names))
	}
	return checkPatterns("expected-hold", patterns)
}

package sidecar

import (
	"fmt"

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

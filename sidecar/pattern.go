package sidecar

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// maxNamePattern is how many bytes a pattern of names may have: it may become a label of metrics.
const maxNamePattern = 64

// checkPatterns checks a setting that is a list of patterns of names.
func checkPatterns(setting string, patterns []string) error {
	seen := make(map[string]bool)
	for _, p := range patterns {
		switch {
		case p == "" || len(p) > maxNamePattern || !utf8.ValidString(p) || strings.ContainsFunc(p, func(r rune) bool { return !unicode.IsPrint(r) }):
			return fmt.Errorf("%s: the pattern %q: choose 1 to %d printable bytes", setting, p, maxNamePattern)
		case strings.Contains(p[:len(p)-1], "*"):
			return fmt.Errorf("%s: the pattern %q: \"*\" can stand at the end only", setting, p)
		case seen[p]:
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

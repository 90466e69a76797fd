package settings

import (
	"slices"
	"strings"
	"testing"
)

func TestBadPatternsOfNamesAreRefused(t *testing.T) {
	many := make([]string, 17)
	for i := range many {
		many[i] = strings.Repeat("a", i+1)
	}
	for _, tt := range []struct {
		patterns []string
		want     string
	}{
		{nil, ""}, {many[:16], ""}, {[]string{"*", "a*", "a", strings.Repeat("x", 64)}, ""},
		{many, "at most 16"}, {[]string{""}, "1 to 64"}, {[]string{strings.Repeat("x", 65)}, "1 to 64"}, {[]string{"a\n"}, "printable"},
		{[]string{"\xff"}, "printable"}, {[]string{"a*b"}, "at the end only"}, {[]string{"**"}, "at the end only"}, {[]string{"a", "a"}, "twice"},
	} {
		err := CheckMetricsNames(tt.patterns)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q: %v, want %q", tt.patterns, err, tt.want)
		}
	}
}

func TestBadExpectedHoldsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"invoice:*=10m": "", "a=b=90s": "", "*=1ns": "",
		"invoice:*": "has no time", "a=": "no time above 0", "a=10": "no time above 0", "a=-1s": "no time above 0", "a=0s": "no time above 0",
		"=1m": "1 to 64", "a*b=1m": "at the end only",
	} {
		_, err := ExpectedHolds([]string{text})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := ExpectedHolds([]string{"a=1m", "a=2m"}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
	if _, err := ExpectedHolds(slices.Repeat([]string{"a=1m"}, 17)); err == nil || !strings.Contains(err.Error(), "at most 16") {
		t.Error(err)
	}
}

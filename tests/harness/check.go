package harness

import (
	"errors"
	"strings"
	"testing"
)

// CheckError checks that err is of a kind (nil: of any) and that its text contains words.
func CheckError(t testing.TB, err, kind error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %v", kind)
	}
	if kind != nil && !errors.Is(err, kind) {
		t.Errorf("the error is %q, not of the kind %q", err, kind)
	}
	CheckContains(t, err.Error(), words...)
}

// CheckContains checks that a text for people contains words, in upper or lower case.
func CheckContains(t testing.TB, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(strings.ToLower(text), strings.ToLower(w)) {
			t.Errorf("%q does not contain %q", text, w)
		}
	}
}

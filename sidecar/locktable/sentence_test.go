package locktable

import (
	"strings"
	"testing"
)

func TestCommandInASentenceIsCutWithAnEllipsis(t *testing.T) {
	for cmd, want := range map[string]string{
		strings.Repeat("x", 64): strings.Repeat("x", 64),
		strings.Repeat("x", 65): strings.Repeat("x", 61) + "…",
		strings.Repeat("é", 99): strings.Repeat("é", 30) + "…",
	} {
		if got := commandInSentence(cmd); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

package repository

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The list of the decisions is written from their headings.
func TestDecisionsAreListed(t *testing.T) {
	heading := regexp.MustCompile(`^# (\d{4}): (.+)\n`)
	files, err := filepath.Glob(filepath.Join(root, "docs", "decisions", "[0-9]*.md"))
	if err != nil || len(files) == 0 {
		t.Fatal(len(files), err)
	}
	var list strings.Builder
	list.WriteString(generatedMark + "by `go test ./tests/repository -run TestDecisionsAreListed -update`, from the headings -->\n\n" +
		"# Decisions\n\n" +
		"Each file has one decision: its context, the decision, what was measured, and what it costs. " +
		"The [architecture](../architecture.md) describes the result, the [glossary](../glossary.md) the terms.\n\n" +
		"A new decision gets a number that was never used. A decision that is replaced is folded into its successor, and deleted.\n\n")
	for _, file := range files {
		name := filepath.Base(file)
		m := heading.FindStringSubmatch(read(t, file))
		if m == nil || !strings.HasPrefix(name, m[1]+"-") {
			t.Errorf("%s does not begin with \"# %s: \" and its title", name, name[:4])
			continue
		}
		fmt.Fprintf(&list, "- [%s](%s) %s\n", m[1], name, m[2])
	}
	generated(t, filepath.Join(root, "docs", "decisions", "README.md"), list.String())
}

package sim_test

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "with -scale: write the tables into docs/scaling-tables.md")

const (
	tablesFile = "../../docs/scaling-tables.md"

	tablesHead = "<!-- Written by `make scale SCALE_FLAGS=-update`: each test of internal/sim whose name begins with TestScale writes its table -->\n\n" +
		"# Scaling: the tables\n\n" +
		"[scaling.md](scaling.md) has what follows from them, and what the simulation leaves out.\n"
)

// The tables, in their order. Each is a section of the page.
const (
	oneLock     = "One lock that 1,000 hosts want"
	deadHosts   = "Hosts that die"
	heldLocks   = "1,000 locks held on each of 1,000 hosts"
	spread      = "Renewals of locks that were taken at one moment"
	comeBack    = "1,000 waiting hosts connect again"
	divideNames = "100,000 names on 30 masters"
	cluster     = "A Cluster of 30 masters"
)

var tables = []string{oneLock, deadHosts, heldLocks, spread, comeBack, divideNames, cluster}

// writeTable writes a table into docs/scaling-tables.md if that is asked for, and otherwise into a file
// that the test throws away. what says what was simulated; a row has its cells between bars.
func writeTable(t *testing.T, section, what, header string, rows []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tables.md")
	if *update {
		if !*scale {
			t.Fatal("the page has the tables of the long form: add -scale to -update")
		}
		path = tablesFile
	}
	text := what + "\n\n" + header + "\n" + strings.Repeat("|---", strings.Count(header, "|")-1) + "|\n" + strings.Join(rows, "\n") + "\n"
	if err := replaceTable(path, section, text); err != nil {
		t.Fatal(err)
	}
}

// replaceTable replaces one section of a page, and leaves the others as they are.
func replaceTable(path, section, text string) error {
	page, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	sections := sectionsOf(string(page))
	sections[section] = text
	return os.WriteFile(path, []byte(pageOf(sections)), 0o644)
}

func sectionsOf(page string) map[string]string {
	sections := make(map[string]string)
	for _, s := range strings.Split(page, "\n## ")[1:] {
		heading, text, _ := strings.Cut(s, "\n\n")
		sections[heading] = text
	}
	return sections
}

func pageOf(sections map[string]string) string {
	page := tablesHead
	for _, heading := range tables {
		if text, ok := sections[heading]; ok {
			page += "\n## " + heading + "\n\n" + strings.TrimSuffix(text, "\n") + "\n"
		}
	}
	return page
}

// The page is as the tests write it, and has all tables.
func TestTablesOfScalingAreAsTheTestsWriteThem(t *testing.T) {
	page, err := os.ReadFile(tablesFile)
	if err != nil {
		t.Fatal(err)
	}
	sections := sectionsOf(string(page))
	if pageOf(sections) != string(page) {
		t.Error("docs/scaling-tables.md is not as make scale SCALE_FLAGS=-update writes it")
	}
	for _, heading := range tables {
		if !strings.Contains(sections[heading], "\n|---") {
			t.Errorf("docs/scaling-tables.md has no table %q", heading)
		}
	}
}

func TestATableReplacesItsOwnSectionOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tables.md")
	for _, s := range [][2]string{{cluster, "last\n"}, {oneLock, "first\n"}, {comeBack, "old\n"}, {comeBack, "new\n"}} {
		if err := replaceTable(path, s[0], s[1]); err != nil {
			t.Fatal(err)
		}
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := tablesHead + "\n## " + oneLock + "\n\nfirst\n\n## " + comeBack + "\n\nnew\n\n## " + cluster + "\n\nlast\n"
	if string(page) != want {
		t.Errorf("the page is\n%s\nand not\n%s", page, want)
	}
}

func row(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |" }

// whole writes a number as 10,696.
func whole[N int | float64](n N) string {
	digits := strconv.FormatInt(int64(math.Round(float64(n))), 10)
	var groups []string
	for ; len(digits) > 3; digits = digits[:len(digits)-3] {
		groups = append(groups, digits[len(digits)-3:])
	}
	groups = append(groups, digits)
	slices.Reverse(groups)
	return strings.Join(groups, ",")
}

// about writes a number with three digits that count.
func about[N int | float64](n N) string {
	unit := math.Pow10(max(0, int(math.Log10(math.Max(1, float64(n))))-2))
	return whole(math.Round(float64(n)/unit) * unit)
}

// percent writes a share with two digits that count.
func percent(share float64) string {
	if share >= 0.1 {
		return fmt.Sprintf("%.0f %%", 100*share)
	}
	return fmt.Sprintf("%.2g %%", 100*share)
}

func millis(d time.Duration) string { return fmt.Sprintf("%g ms", float64(d)/1e6) }

// span writes seconds as 0.5 ms, 2.3 s and 54 s.
func span(s float64) string {
	switch {
	case s < 0.01:
		return fmt.Sprintf("%.1f ms", s*1e3)
	case s < 9.95:
		return fmt.Sprintf("%.1f s", s)
	}
	return fmt.Sprintf("%.0f s", s)
}

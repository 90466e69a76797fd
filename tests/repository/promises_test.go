package repository

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A comment above a test names each promise that it shows:
//
//	// Shows docs/queue.md: Turns.
//
// The words after the page begin a heading of it, or the bold words of a bullet.
// docs/tests.md is the index of these comments.
var showing = regexp.MustCompile(`(?m)^\s*(?://|#) Shows (\S+\.md): (.*)\.$`)

// A promise is a heading of a page, or the bold words with which a bullet begins.
type promise struct {
	section string // the heading above it, or its own
	words   string
	bullet  bool
	tests   map[string][]string // by folder
}

func TestEachPromiseNamesItsTests(t *testing.T) {
	pages := make(map[string][]*promise)
	for _, proof := range proofs(t) {
		if pages[proof.page] == nil {
			pages[proof.page] = promisesOf(t, proof.page)
		}
		var meant []*promise
		for _, p := range pages[proof.page] {
			if p.words == plain(proof.words) {
				meant = []*promise{p}
				break
			}
			if strings.HasPrefix(p.words, plain(proof.words)) {
				meant = append(meant, p)
			}
		}
		if len(meant) != 1 {
			t.Errorf("%s: %s shows %q, which begins %d headings and bullets of %s, and not one", proof.folder, proof.test, proof.words, len(meant), proof.page)
			continue
		}
		meant[0].tests[proof.folder] = append(meant[0].tests[proof.folder], proof.test)
	}
	for _, p := range pages["docs/guarantees.md"] {
		if p.bullet && len(p.tests) == 0 && p.section != "What you have to do" && p.section != "A fence in a database" && p.section != "Not promised" {
			t.Errorf("docs/guarantees.md promises %q, and no test has the comment that it shows it", p.words)
		}
	}
	generated(t, filepath.Join(root, "docs", "tests.md"), indexOf(pages))
}

// generated compares a page with the text that it should have, or writes it with -update.
func generated(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if read(t, path) != text {
		t.Errorf("%s is not up to date: go test ./tests/repository -run %s -update", path, t.Name())
	}
}

// indexOf returns the text of docs/tests.md.
func indexOf(pages map[string][]*promise) string {
	var b strings.Builder
	b.WriteString(generatedMark + "by `go test ./tests/repository -run TestEachPromiseNamesItsTests -update`, from the comments at the tests -->\n\n" +
		"# Tests, by what they show\n\n" +
		"`go test ./tests/guarantees -v -run TestKeepEnds` runs one; one in Python: `.venv/bin/pytest sdk/python/tests -k test_name`. A comment at a test names what it shows:\n\n" +
		"```go\n// Shows docs/queue.md: Turns.\n```\n")
	names := make([]string, 0, len(pages))
	for page := range pages {
		names = append(names, page)
	}
	slices.Sort(names)
	for _, page := range names {
		link, err := filepath.Rel("docs", page)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&b, "\n## [%s](%s)\n", page, link)
		section := ""
		for _, p := range pages[page] {
			if len(p.tests) == 0 {
				continue
			}
			if p.section != section {
				section = p.section
				fmt.Fprintf(&b, "\n**%s**\n\n", section)
			}
			var folders []string
			for folder := range p.tests {
				folders = append(folders, folder)
			}
			slices.Sort(folders)
			for i, folder := range folders {
				slices.Sort(p.tests[folder])
				folders[i] = "`" + folder + "`: " + strings.Join(p.tests[folder], ", ")
			}
			if p.bullet {
				fmt.Fprintf(&b, "- %s\n  - %s\n", p.words, strings.Join(folders, "\n  - "))
			} else {
				fmt.Fprintf(&b, "- %s\n", strings.Join(folders, "\n- "))
			}
		}
	}
	return b.String()
}

// A proof is one comment at one test.
type proof struct{ page, words, folder, test string }

// proofs returns the comments of all tests, in Go and Python.
func proofs(t *testing.T) []proof {
	t.Helper()
	tests := regexp.MustCompile(`(?m)((?:^[ \t]*(?://|#|@).*\n)+)^[ \t]*(?:func|def|async def) ((?:Test|Fuzz|test_)\w+)\(`)
	var all []proof
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "build") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, "_test.go") && !(strings.HasPrefix(name, "test_") && strings.HasSuffix(name, ".py")) {
			return nil
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		text := read(t, path)
		found := 0
		for _, m := range tests.FindAllStringSubmatch(text, -1) {
			for _, s := range showing.FindAllStringSubmatch(m[1], -1) {
				all = append(all, proof{page: s[1], words: s[2], folder: folder, test: m[2]})
				found++
			}
		}
		if n := len(showing.FindAllString(text, -1)); n != found && folder != "tests/repository" {
			t.Errorf("%s has %d comments on what a test shows, and %d of them stand at a test", path, n, found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no test has a comment on what it shows")
	}
	return all
}

// promisesOf returns the headings and the bold words of the bullets of a page.
func promisesOf(t *testing.T, page string) []*promise {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Errorf("a test shows a promise of %s: %v", page, err)
		return nil
	}
	bold := regexp.MustCompile(`^- \*\*(.+?)\*\*`)
	heading := regexp.MustCompile(`^#+ (.*)`)
	var all []*promise
	section := ""
	for line := range strings.Lines(string(text)) {
		if m := heading.FindStringSubmatch(line); m != nil {
			section = plain(m[1])
			all = append(all, &promise{section: section, words: section, tests: make(map[string][]string)})
		} else if m := bold.FindStringSubmatch(line); m != nil {
			all = append(all, &promise{section: section, words: plain(m[1]), bullet: true, tests: make(map[string][]string)})
		}
	}
	return all
}

// plain returns words without the marks of Markdown, and without a full stop at the end.
func plain(words string) string {
	words = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(words, "$1")
	return strings.TrimSuffix(strings.ReplaceAll(words, "`", ""), ".")
}

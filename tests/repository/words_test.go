package repository

import (
	"cmp"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What a reader can bear. A decision, or a kind of lock, has pages of its own and raises maxWords by
// their length; the others stay.
const (
	maxWords         = 59_775 // in all pages, but for generated ones
	maxReadme        = 900    // words
	maxLongSentences = 0.03   // the share of sentences with more than 25 words
	maxRow           = 300    // characters of a bullet, or of a row of a table
)

// generatedMark begins the first line of a page that a program writes.
const generatedMark = "<!-- Written "

// go test ./tests/repository -run TestDocumentsAreShort -v has the words and the long
// sentences of each page.
func TestDocumentsAreShort(t *testing.T) {
	words := make(map[string]int)
	sum, sentences, long := 0, 0, 0
	for _, page := range pages(t) {
		text := read(t, filepath.Join(root, page))
		if strings.HasPrefix(text, generatedMark) {
			continue
		}
		words[page] = len(strings.Fields(text))
		sum += words[page]
		for _, s := range sentencesOf(text) {
			sentences++
			if n := len(strings.Fields(s)); n > 25 {
				long++
				t.Logf("%s, %d words: %s", page, n, s)
			}
		}
		for _, row := range rowsOf(text) {
			if n := len([]rune(row)); n > maxRow {
				t.Errorf("%s has a row or bullet of %d characters, and %d are enough: %.60s…", page, n, maxRow, row)
			}
		}
	}
	for _, page := range slices.SortedFunc(maps.Keys(words), func(a, b string) int { return cmp.Compare(words[b], words[a]) }) {
		t.Logf("%6d words in %s", words[page], page)
	}
	share := float64(long) / float64(sentences)
	t.Logf("%6d words, %d sentences, %.1f %% of them with more than 25 words", sum, sentences, 100*share)
	if sum > maxWords {
		t.Errorf("the pages have %d words, and at most %d are wanted: say it in fewer, or where it is said already", sum, maxWords)
	}
	if words["README.md"] > maxReadme {
		t.Errorf("README.md has %d words, and at most %d are wanted", words["README.md"], maxReadme)
	}
	if share > maxLongSentences {
		t.Errorf("%.1f %% of the sentences have more than 25 words, and at most %.0f %% are wanted", 100*share, 100*maxLongSentences)
	}
}

// pages returns every page of the repository, as a path from its root.
func pages(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "bin" || name == "dist") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(name, ".md") {
			page, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			all = append(all, page)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	code      = regexp.MustCompile("`[^`\n]+`")
	target    = regexp.MustCompile(`\]\([^)]*\)`)
	bullet    = regexp.MustCompile(`^ *(?:[-*]|\d+\.) `)
	stop      = regexp.MustCompile(`[.!?][)*"']*(\s+|$)`)
)

// paragraphsOf returns the paragraphs, bullets and rows of a page, each as one line. What
// stands in a block of code is none.
func paragraphsOf(text string) []string {
	var all []string
	begin := true
	for line := range strings.Lines(codeBlock.ReplaceAllString(text, "")) {
		line = strings.TrimRight(line, " \n\\")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			begin = true
		case begin || bullet.MatchString(line) || strings.HasPrefix(line, "|"):
			all = append(all, strings.TrimSpace(line))
			begin = false
		default:
			all[len(all)-1] += " " + strings.TrimSpace(line)
		}
	}
	return all
}

// sentencesOf returns the sentences of a page; a piece of code is one word of it.
func sentencesOf(text string) []string {
	var all []string
	for _, p := range paragraphsOf(text) {
		p = code.ReplaceAllString(target.ReplaceAllString(bullet.ReplaceAllString(p, ""), "]"), "code")
		for cell := range strings.SplitSeq(p, "|") {
			for _, s := range stop.Split(cell, -1) {
				if len(strings.Fields(s)) > 1 {
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// rowsOf returns the bullets and the rows of tables of a page.
func rowsOf(text string) []string {
	var all []string
	for _, p := range paragraphsOf(text) {
		if bullet.MatchString(p) || strings.HasPrefix(p, "|") {
			all = append(all, target.ReplaceAllString(p, "]"))
		}
	}
	return all
}

package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua/parse"
)

// The list must not rot: code changes, and a mutant whose text is gone breaks nothing.
func TestEveryMutantAppliesAndParses(t *testing.T) {
	rules := make(map[string]bool)
	for _, m := range append(slices.Clone(mutants), withoutAssertions...) {
		if rules[m.rule] {
			t.Errorf("two mutants break the rule %q", m.rule)
		}
		rules[m.rule] = true
		text, err := os.ReadFile(filepath.Join("..", "..", m.file))
		if err != nil {
			t.Errorf("%q: %v", m.rule, err)
			continue
		}
		mutated, err := m.apply(string(text))
		if err != nil {
			t.Errorf("%q: %v", m.rule, err)
			continue
		}
		switch filepath.Ext(m.file) {
		case ".go":
			_, err = parser.ParseFile(token.NewFileSet(), m.file, mutated, parser.SkipObjectResolution)
		case ".lua":
			_, err = lua.Parse(strings.NewReader(mutated), m.file)
		default:
			t.Errorf("%q: who parses %s?", m.rule, m.file)
		}
		if err != nil {
			t.Errorf("%q: %v", m.rule, err)
		}
		if m.old == m.new {
			t.Errorf("%q changes nothing", m.rule)
		}
	}
}

// A check that runs no test lets every mutant survive.
func TestEveryCheckRunsATestThatExists(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	tests := make(map[string][]string) // by package
	for i := range mutants {
		m := &mutants[i]
		names, read := tests[m.by.pkg]
		if !read {
			files, err := filepath.Glob(filepath.Join("..", "..", m.by.pkg, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range declared.FindAllStringSubmatch(string(text), -1) {
					names = append(names, name[1])
				}
			}
			tests[m.by.pkg] = names
		}
		top, _, _ := strings.Cut(m.by.run, "/")
		wanted, err := regexp.Compile(top)
		if err != nil {
			t.Errorf("%q: %v", m.rule, err)
		} else if !slices.ContainsFunc(names, wanted.MatchString) {
			t.Errorf("%q: no test in %s matches %s", m.rule, m.by.pkg, top)
		}
	}
}

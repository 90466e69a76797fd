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

// The list must not rot: code changes, and a mutant whose node is gone breaks nothing.
func TestEveryMutantAppliesAndParses(t *testing.T) {
	rules := make(map[string]bool)
	for _, m := range append(slices.Clone(mutants), withoutAssertions...) {
		if rules[m.rule] {
			t.Errorf("two mutants break the rule %q", m.rule)
		}
		rules[m.rule] = true
		path, mutated, err := m.apply(filepath.Join("..", ".."))
		if err != nil {
			t.Errorf("%q: %v", m.rule, err)
			continue
		}
		if strings.HasSuffix(string(m.in), ".go") {
			t.Errorf("%q names the file %s: name what is declared there, which may move", m.rule, path)
		}
		switch filepath.Ext(path) {
		case ".go":
			_, err = parser.ParseFile(token.NewFileSet(), path, mutated, parser.SkipObjectResolution)
		case ".lua":
			_, err = lua.Parse(strings.NewReader(mutated), path)
		default:
			t.Errorf("%q: who parses %s?", m.rule, path)
		}
		if err != nil {
			t.Errorf("%q: %v", m.rule, err)
		}
		if m.find == m.put {
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

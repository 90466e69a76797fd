package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// place is where a mutant changes the source: a file, or a declaration of a Go package, in whichever file it is.
//
//	sidecar/store/script.lua
//	sidecar/store (*pipeline).onReply
//	sidecar/store laneTurn
type place string

func (p place) dir() string {
	if dir, _, ok := strings.Cut(string(p), " "); ok {
		return dir
	}
	return filepath.Dir(string(p))
}

// isGo says whether the Go compiler reads what is changed.
func (p place) isGo() bool {
	return strings.Contains(string(p), " ") || filepath.Ext(string(p)) == ".go"
}

// span is a part of a file.
type span struct {
	path     string // of the file, from the root of the module
	from, to int    // bytes; to -1: up to the end of the file
	nodes    map[[2]int]bool
}

// declarations are what the packages declare, by their directory and name.
var declarations = struct {
	sync.Mutex
	of map[string]map[string][]span
}{of: make(map[string]map[string][]span)}

// find returns the part of a file that a place names.
func (p place) find(root string) (span, error) {
	dir, name, isDeclaration := strings.Cut(string(p), " ")
	if !isDeclaration {
		return span{path: string(p), to: -1}, nil
	}
	declarations.Lock()
	defer declarations.Unlock()
	key := filepath.Join(root, dir)
	if declarations.of[key] == nil {
		declared, err := declarationsOf(root, dir)
		if err != nil {
			return span{}, err
		}
		declarations.of[key] = declared
	}
	spans := declarations.of[key][name]
	if len(spans) != 1 {
		return span{}, fmt.Errorf("%s declares %s %d times", dir, name, len(spans))
	}
	return spans[0], nil
}

func declarationsOf(root, dir string) (map[string][]span, error) {
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	declared := make(map[string][]span)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		add := func(name string, n ast.Node) {
			declared[name] = append(declared[name], span{
				path:  filepath.Join(dir, filepath.Base(file)),
				from:  set.Position(n.Pos()).Offset,
				to:    set.Position(n.End()).Offset,
				nodes: nodesOf(set, n),
			})
		}
		for _, d := range parsed.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				add(functionName(d), d)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						add(s.Name.Name, s)
					case *ast.ValueSpec:
						for _, name := range s.Names {
							add(name.Name, s)
						}
					}
				}
			}
		}
	}
	return declared, nil
}

// functionName is such as newLink, (*link).close or Reply.isNull.
func functionName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	pointer, isPointer := t.(*ast.StarExpr)
	if isPointer {
		t = pointer.X
	}
	switch generic := t.(type) {
	case *ast.IndexExpr:
		t = generic.X
	case *ast.IndexListExpr:
		t = generic.X
	}
	if isPointer {
		return fmt.Sprintf("(*%s).%s", t.(*ast.Ident).Name, d.Name.Name)
	}
	return fmt.Sprintf("%s.%s", t.(*ast.Ident).Name, d.Name.Name)
}

// nodesOf returns where the nodes of a declaration begin and end, as offsets in its file. A node is an expression, a
// declaration or a field, a statement or some that follow each other, or the head of a statement: what is before its block.
func nodesOf(set *token.FileSet, root ast.Node) map[[2]int]bool {
	nodes := make(map[[2]int]bool)
	add := func(from, to token.Pos) {
		nodes[[2]int{set.Position(from).Offset, set.Position(to).Offset}] = true
	}
	list := func(statements []ast.Stmt) {
		for i := range statements {
			for j := i; j < len(statements); j++ {
				add(statements[i].Pos(), statements[j].End())
			}
		}
	}
	ast.Inspect(root, func(n ast.Node) bool {
		if n == nil {
			return false
		}
		add(n.Pos(), n.End())
		switch n := n.(type) {
		case *ast.BlockStmt:
			list(n.List)
		case *ast.CaseClause:
			add(n.Case, n.Colon+1)
			list(n.Body)
		case *ast.CommClause:
			add(n.Case, n.Colon+1)
			list(n.Body)
		case *ast.IfStmt:
			add(n.If, n.Body.Lbrace+1)
		case *ast.ForStmt:
			add(n.For, n.Body.Lbrace+1)
		case *ast.RangeStmt:
			add(n.For, n.Body.Lbrace+1)
		case *ast.SwitchStmt:
			add(n.Switch, n.Body.Lbrace+1)
		}
		return true
	})
	return nodes
}

// lexeme is a token of Go with its place in a text.
type lexeme struct {
	token    token.Token
	literal  string
	from, to int
}

// lexemes returns the tokens of a Go text without its comments. Blanks and ends of lines do not matter.
func lexemes(text string) ([]lexeme, error) {
	var failed error
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, []byte(text), func(_ token.Position, why string) { failed = errors.New(why) }, 0)
	var all []lexeme
	for {
		at, t, literal := s.Scan()
		if t == token.EOF {
			return all, failed
		}
		if t == token.SEMICOLON && literal != ";" { // the end of a line
			continue
		}
		from := file.Offset(at)
		length := len(literal)
		if !t.IsLiteral() && !t.IsKeyword() && t != token.SEMICOLON {
			length = len(t.String())
		}
		all = append(all, lexeme{t, literal, from, from + length})
	}
}

// replace returns the text of a file in which put is in the place of find, which is in the span once.
func (s span) replace(text, find, put string) (string, error) {
	if s.nodes == nil {
		if n := strings.Count(text, find); n != 1 {
			return "", fmt.Errorf("%q occurs %d times in %s", find, n, s.path)
		}
		return strings.Replace(text, find, put, 1), nil
	}
	in, err := lexemes(text[s.from:s.to])
	if err != nil {
		return "", err
	}
	wanted, err := lexemes(find)
	if err != nil {
		return "", fmt.Errorf("%q: %w", find, err)
	}
	if len(wanted) == 0 {
		return "", errors.New("nothing is to be found")
	}
	var found [][2]int
	for i := range len(in) - len(wanted) + 1 {
		if same(in[i:i+len(wanted)], wanted) {
			at := [2]int{s.from + in[i].from, s.from + in[i+len(wanted)-1].to}
			if s.nodes[at] {
				found = append(found, at)
			}
		}
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%q is %d nodes of %s", find, len(found), s.path)
	}
	return text[:found[0][0]] + put + text[found[0][1]:], nil
}

func same(a, b []lexeme) bool {
	for i := range a {
		if a[i].token != b[i].token || a[i].literal != b[i].literal {
			return false
		}
	}
	return true
}

// apply returns the file that a mutant changes, from the root of the module, and its content with the rule broken.
func (m *mutant) apply(root string) (path, text string, err error) {
	at, err := m.in.find(root)
	if err != nil {
		return "", "", err
	}
	read, err := os.ReadFile(filepath.Join(root, at.path))
	if err != nil {
		return "", "", err
	}
	text, err = at.replace(string(read), m.find, m.put)
	return at.path, text, err
}

package repository

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/build"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// constants evaluates expressions of constants of the code, exported or not, without the packages
// being linked into the test:
//
//	redisop.MaxSilence                a constant
//	redisop.TopologyRetry.longest     a constant of a function
//	contest.Config.Poll               the default of a field: def(&c.Poll, …)
//	code.refreshLater                 a number in an expression of the code: see inline
type constants struct {
	*testing.T
	fset     *token.FileSet
	std      types.Importer
	packages map[string]*checkedPackage // by path
	used     map[string]bool            // of inline
}

type checkedPackage struct {
	types *types.Package
	info  types.Info
	files []*ast.File
}

func readConstants(t *testing.T) *constants {
	fset := token.NewFileSet()
	// With -trimpath a test does not know where Go is: the command does.
	exported := func(path string) (io.ReadCloser, error) {
		file, err := exec.Command("go", "list", "-export", "-f", "{{.Export}}", path).Output()
		if err != nil {
			return nil, fmt.Errorf("go list -export %s: %w", path, err)
		}
		return os.Open(strings.TrimSpace(string(file)))
	}
	return &constants{T: t, fset: fset, std: importer.ForCompiler(fset, "gc", exported), packages: make(map[string]*checkedPackage), used: make(map[string]bool)}
}

// Import has packages of this module checked, and only those of others that constants refer to: what
// the checker does not find has no value.
func (c *constants) Import(path string) (*types.Package, error) {
	if dir, ok := strings.CutPrefix(path, module+"/"); ok {
		return c.check(dir).types, nil
	}
	if path == "time" || path == "math" || path == "os" {
		return c.std.Import(path)
	}
	return nil, fmt.Errorf("%s is not read", path)
}

// check reads a package of this module.
func (c *constants) check(dir string) *checkedPackage {
	if p := c.packages[dir]; p != nil {
		return p
	}
	found, err := build.ImportDir(filepath.Join(root, dir), 0)
	if err != nil {
		c.Fatal(err)
	}
	p := &checkedPackage{info: types.Info{Types: make(map[ast.Expr]types.TypeAndValue), Scopes: make(map[ast.Node]*types.Scope)}}
	for _, name := range found.GoFiles {
		file, err := parser.ParseFile(c.fset, filepath.Join(root, dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			c.Fatal(err)
		}
		p.files = append(p.files, file)
	}
	config := types.Config{Importer: c, Error: func(error) {}}
	p.types, _ = config.Check(module+"/"+dir, c.fset, p.files, &p.info)
	c.packages[dir] = p
	return p
}

// A value is a number, or a time in ns.
type value struct {
	constant.Value
	isTime bool
}

func (c *constants) value(name string) value {
	pkg, name, _ := strings.Cut(name, ".")
	if pkg == "code" {
		return c.inline(name)
	}
	dir, ok := codeOf[pkg]
	if !ok {
		c.Fatalf("codeOf has no package %s", pkg)
	}
	p := c.check(dir)
	name, inner, _ := strings.Cut(name, ".")
	if inner == "" {
		return c.constantOf(p.types.Scope(), pkg, name)
	}
	for _, file := range p.files {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name {
				return c.constantOf(p.info.Scopes[f.Type], pkg+"."+name, inner)
			} else if ok && strings.EqualFold(f.Name.Name, "setDefaults") {
				if v := p.defaultOf(f, inner); v.Value != nil {
					return v
				}
			}
		}
	}
	c.Fatalf("package %s has no %s.%s", pkg, name, inner)
	return value{}
}

func (c *constants) constantOf(scope *types.Scope, of, name string) value {
	found, ok := scope.Lookup(name).(*types.Const)
	if !ok || found.Val().Kind() == constant.Unknown {
		c.Fatalf("%s has no constant %s: the list of tests/repository/numbers_test.go names it", of, name)
	}
	return value{found.Val(), isDuration(found.Type())}
}

// defaultOf returns the default of a field, if this function sets it.
func (p *checkedPackage) defaultOf(f *ast.FuncDecl, field string) (v value) {
	ast.Inspect(f, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 2 && types.ExprString(call.Args[0]) == "&c."+field {
			found := p.info.Types[call.Args[1]]
			v = value{found.Value, isDuration(found.Type)}
		}
		return true
	})
	return v
}

func isDuration(t types.Type) bool { return t.String() == "time.Duration" }

func (c *constants) inline(name string) value {
	of, ok := inline[name]
	if !ok {
		c.Fatalf("inline has no %s", name)
	}
	c.used[name] = true
	found := regexp.MustCompile(of.pattern).FindAllStringSubmatch(read(c.T, filepath.Join(root, of.file)), -1)
	if len(found) != 1 {
		c.Fatalf("%s has %d places like %s, and code.%s of tests/repository/numbers_test.go is one", of.file, len(found), of.pattern, name)
	}
	return value{constant.MakeFromLiteral(found[0][1], token.INT, 0), false}
}

// text evaluates an expression, and returns how a page has it. What formats has, may stand around it.
func (c *constants) text(expr string) string {
	e, err := parser.ParseExpr(expr)
	if err != nil {
		c.Fatalf("%s: %v", expr, err)
	}
	if call, ok := e.(*ast.CallExpr); ok {
		format := formats[types.ExprString(call.Fun)]
		if format == nil {
			c.Fatalf("%s: there is no such format", expr)
		}
		return format(c.evaluate(call.Args[0]))
	}
	v := c.evaluate(e)
	if v.isTime {
		return timeText(v)
	}
	return number(v.Value)
}

func (c *constants) evaluate(e ast.Expr) value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return value{constant.MakeFromLiteral(e.Value, e.Kind, 0), false}
	case *ast.SelectorExpr:
		return c.value(types.ExprString(e))
	case *ast.ParenExpr:
		return c.evaluate(e.X)
	case *ast.BinaryExpr:
		x, y := c.evaluate(e.X), c.evaluate(e.Y)
		return value{constant.BinaryOp(x.Value, e.Op, y.Value), x.isTime != y.isTime || x.isTime && e.Op != token.QUO}
	}
	c.Fatalf("%s cannot be evaluated", types.ExprString(e))
	return value{}
}

// formats are ways to write a number that is not written as 1,024, or a time that is not as 50 ms.
var formats = map[string]func(value) string{
	"ns":   func(v value) string { return timeText(v) }, // a time that is an int64 in the code
	"ms":   in(time.Millisecond),                        // without the unit, as the following
	"s":    in(time.Second),
	"KiB":  func(v value) string { return number(over(v, 1<<10)) + " KiB" },
	"MiB":  func(v value) string { return number(over(v, 1<<20)) + " MiB" },
	"word": func(v value) string { return lookUp(numerals, v) },
	"part": func(v value) string { return lookUp(fractions, v) },
	"each": func(v value) string { return strings.TrimPrefix(strings.TrimPrefix(long(v), "a "), "an ") },
	"long": long,
	"spelled": func(v value) string {
		n, unit, _ := strings.Cut(long(v), " ")
		return cmp.Or(numerals[n], n) + " " + unit
	},
}

var (
	numerals  = map[string]string{"1": "one", "2": "two", "3": "three", "4": "four", "5": "five", "8": "eight", "10": "ten"}
	fractions = map[string]string{"2": "half", "3": "third", "4": "quarter", "5": "fifth", "6": "sixth", "8": "eighth", "10": "tenth", "16": "sixteenth", "20": "twentieth", "60": "sixtieth", "120": "hundred and twentieth"}
)

func lookUp(words map[string]string, v value) string {
	n := number(v.Value)
	return cmp.Or(words[n], n)
}

func over(v value, unit int64) constant.Value {
	return constant.BinaryOp(v.Value, token.QUO, constant.MakeInt64(unit))
}

func in(unit time.Duration) func(value) string {
	return func(v value) string { return number(over(v, int64(unit))) }
}

// timeText is how pages write most times: 50 µs, 100 ms, 6.25 s.
func timeText(v value) string {
	ns, _ := constant.Float64Val(v.Value)
	switch {
	case ns < 1e6:
		return in(time.Microsecond)(v) + " µs"
	case ns < 1e9:
		return in(time.Millisecond)(v) + " ms"
	}
	return in(time.Second)(v) + " s"
}

// long is a time in the longest unit of which it is a multiple: a minute, 10 minutes, an hour.
func long(v value) string {
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{time.Hour, "an hour"}, {time.Minute, "a minute"}, {time.Second, "a second"}} {
		switch n := in(unit.of)(v); {
		case n == "1":
			return unit.name
		case !strings.Contains(n, "."):
			return n + " " + unit.name[strings.Index(unit.name, " ")+1:] + "s"
		}
	}
	return timeText(v)
}

// number writes 1,024 and 3.6.
func number(v constant.Value) string {
	f, _ := constant.Float64Val(v)
	digits, rest, found := strings.Cut(strconv.FormatFloat(f, 'f', -1, 64), ".")
	var groups []string
	for ; len(digits) > 3; digits = digits[:len(digits)-3] {
		groups = append(groups, digits[len(digits)-3:])
	}
	groups = append(groups, digits)
	slices.Reverse(groups)
	if text := strings.Join(groups, ","); !found {
		return text
	} else {
		return text + "." + rest
	}
}

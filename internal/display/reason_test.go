package display_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
)

// The constants are read from the source of the protocol, so that a new reason is not missed.
func TestEveryReasonOfTheProtocolHasItsOwnWording(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../protocol/protocol.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	worded := map[string]string{display.Reason("a reason of a later version"): "an unknown reason"}
	reasons := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Reason" {
			return false
		}
		name := spec.Names[0].Name
		why, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		text := display.Reason(protocol.Reason(why))
		if other, ok := worded[text]; ok {
			t.Errorf("protocol.%s has the wording of %s: %q", name, other, text)
		}
		worded[text] = "protocol." + name
		reasons++
		return false
	})
	if reasons == 0 {
		t.Error("protocol.go has no constants of the type Reason")
	}
}

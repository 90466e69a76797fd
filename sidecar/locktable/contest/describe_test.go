package contest

import (
	"reflect"
	"testing"
)

// Clone and Describe name every field. The compiler does not notice one that they lack; this
// test does.
func TestCloneAndDescribeKnowEveryField(t *testing.T) {
	for _, known := range []struct {
		of     reflect.Type
		fields int
	}{
		{reflect.TypeFor[Shared](), 10},
		{reflect.TypeFor[Memory](), 5},
		{reflect.TypeFor[Contest](), 10},
		{reflect.TypeFor[Remote](), 6},
		{reflect.TypeFor[subscription](), 4},
		{reflect.TypeFor[Place](), 9},
		{reflect.TypeFor[order](), 5},
	} {
		if n := known.of.NumField(); n != known.fields {
			t.Errorf("%v has %d fields, and had %d when Clone and Describe were written: look whether they need the others, and correct the number", known.of, n, known.fields)
		}
	}
}

package claim

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
		{reflect.TypeFor[Claim](), 4},
		{reflect.TypeFor[content](), 13},
		{reflect.TypeFor[window](), 5},
		{reflect.TypeFor[InFlight](), 13}, // CanWait makes a difference to a durable table only, and that is not explored
	} {
		if n := known.of.NumField(); n != known.fields {
			t.Errorf("%v has %d fields, and had %d when Clone and Describe were written: look whether they need the others, and correct the number", known.of, n, known.fields)
		}
	}
}

package locktable

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
		{reflect.TypeFor[Table](), 29},
		{reflect.TypeFor[Config](), 28},
		{reflect.TypeFor[policy](), 4},
		{reflect.TypeFor[reachability](), 6},
		{reflect.TypeFor[session](), 13},
		{reflect.TypeFor[leaseEvents](), 7},
		{reflect.TypeFor[user](), 5},
		{reflect.TypeFor[lock](), 16},
		{reflect.TypeFor[rivals](), 3},
		{reflect.TypeFor[remoteClaim](), 4},
		{reflect.TypeFor[content](), 13},
		{reflect.TypeFor[window](), 3},
		{reflect.TypeFor[inFlight](), 13},
		{reflect.TypeFor[hold](), 22},
		{reflect.TypeFor[queue](), 10},
		{reflect.TypeFor[waiter](), 3},
		{reflect.TypeFor[request](), 17},
		{reflect.TypeFor[confirm](), 3},
		{reflect.TypeFor[place](), 6},
		{reflect.TypeFor[order](), 5},
		{reflect.TypeFor[arbiter](), 12},
		{reflect.TypeFor[remoteHolder](), 6},
		{reflect.TypeFor[dirtySet](), 7},
	} {
		if n := known.of.NumField(); n != known.fields {
			t.Errorf("%v has %d fields, and had %d when Clone and Describe were written: look whether they need the others, and correct the number", known.of, n, known.fields)
		}
	}
}

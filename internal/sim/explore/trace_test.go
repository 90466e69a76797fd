package explore

import (
	"slices"
	"strings"
	"testing"
)

// A trace runs the steps to the root again, and then those of the exploration: a failover that loses all
// writes since the root leaves what the root had.
func TestTraceBeginsAtTheRoot(t *testing.T) {
	queued := from("queued")[0].steps
	v := &Violation{
		Plan: &Plan{Budget: Budget{Clients: 1, Failovers: 1}, Cluster: true, Prefix: queued},
		Path: append(slices.Clip(queued), r0, x0, actionOf(loseSince, 0, 0)),
	}
	_, after, found := strings.Cut(v.Trace(), actionNames[loseSince])
	if !found || !strings.Contains(after, "the key is now host 0's") {
		t.Errorf("the trace does not show that the key of the root is back: %s", v.Trace())
	}
}

package locksidecar

import (
	"errors"
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

func TestALostErrorIsOneOfTheSameReason(t *testing.T) {
	err := fmt.Errorf("the job failed: %w", &LostError{Name: "a", Reason: ReasonMaxHold})
	for _, is := range []error{ErrLost, &LostError{}, &LostError{Reason: ReasonMaxHold}, &LostError{Name: "a"}, &LostError{Name: "a", Reason: ReasonMaxHold}} {
		if !errors.Is(err, is) {
			t.Errorf("%v is not %v", err, is)
		}
	}
	for _, isNot := range []error{ErrNotHeld, &LostError{Reason: ReasonExpired}, &LostError{Name: "b", Reason: ReasonMaxHold}} {
		if errors.Is(err, isNot) {
			t.Errorf("%v is %v", err, isNot)
		}
	}
}

func TestEveryReasonIsDescribed(t *testing.T) {
	described := make(map[string]Reason)
	for _, wire := range []protocol.Reason{protocol.Expired, protocol.Deleted, protocol.Stolen, protocol.ByForce, protocol.MaxHold, protocol.Forgotten} {
		r := Reason(wire)
		if text := r.String(); text == string(r) || described[text] != "" {
			t.Errorf("%q is described as %q, which is also that of %q", string(r), text, string(described[text]))
		}
		described[r.String()] = r
	}
	if r := Reason("eclipse"); r.String() != "eclipse" {
		t.Errorf("a reason of a later sidecar is described as %q", r)
	}
}

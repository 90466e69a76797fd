package display_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/internal/display"
)

func TestUserNamesAreLookedUpOnce(t *testing.T) {
	users := make(display.UserNames)
	if got := users.Name(0); got != "root" || users[0] != "root" {
		t.Errorf("uid 0 is %q, and %q is kept", got, users[0])
	}
	users[0] = "kept"
	if got := users.Name(0); got != "kept" {
		t.Errorf("uid 0 is looked up again: %q", got)
	}
}

func TestUserWithoutANameIsShownByUID(t *testing.T) {
	const unused = 4_123_456_789
	users := make(display.UserNames)
	if got := users.Name(unused); got != "4123456789" || users[unused] != got {
		t.Errorf("an unknown uid is %q, and %q is kept", got, users[unused])
	}
}

func TestUsersOfOtherHostsAreShownAsUIDs(t *testing.T) {
	for name, want := range map[string]string{"0": "root", "1000": "uid 1000", "app": "app", "?": "?", "": ""} {
		if got := display.Shown(name); got != want {
			t.Errorf("%q is shown as %q, want %q", name, got, want)
		}
	}
}

func TestNilUserNamesLookUpNoName(t *testing.T) {
	if got := display.UserNames(nil).Name(0); got != "0" {
		t.Errorf("uid 0 of another host is %q", got)
	}
}

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

func TestProcessIsShownWithTheNameOfItsUser(t *testing.T) {
	users := display.UserNames{0: "root", 1000: "app", 4242: "4242"}
	for text, want := range map[string]string{
		"pid 7 (su -c x of uid 0) of uid 1000":             "pid 7 (su -c x of uid 0) of app",
		"a process that is not visible from here of uid 0": "a process that is not visible from here of root",
		"pid 7 of uid 4242":                                "pid 7 of uid 4242",
		"a process of another user":                        "a process of another user",
		"pid 7 (echo of uid 0)":                            "pid 7 (echo of uid 0)",
	} {
		if got := users.Named(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

func TestNilUserNamesLookUpNoName(t *testing.T) {
	if got := display.UserNames(nil).Name(0); got != "0" {
		t.Errorf("uid 0 of another host is %q", got)
	}
}

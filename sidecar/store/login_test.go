package store

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// The procedure of deploy/README.md: two passwords in the ACL, the new one in the file, the old
// one removed. No connection ends before the last step.
func TestPasswordIsReadAgainAtEachConnection(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	setUser := func(rules ...string) { must(a.ACLSetUser(ctx, "app", rules...).Result()) }
	urlWith := func(password string) string { return "redis://app:" + password + "@" + s.tcp() }
	var mu sync.Mutex // guards file and failed
	file, failed := urlWith("first"), error(nil)
	write := func(text string, err error) {
		mu.Lock()
		defer mu.Unlock()
		file, failed = text, err
	}
	setUser("reset", "on", ">first", "~*", "&*", "+@all")
	r := connected(t, urlWith("first"), func(c *Config) {
		c.ReadURL = func() (string, error) {
			mu.Lock()
			defer mu.Unlock()
			return file, failed
		}
	})
	reconnect := func() {
		t.Helper()
		must(a.ClientKillByFilter(ctx, "user", "app").Result())
		r.down()
		if r.up().lost {
			t.Error("Redis is said to have lost its data")
		}
	}
	setUser(">second")
	write(urlWith("second"), nil)
	setUser("<first")
	reconnect()

	// What cannot be used leaves the last password that was read.
	for _, bad := range []struct {
		text string
		err  error
		says string
	}{
		{urlWith("third") + "/7", nil, "names another Redis"},
		{"redis://app:third@127.0.0.1:1", nil, "names another Redis"},
		{"", nil, "no Redis URL"},
		{"", errors.New("permission denied"), "permission denied"},
	} {
		write(bad.text, bad.err)
		reconnect()
		if log := r.logged(); !strings.Contains(log, bad.says) || strings.Contains(log, "third") {
			t.Errorf("the log does not have %q, or has the password: %s", bad.says, log)
		}
	}
}

func TestTryReturnsTheServerOrTheReason(t *testing.T) {
	s := startRedis(t, "--requirepass", "right")
	r := connected(t, "redis://:right@"+s.tcp())
	bound, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := Try(bound, Config{URL: "redis://:right@" + s.tcp() + "/3"}, neverEnough)
	if err != nil || found.Address != s.tcp()+"/3" || found.RunID != r.id.RunID {
		t.Errorf("got %s, %s, %v", found.Address, found.RunID, err)
	}
	wantTry(t, Config{URL: "redis://:wrong@" + s.tcp()}, "does not accept the password", false)
	// The connection of the sidecar that runs is not disturbed.
	if len(r.downs) > 0 {
		t.Errorf("down: %s", r.down())
	}
}

// A lateContext is one whose deadline the network notices before it ends.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

func TestTryDoesNotTakeItsDeadlineForAReason(t *testing.T) {
	s := startRedis(t, "--requirepass", "right")
	wantTry(t, Config{URL: "redis://:wrong@" + s.tcp()}, "does not accept the password", true)
}

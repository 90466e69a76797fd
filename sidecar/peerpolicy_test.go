package sidecar

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Who and info show of a lock of this host what the policy lets a client know of its holder and waiters.
func TestRowHasOnlyWhatAClientMayKnow(t *testing.T) {
	no := false
	of := func(e policy.Entry) *policy.Session {
		rules, _ := compilePolicy(t, e).For(&policy.Peer{UID: 1000})
		s, refused := new(policy.Ledger).Open(1, rules, 1000, false)
		if refused != nil {
			t.Fatal(refused.Msg)
		}
		return s
	}
	const now = int64(time.Hour)
	tb := locktable.New(locktable.Config{}, now)
	tb.Up(now, 0, false, false)
	for i, uid := range []int64{2000, 1000, 3000} {
		id := locktable.SessionID(i + 1)
		tb.Open(now, id, locktable.Peer{PID: 10 + uid, UID: uid, Cmd: fmt.Sprint("command of ", uid)})
		tb.Acquire(now, id, protocol.Acquire{ID: 2, Name: "a", WaitMS: protocol.Forever})
		for _, e := range tb.Effects() {
			if e.Kind == locktable.Redis {
				tb.Result(now, redisop.Result{Kind: e.Op.Kind, Name: "a", Sent: now, Token: 1})
			}
		}
	}
	tb.Effects()
	l := &loop{table: tb}
	for what, tt := range map[string]struct {
		viewer *session
		holder string
		waits  string
	}{
		"without a policy":              {&session{}, "2010 command of 2000", "1010 command of 1000, 3010 command of 3000"},
		"a policy that hides processes": {&session{policy: of(policy.Entry{Name: "rest", List: "own"})}, "0 ", "1010 command of 1000"},
		"a policy that hides commands":  {&session{policy: of(policy.Entry{Name: "rest", Commands: &no})}, "2010 ", "1010 command of 1000, 3010 "},
	} {
		row, ok := l.rowFor(now, tt.viewer, "a")
		var waits []string
		for _, w := range row.Waiters {
			waits = append(waits, fmt.Sprint(w.PID, " ", w.Cmd))
		}
		if holder := fmt.Sprint(row.PID, " ", row.Cmd); !ok || row.State != protocol.StateHeld || holder != tt.holder || strings.Join(waits, ", ") != tt.waits {
			t.Errorf("%s: holder %q, waiters %q, want %q and %q", what, holder, waits, tt.holder, tt.waits)
		}
		if _, ok := l.rowFor(now, tt.viewer, "b"); ok {
			t.Errorf("%s: a row of a lock that is not known", what)
		}
	}
}

func compilePolicy(t *testing.T, entries ...policy.Entry) *policy.Policy {
	t.Helper()
	p, err := policy.New(entries, resolver)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

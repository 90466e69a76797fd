package main

import (
	"encoding/json"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

func TestLsByCountsHoldsAndWaiters(t *testing.T) {
	other := int64(9_000)
	hosts := []hostView{
		{Host: "db-7", Locks: someLocks()},
		{Host: "db-8", Error: "host db-8 did not answer"},
		{Host: "db-9", Locks: []lockView{{Name: "invoice:77", State: locksidecar.LockHeld, PID: 4711, UID: new(int), User: "0", Cmd: "cron", HeldMS: &other, LeftMS: &other}}},
	}
	text, everything := "", make(map[string][]shareView)
	for _, by := range []string{byProcess, byUser, byPattern} {
		s := shares{by: by, index: make(map[shareKey]int)}
		for i := range hosts {
			s.add(hosts[i].Host, hosts[i].Locks)
		}
		everything[by] = s.sorted()
		text += shareTable(everything[by], by, true, 0) + "\n"
	}
	golden(t, "ls-by.txt", text+shareTable(everything[byProcess], byProcess, false, 80))
	out, err := json.MarshalIndent(everything, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "ls-by.json", string(out)+"\n")
}

func TestPatternOfANameEndsAtItsFirstSeparatorOrDigit(t *testing.T) {
	for name, want := range map[string]string{
		"invoice:42": "invoice:*", "tenant/7/invoice:42": "tenant/*", "report42": "report*", "nightly": "nightly", "42": "*", ":": ":*", "é1": "é*",
	} {
		if got := patternOf(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestLsByPrintsATableOfThisHost(t *testing.T) {
	f := startFake(t)
	expectExit(t, start(t, f, "ls", "--by", "process"), 0, "")
	if out := expectExit(t, start(t, f, "ls", "--by", "name-pattern", "--json"), 0, ""); !json.Valid([]byte(out)) {
		t.Errorf("printed\n%s", out)
	}
	expectExit(t, start(t, f, "ls", "--by", "host"), exitUsage, "--by must be one of")
}

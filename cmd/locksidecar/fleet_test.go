package main

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

func TestHostsShowWhatIsWrong(t *testing.T) {
	row := locksidecar.HostInfo{Host: "db-7", Sidecar: "285475da-9152-4c83-822a-67ee2f116a79", Version: "0.1.0", PID: 812, Started: readAt.Add(-26 * time.Hour)}
	for want, got := range map[string]fleetView{
		"silent":   viewHost(&row, &locksidecar.Status{}, errors.New("host db-7 did not answer within 500ms")),
		"trouble":  viewHost(&row, &locksidecar.Status{Redis: "Redis is away", Trouble: "the file was removed"}, nil),
		"down":     viewHost(&row, &locksidecar.Status{Redis: "Redis is away"}, nil),
		"degraded": viewHost(&row, &locksidecar.Status{Redis: "Redis is out of memory", Degraded: true, RedisRisk: "it evicts"}, nil),
		"risk":     viewHost(&row, &locksidecar.Status{Redis: "ok", RedisRisk: "it evicts"}, nil),
		"ok":       viewHost(&row, &locksidecar.Status{Redis: "ok"}, nil),
	} {
		if got.State != want || (got.Why == "") != (want == "ok") || (got.fleetStatus == nil) != (want == "silent") || !slices.Contains(hostStates, got.State) {
			t.Errorf("%s: %+v", want, got)
		}
	}
}

// A host is asked by the uuid of its sidecar, and people know it by its name.
func TestHostThatIsSilentIsNamedOnce(t *testing.T) {
	row := locksidecar.HostInfo{Host: "db-7", Sidecar: "285475da-9152-4c83-822a-67ee2f116a79"}
	for text, want := range map[string]string{
		"locksidecar: cannot ask for the status of host " + row.Sidecar + ": host " + row.Sidecar + " did not answer within 500ms": "host db-7 did not answer within 500ms",
		"locksidecar: cannot list the locks of host " + row.Sidecar + ": the sidecar of host " + row.Sidecar + " does not run":     "the sidecar of host db-7 does not run",
		"not asked: all hosts together took longer than 10s":                                                                       "not asked: all hosts together took longer than 10s",
	} {
		if got := silence(&row, errors.New(text)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestHostsAreATable(t *testing.T) {
	row := locksidecar.HostInfo{Host: "db-7", Sidecar: "285475da-9152-4c83-822a-67ee2f116a79", Version: "0.1.0", PID: 812, Started: readAt.Add(-26 * time.Hour)}
	busy := locksidecar.Status{
		Version: "0.2.0", Build: "303923cd1f2a", Redis: "ok", Held: 31, Waiting: 4, Sessions: 9, RedisRisk: "at 10.0.0.7:6379, Redis evicts keys\x1b[2J",
		OldestWaiter: &locksidecar.Oldest{Age: 90 * time.Second}, OldestHold: &locksidecar.Oldest{Age: time.Hour},
	}
	hosts := []fleetView{
		viewHost(&row, nil, errors.New("host db-7 did not answer within 500ms")),
		viewHost(&row, &busy, nil),
		viewHost(&row, &locksidecar.Status{Version: "0.1.0", Redis: "ok"}, nil),
	}
	golden(t, "hosts.txt", fleetTable(hosts, 0, readAt))
	text, err := json.MarshalIndent(hosts, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "hosts.json", string(text))
}

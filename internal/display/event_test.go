package display_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
	"github.com/locksidecar/locksidecar/protocol"
)

// "locksidecar events" and its golden files have every kind of event.
func TestEventsAreDescribedWithAndWithoutTheirLock(t *testing.T) {
	at := time.Date(2026, 3, 7, 2, 0, 0, 0, time.UTC)
	for want, e := range map[string]display.Event{
		"job  by pid 7 (sh) of app, held for 1m00s since Mar  7 01:59:00; 1 request waited": {At: at, Kind: protocol.EventReleased, Name: "job", PID: 7, Cmd: "sh", User: "app", Held: time.Minute, Count: 1},
		"by pid 7 (sh), held for 2m00s since Mar  7 01:58:00":                               {At: at, Kind: protocol.EventReleased, PID: 7, Cmd: "sh", Held: 2 * time.Minute},
		"job  by a process that is not visible from here on host db-7":                      {Kind: protocol.EventForced, Name: "job", RemoteHost: "db-7"},
		"job  by pid 7 (sh) of root on host db-7":                                           {Kind: protocol.EventForced, Name: "job", PID: 7, Cmd: "sh", User: "0", RemoteHost: "db-7"},
		"job  by pid 7 (sh) of uid 1000 on host db-7":                                       {Kind: protocol.EventForced, Name: "job", PID: 7, Cmd: "sh", User: "1000", RemoteHost: "db-7"},
		"job  of a later sidecar":                                                           {Kind: "renamed", Name: "job", Msg: "of a later sidecar"},
		"api  1 permit by pid 7 (sh), held for 2m00s since Mar  7 01:58:00":                 {At: at, Kind: protocol.EventReleased, Name: "api", Permits: 1, PID: 7, Cmd: "sh", Held: 2 * time.Minute},
		"catalog  shared to pid 7 (sh), after 40ms; token 5":                                {Kind: protocol.EventGranted, Name: "catalog", Shared: true, PID: 7, Cmd: "sh", Waited: 40 * time.Millisecond, Token: 5},
		"catalog  shared by pid 7 (sh), held for 2m00s since Mar  7 01:58:00":               {At: at, Kind: protocol.EventReleased, Name: "catalog", Shared: true, PID: 7, Cmd: "sh", Held: 2 * time.Minute},
		"api  3 permits to pid 7 (sh), after 40ms; token 5":                                 {Kind: protocol.EventGranted, Name: "api", Permits: 3, PID: 7, Cmd: "sh", Waited: 40 * time.Millisecond, Token: 5},
		"Redis cannot be used: it is away":                                                  {Kind: protocol.EventRedisDown, Msg: "it is away"},
		"Redis refuses what locks need: it is full":                                         {Kind: protocol.EventRedisDegraded, Msg: "it is full"},
	} {
		if got := e.Text(); got != want {
			t.Errorf("%s: %q, want %q", e.Kind, got, want)
		}
	}
}

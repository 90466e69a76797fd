package main

import (
	"testing"
	"time"
)

func TestHostTables(t *testing.T) {
	now := time.UnixMilli(1763694000000)
	held := int64(1500)
	hosts := []hostView{
		{Host: "db-7", Sidecar: "uuid-7", Version: "0.4.0", PID: 812, Started: now.Add(-2 * time.Hour), Locks: []lockView{
			{Name: "a", State: "held", PID: 4711, User: "1000", HeldMS: &held, LeftMS: &held, Token: 9, Cmd: "worker.py"},
		}},
		{Host: "db-8", Sidecar: "uuid-8", Version: "0.4.0", PID: 1, Started: now.Add(time.Second)},
		{Host: "db-9\x1b", Sidecar: "uuid-9\x1b", Version: "0.4.0", Started: now, Error: "host db-9 did not answer\n"},
	}
	const want = `HOST db-7: locksidecar 0.4.0, pid 812, for 2h00m, uuid uuid-7
LOCK  STATE   PID  USER       FOR  LEFT  TOKEN  COMMAND
a     held   4711  uid 1000  1.5s  1.5s      9  worker.py

HOST db-8: locksidecar 0.4.0, pid 1, for 0ms, uuid uuid-8
no locks

HOST db-9?: locksidecar 0.4.0, pid ?, for 0ms, uuid uuid-9?
no answer: host db-9 did not answer?
`
	if got := hostTables(hosts, 0, now); got != want {
		t.Errorf("printed\n%s, want\n%s", got, want)
	}
}

func TestHolderOnAnotherHost(t *testing.T) {
	for _, tt := range []struct {
		lock lockView
		want string
	}{
		{lockView{RemoteField: "uuid:1"}, "held elsewhere: uuid:1"},
		{lockView{RemoteField: "uuid:1", RemoteHost: "db-7"}, "held on host db-7: uuid:1"},
		{lockView{RemoteField: "uuid:1", RemoteHost: "db-7", RemotePID: 4711, RemoteCmd: "worker.py"}, "held on host db-7 by pid 4711 (worker.py)"},
		{lockView{RemoteField: "uuid:1", RemoteHost: "db-7", isKeptThere: true}, "kept on host db-7: released; its --keep lasts"},
	} {
		if got := elsewhere(&tt.lock); got != tt.want {
			t.Errorf("printed %q, want %q", got, tt.want)
		}
	}
}

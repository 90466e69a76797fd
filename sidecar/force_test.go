package sidecar_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/policy"
)

// A client that may not end a hold by force is in the events, and one that tries all the time does
// not push other events out of them. What a client says of itself is not believed.
func TestForcedReleaseThatIsRefusedIsAnEvent(t *testing.T) {
	c := greeted(t, start(t, func(c *sidecar.Config) {
		c.Policy = []policy.Entry{{Name: "hands-off", Users: me(), ForceRelease: "none"}}
	}))
	c.hold("a0")
	const attempts = 20
	for i := range attempts { // of locks with other names, because equal refusals are one event
		c.id++
		c.send(protocol.ForceRelease{ID: c.id, Name: fmt.Sprint("a", i), By: &protocol.Requester{Host: "db-7", PID: 1, Cmd: "init"}})
		c.refused(c.id, protocol.Denied, `rule "hands-off"`)
	}
	refused := 0
	for _, e := range c.events(0, false).Events {
		if e.Kind != protocol.EventRefused {
			continue
		}
		refused++
		if !strings.HasPrefix(e.Name, "a") || e.PID != int64(os.Getpid()) || e.UID != int64(os.Geteuid()) || e.RemoteHost != "" || !strings.Contains(e.Msg, `rule "hands-off"`) {
			t.Errorf("%+v", e)
		}
	}
	if refused == 0 || refused == attempts {
		t.Errorf("%d of %d attempts are events", refused, attempts)
	}
}

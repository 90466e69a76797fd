package harness

import (
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A Hold is a lock that a worker holds. The worker's handle has the name of the lock.
type Hold struct {
	*Worker
	Name  string
	Token uint64

	owner string // sidecar that the key in Redis belonged to when the lock was granted
}

// LockEach has each worker acquire a lock of its own.
func LockEach(r *Redis, workers []*Worker, prefix string) []Hold {
	var holds []Hold
	for i, w := range workers {
		name := fmt.Sprint(prefix, " ", i)
		token := w.Lock(name).Token
		holds = append(holds, Hold{w, name, token, r.Owner(name)})
	}
	return holds
}

// CheckHeld checks that the worker's SDK reports the lock as held.
func (h *Hold) CheckHeld() {
	h.t.Helper()
	if a := h.Try(Command{Do: "check", As: h.Name}); a.Err != "" {
		h.t.Errorf("%s: the SDK of the holder reports %+v", h.Name, a)
	}
}

// ExpectLost waits until the worker's SDK reports the lock as lost, and checks that it is for one of the
// reasons.
func (h *Hold) ExpectLost(reasons ...protocol.Reason) Answer {
	h.t.Helper()
	a := h.Try(Command{Do: "lost", As: h.Name})
	if a.Err != "lost" || !slices.Contains(reasons, protocol.Reason(a.Reason)) {
		h.t.Errorf("%s: the SDK of the holder reports %+v, not that the lock was lost: %v", h.Name, a, reasons)
	}
	if a := h.Try(Command{Do: "unlock", As: h.Name}); a.Err == "" {
		h.t.Errorf("%s: a lock that was lost could be released", h.Name)
	}
	return a
}

// AwaitInRedis waits until the key in Redis belongs to the sidecar that it belonged to when the
// lock was granted. The hold number may differ: Redis may have that of an earlier hold after a
// local handoff, and has that of this hold when the sidecar has set the key again.
func (h *Hold) AwaitInRedis(r *Redis) {
	h.t.Helper()
	Eventually(h.t, h.Name+" is in Redis as before", func() bool { return h.owner != "" && r.Owner(h.Name) == h.owner })
}

// PassTo releases the lock and checks that next, which waits for it, is granted it after
// that, with a larger token.
func (h *Hold) PassTo(next *Worker, granted <-chan Answer) {
	h.t.Helper()
	h.CheckHeld()
	released := protocol.Now()
	h.Unlock(h.Name)
	a := next.Await(granted)
	switch {
	case a.Err != "":
		h.t.Fatalf("%s: the waiter got %+v", h.Name, a)
	case a.AtNS < released:
		h.t.Errorf("%s: granted %v before its release", h.Name, time.Duration(released-a.AtNS))
	case a.Token <= h.Token:
		h.t.Errorf("%s: token %d after %d", h.Name, a.Token, h.Token)
	}
}

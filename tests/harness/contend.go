package harness

import (
	"testing"
	"time"
)

// Contend starts so many worker processes on each host, which acquire and release one lock
// without a pause. The returned function stops them and returns how often they held it, and how long
// one of them waited at most.
func Contend(t testing.TB, name string, workersPerHost int, hosts ...*Daemon) (end func() (grants int, longest time.Duration)) {
	t.Helper()
	fleet := StartFleet(t, workersPerHost, hosts...)
	var ended []<-chan Answer
	for _, w := range fleet {
		ended = append(ended, w.Send(Command{Do: "poll", Name: name, WaitMS: -1, ForMS: (10 * time.Minute).Milliseconds()}))
	}
	for _, d := range hosts {
		Eventually(t, "the processes want the lock", func() bool { return Waiters(t, d, name) >= workersPerHost/2 })
	}
	return func() (grants int, longest time.Duration) {
		t.Helper()
		for i, w := range fleet {
			select {
			case a := <-ended[i]:
				t.Fatalf("process %d stopped too early: %+v", i, a)
			default:
			}
			w.Must(Command{Do: "stop"})
			a := w.Await(ended[i])
			if a.Err != "" {
				t.Errorf("process %d: %s: %s", i, a.Err, a.Msg)
			}
			grants += a.Grants
			longest = max(longest, time.Duration(a.LongestNS))
		}
		return grants, longest
	}
}

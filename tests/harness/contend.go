package harness

import (
	"testing"
	"time"
)

// Contend starts eight worker processes of one daemon that acquire and release one lock
// without a pause. The returned function stops them and returns how often they held it.
func Contend(t testing.TB, d *Daemon, name string) (end func() int) {
	t.Helper()
	var fleet []*Worker
	var ended []<-chan Answer
	for i := range 8 {
		w := StartNthWorker(t, d, i)
		fleet = append(fleet, w)
		ended = append(ended, w.Send(Command{Do: "poll", Name: name, WaitMS: -1, ForMS: (10 * time.Minute).Milliseconds()}))
	}
	Eventually(t, "the processes want the lock", func() bool { return Waiters(t, d, name) >= 4 })
	return func() int {
		t.Helper()
		grants := 0
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
		}
		return grants
	}
}

package guarantees

import (
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// Processes in both languages on two hosts increment one counter by reading it and writing
// the value plus one. No increment is lost, and tokens grow in the order of the holds.
//
// Shows docs/guarantees.md: Tokens grow.
// Shows docs/guarantees.md: Exclusion.
func TestProcessesInTwoLanguagesOnTwoHostsExcludeEachOther(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	const workersPerHost, rounds = 4, 50
	fleet := harness.StartFleet(t, workersPerHost, harness.StartDaemon(t, r.UnixURL()), harness.StartDaemon(t, r.TCPURL()))
	harness.HammerTogether(t, r, fleet, rounds)
}

// Waiters of one host are granted the lock in the order of their requests, whatever process
// they are in.
//
// Shows docs/guarantees.md: On one host, first come, first served.
// Shows docs/queue.md: Order and fairness.
func TestWaitersOfOneHostAreServedInOrder(t *testing.T) {
	t.Parallel()
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	client := harness.Dial(t, d)
	held, err := client.Lock(t.Context(), "door")
	if err != nil {
		t.Fatal(err)
	}
	var queue []*harness.Worker
	var answers []<-chan harness.Answer
	for i := range 6 {
		w := harness.StartNthWorker(t, d, i)
		queue = append(queue, w)
		answers = append(answers, w.Send(harness.Command{Do: "lock", As: "door", Name: "door", WaitMS: -1}))
		harness.Eventually(t, fmt.Sprintf("%d requests wait", i+1), func() bool { return harness.Waiters(t, d, "door") == i+1 })
	}
	token := held.Token()
	if err := held.Unlock(); err != nil {
		t.Fatal(err)
	}
	for i, w := range queue {
		a := w.Await(answers[i])
		if a.Err != "" || a.Token <= token {
			t.Fatalf("waiter %d got %+v; the holder before had token %d", i, a, token)
		}
		token = a.Token
		if left := harness.Waiters(t, d, "door"); left != len(queue)-1-i {
			t.Fatalf("waiter %d has the lock, and %d requests wait", i, left)
		}
		w.Unlock("door")
	}
}

// A client of one host is granted a lock that clients of another host request all the time.
//
// Shows docs/guarantees.md: Every waiter is answered.
// Shows docs/guarantees.md: Fairness between hosts.
// Shows docs/queue.md: Turns.
func TestNoHostStarves(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	greedy, other := harness.StartDaemon(t, r.UnixURL()), harness.StartDaemon(t, r.UnixURL())
	// There is always a local waiter to which the lock could be handed over.
	var answers []<-chan harness.Answer
	var fleet []*harness.Worker
	for range 4 {
		w := harness.StartGoWorker(t, greedy)
		fleet = append(fleet, w)
		answers = append(answers, w.Send(harness.Command{Do: "hammer_forever", Name: "fair"}))
	}
	late := harness.StartGoWorker(t, other)
	for range 20 {
		late.Lock("fair")
		late.Unlock("fair")
	}
	for i, w := range fleet {
		select {
		case a := <-answers[i]:
			t.Errorf("a worker stopped: %+v", a)
		default:
		}
		w.Kill()
	}
}

package tests

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"testing"
)

// Processes of both languages on two hosts add to one counter by reading it and
// writing what they read plus one. No addition is lost, and the tokens rise in
// the order in which the lock was held.
func TestProcessesInTwoLanguagesOnTwoHostsExcludeEachOther(t *testing.T) {
	r := startRedis(t)
	hosts := []*daemon{startDaemon(t, r.unixURL()), startDaemon(t, r.tcpURL())}
	const workersPerHost, rounds = 4, 50

	var fleet []*worker
	var answers []<-chan answer
	for _, d := range hosts {
		for i := range workersPerHost {
			fleet = append(fleet, startAnyWorker(t, d, i))
		}
	}
	for _, w := range fleet {
		answers = append(answers, w.ask(hammer(r, rounds)))
	}
	var all []round
	for i, w := range fleet {
		a := w.await(answers[i])
		if a.Err != "" {
			t.Fatalf("worker %d: %s: %s", i, a.Err, a.Msg)
		}
		all = append(all, a.Rounds...)
	}
	checkCounter(t, r, all, len(fleet)*rounds)
}

func hammer(r *redisServer, rounds int) command {
	return command{Do: "hammer", Name: "counter:lock", Key: "counter", Redis: r.socket(), Count: rounds, WaitMS: -1}
}

// checkCounter checks that want additions were made, each from another value,
// and that the tokens rise with the values. A token of 0 is none.
func checkCounter(t *testing.T, r *redisServer, rounds []round, want int) {
	t.Helper()
	if got, err := r.Get(t.Context(), "counter").Int(); err != nil || got != want {
		t.Errorf("the counter is %d (%v) after %d additions: the lock did not exclude", got, err, want)
	}
	slices.SortFunc(rounds, func(a, b round) int { return cmp.Compare(a.Value, b.Value) })
	largest := uint64(0)
	for i, now := range rounds {
		if i > 0 && now.Value == rounds[i-1].Value {
			t.Errorf("two holders read %d (tokens %d and %d)", now.Value, rounds[i-1].Token, now.Token)
		} else if now.Token != 0 && now.Token <= largest {
			t.Errorf("the holder who read %d has token %d, one before had %d", now.Value, now.Token, largest)
		}
		largest = max(largest, now.Token)
	}
}

// Waiters on one host get the lock in the order in which they asked, whatever
// process they are in.
func TestWaitersOfOneHostAreServedInOrder(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	client := dial(t, d)
	held, err := client.Lock(t.Context(), "door")
	if err != nil {
		t.Fatal(err)
	}
	var queue []*worker
	var answers []<-chan answer
	for i := range 6 {
		w := startAnyWorker(t, d, i)
		queue = append(queue, w)
		answers = append(answers, w.ask(command{Do: "lock", As: "door", Name: "door", WaitMS: -1}))
		eventually(t, fmt.Sprintf("%d waiters in the queue", i+1), func() bool { return waiting(t, d, "door") == i+1 })
	}
	token := held.Token()
	if err := held.Unlock(); err != nil {
		t.Fatal(err)
	}
	for i, w := range queue {
		a := w.await(answers[i])
		if a.Err != "" || a.Token <= token {
			t.Fatalf("waiter %d: %+v, the holder before had token %d", i, a, token)
		}
		token = a.Token
		if left := waiting(t, d, "door"); left != len(queue)-1-i {
			t.Fatalf("waiter %d has the lock and %d are waiting", i, left)
		}
		w.unlock("door")
	}
}

// waiting returns how many local waiters a lock has.
func waiting(t testing.TB, d *daemon, name string) int {
	t.Helper()
	w := dialWire(t, d)
	defer w.conn.Close()
	row, _ := w.ask(message{"op": "info", "name": name})["lock"].(message)
	if row == nil || row["waiting"] == nil {
		return 0
	}
	n, _ := strconv.Atoi(fmt.Sprint(row["waiting"]))
	return n
}

// Two hosts that fight over one lock both get their turns.
func TestNoHostStarves(t *testing.T) {
	r := startRedis(t)
	greedy, other := startDaemon(t, r.unixURL()), startDaemon(t, r.unixURL())
	// Enough of them that the lock could be handed over locally for ever.
	var answers []<-chan answer
	var fleet []*worker
	for range 4 {
		w := startGoWorker(t, greedy)
		fleet = append(fleet, w)
		answers = append(answers, w.ask(command{Do: "hammer_forever", Name: "fair"}))
	}
	late := startGoWorker(t, other)
	for range 20 {
		late.lock("fair")
		late.unlock("fair")
	}
	for i, w := range fleet {
		select {
		case a := <-answers[i]:
			t.Errorf("a worker stopped: %+v", a)
		default:
		}
		w.kill9()
	}
}

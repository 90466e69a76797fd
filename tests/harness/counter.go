package harness

import (
	"cmp"
	"slices"
	"testing"
)

// Hammer returns a command that has a worker increment a counter in r, under a lock, by
// reading it and writing back the value plus one. If the lock does not exclude, increments
// are lost.
func Hammer(r *Redis, rounds int) Command {
	return Command{Do: "hammer", Name: "counter:lock", Key: "counter", Redis: r.Socket(), Count: rounds, WaitMS: -1}
}

// SendHammers has all workers start to execute Hammer, and returns where their answers come.
func SendHammers(r *Redis, fleet []*Worker, rounds int) (answers []<-chan Answer) {
	for _, w := range fleet {
		answers = append(answers, w.Send(Hammer(r, rounds)))
	}
	return answers
}

// AwaitRounds returns the rounds of all workers that execute Hammer. The test fails if one of
// them ended with an error.
func AwaitRounds(t testing.TB, fleet []*Worker, answers []<-chan Answer) (all []Round) {
	t.Helper()
	ok := true
	for i, w := range fleet {
		a := w.Await(answers[i])
		if a.Err != "" {
			t.Errorf("worker %d: %s: %s", i, a.Err, a.Msg)
			ok = false
		}
		all = append(all, a.Rounds...)
	}
	if !ok {
		t.FailNow()
	}
	return all
}

// HammerTogether has all workers execute Hammer at the same time, and checks the counter.
func HammerTogether(t testing.TB, r *Redis, fleet []*Worker, rounds int) {
	t.Helper()
	CheckCounter(t, r, AwaitRounds(t, fleet, SendHammers(r, fleet, rounds)), len(fleet)*rounds)
}

// CheckCounter checks the rounds of all workers that executed Hammer: that the counter was
// incremented want times, each time from another value, and that a larger value was read
// with a larger fencing token. Rounds of locks without tokens have the token 0.
func CheckCounter(t testing.TB, r *Redis, rounds []Round, want int) {
	t.Helper()
	if got, err := r.Get(t.Context(), "counter").Int(); err != nil || got != want {
		t.Errorf("the counter is %d (%v) after %d increments: the lock did not exclude", got, err, want)
	}
	slices.SortFunc(rounds, func(a, b Round) int { return cmp.Compare(a.Value, b.Value) })
	largest := uint64(0)
	for i, now := range rounds {
		if i > 0 && now.Value == rounds[i-1].Value {
			t.Errorf("two holders read %d (tokens %d and %d)", now.Value, rounds[i-1].Token, now.Token)
		} else if now.Token != 0 && now.Token <= largest {
			t.Errorf("the holder that read %d has token %d, an earlier one had %d", now.Value, now.Token, largest)
		}
		largest = max(largest, now.Token)
	}
}

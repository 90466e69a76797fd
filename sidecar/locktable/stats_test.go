package locktable_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// acquires are the results that were counted, without those that are 0.
func acquires(g locktable.GroupStats) string {
	text := ""
	for i, n := range g.Acquires {
		if n > 0 {
			text += fmt.Sprintf("%v %d, ", locktable.AcquireResult(i), n)
		}
	}
	return text
}

func losses(g locktable.GroupStats) string {
	text := ""
	for i, n := range g.Losses {
		if n > 0 {
			text += fmt.Sprintf("%s %d, ", locktable.LossReason(i), n)
		}
	}
	return text
}

func (r *rig) wantAcquires(want string) {
	r.Helper()
	if got := acquires(r.tb.Stats().Groups[0]); got != want {
		r.Errorf("acquires: %s want: %s", got, want)
	}
}

func TestEachAcquireIsCountedOnceByItsResult(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", owner(7))
	r.answerAll()
	r.acquire(1, "a", owner(7))          // reentered
	r.acquire(2, "a", wait(0))           // timeout at once
	r.acquire(2, "a", wait(time.Second)) // timeout later
	canceled := r.acquire(3, "a")        // canceled
	r.acquire(4, "a")                    // abandoned
	r.acquire(2, "b", owner(8))          // granted
	r.answerAll()                        //
	r.acquire(2, "a", owner(8))          // granted after a wait
	r.acquire(1, "b", owner(7))          // deadlock
	r.cancel(3, canceled)
	r.tb.Close(r.now, 4)
	r.pass(2 * time.Second)
	r.wantAcquires("granted 2, reentered 1, timeout 2, deadlock 1, canceled 1, abandoned 1, ")
	r.release(1, 1)
	r.release(1, 1)
	r.wantAcquires("granted 3, reentered 1, timeout 2, deadlock 1, canceled 1, abandoned 1, ")

	s := r.tb.Stats()
	if s.Handoffs != [locktable.HandoffKinds]uint64{locktable.HandoffLocal: 1} {
		t.Errorf("handoffs: %v", s.Handoffs)
	}
	g := s.Groups[0]
	if n, sum := g.Wait.Count(), g.Wait.Sum; n != 3 || sum != 2*time.Second {
		t.Errorf("%d waits of %v in all, want 3 of 2 s", n, sum)
	}
	if n, sum := g.Held.Count(), g.Held.Sum; n != 1 || sum != 2*time.Second {
		t.Errorf("%d holds of %v in all, want 1 of 2 s", n, sum)
	}
	if s.Sessions != 3 || s.Holds != 2 || s.Locks != 2 || s.Waiters != 0 || !s.IsRedisUp {
		t.Errorf("%+v", s)
	}
}

func TestRefusedAcquiresAreCounted(t *testing.T) {
	r := newRig(t)
	r.tb = connect(newTable(locktable.Config{MaxHolds: 1}, r.now))
	r.tb.Open(r.now, 1, locktable.Peer{})
	r.tb.Open(r.now, 2, locktable.Peer{})
	r.tb.Down(r.now, 0, "no way")
	r.acquire(1, "a", wait(0)) // unavailable
	r.tb.Up(r.now, 0, false, false)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.acquire(1, "b") // limit
	r.acquire(2, "c") // denied
	r.redis(redisop.Take, redisop.Refused)
	r.tb.CountRefusal("", protocol.BadRequest)
	r.wantAcquires("granted 1, unavailable 1, limit 1, denied 1, bad_request 1, ")
}

func TestLossesAreCountedByReason(t *testing.T) {
	r := newRig(t)
	for i, name := range []string{"expired", "deleted", "stolen", "forced", "max", "crashed"} {
		opts := []opt{}
		switch name {
		case "expired":
			opts = append(opts, fixed(time.Second))
		case "max":
			opts = append(opts, maxHold(time.Second))
		}
		r.acquire(locktable.SessionID(1+i/5), name, opts...)
		r.redis(redisop.Take, redisop.Done)
	}
	r.tb.ForceRelease(r.now, 1, protocol.ForceRelease{ID: 99, Name: "forced"})
	r.tb.Close(r.now, 2) // with "crashed"
	r.pass(2 * time.Second)
	r.answerAll() // the drops of those that have ended
	r.pass(10 * time.Second)
	for _, op := range r.ops {
		outcome := redisop.Done
		switch op.Name {
		case "deleted":
			outcome = redisop.KeyMissing
		case "stolen":
			outcome = redisop.HeldByOther
		}
		r.tb.Result(r.now, redisop.Result{Kind: op.Kind, Name: op.Name, Outcome: outcome, Sent: r.now - int64(3*time.Millisecond), Field: "another:1"})
	}
	s := r.tb.Stats()
	if got, want := losses(s.Groups[0]), "expired 1, deleted 1, stolen 1, forced 1, max_hold 1, "; got != want {
		t.Errorf("losses: %s want: %s", got, want)
	}
	if s.CrashReleases != 1 {
		t.Errorf("%d crash releases", s.CrashReleases)
	}
	if s.Renewals[redisop.KeyMissing] != 1 || s.Renewals[redisop.HeldByOther] != 1 {
		t.Errorf("renewals: %v", s.Renewals)
	}
	if s.Groups[0].Held.Count() != 6 {
		t.Errorf("%d holds have ended, want 6", s.Groups[0].Held.Count())
	}
}

// A client that ended its work because the lock was about to be lost says so with the release of
// the last entry. A hold that is lost by then is not lost twice.
func TestReleaseThatWasCutShortIsCountedOnceAsALoss(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a", owner(7))
	r.answerAll()
	r.acquire(1, "a", owner(7))
	r.acquire(1, "expired", fixed(time.Second))
	r.answerAll()
	r.collect()
	r.log = nil
	r.tb.Release(r.now, 1, protocol.Release{Hold: 1, CutShort: true}) // it has another entry
	r.want()
	r.tb.Release(r.now, 1, protocol.Release{Hold: 1, CutShort: true})
	r.want("s1 cut short hold=1 a cut_short")
	r.tb.Release(r.now, 1, protocol.Release{Hold: 1, CutShort: true})
	r.pass(2 * time.Second)
	r.tb.Release(r.now, 1, protocol.Release{Hold: 2, CutShort: true})
	r.want("s1 lost hold=2 expired")
	if got, want := losses(r.tb.Stats().Groups[0]), "expired 1, cut_short 1, "; got != want {
		t.Errorf("losses: %s want: %s", got, want)
	}
}

func TestRenewalsAreCountedWithTheirMargin(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "a")
	r.redis(redisop.Take, redisop.Done)
	r.pass(12 * time.Second)
	r.redis(redisop.Renew, redisop.Done)
	s := r.tb.Stats()
	if s.Renewals[redisop.Done] != 1 || s.RenewalMargin.Count() != 1 {
		t.Fatalf("renewals: %v, %d margins", s.Renewals, s.RenewalMargin.Count())
	}
	// 30 s less a hundredth and 2 ms, less 12 s.
	if want := 17698 * time.Millisecond; s.RenewalMargin.Sum != want {
		t.Errorf("the margin is %v, want %v", s.RenewalMargin.Sum, want)
	}
}

func TestTransferAndLingeringLockAreCountedAsHandoffs(t *testing.T) {
	r := newListeningRig(t, locktable.Config{})
	r.acquire(1, "a")
	ticket := r.queued(0).HoldID
	r.transfer(ticket, 64)
	r.want(fmt.Sprintf("s1 granted hold=%d token=33 count=1", ticket))
	if got := r.tb.Stats().Handoffs; got != [locktable.HandoffKinds]uint64{locktable.HandoffTransfer: 1} {
		t.Errorf("handoffs: %v", got)
	}

	r = newListeningRig(t, locktable.Config{})
	for hold := range uint64(3) {
		r.acquire(1, "b")
		if hold < 2 {
			r.redis(redisop.Take, redisop.Done)
		}
		r.release(1, hold+1)
		r.collect()
		if hold == 0 {
			r.redis(redisop.Drop, redisop.Done)
		}
	}
	if got := r.tb.Stats().Handoffs; got != [locktable.HandoffKinds]uint64{locktable.HandoffLingering: 1} {
		t.Errorf("handoffs: %v", got)
	}
}

func TestNamesAreCountedByTheFirstPatternThatMatches(t *testing.T) {
	for _, c := range []struct {
		pattern locktable.NamePattern
		name    string
		want    bool
	}{
		{"invoice:*", "invoice:42", true}, {"invoice:*", "invoice:", true}, {"invoice:*", "invoice", false},
		{"leader", "leader", true}, {"leader", "leaders", false}, {"*", "", true}, {"", "a", false},
	} {
		if got := c.pattern.Matches(c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.name, got)
		}
	}

	r := newRig(t)
	r.tb = connect(newTable(locktable.Config{NamePatterns: []locktable.NamePattern{"invoice:*", "*"}}, r.now))
	r.tb.Up(r.now, 0, false, false)
	r.tb.Open(r.now, 1, locktable.Peer{})
	for _, name := range []string{"invoice:1", "invoice:2", "other"} {
		r.acquire(1, name)
		r.redis(redisop.Take, redisop.Done)
	}
	s := r.tb.Stats()
	for i, want := range []string{"", "granted 2, ", "granted 1, "} {
		if got := acquires(s.Groups[i]); got != want {
			t.Errorf("group %d: %s want: %s", i, got, want)
		}
	}
}

func TestSurveyFindsWhatHasWaitedAndLastedLongest(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "old")
	r.answerAll()
	oldHold := r.now
	r.pass(time.Second)
	oldWait := r.now
	r.acquire(2, "old")
	r.pass(time.Second)
	r.acquire(3, "old")
	r.acquire(3, "new")
	r.answerAll()

	var v locktable.Survey
	parts := 1
	for r.tb.Survey(r.now, &v, 1) {
		parts++
	}
	g := v.Groups[0]
	if parts != 2 || g.Holds != 2 || g.Waiters != 2 || v.RenewalsLate != 0 {
		t.Errorf("in %d parts: %+v", parts, v)
	}
	if want := (locktable.Oldest{Since: oldHold, Name: "old", Session: 1, Peer: locktable.Peer{PID: 100, Cmd: "worker-1"}}); g.OldestHold != want {
		t.Errorf("oldest hold: %+v, want %+v", g.OldestHold, want)
	}
	if want := (locktable.Oldest{Since: oldWait, Name: "old", Session: 2, Peer: locktable.Peer{PID: 101, Cmd: "worker-2"}}); g.OldestWaiter != want {
		t.Errorf("oldest waiter: %+v, want %+v", g.OldestWaiter, want)
	}

	r.pass(20 * time.Second) // Redis answers nothing: no renewal is done
	v = locktable.Survey{}
	r.tb.Survey(r.now, &v, 100)
	if v.RenewalsLate != 2 {
		t.Errorf("%d renewals are late, want 2", v.RenewalsLate)
	}
}

// The first pattern that matches a name says for how long its holds usually last.
func TestSurveyCountsHoldsThatLastLongerThanExpected(t *testing.T) {
	r := newRigOf(t, locktable.Config{Expected: []locktable.ExpectedHold{{Names: "slow:*", Most: 10 * time.Second}, {Names: "*", Most: time.Second}}})
	for i, name := range []string{"slow:a", "fast", "late"} {
		r.acquire(locktable.SessionID(i+1), name)
	}
	r.answerAll()
	r.pass(time.Second)
	survey := func(want ...int) {
		t.Helper()
		var v locktable.Survey
		for r.tb.Survey(r.now, &v, 1) {
		}
		if !slices.Equal(v.Overdue, want) {
			t.Errorf("%v, want %v", v.Overdue, want)
		}
	}
	survey(0, 0) // as long as expected is not longer
	r.pass(time.Millisecond)
	survey(0, 2)
	r.pass(9 * time.Second)
	survey(1, 2)
}

// A lock that is kept has no process any more: it is neither the oldest hold nor overdue.
func TestSurveyLeavesKeptLocksOutOfTheHolds(t *testing.T) {
	r := newRigOf(t, locktable.Config{Expected: []locktable.ExpectedHold{{Names: "*", Most: time.Second}}})
	r.acquire(1, "a", keep(time.Hour))
	r.answerAll()
	hold := r.lastHold()
	r.pass(time.Second)
	r.acquire(2, "b")
	r.answerAll()
	survey := func(wantOldest string, wantOverdue int) {
		t.Helper()
		var v locktable.Survey
		for r.tb.Survey(r.now, &v, 1) {
		}
		if got := v.Groups[0].OldestHold.Name; got != wantOldest || v.Overdue[0] != wantOverdue || v.Groups[0].Holds != 2 {
			t.Errorf("of %d holds %q is the oldest, and %d are overdue; want %q and %d", v.Groups[0].Holds, got, v.Overdue[0], wantOldest, wantOverdue)
		}
	}
	r.pass(10 * time.Millisecond)
	survey("a", 1)
	r.release(1, hold)
	survey("b", 0)
}

func TestSurveyListsTheMostWaitedAndTheLongestHeldLocks(t *testing.T) {
	r := newRig(t)
	for i := range 60 {
		name := fmt.Sprintf("lock-%02d", i)
		r.acquire(1, name)
		r.answerAll()
		for range i % 7 {
			r.acquire(2, name)
		}
		r.pass(time.Millisecond)
	}
	var v locktable.Survey
	for r.tb.Survey(r.now, &v, 7) {
	}
	if len(v.MostWaited) != 50 || len(v.LongestHeld) != 50 {
		t.Fatalf("%d and %d", len(v.MostWaited), len(v.LongestHeld))
	}
	for i := range 50 {
		if want := fmt.Sprintf("lock-%02d", i); v.LongestHeld[i].Name != want || v.LongestHeld[i].Rank != int64(time.Duration(60-i)*time.Millisecond) {
			t.Errorf("place %d of the longest held is %+v, want %s", i, v.LongestHeld[i], want)
		}
		if i > 0 && v.MostWaited[i].Rank > v.MostWaited[i-1].Rank {
			t.Errorf("place %d of the most waited is above the one before", i)
		}
	}
	if first, last := v.MostWaited[0].Rank, v.MostWaited[49].Rank; first != 6 || last != 1 {
		t.Errorf("the most waited have %d to %d waiters", first, last)
	}
}

func TestHistogramPutsEachDurationIntoItsBucket(t *testing.T) {
	for _, s := range []*locktable.Scale{locktable.ShortTimes, locktable.LongTimes, locktable.LeaseTimes} {
		bounds := s.Bounds()
		for i, bound := range bounds {
			for _, c := range []struct {
				d    time.Duration
				want int
			}{{bound, i}, {bound + 1, i + 1}} {
				var h locktable.Histogram
				h.Observe(s, c.d)
				if h.Counts[c.want] != 1 || h.Count() != 1 || h.Sum != c.d {
					t.Errorf("%v of %v: %v", c.d, bounds, h)
				}
			}
		}
		var h locktable.Histogram
		h.Observe(s, -time.Second)
		h.Observe(s, 1<<63-1)
		if h.Counts[0] != 1 || h.Counts[len(bounds)] != 1 {
			t.Errorf("the least and the greatest: %v", h)
		}
	}
}

func TestEveryCounterHasAName(t *testing.T) {
	seen := make(map[string]bool)
	note := func(name string) {
		if name == "" || seen[name] {
			t.Errorf("%q names two values, or none", name)
		}
		seen[name] = true
	}
	for i := range locktable.AcquireResults {
		note("result " + locktable.AcquireResult(i).String())
	}
	for i := range locktable.HandoffKinds {
		note("kind " + locktable.HandoffKind(i).String())
	}
	for i := range redisop.Outcomes {
		note("outcome " + redisop.Outcome(i).String())
	}
	for i := range locktable.LossReasons {
		note("reason " + string(locktable.LossReason(i)))
	}
	if locktable.LossReason(locktable.LossForgotten) != protocol.Forgotten {
		t.Error("LossForgotten is not the index of forgotten")
	}
}

// BenchmarkCount is what one acquire and one release add to count themselves.
func BenchmarkCount(b *testing.B) {
	var g locktable.GroupStats
	for i := range b.N {
		g.Acquires[locktable.AcquireGranted]++
		g.Wait.Observe(locktable.ShortTimes, time.Duration(i&0xfffff))
		g.Held.Observe(locktable.LongTimes, time.Duration(i&0xffffff))
	}
	if g.Wait.Count() != uint64(b.N) {
		b.Fatal("lost some")
	}
}

package intake

import (
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/policy"
)

const second = int64(time.Second)

func compilePolicy(t *testing.T, entries ...policy.Entry) *policy.Policy {
	t.Helper()
	p, err := policy.New(entries, policy.Resolver{User: func(name string) (int64, error) { return strconv.ParseInt(name, 10, 64) }})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// openPace returns the pace of a connection of a user.
func openPace(t *testing.T, ps *Paces[policy.Account], p *policy.Policy, now, uid int64) *Pace {
	t.Helper()
	rules, refusal := p.For(&policy.Peer{UID: uid})
	if refusal != nil {
		t.Fatal(refusal)
	}
	n, account := rules.Requests(uid)
	return ps.Open(now, account, n)
}

func TestRequestsAreReadTwiceAsFastAsTheyAreAllowed(t *testing.T) {
	p := compilePolicy(t, policy.Entry{Name: "slow", Users: []string{"5"}, RequestsPerSecond: 10})
	var ps Paces[policy.Account]
	pace := openPace(t, &ps, p, 0, 5)
	for i, tt := range []struct {
		at   int64
		n    int
		want time.Duration
	}{
		{0, 20, 0},                             // a second of them at once
		{0, 1, 50 * time.Millisecond},          // and then each after its time
		{second, 20, 50 * time.Millisecond},    //
		{second, 5, 300 * time.Millisecond},    //
		{second, 1000, time.Second},            // no pause is longer,
		{second, 1, time.Second},               // however many were read
		{2 * second, 1, 50 * time.Millisecond}, // and they are paid for then
		{9 * second, 20, 0},
	} {
		if got := pace.Pause(tt.at, tt.n); got != tt.want {
			t.Errorf("%d: %d requests at %v: a pause of %v, want %v", i, tt.n, time.Duration(tt.at), got, tt.want)
		}
	}
}

func TestPaceIsSharedAndOutlastsAConnection(t *testing.T) {
	p := compilePolicy(t, policy.Entry{Name: "each", Users: []string{"5", "6"}, RequestsPerSecond: 10}, policy.Entry{Name: "together", Users: []string{"7", "8"}, RequestsPerSecond: 10, Per: "entry"},
		policy.Entry{Name: "free", Users: []string{"9"}, Sessions: 10})
	var ps Paces[policy.Account]
	five, six := openPace(t, &ps, p, 0, 5), openPace(t, &ps, p, 0, 6)
	if five == six {
		t.Error("two users share the pace of an entry for each user")
	}
	if openPace(t, &ps, p, 0, 7) != openPace(t, &ps, p, 0, 8) {
		t.Error("two users do not share the pace of an entry for all")
	}
	for _, uid := range []int64{9, 10} {
		if pace := openPace(t, &ps, p, 0, uid); pace != nil {
			t.Errorf("user %d has a pace, and no limit of requests", uid)
		}
	}
	five.Pause(0, 30)
	ps.Close(five)
	ps.Close(nil)
	// Paces that nothing depends on are forgotten, others not.
	everyone := compilePolicy(t, policy.Entry{Name: "everyone", RequestsPerSecond: 10})
	for uid := range int64(1000) {
		ps.Close(openPace(t, &ps, everyone, second/4, 1000+uid))
	}
	if openPace(t, &ps, p, second/4, 5) != five {
		t.Error("a user that connects again has another pace")
	}
	if openPace(t, &ps, p, second/4, 6) != six {
		t.Error("a user that is connected has another pace")
	}
	if n := len(ps.all); n > 300 {
		t.Errorf("%d paces are kept", n)
	}
}

package locktable_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// downgrade returns what clients are sent if a session asks for a downgrade of a hold.
func (r *rig) downgrade(s locktable.SessionID, hold uint64) (sent []string) {
	r.collect()
	r.ids++
	r.tb.Downgrade(r.now, s, protocol.Downgrade{ID: r.ids, Hold: hold})
	for _, e := range r.tb.Effects() {
		switch e.Kind {
		case locktable.Redis:
			r.ops = append(r.ops, e.Op)
		case locktable.Downgraded:
			sent = append(sent, fmt.Sprintf("s%d downgraded hold=%d, valid: %v", e.Session, e.Hold, e.Deadline > r.now))
		case locktable.Granted:
			sent = append(sent, fmt.Sprintf("s%d granted hold=%d", e.Session, e.Hold))
		case locktable.Refusal:
			sent = append(sent, fmt.Sprintf("s%d refused %s: %s", e.Session, e.Code, e.Msg))
		}
	}
	return sent
}

func TestDowngradeAdmitsReaders(t *testing.T) {
	r := newRig(t)
	r.exclusive(1, "a", owner(5))
	r.redis(redisop.Take, redisop.Done)
	r.exclusive(1, "a", owner(5))
	r.want("s1 granted hold=1 token=1 count=1", "s1 granted hold=1 token=1 count=2")
	r.shared(2, "a")
	if got := r.downgrade(1, 1); len(got) == 0 || got[0] != "s1 downgraded hold=1, valid: true" {
		t.Fatalf("%q", got)
	}
	if got, want := r.downgrade(1, 1), []string{"s1 refused bad_request: hold 1 is shared already"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	r.answerAll()
	r.exclusive(1, "a", owner(5), wait(0))
	r.release(1, 1)
	r.release(1, 1)
	if row, _ := r.tb.Info(r.now, "a"); row.Held != 1 || row.Session != 2 {
		t.Errorf("%+v", row)
	}
}

func TestDowngradeIsForOwnExclusiveHoldsOfReadWriteLocks(t *testing.T) {
	r := newRig(t)
	r.acquire(1, "lock")
	r.redis(redisop.Take, redisop.Done)
	r.exclusive(2, "a")
	r.redis(redisop.Take, redisop.Done)
	r.collect()
	for _, tt := range []struct {
		session locktable.SessionID
		hold    uint64
		code    protocol.Code
	}{{1, 1, protocol.BadRequest}, {1, 2, protocol.NotHeld}, {2, 7, protocol.NotHeld}} {
		if got := r.downgrade(tt.session, tt.hold); len(got) != 1 || got[0][:len("s1 refused ")+len(tt.code)] != fmt.Sprintf("s%d refused %s", tt.session, tt.code) {
			t.Errorf("session %d, hold %d: %q", tt.session, tt.hold, got)
		}
	}
}

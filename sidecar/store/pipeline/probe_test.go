package pipeline

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

func TestProbeIsRefusedIfOneOfItsOperationsIs(t *testing.T) {
	done, refused := wire.Reply{Kind: ':', Num: 1}, wire.Reply{Kind: '*', List: []wire.Reply{
		{Kind: ':', Num: int64(wire.CodeRefused)}, {Kind: '$', Text: "NOPERM no permission to run the 'del' command"},
	}}
	for name, c := range map[string]struct {
		list []wire.Reply
		want bool
	}{
		"none":     {[]wire.Reply{done, done}, false},
		"the Take": {[]wire.Reply{refused, done}, true},
		"the Drop": {[]wire.Reply{done, refused}, true},
	} {
		if text := refusedProbe(&wire.Reply{Kind: '*', List: c.list}); (text != "") != c.want {
			t.Errorf("%s is refused: %q", name, text)
		}
	}
}

func probed(c *Config, _ *Greeting) { c.ProbeInterval = time.Minute }

// A refusal that may pass is looked at again soon.
func TestProbeFollowsSoonAfterARefusal(t *testing.T) {
	const oom = "-OOM command not allowed when used memory > 'maxmemory'.\r\n"
	d := drive(t, probed)
	for _, tt := range []struct {
		answer string
		after  time.Duration
	}{{"*0\r\n", time.Minute}, {oom, probeConfirm}, {oom, probeDegraded}, {"*0\r\n", time.Minute}} {
		d.probe.next = d.now
		d.Advance(d.now, 0, false)
		if got := d.commands(); len(got) < 2 {
			t.Fatalf("no probe is sent: %q", got)
		}
		if err := d.answer("*0\r\n" + tt.answer); err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(d.probe.next - d.now); got != tt.after || d.Next() > d.probe.next {
			t.Errorf("after %q, the next probe is %v later, want %v", tt.answer, got, tt.after)
		}
		for !d.isIdle() {
			if err := d.answer("+PONG\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		d.rest()
	}
}

// No probe is sent while a WAIT is in flight. Its answer has one sent that is due, and otherwise has nothing looked at: each
// batch has a WAIT.
func TestAnswerToAWaitBringsNoProbeForward(t *testing.T) {
	d := drive(t, durable)
	d.probe = probe{interval: int64(time.Minute), next: d.now + int64(time.Minute)}
	wait := func() {
		t.Helper()
		d.do(takeOp("a", 1))
		if d.Advance(d.now, d.now, false); d.probe.inFlight {
			t.Fatal("a probe is sent while a WAIT is in flight")
		}
		if err := d.answer(token + ":1\r\n"); err != nil {
			t.Fatal(err)
		}
		d.rest()
	}
	for range 2 {
		if wait(); d.Next() <= d.now {
			t.Error("the answer to a WAIT has a connection looked at for which nothing is due")
		}
	}
	d.now = d.probe.next
	if wait(); d.Next() > d.now {
		t.Error("the answer to a WAIT does not have a probe sent that is due")
	}
}

// What is asked for while a WAIT is in flight is one batch, with one WAIT.
func TestNoOperationIsSentWhileAWaitIsInFlight(t *testing.T) {
	d := drive(t, durable)
	d.do(takeOp("a", 1))
	if n := len(d.commands()); n != 2 {
		t.Fatalf("an operation and its WAIT are %d commands", n)
	}
	d.do(takeOp("b", 1))
	d.do(takeOp("c", 1))
	if c := d.commands(); len(c) > 0 {
		t.Errorf("while a WAIT is in flight, %q is sent", c)
	}
	if err := d.answer(token + ":1\r\n"); err != nil {
		t.Fatal(err)
	}
	d.rest()
	if c := d.commands(); len(c) != 2 {
		t.Errorf("after its answer, %q is sent", c)
	}
}

// The danger: a release is confirmed by the replicas of a node that never had the lock. Those of the node that has the slot may
// have it, and one of them becomes its master.
func TestReleaseIsNotConfirmedBeforeItsSlotHasMoved(t *testing.T) {
	const held = "*5\r\n:4\r\n:9000\r\n$3\r\nx:1\r\n:0\r\n:0\r\n"
	for name, c := range map[string]struct {
		op       redisop.Op
		answer   string
		outcome  redisop.Outcome
		unsynced bool
	}{
		"a release": {redisop.Op{Kind: redisop.Drop, Name: "a", HoldID: 1}, ":0\r\n", redisop.NotSynced, false},
		"a refusal": {takeOp("a", 1), held, redisop.HeldByOther, true},
		"a renewal": {redisop.Op{Kind: redisop.Renew, Name: "a", HoldID: 1, Count: 1, LeaseMS: 30_000}, "*1\r\n:0\r\n", redisop.Done, false},
	} {
		d := drive(t, durable, func(c *Config, _ *Greeting) { c.IsNode = true })
		d.DoAsking(d.now, []redisop.Op{c.op})
		if err := d.answer("+OK\r\n" + c.answer + ":1\r\n"); err != nil {
			t.Fatal(name, err)
		}
		if err := d.Rest(d.now); err != nil {
			t.Fatal(err)
		}
		all := d.TakeDeliveries(nil)
		if len(all) != 1 || all[0].Results[0].Outcome != c.outcome || all[0].Results[0].Unsynced != c.unsynced {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

// A Take that is refused while Redis seems to serve, or served while it is degraded, has the next
// probe sent a second after the last one, and not after the interval.
func TestTakeThatTheLastProbeDoesNotExplainBringsTheNextForward(t *testing.T) {
	const sentAt, interval = int64(time.Hour), int64(time.Minute)
	for name, c := range map[string]struct {
		why     string
		outcome redisop.Outcome
		want    int64
	}{
		"refused, and Redis serves":      {"", redisop.Refused, sentAt + int64(probeConfirm)},
		"may be refused once":            {"", redisop.Retryable, sentAt + int64(probeConfirm)},
		"served, and Redis serves":       {"", redisop.Done, sentAt + interval},
		"served, and Redis is degraded":  {"it refuses", redisop.HeldByOther, sentAt + int64(probeConfirm)},
		"refused, and Redis is degraded": {"it refuses", redisop.Refused, sentAt + interval},
		"unknown":                        {"", redisop.Unknown, sentAt + interval},
	} {
		d := drive(t, probed)
		d.probe = probe{interval: interval, sentAt: sentAt, next: sentAt + interval, why: c.why}
		d.noteResult(&redisop.Result{Kind: redisop.Take, Outcome: c.outcome})
		if d.probe.next != c.want || d.Next() > c.want {
			t.Errorf("%s: the next probe is %v after the last one, want %v", name, time.Duration(d.probe.next-sentAt), time.Duration(c.want-sentAt))
		}
		if isRefused := c.outcome == redisop.Refused; d.probe.isConclusive("") != isRefused {
			t.Errorf("%s: a probe whose keys are denied is conclusive: %v, and the Take was refused: %v", name, !isRefused, isRefused)
		}
	}
}

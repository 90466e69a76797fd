package contract

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Each rule is broken by something, and what keeps it is no fault.
func TestEachRuleCanBeBroken(t *testing.T) {
	const done, at = redisop.Done, 5
	id, other := redisop.NewConn(1), redisop.NewConn(2)
	type world struct {
		op, take Op
		conn     Conn
	}
	result := func(o redisop.Outcome) *redisop.Result { return &redisop.Result{Outcome: o, Sent: 1} }
	tell := func(w *world, o redisop.Outcome) string { return w.op.Result(result(o), &w.conn) }
	transfer := &redisop.Message{Kind: redisop.Transferred, Conn: id}
	for _, c := range []struct {
		rule         string
		keep, breaks func(w *world) string
	}{
		{
			"S1: ",
			func(w *world) string { return w.op.Executed(1, at, done) + tell(w, done) + w.op.Settled() },
			func(w *world) string { return tell(w, done) },
		},
		{"S1: ", func(w *world) string { return tell(w, redisop.NotSent) + w.op.Settled() }, func(*world) string { return new(Op).Settled() }},
		{
			"S2: ",
			func(w *world) string { return tell(w, redisop.NotSent) },
			func(w *world) string { return w.op.Executed(1, at, done) },
		},
		{
			"S2: ",
			func(w *world) string { return w.op.Executed(1, at, done) },
			func(w *world) string { return tell(w, redisop.NotSent) },
		},
		{
			"S3: ",
			func(w *world) string { return w.op.Executed(1, at, done) },
			func(w *world) string { return w.op.Executed(2, at, done) },
		},
		{"S3: ", func(w *world) string { return w.op.Executed(1, at, redisop.HeldByOther) }, func(w *world) string { return tell(w, done) }},
		{"S3: ", func(*world) string { return "" }, func(w *world) string { return tell(w, redisop.NotSynced) }},
		{
			"S4: ",
			func(w *world) string { return w.op.Executed(1, at, redisop.Refused) + tell(w, redisop.Refused) },
			func(*world) string {
				var w world
				return w.op.Executed(1, at, done) + tell(&w, redisop.Retryable)
			},
		},
		{"S4: ", func(w *world) string { return w.op.Asked() + w.op.Executed(1, at, done) }, func(w *world) string { return w.op.Asked() }},
		{"S5: ", func(w *world) string { return w.conn.Tell("a message", 3) }, func(w *world) string { return w.conn.Tell("a message", 2) }},
		{
			"S6: ",
			func(w *world) string { return w.op.Executed(1, at, done) },
			func(w *world) string { return w.op.Result(&redisop.Result{Sent: at + 1}, &w.conn) },
		},
		{
			"S7: ",
			func(*world) string { return new(Op).Result(result(redisop.Unknown), &Conn{IsDown: true}) },
			func(w *world) string { return tell(w, redisop.Unknown) },
		},
		{
			"S8: ",
			func(*world) string {
				return new(Op).Result(&redisop.Result{Outcome: redisop.Retryable, Msg: "MOVED 1 a:1"}, &Conn{IsMoved: true})
			},
			func(w *world) string {
				return w.op.Result(&redisop.Result{Outcome: redisop.Retryable, Msg: "MOVED 1 a:1"}, &w.conn)
			},
		},
		{
			"S9: ",
			func(w *world) string {
				w.op.IsVain = true
				return w.take.Executed(1, at, done) + w.op.Executed(2, at, done) + w.take.Result(result(done), &w.conn) + tell(w, done) + Pair(&w.op, &w.take)
			},
			func(w *world) string {
				w.op.IsVain = false
				return Pair(&w.op, &w.take)
			},
		},
		{"S10: ", func(*world) string { return Drawn(8, 7) }, func(*world) string { return Drawn(7, 7) }},
		{"S11: ", func(w *world) string { return w.conn.Transfer(transfer, true) }, func(w *world) string { return w.conn.Transfer(transfer, false) }},
		{
			"S11: ",
			func(w *world) string { return w.conn.Transfer(&redisop.Message{}, false) },
			func(w *world) string { return w.conn.Transfer(&redisop.Message{Conn: other}, true) },
		},
		{
			"S12: ",
			func(w *world) string {
				w.conn.Confirms, w.conn.Confirmed, w.op.IsLoose = true, 0, true
				return w.op.Executed(1, at, done) + tell(w, done)
			},
			func(w *world) string {
				w.op = Op{}
				return w.op.Executed(2, at, done) + tell(w, done)
			},
		},
		{"S13: ", func(*world) string { return Subscribed(true, true) }, func(*world) string { return Subscribed(false, true) }},
		{"S13: ", func(*world) string { return Subscribed(true, true) }, func(*world) string { return Subscribed(true, false) }},
	} {
		w := &world{conn: Opened(id, 0, false)}
		if broken := c.keep(w); broken != "" {
			t.Errorf("%sis not broken, and yet: %s", c.rule, broken)
		}
		if broken := c.breaks(w); !strings.HasPrefix(broken, c.rule) {
			t.Errorf("%sis broken, and the monitor says %q", c.rule, broken)
		}
	}
}

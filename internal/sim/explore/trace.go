package explore

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Trace describes the way to a violation, and after each step what has changed.
func (v *Violation) Trace() string {
	var b strings.Builder
	w := newWorld(v.Plan)
	line := func(a action) {
		next := w.step(a)
		fmt.Fprintf(&b, "%5d ms  %s\n", (w.now-startOfRun)/ms, a)
		next.traceChanges(&b, w)
		w = next
	}
	for i, a := range v.Path {
		if i == len(v.Plan.Prefix) {
			w.beginHere()
		}
		line(a)
	}
	if w.violation == "" {
		b.WriteString("from here it is run fairly:\n")
		w.settleWith(func(_ *world, a action) { line(a) })
	}
	fmt.Fprintf(&b, "%s\n", v.Text)
	for i, h := range w.hosts {
		if h.process != nil {
			fmt.Fprintf(&b, "host %d has\n%s", i, h.process.table.Text(w.now, lockName))
		}
	}
	return b.String()
}

func (w *world) traceChanges(b *strings.Builder, before *world) {
	out := func(format string, args ...any) { fmt.Fprintf(b, "            "+format+"\n", args...) }
	for i, h := range w.hosts {
		was := before.hosts[i]
		for c := range h.clients {
			if cl := &h.clients[c]; *cl != was.clients[c] {
				out("client %d of host %d: %s", c, i, cl.text(w))
			}
		}
		for s := range w.sides() {
			at := ""
			if w.plan.Cluster {
				at = fmt.Sprintf(" (shard %d)", w.shardAt(s))
			}
			for _, r := range added(was.conns[s].requests, h.conns[s].requests) {
				out("host %d sends%s %s", i, at, r.text())
			}
			for _, f := range added(was.conns[s].frames, h.conns[s].frames) {
				out("Redis%s sends to host %d: %s", at, i, f.text())
			}
		}
	}
	if w.key != before.key {
		out("the key is now %s", keyText(w))
	}
	if is, was := fmt.Sprintf("%+v", *w.semaphore), fmt.Sprintf("%+v", *before.semaphore); is != was {
		out("the semaphore is now %s", is)
	}
	if t, was := fmt.Sprint(w.queue.Tickets), fmt.Sprint(before.queue.Tickets); t != was {
		out("the queue is now %s", queueText(w.queue))
	}
}

// added returns what was appended to a stream from which the first may have been taken.
func added[T any](before, after []T) []T {
	if len(after) > 0 && len(before) > 0 {
		for i := range before {
			if &before[i] == &after[0] || fmt.Sprint(before[i]) == fmt.Sprint(after[0]) {
				return after[min(len(before)-i, len(after)):]
			}
		}
	}
	return after
}

func (c *client) text(w *world) string {
	switch c.phase {
	case waiting:
		return "waits" + arrivedText(", ", c.reached)
	case trying:
		return "tries"
	case believes:
		return fmt.Sprintf("believes in hold %d, token %d, for %d ms; away: %v", c.hold, c.token-freshToken, (c.deadline-w.now)/ms, c.away)
	}
	return fmt.Sprintf("idle; away: %v, dead: %v", c.away, c.dead)
}

func (r *request) text() string {
	if r.kind != locktable.Redis {
		return [...]string{locktable.Subscribe: "subscribe", locktable.Unsubscribe: "unsubscribe"}[r.kind]
	}
	op := &r.op
	if op.Of == redisop.KindPermits {
		return fmt.Sprintf("%v(%d) keep=%d want=%d times=%d enqueue=%v yields=%v lease=%d", op.Kind, op.HoldID, op.Count, op.Want, op.Times, op.Has(redisop.Enqueue), op.Has(redisop.Yields), op.LeaseMS) +
			arrivedText(" ", op.Arrived)
	}
	return fmt.Sprintf("%v(%d) ticket=%d enqueue=%v reserve=%d lease=%d afterDrop=%v existing=%v passed=%d", op.Kind, op.HoldID, op.Ticket, op.Has(redisop.Enqueue), op.Reserve, op.LeaseMS, op.Has(redisop.AfterPendingDrop), op.Has(redisop.RequireExisting), op.PassedMS) +
		arrivedText(" ", op.Arrived)
}

func (f *frame) text() string {
	switch f.kind {
	case subscribedFrame:
		return "subscribed"
	case unsubscribedFrame:
		return "unsubscribed"
	case movedFrame:
		return "subscription moved"
	case messageFrame:
		m := &f.message
		name := [...]string{"unlocked", "transferred", "recalled", "freed", "requeue", "admitted"}[m.Kind]
		if f.isCopy {
			name = "a copy of " + name
		}
		return fmt.Sprintf("%s ticket=%d lease=%d waiting=%d", name, m.Ticket, m.LeaseMS, m.Waiting)
	}
	r := &f.result
	name := [...]string{"done", "held by other", "key missing", "differs", "not a lock", "not sent", "unknown", "refused", "retryable", "not synced"}[r.Outcome]
	return fmt.Sprintf("%s ticket=%d rank=%d recall=%d waiting=%d passed=%v paused=%v listeners=%+v", name, r.Ticket, r.Rank, r.Recall, r.Waiting, r.Passed, r.Paused, r.Listeners) +
		arrivedText(" ", r.Arrived) + arrivedText(" first ", r.FirstArrived)
}

// arrivedText is empty if the time of an arrival is 0.
func arrivedText(before string, at uint64) string {
	if at == 0 {
		return ""
	}
	return fmt.Sprintf("%sarrived at %d µs", before, sinceStart(at))
}

// sinceStart is a time of Redis's clock, from when the world began.
func sinceStart(at uint64) int64 { return int64(at) - startOfRun/tick*clockPerTick }

func keyText(w *world) string {
	if !w.key.Exists() {
		return "free"
	}
	return fmt.Sprintf("host %d's, %d, for %d ms", w.key.Owner, w.key.Num, (w.key.ExpireAt-w.now)/ms)
}

func queueText(q *redis.Queue) string {
	var b strings.Builder
	for _, t := range q.Tickets {
		fmt.Fprintf(&b, "[%d of host %d%s]", t.Num, t.Owner, arrivedText(" ", uint64(t.Time)))
	}
	return b.String()
}

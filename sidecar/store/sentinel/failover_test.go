package sentinel

import (
	"testing"
	"time"
)

// Shows docs/topologies.md: An aborted failover.
func TestReviewOfFailovers(t *testing.T) {
	g := NewGroup("mymaster", []string{"a:1", "b:1"})
	now, at := int64(time.Hour), ""
	g.last = "old:1"
	a, b := g.members["a:1"], g.members["b:1"]
	answer := func(m *Member, master string, lead Lead) View { return View{Member: m, Master: master, Lead: lead} }
	review := func(views ...View) { g.review(now, now, views) }
	for _, step := range []struct {
		what string
		do   func()
		at   string
	}{
		{"it is announced", func() { g.Announced(now, a, FailoverChannels[0], "master mymaster old 1") }, "old:1"},
		{"a round that began before says nothing of it", func() { g.review(now, now-int64(time.Minute), []View{answer(a, "old:1", LeadsNone)}) }, "old:1"},
		{"another Sentinel leads none", func() { review(answer(b, "old:1", LeadsNone)) }, "old:1"},
		{"it does not answer", func() { review(View{Member: a, Err: ErrNotWatched}) }, "old:1"},
		{"it names the promoted replica", func() { review(answer(a, "new:1", LeadsTo)) }, "old:1"},
		{"it leads none any more", func() { review(answer(a, "new:1", LeadsNone)) }, ""},
		{"the new master is not the one that is replaced", func() {
			g.last = "new:1"
			review(answer(a, "new:1", LeadsTo))
		}, ""},
		{"a Sentinel replaces another master than ours", func() { review(answer(a, "old:1", LeadsFrom)) }, ""},
		{"a Sentinel says that it replaces ours", func() { review(answer(b, "new:1", LeadsFrom)) }, "new:1"},
		{"it is silent for long", func() {
			g.failovers[b].heardAt = now - failoverSilence - 1
			review()
		}, ""},
		{"one that is no member announces", func() {
			g.Announced(now, &Member{Address: "c:1"}, FailoverChannels[0], "master mymaster new 1")
		}, ""},
	} {
		now++
		step.do()
		for _, n := range g.Notes() {
			at = n.Address
		}
		if at != step.at {
			t.Errorf("%s: %q is replaced, want %q", step.what, at, step.at)
		}
	}
}

func TestMessagesAboutFailovers(t *testing.T) {
	for _, tt := range []struct{ channel, text, from, to string }{
		{"+promoted-slave", "slave 10.0.0.2:6379 10.0.0.2 6379 @ mymaster 10.0.0.1 6380", "10.0.0.1:6380", "10.0.0.2:6379"},
		{"+promoted-slave", "slave [::2]:6379 ::2 6379 @ mymaster ::1 6380", "[::1]:6380", "[::2]:6379"},
		{"+promoted-slave", "slave 10.0.0.2:6379 10.0.0.2 6379 @ another 10.0.0.1 6380", "", ""},
		{"-failover-abort-slave-timeout", "master mymaster 10.0.0.1 6380", "10.0.0.1:6380", ""},
		{"-failover-abort-no-good-slave", "slave 10.0.0.2:6379 10.0.0.2 6379 @ mymaster 10.0.0.1 6380", "10.0.0.1:6380", ""},
		{"+promoted-slave", "slave 10.0.0.2:6379 10.0.0.2 x @ mymaster 10.0.0.1 6380", "", ""},
		{"+promoted-slave", "master mymaster 10.0.0.1 x", "", ""},
		{SwitchMaster, "mymaster 10.0.0.1 6380 10.0.0.2 6379", "10.0.0.1:6380", "10.0.0.2:6379"},
	} {
		if from, to := Moved("mymaster", tt.channel, tt.text); from != tt.from || to != tt.to {
			t.Errorf("%s %s: from %q to %q", tt.channel, tt.text, from, to)
		}
	}
}

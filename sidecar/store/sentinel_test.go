package store

import (
	"log/slog"
	"testing"
)

// view is an answer of a Sentinel that all others know.
func view(runID, master string, epoch int64, peers ...string) sentinelView {
	v := sentinelView{member: &sentinelMember{address: runID}, runID: runID, master: master, epoch: epoch}
	for _, p := range peers {
		v.peers = append(v.peers, sentinelPeer{runID: p, address: p})
	}
	return v
}

func down(v sentinelView) sentinelView {
	v.isDown = true
	return v
}

func TestChooseMaster(t *testing.T) {
	for _, tt := range []struct {
		name           string
		views          []sentinelView
		master         string
		agreed, isDown bool
	}{
		{"none answers", nil, "", false, false},
		{"none knows the master", []sentinelView{view("a", "", 0, "b")}, "", false, false},
		{"all name one", []sentinelView{view("a", "m", 3, "b", "c"), view("b", "m", 3, "a", "c"), view("c", "m", 3, "a", "b")}, "m", true, false},
		{"one has heard of the new master", []sentinelView{view("a", "new", 4, "b", "c"), view("b", "old", 3, "a", "c"), view("c", "old", 3, "a", "b")}, "new", false, false},
		{"one missed the failover", []sentinelView{view("a", "new", 4, "b", "c"), view("b", "new", 4, "a", "c"), view("c", "old", 3, "a", "b")}, "new", false, false},
		{"one alone", []sentinelView{view("a", "m", 3, "b", "c")}, "m", true, false},
		{"a stranger has a higher epoch", []sentinelView{view("a", "m", 3, "b"), view("b", "m", 3, "a"), view("z", "theirs", 99, "y")}, "m", true, false},
		{"a stranger alone", []sentinelView{view("z", "theirs", 99, "y")}, "theirs", true, false},
		{"no run ids", []sentinelView{view("", "m", 3), view("", "m", 3)}, "m", true, false},
		{"names and addresses of one epoch", []sentinelView{view("a", "host:1", 3, "b", "c"), view("b", "10.0.0.1:1", 3, "a", "c"), view("c", "10.0.0.1:1", 3, "a", "b")}, "10.0.0.1:1", false, false},
		{"one sees it down", []sentinelView{down(view("a", "m", 3, "b", "c")), view("b", "m", 3, "a", "c"), view("c", "m", 3, "a", "b")}, "m", true, false},
		{"most see it down", []sentinelView{down(view("a", "m", 3, "b", "c")), down(view("b", "m", 3, "a", "c")), view("c", "m", 3, "a", "b")}, "m", true, true},
		{"the old one is down, as two see it", []sentinelView{view("a", "new", 4, "b", "c"), down(view("b", "old", 3, "a", "c")), down(view("c", "old", 3, "a", "b"))}, "new", false, false},
	} {
		master, agreed, isDown := chooseMaster(tt.views)
		if master != tt.master || agreed != tt.agreed || isDown != tt.isDown {
			t.Errorf("%s: %q, agreed %v, down %v", tt.name, master, agreed, isDown)
		}
	}
}

func TestSentinelMessages(t *testing.T) {
	for text, want := range map[string]string{
		"mymaster 10.0.0.1 6379 10.0.0.2 6380": "10.0.0.2:6380",
		"mymaster 10.0.0.1 6379 fe80::1 6380":  "[fe80::1]:6380",
		"another 10.0.0.1 6379 10.0.0.2 6380":  "",
		"mymaster 10.0.0.1 6379 10.0.0.2 x":    "",
		"mymaster 10.0.0.1 6379 10.0.0.2":      "",
		"":                                     "",
	} {
		s := newSentinels(group(t, "redis+sentinel://127.0.0.1:1/mymaster"), slog.New(slog.DiscardHandler))
		moved := ""
		s.onMoved = func(address string) { moved = address }
		if s.onMessage(text); moved != want {
			t.Errorf("%q: moved to %q, want %q", text, moved, want)
		}
		s.close()
	}
}

// A Sentinel that the URL names by its host is known to the others by its address.
func TestSentinelsAreLearnedOnce(t *testing.T) {
	s := newSentinels(group(t, "redis+sentinel://host-a:1,host-b:1/mymaster"), slog.New(slog.DiscardHandler))
	defer s.close()
	round := func(views ...sentinelView) {
		t.Helper()
		for i := range views {
			if m := s.members[views[i].member.address]; m != nil {
				views[i].member = m
			}
		}
		s.learn(views)
	}
	from := func(address, runID string, peers ...sentinelPeer) sentinelView {
		return sentinelView{member: &sentinelMember{address: address}, runID: runID, master: "m", peers: peers}
	}
	a, b, c := sentinelPeer{"a", "10.0.0.1:1"}, sentinelPeer{"b", "10.0.0.2:1"}, sentinelPeer{"c", "10.0.0.3:1"}
	expect := func(addresses ...string) {
		t.Helper()
		if len(s.members) != len(addresses) {
			t.Errorf("%d Sentinels are asked: %v", len(s.members), s.members)
		}
		for _, address := range addresses {
			if s.members[address] == nil {
				t.Errorf("%s is not asked", address)
			}
		}
	}
	round(from("host-a:1", "a", b, c)) // host-b does not answer
	expect("host-a:1", "host-b:1", "10.0.0.2:1", "10.0.0.3:1")
	round(from("host-a:1", "a", b, c), from("host-b:1", "b", a, c))
	expect("host-a:1", "host-b:1", "10.0.0.3:1")
	c.address = "10.0.0.4:1"
	round(from("host-a:1", "a", b, c), from("host-b:1", "b", a, c))
	expect("host-a:1", "host-b:1", "10.0.0.4:1")
	round(from("host-a:1", "a", b), from("host-b:1", "b", a))
	expect("host-a:1", "host-b:1")
	round() // none answers
	expect("host-a:1", "host-b:1")
	s.use(group(t, "redis+sentinel://host-c:1/mymaster"))
	round(from("host-c:1", "c", a, b))
	expect("host-c:1", "10.0.0.1:1", "10.0.0.2:1")
}

func group(t *testing.T, raw string) *sentinelGroup {
	t.Helper()
	d, err := parse(Config{URL: raw, UUID: ourUUID, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	return d.group
}

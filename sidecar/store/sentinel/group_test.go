package sentinel

import (
	"errors"
	"strings"
	"testing"
)

// view is an answer of a Sentinel that all others know.
func view(runID, master string, epoch int64, peers ...string) View {
	v := View{Member: &Member{Address: runID}, RunID: runID, Master: master, Epoch: epoch}
	for _, p := range peers {
		v.Peers = append(v.Peers, Peer{RunID: p, Address: p})
	}
	return v
}

func down(v View) View {
	v.IsDown = true
	return v
}

// A round that a busy host spoils is not reported, two in a row are, once.
func TestLossOfTheMajorityIsReportedOnce(t *testing.T) {
	var reported []string
	g := NewGroup("m", nil)
	all := []View{view("a", "m:1", 1, "b", "c"), view("b", "m:1", 1, "a", "c"), view("c", "m:1", 1, "a", "b")}
	for i, step := range []struct {
		answering, reports int
		lost               bool
	}{{3, 0, false}, {1, 0, false}, {2, 0, false}, {1, 0, false}, {1, 1, true}, {0, 1, true}, {1, 1, true}, {2, 2, false}, {3, 2, false}, {0, 2, false}, {0, 3, true}} {
		g.tally(1, all[:step.answering]) // the one of the URL; learned ones that it sees down are not asked
		for _, n := range g.Notes() {
			reported = append(reported, n.Text)
		}
		if got := g.Counted(); got != (Count{Known: 3, Answering: step.answering}) || got.HasMajority() != (step.answering > 1) {
			t.Errorf("step %d: %+v", i, got)
		}
		if len(reported) != step.reports {
			t.Fatalf("step %d: reported %q", i, reported)
		}
		if n := len(reported); n > 0 && (reported[n-1] != "") != step.lost {
			t.Errorf("step %d: reported %q", i, reported[n-1])
		}
	}
	if want := `1 of 3 Sentinels of the master "m" answer`; !strings.HasPrefix(reported[0], want) {
		t.Errorf("%q does not begin with %q", reported[0], want)
	}
}

func TestChooseMaster(t *testing.T) {
	for _, tt := range []struct {
		name           string
		views          []View
		master         string
		agreed, isDown bool
	}{
		{"none answers", nil, "", false, false},
		{"none knows the master", []View{view("a", "", 0, "b")}, "", false, false},
		{"all name one", []View{view("a", "m", 3, "b", "c"), view("b", "m", 3, "a", "c"), view("c", "m", 3, "a", "b")}, "m", true, false},
		{"one knows the new master", []View{view("a", "new", 4, "b", "c"), view("b", "old", 3, "a", "c"), view("c", "old", 3, "a", "b")}, "new", false, false},
		{"one missed the failover", []View{view("a", "new", 4, "b", "c"), view("b", "new", 4, "a", "c"), view("c", "old", 3, "a", "b")}, "new", false, false},
		{"one alone", []View{view("a", "m", 3, "b", "c")}, "m", true, false},
		{"no run ids", []View{view("", "m", 3), view("", "m", 3)}, "m", true, false},
		{"names and addresses of one epoch", []View{view("a", "host:1", 3, "b", "c"), view("b", "10.0.0.1:1", 3, "a", "c"), view("c", "10.0.0.1:1", 3, "a", "b")}, "10.0.0.1:1", false, false},
		{"one sees it down", []View{down(view("a", "m", 3, "b", "c")), view("b", "m", 3, "a", "c"), view("c", "m", 3, "a", "b")}, "m", true, false},
		{"most see it down", []View{down(view("a", "m", 3, "b", "c")), down(view("b", "m", 3, "a", "c")), view("c", "m", 3, "a", "b")}, "m", true, true},
		{"the old one is down, as two see it", []View{view("a", "new", 4, "b", "c"), down(view("b", "old", 3, "a", "c")), down(view("c", "old", 3, "a", "b"))}, "new", false, false},
	} {
		for i := range tt.views {
			tt.views[i].Member.isSeed = true
		}
		if _, v := Choose(tt.views); v.Master != tt.master || v.IsAgreed != tt.agreed || v.IsDown != tt.isDown {
			t.Errorf("%s: %+v", tt.name, v)
		}
	}
}

// The danger: the address of a Sentinel leads to one of another group by now, which watches another
// master under the same name, perhaps with a higher epoch.
//
// Shows docs/topologies.md: A Sentinel that missed the failover.
func TestSentinelsOfAnotherGroupDoNotCount(t *testing.T) {
	seed := func(v View) View {
		v.Member.isSeed = true
		return v
	}
	learnedAs := func(v View, runID string) View {
		v.Member.runID = runID
		return v
	}
	ours := []View{seed(view("a", "m", 3, "b", "c")), seed(view("b", "m", 3, "a", "c"))}
	for _, tt := range []struct {
		name   string
		others []View
		master string
	}{
		{"none", nil, "m"},
		{"a seed is a stranger", []View{seed(view("x", "theirs", 99, "y"))}, "m"},
		{"a seed is a stranger, whose peer answers, too", []View{seed(view("x", "theirs", 99, "y")), learnedAs(view("y", "theirs", 99, "x"), "y")}, "m"},
		{"a Sentinel that was learned is another one by now", []View{learnedAs(view("x", "theirs", 99, "a", "y"), "c")}, "m"},
		{"as many seeds are strangers", []View{seed(view("x", "theirs", 99, "y")), seed(view("y", "theirs", 99, "x"))}, ""},
		{"one that the others do not know yet knows them", []View{seed(view("d", "new", 4, "a", "b"))}, "new"},
	} {
		views, v := Choose(append(append([]View{}, ours...), tt.others...))
		if v.Master != tt.master {
			t.Errorf("%s: %q, want %q", tt.name, v.Master, tt.master)
		}
		for _, v := range views {
			if v.Master == "" && len(v.Peers) > 0 {
				t.Errorf("%s: Sentinels are learned of a stranger", tt.name)
			}
		}
	}
}

// The danger: a person looks for another group of Sentinels, and the ACL lacks +sentinel|sentinels.
func TestSentinelThatDoesNotPermitAQuestionIsNamed(t *testing.T) {
	denied := errors.New("NOPERM User app has no permissions to run the 'sentinel|sentinels' command")
	alone := func(id string) View {
		v := view(id, "m", 3)
		v.Member.isSeed, v.Denied = true, denied
		return v
	}
	g := NewGroup("m", nil)
	for range 2 {
		views, _ := g.Answered(1, 0, 2, false, []View{alone("a"), alone("b")})
		for _, v := range views {
			if v.Err != denied {
				t.Errorf("%+v", v)
			}
		}
	}
	noted := 0
	for _, n := range g.Notes() {
		if n.Kind == Denied && n.Err == denied {
			noted++
		}
	}
	if noted != 1 {
		t.Errorf("it is noted %d times", noted)
	}
	if _, v := Choose([]View{alone("a")}); v.Master != "m" {
		t.Errorf("the only one: %+v", v)
	}
}

// A Sentinel that the URL names by its host is known to the others by its address.
func TestSentinelsAreLearnedOnce(t *testing.T) {
	g := NewGroup("mymaster", []string{"host-a:1", "host-b:1"})
	round := func(views ...View) {
		t.Helper()
		for i := range views {
			if m := g.members[views[i].Member.Address]; m != nil {
				views[i].Member = m
			}
		}
		g.learn(views)
	}
	from := func(address, runID string, peers ...Peer) View {
		return View{Member: &Member{Address: address}, RunID: runID, Master: "m", Peers: peers}
	}
	a, b, c := Peer{RunID: "a", Address: "10.0.0.1:1"}, Peer{RunID: "b", Address: "10.0.0.2:1"}, Peer{RunID: "c", Address: "10.0.0.3:1"}
	expect := func(addresses ...string) {
		t.Helper()
		if len(g.members) != len(addresses) {
			t.Errorf("%d Sentinels are asked: %v", len(g.members), g.members)
		}
		for _, address := range addresses {
			if g.members[address] == nil {
				t.Errorf("%s is not asked", address)
			}
		}
	}
	round(from("host-a:1", "a", b, c)) // host-b does not answer
	expect("host-a:1", "host-b:1", "10.0.0.2:1", "10.0.0.3:1")
	round(from("host-a:1", "a", b, c), from("host-b:1", "b", a, c))
	expect("host-a:1", "host-b:1", "10.0.0.3:1")
	c.Address = "10.0.0.4:1"
	round(from("host-a:1", "a", b, c), from("host-b:1", "b", a, c))
	expect("host-a:1", "host-b:1", "10.0.0.4:1")
	round(from("host-a:1", "a", b), from("host-b:1", "b", a))
	expect("host-a:1", "host-b:1")
	down := c
	down.IsDown = true
	round(from("host-a:1", "a", b, c), from("host-b:1", "b", a, c))
	expect("host-a:1", "host-b:1", c.Address)
	round(from("host-a:1", "a", b, down), from("host-b:1", "b", a, down))
	expect("host-a:1", "host-b:1")
	round() // none answers
	expect("host-a:1", "host-b:1")
	g.Use([]string{"host-c:1"}, false)
	round(from("host-c:1", "c", a, b))
	expect("host-c:1", "10.0.0.1:1", "10.0.0.2:1")
}

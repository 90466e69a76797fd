package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// testMap is a Map whose effects are carried out at once, as far as it knows.
type testMap struct {
	*Map
	t   *testing.T
	now int64
}

func newMap(t *testing.T) *testMap {
	t.Helper()
	rnd, keyspace := harness.Random(t), wire.NewKeyspace("")
	c := Config{Place: portAt(1), Slots: redisop.Slots, SlotOf: keyspace.SlotOf, NotYet: "it is not connected yet", Rand: rand.New(rand.NewPCG(rnd.Uint64(), rnd.Uint64()))}
	return &testMap{New(c, []string{portAt(1)}), t, int64(time.Hour)}
}

// learned is Learned, of a node that was asked just before.
func (m *testMap) learned(top *Topology) (why string) {
	m.now++
	top.askedAt = m.now
	return m.Learned(m.now, top, portAt(1))
}

// knows has a node answer, and fails if that is not taken.
func (m *testMap) knows(masters ...string) {
	m.t.Helper()
	if why := m.learned(known(m.t, masters...)); why != "" {
		m.t.Fatal(why)
	}
}

// done takes the effects of some kinds, or all; shards that end have ended.
func (m *testMap) done(kinds ...Kind) (effects []Effect) {
	for _, e := range m.Effects() {
		if e.Kind == End {
			m.Ended(e.Shard)
		}
		if len(kinds) == 0 || slices.Contains(kinds, e.Kind) {
			effects = append(effects, e)
		}
	}
	return effects
}

// allUp has all shards be connected.
func (m *testMap) allUp() {
	for n, s := range m.shards {
		if s != nil {
			m.Up(m.now, redisop.Shard(n), &wire.Identity{Floor: 1, FloorAt: 1})
		}
	}
}

func (m *testMap) moved(slot uint16, port int) {
	m.Moved(m.now, wire.Redirect{Slot: slot, Address: portAt(port)})
}

// ownerOf is the port of the master that has a slot; 0: none has.
func (m *testMap) ownerOf(slot uint16) int {
	_, port, _ := strings.Cut(m.masterOf(slot), ":")
	n, _ := strconv.Atoi(port)
	return n
}

// known is a topology of masters with these slots. They have the ports 1, 2, ….
func known(t *testing.T, masters ...string) *Topology {
	t.Helper()
	text := ""
	for i, slots := range masters {
		epoch, slots, _ := strings.Cut(slots, ": ")
		n, _ := strconv.Atoi(epoch)
		text += nodeLine(portAt(i+1)+"@1", "master", n, strings.Fields(slots)...)
	}
	return parsed(t, text)
}

func parsed(t *testing.T, text string) *Topology {
	t.Helper()
	top, err := ParseTopology(text, portAt(1), 0)
	if err != nil {
		t.Fatal(err)
	}
	return top
}

func portAt(n int) string { return fmt.Sprintf("127.0.0.1:%d", n) }

func TestOldEpochTakesNoSlotFromAConnectedMaster(t *testing.T) {
	m := newMap(t)
	m.knows("5: 0-8191", "6: 8192-16383")
	m.allUp()
	for _, tt := range []struct {
		what   string
		knows  *Topology
		owners [2]int // of slots 0 and 16383
	}{
		{"a node that missed a failover", known(t, "5: 0-8191", "4:", "5: 8192-16383"), [2]int{1, 2}},
		{"the same epoch", known(t, "6: 0-16383"), [2]int{1, 1}},
		{"a later one", known(t, "7:", "7: 0-16383"), [2]int{2, 2}},
		{"an older one again", known(t, "6: 0-16383"), [2]int{2, 2}},
	} {
		if why := m.learned(tt.knows); why != "" {
			t.Errorf("%s: %v", tt.what, why)
		}
		m.allUp()
		if got := [2]int{m.ownerOf(0), m.ownerOf(16383)}; got != tt.owners {
			t.Errorf("%s: owners %v, want %v", tt.what, got, tt.owners)
		}
	}
	// A master that is not connected keeps nothing.
	m.Down(m.now, m.Owner(0))
	if why := m.learned(known(t, "3: 0-16383")); why != "" || m.ownerOf(0) != 1 {
		t.Errorf("owner %d, %v", m.ownerOf(0), why)
	}
}

func TestNodeThatKnowsFewMastersIsNotBelieved(t *testing.T) {
	all := []string{"5: 0-4000", "5: 4001-8000", "5: 8001-12000", "5: 12001-16383"}
	for _, tt := range []struct {
		what    string
		knows   []string
		believe bool
	}{
		{"none", nil, false},
		{"one", all[:1], false},
		{"half", all[:2], false},
		{"most", all[:3], true},
		{"another one with all slots", []string{"", "", "", "", "6: 0-16383"}, true},
		{"another one with some", []string{"", "", "", "", "6: 0-16382"}, false},
	} {
		m := newMap(t)
		m.knows(all...)
		why := m.learned(known(t, tt.knows...))
		if (why == "") != tt.believe {
			t.Errorf("a node that knows %s: %v", tt.what, why)
		}
		if why != "" && (!strings.Contains(why, "of the 16384 slots only") || m.ownerOf(16383) != 4 || m.ownerOf(0) != 1) {
			t.Errorf("a node that knows %s: %v; the owners are %d and %d", tt.what, why, m.ownerOf(0), m.ownerOf(16383))
		}
	}
	// The first answer may know some slots only.
	m := newMap(t)
	if m.knows("5: 7"); m.ownerOf(7) != 1 || m.ownerOf(8) != 0 {
		t.Errorf("owner %d and %d", m.ownerOf(7), m.ownerOf(8))
	}
}

func TestSlotWithoutAMasterGoesToShard0(t *testing.T) {
	m := newMap(t)
	for _, slots := range []string{"5: 0-16383", "6: 0-99 101-16383", "7: 0-16383"} {
		m.knows(slots)
	}
	var routes []redisop.SlotRange
	for _, e := range m.done(Route) {
		routes = append(routes, e.Routes...)
	}
	if want := []redisop.SlotRange{{First: 0, Last: 16383, Shard: 1}, {First: 100, Last: 100, Shard: 0}, {First: 100, Last: 100, Shard: 1}}; !slices.Equal(routes, want) {
		t.Errorf("routes %v, want %v", routes, want)
	}
	if m.get(0) != nil {
		t.Error("shard 0 can be asked")
	}
}

func TestMovedMovesASlotSoOften(t *testing.T) {
	m := newMap(t)
	m.knows("5: 0-8191", "6: 8192-16383")
	m.allUp()
	m.done()
	routed := func() (n int) {
		for _, e := range m.done(Route) {
			n += len(e.Routes)
		}
		return n
	}
	for range 3 * maxMoves { // as many operations as were under way
		m.moved(7, 2)
	}
	if n := routed(); n != 1 || m.ownerOf(7) != 2 {
		t.Errorf("%d routes, and port %d has the slot", n, m.ownerOf(7))
	}
	for i := range 3 * maxMoves { // the two nodes name each other
		m.moved(7, 1+i%2)
	}
	if n := 1 + routed(); n != maxMoves {
		t.Errorf("the slot moved %d times, and %d are permitted", n, maxMoves)
	}
	if m.moved(8, 2); m.ownerOf(8) != 2 {
		t.Error("another slot does not move")
	}
	m.done()
	m.now += 2 * movesWindow
	if m.moved(7, 3-m.ownerOf(7)); routed() != 1 {
		t.Error("the slot does not move after the window")
	}
}

// The node that MOVED names may not know of the slot yet, and has an older epoch. An answer of CLUSTER
// NODES that knows nothing newer does not matter then.
func TestMovedCountsWhateverTheEpoch(t *testing.T) {
	m := newMap(t)
	m.knows("9: 0-8191", "1: 8192-16383")
	m.allUp()
	m.moved(7, 2)
	if m.ownerOf(7) != 2 {
		t.Fatalf("port %d has the slot", m.ownerOf(7))
	}
	if m.knows("9: 0-6 8-8191", "1: 7 8192-16383"); m.ownerOf(7) != 2 {
		t.Errorf("port %d has the slot", m.ownerOf(7))
	}
	// The epoch of the master before says nothing of the slot any more.
	if m.knows("9: 0-6 8-8191", "1: 8192-16383", "4: 7"); m.ownerOf(7) != 3 {
		t.Errorf("port %d has the slot", m.ownerOf(7))
	}
	m.moved(8, 77)
	if m.ownerOf(8) != 77 {
		t.Errorf("a node that was not known: port %d has the slot", m.ownerOf(8))
	}
}

// The danger: a node without slots is tried each half minute, and its slots wait when it gets some.
func TestNodeThatGetsSlotsAgainIsConnectedAtOnce(t *testing.T) {
	m := newMap(t)
	for i, tt := range []struct {
		first, second string
		want          []Kind
	}{
		{"1: 0", "1: 1-16383", []Kind{ConnectNow}},
		{"1: 0-1", "1: 2-16383", nil},
		{"1:", "1: 0-16383", []Kind{Idle}},
		{"1: 2", "1: 0-1 3-16383", []Kind{ConnectNow}},
	} {
		m.knows(tt.first, tt.second)
		var got []Kind
		for _, e := range m.done(ConnectNow, Idle) {
			if e.Shard == 1 {
				got = append(got, e.Kind)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("step %d: %v, want %v", i, got, tt.want)
		}
	}
}

// The danger: the answer to CLUSTER NODES was under way when MOVED came, and moves the slot back.
func TestAnswerToAQuestionFromBeforeAMoveDoesNotMoveTheSlotBack(t *testing.T) {
	m := newMap(t)
	before := known(t, "5: 0-8191", "6: 8192-16383")
	m.learned(before)
	m.now++
	m.moved(7, 2)
	if why := m.Learned(m.now, before, portAt(1)); why != "" || m.ownerOf(7) != 2 {
		t.Errorf("slot 7 is at node %d, want 2 (%v)", m.ownerOf(7), why)
	}
	if m.knows("5: 0-8191", "6: 8192-16383"); m.ownerOf(7) != 1 {
		t.Errorf("slot 7 is at node %d, want 1, as a later answer says", m.ownerOf(7))
	}
}

// The danger: the counter of a lock has lost its last values on the way to another node, which draws them again before
// it is lifted.
func TestFloorIsLiftedBeforeTheRoute(t *testing.T) {
	m := newMap(t)
	m.knows("5: 0-8191", "6: 8192-16383")
	m.allUp()
	m.done()
	m.Raised(m.now, &wire.Identity{Floor: 1 << 60, FloorAt: m.now})
	m.moved(7, 2)
	m.moved(9, 2)
	effects := m.Effects()
	if len(effects) != 2 || effects[0].Kind != Lift || effects[0].Shard != m.Owner(7) || !effects[0].AsksClock || effects[0].Floor.Floor != 1<<60 || effects[1].Kind != Route {
		t.Errorf("%+v", effects)
	}
	name := "lock"
	slot := m.cfg.SlotOf(name)
	m.Drew(m.now, m.Owner(slot), name, 7)
	if effects := m.Effects(); len(effects) != 0 {
		t.Errorf("the owner drew a token: %+v", effects)
	}
	m.Drew(m.now, 3-m.Owner(slot), name, 7)
	if effects := m.Effects(); len(effects) != 1 || effects[0].Kind != Lift || effects[0].Shard != m.Owner(slot) || effects[0].Floor.Floor != 7 || effects[0].AsksClock {
		t.Errorf("another shard drew a token: %+v", effects)
	}
}

// A Cluster has one more master than are connected.
func TestOneNodeTooManyHasNoShard(t *testing.T) {
	m := newMap(t)
	for i := range MaxShards {
		if n := m.At(m.now, portAt(1+i)); int(n) != 1+i {
			t.Fatalf("node %d has the shard %d", i, n)
		}
	}
	m.done()
	for range 2 {
		if n := m.Asked(m.now, wire.Redirect{Slot: 1, Address: "127.0.0.2:1"}); n != 0 {
			t.Errorf("it has the shard %d", n)
		}
	}
	if effects := m.Effects(); len(effects) != 1 || effects[0].Kind != TooLarge {
		t.Errorf("%+v", effects)
	}
}

// The danger: all hosts notice at one moment that a master has failed, and ask the others so much at once
// that these are late for their locks. No node knows of another master so soon.
func TestMasterThatFailsHasNoNodeAskedAtOnce(t *testing.T) {
	m := newMap(t)
	if len(m.Due(m.now)) == 0 {
		t.Fatal("no node is asked at the start")
	}
	m.knows("5: 0-8191", "6: 8192-16383")
	m.allUp()
	m.Rest(m.now)
	if wait := m.Next() - m.now; wait < int64(topologyInterval)/2 || m.Due(m.now) != nil {
		t.Errorf("a node is asked after %v, and all are connected", time.Duration(wait))
	}
	retry := int64(m.Retry())
	m.Down(m.now, 1)
	if wait := m.Next() - m.now; wait < retry/2 || wait > retry {
		t.Errorf("a node is asked %v after a master failed, want at most %v, and not at once", time.Duration(wait), time.Duration(retry))
	}
	m.SlotLeft(m.now)
	if wait := m.Next() - m.now; wait > int64(topologyPause) {
		t.Errorf("a node is asked %v after a slot left one", time.Duration(wait))
	}
	m.now = m.Next()
	if got := m.Due(m.now); len(got) != 2 || m.Due(m.now) != nil {
		t.Errorf("%v are asked", got)
	}
	m.SlotLeft(m.now) // the answer that is under way may be older
	m.NotLearned("none answers")
	m.Rest(m.now)
	if wait := m.Next() - m.now; wait > 2*int64(topologyPause) {
		t.Errorf("a node is asked again after %v", time.Duration(wait))
	}
}

// A master that was removed can have become a node of another Cluster. Its answer takes no slot.
func TestNodeOfAnotherClusterIsNotBelieved(t *testing.T) {
	m := newMap(t)
	m.knows("5: 0-8191", "6: 8192-16383")
	m.allUp()
	foreign := known(t, "9: 0-16383")
	foreign.Nodes = map[string]bool{"another": true, "third": true, "fourth": true}
	if why := m.learned(foreign); why == "" || m.ownerOf(16383) != 2 {
		t.Errorf("the slots are those of another Cluster: owner %d, %v", m.ownerOf(16383), why)
	}
	m.knows("9: 0-16383", "6:") // the second one has no slots any more
	m.replicas = nil
	if got := m.Askable(); slices.Contains(got, portAt(2)) {
		t.Errorf("a master without slots is asked: %v", got)
	}
}

// MOVED has the host name of a node, and CLUSTER NODES its IP address, too: both are one shard.
func TestNodeHasOneShardWhateverItsName(t *testing.T) {
	m := newMap(t)
	top := known(t, "5: 0-8191", "6: 8192-16383")
	top.aliases["db-2:2"] = portAt(2)
	m.learned(top)
	m.allUp()
	m.Moved(m.now, wire.Redirect{Slot: 7, Address: "db-2:2"})
	if m.ownerOf(7) != 2 || len(m.shards) != 3 {
		t.Errorf("slot 7 is at %d of %d shards", m.ownerOf(7), len(m.shards)-1)
	}
}

// The danger: the nodes of a Cluster get new addresses again and again, as in Kubernetes, and after MaxShards of
// them the locks of a new one are refused.
//
// Shows docs/topologies.md: Nodes may get new addresses.
func TestShardsOfNodesThatLeftAreUsedAgain(t *testing.T) {
	m := newMap(t)
	for i := range MaxShards + 5 { // two nodes at a time, so that three numbers are used again and again
		m.now += 2 * goneAfter
		why := m.learned(parsed(t, nodeLine(portAt(1)+"@1", "master", 1, "0-8191")+nodeLine(fmt.Sprintf("127.0.1.%d:%d@1", i%200+1, i/200+1), "master", 2+i, "8192-16383")))
		if why != "" {
			t.Fatal(why)
		}
		m.done()
	}
	if m.get(m.Owner(16383)) == nil {
		t.Error("the last node has no shard")
	}
	if all := len(m.shards) - 1; all > 3 {
		t.Errorf("%d shards, for two nodes at a time", all)
	}
}

// A node that MOVED names is new, and another one that is asked does not know it yet.
func TestNodeThatWasJustNamedKeepsItsShard(t *testing.T) {
	m := newMap(t)
	m.knows("5: 0-8191", "6: 8192-16383")
	m.now += 2 * goneAfter
	m.moved(7, 3)
	m.knows("5: 0-8191", "6: 8192-16383")
	if m.ownerOf(7) != 1 || m.get(3) == nil {
		t.Errorf("slot 7 is at port %d, and the shard of the new node ended: %v", m.ownerOf(7), m.get(3) == nil)
	}
}

// The danger: the number of a shard is used again before the table knows that a slot has left it, and the table
// sees no move.
func TestNumberOfAShardWithARouteToDeliverIsNotUsedAgain(t *testing.T) {
	m := newMap(t)
	m.knows("5: 0-8191", "6: 8192-16383")
	m.now += 2 * goneAfter
	m.knows("9: 0-16383")
	effects := m.Effects()
	route := slices.IndexFunc(effects, func(e Effect) bool { return e.Kind == Route })
	end := slices.IndexFunc(effects, func(e Effect) bool { return e.Kind == End && e.Shard == 2 })
	if route < 0 || end < route {
		t.Errorf("the shard ends before the route is delivered: %+v", effects)
	}
	if n := m.At(m.now, portAt(3)); n == 2 {
		t.Error("the number is used again before the shard has ended")
	}
	m.Ended(2)
	if n := m.At(m.now, portAt(4)); n != 2 {
		t.Errorf("the number is not used again: the shard is %d", n)
	}
}

// A node that is new then gets no shard, and its slots would be routed to no master.
func TestTopologyThatComesAtTheEndRoutesNothing(t *testing.T) {
	m := newMap(t)
	m.knows("5: 0-8191", "6: 8192-16383")
	m.done()
	m.Close()
	if m.knows("7: 0-8191", "6:", "7: 8192-16383"); len(m.Effects()) != 0 {
		t.Error("it has effects")
	}
}

func TestNodeThatLeavesEndsItsShardOnly(t *testing.T) {
	for _, tt := range []struct {
		what    string
		line    func(address string) string // of the node that lost its slots
		isUp    bool
		isEnded bool
	}{
		{"it works, and is not connected", func(a string) string { return nodeLine(a, "slave", 9) }, false, false},
		{"a master without slots", func(a string) string { return nodeLine(a, "master", 9) }, false, false},
		{"a master to which a slot migrates", func(a string) string { return nodeLine(a, "master", 9, "[7-<-abc]") }, false, false},
		{"it is connected", func(string) string { return "" }, true, false},
		{"it failed", func(a string) string { return nodeLine(a, "master,fail", 9) }, false, true},
		{"it was removed", func(string) string { return "" }, false, true},
	} {
		m := newMap(t)
		m.knows("5: 0-8191", "6: 8192-16383")
		m.allUp()
		m.setUp(2, tt.isUp)
		m.now += 2 * goneAfter
		if why := m.learned(parsed(t, nodeLine(portAt(1)+"@1", "master", 9, "0-16383")+tt.line(portAt(2)+"@1"))); why != "" {
			t.Fatal(why)
		}
		if m.get(1) == nil || (m.get(2) == nil) != tt.isEnded {
			t.Errorf("%s: shard 1 ended: %v, shard 2: %v", tt.what, m.get(1) == nil, m.get(2) == nil)
		}
	}
}

// The lock of a probe is in a slot of its shard, whichever these are.
func TestProbeLockIsInASlotOfItsShard(t *testing.T) {
	m := newMap(t)
	locks := map[redisop.Shard]string{}
	for i, slots := range [][]string{{"1: 0-8191", "1: 8192-16383"}, {"2: 0-12344 12346-16383", "2: 12345"}, {"3: 0-16383", "3:"}, {"4:", "4: 0-16383"}} {
		m.knows(slots...)
		for _, e := range m.done(ProbeLock) {
			locks[e.Shard] = e.Name
		}
		for n, s := range m.shards {
			if s == nil {
				continue
			}
			name := locks[redisop.Shard(n)]
			if (name == "") != (s.slots == 0) || name != "" && (m.Owner(wire.SlotOf(name)) != redisop.Shard(n) || !wire.IsProbeLock(name)) {
				t.Errorf("step %d: shard %d with %d slots is probed with the lock %q", i, n, s.slots, name)
			}
		}
	}
}

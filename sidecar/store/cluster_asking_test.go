package store

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// asksAt has a node answer ASK for all of a slot.
func (n *fakeNode) asksAt(slot uint16, address string) {
	n.set(func() {
		n.onRun = func(run *nodeRun) string {
			if wire.SlotOf(run.locks[0]) != slot {
				return ""
			}
			return fmt.Sprintf("-ASK %d %s\r\n", slot, address)
		}
	})
}

func TestAskedOperationsGoOneByOne(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	tag := nodes.names(0, 1)[0]
	slot := wire.SlotOf(tag)
	nodes[0].asksAt(slot, nodes[1].address)
	from := r.shardOf(tag)
	pair := "{" + tag + "}pair"
	again := takeOp(pair, 2)
	again.Flags |= redisop.AfterPendingDrop
	ops := []redisop.Op{takeOp("{"+tag+"}1", 1), takeOp("{"+tag+"}2", 1), dropOp("{"+tag+"}3", 1), renewOp("{"+tag+"}4", 1), dropOp(pair, 1), again}
	for _, res := range r.do(ops...) {
		if res.Outcome != redisop.Done || res.Shard != from {
			t.Errorf("%+v, want shard %d", res, from)
		}
	}
	var names []string
	for _, run := range nodes[1].seen() {
		if !run.isAsking || len(run.statuses) != 1 {
			t.Errorf("a run of %q for %d operations, behind ASKING: %v", run.locks, len(run.statuses), run.isAsking)
		}
		names = append(names, run.locks[0])
	}
	if len(names) != 6 {
		t.Errorf("runs of %q", names)
	}
	if first := slices.Index(names, pair); first < 0 || nodes[1].seen()[first].args[1][2] != 1 {
		t.Error("the Take overtook its Drop")
	}
	if r.shardOf(tag) != from {
		t.Error("ASK moved the slot")
	}
}

// The danger: two nodes that redirect an operation to each other without end.
func TestAskThatAnswersAskingIsNotFollowed(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	name := nodes.names(0, 1)[0]
	nodes[0].asksAt(wire.SlotOf(name), nodes[1].address)
	nodes[1].asksAt(wire.SlotOf(name), nodes[0].address)
	if res := r.do(takeOp(name, 1))[0]; res.Outcome != redisop.Retryable || res.Shard != r.shardOf(name) {
		t.Errorf("%+v", res)
	}
	if here, there := len(nodes[0].seen()), len(nodes[1].seen()); here != 1 || there != 1 {
		t.Errorf("%d and %d runs", here, there)
	}
}

// The danger: a replica that lacks the last tokens of a lock takes over, and its slot migrates at once. The
// counter comes to the next node before the slot, and this node has no reason to ask for the clock there.
func TestTokenThatIsAskedForIsLiftedToTheClock(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	name := nodes.names(0, 1)[0]
	c := r.masters.get(r.shardOf(nodes.names(1, 1)[0])).link
	r.await("clock", func() bool {
		asks := true
		c.With(func(m *pipeline.Machine) { asks = m.AsksClock() })
		return !asks
	})
	nodes[0].asksAt(wire.SlotOf(name), nodes[1].address)
	if res := r.do(takeOp(name, 1))[0]; res.Outcome != redisop.Done {
		t.Fatalf("%+v", res)
	}
	runs := nodes[1].seen()
	if floor, _ := runs[len(runs)-1].floors(); !runs[len(runs)-1].isAsking || floor != 1<<53-1 {
		t.Errorf("tokens are above %d, want each counter lifted", floor)
	}
	r.do(takeOp(nodes.names(1, 1)[0], 1))
	runs = nodes[1].seen()
	if floor, _ := runs[len(runs)-1].floors(); floor == 1<<53-1 {
		t.Error("a lock of the node itself is lifted, too")
	}
}

// The node that gets the slot executes what is asked there, so the replicas that count are its own.
func TestAskedOperationIsConfirmedByTheReplicasOfTheNodeThatExecutesIt(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	confirmed := []string{":1\r\n", ":1\r\n"} // by the replicas of each node
	for i, n := range nodes {
		n.onOther = func(words []string) string {
			if words[0] == "wait" {
				return confirmed[i]
			}
			return ":0\r\n"
		}
	}
	r := openCluster(t, nodes.url(), func(cfg *Config) { cfg.Replicas = 1 }).settled()
	name := nodes.names(0, 1)[0]
	nodes[0].asksAt(wire.SlotOf(name), nodes[1].address)
	if res := r.do(renewOp(name, 1))[0]; res.Outcome != redisop.Done {
		t.Errorf("%+v", res)
	}
	nodes[1].set(func() { confirmed[1] = ":0\r\n" })
	if res := r.do(renewOp(name, 1))[0]; res.Outcome != redisop.NotSynced || !strings.Contains(res.Msg, nodes[1].address) {
		t.Errorf("%+v", res)
	}
	nodes[1].set(func() { confirmed[1] = ":1\r\n" })
	nodes[0].set(func() { confirmed[0] = ":0\r\n" })
	if res := r.do(renewOp(name, 1))[0]; res.Outcome != redisop.Done {
		t.Errorf("%+v", res)
	}
}

func TestAskNamesANodeThatIsNotKnown(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	added := startFakeNode(t, 9)
	name := nodes.names(0, 1)[0]
	nodes[0].asksAt(wire.SlotOf(name), added.address)
	for end := time.Now().Add(patience); ; {
		res := r.do(takeOp(name, 1))[0]
		if res.Outcome == redisop.Done {
			break
		}
		if res.Outcome != redisop.NotSent || res.Msg == "" || time.Now().After(end) {
			t.Fatalf("%+v", res)
		}
	}
	if runs := added.seen(); len(runs) == 0 || !runs[len(runs)-1].isAsking {
		t.Errorf("%+v", runs)
	}
	// One too many.
	got := make(chan []redisop.Result, 1)
	ms := mastersOf(t, func(c *Config) {
		c.on(Results, func(e Event) { got <- e.Results })
	})
	ms.with(func(m *guarded) {
		for i := range cluster.MaxShards {
			m.At(0, fmt.Sprintf("127.0.0.1:%d", 1+i))
		}
		_ = m.Effects() // they are not connected
	})
	ms.askThere(wire.Redirect{Slot: 1, Address: "127.0.0.2:1"}, []redisop.Op{{Kind: redisop.Take, Name: "a", Shard: 7}})
	if res := recv(t, got, "results"); len(res) != 1 || res[0].Outcome != redisop.NotSent || res[0].Name != "a" || res[0].Shard != 7 || res[0].Msg == "" {
		t.Errorf("%+v", res)
	}
}

func TestTryAgainSplitsARun(t *testing.T) {
	nodes := startFakeCluster(t, 1)
	r := openCluster(t, nodes.url()).settled()
	nodes[0].set(func() {
		nodes[0].onRun = func(run *nodeRun) string {
			if slices.Contains(run.locks, "{a}3") {
				return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
			}
			return ""
		}
	})
	var ops []redisop.Op
	for i := range 8 {
		ops = append(ops, takeOp(fmt.Sprint("{a}", i), 1))
	}
	for i, res := range r.do(ops...) {
		if want := map[bool]redisop.Outcome{false: redisop.Done, true: redisop.Retryable}[i == 3]; res.Outcome != want {
			t.Errorf("%+v, want %v", res, want)
		}
	}
	if runs := len(nodes[0].seen()); runs != 7 { // 8, 4 and 4, 2 and 2, 1 and 1
		t.Errorf("%d runs", runs)
	}
}

func TestQueryOfKeysOnSeveralNodes(t *testing.T) {
	nodes := startFakeCluster(t, 3)
	r := openCluster(t, nodes.url()).settled()
	var list [][]string
	for i := range 10 {
		for node, n := range nodes {
			list = append(list, []string{"hget", nodes.names(node, 10)[i], "about"})
			n.set(func() { n.onOther = func(words []string) string { return bulk(fmt.Sprint(n.number, words[1])) } })
		}
	}
	type answer struct {
		replies []wire.Reply
		err     error
	}
	ask := func() answer {
		got := make(chan answer, 2)
		r.Store.ask(list, func(replies []wire.Reply, err error) { got <- answer{slices.Clone(replies), err} })
		return recv(t, got, "replies")
	}
	got := ask()
	if got.err != nil || len(got.replies) != len(list) {
		t.Fatalf("%d replies, %v", len(got.replies), got.err)
	}
	for i, rep := range got.replies {
		if want := fmt.Sprint(1+i%3, list[i][1]); rep.Text != want {
			t.Errorf("reply %d is %q, want %q", i, rep.Text, want)
		}
	}
	// One node is down: the query fails as a whole, once.
	nodes[1].set(func() { nodes[1].onOther = func([]string) string { return "" } })
	failed := make(chan answer, 2)
	r.Store.ask(list, func(replies []wire.Reply, err error) { failed <- answer{replies, err} })
	nodes[1].cut()
	if got := recv(t, failed, "error"); got.err == nil || !strings.Contains(got.err.Error(), nodes[1].address) || got.replies != nil {
		t.Errorf("%+v", got)
	}
}

// The slot of the probe's lock may be on its way, which says nothing of the locks.
func TestProbeOfAnOpenSlotIsNoRefusal(t *testing.T) {
	for _, says := range []string{"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", "-ASK 7 127.0.0.1:1\r\n"} {
		nodes := startFakeCluster(t, 1)
		var probes atomic.Int64
		nodes[0].set(func() {
			nodes[0].onRun = func(run *nodeRun) string {
				if wire.IsProbeLock(run.locks[0]) {
					probes.Add(1)
				}
				return says
			}
		})
		r := openCluster(t, nodes.url(), often).settled()
		r.await("probes", func() bool { return probes.Load() > 3 })
		if len(r.degraded) > 0 {
			t.Errorf("%q: OnDegraded(%q)", says, <-r.degraded)
		}
	}
}

// The keys of a slot that is open are at two nodes.
func TestQueryOfAKeyThatHasGoneAheadFollowsIt(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	name := nodes.names(0, 1)[0]
	ask := fmt.Sprintf("-ASK %d %s\r\n", wire.SlotOf(name), nodes[1].address)
	nodes[0].set(func() {
		nodes[0].onOther = func([]string) string { return ask }
		nodes[0].onRun = func(*nodeRun) string { return ask }
	})
	isKnown := false
	nodes[1].set(func() {
		nodes[1].onOther = func([]string) string { return bulk("there") }
		nodes[1].onRun = func(run *nodeRun) string {
			switch {
			case !run.isAsking:
				return "-MOVED 1 127.0.0.1:1\r\n"
			case !isKnown:
				isKnown = true
				return "-NOSCRIPT No matching script\r\n"
			}
			return array(bulk("lock"), bulk(""), ":9000\r\n", ":1\r\n", ":0\r\n", ":0\r\n", ":0\r\n", bulk(field(otherUUID, 1)), bulk("1"))
		}
	})
	texts := make(chan string, 1)
	r.Store.ask([][]string{{"hget", name, "about"}, {"hget", name, "about"}}, func(replies []wire.Reply, err error) {
		texts <- fmt.Sprint(err, " ", len(replies), " ", replies[0].Text, " ", replies[1].Text)
	})
	if got := recv(t, texts, "replies"); got != "<nil> 2 there there" {
		t.Errorf("the replies are %q", got)
	}
	keys, errs := make(chan lookup.Key, 1), make(chan error, 1)
	key := func() (lookup.Key, error) {
		r.Key(name, func(k lookup.Key, err error) { keys <- k; errs <- err })
		return recv(t, keys, "key"), recv(t, errs, "error")
	}
	if k, err := key(); err != nil || k.State != protocol.KeyLock || len(k.Owners) != 1 {
		t.Errorf("%+v, %v", k, err)
	}
	// Neither node has all keys, or the other one sends it back.
	nodes[1].set(func() { nodes[1].onOther = nodes[0].onOther })
	r.Store.ask([][]string{{"hget", name, "about"}}, func(replies []wire.Reply, _ error) { texts <- lookup.Refusal(replies).Error() })
	if got := recv(t, texts, "replies"); !strings.Contains(got, "its slot moves to another node of the Cluster") {
		t.Errorf("the refusal is %q", got)
	}
	for _, says := range []string{"-TRYAGAIN Multiple keys request during rehashing of slot\r\n", strings.Replace(ask, nodes[1].address, nodes[0].address, 1)} {
		nodes[1].set(func() { nodes[1].onRun = func(*nodeRun) string { return says } })
		if _, err := key(); err == nil || !strings.Contains(err.Error(), "its slot moves to another node of the Cluster") {
			t.Errorf("%v", err)
		}
		drops := make(chan error, 1)
		r.DropOrphaned(lookup.Orphan{Name: name, Sidecar: ourUUID, Hold: 1}, time.Second, 0, func(_ lookup.Dropped, err error) { drops <- err })
		if err := recv(t, drops, "outcome"); err == nil {
			t.Error("an orphaned lock of an open slot was dropped")
		}
	}
}

// The danger: an operation is given to a connection that has ended for good, and gets no result.
func TestAskNamesANodeThatIsClosed(t *testing.T) {
	got := make(chan []redisop.Result, 1)
	ms := mastersOf(t, func(c *Config) {
		c.on(Results, func(e Event) { got <- e.Results })
	})
	ms.moved(1, "127.0.0.1:1")
	if err := ms.get(1).link.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ms.askThere(wire.Redirect{Slot: 1, Address: "127.0.0.1:1"}, []redisop.Op{{Kind: redisop.Drop, Name: "a", Shard: 7}})
	if res := recv(t, got, "results"); len(res) != 1 || res[0].Outcome != redisop.NotSent || res[0].Shard != 7 || res[0].Msg == "" {
		t.Errorf("%+v", res)
	}
}

// The danger: the script is sent again without ASKING, and the node answers MOVED each time.
func TestAskedScriptThatIsNotKnownIsSentAgainBehindAsking(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	name := nodes.names(0, 1)[0]
	nodes[0].asksAt(wire.SlotOf(name), nodes[1].address)
	isKnown := false
	nodes[1].set(func() {
		nodes[1].onRun = func(run *nodeRun) string {
			switch {
			case !run.isAsking:
				return fmt.Sprintf("-MOVED %d %s\r\n", wire.SlotOf(name), nodes[0].address)
			case !isKnown:
				isKnown = true
				return "-NOSCRIPT No matching script\r\n"
			}
			return ""
		}
	})
	if res := r.do(takeOp(name, 1))[0]; res.Outcome != redisop.Done || res.Shard != r.shardOf(name) {
		t.Errorf("%+v", res)
	}
}

// A query that a node does not serve has the others found, also if no lock is used.
func TestQueryThatIsMovedMovesTheSlot(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	key := nodes.names(0, 1)[0]
	slot := wire.SlotOf(key)
	nodes[0].set(func() {
		nodes[0].onOther = func([]string) string { return fmt.Sprintf("-MOVED %d %s\r\n", slot, nodes[1].address) }
	})
	to := fmt.Sprint("route ", r.shardOf(nodes.names(1, 1)[0]))
	before := len(r.events())
	got := make(chan wire.Reply, 1)
	r.Store.ask([][]string{{"hget", key, "about"}}, func(replies []wire.Reply, _ error) { got <- replies[0] })
	if rep := recv(t, got, "reply"); rep.Kind != '-' {
		t.Errorf("%v", rep)
	}
	r.await("route", func() bool { return slices.Contains(r.lines[before:], to) })
}

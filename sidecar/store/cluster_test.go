package store

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// mastersOf is the masters of a Cluster that ask no node by themselves. None can be connected.
func mastersOf(t *testing.T, change func(*Config)) *masters {
	t.Helper()
	cfg := Config{URL: "redis+cluster://127.0.0.1:1", UUID: ourUUID, Timeout: patience, Log: slog.New(slog.DiscardHandler)}
	change(&cfg)
	ms := newMasters(cfg, must(link.Parse(cfg.settings())), link.NewShared(), (*shard).connect)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := ms.close(ctx); err != nil {
			t.Error(err)
		}
	})
	return ms
}

// learned has a node answer.
func (ms *masters) learned(text, address string, askedAt int64) {
	top := must(cluster.ParseTopology(text, address, askedAt))
	ms.update(func(m *cluster.Map, now int64) {
		if why := m.Learned(now, top, address); why != "" {
			panic(why)
		}
	})
}

// moved has a node answer MOVED.
func (ms *masters) moved(slot uint16, address string) {
	ms.update(func(m *cluster.Map, now int64) { m.Moved(now, wire.Redirect{Slot: slot, Address: address}) })
}

// asksSoon reports whether a node is asked within a second.
func (ms *masters) asksSoon() bool {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.m.Next() < protocol.Now()+int64(time.Second)
}

// refresh has a node asked soon.
func (ms *masters) refresh() {
	ms.update(func(m *cluster.Map, now int64) { m.SlotLeft(now) })
}

func TestDoSplitsByShard(t *testing.T) {
	nodes := startFakeCluster(t, 3)
	r := openCluster(t, nodes.url()).settled()
	var ops []redisop.Op
	for i := range 20 {
		for node := range nodes {
			name := nodes.names(node, 20)[i]
			take := takeOp(name, 2)
			take.Flags |= redisop.AfterPendingDrop
			ops = append(ops, dropOp(name, 1), take)
		}
	}
	for _, res := range r.do(ops...) {
		if res.Outcome != redisop.Done || res.Shard != r.shardOf(res.Name) {
			t.Errorf("%+v", res)
		}
	}
	for i, n := range nodes {
		locks := 0
		for _, run := range n.seen() {
			for _, name := range run.locks {
				if locks++; int(wire.SlotOf(name))*3/redisop.Slots != i || wire.SlotOf(name) != wire.SlotOf(run.locks[0]) {
					t.Errorf("node %d has a run of %q", i, run.locks)
				}
			}
		}
		if locks != 20 {
			t.Errorf("node %d has %d locks", i, locks)
		}
	}
}

func TestConnectionsOfAClusterHaveNumbersOfTheirOwn(t *testing.T) {
	nodes := startFakeCluster(t, 3)
	r := openCluster(t, nodes.url()).settled()
	used := make(map[uint32]bool)
	for range 2 {
		for i := range nodes {
			number, isKnown := r.do(takeOp(nodes.names(i, 1)[0], 1))[0].Conn.Number()
			if !isKnown || used[number] {
				t.Errorf("node %d: connection %d, known: %v, of %v", i, number, isKnown, used)
			}
			used[number] = true
		}
		for i, n := range nodes {
			n.mu.Lock()
			greeted := n.greeted
			n.mu.Unlock()
			n.cut()
			r.await("new connection", func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.greeted > greeted && r.isUp[r.owners[wire.SlotOf(nodes.names(i, 1)[0])]]
			})
		}
	}
}

func TestMovedOperationIsSentToTheOtherNode(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	name := nodes.names(0, 1)[0]
	slot := wire.SlotOf(name)
	nodes.know(nodes.topology(2, map[uint16]int{slot: 1}))
	nodes[0].set(func() {
		nodes[0].onRun = func(*nodeRun) string { return fmt.Sprintf("-MOVED %d %s\r\n", slot, nodes[1].address) }
	})
	from := r.shardOf(name)
	before := len(r.events())
	res := r.do(takeOp(name, 1))[0]
	to := r.shardOf(name)
	if res.Outcome != redisop.Retryable || res.Shard != from || !strings.Contains(res.Msg, "on its way to another node") {
		t.Errorf("%+v", res)
	}
	if got, want := r.events()[before:], []string{fmt.Sprint("route ", to), "result " + name + " retryable"}; !slices.Equal(got[:2], want) {
		t.Errorf("%v, want %v", got, want)
	}
	if again := r.do(takeOp(name, 1))[0]; again.Outcome != redisop.Done || again.Shard != to || to == from {
		t.Errorf("%+v", again)
	}
}

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
	for i := range cluster.MaxShards {
		ms.m.At(0, fmt.Sprintf("127.0.0.1:%d", 1+i))
	}
	_ = ms.m.Effects() // they are not connected
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

// A Cluster brings each message to all nodes, and this host is connected to each.
func TestCopiesOfARecallAreNotDelivered(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	received := make(chan redisop.Message, 4)
	r := openCluster(t, nodes.url(), func(c *Config) {
		c.on(Messages, func(e Event) {
			for _, m := range e.Messages {
				received <- m
			}
		})
	}).settled()
	for _, sender := range nodes { // each sends a recall of its own, which the other one passes on before
		from := wire.OriginOf(fmt.Sprintf("%08x%032x", sender.number, sender.number), "master")
		for _, n := range nodes {
			if n != sender {
				n.push(">3\r\n" + bulk("message") + bulk(wire.OwnChannel(r.cfg.UUID)) + bulk(fmt.Sprintf("recall:%v copy", from)))
			}
		}
	}
	for _, n := range nodes {
		from := wire.OriginOf(fmt.Sprintf("%08x%032x", n.number, n.number), "master")
		n.push(">3\r\n" + bulk("message") + bulk(wire.OwnChannel(r.cfg.UUID)) + bulk(fmt.Sprintf("recall:%v sent", from)))
	}
	for range nodes {
		if m := recv(t, received, "recall"); m.Kind != redisop.Recalled || m.Name != "sent" {
			t.Errorf("%+v", m)
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
			return array(bulk("lock"), bulk(""), ":9000\r\n", ":1\r\n", ":0\r\n", bulk(field(otherUUID, 1)), bulk("1"))
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
		r.DropOrphaned(name, field(ourUUID, 1), time.Second, 0, func(_ lookup.OrphanOutcome, _ bool, err error) { drops <- err })
		if err := recv(t, drops, "outcome"); err == nil {
			t.Error("an orphaned lock of an open slot was dropped")
		}
	}
}

func TestProbeLockIsOneOfTheNode(t *testing.T) {
	nodes := startFakeCluster(t, 3)
	given := map[uint16]int{}
	for slot := range uint16(redisop.Slots) {
		if given[slot] = 0; slot == 12345 { // one node has one slot, and one has none
			given[slot] = 1
		}
	}
	nodes.know(nodes.topology(1, given))
	probed := make([]chan string, 3)
	for i, n := range nodes {
		probed[i] = make(chan string, 1)
		n.set(func() {
			n.onRun = func(run *nodeRun) string {
				select {
				case probed[i] <- run.locks[0]:
				default:
				}
				return ""
			}
		})
	}
	openCluster(t, nodes.url(), often).settled()
	for i := range 2 {
		name := recv(t, probed[i], "probe")
		if (wire.SlotOf(name) == 12345) != (i == 1) || wire.Reserved("", name) == "" {
			t.Errorf("node %d is probed with the lock %q in slot %d", i, name, wire.SlotOf(name))
		}
	}
	if len(probed[2]) != 0 {
		t.Errorf("a node without slots is probed with the lock %q", <-probed[2])
	}
	for name, want := range map[string]bool{"locksidecar_probe": true, "locksidecar_probe0": true, "locksidecar_probe65535": true, "locksidecar_probe1x": false, "locksidecar_prob": false, "probe": false} {
		if wire.IsProbeLock(name) != want {
			t.Errorf("%q is the lock of a probe: %v", name, !want)
		}
	}
}

// Each key that a script may make is among its keys, and all are of one slot.
func TestScriptsOfAClusterDeclareTheirKeys(t *testing.T) {
	rnd := harness.Random(t)
	for round := range harness.Pick(100, 400) {
		e := wire.Encoder{Prefix: ourUUID + ":", Keys: wire.NewKeyspace([]string{"", "app1:", "{app1}:"}[rnd.IntN(3)]), Origin: wire.NoOrigin, Declares: round%4 != 0, IsSharded: rnd.IntN(2) == 0}
		var ops []redisop.Op
		for i := range rnd.IntN(300) {
			name := fmt.Sprintf([]string{"lock%d", "{tag}%d", "{t%d}x"}[rnd.IntN(3)], i)
			op := redisop.Op{Kind: redisop.OpKind(1 + rnd.IntN(5)), Name: name, HoldID: 1 + rnd.Uint64N(1<<40), Count: 1 + uint32(rnd.IntN(2)), LeaseMS: 30_000 + uint32(rnd.IntN(2)), Asked: redisop.Asked{Reserve: 1}}
			switch {
			case op.Kind == redisop.Drop && rnd.IntN(2) == 0:
				op.LeaseMS = 0
			case op.Kind == redisop.Take && rnd.IntN(3) == 0:
				drop := dropOp(name, op.HoldID-1)
				op.Flags, op.Count = redisop.AfterPendingDrop, 1
				ops = append(ops, drop)
			case op.Kind == redisop.Take:
				op.Set(redisop.Enqueue, rnd.IntN(2) == 0)
				op.Set(redisop.RequireExisting, rnd.IntN(4) == 0)
			}
			ops = append(ops, op)
		}
		slot := e.Keys.SlotOf
		left := len(ops)
		wire.SortForBatching(int64(round), ops, slot)
		for len(ops) > 0 {
			s, n := wire.BatchPrefix(ops, slot)
			text := e.AppendRun(nil, wire.Run{Script: s}, 0, 0, ops[:n])
			words, err := readCommandText(text)
			if err != nil {
				t.Fatal(err)
			}
			count, _ := strconv.Atoi(words[2])
			keys := words[3 : 3+count]
			locks := make(map[string]bool)
			for _, op := range ops[:n] {
				locks[op.Name] = true
				if slot(op.Name) != slot(ops[0].Name) {
					t.Fatalf("one run has locks of two slots: %+v", ops[:n])
				}
			}
			want := make(map[string]bool)
			for name := range locks {
				want[e.Keys.Key(name)] = true
				if s != wire.AcquireRelease {
					continue
				}
				if e.Declares || slices.ContainsFunc(ops[:n], func(op redisop.Op) bool { return op.Name == name && op.Kind == redisop.Take }) {
					want[e.Keys.Counter(name)] = true
				}
				if e.Declares {
					want[e.Keys.Queue(name)], want[e.Keys.Ours(wire.SignsPrefix, name)] = true, true
				}
			}
			if s == wire.AcquireRelease && e.Declares && len(keys) != 4*len(locks) {
				t.Fatalf("%d keys for %d locks", len(keys), len(locks))
			}
			if len(keys) != len(want) {
				t.Fatalf("keys %q, want %v", keys, want)
			}
			for _, key := range keys {
				if !want[key] || wire.SlotOf(key) != slot(ops[0].Name) {
					t.Fatalf("key %q of slot %d; want each of %v once, of slot %d", key, wire.SlotOf(key), want, slot(ops[0].Name))
				}
				delete(want, key)
			}
			if s == wire.AcquireRelease {
				if terms := words[3+count+1]; (terms[4] == 1) != e.Declares || (terms[5] == 1) != e.IsSharded {
					t.Fatalf("declares %v, sharded %v: %q", e.Declares, e.IsSharded, terms)
				}
			}
			ops, left = ops[n:], left-n
		}
		if left != 0 {
			t.Fatalf("%d operations are left", left)
		}
	}
}

func neverEnough(*Found) bool { return false }

func TestTryOfACluster(t *testing.T) {
	nodes := startFakeCluster(t, 3)
	patient, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found, err := Try(patient, Config{URL: nodes.url()}, neverEnough)
	if err != nil || found.Address != strings.TrimPrefix(nodes.url(), "redis+cluster://")+"/0" || !found.Nodes[found.RunID] || len(found.Masters) != 3 || len(found.Down) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
	for i, n := range nodes {
		if n.mu.Lock(); n.greeted == 0 {
			t.Errorf("node %d was not connected", i)
		}
		n.mu.Unlock()
	}
	nodes.know(nodes.topology(1, map[uint16]int{7: -1}))
	oneIsDown := func(f *Found) bool { return len(f.Down) == 1 }
	found, err = Try(patient, Config{URL: nodes.url()}, oneIsDown)
	if err != nil || !oneIsDown(&found) || !strings.Contains(found.Down[""].Error(), "for 16383 of its 16384 slots only") {
		t.Errorf("%+v, %v", found, err)
	}
	text := nodes.topology(1, nil)
	nodes.know(strings.ReplaceAll(text, nodes[2].address, "127.0.0.1:1"))
	const refuses = "127.0.0.1:1 refuses connections"
	found, err = Try(patient, Config{URL: "redis+cluster://" + nodes[0].address}, oneIsDown)
	if err != nil || !oneIsDown(&found) || !strings.Contains(found.Down["127.0.0.1:1"].Error(), refuses) {
		t.Errorf("%+v, %v", found, err)
	}
	for _, n := range nodes {
		text = strings.ReplaceAll(text, n.address, "127.0.0.1:1")
	}
	nodes.know(text)
	wantTry(t, Config{URL: "redis+cluster://" + nodes[0].address}, refuses, false)
}

// Close with operations under way returns when ctx ends, with their results, and leaves no goroutine:
// see TestMain.
func TestCloseOfAClusterWithOperationsInFlight(t *testing.T) {
	nodes := startFakeCluster(t, 3)
	received := make(chan bool, 100)
	for _, n := range nodes {
		n.set(func() { n.onRun = func(*nodeRun) string { received <- true; return ":" } }) // and the rest never comes
	}
	r := openCluster(t, nodes.url()).settled()
	var ops []redisop.Op
	for i := range nodes {
		op := takeOp(nodes.names(i, 1)[0], 1)
		op.Shard = r.shardOf(op.Name)
		ops = append(ops, op)
	}
	r.Do(ops)
	for range nodes {
		recv(t, received, "run")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Close(ctx); err == nil {
		t.Error("Close has no error")
	}
	for _, op := range ops {
		if res := r.results[op.Name]; len(res) != 1 || res[0].Outcome != redisop.Unknown || res[0].Shard != op.Shard {
			t.Errorf("%+v", res)
		}
	}
}

func TestURLNamesTheWrongKindOfServer(t *testing.T) {
	single := startRedis(t)
	r := openCluster(t, "redis+cluster://"+single.tcp())
	r.await("sentence", func() bool { return strings.Contains(r.downs[0], "write redis:// instead of redis+cluster://") })
	node := startRedis(t, "--cluster-enabled", "yes")
	other := connected(t, node.url())
	if log := other.logged(); !strings.Contains(log, "write redis+cluster:// instead of redis://") {
		t.Error(log)
	}
}

// The danger: two nodes answer MOVED at the same time. The results of one are delivered while the route
// that explains them waits for that of the other.
func TestRouteIsDeliveredBeforeOnMovedReturns(t *testing.T) {
	var ms *masters
	var log sync.Mutex
	var order []string
	note := func(what string) {
		log.Lock()
		defer log.Unlock()
		order = append(order, what)
	}
	var second sync.WaitGroup
	onRoute := func(ranges []redisop.SlotRange) {
		if ranges[0].First == 7 {
			returned := make(chan bool)
			second.Go(func() {
				ms.moved(8, "127.0.0.1:2")
				note("second returned")
				close(returned)
			})
			select {
			case <-returned:
			case <-time.After(100 * time.Millisecond): // it waits, as it should
			}
		}
		if len(ranges) == 1 && ranges[0].First == ranges[0].Last {
			note(fmt.Sprint("route ", ranges[0].First))
		}
	}
	ms = mastersOf(t, func(c *Config) { c.on(Route, func(e Event) { onRoute(e.Routes) }) })
	ms.moved(10, "127.0.0.1:1")
	clear(order)
	order = order[:0]
	ms.moved(7, "127.0.0.1:2")
	second.Wait()
	if want := []string{"route 7", "route 8", "second returned"}; !slices.Equal(order, want) {
		t.Errorf("%q, want %q", order, want)
	}
}

// beforeUp has a function called when the next connection is made, before it is in use.
func beforeUp(f *atomic.Pointer[func()]) func(*Config) {
	return func(cfg *Config) {
		others := cfg.OnEvent
		cfg.on(Up, func(e Event) {
			if f := f.Swap(nil); f != nil {
				(*f)()
			}
			others(e)
		})
	}
}

// The danger: the counter of a lock has lost its last values on the way to another node, which draws them
// again.
func TestTokensOfTheNewOwnerAreAboveThoseOfTheOneBefore(t *testing.T) {
	for _, when := range []string{"the token comes before the move", "the token comes after the move", "the new owner is just being connected"} {
		t.Run(when, func(t *testing.T) {
			nodes := startFakeCluster(t, 2)
			name := nodes.names(0, 1)[0]
			slot := wire.SlotOf(name)
			last := time.Now().Add(time.Hour).UnixMicro() // as with a node whose clock is ahead
			var r *clusterRecorder
			move := func() { r.masters.moved(slot, nodes[1].address) }
			var onUp atomic.Pointer[func()]
			r = openCluster(t, nodes.url(), beforeUp(&onUp)).settled()
			nodes.know("") // the host learns of the move from MOVED alone
			nodes[0].set(func() {
				nodes[0].token = last
				nodes[0].onRun = func(*nodeRun) string {
					if when == "the token comes after the move" {
						move()
					}
					return ""
				}
			})
			take := func() { // at the first node
				if res := r.do(takeOp(name, 1))[0]; res.Outcome != redisop.Done || res.Token != uint64(last)+1 {
					t.Fatalf("%+v", res)
				}
			}
			switch to := r.shardOf(nodes.names(1, 1)[0]); when {
			case "the token comes before the move":
				take()
				move()
			case "the token comes after the move":
				take()
			default:
				then := func() { take(); move() }
				onUp.Store(&then)
				r.mu.Lock()
				r.isUp[to] = false
				r.mu.Unlock()
				nodes[1].cut()
				r.await("connection", func() bool { return r.isUp[to] && onUp.Load() == nil })
			}
			for res := r.do(takeOp(name, 2))[0]; res.Outcome != redisop.Done; res = r.do(takeOp(name, 2))[0] {
				if res.Outcome != redisop.NotSent {
					t.Fatalf("%+v", res)
				}
			}
			runs := nodes[1].seen()
			if len(runs) == 0 {
				t.Fatal("the new owner has executed nothing")
			}
			floor, birth := runs[len(runs)-1].floors()
			if floor <= last || birth <= last {
				t.Errorf("tokens of the new owner are above %d, and those of new counters above %d, and there is one that is %d", floor, birth, last+1)
			}
		})
	}
}

// The danger: another host drew tokens at the former owner, which were lost in a failover of that. This
// host has not seen them, and has read the clock of the new owner long ago.
func TestTokensOfTheNewOwnerAreAboveItsClock(t *testing.T) {
	for _, when := range []string{"the new owner is connected", "the new owner is just being connected"} {
		t.Run(when, func(t *testing.T) {
			nodes := startFakeCluster(t, 2)
			moved, other := nodes.names(0, 1)[0], nodes.names(1, 1)[0]
			var onUp atomic.Pointer[func()]
			r := openCluster(t, nodes.url(), beforeUp(&onUp)).settled()
			slot, to := wire.SlotOf(moved), r.shardOf(other)
			nodes.know("")  // the host learns of the move from MOVED alone
			var clock int64 // of the new owner, when it has the slot
			move := func() {
				nodes[1].set(func() { nodes[1].ahead = time.Hour })
				clock = time.Now().Add(time.Hour).UnixMicro()
				r.masters.moved(slot, nodes[1].address)
			}
			if when == "the new owner is connected" {
				move()
			} else {
				onUp.Store(&move)
				r.mu.Lock()
				r.isUp[to] = false
				r.mu.Unlock()
				nodes[1].cut()
				r.await("connection", func() bool { return r.isUp[to] && onUp.Load() == nil })
			}
			for _, name := range []string{moved, other, moved} {
				if res := r.do(takeOp(name, 1))[0]; res.Outcome != redisop.Done || res.Shard != to {
					t.Fatalf("%+v", res)
				}
			}
			runs := nodes[1].seen()
			for _, run := range runs {
				if floor, _ := run.floors(); floor < clock {
					t.Errorf("tokens are above %d, and the clock was at %d when the slot came", floor, clock)
				}
			}
			// Once the clock is known, counters are not lifted to it each time.
			if floor, birth := runs[len(runs)-1].floors(); floor > birth {
				t.Errorf("each counter is still lifted: %d", floor)
			}
		})
	}
}

// The danger: a slot left its master and came back, and this host learns no more than a larger config epoch.
func TestClockOfAMasterWithALargerEpochIsAskedFor(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	for i, n := range nodes {
		r.do(takeOp(nodes.names(i, 1)[0], 1)) // the clocks that were asked for at the start are known
		n.set(func() { n.clocks = 0 })
	}
	for id := range uint64(2) {
		r.masters.learned(nodes.topology(2, nil), nodes[0].address, protocol.Now())
		for i := range nodes { // the answer comes before the result
			r.do(takeOp(nodes.names(i, 1)[0], 2+id))
		}
	}
	for i, n := range nodes {
		if asked := n.asked(); asked != 1 {
			t.Errorf("the clock of node %d was asked for %d times, want once", i, asked)
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

// A daemon that never asked a node reads the URL again, too: its password may be the reason.
func TestPasswordOfAClusterIsReadAgain(t *testing.T) {
	s := startRedis(t, "--cluster-enabled", "yes")
	a := s.admin()
	must(a.ClusterAddSlotsRange(ctx, 0, redisop.Slots-1).Result())
	var url atomic.Value
	urlWith := func(password string) string { return "redis+cluster://app:" + password + "@" + s.tcp() }
	url.Store(urlWith("wrong"))
	must(a.ACLSetUser(ctx, "app", "reset", "on", ">first", "~*", "&*", "+@all").Result())
	r := openCluster(t, urlWith("wrong"), func(c *Config) {
		c.ReadURL = func() (string, error) { return url.Load().(string), nil }
	})
	r.await("sentence", func() bool { return strings.Contains(r.downs[0], "does not accept the password of user") })
	url.Store(urlWith("first"))
	r.settled()
	for _, password := range []string{"second", "third"} {
		must(a.ACLSetUser(ctx, "app", ">"+password).Result())
		url.Store(urlWith(password))
		must(a.ACLSetUser(ctx, "app", "resetpass", ">"+password).Result())
		r.mu.Lock()
		clear(r.downs)
		r.mu.Unlock()
		must(a.ClientKillByFilter(ctx, "user", "app").Result())
		r.await("end of the connection", func() bool { return r.downs[1] != "" })
		r.settled()
	}
	if log := r.logged(); strings.Contains(log, "third") || strings.Contains(log, "wrong@") {
		t.Error("the log has a password")
	}
	// Another Cluster is not used.
	url.Store("redis+cluster://app:third@127.0.0.1:1")
	must(a.ClientKillByFilter(ctx, "user", "app").Result())
	r.await("warning", func() bool { return strings.Contains(r.logged(), "names another Redis") })
	r.settled()
}

func TestClusterWithoutPermissionSaysWhich(t *testing.T) {
	s := startRedis(t, "--cluster-enabled", "yes")
	a := s.admin()
	must(a.ClusterAddSlotsRange(ctx, 0, redisop.Slots-1).Result())
	must(a.ACLSetUser(ctx, "app", "reset", "on", ">p", "~*", "&*", "+@all", "-cluster|nodes").Result())
	r := openCluster(t, "redis+cluster://app:p@"+s.tcp())
	r.await("sentence", func() bool { return strings.Contains(r.downs[0], "let its ACL have +cluster|nodes") })
	must(a.ACLSetUser(ctx, "app", "+cluster|nodes").Result())
	r.settled()
}

// serves waits until a node of a Cluster serves its slots.
func (s *server) serves() {
	s.t.Helper()
	harness.Eventually(s.t, "the node serves its slots", func() bool {
		return strings.Contains(must(s.admin().ClusterInfo(ctx).Result()), "cluster_state:ok")
	})
}

// A node that accepts connections and answers nothing does not delay the end of the daemon.
func TestCloseDoesNotWaitForASilentNode(t *testing.T) {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		if conn, err := l.Accept(); err == nil {
			accepted <- conn
		}
	}()
	ms := newMasters(Config{}, must(link.Parse(link.Settings{URL: "redis+cluster://" + l.Addr().String(), Timeout: time.Hour})), nil, nil)
	asked := make(chan error, 1)
	go func() {
		_, err := ms.ask(l.Addr().String())
		asked <- err
	}()
	conn := recv(t, accepted, "connection")
	defer conn.Close()
	must(conn.Read(make([]byte, 1))) // the question, or the greeting before it
	ms.stop()
	if err := recv(t, asked, "end of the question"); err == nil || strings.Contains(err.Error(), "did not answer") {
		t.Errorf("the question, which is not wanted any more, ends with %v", err)
	}
}

// Addresses of IPv6 have colons, and no brackets in CLUSTER NODES and MOVED.
//
// Shows docs/topologies.md: TLS.
func TestClusterIsReachedOverIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("this host has no IPv6: ", err)
	} else {
		l.Close()
	}
	nodes := [2]*server{}
	for i := range nodes {
		nodes[i] = startRedis(t, "--bind", "127.0.0.1", "::1", "--cluster-enabled", "yes", "--cluster-announce-ip", "::1")
		must(nodes[i].admin().Do(ctx, "cluster", "set-config-epoch", i+1).Result())
	}
	must(nodes[0].admin().ClusterAddSlotsRange(ctx, 0, 8191).Result())
	must(nodes[1].admin().ClusterAddSlotsRange(ctx, 8192, redisop.Slots-1).Result())
	must(nodes[0].admin().ClusterMeet(ctx, "::1", nodes[1].port).Result())
	for _, n := range nodes {
		n.serves()
	}
	r := openCluster(t, "redis+cluster://"+net.JoinHostPort("::1", nodes[0].port)).settled()
	for i := range 8 {
		if res := r.do(takeOp("lock-"+strconv.Itoa(i), 1))[0]; res.Outcome != redisop.Done {
			t.Errorf("a lock over IPv6: %+v", res)
		}
	}
	if all := r.Shards(); len(all) != 2 || !strings.HasPrefix(all[1].Address, "[::1]:") {
		t.Errorf("%d masters", len(all))
	}
}

// Without +asking, held locks of a slot that moves are not renewed. The log says so at the first connection.
func TestClusterWithoutAskingSaysSoOnce(t *testing.T) {
	s := startRedis(t, "--cluster-enabled", "yes")
	a := s.admin()
	must(a.ClusterAddSlotsRange(ctx, 0, redisop.Slots-1).Result())
	must(a.ACLSetUser(ctx, "app", "reset", "on", ">p", "~*", "&*", "+@all", "-asking").Result())
	r := openCluster(t, "redis+cluster://app:p@"+s.tcp()).settled()
	must(a.ClientKillByFilter(ctx, "user", "app").Result())
	r.await("end of the connection", func() bool { return r.downs[1] != "" })
	r.settled()
	if log := r.logged(); strings.Count(log, "let the ACL of this user have +asking") != 1 {
		t.Errorf("the log: %s", log)
	}
}

// A slot without a master is explained from the first answer on.
func TestSlotWithoutAMasterIsExplained(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	nodes.know(nodes.topology(1, map[uint16]int{7: -1}))
	r := openCluster(t, nodes.url())
	r.await("sentence", func() bool { return strings.Contains(r.downs[0], "no master of the Cluster at") })
	nodes.know(nodes.topology(2, nil))
	r.settled()
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

// The node ends a sharded subscription when the slot leaves it. No operation may follow that would be
// answered with MOVED.
func TestSubscriptionThatLeavesHasANodeAsked(t *testing.T) {
	nodes := startFakeCluster(t, 1)
	n := nodes[0]
	r := openCluster(t, nodes.url()).settled()
	asked := func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.topology
	}
	before := asked()
	r.masters.refresh() // a node that is asked now finds all masters connected, and is not asked again soon
	r.await("topology", func() bool { return asked() > before && !r.masters.asksSoon() })
	r.Subscribe(1, "lock")
	if got := recv(t, r.subscribed, "subscription"); got != "lock" {
		t.Fatal(got)
	}
	before = asked()
	n.push(">3\r\n" + bulk("sunsubscribe") + bulk(channelOf("lock")) + ":0\r\n")
	if got := recv(t, r.unsubscribed, "end of the subscription"); got != "lock" {
		t.Fatal(got)
	}
	r.await("topology", func() bool { return asked() > before })
	if got := recv(t, r.subscribed, "subscription, again"); got != "lock" {
		t.Fatal(got)
	}
}

// The danger: a connection for each question costs a node three times as much as the answer, and ten
// thousand hosts ask when a master fails.
func TestNodeIsAskedOnTheConnectionToIt(t *testing.T) {
	nodes := startFakeCluster(t, 2)
	r := openCluster(t, nodes.url()).settled()
	seen := func() (asked, connections int) {
		for _, n := range nodes {
			n.set(func() { asked, connections = asked+n.topology, connections+len(n.conns) })
		}
		return asked, connections
	}
	asked, connections := seen()
	r.masters.refresh()
	r.await("topology", func() bool { now, _ := seen(); return now > asked })
	if _, now := seen(); now != connections {
		t.Errorf("%d connections were made for a question", now-connections)
	}
}

// The answer of a Cluster with very many nodes is longer than what is kept of a reply on the connection of
// the locks.
func TestLongTopologyIsAskedOnAConnectionOfItsOwn(t *testing.T) {
	nodes := startFakeCluster(t, 1)
	r := openCluster(t, nodes.url()).settled()
	long := nodes.topology(1, nil)
	for i := 0; len(long) <= wire.MaxReplyText; i++ {
		long += nodeLine(fmt.Sprintf("10.0.%d.%d:1@2", i/250, i%250), "slave", 1)
	}
	nodes.know(long)
	if top, err := r.masters.ask(nodes[0].address); err != nil || top.Covered != redisop.Slots {
		t.Errorf("%+v, %v", top, err)
	}
}

// Nothing of the node before is left in a shard that is used again, and an operation for a shard that has
// ended has a result.
func TestShardThatIsUsedAgainServes(t *testing.T) {
	nodes := startFakeCluster(t, 3)
	r := openCluster(t, nodes.url()).settled()
	name := nodes.names(2, 1)[0]
	if res := r.do(takeOp(name, 1))[0]; res.Outcome != redisop.Done {
		t.Fatalf("%+v", res)
	}
	shard := r.shardOf(name)
	replace := func(number int) { // the last node, by another one
		gone := nodes[2]
		nodes[2] = startFakeNode(t, number)
		nodes.know(nodes.topology(number, nil))
		before := r.shardOf(name)
		gone.set(func() { gone.isClosed = true })
		gone.cut()
		r.await("route", func() bool { return r.owners[wire.SlotOf(name)] != before })
		harness.Eventually(t, "the shard has ended", func() bool {
			r.masters.learned(nodes.topology(number, nil), nodes[2].address, protocol.Now()+int64(time.Minute)) // none named it for so long
			return r.masters.get(before) == nil
		})
	}
	replace(4)
	r.settled()
	if res := r.do(takeOp(name, 2))[0]; res.Outcome != redisop.Done || res.Shard == shard {
		t.Errorf("%+v", res)
	}
	late := takeOp(name, 3)
	late.Shard = shard
	r.Do([]redisop.Op{late})
	r.await("result of an operation for a shard that ended", func() bool {
		res := r.results[name]
		return len(res) == 3 && res[2].Outcome == redisop.NotSent && strings.Contains(res[2].Msg, "has left it")
	})
	replace(5)
	r.settled()
	if res := r.do(takeOp(name, 4))[0]; res.Outcome != redisop.Done || res.Shard != shard {
		t.Errorf("%+v, want shard %d", res, shard)
	}
}

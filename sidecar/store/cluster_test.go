package store

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
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
func (ms *masters) asksSoon() (is bool) {
	ms.with(func(m *guarded) { is = m.Next() < protocol.Now()+int64(time.Second) })
	return is
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
			case op.Kind != redisop.Arrive && rnd.IntN(4) == 0:
				op.Of, op.Want, op.Times, op.Capacity = redisop.KindPermits, 1, 1, 10
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
				renews := func(op redisop.Op) bool {
					return op.Name == name && (op.Kind == redisop.Renew || op.Kind == redisop.Check)
				}
				if s == wire.Permits && !slices.ContainsFunc(ops[:n], renews) {
					want[e.Keys.Ours(wire.WantedPrefix, name)], want[e.Keys.Ours(wire.WantsPrefix, name)] = true, true
				}
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
			if s == wire.Permits {
				keys = slices.Compact(keys)
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

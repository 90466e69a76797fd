package store

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
	"github.com/locksidecar/locksidecar/tests/harness"
)

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

// The channels of locks are sharded there, and need other commands.
func TestShardedSubscriptionsThatAreNotPermittedAreNamed(t *testing.T) {
	s := startRedis(t, "--cluster-enabled", "yes")
	if must(s.admin().Command(ctx).Result())["ssubscribe"] == nil {
		t.Skip("this server has no sharded channels")
	}
	must(s.admin().ClusterAddSlotsRange(ctx, 0, redisop.Slots-1).Result())
	s.serves()
	for _, command := range []string{"ssubscribe", "sunsubscribe"} {
		must(s.admin().ACLSetUser(ctx, command, "reset", "on", ">p", "~*", "&*", "+@all", "-"+command).Result())
		r := openCluster(t, "redis+cluster://"+command+":p@"+s.tcp()).settled()
		r.Subscribe(r.shardOf("lock"), "lock")
		if command == "sunsubscribe" {
			recv(t, r.subscribed, "subscription")
			r.Unsubscribe(r.shardOf("lock"), "lock")
		}
		harness.Eventually(t, "the log names "+command, func() bool { return strings.Contains(r.logged(), "let its ACL have +"+command) })
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

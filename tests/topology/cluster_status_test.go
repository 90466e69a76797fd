package topology

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// status returns the status of a daemon.
func status(t *testing.T, c *locksidecar.Client) locksidecar.Status {
	t.Helper()
	s, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lockOn returns a lock of a shard that the client holds.
func lockOn(t *testing.T, c *harness.Cluster, client *locksidecar.Client, shard int) string {
	t.Helper()
	name := c.Names(shard, "status", 1)[0]
	if _, err := client.Lock(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return name
}

// checkMetrics checks that the metrics have these lines.
func checkMetrics(t *testing.T, d *harness.Daemon, lines ...string) {
	t.Helper()
	got := d.Run("metrics").Stdout
	for _, line := range lines {
		if !regexp.MustCompile("(?m)^locksidecar_" + line + "$").MatchString(got) {
			t.Errorf("the metrics lack %s; of Redis, they have\n%s", line, strings.Join(regexp.MustCompile("(?m)^locksidecar_(redis_[sud]|topo|redir).*$").FindAllString(got, -1), "\n"))
		}
	}
}

func TestClusterStatusNamesTheMasterThatIsDown(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	d := harness.StartDaemon(t, c.URL())
	client, other := harness.Dial(t, d), harness.Dial(t, d)
	var names []string
	for shard := range 3 {
		names = append(names, lockOn(t, c, client, shard))
	}
	go other.Lock(t.Context(), names[1])
	masters := c.Masters()
	want := map[string]locksidecar.ShardStatus{}
	total := 0
	for shard, m := range masters {
		slots := (shard+1)*harness.ClusterSlots/3 - shard*harness.ClusterSlots/3
		total += slots
		want[m.Address()] = locksidecar.ShardStatus{Address: m.Address(), Slots: slots, Redis: "ok", Held: 1}
	}
	if total != harness.ClusterSlots {
		t.Fatalf("%d slots", total)
	}
	waits := want[masters[1].Address()]
	waits.Waiting = 1
	want[waits.Address] = waits
	var s locksidecar.Status
	harness.Eventually(t, "the status has three masters that serve, with the locks that are on them", func() bool {
		s = status(t, client)
		got := map[string]locksidecar.ShardStatus{}
		for _, r := range s.Shards {
			if r.RoundTrip <= 0 {
				return false
			}
			r.RoundTrip = 0
			got[r.Address] = r
		}
		return fmt.Sprint(got) == fmt.Sprint(want) && s.ShardCount == 3
	})
	if s.Redis != "ok" || s.Degraded {
		t.Errorf("all serve, and Redis is %q, degraded: %v", s.Redis, s.Degraded)
	}

	for shard, name := range names {
		info := harness.Info(t, d, name)
		if !info.InCluster || info.Slot != harness.Slot(name) || info.Shard != masters[shard].Address() {
			t.Errorf("%s is in slot %d (in a Cluster: %v) of %q, want %d of %s", name, info.Slot, info.InCluster, info.Shard, harness.Slot(name), masters[shard].Address())
		}
	}
	if out := d.Run("who", names[0]).Stdout; !strings.Contains(out, fmt.Sprintf("SLOT    %d, of the master at %s\n", harness.Slot(names[0]), masters[0].Address())) {
		t.Errorf("who prints\n%s", out)
	}
	if out := d.Run("ls", fmt.Sprintf("--slot=%d", harness.Slot(names[2]))).Stdout; !strings.Contains(out, names[2]) || strings.Contains(out, names[0]) || strings.Contains(out, names[1]) {
		t.Errorf("ls of the slot of %s prints\n%s", names[2], out)
	}
	for _, m := range masters {
		checkMetrics(t, d, fmt.Sprintf("redis_shard_up{shard=%q} 1", m.Address()), fmt.Sprintf("redis_slots{shard=%q} %d", m.Address(), want[m.Address()].Slots))
	}
	checkMetrics(t, d, "redis_up 1", "redis_degraded 0", "topology_changes_total [1-9][0-9]*")

	dead := masters[1].Address()
	masters[1].Kill()
	harness.Eventually(t, "the status says that the master is down", func() bool {
		s = status(t, client)
		return len(s.Shards) == 3 && strings.Contains(s.Shards[0].Redis, "refuses connections")
	})
	if r := s.Shards[0]; r.Address != dead || r.Slots != want[dead].Slots || r.Held != 1 || r.Waiting != 1 || r.Degraded {
		t.Errorf("the row of %s is %+v", dead, r)
	}
	for _, r := range s.Shards[1:] {
		if r.Redis != "ok" || r.Degraded || r.Address == dead {
			t.Errorf("another master: %+v", r)
		}
	}
	if !s.Degraded || !strings.Contains(s.Redis, "2 of 3 masters of the Cluster are connected") || !strings.Contains(s.Redis, dead) {
		t.Errorf("Redis is %q, degraded: %v", s.Redis, s.Degraded)
	}
	// The next daemon could use no less than this one, and other settings are others still.
	if got := d.Run("serve", "--check", "--redis", c.URL()); got.Code != 0 || !strings.Contains(got.Stdout, "answers; the daemon that runs cannot use this either: Redis at "+dead+" refuses connections") {
		t.Errorf("a check while one master is down: %d, %s%s", got.Code, got.Stdout, got.Stderr)
	}
	if got := d.Run("serve", "--check", "--redis", c.URL(), "--key-prefix", "app:"); got.Code != 64 {
		t.Errorf("a check with another key prefix: %d, %s%s", got.Code, got.Stdout, got.Stderr)
	}
	if got := d.Run("ping"); got.Code != 74 || !strings.Contains(got.Stderr, dead) {
		t.Errorf("ping ends with %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
	out := d.Run("status").Stdout
	table := regexp.MustCompile(`(?m)^ {10}(MASTER|none|127\.0\.0\.1:\d+) `).FindAllStringSubmatch(out, -1)
	if len(table) != 4 || table[1][1] != dead {
		t.Errorf("status prints\n%s", out)
	}
	checkMetrics(t, d, fmt.Sprintf("redis_shard_up{shard=%q} 0", dead), fmt.Sprintf("redis_shard_up{shard=%q} 1", masters[0].Address()), "redis_up 1", "redis_degraded 1")

	masters[1].Restart()
	harness.Eventually(t, "all masters serve", func() bool {
		s = status(t, client)
		return s.Redis == "ok" && !slices.ContainsFunc(s.Shards, func(r locksidecar.ShardStatus) bool { return r.Redis != "ok" })
	})
}

// The danger: with cluster-require-full-coverage yes, Redis's default, one dead master stops all, and the
// tools say that the others are served.
//
// Shows docs/topologies.md: What happens in a failover.
func TestClusterWithFullCoverageIsDownAsAWhole(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 3, 0)
	d := harness.StartDaemon(t, c.URL(), "--lease=3s") // renewed each second
	client := harness.Dial(t, d)
	for shard := range 3 {
		lockOn(t, c, client, shard)
	}
	dead := c.Masters()[1]
	dead.Kill()
	var s locksidecar.Status
	harness.Eventually(t, "the status says that no master serves", func() bool {
		s = status(t, client)
		return strings.Contains(s.Redis, "2 of 3 masters of the Cluster are connected, and none serves; Redis at "+dead.Address())
	})
	if s.Degraded || !strings.HasSuffix(s.Redis, "; with cluster-require-full-coverage no, the others would serve") || strings.Contains(s.Redis, "are served") {
		t.Errorf("degraded: %v, %s", s.Degraded, s.Redis)
	}
	for _, r := range s.Shards[1:] {
		if !r.Degraded || !strings.Contains(r.Redis, "with cluster-require-full-coverage no, masters that are alive serve") {
			t.Errorf("another master: %+v", r)
		}
	}
	if got := d.Run("ping"); got.Code != 69 || !strings.Contains(got.Stderr, "none serves") {
		t.Errorf("ping ends with %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
	if _, err := client.TryLock(t.Context(), c.Names(0, "another", 1)[0]); err == nil || !strings.Contains(err.Error(), "the Cluster is down") {
		t.Errorf("a lock of a master that is alive: %v", err)
	}
	checkMetrics(t, d, "redis_up 0", "redis_degraded 0", fmt.Sprintf("redis_shard_up{shard=%q} 0", dead.Address()))
	dead.Restart()
	harness.Eventually(t, "all masters serve", func() bool { return status(t, client).Redis == "ok" })
}

// The danger: a person looks for the locks of slots that no master has, and finds that Redis has not
// been reached.
func TestClusterStatusHasSlotsWithoutAMaster(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	name := c.Names(0, "status", 1)[0]
	slot := harness.Slot(name)
	for _, n := range c.Nodes {
		n.MustDo("CLUSTER", "DELSLOTS", slot)
	}
	d := harness.LaunchDaemon(t, c.URL())
	client := harness.Dial(t, d)
	go client.Lock(t.Context(), name)
	var s locksidecar.Status
	harness.Eventually(t, "the status has three masters that serve, and a slot without one", func() bool {
		s = status(t, client)
		return len(s.Shards) == 4 && s.Shards[1].Redis == "ok" && s.Shards[0].Waiting == 1 && strings.Contains(s.Shards[0].Redis, "no master of the Cluster")
	})
	if r := s.Shards[0]; r.Address != "" || r.Slots != 1 || s.ShardCount != 4 {
		t.Errorf("the row is %+v, of %d", r, s.ShardCount)
	}
	if info := harness.Info(t, d, name); !info.InCluster || info.Slot != slot || info.Shard != "" {
		t.Errorf("the lock is in slot %d of %q", info.Slot, info.Shard)
	}
	checkMetrics(t, d, `redis_shard_up{shard="none"} 0`, `redis_slots{shard="none"} 1`, "redis_up 1")
}

func TestClusterCountsRedirects(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 3, 0)
	d := harness.StartDaemon(t, c.URL(), "--lease=6s") // renewed each 2 s
	client := harness.Dial(t, d)
	name := lockOn(t, c, client, 0)
	from, to := c.ShardMaster(0).Address(), c.ShardMaster(1).Address()
	checkMetrics(t, d, `redirects_total{kind="moved"} 0`, `redirects_total{kind="ask"} 0`, `redirects_total{kind="tryagain"} 0`)
	counts := func(kind string) func() bool {
		some := regexp.MustCompile(`(?m)^locksidecar_redirects_total{kind="` + kind + `"} [1-9]`)
		return func() bool { return some.MatchString(d.Run("metrics").Stdout) }
	}
	m := c.OpenMigration(harness.Slot(name), c.ShardMaster(1))
	m.MoveKeys(name, "redisson_lock_token:{"+name+"}")
	harness.Eventually(t, "the source answers the renewal with ASK", counts("ask"))
	go client.Lock(t.Context(), "{"+name+"}:new") // no node has all of its keys
	harness.Eventually(t, "a node answers TRYAGAIN", counts("tryagain"))
	if shard := harness.Info(t, d, name).Shard; shard != from {
		t.Errorf("while the slot migrates, it is of %s, want %s", shard, from)
	}
	// Another host finds it there, too.
	if got := harness.StartDaemon(t, c.URL()).Run("who", name); got.Code != 0 || !strings.Contains(got.Stdout, "held") {
		t.Errorf("who on another host: %d, %s%s", got.Code, got.Stdout, got.Stderr)
	}
	m.Close()
	harness.Eventually(t, "the slot is of the target", func() bool { return harness.Info(t, d, name).Shard == to })
	// The daemon may have asked for the topology before it sent anything. So a slot moves until an operation is the first.
	free, isMoved, n := c.Names(0, "moves", 1)[0], counts("moved"), 0
	harness.Eventually(t, "a source answers MOVED", func() bool {
		n++
		c.MoveSlot(harness.Slot(free), c.ShardMaster(n%2))
		held, err := client.Lock(t.Context(), free)
		if err != nil {
			t.Fatal(err)
		}
		if err := held.Unlock(); err != nil {
			t.Fatal(err)
		}
		return isMoved()
	})
}

// A program that moves a slot ended before the slot had moved, and both masters have a token counter, that of the target
// an old one. No lock of the slot can be taken. redis-cli closes the slot, and tokens grow. A hold that is renewed while
// redis-cli moves keys would be lost; this one is not.
func TestClusterSlotThatWasLeftOpenIsClosed(t *testing.T) {
	t.Parallel()
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		t.Skip("redis-cli is not installed: apt-get install redis-tools")
	}
	c := harness.StartCluster(t, 3, 0)
	hosts := startHosts(t, c, 10*time.Minute)
	holder, other := harness.Dial(t, hosts[0]), harness.Dial(t, hosts[1])
	tag := c.Names(0, "left", 1)[0]
	name, free := "{"+tag+"}:held", "{"+tag+"}:free"
	held, err := holder.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	m := c.OpenMigration(harness.Slot(tag), c.ShardMaster(1))
	m.MoveKeys(name)
	old := m.To.Pipeline()
	old.Do(t.Context(), "ASKING")
	old.Set(t.Context(), "redisson_lock_token:"+name, 1, 0)
	if _, err := old.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := other.TryLock(t.Context(), free); !errors.Is(err, locksidecar.ErrUnavailable) {
		t.Errorf("a free lock of the open slot: %v", err)
	}
	fix := func(more ...string) string {
		out, _ := exec.CommandContext(t.Context(), cli, append([]string{"--cluster", "fix", m.From.Address()}, more...)...).CombinedOutput()
		return string(out)
	}
	if out := fix(); !strings.Contains(out, "Target key exists") {
		t.Errorf("redis-cli does not find the counter at both masters:\n%s", out)
	}
	out := fix("--cluster-replace")
	c.AwaitAgreement()
	for _, n := range c.Masters() {
		if text := n.Do(t.Context(), "CLUSTER", "NODES").String(); strings.Contains(text, " [") {
			t.Fatalf("the slot is open still:\n%s\n%s", out, text)
		}
	}
	if err := held.Unlock(); err != nil {
		t.Errorf("the lock was lost: %v", err)
	}
	next, err := other.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.TryLock(t.Context(), free); err != nil {
		t.Errorf("a free lock of the slot afterwards: %v", err)
	}
	if next.Token() <= held.Token() {
		t.Errorf("token %d after %d", next.Token(), held.Token())
	}
}

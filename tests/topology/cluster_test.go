package topology

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
	"github.com/locksidecar/locksidecar/tests/history"
)

const (
	// clusterLease is that of the daemons of most tests in a Cluster: a failover takes less than what is
	// left of it after a renewal, so no hold is lost.
	clusterLease = 10 * time.Second

	// maxGap is how long the locks of masters without a fault may go without a grant of any of them, or half
	// of the time that the fault of another one lasts: a machine that is slow makes both longer.
	maxGap = time.Second
)

// startHosts starts two daemons.
func startHosts(t *testing.T, c *harness.Cluster, lease time.Duration) []*harness.Daemon {
	t.Helper()
	var hosts []*harness.Daemon
	for range 2 {
		hosts = append(hosts, harness.StartDaemon(t, c.URL(), "--lease="+lease.String()))
	}
	return hosts
}

// contendEverywhere has clients of each host contend for so many locks of each shard, and returns when
// each was granted.
func contendEverywhere(c *harness.Cluster, w *crowd, perHost, names int) (groups []*group) {
	w.t.Helper()
	for shard := range c.Masters() {
		groups = append(groups, w.contend(perHost, c.Names(shard, "hot", names)...))
	}
	for shard, g := range groups {
		g.await(fmt.Sprintf("the locks of shard %d are granted", shard))
	}
	return groups
}

func TestClusterServesLocksOfAllMasters(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 3, 0)
	w := startCrowd(t, clusterLease, startHosts(t, c, clusterLease)...)
	groups := contendEverywhere(c, w, 3, 4)
	for _, g := range groups {
		harness.Eventually(t, "each lock passes between the hosts", func() bool {
			return !slices.ContainsFunc(g.crossings(), func(n int) bool { return n < 10 })
		})
	}
	w.end()
	masters := c.Masters()
	for shard, g := range groups {
		t.Logf("shard %d: grants %v, to another host %v", shard, g.grants(), g.crossings())
		for _, name := range g.names {
			// Another master would answer MOVED.
			counter := "redisson_lock_token:{" + name + "}"
			if n, err := masters[shard].Exists(t.Context(), counter).Result(); n != 1 || err != nil {
				t.Errorf("%d of %s at the master of its slot: %v", n, counter, err)
			}
		}
	}
}

// The danger: a client takes a lock at the target of a slot while another one has it at the source, or
// a renewal or a release fails because the key is not where the slot is.
//
// Shows docs/topologies.md: A slot that moves.
// Shows docs/topologies.md: What happens in a failover.
func TestClusterKeepsLocksThroughMigration(t *testing.T) {
	t.Parallel()
	const (
		laps = 1
		held = 12

		// openFor is how long a slot migrates at least. One with many keys does so for longer.
		openFor = 5 * time.Millisecond
	)
	keepLocksThroughMigration(t, laps, held, func(c *harness.Cluster, names []string, to *harness.ClusterNode) {
		for _, name := range names {
			m := c.OpenMigration(harness.Slot(name), to)
			time.Sleep(openFor)
			m.Close()
		}
	})
}

// The danger: the source executes an operation that the target does not get, or the other way round: a
// lock is taken twice, or a hold is lost. A slot moves without ASK, and in one step with many others: all of
// their operations are answered MOVED, and all of their sharded subscriptions end.
//
// Shows docs/topologies.md: Slots that move in one step.
// Shows docs/topologies.md: What happens in a failover.
func TestClusterKeepsLocksThroughAtomicMigration(t *testing.T) {
	t.Parallel()
	const (
		laps     = 3 // a move takes milliseconds
		held     = 40
		together = 20 // slots in one step
	)
	needAtomicMigration(t)
	keepLocksThroughMigration(t, laps, held, func(c *harness.Cluster, names []string, to *harness.ClusterNode) {
		for some := range slices.Chunk(names, together) {
			var slots []int
			for _, name := range some {
				slots = append(slots, harness.Slot(name))
			}
			c.MoveSlotsAtomically(slots, to)
		}
	})
}

// The danger: a master stands still in the middle of such a move, and afterwards both have the slots, or neither
// has some of the locks.
//
// Shows docs/topologies.md: Slots that move in one step.
func TestClusterKeepsLocksWhenAMasterPausesDuringAnAtomicMigration(t *testing.T) {
	t.Parallel()
	const (
		laps     = 2
		held     = 40
		together = 20
		blob     = 1 << 20               // bytes beside each lock, so that a move takes some 50 ms
		within   = 80 * time.Millisecond // of the beginning of a move
		pause    = harness.NodeTimeout / 2
	)
	needAtomicMigration(t)
	random, moves, paused := harness.Random(t), 0, 0
	keepLocksThroughMigration(t, laps, held, func(c *harness.Cluster, names []string, to *harness.ClusterNode) {
		if moves == 0 {
			for _, name := range names {
				c.MasterOf(name).MustDo("SET", "{"+name+"}:blob", strings.Repeat("x", blob))
			}
		}
		for some := range slices.Chunk(names, together) {
			var slots []int
			for _, name := range some {
				slots = append(slots, harness.Slot(name))
			}
			from := c.Master(slots[0])
			victim, after := []*harness.ClusterNode{from, to}[random.IntN(2)], time.Duration(random.Int64N(int64(within)))
			hasMoved := make(chan struct{})
			var fault sync.WaitGroup
			fault.Go(func() {
				select {
				case <-hasMoved:
				case <-time.After(after):
					victim.Signal(syscall.SIGSTOP)
					time.Sleep(pause)
					victim.Signal(syscall.SIGCONT)
					paused++
				}
			})
			c.MoveSlotsAtomically(slots, to)
			close(hasMoved)
			fault.Wait()
			moves++
		}
	})
	t.Logf("in %d of %d moves, the source or the target was paused for %v", paused, moves, pause)
}

func needAtomicMigration(t *testing.T) {
	t.Helper()
	if !harness.StartRedis(t).MovesSlotsAtomically() {
		t.Skip("this server does not move slots in one step; Redis since 8.4 and Valkey since 9.0 do: make topology SERVERS='redis-8.6 valkey-9.1'")
	}
}

// keepLocksThroughMigration moves the slots of names to another master and back, while clients of two hosts
// contend for locks of these slots, hold so many of them, and wait for those.
func keepLocksThroughMigration(t *testing.T, laps, held int, move func(c *harness.Cluster, names []string, to *harness.ClusterNode)) {
	const lease = 6 * time.Second // so that there are renewals while slots move
	c := harness.StartCluster(t, 3, 0)
	w := startCrowd(t, lease, startHosts(t, c, lease)...)
	moving := c.Names(0, "moving", 100)
	// Those of a move have neighbours of each kind.
	harness.Random(t).Shuffle(len(moving), func(i, j int) { moving[i], moving[j] = moving[j], moving[i] })
	release := []func(){w.hold(0, moving[:held/2]...), w.hold(1, moving[held/2:held]...)}
	waiting := w.contend(2, moving[:held]...)
	hot := w.contend(3, moving[held:held+4]...)
	all := w.contend(2, moving[held+4:]...)
	others := w.contend(1, c.Names(2, "stays", 4)...)
	hot.await("the locks of the slots are granted")

	source, target := c.ShardMaster(0), c.ShardMaster(1)
	began := time.Now()
	for range laps {
		for _, to := range []*harness.ClusterNode{target, source} {
			gap := hot.watch()
			move(c, moving, to)
			t.Logf("%d slots moved to %s; the hot locks had no grant for %v at most", len(moving), to.Address(), gap())
			c.AwaitAgreement()
			hot.await("the locks are granted after their slots have moved")
			others.await("the locks of a master without a move are granted")
		}
	}
	t.Logf("the moves took %v; %d grants of locks that moved", time.Since(began), sum(hot.grants())+sum(all.grants()))
	for _, d := range w.daemons {
		seen := regexp.MustCompile(`(?m)^locksidecar_redirects_total.*$`).FindAllString(d.Run("metrics").Stdout, -1)
		t.Logf("a daemon was answered %q", seen)
	}
	if n := sum(waiting.grants()); n > 0 {
		t.Errorf("locks that were held were granted %d times", n)
	}
	for _, end := range release {
		end()
	}
	waiting.await("the waiters of the locks that were held are served")
	report := w.end()
	if len(report.Lost) > 0 {
		t.Errorf("holds were lost: %v", report.Lost)
	}
	for _, name := range moving {
		if c.MasterOf(name) != source {
			t.Fatalf("the slot of %s was not moved back", name)
		}
	}
}

// The danger: a master that gave all of its slots away becomes a replica of the one that has them, and gets
// what hosts publish there: a host that is still connected to it receives a transfer twice. When it is
// promoted later, the host uses an earlier connection.
//
// Shows docs/topologies.md: A master that gave all of its slots away.
func TestClusterMasterGivesAllItsSlotsAndGetsThemBack(t *testing.T) {
	t.Parallel()
	const lease = 6 * time.Second // so that there are renewals meanwhile
	needAtomicMigration(t)
	c := harness.StartCluster(t, 3, 0, "--cluster-allow-replica-migration", "yes")
	w := startCrowd(t, lease, startHosts(t, c, lease)...)
	groups := contendEverywhere(c, w, 3, 4)
	kept := c.Names(0, "kept", 20)
	release := []func(){w.hold(0, kept[:10]...), w.hold(1, kept[10:]...)}
	await := func(what string) {
		t.Helper()
		for _, g := range groups {
			g.await(what)
		}
	}
	source, target := c.ShardMaster(0), c.ShardMaster(1)
	all := harness.ClusterSlots - len(c.ShardMaster(2).Slots())
	hasAll := func(n *harness.ClusterNode) {
		t.Helper()
		want := fmt.Sprintf("locksidecar_redis_slots{shard=%q} %d\n", n.Address(), all)
		harness.Eventually(t, "each daemon knows that a master has the slots of two", func() bool {
			return !slices.ContainsFunc(w.daemons, func(d *harness.Daemon) bool { return !strings.Contains(d.Run("metrics").Stdout, want) })
		})
	}
	c.MoveSlotsAtomically(source.Slots(), target)
	harness.Eventually(t, "the master without slots is a replica", func() bool {
		return strings.Contains(source.Info(t.Context(), "replication").Val(), "role:slave")
	})
	source.Shard = target.Shard
	c.AwaitAgreement()
	await("all locks are granted after the slots have moved")
	hasAll(target)
	await("all locks are granted where the slots are")
	if next := c.PlannedFailover(target.Shard); next != source {
		t.Fatalf("%s is the master", next.Address())
	}
	await("all locks are granted after the replica was promoted")
	hasAll(source)
	await("all locks are granted where the slots are")
	for _, end := range release {
		end()
	}
	if report := w.end(); len(report.Lost) > 0 {
		t.Errorf("holds were lost: %v", report.Lost)
	}
}

// The danger: a daemon that waits for the release of another program stays subscribed where the slot of the
// lock was, and does not learn of the release.
//
// Shows docs/topologies.md: A sharded subscription ends when its slot moves.
func TestClusterSubscriptionFollowsItsSlot(t *testing.T) {
	t.Parallel()
	t.Run("key by key", func(t *testing.T) {
		followSlots(t, (*harness.Cluster).MoveSlot)
	})
	t.Run("atomically", func(t *testing.T) {
		needAtomicMigration(t)
		followSlots(t, func(c *harness.Cluster, slot int, to *harness.ClusterNode) { c.MoveSlotsAtomically([]int{slot}, to) })
	})
}

func followSlots(t *testing.T, move func(c *harness.Cluster, slot int, to *harness.ClusterNode)) {
	const (
		rounds = 5

		// maxTime is far more than a message takes, and less than passes until a waiter polls, or until a poll
		// for one lock has shown where the others are.
		maxTime = time.Second
	)
	c := harness.StartCluster(t, 3, 0)
	d := harness.StartDaemon(t, c.URL())
	w := harness.StartGoWorker(t, d)
	program := c.Client(t)
	var followed, woken []time.Duration
	for _, name := range c.Names(0, "foreign", rounds) {
		program.HSet(t.Context(), name, "a-program:1", "1")
		program.PExpire(t.Context(), name, time.Minute)
		waiting := w.Enqueue(d, name)
		isSubscribedAt := func(n *harness.ClusterNode) func() bool { return func() bool { return n.LockSubscribers(name) == 1 } }
		harness.Eventually(t, "the daemon is subscribed", isSubscribedAt(c.MasterOf(name)))
		to := c.ShardMaster(1)
		move(c, harness.Slot(name), to)
		moved := time.Now()
		if c.Nodes[0].HasShardedChannels() {
			harness.Eventually(t, "the daemon is subscribed where the slot is", isSubscribedAt(to))
			followed = append(followed, time.Since(moved))
		}

		released := time.Now()
		to.ReleaseForeign(name)
		w.Await(waiting)
		woken = append(woken, time.Since(released))
		w.Unlock(name)
		c.AwaitAgreement()
	}
	slices.Sort(followed)
	slices.Sort(woken)
	t.Logf("the subscription followed within %v; the waiter was granted the lock %v after the release", followed, woken)
	if len(followed) > 0 && followed[rounds/2] > maxTime {
		t.Errorf("the end of a subscription has nothing asked: the next one came after %v in the median", followed[rounds/2])
	}
	if median := woken[rounds/2]; median > maxTime {
		t.Errorf("the release does not wake the waiter: it waited for %v in the median", median)
	}
}

func sum(numbers []int) (sum int) {
	for _, n := range numbers {
		sum += n
	}
	return sum
}

// The danger: the key of a held lock is at the target of a slot that stays at its source, where a
// renewal does not find it: the hold is lost after its lease.
//
// Shows docs/topologies.md: While a slot moves key by key.
func TestClusterHeldLockIsRenewedDuringAnOpenMigration(t *testing.T) {
	t.Parallel()
	const lease = 6 * time.Second
	c := harness.StartCluster(t, 3, 0)
	hosts := startHosts(t, c, lease)
	holder, other := harness.Dial(t, hosts[0]), harness.Dial(t, hosts[1])
	// They share a slot. Of the first, key and counter are moved; of the second, only the key.
	tag := "{" + c.Names(0, "tag", 1)[0] + "}"
	whole, split, stays := tag+":whole", tag+":split", tag+":stays"
	held := map[string]*locksidecar.Lock{}
	for _, name := range []string{whole, split, stays} {
		lock, err := holder.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		held[name] = lock
	}

	m := c.OpenMigration(harness.Slot(tag), c.ShardMaster(1))
	m.MoveKeys(whole, "redisson_lock_token:"+whole, split)
	time.Sleep(2 * lease) // what the slot does not survive if renewals do not follow it
	for name, lock := range held {
		if err := lock.Err(); err != nil {
			t.Errorf("%s was lost while its slot migrated: %v", name, err)
		}
	}
	for _, name := range []string{whole, split} {
		if len(m.To.FieldsAsking(name)) != 1 {
			t.Errorf("the target does not have %s any more: nothing renewed it there", name)
		}
	}
	if len(m.From.Fields(stays)) != 1 {
		t.Errorf("the source does not have %s any more: nothing renewed it there", stays)
	}
	m.Close()
	c.AwaitAgreement()
	for name, lock := range held {
		if _, err := other.TryLock(t.Context(), name); err == nil {
			t.Errorf("%s is held twice", name)
		}
		if err := lock.Unlock(); err != nil {
			t.Errorf("the release of %s: %v", name, err)
		}
		next, err := other.Lock(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if next.Token() <= lock.Token() {
			t.Errorf("%s: token %d after %d", name, next.Token(), lock.Token())
		}
	}
}

// The danger: a fault of one master delays the locks of the others, or ends holds that the promoted
// replica has.
//
// Shows docs/topologies.md: Cluster.
func TestClusterMasterIsKilled(t *testing.T) {
	t.Parallel()
	failOneMaster(t, "a master is killed", func(c *harness.Cluster, master *harness.ClusterNode) {
		master.Kill()
		if next := c.AwaitFailover(master); next == master {
			t.Errorf("%s is still the master", next.Address())
		}
	})
}

// The danger: a master that goes on after its replica was promoted acknowledges what it is asked.
//
// Shows docs/topologies.md: Cluster.
func TestClusterMasterIsPaused(t *testing.T) {
	t.Parallel()
	failOneMaster(t, "a master is paused", func(c *harness.Cluster, master *harness.ClusterNode) {
		master.Pause()
		c.AwaitFailover(master)
		master.Continue()
		c.AwaitAgreement()
	})
}

// failOneMaster has a fault of the master of one shard while clients contend for locks of all. The fault
// returns when the shard has a master again. What the master has acknowledged and not replicated is
// lost, so two clients may hold a lock of its shard; tokens tell them apart.
func failOneMaster(t *testing.T, what string, fault func(*harness.Cluster, *harness.ClusterNode)) {
	c := harness.StartCluster(t, 3, 1, "--cluster-require-full-coverage", "no")
	w := startCrowd(t, clusterLease, startHosts(t, c, clusterLease)...)
	groups := contendEverywhere(c, w, 2, 4)
	kept := c.Names(0, "kept", 3)
	release := w.hold(0, kept...)
	victim := c.ShardMaster(0)
	awaitReplicated(t, victim, kept[0])

	mended := w.fault(what, groups[0].names, history.LosesData, history.Interrupts)
	gap0, gap1, gap2 := groups[0].watch(), groups[1].watch(), groups[2].watch()
	begun := time.Now()
	fault(c, victim)
	isOver := time.Since(begun)
	groups[0].await("the locks of the shard are granted again")
	mended()
	t.Logf("the shard had a master again within %v; none of its locks was granted for %v", isOver, gap0())
	for shard, gap := range map[int]time.Duration{1: gap1(), 2: gap2()} {
		t.Logf("no lock of shard %d was granted for %v", shard, gap)
		if gap > max(maxGap, isOver/2) {
			t.Errorf("the locks of shard %d, whose master had no fault, were not granted for %v", shard, gap)
		}
	}
	release()
	w.end()
}

// awaitReplicated waits until a replica has what a master has executed. The name is that of a lock in a
// slot of the master.
func awaitReplicated(t *testing.T, master *harness.ClusterNode, name string) {
	t.Helper()
	// WAIT is about the writes of its connection.
	var confirmed *redis.Cmd
	if _, err := master.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		p.Set(t.Context(), "written:{"+name+"}", 1, 0)
		confirmed = p.Do(t.Context(), "WAIT", 1, 2000)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n, err := confirmed.Int(); n < 1 {
		t.Fatalf("%d replicas confirm a write: %v", n, err)
	}
}

// The danger: the old master goes on granting after the promotion, or the new one grants what the old
// one had given. Clients are paused during a planned failover, so nothing may be lost.
//
// Shows docs/topologies.md: What happens in a failover.
func TestClusterPlannedFailover(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 3, 1)
	w := startCrowd(t, clusterLease, startHosts(t, c, clusterLease)...)
	groups := contendEverywhere(c, w, 2, 4)
	release := w.hold(0, c.Names(0, "kept", 3)...)
	for range 2 { // there and back
		old := c.ShardMaster(0)
		gap := groups[0].watch()
		next := c.PlannedFailover(0)
		groups[0].await("the locks of the shard are granted at its new master")
		t.Logf("from %s to %s: no lock of the shard was granted for %v", old.Address(), next.Address(), gap())
	}
	for _, g := range groups {
		g.await("all locks are granted")
	}
	release()
	if report := w.end(); len(report.Lost) > 0 {
		t.Errorf("holds were lost: %v", report.Lost)
	}
}

// A shard without a master stops only its own locks, and clients are told which server is missing.
func TestClusterDownShardIsSaid(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	client := harness.Dial(t, harness.StartDaemon(t, c.URL()))
	name, elsewhere := c.Names(0, "down", 1)[0], c.Names(1, "up", 1)[0]
	pass := func(name string) {
		t.Helper()
		lock, err := client.TryLock(t.Context(), name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := lock.Unlock(locksidecar.Confirmed(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	pass(name)
	pass(elsewhere)

	victim := c.ShardMaster(0)
	victim.Kill()
	refused := func(when string) {
		t.Helper()
		text := ""
		harness.Eventually(t, "an acquire is refused with the address of its master, "+when, func() bool {
			_, err := client.TryLock(t.Context(), name)
			if !errors.Is(err, locksidecar.ErrUnavailable) {
				t.Fatalf("a try of a lock whose master is down: %v", err)
			}
			pass(elsewhere)
			text = err.Error()
			return strings.Contains(text, victim.Address())
		})
		t.Logf("%s: %s", when, text)
	}
	refused("before the other masters know")
	harness.Eventually(t, "the other masters know", func() bool {
		return !strings.Contains(c.ShardMaster(1).ClusterInfo(t.Context()).Val(), "cluster_slots_fail:0")
	})
	refused("after the other masters know")
	victim.Restart()
	c.AwaitAgreement()
	harness.Eventually(t, "the lock is granted when its master has returned", func() bool {
		lock, err := client.TryLock(t.Context(), name)
		if err == nil {
			err = lock.Unlock()
		}
		return err == nil
	})
}

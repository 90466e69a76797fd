package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// ClusterSlots is how many slots a Redis Cluster has.
const ClusterSlots = 16384

// NodeTimeout is the cluster-node-timeout of StartCluster. A node that does not answer for that long
// fails as soon as a majority of the masters agrees; the election of a replica takes half a second to a
// second and a half more.
const NodeTimeout = time.Second

// busOffset is the distance between the port of a node and that of its cluster bus.
const busOffset = 10000

// A Cluster is a Redis Cluster of processes on loopback ports. Shard i is a master and its replicas,
// whichever of them is the master at present.
type Cluster struct {
	Nodes []*ClusterNode // by shard; at the start the master is the first node of its shard

	t testing.TB
}

// A ClusterNode is one process of a Cluster.
type ClusterNode struct {
	*Redis
	ID    string // as CLUSTER MYID returns it
	Shard int

	running bool // neither killed nor paused
}

// StartCluster starts a Cluster in which the slots are divided evenly among the masters, and returns
// when all nodes have the same view of it and each replica is online. More settings are for each node,
// for instance "--cluster-require-full-coverage", "no".
func StartCluster(t testing.TB, masters, replicasEach int, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	args = append([]string{
		"--cluster-enabled", "yes", "--cluster-node-timeout", strconv.FormatInt(NodeTimeout.Milliseconds(), 10),
		"--cluster-announce-ip", "127.0.0.1", "--cluster-allow-replica-migration", "no",
		"--repl-diskless-sync-delay", "0",
	}, args...)
	// A server that ends on SIGTERM waits for its replicas.
	t.Cleanup(func() {
		for _, n := range c.Nodes {
			n.cmd.Process.Kill()
		}
	})
	for shard := range masters {
		for range 1 + replicasEach {
			n := &ClusterNode{Redis: startRedis(t, freeClusterPort, args...), Shard: shard, running: true}
			// Nodes with the same epoch would have to find out which of them raises its own.
			n.MustDo("CLUSTER", "SET-CONFIG-EPOCH", len(c.Nodes)+1)
			n.ID = n.mustText("CLUSTER", "MYID")
			c.Nodes = append(c.Nodes, n)
		}
	}
	c.form(masters)
	return c
}

// form has the nodes meet, divides the slots, and makes replicas.
func (c *Cluster) form(masters int) {
	c.t.Helper()
	for _, n := range c.Nodes[1:] {
		c.Nodes[0].MustDo("CLUSTER", "MEET", "127.0.0.1", n.Port)
	}
	Eventually(c.t, "each node of the Cluster knows all others", func() bool {
		return !slices.ContainsFunc(c.Nodes, func(n *ClusterNode) bool { return len(n.view()) != len(c.Nodes) || n.hasHandshake() })
	})
	each := len(c.Nodes) / masters
	for shard := range masters {
		master := c.Nodes[shard*each]
		from, to := shard*ClusterSlots/masters, (shard+1)*ClusterSlots/masters-1
		if err := master.ClusterAddSlotsRange(c.t.Context(), from, to).Err(); err != nil {
			c.t.Fatal(err)
		}
		for _, replica := range c.Nodes[shard*each+1 : (shard+1)*each] {
			replica.MustDo("CLUSTER", "REPLICATE", master.ID)
		}
	}
	c.AwaitAgreement()
}

// freeClusterPort returns a loopback port that no process listens on, and whose cluster bus has one too.
func freeClusterPort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := FreePort(t)
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+busOffset))); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free together with that of its cluster bus")
	return 0
}

// Seeds returns the addresses of all nodes.
func (c *Cluster) Seeds() (seeds []string) {
	for _, n := range c.Nodes {
		seeds = append(seeds, n.Address())
	}
	return seeds
}

// URL returns the URL of the Cluster, as the setting redis takes it.
func (c *Cluster) URL() string { return "redis+cluster://" + strings.Join(c.Seeds(), ",") }

// Client returns a client of the whole Cluster, which follows slots; CLIENT LIST shows it as "test".
func (c *Cluster) Client(t testing.TB) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Seeds(), ClientName: "test", DisableIdentity: true})
	t.Cleanup(func() { client.Close() })
	return client
}

// running returns the nodes that are neither killed nor paused.
func (c *Cluster) running() []*ClusterNode {
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(n *ClusterNode) bool { return !n.running })
}

// Master returns the node that has a slot: of the running masters that claim it, that of the latest
// epoch. Precondition: there is one.
func (c *Cluster) Master(slot int) *ClusterNode {
	c.t.Helper()
	var owner *ClusterNode
	latest := int64(-1)
	for _, n := range c.running() {
		me := n.self()
		if me.is("master") && me.has(slot) && me.epoch > latest {
			owner, latest = n, me.epoch
		}
	}
	if owner == nil {
		c.t.Fatalf("no running node has slot %d", slot)
	}
	return owner
}

// MasterOf returns the node that has the slot of a key.
func (c *Cluster) MasterOf(key string) *ClusterNode {
	c.t.Helper()
	return c.Master(Slot(key))
}

// ShardMaster returns the running master of a shard: of those that believe they are, the one of the
// latest epoch; nil: there is none.
func (c *Cluster) ShardMaster(shard int) (master *ClusterNode) {
	c.t.Helper()
	latest := int64(-1)
	for _, n := range c.running() {
		if n.Shard != shard {
			continue
		}
		if me := n.self(); me.is("master") && me.epoch > latest {
			master, latest = n, me.epoch
		}
	}
	return master
}

// Masters returns the master of each shard that has a running one.
func (c *Cluster) Masters() (masters []*ClusterNode) {
	c.t.Helper()
	for shard := range c.Nodes[len(c.Nodes)-1].Shard + 1 {
		if n := c.ShardMaster(shard); n != nil {
			masters = append(masters, n)
		}
	}
	return masters
}

// Names returns so many names of locks in slots of a shard's master, each in a slot of its own. They
// begin with the prefix and have no brace.
func (c *Cluster) Names(shard int, prefix string, n int) (names []string) {
	c.t.Helper()
	me := c.ShardMaster(shard).self()
	used := map[int]bool{}
	for i := 0; len(names) < n; i++ {
		name := fmt.Sprintf("%s:%d:%d", prefix, shard, i)
		if slot := Slot(name); me.has(slot) && !used[slot] {
			used[slot] = true
			names = append(names, name)
		}
	}
	return names
}

// AwaitAgreement waits until each running node serves, all running nodes have the same view of slots
// and roles, none of them believes that another running node has failed, and each running replica
// of a running master is online.
func (c *Cluster) AwaitAgreement() {
	c.t.Helper()
	why := ""
	defer func() {
		if why != "" {
			c.t.Logf("the nodes of the Cluster do not agree: %s", why)
		}
	}()
	Eventually(c.t, "the nodes of the Cluster agree", func() bool {
		why = c.disagreement()
		return why == ""
	})
}

// AwaitMessages waits until each of two nodes has a pong of the other one that came since. What they had sent before has come by
// then, but for what a ping of that moment was answered with: an older claim of a slot hardly comes any more.
func (c *Cluster) AwaitMessages() {
	c.t.Helper()
	since := time.Now().UnixMilli()
	Eventually(c.t, "the nodes of the Cluster have answered each other", func() bool {
		for _, n := range c.running() {
			for _, row := range n.view() {
				if about := c.byID(row.id); about != n && about != nil && about.running && row.pongAt <= since {
					return false
				}
			}
		}
		return true
	})
}

// disagreement returns why the nodes do not agree; "": they do.
func (c *Cluster) disagreement() string {
	nodes := c.running()
	first := ""
	for _, n := range nodes {
		if info := n.ClusterInfo(c.t.Context()).Val(); !strings.Contains(info, "cluster_state:ok") {
			return fmt.Sprintf("%s is not ok", n.Address())
		}
		view := n.view()
		text := c.describe(view)
		if first == "" {
			first = text
		}
		if text != first {
			return fmt.Sprintf("%s sees\n%sand %s sees\n%s", nodes[0].Address(), first, n.Address(), text)
		}
		for _, row := range view {
			about := c.byID(row.id)
			if about != nil && about.running && (row.is("fail") || row.is("fail?") || row.link != "connected") {
				return fmt.Sprintf("%s believes that %s has failed", n.Address(), about.Address())
			}
		}
	}
	for _, n := range nodes {
		me := n.self()
		if !me.is("slave") {
			continue
		}
		master := c.byID(me.master)
		if master == nil || !master.running {
			continue
		}
		replicas := master.Info(c.t.Context(), "replication").Val()
		if !strings.Contains(replicas, fmt.Sprintf("port=%d,state=online", n.Port)) {
			return fmt.Sprintf("%s is not online at %s", n.Address(), master.Address())
		}
		if info := n.Info(c.t.Context(), "replication").Val(); !strings.Contains(info, "master_link_status:up") {
			return fmt.Sprintf("%s has no link to %s", n.Address(), master.Address())
		}
	}
	return ""
}

// describe returns the slots of each node in a view, and the master of each replica.
func (c *Cluster) describe(view []clusterRow) string {
	var lines []string
	for _, row := range view {
		line := row.id[:8] + " "
		if row.is("slave") {
			line += "follows " + row.master
		}
		lines = append(lines, line+strings.Join(row.slots, " ")+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (c *Cluster) byID(id string) *ClusterNode {
	for _, n := range c.Nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

// AwaitFailover waits until another node of its shard has replaced a master that was killed or paused,
// and all running nodes agree. It returns the new master. That takes NodeTimeout and the election, two
// to four seconds.
func (c *Cluster) AwaitFailover(old *ClusterNode) *ClusterNode {
	c.t.Helper()
	var next *ClusterNode
	Eventually(c.t, "a replica is promoted", func() bool {
		next = c.ShardMaster(old.Shard)
		return next != nil && next != old
	})
	c.AwaitAgreement()
	return next
}

// PlannedFailover has a replica of a shard take the place of its master, without loss, and returns the
// new master when all running nodes agree. Precondition: the shard has a running replica.
func (c *Cluster) PlannedFailover(shard int) *ClusterNode {
	c.t.Helper()
	old := c.ShardMaster(shard)
	i := slices.IndexFunc(c.Nodes, func(n *ClusterNode) bool { return n.running && n.Shard == shard && n != old })
	if i < 0 {
		c.t.Fatalf("shard %d has no running replica", shard)
	}
	next := c.Nodes[i]
	const again = 6 * time.Second // a node gives up after five
	var asked time.Time
	Eventually(c.t, "the replica is the master", func() bool {
		if next.self().is("master") {
			return true
		}
		if time.Since(asked) > again {
			next.MustDo("CLUSTER", "FAILOVER")
			asked = time.Now()
		}
		return false
	})
	c.AwaitAgreement()
	return next
}

// CommandCalls returns how often each command was called at all running nodes together.
func (c *Cluster) CommandCalls(ctx context.Context) map[string]int {
	c.t.Helper()
	sum := map[string]int{}
	for _, n := range c.running() {
		for command, calls := range n.CommandCalls(ctx) {
			sum[command] += calls
		}
	}
	return sum
}

// Subscribers returns how many clients have subscribed to the channel of a lock, whose name has no brace,
// at all running masters: with SSUBSCRIBE, or with SUBSCRIBE.
func (c *Cluster) Subscribers(lock string) (subscribers int64) {
	c.t.Helper()
	for _, n := range c.Masters() {
		subscribers += n.LockSubscribers(lock)
	}
	return subscribers
}

// LockSubscribers returns how many clients have subscribed to the channel of a lock at this node: with
// SSUBSCRIBE, or with SUBSCRIBE.
func (n *ClusterNode) LockSubscribers(lock string) int64 {
	n.t.Helper()
	channel := channelOf(lock)
	// Redis 6.2 has no sharded channels.
	return n.Subscribers(lock) + n.PubSubShardNumSub(n.t.Context(), channel).Val()[channel]
}

// ReleaseForeign deletes a lock, and publishes that as Redisson does.
func (n *ClusterNode) ReleaseForeign(lock string) {
	n.t.Helper()
	publish := "SPUBLISH"
	if !n.HasShardedChannels() {
		publish = "PUBLISH"
	}
	n.MustDo("DEL", lock)
	n.MustDo(publish, channelOf(lock), "0")
}

func channelOf(lock string) string { return "redisson_lock__channel:{" + lock + "}" }

// MoveSlot moves a slot to another master as redis-cli does: key by key, while the slot migrates. It
// returns when the masters have been told, and perhaps before replicas know: see AwaitAgreement.
func (c *Cluster) MoveSlot(slot int, to *ClusterNode) {
	c.t.Helper()
	if c.Master(slot) != to {
		c.OpenMigration(slot, to).Close()
	}
}

// A Migration is a slot that is being moved from one master to another.
type Migration struct {
	Slot     int
	From, To *ClusterNode

	c *Cluster
}

// OpenMigration begins to move a slot, and moves no key. Its source answers ASK for keys that it does
// not have, until Close. Precondition: the target does not have the slot.
func (c *Cluster) OpenMigration(slot int, to *ClusterNode) *Migration {
	c.t.Helper()
	m := &Migration{Slot: slot, From: c.Master(slot), To: to, c: c}
	m.To.MustDo("CLUSTER", "SETSLOT", slot, "IMPORTING", m.From.ID)
	m.From.MustDo("CLUSTER", "SETSLOT", slot, "MIGRATING", m.To.ID)
	return m
}

// MoveKeys moves keys of the slot to the target. A key that is gone is no error.
func (m *Migration) MoveKeys(keys ...string) {
	m.c.t.Helper()
	args := []any{"MIGRATE", "127.0.0.1", m.To.Port, "", 0, Patience.Milliseconds(), "KEYS"}
	for _, key := range keys {
		args = append(args, key)
	}
	m.From.MustDo(args...)
}

// moveAll moves all keys that the slot still has at the source.
func (m *Migration) moveAll() {
	m.c.t.Helper()
	for keys := m.From.keysIn(m.Slot); len(keys) > 0; keys = m.From.keysIn(m.Slot) {
		m.MoveKeys(keys...)
	}
}

// Close moves the remaining keys of the slot and gives it to the target. The test fails if a client has
// made a key at the source meanwhile: of a slot that migrates, the source makes none of the keys that
// a command declares.
func (m *Migration) Close() {
	m.c.t.Helper()
	m.moveAll()
	m.To.MustDo("CLUSTER", "SETSLOT", m.Slot, "NODE", m.To.ID)
	for {
		err := m.From.Do(m.c.t.Context(), "CLUSTER", "SETSLOT", m.Slot, "NODE", m.To.ID).Err()
		if err == nil {
			break
		}
		late := m.From.keysIn(m.Slot)
		if len(late) == 0 {
			m.c.t.Fatalf("slot %d at its source: %v", m.Slot, err)
		}
		m.c.t.Errorf("these keys were made at the source of slot %d while it migrated: %q", m.Slot, late)
		m.moveAll()
	}
	for _, n := range m.c.Masters() {
		if n != m.From && n != m.To {
			n.MustDo("CLUSTER", "SETSLOT", m.Slot, "NODE", m.To.ID)
		}
	}
}

// MovesSlotsAtomically reports whether a node can give slots to another one with all of their keys in one
// step. Valkey since 9.0 and Redis since 8.4 can.
func (r *Redis) MovesSlotsAtomically() bool {
	r.t.Helper()
	return r.knows("cluster|migrateslots") || r.knows("cluster|migration")
}

// HasShardedChannels reports whether nodes have SSUBSCRIBE. Redis 6.2 has not: a message to a channel goes to
// all nodes there, and a subscription stays when its slot moves.
func (r *Redis) HasShardedChannels() bool {
	r.t.Helper()
	return r.knows("ssubscribe")
}

// knows reports whether the server has a command.
func (r *Redis) knows(command string) bool {
	r.t.Helper()
	rows, err := r.Do(r.t.Context(), "COMMAND", "INFO", command).Slice()
	if err != nil {
		r.t.Fatal(err)
	}
	return len(rows) == 1 && rows[0] != nil
}

// MoveSlotsAtomically moves slots of one master to another one in one step, and returns when both know that
// they have moved: see AwaitAgreement. Precondition: MovesSlotsAtomically.
func (c *Cluster) MoveSlotsAtomically(slots []int, to *ClusterNode) {
	c.t.Helper()
	from := c.Master(slots[0])
	var ranges []any
	for _, slot := range slots {
		ranges = append(ranges, slot, slot)
	}
	// The source of Valkey begins, and the target of Redis.
	asked, command := to, slices.Concat([]any{"CLUSTER", "MIGRATION", "IMPORT"}, ranges)
	if from.knows("cluster|migrateslots") {
		asked, command = from, slices.Concat([]any{"CLUSTER", "MIGRATESLOTS", "SLOTSRANGE"}, ranges, []any{"NODE", to.ID})
	}
	// A node may refuse to begin while it deletes the keys of slots that it gave away, and may give up. So it is
	// asked until the slots have moved. While they move, it answers that they do.
	var refused error
	defer func() {
		if c.t.Failed() {
			c.t.Logf("%d slots of %s move to %s; the last answer of %s: %v", len(slots), from.Address(), to.Address(), asked.Address(), refused)
		}
	}()
	Eventually(c.t, "the slots have moved in one step", func() bool {
		source, target := from.self(), to.self()
		if !slices.ContainsFunc(slots, func(slot int) bool { return source.has(slot) || !target.has(slot) }) {
			return true
		}
		refused = asked.Do(c.t.Context(), command...).Err()
		return false
	})
}

// Address returns host and port.
func (n *ClusterNode) Address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(n.Port))
}

// Kill ends the node with SIGKILL and waits until it has ended. Its data is gone.
func (n *ClusterNode) Kill() {
	n.t.Helper()
	n.running = false
	n.Redis.Kill()
}

// Restart starts a node that was killed, with its node id and without data, and returns when it answers.
// Precondition for a master with a replica: it has been replaced, otherwise its data is lost.
func (n *ClusterNode) Restart() {
	n.t.Helper()
	n.Start()
	n.running = true
}

// Pause stops the process of the node, which keeps its connections.
func (n *ClusterNode) Pause() {
	n.t.Helper()
	n.running = false
	n.Signal(syscall.SIGSTOP)
}

// Continue ends the effect of Pause.
func (n *ClusterNode) Continue() {
	n.t.Helper()
	n.Signal(syscall.SIGCONT)
	n.running = true
}

// FieldsAsking is Fields at the target of a migration, which has the key already.
func (n *ClusterNode) FieldsAsking(lock string) map[string]string {
	n.t.Helper()
	both := n.Pipeline()
	both.Do(n.t.Context(), "ASKING")
	fields := both.HGetAll(n.t.Context(), lock)
	if _, err := both.Exec(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	return fields.Val()
}

// Slots returns the slots that the node has, as far as it knows.
func (n *ClusterNode) Slots() (slots []int) {
	n.t.Helper()
	me := n.self()
	for slot := range ClusterSlots {
		if me.has(slot) {
			slots = append(slots, slot)
		}
	}
	return slots
}

// keysIn returns some keys of a slot; none: it has none.
func (n *ClusterNode) keysIn(slot int) []string {
	n.t.Helper()
	keys, err := n.ClusterGetKeysInSlot(n.t.Context(), slot, 100).Result()
	if err != nil {
		n.t.Fatal(err)
	}
	return keys
}

func (n *ClusterNode) mustText(args ...any) string {
	n.t.Helper()
	text, err := n.Do(n.t.Context(), args...).Text()
	if err != nil {
		n.t.Fatalf("%v: %v", args, err)
	}
	return text
}

// A clusterRow is a line of CLUSTER NODES.
type clusterRow struct {
	id     string
	flags  []string
	master string // of a replica
	pongAt int64  // when it answered last, ms
	epoch  int64
	link   string
	slots  []string // "first-last", or one; without those that migrate
}

// view returns what a node knows of all nodes.
func (n *ClusterNode) view() (rows []clusterRow) {
	n.t.Helper()
	text, err := n.ClusterNodes(n.t.Context()).Result()
	if err != nil {
		n.t.Fatalf("%s: %v", n.Address(), err)
	}
	for line := range strings.Lines(text) {
		field := strings.Fields(line)
		if len(field) < 8 {
			n.t.Fatalf("CLUSTER NODES returns %q", line)
		}
		row := clusterRow{id: field[0], flags: strings.Split(field[2], ","), master: field[3], link: field[7]}
		var errs [2]error
		row.pongAt, errs[0] = strconv.ParseInt(field[5], 10, 64)
		row.epoch, errs[1] = strconv.ParseInt(field[6], 10, 64)
		if errors.Join(errs[:]...) != nil {
			n.t.Fatalf("CLUSTER NODES returns %q", line)
		}
		for _, slots := range field[8:] {
			if !strings.HasPrefix(slots, "[") {
				row.slots = append(row.slots, slots)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// self returns what a node knows of itself.
func (n *ClusterNode) self() clusterRow {
	n.t.Helper()
	for _, row := range n.view() {
		if row.is("myself") {
			return row
		}
	}
	n.t.Fatalf("%s does not know itself", n.Address())
	return clusterRow{}
}

func (n *ClusterNode) hasHandshake() bool {
	n.t.Helper()
	return slices.ContainsFunc(n.view(), func(row clusterRow) bool { return row.is("handshake") || row.link != "connected" })
}

func (row clusterRow) is(flag string) bool { return slices.Contains(row.flags, flag) }

func (row clusterRow) has(slot int) bool {
	return slices.ContainsFunc(row.slots, func(slots string) bool {
		first, last, isRange := strings.Cut(slots, "-")
		if !isRange {
			last = first
		}
		from, _ := strconv.Atoi(first)
		to, _ := strconv.Atoi(last)
		return from <= slot && slot <= to
	})
}

// Slot returns the slot of a key: the CRC16 of its hash tag, or of the whole key if it has none.
func Slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc) % ClusterSlots
}

package harness

import (
	"slices"
	"testing"
)

func TestMain(m *testing.M) { Main(m, Config{}) }

func TestSlotIsThatOfRedis(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 1, 0)
	for _, key := range []string{"", "a", "lock", "{tag}:a", "a{b", "a{}b", "a{}{b}", "{{b}}", "redisson_lock_token:{a}", "ü"} {
		if want := c.Nodes[0].ClusterKeySlot(t.Context(), key).Val(); int64(Slot(key)) != want {
			t.Errorf("the slot of %q is %d, and not %d", key, want, Slot(key))
		}
	}
}

func TestClusterMigrationKeepsKeys(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, 0)
	client := c.Client(t)
	source, target := c.Nodes[0], c.Nodes[1]
	slot := Slot(c.Names(0, "lock", 1)[0])
	keys := []string{c.Names(0, "lock", 1)[0], "redisson_lock_token:{" + c.Names(0, "lock", 1)[0] + "}"}
	for _, key := range keys {
		if err := client.HSet(t.Context(), key, "field", 1).Err(); err != nil {
			t.Fatal(err)
		}
	}

	m := c.OpenMigration(slot, target)
	m.MoveKeys(keys[0])
	if got := target.FieldsAsking(keys[0])["field"]; got != "1" {
		t.Errorf("the target has %q", got)
	}
	if got := source.keysIn(slot); !slices.Equal(got, keys[1:]) {
		t.Errorf("the source has %q", got)
	}
	CheckError(t, source.HLen(t.Context(), keys[0]).Err(), nil, "ASK ", target.Address())
	if n, err := client.HLen(t.Context(), keys[0]).Result(); n != 1 || err != nil {
		t.Errorf("a client that follows ASK finds %d fields, %v", n, err)
	}
	m.Close()
	if c.Master(slot) != target || len(target.keysIn(slot)) != 2 {
		t.Errorf("%s has the slot, and the target %q", c.Master(slot).Address(), target.keysIn(slot))
	}
	c.MoveSlot(slot, c.Nodes[2])
	c.AwaitAgreement()
	if c.MasterOf(keys[0]) != c.Nodes[2] {
		t.Errorf("after the second move, %s has the slot", c.MasterOf(keys[0]).Address())
	}
	for _, key := range keys {
		if n, err := client.HLen(t.Context(), key).Result(); n != 1 || err != nil {
			t.Errorf("%s: %d fields, %v", key, n, err)
		}
	}
}

func TestClusterPromotesReplicas(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, 3, 1)
	client := c.Client(t)
	name := c.Names(1, "lock", 1)[0]
	first := c.MasterOf(name)
	if err := client.HSet(t.Context(), name, "field", 1).Err(); err != nil {
		t.Fatal(err)
	}

	second := c.PlannedFailover(1)
	if second == first || c.MasterOf(name) != second || c.ShardMaster(1) != second {
		t.Errorf("after a planned failover from %s, %s is the master", first.Address(), second.Address())
	}
	if second.Fields(name)["field"] != "1" {
		t.Error("a planned failover lost a key")
	}
	second.Kill()
	if got := c.AwaitFailover(second); got != first {
		t.Errorf("%s replaced the master that was killed", got.Address())
	}
	if first.Fields(name)["field"] != "1" {
		t.Error("the failover lost a key that the replica had")
	}
	second.Restart()
	c.AwaitAgreement()
	if me := second.self(); !me.is("slave") || me.master != first.ID {
		t.Errorf("the old master returned as %v of %q", me.flags, me.master)
	}
	first.Pause()
	if got := c.AwaitFailover(first); got != second {
		t.Errorf("%s replaced the master that was paused", got.Address())
	}
	first.Continue()
	c.AwaitAgreement()
	if c.MasterOf(name) != second || len(c.Masters()) != 3 {
		t.Errorf("%s is the master after the other one continued", c.MasterOf(name).Address())
	}
	if c.CommandCalls(t.Context())["hset"] == 0 {
		t.Error("no node has counted a command")
	}
}

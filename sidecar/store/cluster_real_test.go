package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// What scripted nodes pretend is true of real ones. The Cluster is one for all, because its start takes
// seconds.
func TestRealCluster(t *testing.T) {
	c := harness.StartCluster(t, 2, 0)
	masters := c.Masters()
	r := openCluster(t, c.URL()).settled()

	t.Run("operations of all slots", func(t *testing.T) {
		var takes, renewals, drops []redisop.Op
		for shard := range masters {
			for _, name := range c.Names(shard, "all", 100) {
				takes, renewals, drops = append(takes, takeOp(name, 1)), append(renewals, renewOp(name, 1)), append(drops, dropOp(name, 1))
			}
		}
		for _, ops := range [][]redisop.Op{takes, renewals, drops} {
			for _, res := range r.do(ops...) {
				if res.Outcome != redisop.Done {
					t.Fatalf("%+v", res)
				}
			}
		}
	})

	t.Run("a lock whose keys are at the target", func(t *testing.T) {
		name := c.Names(0, "asked", 1)[0]
		from := r.shardOf(name)
		if res := r.do(takeOp(name, 1))[0]; res.Outcome != redisop.Done {
			t.Fatalf("%+v", res)
		}
		m := c.OpenMigration(harness.Slot(name), masters[1])
		m.MoveKeys(name, counterOf(name))
		if err := m.To.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		renewed := r.do(renewOp(name, 1))[0]
		if renewed.Outcome != redisop.Done || renewed.Shard != from || len(m.To.FieldsAsking(name)) != 1 {
			t.Errorf("%+v", renewed)
		}
		keys := make(chan lookup.Key, 1)
		r.Key(name, func(k lookup.Key, err error) {
			if err != nil {
				t.Error(err)
			}
			keys <- k
		})
		if k := recv(t, keys, "key"); k.State != protocol.KeyLock || len(k.Owners) != 1 || lookup.UUIDOf(k.Owners[0].Field) != ourUUID {
			t.Errorf("%+v", k)
		}
		// The keys of a Take are not all there, so it waits for the end of the migration.
		if res := r.do(takeOp(name, 2))[0]; res.Outcome != redisop.Retryable || res.Shard != from {
			t.Errorf("%+v", res)
		}
		m.Close()
		// The counter has lost its last values.
		if err := m.To.Set(t.Context(), counterOf(name), 5, 0).Err(); err != nil {
			t.Fatal(err)
		}
		for {
			res := r.do(takeOp(name, 3))[0]
			if res.Outcome == redisop.Retryable {
				continue
			}
			if res.Outcome != redisop.Done || res.Shard == from || int64(res.Token) <= r.first(name) {
				t.Errorf("%+v, and the first token was %d", res, r.first(name))
			}
			break
		}
	})

	// The Drop deletes a key that its node can make no more, and the Take after it waits for the other node.
	t.Run("a lock that is dropped and taken again while its slot is on its way", func(t *testing.T) {
		name := c.Names(0, "again", 1)[0]
		if res := r.do(takeOp(name, 2))[0]; res.Outcome != redisop.Done {
			t.Fatalf("%+v", res)
		}
		keys := wire.NewKeyspace("")
		masters[0].MustDo("ZADD", keys.Queue(name), time.Now().UnixMicro(), ourUUID+":1") // a ticket that was given up
		masters[0].MustDo("HSET", keys.Ours(wire.SignsPrefix, name), ourUUID, time.Now().Unix())
		m := c.OpenMigration(harness.Slot(name), masters[1])
		drop, again := dropOp(name, 2), takeOp(name, 3)
		drop.LeaseMS = again.LeaseMS // the lock may pass to a ticket, and there is none
		again.Flags |= redisop.AfterPendingDrop
		if all := r.do(drop, again); all[0].Outcome != redisop.Done || all[1].Outcome != redisop.Retryable || !strings.Contains(all[1].Msg, "on its way to another node") {
			t.Errorf("%+v", all)
		}
		m.Close()
		for res := r.do(again)[0]; res.Outcome != redisop.Done; res = r.do(again)[0] {
			if res.Outcome != redisop.Retryable {
				t.Fatalf("%+v", res)
			}
		}
	})

	// The danger: a host that waits loses its place to a release that could not admit it.
	t.Run("the last permits that are released while the slot is on its way", func(t *testing.T) {
		name, keys := c.Names(0, "permits", 1)[0], wire.NewKeyspace("")
		if res := r.do(permitsOp(name, 1, 0, 3))[0]; res.Outcome != redisop.Done || res.Permits != 3 {
			t.Fatalf("%+v", res)
		}
		wanted := keys.Ours(wire.WantedPrefix, name)
		masters[0].MustDo("ZADD", wanted, time.Now().UnixMicro(), otherUUID)
		masters[0].MustDo("HSET", keys.Ours(wire.WantsPrefix, name), otherUUID, fmt.Sprintf("7 9 10 30000 %d", time.Now().Unix()))
		m := c.OpenMigration(harness.Slot(name), masters[1])
		drop := redisop.Op{Kind: redisop.Drop, Of: redisop.KindPermits, Name: name, HoldID: 2}
		if res := r.do(drop)[0]; res.Outcome != redisop.Done || res.Waiting != 1 {
			t.Errorf("%+v", res)
		}
		m.Close()
		if places, err := m.To.ZRange(t.Context(), wanted, 0, -1).Result(); err != nil || !slices.Equal(places, []string{otherUUID}) {
			t.Errorf("%q wait, %v", places, err)
		}
	})

	// A Cluster brings messages to its nodes in another way than writes.
	t.Run("a drop that finds nothing, and replicas that confirm", func(t *testing.T) {
		name, m := c.Names(0, "gone", 1)[0], masters[0]
		stream := followSilently(t, fmt.Sprintf("127.0.0.1:%d", m.Port))
		m.MustDo("HSET", c.Names(0, "attached", 1)[0], "field", 1)
		stream.until(t, "attached")
		durable := openCluster(t, c.URL(), replicated(1), func(cfg *Config) { cfg.UUID = secondUUID }).settled()
		if res := durable.do(dropOp(name, 1))[0]; res.Outcome != redisop.NotSynced {
			t.Errorf("no replica has it: %+v", res)
		}
		m.MustDo("HSET", c.Names(0, "after", 1)[0], "field", 1)
		if text := stream.until(t, "after:"); !hasWrite(text, name) {
			t.Errorf("nothing was written: %q", text)
		}
	})

	t.Run("a slot that leaves with subscribers", func(t *testing.T) {
		if !masters[0].HasShardedChannels() {
			t.Skip("this server has no sharded channels: a subscription stays when its slot moves")
		}
		name := c.Names(0, "left", 1)[0]
		from := r.shardOf(name)
		r.Subscribe(from, name)
		if got := recv(t, r.subscribed, "subscription"); got != name {
			t.Fatal(got)
		}
		c.MoveSlot(harness.Slot(name), masters[1])
		if got := recv(t, r.unsubscribed, "end of the subscription"); got != name {
			t.Fatal(got)
		}
		r.await("route", func() bool { return r.owners[wire.SlotOf(name)] != from })
		r.Unsubscribe(from, name)
		r.Subscribe(r.shardOf(name), name)
		if got := recv(t, r.subscribed, "subscription at the new owner"); got != name {
			t.Fatal(got)
		}
		r.do(takeOp(name, 1), dropOp(name, 1))
		if got := recv(t, r.messages, "release"); got != name {
			t.Fatal(got)
		}
	})

	t.Run("what hosts publish", func(t *testing.T) {
		retry := func() (d time.Duration) {
			r.masters.with(func(m *guarded) { d = m.Retry() })
			return d
		}
		if got, want := retry(), redisop.TopologyRetry(0, 3, 3); got != want {
			t.Errorf("before the first announcement, a node is asked each %v, want %v", got, want)
		}
		r.Announce(lookup.Host{Name: "here", Version: "1"})
		harness.Eventually(t, "the hosts are counted", func() bool { return retry() == redisop.TopologyRetry(1, 3, 3) })
		harness.Eventually(t, "the host is listed", func() bool {
			got := make(chan []lookup.Host, 1)
			r.Hosts("", func(hosts []lookup.Host, _ string, _ error) { got <- hosts })
			return slices.ContainsFunc(recv(t, got, "hosts"), func(h lookup.Host) bool { return h.UUID == ourUUID && h.Name == "here" })
		})
	})

	if log := r.logged(); strings.Contains(log, "level=WARN") {
		t.Errorf("the log has a warning: %s", log)
	}
}

// first is the first token of a lock.
func (c *clusterRecorder) first(name string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(c.results[name][0].Token)
}

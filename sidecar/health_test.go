package sidecar

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

func up(h *redisHealth) { *h = redisHealth{status: "ok", runID: "run"} }

func down(why string) func(*redisHealth) {
	return func(h *redisHealth) { *h = redisHealth{status: why} }
}

func degraded(why string) func(*redisHealth) {
	return func(h *redisHealth) { h.status, h.isDegraded = why, true }
}

// One Redis has the health that it has, and the run id.
func TestHealthOfOneRedis(t *testing.T) {
	var h shardHealths
	if n := h.slotsOf(0); n != redisop.Slots {
		t.Errorf("%d slots", n)
	}
	if got := setHealthOf(&h, 0, func(*redisHealth) {}); got.isUp() || got.status != notReached {
		t.Errorf("%+v", got)
	}
	if got := setHealthOf(&h, 0, up); *got != (redisHealth{status: "ok", runID: "run"}) || !got.isUp() {
		t.Errorf("%+v", got)
	}
	if got := setHealthOf(&h, 0, degraded("it is full")); *got != (redisHealth{status: "it is full", runID: "run", isDegraded: true}) || !got.isUp() {
		t.Errorf("%+v", got)
	}
	if got := setHealthOf(&h, 0, down("gone")); *got != (redisHealth{status: "gone"}) || got.isUp() {
		t.Errorf("%+v", got)
	}
}

// A Cluster is degraded while some of its masters do not serve, and down while none does. A shard without
// slots does not matter.
func TestHealthOfACluster(t *testing.T) {
	var h shardHealths
	h.ofCluster()
	expect := func(what string, got *redisHealth, isUp, isDegraded bool, says ...string) {
		t.Helper()
		if got.isUp() != isUp || got.isDegraded != isDegraded || (got.runID != "") != isUp || (len(says) == 0) != (got.status == "ok") {
			t.Errorf("%s: %+v", what, got)
		}
		for _, s := range says {
			if !strings.Contains(got.status, s) {
				t.Errorf("%s: %q does not say %q", what, got.status, s)
			}
		}
	}
	expect("nothing is known", setHealthOf(&h, 0, func(*redisHealth) {}), false, false, notReached)
	expect("no node answers", setHealthOf(&h, 0, down("no node answers")), false, false, "no node answers")
	expect("slots", routeHealthOf(&h, []redisop.SlotRange{{First: 0, Last: 5000, Shard: 1}, {First: 5001, Last: redisop.Slots - 1, Shard: 2}}), false, false, notReached)
	if got := [...]int{h.slotsOf(0), h.slotsOf(1), h.slotsOf(2), h.slotsOf(9)}; got != [...]int{0, 5001, redisop.Slots - 5001, 0} {
		t.Errorf("slots %v", got)
	}
	expect("one is up", setHealthOf(&h, 1, up), true, true, "1 of 2 masters", notReached)
	expect("both are up", setHealthOf(&h, 2, up), true, false)
	expect("one refuses acquires", setHealthOf(&h, 2, degraded("it is full")), true, true, "2 of 2 masters", "it is full")
	expect("it does not any more", setHealthOf(&h, 2, up), true, false)
	expect("one is down", setHealthOf(&h, 1, down("gone")), true, true, "1 of 2 masters", "gone")
	expect("both are down", setHealthOf(&h, 2, down("away")), false, false, "gone")
	expect("the other one refuses acquires", setHealthOf(&h, 2, degraded("the Cluster is down")), false, false, "1 of 2 masters of the Cluster are connected, and none serves; gone")
	expect("another one", setHealthOf(&h, 2, up), true, true, "1 of 2 masters", "gone")
	expect("its slots have moved", routeHealthOf(&h, []redisop.SlotRange{{First: 0, Last: 5000, Shard: 2}}), true, false)
	expect("a master without slots is down", setHealthOf(&h, 1, down("gone")), true, false)
	expect("a slot has no master", routeHealthOf(&h, []redisop.SlotRange{{First: 7, Last: 7, Shard: 0}}), true, true, "no node answers")
	expect("it has one again", routeHealthOf(&h, []redisop.SlotRange{{First: 7, Last: 7, Shard: 2}, {First: 7, Last: 7, Shard: 2}}), true, false)
	expect("the one master refuses acquires", setHealthOf(&h, 2, degraded("it is full")), true, true, "it is full")
	expect("the one master is down", setHealthOf(&h, 2, down("away")), false, false, "away")
}

// What endangers locks while Redis serves is a risk, and a lock that waits because of a slot makes Redis degraded.
func TestHealthNamesLostSentinelsAndOpenSlots(t *testing.T) {
	var got *redisHealth
	publish := func(now *redisHealth) { got = now }
	var one shardHealths
	setHealthOf(&one, 0, up)
	one.set(0, func(h *redisHealth) { h.risk = "it evicts" }, publish)
	if one.setSentinels("1 of 3 answer", publish); got.status != "ok" || got.risk != "it evicts. Also: 1 of 3 answer" {
		t.Errorf("%+v", got)
	}
	if got = setHealthOf(&one, 0, up); got.risk != "1 of 3 answer" {
		t.Errorf("after a new connection: %+v", got)
	}
	if one.setSentinels("", publish); *got != (redisHealth{status: "ok", runID: "run"}) {
		t.Errorf("%+v", got)
	}
	var all shardHealths
	all.ofCluster()
	routeHealthOf(&all, []redisop.SlotRange{{First: 0, Last: redisop.Slots - 1, Shard: 1}})
	setHealthOf(&all, 1, up)
	if all.setOpen("slot 7", false, publish); *got != (redisHealth{status: "ok", runID: "run", risk: "slot 7"}) {
		t.Errorf("%+v", got)
	}
	if all.setOpen("slot 7", true, publish); *got != (redisHealth{status: "slot 7", runID: "run", isDegraded: true}) {
		t.Errorf("a lock waits: %+v", got)
	}
	if got = setHealthOf(&all, 1, down("gone")); got.isUp() || got.status != "gone" {
		t.Errorf("the master is down: %+v", got)
	}
}

// setHealthOf returns the health of all after that of a shard has changed.
func setHealthOf(h *shardHealths, n redisop.Shard, change func(*redisHealth)) (all *redisHealth) {
	h.set(n, change, func(now *redisHealth) { all = now })
	return all
}

// routeHealthOf returns the health of all after slots have moved.
func routeHealthOf(h *shardHealths, ranges []redisop.SlotRange) (all *redisHealth) {
	h.route(ranges, func(now *redisHealth) { all = now })
	return all
}

package sim

import "github.com/locksidecar/locksidecar/internal/sim/redis"

// drawFaults draws the faults of this moment, of one host and of Redis, and schedules the
// next time.
func (w *world) drawFaults() {
	if w.phase != faulty {
		return
	}
	p := &w.plan
	r := &w.random
	w.after(r.magnitude(p.faultEvery>>4, 2*p.faultEvery), event{kind: evFault})
	h := w.hosts[r.below(int64(len(w.hosts)))]
	if r.oneIn(p.commandBreaks) && !h.isDown() {
		for _, s := range h.connsTo(w.anyNode()) {
			w.breakConnection(h, s, false)
		}
	}
	if r.oneIn(p.redisRestarts) {
		if x := w.anyNode(); !w.redis.nodes[x].down {
			w.restartRedis(x)
		}
	}
	if r.oneIn(p.roleChanges) && !w.redis.nodes[0].down {
		w.changeRoles()
	}
	if r.oneIn(p.flushes) {
		if x := w.anyNode(); !w.redis.nodes[x].down {
			w.flush(x)
		}
	}
	if r.oneIn(p.deletions) && !w.isEachDown() {
		if n := int(r.below(int64(p.names))); !w.isDown(n) {
			w.deleteSome(n)
		}
	}
	if p.denied > 0 && r.oneIn(20) {
		n := r.below(int64(p.names))
		w.redis.names[n].denied = true
		w.after(r.magnitude(ms, 5*sec), event{kind: evRepair, name: int8(n)})
	}
	if r.oneIn(p.overwrites) && !w.isEachDown() {
		if n := int(r.below(int64(p.names))); !w.isDown(n) {
			w.destroy(n, "overwritten with a string")
			w.redis.names[n].overwritten = true
			w.after(r.magnitude(ms, 5*sec), event{kind: evRepair, name: int8(n)})
		}
	}
	if r.oneIn(p.brokenCounters) {
		n := r.below(int64(p.names))
		w.redis.names[n].brokenCounter = true
		w.after(r.magnitude(ms, 2*h.longest), event{kind: evRepair, name: int8(n)})
	}
	if r.oneIn(p.crashes) && !h.isDown() && !h.suspended {
		w.crash(h)
	}
	if r.oneIn(p.stateLosses) && !h.isDown() && !h.suspended && len(w.hosts) < maxHosts {
		h.journal.whole, h.journal.full = false, false
		w.crash(h)
	}
	if r.oneIn(p.stops) && h.process == serving && !h.suspended {
		w.stop(h)
	}
	if r.oneIn(p.stalls) && !h.suspended && h.process != abandoned {
		w.suspend(h, r.magnitude(ms, h.lease/3))
	}
	if r.oneIn(p.suspends) && !h.suspended && h.process != abandoned {
		w.suspend(h, r.magnitude(maxLateness, 4*h.longest))
	}
	if r.oneIn(p.clockJumps) && !w.isEachDown() {
		d := r.magnitude(ms, 2*h.longest)
		if r.oneIn(2) {
			d = -d
		}
		w.jumpClock(d)
	}
	if p.redisRestarts|p.promotions > 0 {
		if x := w.anyNode(); !w.redis.nodes[x].down && r.oneIn(3) {
			w.redis.keepSnapshot(x)
		}
	}
	if p.permits > 0 && !w.isEachDown() {
		w.drawPermitsFaults()
	}
	if p.cluster {
		w.drawClusterFaults()
	}
}

// deleteSome deletes a lock, its queue, or its counter from outside.
func (w *world) deleteSome(n int) {
	if w.random.oneIn(3) {
		w.loseQueue(n) // alone
	} else {
		w.destroy(n, "deleted by an operator")
	}
	if w.random.oneIn(4) {
		w.loseCounter(n, redis.Counter{})
	}
}

// drawClusterFaults draws the faults that only a Cluster has.
func (w *world) drawClusterFaults() {
	p, r := &w.plan, &w.random
	if r.oneIn(p.migrations) {
		w.migrate()
	}
	if r.oneIn(p.openings) {
		w.openMigration()
	}
	if r.oneIn(p.promotions) {
		w.promote(w.anyNode())
	}
	if r.oneIn(p.nodeStalls) {
		if x := w.anyNode(); !w.redis.nodes[x].down && w.stallLeft(x) == 0 {
			w.stall(x, r.magnitude(ms, 5*sec))
		}
	}
}

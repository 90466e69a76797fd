package main

// What the lock table does with the queue between hosts. The exploration of a small world
// notices these, and needs no luck for it.

var (
	exploration            = test("internal/sim/explore", "TestExplore")
	explorationStrictOrder = test("internal/sim/explore", "TestExploreStrictOrder")
)

var explorationMutants = []mutant{
	{
		rule: "the validity of a transfer does not count from its message",
		file: "sidecar/locktable/place.go",
		old:  `c.transferred(now, q.place.validSince+validity(m.LeaseMS), m)`,
		new:  `c.transferred(now, now+validity(m.LeaseMS), m)`,
		by:   exploration,
	},
	{
		rule: "a transfer that is not accepted makes the claim uncertain",
		file: "sidecar/locktable/place.go",
		old:  "\t\tl.rivals.areWaiting = m.Waiting > 0\n\tdefault:\n\t\tt.doubt(l)\n",
		new:  "\t\tl.rivals.areWaiting = m.Waiting > 0\n\tdefault:\n",
		by:   exploration,
	},
	{
		rule: "a transfer of a lock that the table does not know makes the claim uncertain",
		file: "sidecar/locktable/place.go",
		old:  "if l = t.lockOfMessage(l, &m); l != nil {\n\t\t\tt.onTransferred(",
		new:  "if l != nil {\n\t\t\tt.onTransferred(",
		by:   exploration,
	},
	{
		rule: "a recall of a lock that the table does not know makes the claim uncertain",
		file: "sidecar/locktable/place.go",
		old:  "if l = t.lockOfMessage(l, &m); l != nil {\n\t\t\tt.onRecalled(",
		new:  "if l != nil {\n\t\t\tt.onRecalled(",
		by:   exploration,
	},
	{
		rule: "a recall ends the lingering of a lock",
		file: "sidecar/locktable/place.go",
		old:  "\t\tl.rivals.areWaiting = true\n\t\tt.cool(l)\n",
		new:  "",
		by:   exploration,
	},
	{
		rule: "a doubted claim is dropped with every number that was used",
		file: "sidecar/locktable/place.go",
		old:  "\tc.maxHoldID = t.lastNum\n",
		new:  "",
		by:   exploration,
	},
	{
		rule: "a host whose turn it is asks for a lock that was left free",
		file: "sidecar/locktable/place.go",
		old:  `l.queue.arbiter.onFreed(&t.policy, now, ms(m.PauseMS), l.queue.firstTries())`,
		new:  `_ = l`,
		by:   exploration,
	},
	{
		rule: "the journal has a lock for which a ticket may stand: a successor drops it",
		file: "sidecar/locktable/journal.go",
		old:  `l.claim.isBusy() || l.queue != nil && l.queue.place.phase != placeNone`,
		new:  `l.claim.isBusy()`,
		by:   exploration,
	},
	{
		rule: "a Drop takes the ticket out of the queue",
		file: "sidecar/locktable/lock.go",
		old:  "\t\tw.ticket = q.place.ticket\n",
		new:  "\t\tw.ticket = 0\n",
		by:   exploration,
	},
	{
		rule: "a ticket is given up although Redis has no field of this host",
		file: "sidecar/locktable/claim.go",
		old:  `case w.kind == wantNothing && (c.state != claimAbsent || w.ticket != 0):`,
		new:  `case w.kind == wantNothing && c.state != claimAbsent:`,
		by:   exploration,
	},
	{
		rule: "a Take without a result may have made a field",
		file: "sidecar/locktable/claim.go",
		old:  "\tcase c.state == claimAbsent:\n\t\tc.state = claimUncertain\n\tcase c.state == claimConfirmed:",
		new:  "\tcase c.state == claimConfirmed:",
		by:   exploration,
	},
	{
		rule: "a Drop without a result may have left the field",
		file: "sidecar/locktable/claim.go",
		old:  "\tcase op.kind == redisop.Drop:\n\t\tc.forget(claimUncertain)",
		new:  "\tcase op.kind == redisop.Drop:\n\t\tc.forget(claimAbsent)",
		by:   exploration,
	},
	{
		rule: "a waiter that no other host waits before is served",
		file: "sidecar/locktable/order.go",
		old:  `l.queue.order.served.includes(first.request)`,
		new:  `false`,
		by:   explorationStrictOrder,
	},
	{
		rule: "a Take for a waiter that has arrived serves those that arrived before it",
		file: "sidecar/locktable/order.go",
		old:  `o.toServe = served{upTo: op.Arrived}`,
		new:  `o.toServe = served{until: now}`,
		by:   explorationStrictOrder,
	},
	{
		rule: "what came until a Take was sent does not serve a waiter that came later",
		file: "sidecar/locktable/order.go",
		old:  `s.until != 0 && r.since <= s.until`,
		new:  `s.until != 0`,
		by:   explorationStrictOrder,
	},
	{
		rule: "the arrival that a Take carries is remembered until its result",
		file: "sidecar/locktable/order.go",
		old:  "\to.asked = op.Arrived\n",
		new:  "",
		by:   explorationStrictOrder,
	},
	{
		rule: "a transfer serves the waiters that arrived before its ticket",
		file: "sidecar/locktable/place.go",
		old:  `q.order.served = q.place.served()`,
		new:  `q.order.served = served{until: now}`,
		by:   explorationStrictOrder,
	},
	{
		rule: "a ticket that stands keeps its arrival",
		file: "sidecar/locktable/place.go",
		old:  "\t\t\tarrived = p.arrived\n",
		new:  "\t\t\tarrived = 0\n",
		by:   explorationStrictOrder,
	},
	{
		rule: "a new ticket stands as of when its Take was executed",
		file: "sidecar/locktable/place.go",
		old:  "\t\t\tarrived = r.Arrived\n",
		new:  "\t\t\tarrived = 0\n",
		by:   explorationStrictOrder,
	},
	{
		rule: "if a waiter is gone that has not arrived, those after it still arrive",
		file: "sidecar/locktable/request.go",
		old:  "\t\tq.order.newcomer = r.at.inQueue.next\n",
		new:  "\t\tq.order.newcomer = nil\n",
		by:   explorationStrictOrder,
	},
	{
		rule: "waiters with a ticket arrive at Redis",
		file: "sidecar/locktable/lock.go",
		old:  `w.arrives, w.arriveAt = w.ticket != 0 && q.order.newcomer != nil, q.order.retryAt`,
		new:  `w.arriveAt = q.order.retryAt`,
		by:   explorationStrictOrder,
	},
}

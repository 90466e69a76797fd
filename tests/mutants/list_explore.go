package main

// What the lock table does with the queue between hosts. The exploration of a small world
// notices these, and needs no luck for it.

var (
	exploration            = test("internal/sim/explore", "TestExplore")
	explorationStrictOrder = test("internal/sim/explore", "TestExploreStrictOrder")
)

var explorationMutants = []mutant{
	{
		rule: `the validity of a transfer does not count from its message`,
		file: "sidecar/locktable/message.go",
		old:  `c.Transfer(now, validSince+claim.Validity(m.LeaseMS), busySince, m)`,
		new:  `c.Transfer(now, now+claim.Validity(m.LeaseMS), busySince, m)`,
		by:   exploration,
	},
	{
		rule: `a transfer that is not accepted makes the claim uncertain`,
		file: "sidecar/locktable/message.go",
		old:  "\tdefault:\n\t\tt.doubt(l)\n\t\tif isLive {",
		new:  "\tdefault:\n\t\tif isLive {",
		by:   exploration,
	},
	{
		rule: `a transfer of a lock that the table does not know makes the claim uncertain`,
		file: "sidecar/locktable/message.go",
		old:  "if l = t.lockOfMessage(l, &m); l != nil {\n\t\t\tt.onTransferred(",
		new:  "if l != nil {\n\t\t\tt.onTransferred(",
		by:   exploration,
	},
	{
		rule: `a recall of a lock that the table does not know makes the claim uncertain`,
		file: "sidecar/locktable/message.go",
		old:  "if l = t.lockOfMessage(l, &m); l != nil {\n\t\t\tt.onRecalled(",
		new:  "if l != nil {\n\t\t\tt.onRecalled(",
		by:   exploration,
	},
	{
		rule: `a recall ends the lingering of a lock`,
		file: "sidecar/locktable/message.go",
		old:  "\t\tl.memory.NoteHosts(true)\n\t\tt.cool(l)\n",
		new:  "",
		by:   exploration,
	},
	{
		rule: `a doubted claim is dropped with every number that was used`,
		file: "sidecar/locktable/claim/claim.go",
		old:  "\tc.maxHoldID = lastHoldID\n",
		new:  "",
		by:   exploration,
	},
	{
		rule: `a host whose turn it is asks for a lock that was left free`,
		file: "sidecar/locktable/message.go",
		old:  `l.queue.contest.OnFreed(&t.contests, now, moment.MS(m.PauseMS), l.queue.firstTries())`,
		new:  `_ = l`,
		by:   exploration,
	},
	{
		rule: `the journal has a lock for which a ticket may stand: a successor drops it`,
		file: "sidecar/locktable/locks.go",
		old:  `l.claim.IsBusy() || l.queue != nil && l.queue.contest.HasPlace()`,
		new:  `l.claim.IsBusy()`,
		by:   exploration,
	},
	{
		rule: `a Drop takes the ticket out of the queue`,
		file: "sidecar/locktable/reconcile.go",
		old:  "\t\tw.Ticket = q.contest.Ticket()\n",
		new:  "\t\tw.Ticket = 0\n",
		by:   exploration,
	},
	{
		rule: "a ticket is given up although Redis has no field of this host",
		file: "sidecar/locktable/claim/want.go",
		old:  `case w.Kind == WantNothing && (c.state != Absent || w.Ticket != 0):`,
		new:  `case w.Kind == WantNothing && c.state != Absent:`,
		by:   exploration,
	},
	{
		rule: "a Take without a result may have made a field",
		file: "sidecar/locktable/claim/claim.go",
		old:  "\tcase c.state == Absent:\n\t\tc.state = Uncertain\n\tcase c.state == Confirmed:",
		new:  "\tcase c.state == Confirmed:",
		by:   exploration,
	},
	{
		rule: "a Drop without a result may have left the field",
		file: "sidecar/locktable/claim/claim.go",
		old:  "\tcase op.Kind == redisop.Drop:\n\t\tc.Forget(Uncertain)",
		new:  "\tcase op.Kind == redisop.Drop:\n\t\tc.Forget(Absent)",
		by:   exploration,
	},
	{
		rule: `a waiter that no other host waits before is served`,
		file: "sidecar/locktable/contest/order.go",
		old:  `c.order.served.includes(&v.First)`,
		new:  `false`,
		by:   explorationStrictOrder,
	},
	{
		rule: `a Take for a waiter that has arrived serves those that arrived before it`,
		file: "sidecar/locktable/contest/order.go",
		old:  `o.toServe = served{upTo: op.Arrived}`,
		new:  `o.toServe = served{until: now}`,
		by:   explorationStrictOrder,
	},
	{
		rule: `what came until a Take was sent does not serve a waiter that came later`,
		file: "sidecar/locktable/contest/model.go",
		old:  `s.until != 0 && w.Since <= s.until`,
		new:  `s.until != 0`,
		by:   explorationStrictOrder,
	},
	{
		rule: `the arrival that a Take carries is remembered until its result`,
		file: "sidecar/locktable/contest/order.go",
		old:  "\to.asked = op.Arrived\n",
		new:  "",
		by:   explorationStrictOrder,
	},
	{
		rule: `a transfer serves the waiters that arrived before its ticket`,
		file: "sidecar/locktable/contest/place.go",
		old:  `c.order.served = c.place.served()`,
		new:  `c.order.served = served{until: never}`,
		by:   explorationStrictOrder,
	},
	{
		rule: `a ticket that stands keeps its arrival`,
		file: "sidecar/locktable/contest/place.go",
		old:  "\t\t\tarrived = p.arrived\n",
		new:  "\t\t\tarrived = 0\n",
		by:   explorationStrictOrder,
	},
	{
		rule: `a new ticket stands as of when its Take was executed`,
		file: "sidecar/locktable/contest/place.go",
		old:  "\t\t\tarrived = r.Arrived\n",
		new:  "\t\t\tarrived = 0\n",
		by:   explorationStrictOrder,
	},
	{
		rule: `if a waiter is gone that has not arrived, those after it still arrive`,
		file: "sidecar/locktable/waiters.go",
		old:  "\t\tq.newcomer = r.at.inQueue.next\n",
		new:  "\t\tq.newcomer = nil\n",
		by:   explorationStrictOrder,
	},
	{
		rule: `waiters with a ticket arrive at Redis`,
		file: "sidecar/locktable/contest/decide.go",
		old:  `t.Arrives, t.ArriveAt = t.Ticket != 0 && v.HasNewcomer, c.order.retryAt`,
		new:  `t.ArriveAt = c.order.retryAt`,
		by:   explorationStrictOrder,
	},
}

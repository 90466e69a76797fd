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
		in:   "sidecar/locktable (*Table).onTransferred",
		find: "c.Transfer(now, validSince+claim.Validity(m.LeaseMS), busySince, m)",
		put:  "c.Transfer(now, now+claim.Validity(m.LeaseMS), busySince, m)",
		by:   exploration,
	},
	{
		rule: `a transfer that is not accepted makes the claim uncertain`,
		in:   "sidecar/locktable (*Table).onTransferred",
		find: `t.doubt(l)
		if isLive {
			q.contest.OnTransferUnproved()
		}`,
		put: `if isLive {
			q.contest.OnTransferUnproved()
		}`,
		by: exploration,
	},
	{
		rule: `a transfer of a lock that the table does not know makes the claim uncertain`,
		in:   "sidecar/locktable (*Table).Message",
		find: `if l = t.lockOfMessage(l, &m); l != nil {
			t.onTransferred(now, l, &m)
		}`,
		put: `if l != nil {
			t.onTransferred(now, l, &m)
		}`,
		by: exploration,
	},
	{
		rule: `a recall of a lock that the table does not know makes the claim uncertain`,
		in:   "sidecar/locktable (*Table).Message",
		find: `if l = t.lockOfMessage(l, &m); l != nil {
			t.onRecalled(l)
		}`,
		put: `if l != nil {
			t.onRecalled(l)
		}`,
		by: exploration,
	},
	{
		rule: `a recall ends the lingering of a lock`,
		in:   "sidecar/locktable (*Table).onRecalled",
		find: `l.memory.NoteHosts(true)
		t.cool(l)`,
		put: "",
		by:  exploration,
	},
	{
		rule: `a doubted claim is dropped with every number that was used`,
		in:   "sidecar/locktable/claim (*Claim).Doubt",
		find: "c.maxHoldID = lastHoldID",
		put:  "",
		by:   exploration,
	},
	{
		rule: `a host whose turn it is asks for a lock that was left free`,
		in:   "sidecar/locktable (*Table).Message",
		find: "l.queue.contest.OnFreed(&t.contests, now, moment.MS(m.PauseMS), l.queue.firstTries())",
		put:  "_ = l",
		by:   exploration,
	},
	{
		rule: `the journal has a lock for which a ticket may stand: a successor drops it`,
		in:   "sidecar/locktable (*lock).hasRemoteState",
		find: "l.holders.isHeld() || l.claim.State() != claim.Absent || l.claim.IsBusy() || l.queue != nil && l.queue.contest.HasPlace()",
		put:  "l.holders.isHeld() || l.claim.State() != claim.Absent || l.claim.IsBusy()",
		by:   exploration,
	},
	{
		rule: `a Drop takes the ticket out of the queue`,
		in:   "sidecar/locktable (*Table).wantDrop",
		find: "w.Ticket = q.contest.Ticket()",
		put:  "w.Ticket = 0",
		by:   exploration,
	},
	{
		rule: "a ticket is given up although Redis has no field of this host",
		in:   "sidecar/locktable/claim (*Claim).choose",
		find: "case w.Kind == WantNothing && (c.state != Absent || w.Ticket != 0):",
		put:  "case w.Kind == WantNothing && c.state != Absent:",
		by:   exploration,
	},
	{
		rule: "a Take without a result may have made a field",
		in:   "sidecar/locktable/claim (*Claim).OnUnknown",
		find: `case c.state == Absent:
		c.state = Uncertain
	case c.state == Confirmed:
		c.state = Stale`,
		put: `case c.state == Confirmed:
		c.state = Stale`,
		by: exploration,
	},
	{
		rule: "a Drop without a result may have left the field",
		in:   "sidecar/locktable/claim (*Claim).OnUnknown",
		find: `case op.Kind == redisop.Drop:
		c.Forget(Uncertain)`,
		put: `case op.Kind == redisop.Drop:
		c.Forget(Absent)`,
		by: exploration,
	},
	{
		rule: `a waiter that no other host waits before is served`,
		in:   "sidecar/locktable/contest (*Contest).isServed",
		find: "c.order.served.includes(&v.First)",
		put:  "false",
		by:   explorationStrictOrder,
	},
	{
		rule: `a Take for a waiter that has arrived serves those that arrived before it`,
		in:   "sidecar/locktable/contest (*order).onTakeSent",
		find: "o.toServe = served{upTo: op.Arrived}",
		put:  "o.toServe = served{until: now}",
		by:   explorationStrictOrder,
	},
	{
		rule: `what came until a Take was sent does not serve a waiter that came later`,
		in:   "sidecar/locktable/contest (*served).includes",
		find: "s.until != 0 && w.Since <= s.until",
		put:  "s.until != 0",
		by:   explorationStrictOrder,
	},
	{
		rule: `the arrival that a Take carries is remembered until its result`,
		in:   "sidecar/locktable/contest (*order).onTakeSent",
		find: "o.asked = op.Arrived",
		put:  "",
		by:   explorationStrictOrder,
	},
	{
		rule: `a transfer serves the waiters that arrived before its ticket`,
		in:   "sidecar/locktable/contest (*Contest).OnTransferred",
		find: "c.order.served = c.place.served()",
		put:  "c.order.served = served{until: never}",
		by:   explorationStrictOrder,
	},
	{
		rule: `a ticket that stands keeps its arrival`,
		in:   "sidecar/locktable/contest (*Place).onTakeResult",
		find: "arrived = p.arrived",
		put:  "arrived = 0",
		by:   explorationStrictOrder,
	},
	{
		rule: `a new ticket stands as of when its Take was executed`,
		in:   "sidecar/locktable/contest (*Place).onTakeResult",
		find: "arrived = r.Arrived",
		put:  "arrived = 0",
		by:   explorationStrictOrder,
	},
	{
		rule: `if a waiter is gone that has not arrived, those after it still arrive`,
		in:   "sidecar/locktable (*Table).endRequest",
		find: "q.newcomer = r.at.inQueue.next",
		put:  "q.newcomer = nil",
		by:   explorationStrictOrder,
	},
	{
		rule: `waiters with a ticket arrive at Redis`,
		in:   "sidecar/locktable/contest (*Contest).ask",
		find: "if w.Ticket != 0 && v.HasNewcomer {",
		put:  "if false {",
		by:   explorationStrictOrder,
	},
}

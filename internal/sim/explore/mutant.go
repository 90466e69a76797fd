package explore

import (
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Mutant is a faulty sidecar, which breaks one rule: it changes the inputs or the effects of a
// correct table. An exploration that never finds a violation proves nothing; it must detect
// each mutant, within a budget and from a root that need few states.
//
// Rules that can only be broken inside of the table are broken there, by tests/mutants.
type Mutant struct {
	Name     string
	Rule     string // that it breaks
	Detected string // what the violation says: a regular expression
	Root     string
	Budget   Budget
	Fair     fairness
	Cluster  bool
	Permits  bool

	onResult  func(w *world, h *host, r *redisop.Result)
	onMessage func(h *host, m *redisop.Message) (forward bool)
	onOp      func(op *redisop.Op)
	onRestore func(s *locktable.Snapshot)
	late      int64 // by how much timers fire too late

	// Of the store in a Cluster.
	hidesRoutes bool // a table whose client has the lock gets no route, and its operations go where the slot is
	routesLate  bool // a table that waits for a result gets a route after it
	answersAt   bool // when a route comes, what is in flight has its result: it was not sent
	acceptsCopy bool // a message counts as one of the shard that it came from
	keepsFloor  bool // the floor of tokens is not lifted where a slot comes to
}

func (m *Mutant) hides(h *host) bool { return m != nil && m.hidesRoutes && h.routePends }

func (m *Mutant) accepts() bool { return m != nil && m.acceptsCopy }

// route changes the route that a table gets. was is the shard before. It reports whether the table does not
// get it now.
func (m *Mutant) route(w *world, h *host, was redisop.Shard) (hides bool) {
	if m == nil {
		return false
	}
	c := &h.conns[w.sideOf(was)]
	if m.routesLate && len(c.unanswered) > 0 {
		h.routePends = true
		return true
	}
	if m.answersAt && len(c.unanswered) > 0 {
		w.tellRoute(h)
		for i := range c.unanswered {
			if h.process == nil || c.unanswered[i].fate.Results > 0 {
				break
			}
			c.unanswered = slices.Clone(c.unanswered)
			r := &c.unanswered[i]
			w.result(h, &c.told, r, redisop.Result{Kind: r.op.Kind, Name: lockName, Shard: r.op.Shard, Outcome: redisop.NotSent, Sent: r.sent, Msg: moved})
		}
		return true
	}
	h.routePends = m.hidesRoutes && h.isHeld()
	return h.routePends
}

// routesAfter tells a table of a route that it was not told of.
func (m *Mutant) routesAfter(w *world, h *host) {
	if m != nil && m.routesLate && h.routePends && h.process != nil {
		h.routePends = false
		w.tellRoute(h)
	}
}

func (m *Mutant) result(w *world, h *host, r *redisop.Result) {
	if m != nil && m.onResult != nil {
		m.onResult(w, h, r)
	}
}

func (m *Mutant) message(h *host, msg *redisop.Message) (forward bool) {
	return m == nil || m.onMessage == nil || m.onMessage(h, msg)
}

func (m *Mutant) operation(op *redisop.Op) {
	if m != nil && m.onOp != nil {
		m.onOp(op)
	}
}

func (m *Mutant) restore(s *locktable.Snapshot) {
	if m != nil && m.onRestore != nil {
		m.onRestore(s)
	}
}

func (m *Mutant) lateBy() int64 {
	if m == nil {
		return 0
	}
	return m.late
}

// isWanted reports whether a client of the host waits.
func (h *host) isWanted() bool {
	for c := range h.clients {
		if p := h.clients[c].phase; p == waiting || p == trying {
			return true
		}
	}
	return false
}

// isHeld reports whether a client of the host has the lock.
func (h *host) isHeld() bool {
	for c := range h.clients {
		if h.clients[c].phase == believes {
			return true
		}
	}
	return false
}

// ignores returns an onMessage that leaves out messages of one kind, unless the host expects
// them.
func ignores(kind redisop.MessageKind, isExpected func(h *host) bool) func(*host, *redisop.Message) bool {
	return func(h *host, m *redisop.Message) bool { return m.Kind != kind || isExpected(h) }
}

func never(*host) bool { return false }

// Mutants are all mutants.
var Mutants = []Mutant{
	{
		Name:     "transfer-counts-from-reply",
		Rule:     "the validity of a transfer counts from when the Take was sent after which the ticket stood",
		Detected: "the key (is not of its host|expires in)",
		Root:     "transfer", Budget: Budget{Clients: 2, Ticks: 1},
		onResult: func(w *world, _ *host, r *redisop.Result) {
			if r.Ticket != 0 {
				r.Sent = w.now
			}
		},
	},
	{
		Name:     "take-counts-from-reply",
		Rule:     "a deadline counts from when the operation was sent",
		Detected: "and the key (expires in|is not of its host)",
		Root:     "nothing", Budget: Budget{Clients: 1, Ticks: 1},
		onResult: func(w *world, _ *host, r *redisop.Result) {
			if r.Outcome == redisop.Done {
				r.Sent = w.now
			}
		},
	},
	{
		Name:     "unknown-as-not-sent",
		Rule:     "an operation without a result may have been executed",
		Detected: "which no client has or waits for",
		Root:     "nothing", Budget: Budget{Clients: 2, Faults: 1},
		onResult: func(_ *world, _ *host, r *redisop.Result) {
			if r.Outcome == redisop.Unknown {
				r.Outcome = redisop.NotSent
			}
		},
	},
	{
		Name:     "unaccepted-transfer-ignored",
		Rule:     "a transfer that is not accepted makes the claim uncertain",
		Detected: "which no client has or waits for",
		Root:     "nothing", Budget: Budget{Clients: 2, Faults: 1},
		onMessage: ignores(redisop.Transferred, (*host).isWanted),
	},
	{
		Name:     "transfers-ignored",
		Rule:     "a host that waits gets the lock by a transfer",
		Detected: "does not come to rest",
		Root:     "queued", Budget: Budget{Clients: 1},
		onMessage: ignores(redisop.Transferred, never),
	},
	{
		Name:     "recalls-ignored",
		Rule:     "a recall ends the lingering of a lock",
		Detected: "does not come to rest",
		Root:     "lingering", Budget: Budget{Clients: 1},
		onMessage: ignores(redisop.Recalled, never),
	},
	{
		Name:     "recall-of-ghost-ignored",
		Rule:     "a recall of a lock that the host does not know to have makes the claim uncertain",
		Detected: "does not come to rest",
		Root:     "nothing", Budget: Budget{Clients: 2, Faults: 1},
		onMessage: ignores(redisop.Recalled, (*host).isHeld),
	},
	{
		Name:     "freed-ignored",
		Rule:     "the first of the queue asks again when the lock was left free",
		Detected: "does not come to rest",
		Root:     "queued", Budget: Budget{Clients: 2, Ticks: 1},
		onMessage: ignores(redisop.Freed, never),
	},
	{
		Name:     "timers-late",
		Rule:     "what is due happens",
		Detected: "does not come to rest|which no client has or waits for",
		Root:     "lingering", Budget: Budget{Clients: 1, Ticks: 1},
		late: 4 * tick,
	},
	{
		Name:     "drop-keeps-ticket",
		Rule:     "a ticket that is given up is removed from the queue",
		Detected: "tickets are left in the queue",
		Root:     "queued", Budget: Budget{Clients: 2, Ticks: 1},
		onOp: func(op *redisop.Op) {
			if op.Kind == redisop.Drop {
				op.Ticket = 0
			}
		},
	},
	{
		Name:     "take-without-ticket",
		Rule:     "a host that asks again keeps its ticket",
		Detected: "tickets are left in the queue|which no client has or waits for|does not come to rest|token",
		Root:     "queued", Budget: Budget{Clients: 1, Ticks: 2},
		onOp: func(op *redisop.Op) {
			if op.Kind == redisop.Take {
				op.Ticket = 0
			}
		},
	},
	{
		Name:     "renewal-shortens",
		Rule:     "a renewal leaves the key no shorter than the holder believes",
		Detected: "the key expires in",
		Root:     "queued", Budget: Budget{Clients: 1, Ticks: 1},
		onOp: func(op *redisop.Op) {
			if op.Kind == redisop.Renew {
				op.LeaseMS = 1
			}
		},
	},
	{
		Name:     "lock-without-hold-not-in-journal",
		Rule:     "the journal has every lock for which Redis may have a field or a ticket",
		Detected: "which no client has or waits for|still has the lock",
		Root:     "queued", Budget: Budget{Clients: 1, Faults: 1},
		onRestore: func(s *locktable.Snapshot) {
			if len(s.Holds) == 0 {
				s.Locks = nil
			}
		},
	},
	{
		Name:     "hold-numbers-not-in-journal",
		Rule:     "a successor does not use a hold number of its predecessor",
		Detected: "which no client has or waits for|two clients|the key is not of its host|never replaces",
		Root:     "nothing", Budget: Budget{Clients: 3, Faults: 1},
		onRestore: func(s *locktable.Snapshot) {
			s.LastHoldID = 0
			for i := range s.Locks {
				s.Locks[i].MaxHoldID = 0
			}
		},
	},
	{
		Name:     "restored-holds-forgotten",
		Rule:     "a successor keeps what a living client holds",
		Detected: "the journal does not have it|the key is not of its host",
		Root:     "queued", Budget: Budget{Clients: 1, Faults: 1},
		onRestore: func(s *locktable.Snapshot) { s.Holds = nil },
	},
	{
		Name:     "first-of-the-queue-forgotten",
		Rule:     "a host that has the lock keeps it only for acquires that arrived before the first ticket",
		Detected: "out of order",
		Root:     "nothing", Budget: Budget{Clients: 3}, Fair: allFair,
		onResult: func(_ *world, _ *host, r *redisop.Result) { r.FirstArrived = 0 },
	},
	{
		Name:     "arrival-not-kept",
		Rule:     "the ticket of a host stands where its first acquire arrived",
		Detected: "out of order|does not come to rest",
		Root:     "crowd", Budget: Budget{Clients: 2}, Fair: allFair,
		onOp: func(op *redisop.Op) { op.Arrived = 0 },
	},
	{
		Name:     "takes-do-not-arrive",
		Rule:     "a Take that queues is the arrival of the acquires that came before it was sent",
		Detected: "out of order",
		Root:     "nothing", Budget: Budget{Clients: 3}, Fair: allFair,
		onResult: func(_ *world, _ *host, r *redisop.Result) {
			if r.Kind == redisop.Take {
				r.Arrived = 0
			}
		},
	},
	{
		Name:     "route-keeps-claim",
		Rule:     "what a host has of a lock is uncertain when another shard has the slot",
		Detected: "the key is not of its host|two clients",
		Root:     "nothing", Budget: Budget{Clients: 1, Failovers: 1}, Cluster: true,
		hidesRoutes: true,
	},
	{
		Name:     "former-result-grants",
		Rule:     "a result of the former shard grants nothing",
		Detected: "the key is not of its host|two clients",
		Root:     "nothing", Budget: Budget{Clients: 1, Failovers: 1}, Cluster: true,
		routesLate: true,
	},
	{
		Name:     "copy-of-transfer-grants",
		Rule:     "a transfer counts only from the shard that executed it",
		Detected: "S11: ",
		Root:     "transfer", Budget: Budget{Failovers: 1}, Cluster: true,
		acceptsCopy: true,
	},
	{
		Name:     "operation-at-both-shards",
		Rule:     "an operation in flight at the former shard is waited for",
		Detected: "while one is in flight at shard 1",
		Root:     "nothing", Budget: Budget{Clients: 1, Moves: 1}, Cluster: true,
		answersAt: true,
	},
	{
		Name:     "floor-not-carried",
		Rule:     "the floor of tokens is lifted where a slot comes to",
		Detected: "is granted token",
		Root:     "transfer", Budget: Budget{Clients: 1, Failovers: 1}, Cluster: true,
		keepsFloor: true,
	},
	{
		Name:     "capacity-counts-double",
		Rule:     "no more permits are taken than an acquire names",
		Detected: "clients believe in 3 permits",
		Root:     "taken", Budget: Budget{Clients: 1}, Permits: true,
		onOp: func(op *redisop.Op) { op.Capacity *= 2 },
	},
	{
		Name:     "admissions-are-lost",
		Rule:     "a host is granted the permits that its place was for",
		Detected: "does not come to rest",
		Root:     "taken", Budget: Budget{Clients: 2}, Permits: true,
		onMessage: func(_ *host, m *redisop.Message) bool { return m.Kind != redisop.Admitted },
	},
	{
		Name:     "idle-permits-are-kept",
		Rule:     "a host gives back what another one waits for",
		Detected: "does not come to rest",
		Root:     "nothing", Budget: Budget{Clients: 4}, Permits: true,
		onMessage: func(_ *host, m *redisop.Message) bool { return m.Kind != redisop.Recalled },
	},
}

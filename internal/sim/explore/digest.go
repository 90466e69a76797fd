package explore

import (
	"math/bits"
	"slices"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// digester makes a number of a world, which is the same for worlds that behave in the same
// way:
//
//   - Times are relative to now.
//   - Hold numbers of a host, tokens and arrivals only matter by their order, so each is replaced
//     by its rank among all that the world has.
//   - Hosts, and the clients of one host, are all alike. A host is described by what there is
//     of it anywhere, also in Redis, and the numbers of the two descriptions are combined in
//     an order of their own. Clients are numbered as they occur.
//
// Two worlds that are not alike may have the same number by chance, once in 2^64 times.
type digester struct {
	now   int64
	clock uint64 // of Redis

	// Redis's clock may be set. Then it may be at any distance before or after an arrival, so that more
	// than their order matters.
	maySet bool
	hosts  [hostCount]description

	tokens, arrivals, numbers []uint64 // in their order
}

// description is a host in words.
type description struct {
	digester *digester
	words    []uint64
	numbers  []int // indices of words that are hold numbers
	tokens   []int // indices of words that are tokens
	arrivals []int // indices of words that are arrivals

	clients  [clientsOf]int // by the order of their occurrence
	met      int
	sessions [clientsOf]locktable.SessionID
}

func (d *description) Value(x uint64) { d.words = append(d.words, x) }

// Time rounds up to µs: the nanoseconds that make a request later than what happened before
// are fewer.
func (d *description) Time(at int64) {
	const µs = 1000
	left := at - d.digester.now
	if left > 0 {
		left += µs - 1
	}
	d.Value(uint64(left / µs))
}

func (d *description) Number(id uint64) {
	d.numbers = append(d.numbers, len(d.words))
	d.words = append(d.words, id)
}

func (d *description) Token(token uint64) {
	d.tokens = append(d.tokens, len(d.words))
	d.words = append(d.words, token)
}

func (d *description) Arrival(at uint64) {
	if d.digester.maySet {
		if at != 0 { // it is known
			at -= d.digester.clock
		}
		d.Value(at)
		return
	}
	d.arrivals = append(d.arrivals, len(d.words))
	d.words = append(d.words, at)
}

func (d *description) Session(id locktable.SessionID) {
	c := clientOf(id)
	if d.sessions[c] != id {
		d.Value(1 << 32) // of a client that is dead
		return
	}
	d.Value(uint64(d.order(c)))
}

// order is the number of a client, by the order of their occurrence.
func (d *description) order(c int) int {
	for i, met := range d.clients[:d.met] {
		if met == c {
			return i
		}
	}
	d.clients[d.met] = c
	d.met++
	return d.met - 1
}

func (d *description) flags(flags ...bool) {
	x := uint64(1)
	for _, f := range flags {
		x <<= 1
		if f {
			x |= 1
		}
	}
	d.Value(x)
}

// digest returns the number of a world.
func (g *digester) digest(w *world) uint64 {
	g.now, g.clock, g.maySet = w.now, uint64(w.clock()), w.plan.Jumps > 0
	g.tokens = append(g.tokens[:0], w.granted, uint64(w.counter.Value))
	if w.plan.Cluster {
		g.tokens = append(g.tokens, w.drawn, uint64(w.before.counter.Value), uint64(w.first.counter.Value))
	}
	g.arrivals = append(g.arrivals[:0], 0) // it is not known
	for i := range g.hosts {
		d := &g.hosts[i]
		d.digester = g
		d.words, d.numbers, d.tokens, d.arrivals, d.met = d.words[:0], d.numbers[:0], d.tokens[:0], d.arrivals[:0], 0
		w.describe(d, w.hosts[i])
		for _, at := range d.tokens {
			g.tokens = append(g.tokens, d.words[at])
		}
		for _, at := range d.arrivals {
			g.arrivals = append(g.arrivals, d.words[at])
		}
	}
	slices.Sort(g.tokens)
	slices.Sort(g.arrivals)
	var sums [hostCount]uint64
	for i := range g.hosts {
		d := &g.hosts[i]
		for _, at := range d.tokens {
			d.words[at] = rankIn(g.tokens, d.words[at])
		}
		for _, at := range d.arrivals {
			d.words[at] = rankIn(g.arrivals, d.words[at])
		}
		g.numbers = append(g.numbers[:0], 0) // it stands for none
		for _, at := range d.numbers {
			g.numbers = append(g.numbers, d.words[at])
		}
		slices.Sort(g.numbers)
		for _, at := range d.numbers {
			d.words[at] = rankIn(g.numbers, d.words[at])
		}
		sums[i] = hash(d.words)
	}
	if sums[0] > sums[1] {
		sums[0], sums[1] = sums[1], sums[0]
	}
	limits := uint64(w.clients)<<16 | uint64(w.faults)<<8 | uint64(w.ticks) | uint64(w.jumps)<<40
	if w.wasLate {
		limits |= 1 << 32
	}
	if w.wasSetBack {
		limits |= 1 << 34
	}
	if w.plan.Fair == allFair && w.hasLapsed {
		limits |= 1 << 33
	}
	all := [...]uint64{sums[0], sums[1], limits, rankIn(g.tokens, w.granted), rankIn(g.tokens, uint64(w.counter.Value)), uint64(w.shift)}
	if !w.plan.Cluster {
		return hash(all[:])
	}
	return hash(append(all[:], uint64(w.owner)<<2|bit(w.isDead)<<1|bit(w.hasLost)|bit(w.plan.Fair == allFair && w.isUnfair)<<4, rankIn(g.tokens, w.drawn)))
}

// rankIn returns how many different numbers of a sorted slice are smaller.
func rankIn(sorted []uint64, x uint64) (rank uint64) {
	for i, y := range sorted {
		if y == x {
			break
		}
		if i == 0 || y != sorted[i-1] {
			rank++
		}
	}
	return rank
}

func hash(words []uint64) uint64 {
	h := uint64(len(words))
	for _, x := range words {
		hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, x^0xd6e8feb86659fd93)
		h = (hi ^ lo) + h*0xff51afd7ed558ccd
	}
	h ^= h >> 32
	return h * 0x9fb21c651e98df25
}

// describe describes a host, with what Redis has of it.
func (w *world) describe(d *description, h *host) {
	for c := range h.clients {
		d.sessions[c] = h.clients[c].session
	}
	own := redis.Owner(h.index)
	c := &h.conns[0]
	d.flags(h.process != nil, h.stalled, c.isOpen, c.isServed, c.subscribed, h.olds[0] != nil,
		w.isSubscribed(wire(h.index, 0, false)), w.isSubscribed(wire(h.index, 0, true)), w.key.Owner == own)
	d.Value(uint64(h.doom)<<8 | uint64(len(h.ghosts)))
	for _, id := range h.ghosts {
		d.Number(id)
	}
	d.Number(h.inherited)
	w.describeData(d, &w.data, own)
	if w.plan.Permits {
		w.describeSemaphore(d, own)
	}
	if h.process != nil {
		d.flags(h.process.listens)
		locktable.Describe(h.process.table, d, w.now, lockName, w.arrivalsMatter())
	}
	w.describeJournal(d, h)
	w.describeConnection(d, &h.conns[0])
	if h.olds[0] != nil {
		w.describeConnection(d, h.olds[0])
	}
	if w.plan.Cluster {
		w.describeInCluster(d, h)
	}
	w.describeClients(d, h)
}

// describeData describes what of the data is a host's.
func (w *world) describeData(d *description, of *data, own redis.Owner) {
	if of.key.Owner == own {
		d.Number(of.key.Num)
		d.Value(uint64(of.key.Count))
		d.Time(of.key.ExpireAt)
	}
	for i, t := range of.queue.Tickets {
		if t.Owner == own {
			d.Value(uint64(i) | 1<<40)
			d.Number(t.Num)
			d.Value(w.ticksOf(t.Time))
			w.describeArrivals(d, uint64(t.Time))
		}
	}
	if sign, ok := of.queue.Signs[own]; ok && len(of.queue.Tickets) > 0 {
		d.Value(w.ticksOf(sign*1_000_000) | 1<<41)
	}
}

// describeInCluster describes what a host has in a Cluster only.
func (w *world) describeInCluster(d *description, h *host) {
	c := &h.conns[1]
	d.Value(uint64(h.route))
	d.flags(c.isOpen, c.isServed, c.subscribed, h.olds[1] != nil, h.process != nil && h.process.listensAt == 1, h.routePends,
		w.isSubscribed(wire(h.index, 1, false)), w.isSubscribed(wire(h.index, 1, true)))
	w.describeConnection(d, c)
	if h.olds[1] != nil {
		w.describeConnection(d, h.olds[1])
	}
	for s := range w.sides() {
		c := &h.conns[s]
		answered := 0
		for i := range c.unanswered {
			answered += int(bit(c.unanswered[i].fate.Results > 0))
		}
		d.Value(uint64(answered)<<16 | uint64(len(h.bus[s]))<<2 | w.floorBit(c)<<1 | w.floorBit(h.olds[s]))
		for i := range h.bus[s] {
			w.describeFrame(d, &h.bus[s][i])
		}
	}
	if w.owner == firstShard && w.plan.Failovers > 0 {
		for _, of := range []*data{&w.before, &w.first} {
			d.flags(of.key.Owner == redis.Owner(h.index))
			d.Token(uint64(of.counter.Value))
			w.describeData(d, of, redis.Owner(h.index))
		}
	}
}

// floorBit is 1 if the counter is below the floor of a connection. It does not fall below later.
func (w *world) floorBit(c *connection) uint64 {
	return bit(c != nil && w.counter.Value < c.floor)
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// arrivalsMatter reports whether it matters when requests came to Redis: some may want strict order, or permits.
func (w *world) arrivalsMatter() bool { return w.plan.Fair != noneFair || w.plan.Permits }

func (w *world) describeArrivals(d *description, arrivals ...uint64) {
	if !w.arrivalsMatter() {
		return
	}
	for _, at := range arrivals {
		d.Arrival(at)
	}
}

// ticksOf describes the age of a ticket; in µs if Redis's clock may be set.
func (w *world) ticksOf(at int64) uint64 {
	if w.plan.Jumps > 0 {
		return uint64(w.clock() - at)
	}
	return uint64(min((w.now/tick*clockPerTick-at+clockPerTick-1)/clockPerTick, 15_000_000/clockPerTick+1))
}

func (w *world) describeJournal(d *description, h *host) {
	j := h.journal
	holds := j.inOrder()
	d.flags(j.lock.Name != "", len(holds) > 1, len(holds) > 0)
	if j.lock.Name != "" {
		d.Number(j.lock.MaxHoldID)
	}
	for i := range holds {
		r := &holds[i]
		d.Number(r.ID)
		d.Session(r.Session)
		d.Time(max(r.Granted, w.now-4*tick))
		d.Time(max(r.Deadline, w.now))
		s := j.session(r.Session)
		d.flags(r.InDoubt, s != nil, s != nil && s.LeaseSeq == r.LeaseSeq)
		d.Value(uint64(r.Phase)<<32 | uint64(r.Entries))
		d.Value(uint64(r.LeaseMS)<<32 | uint64(r.Permits))
		if s != nil {
			d.Time(max(s.LeaseSent, w.now))
		}
	}
	if h.process == nil {
		d.Number(j.lastHold)
	}
}

func (w *world) describeConnection(d *description, c *connection) {
	d.Value(uint64(len(c.requests))<<16 | uint64(len(c.frames))<<8 | uint64(len(c.unanswered)))
	for i := range c.requests {
		r := &c.requests[i]
		d.flags(i > 0 && r.batch == c.requests[i-1].batch)
		d.Value(uint64(r.kind))
		if r.kind == locktable.Redis {
			w.describeOp(d, r)
		}
	}
	for i := range c.frames {
		if f := &c.frames[i]; f.kind == subscribedFrame {
			d.flags(f.asked == c.asked)
		}
		w.describeFrame(d, &c.frames[i])
	}
}

func (w *world) describeOp(d *description, r *request) {
	op := &r.op
	d.flags(op.Has(redisop.RequireExisting), op.Has(redisop.AfterPendingDrop), op.Has(redisop.CountListeners), op.Has(redisop.Enqueue), op.Has(redisop.InOrder), op.Ticket != 0)
	d.Value(uint64(op.Kind)<<48 | uint64(op.Reserve)<<32 | uint64(op.LeaseMS))
	d.Value(uint64(op.Count)<<32 | uint64(min(op.PassedMS, 100)))
	if op.Of == redisop.KindPermits {
		d.Value(uint64(op.Want)<<32 | uint64(op.Times)<<16 | bit(op.Has(redisop.Yields)))
	}
	d.Number(op.HoldID)
	if op.Ticket != 0 {
		d.Number(op.Ticket)
	}
	d.Time(max(r.sent, w.now-lease))
	w.describeArrivals(d, op.Arrived)
}

func (w *world) describeFrame(d *description, f *frame) {
	d.Value(uint64(f.kind) | bit(f.isCopy)<<8)
	switch f.kind {
	case resultFrame:
		r := &f.result
		d.flags(r.Passed, r.Paused, r.LeftFree, r.IsQueued, r.Ticket != 0, r.Token != 0)
		d.Value(uint64(r.Permits)<<16 | uint64(r.Kind)<<8 | uint64(r.Outcome))
		d.Value(uint64(uint32(r.Listeners.N))<<32 | uint64(r.Rank))
		d.Value(uint64(r.Listeners.State)<<40 | uint64(r.Recall)<<32 | uint64(r.Waiting))
		d.Time(max(r.Sent, w.now-lease))
		if r.Ticket != 0 {
			d.Number(r.Ticket)
		}
		if r.Token != 0 {
			d.Token(r.Token)
		}
		if r.Outcome == redisop.HeldByOther {
			d.Value(uint64(r.TTLMS))
		}
		w.describeArrivals(d, r.Arrived, r.FirstArrived)
	case messageFrame:
		m := &f.message
		d.Value(uint64(m.Units)<<48 | uint64(m.Kind)<<32 | uint64(m.PauseMS))
		if m.Kind == redisop.Transferred || m.Kind == redisop.Admitted {
			d.Number(m.Ticket)
			d.Token(m.LastToken)
			d.Value(uint64(m.LeaseMS)<<16 | uint64(m.Tokens))
			d.Value(uint64(m.Waiting)<<32 | uint64(min(m.PassedMS, 100)))
		}
	}
}

// rank is a number of clients that differ.
func (c *client) rank() (rank int) {
	rank = 4 * int(c.phase)
	if c.away {
		rank += 2
	}
	if c.dead {
		rank++
	}
	return rank
}

// describeClients describes the clients: those that the table has named, and then the others.
func (w *world) describeClients(d *description, h *host) {
	if d.met == 0 && h.clients[0].rank() < h.clients[1].rank() {
		d.order(1) // two that nothing names, in an order of their own
	}
	for c := range h.clients {
		d.order(c)
	}
	for _, c := range d.clients[:d.met] {
		cl := &h.clients[c]
		d.flags(cl.away, cl.dead, cl.isLost)
		if cl.phase != idle {
			d.Value(uint64(cl.permits))
		}
		d.Value(uint64(cl.phase) | bit(cl.excused && cl.phase == believes)<<8)
		switch {
		case cl.phase == believes:
			d.Number(cl.hold)
			d.Time(max(cl.deadline, w.now))
		case cl.phase == waiting && w.isOrdered():
			d.flags(cl.isArrivalKnown)
			d.Arrival(cl.reached)
			d.Arrival(cl.reachedFirst)
		}
		if h.process != nil {
			locktable.DescribeSession(h.process.table, d, w.now, cl.session)
		}
	}
}

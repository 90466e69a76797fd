package redis

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The permits of a semaphore: see permits.lua.

// Semaphore is what Redis has for one. The zero value does not exist.
type Semaphore struct {
	Exists   bool // there is a HASH
	ExpireAt int64
	Held     int64 // as the HASH says
	Due      int64 // ms, as the HASH says
	Until    int64 // the same
	Last     int64 // the last token
	Claims   map[Owner]PermitClaim

	Places         []PermitPlace // in their order
	PlacesExpireAt int64         // ns, of both keys
}

// PermitClaim is what a host has.
type PermitClaim struct {
	Num    uint64
	Units  int64
	Expiry int64 // ms of Redis's clock
}

// PermitPlace is where a host waits, and for what.
type PermitPlace struct {
	Owner    Owner
	Time     int64 // µs: Redis's clock when it arrived
	Num      uint64
	Units    int64
	Capacity int64
	LeaseMS  int64
	Asked    int64 // s of Redis's clock
}

// Clone returns a copy.
func (s *Semaphore) Clone() *Semaphore {
	c := *s
	c.Claims, c.Places = maps.Clone(s.Claims), slices.Clone(s.Places)
	return &c
}

// PlaceOf returns where a host waits: −1: it does not.
func (s *Semaphore) PlaceOf(owner Owner) int {
	return slices.IndexFunc(s.Places, func(p PermitPlace) bool { return p.Owner == owner })
}

// Expire deletes what has expired by now, ns.
func (s *Semaphore) Expire(now int64) {
	if s.Exists && now >= s.ExpireAt {
		s.remove()
	}
	if len(s.Places) > 0 && now >= s.PlacesExpireAt {
		s.Places = nil
	}
}

func (s *Semaphore) remove() {
	s.Exists, s.Claims, s.Held, s.Due, s.Until, s.Last, s.ExpireAt = false, nil, 0, 0, 0, 0, 0
}

// permitsRun is one operation as it is executed.
type permitsRun struct {
	*Command
	s     *Semaphore
	last  int64 // token; what is written of the HASH has it
	reply Reply
	wrote bool
}

// refused ends an operation.
type refused string

// write executes a command that writes, and may need memory. Redis may refuse it.
func (r *permitsRun) write(needsMemory bool) {
	switch {
	case r.ReadOnly:
		panic(refused("READONLY"))
	case needsMemory && r.NoMemory && !r.wrote:
		panic(refused("OOM"))
	}
	r.wrote = true
}

// make writes something into the HASH, which may have been removed before.
func (r *permitsRun) make() {
	r.write(true)
	if r.Migrates && !r.s.Exists {
		panic(refused("TRYAGAIN"))
	}
}

func (r *permitsRun) clockMS() int64 { return r.Clock / 1000 }

// RunPermits carries out a command on a semaphore. Tokens are later than its clock, and than Fresh.
func (c *Command) RunPermits(s *Semaphore) (reply Reply) {
	s.Expire(c.Now)
	r := permitsRun{Command: c, s: s, last: s.Last}
	defer func() {
		if code, isRefused := recover().(refused); isRefused {
			reply = refusal(string(code))
			reply.Sent = r.reply.Sent
		}
	}()
	r.execute()
	if r.wrote {
		r.reply.Change = Write
	}
	return r.reply
}

func (r *permitsRun) execute() {
	op, s := r.Op, r.s
	own, hasClaim := s.Claims[r.Owner]
	keep, want := int64(op.Count), int64(op.Want)
	if op.Kind == redisop.Drop {
		keep, want = 0, 0
	}
	at := s.PlaceOf(r.Owner)
	if hasClaim && own.Num > op.HoldID {
		r.reply.Outcome = redisop.Differs
		return
	}
	if s.Exists && r.clockMS() >= s.Due && (op.Kind != redisop.Drop || len(s.Places) > 0) {
		r.prune()
	}
	if op.Kind == redisop.Renew || op.Kind == redisop.Check {
		r.renew(own, keep)
		return
	}
	if at >= 0 && s.Places[at].Num > op.HoldID {
		r.reply.Outcome = redisop.Differs
		return
	}
	others := int64(len(s.Places))
	if at >= 0 {
		others--
	}
	otherUnits := s.Held - own.Units
	if own.Units < keep && (op.Has(redisop.RequireExisting) || otherUnits+keep > int64(op.Capacity)) {
		r.reply.Outcome = redisop.KeyMissing
		return
	}
	units, isGranted := keep, want == 0
	if want > 0 {
		most := int64(0)
		yields := others > 0 && op.Has(redisop.Yields) && (op.Ticket == 0 || at >= 0 || op.Arrived != 0)
		switch {
		case otherUnits+keep+want > int64(op.Capacity):
		case own.Units >= keep+want && !yields:
			most = (min(own.Units, int64(op.Capacity)-otherUnits) - keep) / want
		case others > 0 && (at != 0 || op.Arrived != 0):
		case others > 0:
			most = 1
		default:
			most = (int64(op.Capacity) - otherUnits - keep) / want
		}
		if most = min(most, int64(op.Times)); most > 0 {
			units, isGranted = keep+want*most, true
		}
	}
	if isGranted && op.Reserve > 0 {
		r.reply.Token = uint64(r.draw(int64(op.Reserve)))
	}
	switch {
	case units > 0:
		r.give(r.Owner, op.HoldID, own.Units, units, int64(op.LeaseMS), 0)
	case hasClaim:
		r.takeAway(r.Owner, own.Units)
	}
	arrives := int64(0)
	stands := false
	if !isGranted {
		arrives = r.arrives()
		waitsForOthers := others > 0 || otherUnits > 0
		stands = op.Has(redisop.Enqueue) && want <= int64(op.Capacity) && waitsForOthers && r.enqueue(arrives)
	}
	if at >= 0 && !stands {
		r.leave(r.Owner)
	}
	if units == 0 && !hasClaim && at < 0 && !stands && r.Confirms {
		r.make()
	}
	if others > 0 && !(stands && s.PlaceOf(r.Owner) == 0 && op.Arrived == 0) {
		if got := r.admit(); got > 0 {
			units, isGranted = units+got, true
		}
	}
	r.reply.Waiting = uint32(len(s.Places))
	if isGranted {
		r.reply.Outcome, r.reply.Permits = redisop.Done, uint32(units)
		return
	}
	r.reply.Outcome, r.reply.Waiting = redisop.HeldByOther, 0
	r.reply.Permits, r.reply.Arrived, r.reply.IsQueued = uint32(s.Held), uint64(arrives), stands
	r.reply.TTLMS = -1
	if s.Exists {
		r.reply.TTLMS = max(s.Due-r.clockMS(), 0)
	}
	if !stands {
		r.reply.Rank = uint32(len(s.Places))
		return
	}
	r.reply.Rank, r.reply.Ticket = uint32(s.PlaceOf(r.Owner)), op.HoldID
	if wasCalled := at == 0 && own.Units > keep; r.reply.Rank == 0 && !wasCalled {
		r.callBack()
	}
}

func (r *permitsRun) renew(own PermitClaim, keep int64) {
	op, s := r.Op, r.s
	if own.Units < keep || own.Units == 0 {
		r.reply.Outcome = redisop.KeyMissing
		return
	}
	if op.Kind == redisop.Renew {
		r.outlive(int64(op.LeaseMS))
		r.write(true)
		own.Expiry = r.clockMS() + int64(op.LeaseMS)
		s.Claims[r.Owner], s.Due = own, min(s.Due, own.Expiry)
	}
	r.reply.Outcome, r.reply.Permits = redisop.Done, uint32(own.Units)
}

// outlive has the HASH last until a claim for a lease ends.
func (r *permitsRun) outlive(leaseMS int64) {
	r.write(false)
	if r.clockMS()+leaseMS > r.s.Until {
		r.lasts(leaseMS)
	}
}

// lasts has the HASH last for longer than a claim, so that the next ones need no other expiry.
func (r *permitsRun) lasts(leaseMS int64) {
	ms := leaseMS + leaseMS/2
	r.s.Until, r.s.ExpireAt = r.clockMS()+ms, r.Now+ms*1e6
}

// give gives a host permits, which had others.
func (r *permitsRun) give(to Owner, num uint64, had, units, leaseMS, expiry int64) {
	s := r.s
	ends := max(r.clockMS()+leaseMS, expiry)
	if s.Exists {
		r.outlive(leaseMS)
	}
	r.make()
	if !s.Exists {
		s.Exists, s.Claims, s.Held, s.Due = true, make(map[Owner]PermitClaim), 0, math.MaxInt64
		r.lasts(leaseMS)
	}
	s.Due = min(s.Due, ends)
	s.Held += units - had
	s.Last = r.last
	s.Claims[to] = PermitClaim{num, units, ends}
}

// takeAway takes what a host has.
func (r *permitsRun) takeAway(from Owner, had int64) {
	r.write(false)
	s := r.s
	if s.Held -= had; s.Held <= 0 && len(s.Claims) == 1 {
		s.remove()
		return
	}
	delete(s.Claims, from)
	s.Last = r.last
}

// prune removes the claims of other hosts that have expired, and counts those that are left.
func (r *permitsRun) prune() {
	s, now := r.s, r.clockMS()
	held, due := int64(0), int64(math.MaxInt64)
	for owner, claim := range s.Claims {
		if claim.Expiry <= now && owner != r.Owner {
			r.write(false)
			delete(s.Claims, owner)
			continue
		}
		held, due = held+claim.Units, min(due, claim.Expiry)
	}
	if len(s.Claims) == 0 {
		s.remove()
		return
	}
	r.write(false) // which permits the rest in a Redis that is full
	r.write(true)
	s.Held, s.Due, s.Last = held, due, r.last
}

// draw draws tokens, and returns the last one.
func (r *permitsRun) draw(n int64) (last int64) {
	r.last = max(r.last, r.Clock, r.Fresh) + n
	return r.last
}

// arrives is when a request arrives now: later than each that came from another host.
func (r *permitsRun) arrives() int64 {
	if len(r.s.Places) == 0 {
		return r.Clock
	}
	last := r.s.Places[len(r.s.Places)-1]
	if last.Owner == r.Owner {
		return max(r.Clock, last.Time)
	}
	return max(r.Clock, last.Time+1)
}

// enqueue gives this host a place, or leaves it the one that it has; unless there is no memory for it.
func (r *permitsRun) enqueue(arrives int64) bool {
	op, s := r.Op, r.s
	if r.NoMemory && !r.wrote && !r.ReadOnly {
		return false
	}
	r.write(true)
	p := PermitPlace{r.Owner, arrives, op.HoldID, int64(op.Want), int64(op.Capacity), int64(op.LeaseMS), r.Clock / 1e6}
	at := s.PlaceOf(r.Owner)
	switch {
	case op.Arrived != 0:
		p.Time = min(int64(op.Arrived), arrives)
	case at >= 0:
		p.Time = s.Places[at].Time
	}
	if at >= 0 {
		s.Places = slices.Delete(s.Places, at, at+1)
	}
	i, _ := slices.BinarySearchFunc(s.Places, p, func(a, b PermitPlace) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Owner, b.Owner))
	})
	s.Places = slices.Insert(s.Places, i, p)
	s.PlacesExpireAt = r.Now + queueExpiry
	return true
}

func (r *permitsRun) leave(owner Owner) {
	r.write(false)
	at := r.s.PlaceOf(owner)
	r.s.Places = slices.Delete(r.s.Places, at, at+1)
}

// admit admits the hosts that wait, in their order, for as long as what they want is free. It returns what
// this host gets.
func (r *permitsRun) admit() (got int64) {
	s := r.s
	for range redisop.MaxOffers {
		if len(s.Places) == 0 {
			break
		}
		p := s.Places[0]
		isOwn := p.Owner == r.Owner
		if p.Units > p.Capacity {
			r.leave(p.Owner)
			continue
		}
		if !isOwn && r.Clock-max(p.Time, p.Asked*1e6) > maxAge {
			r.leave(p.Owner)
			r.send(p.Owner, redisop.Message{Kind: redisop.Requeue, Ticket: p.Num, NamesTicket: true}, &r.reply)
			continue
		}
		if s.Held+p.Units > p.Capacity || r.Migrates && !s.Exists {
			break
		}
		last := int64(0)
		switch {
		case !isOwn:
			last = r.draw(1)
		case r.Op.Reserve > 0:
			r.reply.Token = uint64(r.draw(int64(r.Op.Reserve)))
		}
		before, has := s.Claims[p.Owner]
		r.leave(p.Owner)
		r.give(p.Owner, p.Num, before.Units, before.Units+p.Units, p.LeaseMS, before.Expiry)
		if isOwn {
			got = p.Units
			continue
		}
		m := redisop.Message{
			Kind: redisop.Admitted, Of: redisop.KindPermits, Ticket: p.Num, Units: uint16(p.Units), LastToken: uint64(last), Tokens: 1,
			LeaseMS: uint32(p.LeaseMS), Waiting: uint32(len(s.Places)),
		}
		switch {
		case r.send(p.Owner, m, &r.reply) > 0:
		case has:
			s.Held -= p.Units
			s.Claims[p.Owner] = before
		default:
			r.takeAway(p.Owner, p.Units)
		}
	}
	return got
}

// callBack has the hosts that have permits give back those that they do not use.
func (r *permitsRun) callBack() {
	r.reply.Recall = redisop.RecallMissed
	for _, owner := range slices.Sorted(maps.Keys(r.s.Claims)) {
		if owner != r.Owner && r.send(owner, redisop.Message{Kind: redisop.Recalled, Of: redisop.KindPermits}, &r.reply) > 0 {
			r.reply.Recall = redisop.RecallReceived
		}
	}
}

package redis

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Read/write locks: see rw.lua.

// ReadWrite is what Redis has for one. The zero value does not exist.
type ReadWrite struct {
	Mode     redisop.Mode // NoMode: there is no HASH
	ExpireAt int64
	Claims   map[Owner]ShareClaim // that of NoOwner: of hosts that shared the lock when the HASH was deleted
	Programs map[string]string    // other fields of the HASH: Redisson's

	// As the HASH says; of hosts that share it.
	Count int64
	Due   int64 // ms
	Until int64 // ms
	Begin int64 // µs; 0: no other host may join the phase

	LifeAt    int64 // ns: when the STRING expires; 0: there is none
	LifeUntil int64 // ms: what it has

	Places         [2][]SharePlace // of readers, and of writers, in their order
	PlacesExpireAt [2]int64        // ns
	AskedExpireAt  int64           // ns, of the HASH with what they want
}

// ShareClaim is how a host has a read/write lock.
type ShareClaim struct {
	Num    uint64
	Mode   redisop.Mode
	Expiry int64 // ms of Redis's clock; of a writer 0
}

// SharePlace is where a host waits.
type SharePlace struct {
	Owner   Owner
	Time    int64 // µs: Redis's clock when it arrived
	Num     uint64
	LeaseMS int64
	Asked   int64 // s of Redis's clock
}

// Clone returns a copy.
func (l *ReadWrite) Clone() *ReadWrite {
	c := *l
	c.Claims, c.Programs = maps.Clone(l.Claims), maps.Clone(l.Programs)
	for i := range c.Places {
		c.Places[i] = slices.Clone(l.Places[i])
	}
	return &c
}

// PlaceOf returns where a host waits for a mode: −1: it does not.
func (l *ReadWrite) PlaceOf(owner Owner, m redisop.Mode) int {
	return slices.IndexFunc(*l.queue(m), func(p SharePlace) bool { return p.Owner == owner })
}

func (l *ReadWrite) queue(m redisop.Mode) *[]SharePlace { return &l.Places[m-redisop.SharedMode] }

// Expire deletes what has expired by now, ns.
func (l *ReadWrite) Expire(now int64) {
	if l.Mode != redisop.NoMode && now >= l.ExpireAt {
		l.remove()
	}
	if l.LifeAt != 0 && now >= l.LifeAt {
		l.LifeAt = 0
	}
	for i := range l.Places {
		if len(l.Places[i]) > 0 && now >= l.PlacesExpireAt[i] {
			l.Places[i] = nil
		}
	}
}

// remove deletes the HASH.
func (l *ReadWrite) remove() {
	l.Mode, l.ExpireAt, l.Claims, l.Programs = redisop.NoMode, 0, nil, nil
	l.Count, l.Due, l.Until, l.Begin = 0, 0, 0, 0
}

// bothModes are those in which a host may wait.
var bothModes = [...]redisop.Mode{redisop.SharedMode, redisop.ExclusiveMode}

// rwRun is one operation as it is executed.
type rwRun struct {
	*Command
	l     *ReadWrite
	count *Counter
	reply Reply
	wrote bool
	got   redisop.Mode // what a place of this host was admitted to
	gone  string       // what Redisson is notified of
	full  bool         // it has admitted as many readers as one operation may
}

// Unlocks is what [Command.RunReadWrite] has published for Redisson: "0", "1", or nothing.
type Unlocks string

// write executes a command that writes, and may need memory. Redis may refuse it.
func (r *rwRun) write(needsMemory bool) {
	switch {
	case r.ReadOnly:
		panic(refused("READONLY"))
	case needsMemory && r.NoMemory && !r.wrote:
		panic(refused("OOM"))
	}
	r.wrote = true
}

func (r *rwRun) clockMS() int64 { return r.Clock / 1000 }

// RunReadWrite carries out a command on a read/write lock and its token counter.
func (c *Command) RunReadWrite(l *ReadWrite, counter *Counter) (reply Reply, published Unlocks) {
	l.Expire(c.Now)
	r := rwRun{Command: c, l: l, count: counter}
	defer func() {
		switch code := recover().(type) {
		case nil:
		case refused:
			reply = refusal(string(code))
			reply.Sent = r.reply.Sent
			if l.Mode == redisop.NoMode {
				l.Begin = 0 // no phase has begun
			}
		default:
			panic(code)
		}
	}()
	r.execute()
	if r.wrote {
		r.reply.Change = Write
	}
	if r.gone != "" && l.Mode != redisop.ExclusiveMode && c.Op.Kind != redisop.Renew && c.Op.Kind != redisop.Check {
		published = Unlocks(r.gone)
	}
	return r.reply, published
}

// draw draws tokens; false: Redis refuses that, and the reply says so.
func (r *rwRun) draw(n int64) (last uint64, made, ok bool) {
	if r.ReadOnly {
		panic(refused("READONLY"))
	}
	if r.NoMemory && !r.wrote {
		return 0, false, false
	}
	r.wrote = true
	token, made, code := r.count.draw(r.Command, n)
	return uint64(token), made, code == ""
}

func (r *rwRun) execute() {
	op, l := r.Op, r.l
	keep, want, stands := redisop.Mode(op.Count), redisop.Mode(op.Want), op.Times
	if op.Kind == redisop.Drop {
		keep, want, stands = redisop.NoMode, redisop.NoMode, 0
	}
	own, hasClaim := l.Claims[r.Owner]
	if hasClaim && own.Num > op.HoldID {
		r.reply.Outcome = redisop.Differs
		return
	}
	if op.Kind == redisop.Renew || op.Kind == redisop.Check {
		r.renew(own, keep)
		return
	}
	stood := false
	for _, m := range bothModes {
		at := l.PlaceOf(r.Owner, m)
		if stood = stood || at >= 0; at >= 0 && (*l.queue(m))[at].Num > op.HoldID {
			r.reply.Outcome = redisop.Differs
			return
		}
	}
	goal := cmp.Or(keep, want)
	isDowngrade := goal == redisop.SharedMode && own.Mode == redisop.ExclusiveMode
	if keep != redisop.NoMode && own.Mode != keep && !isDowngrade && (hasClaim || want != redisop.NoMode || op.Has(redisop.RequireExisting)) {
		r.reply.Outcome = redisop.KeyMissing
		return
	}
	r.forgetSilentWriters()
	if l.Count > 0 && r.clockMS() >= l.Due && (goal == redisop.ExclusiveMode || len(*l.queue(redisop.ExclusiveMode)) > 0) {
		r.prune()
	}
	writers, readers := r.others(redisop.ExclusiveMode), r.others(redisop.SharedMode)
	isGranted := false
	switch {
	case goal == redisop.NoMode, isDowngrade:
		isGranted = true
	case own.Mode == goal:
		yields := op.Has(redisop.Yields) && writers+readers > 0
		isGranted = keep == goal || !yields && (goal == redisop.ExclusiveMode || writers == 0)
	case hasClaim: // a share, and it wants to write
		isGranted = keep == redisop.NoMode && l.Count == 1 && writers+readers == 0 && len(l.Programs) == 0
	case goal == redisop.SharedMode:
		asserts := keep == redisop.SharedMode && l.Mode != redisop.ExclusiveMode
		isGranted = asserts || writers == 0 && (l.Mode == redisop.SharedMode || l.Mode == redisop.NoMode && readers == 0)
	default:
		isGranted = l.Mode == redisop.NoMode && (keep == redisop.ExclusiveMode || writers+readers == 0) && l.LifeAt == 0
	}
	isLost := keep != redisop.NoMode && !isGranted
	if isGranted && goal != redisop.NoMode {
		if hasClaim {
			r.write(false)
		}
		if op.Reserve > 0 {
			token, made, ok := r.draw(int64(op.Reserve))
			if !ok {
				panic(refused("OOM"))
			}
			r.reply.Token, r.reply.Made = token, made
		}
		if goal == redisop.SharedMode {
			if isDowngrade {
				l.Begin, r.gone = r.Clock, "1"
			}
			r.share(r.Owner, op.HoldID, int64(op.LeaseMS))
		} else {
			if own.Mode == redisop.SharedMode {
				l.remove()
				l.LifeAt = 0
			}
			r.exclude(r.Owner, op.HoldID, int64(op.LeaseMS))
		}
	}
	isMet := isGranted && (want == redisop.NoMode || want == goal && (keep != redisop.SharedMode || writers == 0))
	for _, m := range bothModes {
		bit := uint8(m) // ReadersQueue, WritersQueue
		switch {
		case isLost:
		case stands&bit != 0 && !(isMet && want == m):
			r.enqueue(m, m == want)
		case l.PlaceOf(r.Owner, m) >= 0:
			r.leave(r.Owner, m)
		}
	}
	wanted := cmp.Or(want, goal)
	arrives := r.arrives(max(wanted, redisop.SharedMode))
	hasNothing := !hasClaim && !stood && stands == 0 && (goal == redisop.NoMode || !isGranted)
	if r.Confirms && hasNothing {
		r.write(true)
	}
	switch {
	case hasClaim && (goal == redisop.NoMode || !isGranted):
		r.release(own.Mode)
	case l.Mode == redisop.NoMode:
		r.pass(redisop.SharedMode)
	case l.Mode == redisop.SharedMode:
		r.join()
	}
	if isLost { // a place from before may have been admitted, to less or for a shorter time
		r.reply.Outcome, r.reply.Token, r.reply.Made = redisop.KeyMissing, 0, false
		return
	}
	if r.got != redisop.NoMode || isMet {
		r.has(cmp.Or(r.got, goal))
		return
	}
	r.away(wanted, arrives)
}

// has makes the reply of an operation after which this host has the lock in a mode, or not.
func (r *rwRun) has(m redisop.Mode) {
	r.reply.Outcome, r.reply.Permits = redisop.Done, uint32(m)
	waiting := r.others(redisop.ExclusiveMode)
	if m != redisop.SharedMode {
		waiting += r.others(redisop.SharedMode)
	}
	r.reply.Waiting = uint32(waiting)
	first := *r.l.queue(redisop.SharedMode)
	if r.l.Mode == redisop.SharedMode && r.full && len(first) > 0 && (first[0].Time <= r.l.Begin || len(*r.l.queue(redisop.ExclusiveMode)) == 0) {
		r.reply.Queues = redisop.ReadersQueue
	}
}

// away makes the reply of an operation after which this host waits for what it wants, or not.
func (r *rwRun) away(want redisop.Mode, arrives int64) {
	l := r.l
	r.reply.Outcome, r.reply.Permits, r.reply.Arrived = redisop.HeldByOther, uint32(l.Count), uint64(arrives)
	r.reply.Token, r.reply.Made = 0, false
	ttl := func(at int64) int64 {
		if at == NoExpiry {
			return -1
		}
		return (at - r.Now) / 1e6
	}
	switch {
	case l.Mode == redisop.SharedMode && l.Count > 0:
		r.reply.TTLMS = max(l.Due-r.clockMS(), 0)
	case l.Mode != redisop.NoMode:
		r.reply.TTLMS = ttl(l.ExpireAt)
	case l.LifeAt != 0:
		r.reply.TTLMS = ttl(l.LifeAt)
	default:
		r.reply.TTLMS = -1
	}
	rank := [...]int{l.PlaceOf(r.Owner, redisop.SharedMode), l.PlaceOf(r.Owner, redisop.ExclusiveMode)}
	for i, at := range rank {
		if at >= 0 {
			r.reply.Queues |= 1 << i
		}
	}
	if r.reply.IsQueued = r.reply.Queues != 0; r.reply.IsQueued {
		r.reply.Ticket = r.Op.HoldID
	}
	if r.reply.Rank = uint32(len(*l.queue(want))); rank[want-redisop.SharedMode] >= 0 {
		r.reply.Rank = uint32(rank[want-redisop.SharedMode])
	}
	if (rank[1] == 0 || rank[0] == 0 && l.Mode == redisop.ExclusiveMode) && l.Mode != redisop.NoMode {
		r.callBack()
	}
}

func (r *rwRun) renew(own ShareClaim, keep redisop.Mode) {
	op, l := r.Op, r.l
	switch {
	case own.Mode == keep:
	case l.Mode == redisop.ExclusiveMode || l.Mode == redisop.SharedMode && keep == redisop.ExclusiveMode:
		r.reply.Outcome = redisop.HeldByOther
		if r.reply.TTLMS = -1; l.ExpireAt != NoExpiry {
			r.reply.TTLMS = (l.ExpireAt - r.Now) / 1e6
		}
		return
	default:
		r.reply.Outcome = redisop.KeyMissing
		return
	}
	if op.Kind == redisop.Renew {
		r.write(false)
		if keep == redisop.SharedMode {
			r.share(r.Owner, own.Num, int64(op.LeaseMS))
		} else {
			l.ExpireAt = r.Now + int64(op.LeaseMS)*1e6
		}
	}
	r.reply.Outcome, r.reply.Permits = redisop.Done, uint32(keep)
}

// others is how many other hosts wait.
func (r *rwRun) others(m redisop.Mode) int {
	n := len(*r.l.queue(m))
	if r.l.PlaceOf(r.Owner, m) >= 0 {
		n--
	}
	return n
}

// share gives a host a share, or renews it.
func (r *rwRun) share(to Owner, num uint64, leaseMS int64) {
	l := r.l
	expiry, was := r.clockMS()+leaseMS, l.Until
	if r.Migrates && l.Mode == redisop.NoMode {
		panic(refused("TRYAGAIN"))
	}
	r.write(true)
	if l.Claims == nil {
		l.Claims = make(map[Owner]ShareClaim)
	}
	if l.Mode == redisop.NoMode && l.LifeAt != 0 && l.LifeUntil > r.clockMS() {
		l.Claims[NoOwner], l.Count, l.Due = ShareClaim{0, redisop.SharedMode, l.LifeUntil}, 1, l.LifeUntil
		l.Until = l.LifeUntil
	}
	if l.Until < expiry {
		l.Until = r.clockMS() + leaseMS + leaseMS/2
	}
	if isNew := l.Claims[to].Mode != redisop.SharedMode; l.Until != was || !isNew {
		l.LifeAt, l.LifeUntil = r.until(l.Until), l.Until
	}
	if l.Claims[to].Mode != redisop.SharedMode {
		l.Count++
	}
	if l.Count == 1 && l.Due == 0 {
		l.Due = math.MaxInt64
	}
	l.Due = min(l.Due, expiry)
	l.Claims[to] = ShareClaim{num, redisop.SharedMode, expiry}
	if l.Mode != redisop.SharedMode || l.ExpireAt == NoExpiry || l.ExpireAt < r.until(l.Until) {
		l.ExpireAt = r.until(l.Until)
	}
	l.Mode = redisop.SharedMode
}

// until is a time of Redis's clock, ms, as a key expires then, ns.
func (r *rwRun) until(ms int64) int64 { return r.Now + (ms-r.clockMS())*1e6 }

// exclude gives a host the lock for itself.
func (r *rwRun) exclude(to Owner, num uint64, leaseMS int64) {
	if r.Migrates && r.l.Mode == redisop.NoMode {
		panic(refused("TRYAGAIN"))
	}
	r.write(true)
	r.l.Mode, r.l.ExpireAt = redisop.ExclusiveMode, r.Now+leaseMS*1e6
	r.l.Claims = map[Owner]ShareClaim{to: {num, redisop.ExclusiveMode, 0}}
}

// next is the first host of a queue that has asked lately; others leave it. looks: how many to look at.
func (r *rwRun) next(m redisop.Mode, looks *int) (p SharePlace, ok bool) {
	for ; *looks > 0; *looks-- {
		q := *r.l.queue(m)
		if len(q) == 0 {
			return p, false
		}
		p = q[0]
		if p.Owner == r.Owner || r.Clock-max(p.Time, p.Asked*1e6) <= maxAge {
			return p, true
		}
		r.leave(p.Owner, m)
		r.send(p.Owner, redisop.Message{Kind: redisop.Requeue, Ticket: p.Num, NamesTicket: true}, &r.reply)
	}
	return p, false
}

// forgetSilentWriters takes writers away that have not asked for too long, before the first that has.
func (r *rwRun) forgetSilentWriters() {
	looks := redisop.MaxOffers
	r.next(redisop.ExclusiveMode, &looks)
}

// close ends the phase in which hosts share the lock. It returns true if the lock is free: no program reads either.
func (r *rwRun) close() bool {
	l := r.l
	r.write(false)
	l.LifeAt, l.Count, l.Due, l.Until, l.Begin = 0, 0, 0, 0, 0
	if len(l.Programs) > 0 {
		return false
	}
	l.remove()
	r.gone = "0"
	return true
}

// admitReaders gives readers that wait a share, those that came until then. It returns true if one has it.
func (r *rwRun) admitReaders(came int64) bool {
	l := r.l
	looks := redisop.MaxOffers
	type admission struct {
		SharePlace
		isNew bool
	}
	var admitted []admission
	var token uint64
	var made bool
	for looks > 0 && len(admitted) < redisop.MaxReaders {
		p, ok := r.next(redisop.SharedMode, &looks)
		if !ok || p.Time > came || r.Migrates && l.Mode == redisop.NoMode {
			break
		}
		if token == 0 {
			if token, made, ok = r.draw(1); !ok {
				return false
			}
		}
		looks--
		r.leave(p.Owner, redisop.SharedMode)
		_, has := l.Claims[p.Owner]
		r.share(p.Owner, p.Num, p.LeaseMS)
		if p.Owner == r.Owner {
			r.got, r.reply.Token, r.reply.Made = redisop.SharedMode, token, made
		} else {
			admitted = append(admitted, admission{p, !has})
		}
	}
	r.full = looks <= 0 || len(admitted) >= redisop.MaxReaders
	for _, a := range admitted {
		m := redisop.Message{
			Kind: redisop.Admitted, Of: redisop.KindReadWrite, Ticket: a.Num, Units: uint16(redisop.SharedMode), LastToken: token, Tokens: 1,
			LeaseMS: uint32(a.LeaseMS), Waiting: uint32(len(*l.queue(redisop.ExclusiveMode))),
		}
		if r.send(a.Owner, m, &r.reply) == 0 && a.isNew {
			delete(l.Claims, a.Owner)
			l.Count--
		}
	}
	if token == 0 {
		return false
	}
	if l.Count == 0 {
		r.close()
		return l.Mode != redisop.NoMode
	}
	return true
}

// admitWriter gives the lock to the first writer that receives that. It returns true if one has it.
func (r *rwRun) admitWriter() bool {
	l := r.l
	if l.LifeAt != 0 {
		return false
	}
	looks := redisop.MaxOffers
	var token uint64
	var made bool
	for looks > 0 {
		p, ok := r.next(redisop.ExclusiveMode, &looks)
		if !ok || r.Migrates {
			return false
		}
		if token == 0 {
			if token, made, ok = r.draw(redisop.PassedTokens); !ok {
				return false
			}
		}
		looks--
		r.leave(p.Owner, redisop.ExclusiveMode)
		r.exclude(p.Owner, p.Num, p.LeaseMS)
		if p.Owner == r.Owner {
			r.got, r.reply.Token, r.reply.Made = redisop.ExclusiveMode, token, made
			return true
		}
		m := redisop.Message{
			Kind: redisop.Admitted, Of: redisop.KindReadWrite, Ticket: p.Num, Units: uint16(redisop.ExclusiveMode), LastToken: token,
			Tokens: redisop.PassedTokens, LeaseMS: uint32(p.LeaseMS), Waiting: uint32(len(l.Places[0]) + len(l.Places[1])),
		}
		if r.send(p.Owner, m, &r.reply) > 0 {
			return true
		}
		l.remove()
	}
	return false
}

// pass gives a free lock to those that wait, after readers or a writer had it.
func (r *rwRun) pass(after redisop.Mode) {
	if after == redisop.SharedMode && r.admitWriter() {
		return
	}
	r.l.Begin = r.Clock
	if r.admitReaders(math.MaxInt64) {
		return
	}
	r.l.Begin = 0
	r.admitWriter()
}

// join gives a share to readers that came before this phase, and to all if no writer waits.
func (r *rwRun) join() {
	if len(*r.l.queue(redisop.SharedMode)) > 0 {
		r.forgetSilentWriters()
	}
	switch {
	case len(*r.l.queue(redisop.SharedMode)) == 0:
	case len(*r.l.queue(redisop.ExclusiveMode)) == 0:
		r.admitReaders(math.MaxInt64)
	case r.l.Begin > 0:
		r.admitReaders(r.l.Begin)
	}
}

// release takes what this host has.
func (r *rwRun) release(m redisop.Mode) {
	l := r.l
	r.write(false)
	if m == redisop.ExclusiveMode {
		l.remove()
		r.gone = "1"
		r.pass(redisop.ExclusiveMode)
		return
	}
	delete(l.Claims, r.Owner)
	if l.Count--; l.Count <= 0 && r.close() {
		r.pass(redisop.SharedMode)
		return
	}
	r.join()
}

// prune removes the shares of other hosts that have expired, and counts those that are left.
func (r *rwRun) prune() {
	l, now := r.l, r.clockMS()
	r.write(false)
	l.Count, l.Due = 0, math.MaxInt64
	for owner, c := range l.Claims {
		if c.Expiry <= now && owner != r.Owner {
			delete(l.Claims, owner)
			continue
		}
		l.Count, l.Due = l.Count+1, min(l.Due, c.Expiry)
	}
	if l.Count == 0 {
		r.close()
	}
}

// arrives is when a request arrives now: later than each that came from another host.
func (r *rwRun) arrives(m redisop.Mode) int64 {
	q := *r.l.queue(m)
	if len(q) == 0 {
		return r.Clock
	}
	last := q[len(q)-1]
	if last.Owner == r.Owner {
		return max(r.Clock, last.Time)
	}
	return max(r.Clock, last.Time+1)
}

// enqueue gives this host a place, or leaves it the one that it has; unless there is no memory for it.
func (r *rwRun) enqueue(m redisop.Mode, isWanted bool) {
	op, l := r.Op, r.l
	if l.PlaceOf(r.Owner, m) >= 0 {
		r.write(false)
	}
	if r.NoMemory && !r.wrote && !r.ReadOnly {
		return
	}
	r.write(true)
	arrives := r.arrives(m)
	p := SharePlace{r.Owner, arrives, op.HoldID, int64(op.LeaseMS), r.Clock / 1e6}
	q, at := l.queue(m), l.PlaceOf(r.Owner, m)
	switch {
	case isWanted && op.Arrived != 0:
		p.Time = min(int64(op.Arrived), arrives)
	case at >= 0:
		p.Time = (*q)[at].Time
	}
	if at >= 0 {
		*q = slices.Delete(*q, at, at+1)
	}
	i, _ := slices.BinarySearchFunc(*q, p, func(a, b SharePlace) int {
		return cmp.Or(cmp.Compare(a.Time, b.Time), cmp.Compare(a.Owner, b.Owner))
	})
	*q = slices.Insert(*q, i, p)
	l.PlacesExpireAt[m-redisop.SharedMode], l.AskedExpireAt = r.Now+queueExpiry, r.Now+queueExpiry
}

func (r *rwRun) leave(owner Owner, m redisop.Mode) {
	r.write(false)
	q, at := r.l.queue(m), r.l.PlaceOf(owner, m)
	*q = slices.Delete(*q, at, at+1)
}

// callBack has the hosts that have the lock give it back, if their clients do not use it.
func (r *rwRun) callBack() {
	r.reply.Recall = redisop.RecallMissed
	for _, owner := range slices.Sorted(maps.Keys(r.l.Claims)) {
		if owner != r.Owner && r.send(owner, redisop.Message{Kind: redisop.Recalled, Of: redisop.KindReadWrite}, &r.reply) > 0 {
			r.reply.Recall = redisop.RecallReceived
		}
	}
}

// Writer returns the host that has the lock for itself; NoOwner: there is none.
func (l *ReadWrite) Writer() Owner {
	if l.Mode == redisop.ExclusiveMode {
		for owner := range l.Claims {
			return owner
		}
	}
	return NoOwner
}

// Delete deletes the HASH, as a program may.
func (l *ReadWrite) Delete() { l.remove() }

// Jump notes that Redis's clock jumps by d, ns.
func (l *ReadWrite) Jump(d int64) {
	if l.ExpireAt != NoExpiry {
		l.ExpireAt -= d
	}
	if l.LifeAt != 0 {
		l.LifeAt = max(1, l.LifeAt-d)
	}
	l.PlacesExpireAt[0] -= d
	l.PlacesExpireAt[1] -= d
	l.AskedExpireAt -= d
}

package explore

import (
	"github.com/locksidecar/locksidecar/internal/sim/invariant"
	"github.com/locksidecar/locksidecar/internal/sim/redis"
)

// With Plan.Permits, the name is that of a semaphore with so many permits. A client asks for one, or for two.
const capacity = 2

// runPermits runs one operation on the semaphore.
func (w *world) runPermits(h *host, s side, c *connection, r *request, cmd *redis.Command) {
	reply := cmd.RunPermits(w.semaphore)
	for i := range reply.Sent {
		if m := &reply.Sent[i]; m.Reached > 0 {
			w.publish(h, s, c, int(m.To), m.Message)
		}
	}
	c.push(frame{result: w.resultOf(r, &reply)})
	if c == &h.conns[s] {
		w.noteExecuted(h, c, reply.Outcome)
	}
}

// checkPermits checks that clients believe in no more permits than there are, and that the claim of each host has those of
// its clients for as long. Redis's clock, by which claims expire, is that of the hosts.
func (w *world) checkPermits() {
	all := int64(0)
	for _, h := range w.hosts {
		held, until := int64(0), int64(0)
		for c := range h.clients {
			if cl := &h.clients[c]; cl.phase == believes && w.now < cl.deadline {
				held, until = held+cl.permits, max(until, cl.deadline)
			}
		}
		claim := w.semaphore.Claims[redis.Owner(h.index)]
		switch expires := min(claim.Expiry*ms, w.semaphore.ExpireAt); {
		case held == 0:
		case claim.Units < held:
			w.violated(invariant.KeysCoverHolds, "clients of host %d believe in %d permits, and its claim has %d", h.index, held, claim.Units)
		case expires < until:
			w.violated(invariant.KeysCoverHolds, "clients of host %d believe in permits for %d ms, and its claim expires in %d ms", h.index, (until-w.now)/ms, (expires-w.now)/ms)
		}
		all += held
	}
	if all > capacity {
		w.violated(invariant.Exclusion, "clients believe in %d permits, and there are %d", all, capacity)
	}
}

// describeSemaphore describes what Redis has of the semaphore, and what of that is a host's.
func (w *world) describeSemaphore(d *description, own redis.Owner) {
	s := w.semaphore
	left := func(at int64) { d.Value(uint64(at - w.tickNow()/ms)) } // ms of Redis's clock
	d.flags(s.Exists)
	if s.Exists {
		d.Value(uint64(s.Held))
		left(s.Due)
		left(s.Until)
		d.Token(uint64(s.Last))
		d.Time(s.ExpireAt)
	}
	if claim, has := s.Claims[own]; has {
		d.Number(claim.Num)
		d.Value(uint64(claim.Units))
		left(claim.Expiry)
	}
	for i, p := range s.Places {
		if p.Owner == own {
			d.Value(uint64(i)<<48 | uint64(p.Units)<<32 | uint64(p.LeaseMS))
			d.Number(p.Num)
			d.Arrival(uint64(p.Time))
		}
	}
}

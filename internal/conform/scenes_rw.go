package conform

import (
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
)

// readWrite acquires the read/write lock "catalog" for the client, and grants it.
func (s *stage) readWrite(c *conn, as string, how mode, hold uint64) {
	s.acquireAs(c, command{As: as, Name: "catalog", Mode: how},
		protocol.AcquireOK{Hold: hold, DeadlineNS: protocol.Now() + hour, Shared: how == shared})
}

// holdingShared opens a session that holds each of the handles for an hour: "catalog", shared, with the holds 1, 2, ….
func (s *stage) holdingShared(handles ...string) *conn {
	c := s.open()
	for i, as := range handles {
		s.readWrite(c, as, shared, uint64(i+1))
	}
	return c
}

// downgraded lets the client downgrade a handle, and answers with a deadline in an hour.
func (s *stage) downgraded(c *conn, as string, hold uint64) {
	n := s.send(command{Do: "downgrade", As: as})
	c.reply(protocol.DowngradeOK{ID: c.downgrade(hold).ID, DeadlineNS: protocol.Now() + hour})
	s.awaitOK(n, "the downgrade succeeds, because it was executed")
}

var readWriteScenes = []Scene{
	{
		Name: "rw/grant-and-release", Spec: "§4.19, §4.3", Needs: []Feature{ReadWrite},
		Demand: "An acquire of a read/write lock sends acquire_rw with its mode, and no wait_ms; a grant is held; release sends one release of the hold.",
		play: func(s *stage) {
			c := s.open()
			for i, how := range []mode{exclusive, shared} {
				as, hold := string(how), uint64(i+1)
				a := s.acquireAs(c, command{As: as, Name: "catalog", Mode: how}, protocol.AcquireOK{Hold: hold, DeadlineNS: protocol.Now() + hour, Shared: how == shared})
				if a.WaitMS != protocol.Forever || a.LeaseMS != 0 || a.MaxHoldMS != 0 || a.CrashDelayMS != 0 || a.KeepMS != 0 {
					s.fail("an acquire_rw without wait_ms, lease_ms, max_hold_ms, crash_delay_ms and keep_ms", "%s", c.last)
				}
				s.held(as, "it was granted")
				s.release(c, as, hold)
				s.lost(as, "it was released")
			}
			s.fence(c, "each hold was released once")
		},
	},
	{
		Name: "rw/wait", Spec: "§4.19", Needs: []Feature{ReadWrite},
		Demand: "An acquire of a read/write lock sends wait_ms as that of a lock does: 0 for a try, or what it was given, or a little less; timeout is its error.",
		play: func(s *stage) {
			c := s.open()
			for _, how := range []mode{exclusive, shared} {
				for _, wait := range []int64{0, 86_400_000} {
					n, a := s.request(c, command{As: "a", Name: "catalog", Mode: how, WaitMS: ms(wait)})
					if a.WaitMS > wait || a.WaitMS < max(0, wait-s.patience.Milliseconds()) {
						s.fail(fmt.Sprintf("an acquire_rw with wait_ms %d", wait), "%s", c.last)
					}
					c.refuse(a.ID, protocol.Timeout, "held by pid 4711 (worker.py) on this host")
					s.awaitError(n, "the acquire fails with the error timeout", "timeout")
				}
			}
		},
	},
	{
		Name: "rw/times", Spec: "§4.19", Needs: []Feature{ReadWrite, Lease, MaxHold, CrashDelay, Keep},
		Demand: "lease_ms, max_hold_ms, crash_delay_ms and, of an exclusive hold, keep_ms are sent as they were given.",
		play: func(s *stage) {
			c := s.open()
			end := protocol.Now() + hour
			for i, how := range []mode{exclusive, shared} {
				cmd := command{As: string(how), Name: "catalog", Mode: how, LeaseMS: 61_234, MaxHoldMS: 71_234, CrashDelayMS: 81_234}
				if how == exclusive {
					cmd.KeepMS = 91_234
				}
				a := s.acquireAs(c, cmd, protocol.AcquireOK{Hold: uint64(i + 1), DeadlineNS: end, EndNS: end, Shared: how == shared})
				if a.LeaseMS != cmd.LeaseMS || a.MaxHoldMS != cmd.MaxHoldMS || a.CrashDelayMS != cmd.CrashDelayMS || a.KeepMS != cmd.KeepMS {
					s.fail(fmt.Sprintf("an acquire_rw with lease_ms 61234, max_hold_ms 71234, crash_delay_ms 81234 and keep_ms %d", cmd.KeepMS), "%s", c.last)
				}
				s.release(c, cmd.As, uint64(i+1))
			}
		},
	},
	{
		Name: "rw/two-readers", Spec: "§4.19, §9.1", Needs: []Feature{ReadWrite},
		Demand: "Two shared acquires of no owner are two holds: each has its own handle, which releases its own hold, once.",
		play: func(s *stage) {
			c := s.holdingShared("one", "two")
			s.release(c, "one", 1)
			s.held("two", "only the first hold was released")
			s.awaitError(s.send(command{Do: "release", As: "one"}), "the second release of a handle fails with the error not_held", "not_held")
			s.fence(c, "the first hold was released before")
			s.release(c, "two", 2)
			s.fence(c, "each hold was released once")
		},
	},
	{
		Name: "rw/owners", Spec: "§4.19", Needs: []Feature{ReadWrite, Owners},
		Demand: "An owner's acquires send the same owner; a shared entry of an exclusive hold is one more entry of that hold, and its handle is not shared.",
		play: func(s *stage) {
			c := s.open()
			grant := protocol.AcquireOK{Hold: 5, Token: 55, DeadlineNS: protocol.Now() + hour}
			first := s.acquireAs(c, command{As: "one", Name: "catalog", Mode: exclusive, Owner: 3}, grant)
			n, second := s.request(c, command{As: "two", Name: "catalog", Mode: shared, Owner: 3})
			if first.Owner == 0 || second.Owner != first.Owner || second.NotReentrant {
				s.fail("the same owner twice, and not 0", "%d, %d (reentrant: %t)", first.Owner, second.Owner, !second.NotReentrant)
			}
			grant.Count = 2
			c.grant(second, grant)
			if r := s.awaitOK(n, "the second acquire succeeds"); r.Shared {
				s.fail("a handle that is not shared, because its hold is not", "%s", r.line)
			}
			s.release(c, "two", 5)
			s.held("one", "one of two entries was released")
			s.release(c, "one", 5)
			s.fence(c, "the hold has no entry left")
		},
	},
	{
		Name: "rw/unsupported", Spec: "§4.20, §6.1", Needs: []Feature{ReadWrite},
		Demand: "If the sidecar does not know acquire_rw, that acquire fails with unsupported; the session and its holds go on.",
		play: func(s *stage) {
			c := s.holding("a")
			n, x := s.request(c, command{As: "x", Name: "catalog", Mode: shared})
			c.refuse(x.ID, protocol.Unsupported, "acquire_rw is not known; this sidecar is older")
			s.awaitError(n, "the acquire fails with the error unsupported", "unsupported")
			s.held("a", "only the acquire of a read/write lock failed")
			s.release(c, "a", 1)
		},
	},
	{
		Name: "rw/bad-frame", Spec: "§2, §4.19, §7", Needs: []Feature{ReadWrite},
		Demand: badFrameDemand("a grant whose shared is an int"),
		play: func(s *stage) {
			playBadFrame(s, command{As: "x", Name: "catalog", Mode: shared}, "a grant whose shared is an int", func(id uint64) []byte {
				return frame(pairs("id", id, "token", 5, "hold", 9, "count", 1, "deadline_ns", protocol.Now()+hour, "shared", 1))
			})
		},
	},
	{
		Name: "rw/downgrade", Spec: "§4.19", Needs: []Feature{ReadWrite},
		Demand: "A downgrade sends downgrade of the hold. The handle goes on, and is released once.",
		play: func(s *stage) {
			c := s.open()
			s.readWrite(c, "a", exclusive, 1)
			s.downgraded(c, "a", 1)
			s.held("a", "it is shared now")
			s.release(c, "a", 1)
			s.lost("a", "it was released")
			s.fence(c, "the hold was released once")
		},
	},
	{
		Name: "rw/lost", Spec: "§4.19, §5.1", Needs: []Feature{ReadWrite},
		Demand: "A lost event ends the hold that it names, and no other hold of the read/write lock.",
		play: func(s *stage) {
			c := s.holdingShared("a", "b")
			c.lost(2, protocol.ByForce)
			s.lostSoon("b", "it was lost", "forced")
			s.held("a", "only hold 2 was lost")
			s.release(c, "a", 1)
			s.fence(c, "hold 2 was lost")
		},
	},
	{
		Name: "rw/canceled-too-late", Spec: "§4.5, §4.19, §9.1", Needs: []Feature{ReadWrite, Concurrent, Cancel},
		Demand: "An acquire of a read/write lock is canceled like one of a lock; if the grant was sent before, the client releases the hold, or its caller gets it.",
		play:   func(s *stage) { playCanceledTooLate(s, command{As: "a", Name: "catalog", Mode: shared}) },
	},
	{
		Name: "rw/claims", Spec: "§4.11, §4.19", Needs: []Feature{ReadWrite, Resume},
		Demand: "A client that resumes claims each hold of a read/write lock, also one that was downgraded, but none that it has released; it sends no downgrade again that was answered.",
		play: func(s *stage) {
			c := s.open()
			s.readWrite(c, "a", exclusive, 1)
			s.downgraded(c, "a", 1)
			s.readWrite(c, "b", shared, 2)
			s.readWrite(c, "c", shared, 3)
			s.release(c, "b", 2)
			next, n := s.resumed(c, "a")
			next.answerClaim(next.claim(map[uint64]uint32{1: 1, 3: 1}))
			s.awaitHeld(n, "a", "it was claimed")
			s.held("c", "it was claimed")
			s.release(next, "a", 1)
			s.release(next, "c", 3)
			s.fence(next, "each hold was released once")
		},
	},
	{
		Name: "rw/downgrade-again", Spec: "§4.11, §4.19", Needs: []Feature{ReadWrite, Resume},
		Demand: "An unanswered downgrade is sent again after the answer to the last claim; bad_request is a success then, because it was executed before.",
		play: func(s *stage) {
			c := s.open()
			s.readWrite(c, "a", exclusive, 1)
			n := s.send(command{Do: "downgrade", As: "a"})
			c.downgrade(1)
			c.end()
			next := s.connectResuming()
			next.welcome(true)
			m := next.claim(map[uint64]uint32{1: 1})
			next.quiet("claims are due")
			next.answerClaim(m)
			next.refuse(next.downgrade(1).ID, protocol.BadRequest, "hold 1 is shared already")
			s.awaitOK(n, "the downgrade succeeds")
			s.held("a", "it is shared now")
			s.release(next, "a", 1)
			s.fence(next, "the hold was released once")
		},
	},
	{
		Name: "rw/waiters", Spec: "§4.11, §4.19", Needs: []Feature{ReadWrite, Resume, Concurrent},
		Demand: "Unanswered acquires of read/write locks are sent again after the answer to the last claim: as acquire_rw with their modes, in their order, with what is left of wait_ms.",
		play:   func(s *stage) { playWaiters(s, true, readWriteWaiters) },
	},
	{
		Name: "rw/waiters-new-session", Spec: "§4.11, §4.19", Needs: []Feature{ReadWrite, Resume, Concurrent},
		Demand: "If the session is not resumed, unanswered acquires of read/write locks are sent again after the answer to hello.",
		play:   func(s *stage) { playWaiters(s, false, readWriteWaiters) },
	},
	{
		Name: "rw/notified", Spec: "§5.1", Needs: []Feature{ReadWrite, Notify},
		Demand: "The client reports the loss of a shared hold without being asked.",
		play: func(s *stage) {
			c := s.holdingShared("a", "b")
			c.lost(2, protocol.Deleted)
			s.awaitLoss("b", "deleted")
			s.held("a", "only hold 2 was lost")
		},
	},
}

// readWriteWaiters are two acquires of one read/write lock, "x" with wait_ms and "y" without.
var readWriteWaiters = [2]command{
	{As: "x", Name: "catalog", Mode: exclusive, WaitMS: ms(60_000)},
	{As: "y", Name: "catalog", Mode: shared},
}

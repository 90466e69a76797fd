package conform

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// permits acquires permits of the semaphore "api" of 10 for the client, and grants them.
func (s *stage) permits(c *conn, as string, permits uint16, hold uint64, deadline int64) {
	s.acquireAs(c, command{As: as, Name: "api", Permits: permits, Of: 10},
		protocol.AcquireOK{Hold: hold, DeadlineNS: deadline, Permits: permits, Of: 10})
}

// holdingPermits opens a session that holds each of the handles for an hour: permits of "api", with the holds 1, 2, ….
func (s *stage) holdingPermits(handles ...string) *conn {
	c := s.open()
	for i, as := range handles {
		s.permits(c, as, uint16(i+1), uint64(i+1), protocol.Now()+hour)
	}
	return c
}

var permitScenes = []Scene{
	{
		Name: "permits/grant-and-release", Spec: "§4.18, §4.3", Needs: []Feature{Permits},
		Demand: "An acquire of permits sends acquire_permits with of, permits or the default 1, and no wait_ms; a grant is held; release sends one release of the hold.",
		play: func(s *stage) {
			c := s.open()
			for i, cmd := range []command{
				{Name: "api", Of: 10},
				{Name: "api", Of: 10, Permits: 2},
				{Name: "api", Of: 1},
				{Name: "api", Of: 65_535, Permits: 65_535},
			} {
				cmd.As = fmt.Sprint(i)
				hold := uint64(i + 1)
				a := s.acquireAs(c, cmd, protocol.AcquireOK{Hold: hold, DeadlineNS: protocol.Now() + hour, Permits: max(cmd.Permits, 1), Of: cmd.Of})
				if a.WaitMS != protocol.Forever || a.LeaseMS != 0 || a.MaxHoldMS != 0 || a.CrashDelayMS != 0 {
					s.fail("an acquire_permits without wait_ms, lease_ms, max_hold_ms and crash_delay_ms", "%s", c.last)
				}
				s.held(cmd.As, "it was granted")
				s.release(c, cmd.As, hold)
				s.lost(cmd.As, "it was released")
			}
			s.fence(c, "each hold was released once")
		},
	},
	{
		Name: "permits/wait", Spec: "§4.18", Needs: []Feature{Permits},
		Demand: "An acquire of permits sends wait_ms as an acquire does: 0 for a try, or what it was given, or a little less; timeout is its error.",
		play: func(s *stage) {
			c := s.open()
			for _, wait := range []int64{0, 86_400_000} {
				n, a := s.request(c, command{As: "a", Name: "api", Of: 10, WaitMS: ms(wait)})
				if a.WaitMS > wait || a.WaitMS < max(0, wait-s.patience.Milliseconds()) {
					s.fail(fmt.Sprintf("an acquire_permits with wait_ms %d", wait), "%s", c.last)
				}
				c.refuse(a.ID, protocol.Timeout, "10 of 10 permits are held")
				s.awaitError(n, "the acquire fails with the error timeout", "timeout")
			}
		},
	},
	{
		Name: "permits/times", Spec: "§4.18", Needs: []Feature{Permits, Lease, MaxHold, CrashDelay},
		Demand: "lease_ms, max_hold_ms and crash_delay_ms of permits are sent as they were given.",
		play: func(s *stage) {
			c := s.open()
			end := protocol.Now() + hour
			a := s.acquireAs(c, command{As: "a", Name: "api", Of: 10, LeaseMS: 61_234, MaxHoldMS: 71_234, CrashDelayMS: 81_234},
				protocol.AcquireOK{Hold: 1, DeadlineNS: end, EndNS: end, Permits: 1, Of: 10})
			if a.LeaseMS != 61_234 || a.MaxHoldMS != 71_234 || a.CrashDelayMS != 81_234 {
				s.fail("an acquire_permits with lease_ms 61234, max_hold_ms 71234 and crash_delay_ms 81234", "%s", c.last)
			}
		},
	},
	{
		Name: "permits/two-holds", Spec: "§4.18, §9.1", Needs: []Feature{Permits},
		Demand: "Two acquires of permits of one semaphore are two holds: each has its own handle, which releases its own hold, once.",
		play:   func(s *stage) { playTwoHolds(s, 0) },
	},
	{
		Name: "permits/one-owner", Spec: "§4.18", Needs: []Feature{Permits, Owners},
		Demand: "An owner does not re-enter its permits: its second acquire is a request, and a hold of its own.",
		play:   func(s *stage) { playTwoHolds(s, 3) },
	},
	{
		Name: "permits/answers", Spec: "§4.18", Needs: []Feature{Permits},
		Demand: "A grant whose of is lower than that of the request is a grant, and so is one without permits and of.",
		play: func(s *stage) {
			c := s.open()
			lower := protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour, Permits: 2, Of: 5}
			s.acquireAs(c, command{As: "lower", Name: "api", Permits: 2, Of: 10}, lower)
			absent := protocol.AcquireOK{Hold: 2, DeadlineNS: protocol.Now() + hour}
			s.acquireAs(c, command{As: "absent", Name: "api", Permits: 2, Of: 10}, absent)
			s.held("lower", "it was granted")
			s.held("absent", "it was granted")
			s.release(c, "lower", 1)
			s.release(c, "absent", 2)
		},
	},
	{
		Name: "permits/unsupported", Spec: "§4.20, §6.1", Needs: []Feature{Permits},
		Demand: "If the sidecar does not know acquire_permits, that acquire fails with unsupported; the session and its holds go on.",
		play: func(s *stage) {
			c := s.holding("a")
			n, x := s.request(c, command{As: "x", Name: "api", Of: 10})
			c.refuse(x.ID, protocol.Unsupported, "acquire_permits is not known; this sidecar is older")
			s.awaitError(n, "the acquire fails with the error unsupported", "unsupported")
			s.held("a", "only the acquire of permits failed")
			s.acquire(c, "b", 2, protocol.Now()+hour)
			s.release(c, "a", 1)
		},
	},
	{
		Name: "permits/bad-frame", Spec: "§2, §4.18, §7", Needs: []Feature{Permits},
		Demand: badFrameDemand("a grant of 65,536 permits"),
		play: func(s *stage) {
			playBadFrame(s, command{As: "x", Name: "api", Of: 10}, "a grant of 65,536 permits", func(id uint64) []byte {
				return frame(pairs("id", id, "token", 5, "hold", 9, "count", 1, "deadline_ns", protocol.Now()+hour, "permits", 65_536, "of", 10))
			})
		},
	},
	{
		Name: "permits/lost", Spec: "§4.18, §5.1", Needs: []Feature{Permits},
		Demand: "A lost event ends the hold that it names, and no other hold of the semaphore.",
		play: func(s *stage) {
			c := s.holdingPermits("a", "b", "c")
			c.lost(2, protocol.ByForce)
			s.lostSoon("b", "it was lost", "forced")
			s.held("a", "only hold 2 was lost")
			s.held("c", "only hold 2 was lost")
			r := s.awaitError(s.send(command{Do: "release", As: "b"}), "the release fails with the error lost", "lost")
			if r.Reason != "forced" {
				s.fail("the release fails with the reason forced", "%s", r.line)
			}
			s.release(c, "a", 1)
			s.release(c, "c", 3)
			s.fence(c, "hold 2 was lost")
		},
	},
	{
		Name: "permits/deadline", Spec: "§5.2, §9.1", Needs: []Feature{Permits},
		Demand: "Each hold of a semaphore ends at its own deadline, and is released once; the others go on.",
		play: func(s *stage) {
			c := s.open()
			s.permits(c, "a", 2, 1, protocol.Now()+hour)
			deadline := protocol.Now() + soon
			s.permits(c, "b", 2, 2, deadline)
			s.sleepUntil(deadline)
			s.lost("b", "its deadline has passed", "expired")
			s.releaseLost(c, "b", 2)
			s.held("a", "its deadline is in an hour")
			s.release(c, "a", 1)
			s.fence(c, "each hold was released once")
		},
	},
	{
		Name: "permits/lease-event", Spec: "§5.2", Needs: []Feature{Permits},
		Demand: "A lease event moves the deadlines of all holds of a semaphore that were granted before it.",
		play: func(s *stage) {
			c := s.open()
			deadline := protocol.Now() + 2*soon
			s.permits(c, "a", 1, 1, deadline)
			s.permits(c, "b", 2, 2, deadline)
			c.lease(protocol.Now() + hour)
			s.acquire(c, "c", 3, protocol.Now()+hour) // it has read the event
			isLate := protocol.Now() > deadline-int64(100*time.Millisecond)
			s.sleepUntil(deadline)
			if !isLate {
				s.held("a", "a lease event has moved its deadline")
				s.held("b", "a lease event has moved its deadline")
			}
		},
	},
	{
		Name: "permits/lease-event-fixed", Spec: "§4.18, §5.2", Needs: []Feature{Permits, Lease},
		Demand: "A lease event does not apply to permits with a fixed lease.",
		play: func(s *stage) {
			c := s.open()
			deadline := protocol.Now() + soon
			s.acquireAs(c, command{As: "fixed", Name: "api", Of: 10, LeaseMS: 1000},
				protocol.AcquireOK{Hold: 1, DeadlineNS: deadline, Permits: 1, Of: 10})
			c.lease(protocol.Now() + hour)
			s.sleepUntil(deadline)
			s.lost("fixed", "its lease is fixed", "expired")
			s.releaseLost(c, "fixed", 1)
		},
	},
	{
		Name: "permits/canceled-too-late", Spec: "§4.5, §4.18, §9.1", Needs: []Feature{Permits, Concurrent, Cancel},
		Demand: "An acquire of permits is canceled like one of a lock; if the grant was sent before, the client releases the hold, or its caller gets it.",
		play:   func(s *stage) { playCanceledTooLate(s, command{As: "a", Name: "api", Permits: 2, Of: 10}) },
	},
	{
		Name: "permits/claims", Spec: "§4.11, §4.18", Needs: []Feature{Permits, Resume},
		Demand: "A client that resumes claims each hold of a semaphore with 1 entry, but none that it has released.",
		play: func(s *stage) {
			c := s.holdingPermits("a", "b", "c")
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
		Name: "permits/waiters", Spec: "§4.11, §4.18", Needs: []Feature{Permits, Resume, Concurrent},
		Demand: "Unanswered acquires of permits are sent again after the answer to the last claim: as acquire_permits, in their order, with what is left of wait_ms.",
		play:   func(s *stage) { playWaiters(s, true, permitWaiters) },
	},
	{
		Name: "permits/waiters-new-session", Spec: "§4.11, §4.18", Needs: []Feature{Permits, Resume, Concurrent},
		Demand: "If the session is not resumed, unanswered acquires of permits are sent again after the answer to hello.",
		play:   func(s *stage) { playWaiters(s, false, permitWaiters) },
	},
	{
		Name: "permits/confirm", Spec: "§4.4", Needs: []Feature{Permits, Confirm},
		Demand: "A release of permits with confirm sends release, then confirm of the semaphore, also while the client has other permits of it.",
		play: func(s *stage) {
			c := s.holdingPermits("a", "b")
			n := s.send(command{Do: "release", As: "a", Confirm: true})
			c.release(1)
			c.reply(protocol.ConfirmOK{ID: c.confirm("api").ID})
			s.awaitOK(n, "the release succeeds")
			s.held("b", "only hold 1 was released")
			s.fence(c, "hold 1 was released once")
		},
	},
	{
		Name: "permits/confirm-not-read", Spec: "§4.4, §4.7", Needs: []Feature{Permits, Confirm, Resume},
		Demand: "If the new session's sidecar still has the released hold among the holders of the semaphore, the release fails with unconfirmed.",
		play: func(s *stage) {
			c := s.holdingPermits("a")
			n := s.send(command{Do: "release", As: "a", Confirm: true})
			c.release(1)
			c.confirm("api")
			c.end()
			next := s.connectResuming()
			next.welcome(false)
			info := expect[*protocol.Info](next, `an info about "api"`)
			next.reply(protocol.InfoOK{ID: info.ID, Lock: &protocol.LockRow{
				Name: "api", Kind: protocol.KindPermits, State: protocol.StateHeld, Hold: 2, Count: 1, Held: 2, Permits: 3, Of: 10,
				Holders: []protocol.HolderRow{{Hold: 2, Permits: 2}, {Hold: 1, Permits: 1}},
			}})
			s.awaitError(n, "the release fails with the error unconfirmed", "unconfirmed")
			s.fence(next, "no answer would confirm the release")
		},
	},
	{
		Name: "permits/notified", Spec: "§5.1", Needs: []Feature{Permits, Notify},
		Demand: "The client reports the loss of permits without being asked.",
		play: func(s *stage) {
			c := s.holdingPermits("a", "b")
			c.lost(2, protocol.Deleted)
			s.awaitLoss("b", "deleted")
			s.held("a", "only hold 2 was lost")
		},
	},
}

// permitWaiters are two acquires of permits of one semaphore, "x" with wait_ms and "y" without.
var permitWaiters = [2]command{
	{As: "x", Name: "api", Permits: 9, Of: 10, WaitMS: ms(60_000)},
	{As: "y", Name: "api", Of: 10},
}

// playTwoHolds lets an owner acquire permits twice; 0: acquires of no owner.
func playTwoHolds(s *stage, owner int) {
	c := s.open()
	for i, as := range []string{"one", "two"} {
		s.acquireAs(c, command{As: as, Name: "api", Permits: 2, Of: 10, Owner: owner},
			protocol.AcquireOK{Hold: uint64(i + 1), DeadlineNS: protocol.Now() + hour, Permits: 2, Of: 10})
	}
	s.release(c, "one", 1)
	s.held("two", "only the first hold was released")
	s.awaitError(s.send(command{Do: "release", As: "one"}), "the second release of a handle fails with the error not_held", "not_held")
	s.fence(c, "the first hold was released before")
	s.release(c, "two", 2)
	s.fence(c, "each hold was released once")
}

package conform

import (
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// soon is how long after their grants the holds of these scenes end.
const soon = int64(700 * time.Millisecond)

var deadlineScenes = []Scene{
	{
		Name: "deadline/passes", Spec: "§5.2, §9.1",
		Demand: "A hold whose deadline has passed is lost with the reason expired, and is released, at the latest with its handle; a later lease event does not change that.",
		play: func(s *stage) {
			c := s.open()
			deadline := protocol.Now() + soon
			s.acquire(c, "a", 1, deadline)
			s.sleepUntil(deadline)
			s.lost("a", "its deadline has passed", "expired")
			c.lease(protocol.Now() + hour)
			n, b := s.requestAfterRelease(c, 1, command{As: "b", Name: "b"})
			c.grant(b, protocol.AcquireOK{Hold: 2, DeadlineNS: protocol.Now() + hour})
			s.awaitOK(n, "the acquire succeeds")
			s.lost("a", "it was lost before the lease event arrived", "expired")
			n = s.send(command{Do: "release", As: "a"})
			if s.entries[1] > 0 {
				c.release(1)
			}
			s.awaitError(n, "the release fails with the error lost", "lost")
			s.fence(c, "the hold was released once")
		},
	},
	{
		Name: "deadline/lease-event", Spec: "§5.2",
		Demand: "A lease event moves the deadlines of all watchdog holds that were granted before it, and of no later one.",
		play: func(s *stage) {
			c := s.open()
			deadline := protocol.Now() + soon
			s.acquire(c, "before", 1, deadline)
			c.lease(protocol.Now() + hour)
			deadline = protocol.Now() + soon
			s.acquire(c, "after", 2, deadline)
			s.sleepUntil(deadline)
			s.lost("after", "the lease event came before its grant", "expired")
			s.releaseLost(c, "after", 2)
			s.held("before", "a lease event has moved its deadline")
		},
	},
	{
		Name: "deadline/lease-event-not-earlier", Spec: "§5.2",
		Demand: "A lease event with an earlier deadline does not shorten a hold.",
		play: func(s *stage) {
			c := s.open()
			s.acquire(c, "a", 1, protocol.Now()+hour)
			c.lease(protocol.Now() + 1)
			s.acquire(c, "b", 2, protocol.Now()+hour) // it has read the event
			s.held("a", "its largest deadline counts")
		},
	},
	{
		Name: "deadline/lease-event-fixed", Spec: "§5.2", Needs: []Feature{Lease},
		Demand: "A lease event does not apply to a hold with a fixed lease.",
		play: func(s *stage) {
			c := s.open()
			deadline := protocol.Now() + soon
			s.acquireAs(c, command{As: "fixed", Name: "a", LeaseMS: 1000}, protocol.AcquireOK{Hold: 1, DeadlineNS: deadline})
			c.lease(protocol.Now() + hour)
			s.sleepUntil(deadline)
			s.lost("fixed", "its lease is fixed", "expired")
			s.releaseLost(c, "fixed", 1)
		},
	},
	{
		Name: "deadline/re-entry-not-earlier", Spec: "§5.2", Needs: []Feature{Owners},
		Demand: "The grant of a re-entry with an earlier deadline does not shorten a hold.",
		play: func(s *stage) {
			c := s.open()
			grant := protocol.AcquireOK{Hold: 1, Token: 1, DeadlineNS: protocol.Now() + hour/2}
			s.acquireAs(c, command{As: "one", Name: "a", Owner: 1}, grant)
			c.lease(protocol.Now() + hour)
			grant.Count, grant.DeadlineNS = 2, protocol.Now()+soon
			s.acquireAs(c, command{As: "two", Name: "a", Owner: 1}, grant)
			s.sleepUntil(grant.DeadlineNS)
			s.held("one", "its largest deadline counts")
			s.held("two", "the largest deadline of its hold counts")
		},
	},
	{
		Name: "deadline/re-entry-keeps-lease", Spec: "§4.2, §5.2", Needs: []Feature{Owners, Lease},
		Demand: "The lease of a re-entry is ignored: lease events apply to a hold if its first entry had no fixed lease, and only then.",
		play: func(s *stage) {
			c := s.open()
			deadline := protocol.Now() + 2*soon
			renewed := protocol.AcquireOK{Hold: 1, Token: 1, DeadlineNS: deadline}
			s.acquireAs(c, command{As: "renewed", Name: "a", Owner: 1}, renewed)
			fixed := protocol.AcquireOK{Hold: 2, Token: 2, DeadlineNS: deadline}
			s.acquireAs(c, command{As: "fixed", Name: "b", Owner: 1, LeaseMS: 1000}, fixed)
			renewed.Count, fixed.Count = 2, 2
			s.acquireAs(c, command{As: "renewed, second entry", Name: "a", Owner: 1, LeaseMS: 1000}, renewed)
			s.acquireAs(c, command{As: "fixed, second entry", Name: "b", Owner: 1}, fixed)
			c.lease(protocol.Now() + hour)
			s.acquire(c, "c", 3, protocol.Now()+hour) // it has read the event
			isLate := protocol.Now() > deadline-soon/2
			s.sleepUntil(deadline)
			if !isLate {
				s.held("renewed", "a lease event has moved its deadline")
				s.held("renewed, second entry", "a lease event has moved the deadline of its hold")
			}
			s.lost("fixed", "the lease of its first entry is fixed", "expired")
			s.lost("fixed, second entry", "the lease of the first entry is fixed", "expired")
		},
	},
	{
		Name: "deadline/max-hold", Spec: "§4.2, §5.2", Needs: []Feature{MaxHold},
		Demand: "A hold ends at its end_ns with the reason max_hold, whatever its deadline is.",
		play: func(s *stage) {
			c := s.open()
			end := protocol.Now() + soon
			s.acquireAs(c, command{As: "a", Name: "a", MaxHoldMS: 1000}, protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour, EndNS: end})
			c.lease(protocol.Now() + 2*hour)
			s.sleepUntil(end)
			s.lost("a", "its end_ns has passed", "max_hold")
			s.releaseLost(c, "a", 1)
		},
	},
	{
		Name: "deadline/late-lease-event", Spec: "§5.2",
		Demand: "A client that was stopped over the deadline reads before it decides: a lease event that waits in the socket keeps the hold.",
		play: func(s *stage) {
			c := s.open()
			deadline := s.stoppedHolding(c)
			c.lease(protocol.Now() + hour)
			s.sleepUntil(deadline)
			n := s.check("a")
			s.thaw()
			s.awaitHeld(n, "a", "the lease event arrived before the client looked")
		},
	},
	{
		Name: "deadline/late-lease-event-read-second", Spec: "§5.2",
		Demand: "It reads before it decides also if the caller's check is the first of the two that it finds.",
		play: func(s *stage) {
			c := s.open()
			// Which of the two the client reads first is up to its host: several times make both orders likely.
			for range 3 {
				deadline := s.stoppedHolding(c)
				n := s.check("a") // it is in the driver's input before the event is in the socket
				c.lease(protocol.Now() + hour)
				s.sleepUntil(deadline)
				s.thaw()
				s.awaitHeld(n, "a", "the lease event arrived before the client looked")
				s.release(c, "a", 1)
			}
		},
	},
	{
		Name: "deadline/late-lease-event-after-much", Spec: "§5.2",
		Demand: "It reads everything that has arrived before it decides, also if that takes more than one read.",
		play: func(s *stage) {
			c := s.open()
			deadline := s.stoppedHolding(c)
			for range 2 { // more than 65,536 bytes, and less than a socket has room for
				c.raw(frame(pairs("ev", "weather", "rain", strings.Repeat("r", 40_000))))
			}
			c.lease(protocol.Now() + hour)
			s.sleepUntil(deadline)
			n := s.check("a")
			s.thaw()
			s.awaitHeld(n, "a", "the lease event arrived before the client looked")
		},
	},
	{
		Name: "deadline/late-lost-event", Spec: "§5.2",
		Demand: "A client that was stopped over the deadline finds the hold lost, with the reason that waits in the socket, or expired.",
		play: func(s *stage) {
			c := s.open()
			deadline := s.stoppedHolding(c)
			c.lost(1, protocol.Stolen)
			s.sleepUntil(deadline)
			s.thaw()
			s.lost("a", "it is lost", "stolen", "expired")
		},
	},
	{
		Name: "deadline/entries", Spec: "§9.1", Needs: []Feature{Owners},
		Demand: "A hold that ended by the client's clock is released once for each of its entries.",
		play: func(s *stage) {
			c := s.open()
			deadline := protocol.Now() + soon
			grant := protocol.AcquireOK{Hold: 1, Token: 1, DeadlineNS: deadline}
			s.acquireAs(c, command{As: "one", Name: "a", Owner: 1}, grant)
			grant.Count = 2
			s.acquireAs(c, command{As: "two", Name: "a", Owner: 1}, grant)
			s.sleepUntil(deadline)
			s.lost("one", "its deadline has passed", "expired")
			s.lost("two", "its deadline has passed", "expired")
			s.releaseLost(c, "one", 1)
			s.releaseLost(c, "two", 1)
			s.fence(c, "each entry was released once")
		},
	},
	{
		Name: "deadline/notified", Spec: "§5.2", Needs: []Feature{Notify},
		Demand: "The client reports at the deadline that the hold is lost, without being asked, while the sidecar hangs.",
		play: func(s *stage) {
			c := s.open()
			s.acquire(c, "a", 1, protocol.Now()+soon)
			s.awaitLoss("a", "expired")
			s.releaseLost(c, "a", 1)
		},
	},
	{
		Name: "hang/deadline", Spec: "§5.2",
		Demand: "While the sidecar neither reads nor answers, a hold ends at its deadline, and check and release do not wait for the sidecar.",
		play: func(s *stage) {
			c := s.open()
			s.acquire(c, "b", 2, protocol.Now()+hour)
			deadline := protocol.Now() + soon
			s.acquire(c, "a", 1, deadline)
			s.hangs = true
			s.sleepUntil(deadline)
			s.lost("a", "its deadline has passed", "expired")
			s.awaitOK(s.send(command{Do: "release", As: "b"}), "the release succeeds without an answer of the sidecar")
			s.awaitError(s.send(command{Do: "release", As: "a"}), "the release fails with the error lost", "lost")
			s.hangs = false
			released := map[uint64]bool{}
			for range 2 {
				released[expect[*protocol.Release](c, "the releases of both holds").Hold] = true
			}
			if len(released) != 2 {
				s.fail("the releases of both holds", "%v", released)
			}
		},
	},
	{
		Name: "hang/checks", Spec: "§5.2",
		Demand: "While the sidecar neither reads nor answers, 20 checks one after the other take no longer than the patience of a scene.",
		play: func(s *stage) {
			c := s.open()
			s.acquire(c, "a", 1, protocol.Now()+hour)
			s.hangs = true
			began := time.Now()
			for range 20 {
				s.held("a", "its deadline is in an hour")
			}
			if took := time.Since(began); took > s.patience {
				s.fail(fmt.Sprintf("20 checks in at most %v", s.patience), "%v", took)
			}
			s.hangs = false
		},
	},
	{
		Name: "hang/late-grant", Spec: "§9.1", Needs: []Feature{Limit},
		Demand: "An acquire that the sidecar does not answer ends with timeout or unavailable; a grant that comes later is released.",
		play: func(s *stage) {
			c := s.open()
			n, a := s.request(c, command{As: "a", Name: "a", WaitMS: ms(200)})
			s.hangs = true
			s.awaitError(n, "the acquire ends with the error timeout or unavailable", "timeout", "unavailable")
			s.hangs = false
			c.grant(a, protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour})
			s.expectGivenUp(c, a.ID, 1)
			s.acquire(c, "b", 2, protocol.Now()+hour)
		},
	},
}

// releaseLost releases a handle of a hold that ended by the client's clock. The client sends
// the release when it finds that the hold has ended, or now.
func (s *stage) releaseLost(c *conn, as string, hold uint64) {
	n := s.send(command{Do: "release", As: as})
	c.release(hold)
	s.awaitError(n, "the release fails with the error lost", "lost")
}

// stoppedHolding lets the client acquire "a" with hold 1, and stops it before the deadline,
// which it returns.
func (s *stage) stoppedHolding(c *conn) int64 {
	for wait := 2 * soon; ; wait *= 4 {
		deadline := protocol.Now() + wait
		s.acquire(c, "a", 1, deadline)
		s.freeze()
		if protocol.Now() < deadline-soon {
			return deadline
		}
		// This host is slow: the client may have found that the deadline has passed.
		s.thaw()
		n := s.send(command{Do: "release", As: "a"})
		c.release(1)
		s.await(n, "the answer to release")
	}
}

// expectGivenUp expects the release of a grant that no caller got. A cancel of the acquire and
// an info may come before it.
func (s *stage) expectGivenUp(c *conn, id, hold uint64) {
	const what = "a release of the hold that no caller got"
	m := c.next()
	for {
		if cancel, ok := m.(*protocol.Cancel); ok && cancel.Target == id {
			if cancel.ID != 0 {
				c.reply(protocol.CancelOK{ID: cancel.ID})
			}
		} else if info, ok := m.(*protocol.Info); ok {
			c.reply(protocol.InfoOK{ID: info.ID})
		} else {
			break
		}
		m = c.next()
	}
	r, ok := m.(*protocol.Release)
	if !ok || r.Hold != hold {
		s.fail(what, "%s", c.last)
	}
	c.answerRelease(r)
}

var cancelScenes = []Scene{
	{
		Name: "cancel/waiting", Spec: "§4.5, §9.1", Needs: []Feature{Concurrent, Cancel},
		Demand: "To give up waiting, the client sends cancel with the id of the acquire, which ends with canceled.",
		play: func(s *stage) {
			c := s.open()
			n, a := s.request(c, command{As: "a", Name: "a"})
			s.send(command{Do: "cancel", Target: n})
			m := c.cancel(a.ID)
			c.refuse(a.ID, protocol.Canceled, "canceled by the client")
			if m.ID != 0 {
				c.reply(protocol.CancelOK{ID: m.ID, Canceled: true})
			}
			s.awaitError(n, "the acquire fails with the error canceled", "canceled")
			s.fence(c, "nothing is held")
		},
	},
	{
		Name: "cancel/too-late", Spec: "§4.5, §9.1", Needs: []Feature{Concurrent, Cancel},
		Demand: "If the grant was sent before the cancel was read, the client releases the hold, or its caller gets it.",
		play:   func(s *stage) { playCanceledTooLate(s, command{As: "a", Name: "a"}) },
	},
	{
		Name: "cancel/lost-grant", Spec: "§4.5, §5.1", Needs: []Feature{Concurrent, Cancel},
		Demand: "A grant that is lost at once, while the acquire is canceled, leaves nothing behind.",
		play: func(s *stage) {
			c := s.open()
			n, a := s.request(c, command{As: "a", Name: "a"})
			s.send(command{Do: "cancel", Target: n})
			m := c.cancel(a.ID)
			c.grant(a, protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour})
			c.lost(1, protocol.ByForce)
			if m.ID != 0 {
				c.reply(protocol.CancelOK{ID: m.ID, Canceled: false})
			}
			if r := s.await(n, "the acquire ends"); r.OK {
				s.lostSoon("a", "it was lost", "forced")
			}
			n, a = s.requestAfterRelease(c, 1, command{As: "b", Name: "a"})
			c.grant(a, protocol.AcquireOK{Hold: 2, DeadlineNS: protocol.Now() + hour})
			s.awaitOK(n, "the next acquire succeeds")
			s.held("b", "only the earlier hold was lost")
		},
	},
}

// playCanceledTooLate cancels an acquire, and grants it.
func playCanceledTooLate(s *stage, acquire command) {
	c := s.open()
	n, a := s.request(c, acquire)
	s.send(command{Do: "cancel", Target: n})
	m := c.cancel(a.ID)
	c.grant(a, protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour})
	if m.ID != 0 {
		c.reply(protocol.CancelOK{ID: m.ID, Canceled: false})
	}
	r := s.await(n, "the acquire ends")
	switch {
	case r.OK:
		s.held("a", "the acquire succeeded")
		s.release(c, "a", 1)
	case r.Error == "canceled":
		c.release(1)
	default:
		s.fail("the acquire succeeds, or fails with the error canceled", "%s", r.line)
	}
	s.fence(c, "the hold was released once")
}

// requestAfterRelease is request; a release of an earlier hold may come before it.
func (s *stage) requestAfterRelease(c *conn, hold uint64, cmd command) (int, *protocol.Acquire) {
	cmd.Do = "acquire"
	n := s.send(cmd)
	m := c.next()
	if r, ok := m.(*protocol.Release); ok && r.Hold == hold {
		if r.ID != 0 {
			c.refuse(r.ID, protocol.NotHeld, "it was lost before")
		}
		m = c.next()
	}
	a, ok := m.(*protocol.Acquire)
	if !ok {
		s.fail("an acquire", "%s", c.last)
	}
	return n, a
}

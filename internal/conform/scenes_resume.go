package conform

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// holding opens a session that holds each of the locks, with the holds 1, 2, … for an hour.
func (s *stage) holding(names ...string) *conn {
	c := s.open()
	for i, name := range names {
		s.acquire(c, name, uint64(i+1), protocol.Now()+hour)
	}
	return c
}

// resumed ends a connection and lets the client resume its session, up to the answer to hello.
// A check of a lock makes clients connect that do so only when they are used; its number is
// returned.
func (s *stage) resumed(c *conn, as string) (*conn, int) {
	c.end()
	n := s.check(as)
	next := s.connectResuming()
	next.welcome(true)
	return next, n
}

var resumeScenes = []Scene{
	{
		Name: "end/new-session", Spec: "§9.1",
		Demand: "After the end of the connection holds stay valid until their deadlines, are not released over a new session, and later acquires work.",
		play: func(s *stage) {
			c := s.holding("a", "b")
			c.end()
			n := s.check("a")
			x := s.send(command{Do: "acquire", As: "c", Name: "c"}) // a client may connect only now
			next := s.connect()
			next.welcome(false)
			s.awaitHeld(n, "a", "its deadline is in an hour")
			next.grant(next.acquire("c"), protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour}) // the number that "a" had
			s.awaitOK(x, "the acquire succeeds in the new session")
			s.await(s.send(command{Do: "release", As: "b"}), "the answer to release")
			s.fence(next, "the new session does not have that hold")
			s.release(next, "c", 1)
			s.held("a", "its deadline is in an hour")
		},
	},
	{
		Name: "end/orphan-expires", Spec: "§5.2, §9.1",
		Demand: "A hold of a session that has ended ends at its deadline, whatever is granted and renewed over the next session, also a hold with the same number.",
		play: func(s *stage) {
			c := s.open()
			deadline := protocol.Now() + 2*soon
			s.acquire(c, "a", 1, deadline)
			c.end()
			n := s.check("a")
			x := s.send(command{Do: "acquire", As: "b", Name: "b"}) // a client may connect only now
			next := s.connect()
			next.welcome(false)
			s.await(n, "the answer to check")
			next.grant(next.acquire("b"), protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour}) // the number that "a" had
			s.awaitOK(x, "the acquire succeeds in the new session")
			next.lease(protocol.Now() + hour)
			s.acquire(next, "c", 2, protocol.Now()+hour) // it has read the event
			s.sleepUntil(deadline)
			s.lost("a", "its session has ended, so nothing renews it", "expired")
			s.held("b", "its deadline is in an hour")
			s.fence(next, "the new session does not have the hold of a")
		},
	},
	{
		Name: "resume/claims", Spec: "§4.11, §9.2", Needs: []Feature{Resume},
		Demand: "The client connects again with the newest ticket, claims each hold with its entries, and goes on.",
		play: func(s *stage) {
			c := s.holding("a", "b")
			for range 2 { // the second time with the second ticket
				next, n := s.resumed(c, "a")
				next.answerClaim(next.claim(map[uint64]uint32{1: 1, 2: 1}))
				s.awaitHeld(n, "a", "it was claimed")
				c = next
			}
			s.held("b", "it was claimed")
			s.release(c, "a", 1)
			s.release(c, "b", 2)
		},
	},
	{
		Name: "resume/released-meanwhile", Spec: "§4.11, §9.2", Needs: []Feature{Resume},
		Demand: "A hold that is released while no sidecar listens is neither claimed nor released later.",
		play: func(s *stage) {
			c := s.holding("a", "b")
			s.unlisten()
			c.end()
			s.awaitOK(s.send(command{Do: "release", As: "a"}), "the release succeeds while no sidecar listens")
			s.listen()
			n := s.check("b")
			next := s.connectResuming()
			next.welcome(true)
			next.answerClaim(next.claim(map[uint64]uint32{2: 1}))
			s.awaitHeld(n, "b", "it was claimed")
			s.fence(next, "the hold was not claimed")
		},
	},
	{
		Name: "resume/expired-meanwhile", Spec: "§4.11, §9.2", Needs: []Feature{Resume},
		Demand: "A hold that the client found expired while no sidecar listens is neither claimed nor released later.",
		play: func(s *stage) {
			c := s.open()
			s.acquire(c, "b", 2, protocol.Now()+hour)
			deadline := protocol.Now() + soon
			s.acquire(c, "a", 1, deadline)
			s.unlisten()
			c.end()
			s.sleepUntil(deadline)
			s.lost("a", "its deadline has passed", "expired")
			s.listen()
			n := s.check("b")
			next := s.connectResuming()
			next.welcome(true)
			// A client that is late found that the hold has expired before the connection ended, and has released it.
			next.answerClaim(next.claim(map[uint64]uint32{2: 1}))
			s.awaitHeld(n, "b", "it was claimed")
			s.fence(next, "the hold was not claimed")
		},
	},
	{
		Name: "resume/entries", Spec: "§4.11, §9.2", Needs: []Feature{Resume, Owners},
		Demand: "A hold is claimed with the entries that are left.",
		play: func(s *stage) {
			c := s.holding("b")
			grant := protocol.AcquireOK{Hold: 7, Token: 7, DeadlineNS: protocol.Now() + hour}
			for i := range 4 {
				grant.Count = uint32(i + 1)
				s.acquireAs(c, command{As: fmt.Sprint(i), Name: "a", Owner: 1}, grant)
			}
			s.release(c, "3", 7)
			s.unlisten()
			c.end()
			s.awaitOK(s.send(command{Do: "release", As: "2"}), "the release succeeds while no sidecar listens")
			s.listen()
			n := s.check("0")
			next := s.connectResuming()
			next.welcome(true)
			next.answerClaim(next.claim(map[uint64]uint32{1: 1, 7: 2}))
			s.awaitHeld(n, "0", "it was claimed")
			s.release(next, "0", 7)
			s.release(next, "1", 7)
		},
	},
	{
		Name: "resume/pages", Spec: "§4.11, §8", Needs: []Feature{Resume},
		Demand: "Claims name at most 4,096 holds each; all but the last have more.",
		play: func(s *stage) {
			const holds = protocol.MaxClaims + 4
			c := s.open()
			for i := range holds {
				s.acquire(c, fmt.Sprint("n", i), uint64(i+1), protocol.Now()+hour)
			}
			next, n := s.resumed(c, "n0")
			claimed := 0
			for {
				m := expect[*protocol.Claim](next, "a claim")
				claimed += len(m.Holds)
				isLast := !m.More
				next.answerClaim(m)
				if isLast {
					break
				}
			}
			if claimed != holds {
				s.fail(fmt.Sprintf("claims of %d holds", holds), "claims of %d holds", claimed)
			}
			s.awaitHeld(n, "n0", "it was claimed")
			s.release(next, fmt.Sprint("n", holds-1), holds)
		},
	},
	{
		Name: "resume/lost-meanwhile", Spec: "§4.11", Needs: []Feature{Resume},
		Demand: "A hold that the sidecar reports as lost before the answer to the claim is lost.",
		play: func(s *stage) {
			c := s.holding("a", "b")
			next, n := s.resumed(c, "b")
			m := next.claim(map[uint64]uint32{1: 1, 2: 1})
			next.lost(1, protocol.Forgotten)
			next.answerClaim(m)
			s.awaitHeld(n, "b", "it was claimed")
			s.lostSoon("a", "it was reported as lost", "forgotten")
		},
	},
	{
		Name: "resume/lease-event", Spec: "§4.11, §5.2", Needs: []Feature{Resume},
		Demand: "A lease event before the answer to the claim moves the deadlines of the claimed holds.",
		play: func(s *stage) {
			c := s.open()
			deadline := protocol.Now() + 2*soon
			s.acquire(c, "a", 1, deadline)
			s.acquire(c, "b", 2, protocol.Now()+hour)
			next, n := s.resumed(c, "b")
			// A client that is late has treated "a" as lost, and claims it or not.
			m := expect[*protocol.Claim](next, "a claim")
			claimsBoth := len(m.Holds) == 2
			next.lease(protocol.Now() + hour)
			next.answerClaim(m)
			inTime := protocol.Now() < deadline-soon/2
			s.awaitHeld(n, "b", "it was claimed")
			s.sleepUntil(deadline)
			if claimsBoth && inTime {
				s.held("a", "the lease event has moved its deadline")
			}
		},
	},
	{
		Name: "resume/not-resumed", Spec: "§4.11, §9.2", Needs: []Feature{Resume},
		Demand: "If the session is not resumed, nothing is claimed, and the ticket of the new session counts.",
		play: func(s *stage) {
			c := s.holding("a")
			c.end()
			n := s.check("a")
			next := s.connectResuming()
			next.welcome(false)
			s.awaitHeld(n, "a", "its deadline is in an hour")
			s.acquire(next, "b", 1, protocol.Now()+hour)
			last, n := s.resumed(next, "b")
			last.answerClaim(last.claim(map[uint64]uint32{1: 1}))
			s.awaitHeld(n, "b", "it was claimed")
		},
	},
	{
		Name: "resume/orphan-expires", Spec: "§4.11, §5.2", Needs: []Feature{Resume},
		Demand: "A hold of a session that was not resumed ends at its deadline, whatever lease events the new session sends.",
		play: func(s *stage) {
			c := s.open()
			deadline := protocol.Now() + 2*soon
			s.acquire(c, "a", 1, deadline)
			c.end()
			n := s.check("a")
			next := s.connectResuming()
			next.welcome(false)
			s.await(n, "the answer to check")
			next.lease(protocol.Now() + hour)
			s.acquire(next, "b", 2, protocol.Now()+hour) // it has read the event
			s.sleepUntil(deadline)
			s.lost("a", "its session was not resumed, so nothing renews it", "expired")
			s.fence(next, "the new session does not have the hold")
		},
	},
	{
		Name: "resume/refused-for-now", Spec: "§4.11, §6.2, §9.2", Needs: []Feature{Resume},
		Demand: "If hello is refused with unavailable or limit, or not answered, the client tries again with the same ticket.",
		play: func(s *stage) {
			c := s.holding("a")
			c.end()
			n := s.check("a")
			for _, code := range []protocol.Code{protocol.Unavailable, protocol.Limit, ""} {
				// A client that connects only when it is used may have answered.
				next := s.connectNudged("a")
				if code == "" {
					next.end()
				} else {
					next.end(protocol.Err{ID: next.hello.ID, Code: code, Msg: "try again"})
				}
			}
			next := s.connectNudged("a")
			next.welcome(true)
			next.answerClaim(next.claim(map[uint64]uint32{1: 1}))
			s.awaitHeld(n, "a", "it was claimed")
		},
	},
	{
		Name: "resume/refused-for-good", Spec: "§9.2", Needs: []Feature{Resume},
		Demand: "After hello was refused with another error, its ticket is not used again.",
		play: func(s *stage) {
			c := s.holding("a")
			c.end()
			s.check("a")
			next := s.connectResuming()
			next.end(protocol.Err{ID: next.hello.ID, Code: protocol.Unsupported, Msg: "this sidecar is older"})
			s.expectOtherTicket()
		},
	},
	{
		Name: "resume/connection-error", Spec: "§6.2, §9.2", Needs: []Feature{Resume},
		Demand: "After a connection error that the client caused, its ticket is not used again.",
		play: func(s *stage) {
			c := s.holding("a")
			c.end(protocol.Err{Code: protocol.BadFrame, Msg: "the frame has a key twice"})
			s.expectOtherTicket()
		},
	},
	{
		Name: "resume/unavailable", Spec: "§6.2", Needs: []Feature{Resume},
		Demand: "After the connection error unavailable (the sidecar is stopping) the client resumes its session.",
		play: func(s *stage) {
			c := s.holding("a")
			c.reply(protocol.Err{Code: protocol.Unavailable, Msg: "the sidecar is stopping"})
			next, n := s.resumed(c, "a")
			next.answerClaim(next.claim(map[uint64]uint32{1: 1}))
			s.awaitHeld(n, "a", "it was claimed")
		},
	},
	{
		Name: "resume/pauses", Spec: "§4.11", Needs: []Feature{Resume, Concurrent},
		Demand: "While connections end at once, the pauses between the attempts grow: at most 40 attempts in 1 s.",
		play: func(s *stage) {
			c := s.holding("a")
			n, _ := s.request(c, command{As: "x", Name: "x"}) // it waits for a connection
			c.end()
			attempts := 0
			for until := protocol.Now() + int64(time.Second); protocol.Now() < until; {
				select {
				case nc := <-s.accepts:
					attempts++
					nc.Close()
				case <-time.After(10 * time.Millisecond):
				}
			}
			if attempts > 40 {
				s.fail("at most 40 attempts to connect in 1 s", "%d", attempts)
			}
			next := s.connectResuming()
			next.welcome(true)
			next.answerClaim(next.claim(map[uint64]uint32{1: 1}))
			x := next.acquire("x")
			next.grant(x, protocol.AcquireOK{Hold: 2, DeadlineNS: protocol.Now() + hour})
			s.awaitOK(n, "the acquire succeeds over the next connection")
		},
	},
	{
		Name: "claims/interrupted", Spec: "§4.11", Needs: []Feature{Resume},
		Demand: "If the connection ends before the claim is answered, the client claims the same again over the next one.",
		play: func(s *stage) {
			c := s.holding("a", "b")
			next, n := s.resumed(c, "a")
			next.claim(map[uint64]uint32{1: 1, 2: 1})
			next.end()
			last := s.connectNudged("a")
			last.welcome(true)
			last.answerClaim(last.claim(map[uint64]uint32{1: 1, 2: 1}))
			s.awaitHeld(n, "a", "it was claimed")
			s.held("b", "it was claimed")
			s.release(last, "b", 2)
		},
	},
	{
		Name: "claims/released-meanwhile", Spec: "§4.11, §9.2", Needs: []Feature{Resume},
		Demand: "A hold that is released between two attempts to claim is not claimed the second time.",
		play: func(s *stage) {
			c := s.holding("a", "b")
			next, n := s.resumed(c, "a")
			next.claim(map[uint64]uint32{1: 1, 2: 1})
			s.unlisten()
			next.end()
			s.awaitHeld(n, "a", "its deadline is in an hour")
			s.awaitOK(s.send(command{Do: "release", As: "b"}), "the release succeeds while no sidecar listens")
			s.listen()
			n = s.check("a")
			last := s.connectResuming()
			last.welcome(true)
			last.answerClaim(last.claim(map[uint64]uint32{1: 1}))
			s.awaitHeld(n, "a", "it was claimed")
			s.fence(last, "the hold was not claimed")
		},
	},
	{
		Name: "claims/release-while-due", Spec: "§4.11", Needs: []Feature{Resume},
		Demand: "A release of a claimed hold waits for the answer to the last claim.",
		play: func(s *stage) {
			c := s.holding("a", "b")
			next, n := s.resumed(c, "a")
			m := next.claim(map[uint64]uint32{1: 1, 2: 1})
			r := s.send(command{Do: "release", As: "b"})
			next.quiet("claims are due")
			next.answerClaim(m)
			next.release(2)
			s.awaitOK(r, "the release succeeds")
			s.awaitHeld(n, "a", "it was claimed")
			s.fence(next, "the hold was released once")
		},
	},
	{
		Name: "claims/release-not-carried-over", Spec: "§4.11, §9.2", Needs: []Feature{Resume},
		Demand: "A release that waited for the answer to the last claim is not sent over a later session.",
		play: func(s *stage) {
			c := s.holding("a", "b")
			next, n := s.resumed(c, "a")
			next.claim(map[uint64]uint32{1: 1, 2: 1})
			r := s.send(command{Do: "release", As: "b"})
			next.quiet("claims are due")
			next.end()
			last := s.connectNudged("a")
			last.welcome(false)
			s.awaitHeld(n, "a", "its deadline is in an hour")
			s.await(r, "the answer to release")
			s.acquire(last, "c", 2, protocol.Now()+hour) // the number that "b" had
			s.fence(last, "the new session does not have the hold of b")
			s.held("c", "only the hold of the earlier session was released")
			s.release(last, "c", 2)
		},
	},
	{
		Name: "claims/all-pages", Spec: "§4.11, §8", Needs: []Feature{Resume, Concurrent},
		Demand: "An acquire waits for the answer to the last of several claims.",
		play: func(s *stage) {
			const holds = protocol.MaxClaims + 4
			c := s.open()
			for i := range holds {
				s.acquire(c, fmt.Sprint("n", i), uint64(i+1), protocol.Now()+hour)
			}
			next, n := s.resumed(c, "n0")
			x := s.send(command{Do: "acquire", As: "x", Name: "x"})
			next.answerClaim(expect[*protocol.Claim](next, "a claim"))
			for {
				m := expect[*protocol.Claim](next, "another claim")
				next.quiet("claims are due")
				isLast := !m.More
				next.answerClaim(m)
				if isLast {
					break
				}
			}
			next.grant(next.acquire("x"), protocol.AcquireOK{Hold: holds + 1, DeadlineNS: protocol.Now() + hour})
			s.awaitOK(x, "the acquire succeeds")
			s.awaitHeld(n, "n0", "it was claimed")
		},
	},
	{
		Name: "claims/acquire-while-due", Spec: "§4.11", Needs: []Feature{Resume, Concurrent},
		Demand: "An acquire waits for the answer to the last claim.",
		play: func(s *stage) {
			c := s.holding("a")
			next, n := s.resumed(c, "a")
			m := next.claim(map[uint64]uint32{1: 1})
			x := s.send(command{Do: "acquire", As: "x", Name: "x"})
			next.quiet("claims are due")
			next.answerClaim(m)
			next.grant(next.acquire("x"), protocol.AcquireOK{Hold: 2, DeadlineNS: protocol.Now() + hour})
			s.awaitOK(x, "the acquire succeeds")
			s.awaitHeld(n, "a", "it was claimed")
		},
	},
	{
		Name: "waiters/after-claims", Spec: "§4.11, §9.2", Needs: []Feature{Resume, Concurrent},
		Demand: "Unanswered acquires are sent again after the answer to the last claim, in their order, with what is left of wait_ms.",
		play:   func(s *stage) { playWaiters(s, true, lockWaiters) },
	},
	{
		Name: "waiters/new-session", Spec: "§4.11, §9.2", Needs: []Feature{Resume, Concurrent},
		Demand: "If the session is not resumed, unanswered acquires are sent again after the answer to hello.",
		play:   func(s *stage) { playWaiters(s, false, lockWaiters) },
	},
	{
		Name: "waiters/canceled-meanwhile", Spec: "§4.11", Needs: []Feature{Resume, Concurrent, Cancel},
		Demand: "An acquire that is canceled while no sidecar listens is not sent again.",
		play: func(s *stage) {
			c := s.holding("a")
			x, _ := s.request(c, command{As: "x", Name: "x"})
			s.unlisten()
			c.end()
			s.send(command{Do: "cancel", Target: x})
			s.awaitError(x, "the acquire fails with the error canceled or unavailable", "canceled", "unavailable")
			s.listen()
			n := s.check("a")
			next := s.connectResuming()
			next.welcome(true)
			next.answerClaim(next.claim(map[uint64]uint32{1: 1}))
			s.awaitHeld(n, "a", "it was claimed")
			s.fence(next, "the acquire was canceled")
		},
	},
	{
		Name: "waiters/grant-not-read", Spec: "§4.11", Needs: []Feature{Resume, Concurrent},
		Demand: "A grant that the client did not read is not claimed; the acquire is sent again.",
		play: func(s *stage) {
			c := s.holding("a")
			x, m := s.request(c, command{As: "x", Name: "x"})
			s.entries[2] = 1 // granted; the answer is on the way when the connection ends
			whole := protocol.AcquireOK{ID: m.ID, Token: 2, Hold: 2, Count: 1, DeadlineNS: protocol.Now() + hour}.Append(nil)
			c.raw(whole[:len(whole)-1])
			next, n := s.resumed(c, "a")
			next.answerClaim(next.claim(map[uint64]uint32{1: 1}))
			next.grant(next.acquire("x"), protocol.AcquireOK{Hold: 3, DeadlineNS: protocol.Now() + hour})
			s.awaitOK(x, "the acquire succeeds")
			s.awaitHeld(n, "a", "it was claimed")
			s.release(next, "x", 3)
		},
	},
	{
		Name: "close/bye", Spec: "§4.10", Needs: []Feature{Resume},
		Demand: "close sends bye.",
		play: func(s *stage) {
			c := s.holding("a")
			n := s.send(command{Do: "close"})
			bye := expect[*protocol.Bye](c, "bye")
			c.end(protocol.ByeOK{ID: bye.ID})
			s.awaitOK(n, "close succeeds")
			s.isOpen = false
		},
	},
	{
		Name: "close/before-the-answer", Spec: "§7, §9.2", Needs: []Feature{Resume, Concurrent},
		Demand: "When bye is sent, the client relies on no hold any more, before the sidecar has answered it.",
		play: func(s *stage) {
			c := s.holding("a")
			n := s.send(command{Do: "close"})
			bye := expect[*protocol.Bye](c, "bye")
			s.lost("a", "the sidecar may have released it")
			c.end(protocol.ByeOK{ID: bye.ID})
			s.awaitOK(n, "close succeeds")
			s.isOpen = false
		},
	},
	{
		Name: "close/while-disconnected", Spec: "§7, §9.2", Needs: []Feature{Resume},
		Demand: "After close the client relies on no hold, also if no sidecar listened when it was called: a successor releases the holds.",
		play: func(s *stage) {
			c := s.holding("a")
			s.unlisten()
			c.end()
			s.held("a", "its deadline is in an hour")
			n := s.send(command{Do: "close"})
			s.sleepUntil(protocol.Now() + int64(quietTime))
			s.listen() // so that the client need not wait until its patience ends
			s.serveUntilClosed(n)
			s.lost("a", "the client was closed")
			s.isOpen = false
		},
	},
	{
		Name: "close/bye-interrupted", Spec: "§4.10", Needs: []Feature{Resume},
		Demand: "If the connection ends before bye is answered, the client resumes the session and sends bye instead of claim.",
		play: func(s *stage) {
			c := s.holding("a")
			n := s.send(command{Do: "close"})
			expect[*protocol.Bye](c, "bye")
			c.end()
			next := s.connectResuming()
			next.welcome(true)
			bye := expect[*protocol.Bye](next, "bye instead of claim")
			next.end(protocol.ByeOK{ID: bye.ID})
			s.awaitOK(n, "close succeeds")
			s.isOpen = false
		},
	},
}

// lockWaiters are two acquires, "x" with wait_ms and "y" without.
var lockWaiters = [2]command{{As: "x", Name: "x", WaitMS: ms(60_000)}, {As: "y", Name: "y"}}

// playWaiters ends the connection while two acquires wait.
func playWaiters(s *stage, isResumed bool, waiters [2]command) {
	c := s.holding("a")
	wait := *waiters[0].WaitMS
	x, _ := s.request(c, waiters[0])
	y, _ := s.request(c, waiters[1])
	s.unlisten()
	c.end()
	s.sleepUntil(protocol.Now() + int64(200*time.Millisecond))
	s.listen()
	next := s.connectResuming()
	next.welcome(isResumed)
	if isResumed {
		m := next.claim(map[uint64]uint32{1: 1})
		next.quiet("claims are due")
		next.answerClaim(m)
	}
	mx := next.requested(waiters[0])
	if mx.WaitMS < 1 || mx.WaitMS > wait-190 {
		s.fail(fmt.Sprintf("wait_ms of at least 1 and at most %d, what is left of %d", wait-190, wait), "%d", mx.WaitMS)
	}
	my := next.requested(waiters[1])
	if my.WaitMS != protocol.Forever {
		s.fail("an acquire without wait_ms", "wait_ms %d", my.WaitMS)
	}
	next.grant(my, protocol.AcquireOK{Hold: 12, DeadlineNS: protocol.Now() + hour})
	next.grant(mx, protocol.AcquireOK{Hold: 11, DeadlineNS: protocol.Now() + hour})
	s.awaitOK(x, "the first acquire succeeds")
	s.awaitOK(y, "the second acquire succeeds")
	s.release(next, "x", 11)
	s.release(next, "y", 12)
	s.held("a", "its deadline is in an hour")
}

// connectNudged is connectResuming for a connection after one that was of no use: a client that
// connects only when it is used may need another command.
func (s *stage) connectNudged(as string) *conn {
	for range 100 {
		select {
		case nc := <-s.accepts:
			c := s.greet(nc)
			if c.hello.Resume != s.ticket {
				s.fail(fmt.Sprintf("a hello with resume %q, the newest ticket", s.ticket), "%s", c.last)
			}
			return c
		case <-time.After(s.patience / 100):
			s.takeReports()
			s.check(as)
		}
	}
	s.fail("the client connects again", "no connection in %v", s.patience)
	return nil
}

// expectOtherTicket lets the client begin a new session, which must not be the resumption of
// the one that has ended.
func (s *stage) expectOtherTicket() {
	old := s.ticket
	n := s.send(command{Do: "acquire", As: "new", Name: "new"})
	for start := time.Now(); time.Since(start) < s.patience; {
		select {
		case nc := <-s.accepts:
			c := s.greet(nc)
			if c.hello.Resume == old {
				s.fail(fmt.Sprintf("no further hello with resume %q", old), "%s", c.last)
			}
			c.welcome(false)
			c.grant(c.acquire("new"), protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour})
			s.awaitOK(n, "the acquire succeeds in the new session")
			return
		case <-time.After(10 * time.Millisecond):
			s.takeReports()
			if r, ok := s.reports[n]; ok {
				if r.OK {
					s.fail("an acquire that fails, or a connection", "%s", r.line)
				}
				n = s.send(command{Do: "acquire", As: "new", Name: "new"})
			}
		}
	}
	s.fail("the client begins a new session", "no connection in %v", s.patience)
}

package conform

import (
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
)

// confirming lets the client release "a", hold 1, and confirm that. It returns the number of
// the command and the request for the confirmation, which is not answered.
func (s *stage) confirming(c *conn) (int, *protocol.Confirm) {
	n := s.send(command{Do: "release", As: "a", Confirm: true})
	c.release(1)
	return n, c.confirm("a")
}

// confirm expects a confirm of a name.
func (c *conn) confirm(name string) *protocol.Confirm {
	what := fmt.Sprintf("a confirm of %q", name)
	m := expect[*protocol.Confirm](c, what)
	if m.Name != name {
		c.stage.fail(what, "%s", c.last)
	}
	return m
}

// unconfirmedIn ends the connection before a confirmation is answered, and lets the client
// begin a new session with the sidecar that has a uuid.
func (s *stage) unconfirmedIn(uuid string) (int, *conn) {
	c := s.holding("a")
	n, _ := s.confirming(c)
	c.end()
	next := s.connectResuming()
	s.uuid = uuid
	next.welcome(false)
	return n, next
}

const otherUUID = "0c2ad9a5-33cf-4b5e-9d8e-6a9dd2a9f7b3"

var confirmScenes = []Scene{
	{
		Name: "confirm/answered", Spec: "§4.4", Needs: []Feature{Confirm, Concurrent},
		Demand: "A release with confirm sends release, then confirm, and succeeds when that is answered.",
		play: func(s *stage) {
			c := s.holding("a", "b")
			n, m := s.confirming(c)
			s.held("b", "only the other lock was released")
			if _, isAnswered := s.reports[n]; isAnswered {
				s.fail("the release waits for the answer to confirm", "%s", s.reports[n].line)
			}
			c.reply(protocol.ConfirmOK{ID: m.ID})
			s.awaitOK(n, "the release succeeds")
			s.fence(c, "the hold was released once")
		},
	},
	{
		Name: "confirm/refused", Spec: "§4.4", Needs: []Feature{Confirm},
		Demand: "If confirm is refused, or not known, the release fails with unconfirmed, and the lock is released.",
		play: func(s *stage) {
			c := s.open()
			for i, code := range []protocol.Code{protocol.Denied, protocol.Unsupported} {
				hold := uint64(i + 1)
				s.acquire(c, "a", hold, protocol.Now()+hour)
				n := s.send(command{Do: "release", As: "a", Confirm: true})
				c.release(hold)
				m := c.confirm("a")
				c.refuse(m.ID, code, "Redis refused it")
				s.awaitError(n, "the release fails with the error unconfirmed", "unconfirmed")
				s.lost("a", "it was released")
			}
			s.fence(c, "the holds were released once")
		},
	},
	{
		Name: "confirm/resumed", Spec: "§4.4, §4.11", Needs: []Feature{Confirm, Resume},
		Demand: "If the session is resumed, the client sends confirm again; the released hold is not claimed.",
		play: func(s *stage) {
			c := s.holding("a", "b")
			n, _ := s.confirming(c)
			c.end()
			next := s.connectResuming()
			next.welcome(true)
			next.answerClaim(next.claim(map[uint64]uint32{2: 1}))
			next.reply(protocol.ConfirmOK{ID: next.confirm("a").ID})
			s.awaitOK(n, "the release succeeds")
		},
	},
	{
		Name: "confirm/same-sidecar", Spec: "§4.4", Needs: []Feature{Confirm, Resume},
		Demand: "In a new session of the same sidecar the client sends info, and confirm if the sidecar does not have the hold.",
		play: func(s *stage) {
			n, c := s.unconfirmedIn(s.uuid)
			info := expect[*protocol.Info](c, `an info about "a"`)
			c.reply(protocol.InfoOK{ID: info.ID, Lock: &protocol.LockRow{Name: "a", State: protocol.StateHeld, Hold: 2, Count: 1}})
			c.reply(protocol.ConfirmOK{ID: c.confirm("a").ID})
			s.awaitOK(n, "the release succeeds")
		},
	},
	{
		Name: "confirm/not-read", Spec: "§4.4", Needs: []Feature{Confirm, Resume},
		Demand: "If the new session's sidecar still has the hold, the release fails with unconfirmed.",
		play: func(s *stage) {
			n, c := s.unconfirmedIn(s.uuid)
			info := expect[*protocol.Info](c, `an info about "a"`)
			c.reply(protocol.InfoOK{ID: info.ID, Lock: &protocol.LockRow{Name: "a", State: protocol.StateHeld, Hold: 1, Count: 1}})
			s.awaitError(n, "the release fails with the error unconfirmed", "unconfirmed")
			s.fence(c, "no answer would confirm the release")
		},
	},
	{
		Name: "confirm/other-sidecar", Spec: "§4.4", Needs: []Feature{Confirm, Resume},
		Demand: "In a new session of another sidecar the release fails with unconfirmed.",
		play: func(s *stage) {
			n, c := s.unconfirmedIn(otherUUID)
			s.awaitError(n, "the release fails with the error unconfirmed", "unconfirmed")
			s.fence(c, "no answer would confirm the release")
		},
	},
}

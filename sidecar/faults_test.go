package sidecar_test

import (
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

// malformed are requests of which a field is out of range: request errors, wherever such a
// request is due.
func malformed(id uint64) map[string]protocol.Request {
	return map[string]protocol.Request{
		"acquire":       protocol.Acquire{ID: id, Name: "a\x00b", WaitMS: protocol.Forever},
		"confirm":       protocol.Confirm{ID: id},
		"info":          protocol.Info{ID: id},
		"force_release": protocol.ForceRelease{ID: id},
		"claim":         protocol.Claim{ID: id, Holds: []protocol.ClaimedHold{{Hold: 0, Entries: 1}}},
		"hello":         protocol.Hello{ID: id, V: -1},
	}
}

// wellFormed are all requests but hello and claim.
func wellFormed(id uint64) map[string]protocol.Request {
	return map[string]protocol.Request{
		"acquire":       protocol.Acquire{ID: id, Name: "y", WaitMS: protocol.Forever},
		"release":       protocol.Release{ID: id, Hold: 1},
		"confirm":       protocol.Confirm{ID: id, Name: "y"},
		"cancel":        protocol.Cancel{ID: id, Target: id},
		"info":          protocol.Info{ID: id, Name: "y"},
		"list":          protocol.List{ID: id},
		"force_release": protocol.ForceRelease{ID: id, Name: "y"},
		"ping":          protocol.Ping{ID: id},
		"bye":           protocol.Bye{ID: id},
		"an unknown op": protocol.Unknown{ID: id, Op: "dance"},
	}
}

// A request that is malformed and also breaks the protocol is a connection error.
func TestConnectionErrorCountsBeforeRequestError(t *testing.T) {
	h := newHouse(t, nil)
	for op, m := range malformed(5) {
		c := connect(t, h.cfg.Socket)
		c.send(m)
		if op == "hello" {
			c.refused(5, protocol.BadRequest, "v is -1")
		} else {
			c.refused(0, protocol.NoHello, "hello first")
		}
		c.ended()

		c = greeted(t, h.cfg.Socket)
		c.send(m)
		switch op {
		case "hello":
			c.refused(0, protocol.NoHello, "second hello")
			c.ended()
		case "claim":
			c.refused(0, protocol.BadFrame, "not due")
			c.ended()
		default:
			c.refused(5, protocol.BadRequest, "")
			c.ping()
		}
	}

	c, first := h.hello(true, "")
	held := c.hold("x")
	h.restart()
	requests := malformed(5)
	for op, m := range wellFormed(5) {
		requests["good "+op] = m
	}
	for op, m := range requests {
		switch op {
		case "hello", "claim", "good bye":
			continue
		}
		c = h.resumed(first.Ticket)
		c.send(m)
		c.refused(0, protocol.BadFrame, "claims are due")
		c.ended()
	}
	c = h.resumed(first.Ticket)
	c.send(requests["hello"])
	c.refused(0, protocol.NoHello, "second hello")
	c.ended()
	c = h.resumed(first.Ticket)
	c.send(requests["claim"])
	c.refused(5, protocol.BadRequest, "hold") // it is still due
	if lost := c.claim(protocol.ClaimedHold{Hold: held.Hold, Entries: 1}); len(lost) > 0 {
		t.Errorf("lost %v", lost)
	}
}

// An id is in use from the request to its answer, for requests of every kind.
func TestIDInUseIsABrokenFrame(t *testing.T) {
	here, _, g := twoHouses(t, nil)
	holder := greeted(t, here.cfg.Socket)
	held := holder.hold("x")
	waits := map[string]func(c *wire) uint64{
		"acquire": func(c *wire) uint64 { return c.acquire("x", protocol.Forever) },
		"confirm": func(c *wire) uint64 { return c.confirm("z") },
	}
	for first, wait := range waits {
		again := wellFormed(2)
		for op, m := range malformed(2) {
			again["malformed "+op] = m
		}
		delete(again, "malformed hello") // see TestConnectionErrorCountsBeforeRequestError
		delete(again, "malformed claim")
		for op, m := range again {
			t.Run(fmt.Sprint(op, " while ", first, " waits"), func(t *testing.T) {
				c := greeted(t, here.cfg.Socket)
				if first == "confirm" {
					z := c.hold("z")
					c.id = 0
					g.set(true)
					defer g.set(false)
					c.send(protocol.Release{Hold: z.Hold})
					c.id = 1
				}
				if id := wait(c); id != 2 {
					t.Fatalf("the id is %d", id)
				}
				c.send(m)
				c.refused(0, protocol.BadFrame, "in use")
				c.ended()
			})
		}
	}

	// Once it is answered, an id is free.
	c := greeted(t, here.cfg.Socket)
	id := c.acquire("x", protocol.Forever)
	c.ping()
	holder.release(held.Hold)
	var got protocol.AcquireOK
	c.answer(id, &got)
	for range 3 {
		c.send(protocol.Ping{ID: id})
		c.answer(id, new(protocol.PingOK))
	}
	c.send(protocol.Acquire{ID: id, Name: "x", WaitMS: 0})
	c.refused(id, protocol.Timeout, "held by pid")
}

// What a client sent before the frame that ends its connection counts, also if both were
// read at once.
func TestRequestsBeforeABrokenFrameAreCarriedOut(t *testing.T) {
	socket := start(t, nil)
	c, other := greeted(t, socket), greeted(t, socket)
	held := c.hold("x")
	wait := other.acquire("x", protocol.Forever)
	other.ping()
	b := protocol.Release{ID: 7, Hold: held.Hold}.Append(nil)
	if _, err := c.nc.Write(append(b, 0, 0, 0, 1, 0x80)); err != nil {
		t.Fatal(err)
	}
	c.answer(7, new(protocol.ReleaseOK))
	c.refused(0, protocol.BadFrame, "op")
	c.ended()
	other.answer(wait, new(protocol.AcquireOK))
}

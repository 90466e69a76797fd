package conform

import (
	"fmt"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/locksidecar/locksidecar/protocol"
)

var helloScenes = []Scene{
	{
		Name: "hello/first", Spec: "§4.1",
		Demand: "The first frame is hello with v 1; open succeeds when it is answered.",
		play:   func(s *stage) { s.open() },
	},
	{
		Name: "hello/refused", Spec: "§4.1, §6.1",
		Demand: "If hello is refused with unsupported, open fails with that error.",
		play: func(s *stage) {
			n := s.sendOpen()
			c := s.connect()
			c.end(protocol.Err{ID: c.hello.ID, Code: protocol.Unsupported, Msg: "this sidecar speaks version 7"})
			s.openFails(n, "open fails with the error unsupported", "unsupported")
		},
	},
	{
		Name: "hello/other-version", Spec: "§4.1, §9.1",
		Demand: "An answer to hello with another v ends the connection, and open fails.",
		play: func(s *stage) {
			n := s.sendOpen()
			c := s.connect()
			c.welcomeWith(false, func(m *protocol.HelloOK) { m.V = 2 })
			c.expectEnd("it does not speak version 2")
			s.openFails(n, "open fails")
		},
	},
	{
		Name: "hello/clock-ahead", Spec: "§5.3",
		Demand: "If now_ns is an hour ahead, the client closes the connection, or converts every time that the sidecar sends.",
		play:   func(s *stage) { playOtherClock(s, hour) },
	},
	{
		Name: "hello/clock-behind", Spec: "§5.3",
		Demand: "If now_ns is an hour behind, the client closes the connection, or converts every time that the sidecar sends.",
		play:   func(s *stage) { playOtherClock(s, -hour) },
	},
	{
		Name: "hello/not-resumable", Spec: "§4.1",
		Demand: "A client that names the feature resume sends resumable, and no ticket before it has one.",
		Needs:  []Feature{Resume},
		play: func(s *stage) {
			if c := s.open(); !c.hello.Resumable || c.hello.Resume != "" {
				s.fail("a hello with resumable and without resume", "%+v", c.hello)
			}
		},
	},
	{
		Name: "close/gives-up-holds", Spec: "§7, §9.1",
		Demand: "After close the client relies on no hold, and its connection is closed.",
		play: func(s *stage) {
			c := s.open()
			s.acquire(c, "a", 1, protocol.Now()+hour)
			n := s.send(command{Do: "close"})
			if bye, ok := c.next().(*protocol.Bye); ok {
				c.end(protocol.ByeOK{ID: bye.ID})
			} else if !c.hasEnded {
				s.fail("bye, or the end of the connection", "%s", c.last)
			}
			s.awaitOK(n, "close succeeds")
			s.lost("a", "the client was closed")
			s.isOpen = false
		},
	},
}

// playOtherClock answers hello with a clock that differs from that of this host.
func playOtherClock(s *stage, ahead int64) {
	n := s.sendOpen()
	c := s.connect()
	c.welcomeWith(false, func(m *protocol.HelloOK) { m.NowNS = max(1, m.NowNS+ahead) })
	if r := s.await(n, "the answer to open"); !r.OK {
		c.expectEnd("the clocks differ")
		s.isOpen = false
		return
	}
	// The client converts.
	s.acquire(c, "long", 1, protocol.Now()+ahead+hour)
	s.held("long", "its converted deadline is in an hour")
	deadline := protocol.Now() + int64(time.Second)
	s.acquire(c, "short", 2, deadline+ahead)
	s.sleepUntil(deadline)
	s.lost("short", "its converted deadline has passed", "expired")
}

var lockScenes = []Scene{
	{
		Name: "lock/grant-and-release", Spec: "§4.2, §4.3",
		Demand: "acquire sends the name and no wait_ms; a grant is held; release sends one release of the hold.",
		play: func(s *stage) {
			c := s.open()
			a := s.acquireAs(c, command{As: "a", Name: "invoice:42"}, protocol.AcquireOK{Hold: 7, DeadlineNS: protocol.Now() + hour})
			if a.WaitMS != protocol.Forever || a.LeaseMS != 0 || a.MaxHoldMS != 0 || a.CrashDelayMS != 0 || a.KeepMS != 0 {
				s.fail("an acquire without wait_ms, lease_ms, max_hold_ms, crash_delay_ms and keep_ms", "%+v", *a)
			}
			s.held("a", "it was granted")
			s.release(c, "a", 7)
			s.lost("a", "it was released")
			s.fence(c, "the hold was released once")
		},
	},
	{
		Name: "lock/try", Spec: "§4.2",
		Demand: "An acquire with wait_ms 0 sends wait_ms 0, and the refusal timeout is its error.",
		play: func(s *stage) {
			c := s.open()
			n, a := s.request(c, command{As: "a", Name: "a", WaitMS: ms(0)})
			if a.WaitMS != 0 {
				s.fail("an acquire with wait_ms 0", "%+v", *a)
			}
			c.refuse(a.ID, protocol.Timeout, "held by pid 4711 (worker.py) on this host")
			s.awaitError(n, "the acquire fails with the error timeout", "timeout")
		},
	},
	{
		Name: "lock/wait", Spec: "§4.2",
		Demand: "An acquire with wait_ms sends what it was given, or a little less.",
		play: func(s *stage) {
			c := s.open()
			n, a := s.request(c, command{As: "a", Name: "a", WaitMS: ms(86_400_000)})
			// What is less than the whole is the time that the client took before it sent the request.
			if a.WaitMS > 86_400_000 || a.WaitMS < 86_400_000-s.patience.Milliseconds() {
				s.fail("an acquire with wait_ms 86400000", "%+v", *a)
			}
			c.grant(a, protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour})
			s.awaitOK(n, "the acquire succeeds")
		},
	},
	{
		Name: "lock/token", Spec: "§2, §4.2",
		Demand: "Tokens and hold numbers up to 2^63−1 are read and sent without loss.",
		play: func(s *stage) {
			c := s.open()
			n, a := s.request(c, command{As: "a", Name: "a"})
			const token, hold = 1<<63 - 1, 1<<62 + 1
			c.grant(a, protocol.AcquireOK{Hold: hold, Token: token, DeadlineNS: protocol.Now() + hour})
			if r := s.awaitOK(n, "the acquire succeeds"); r.Token != fmt.Sprint(uint64(token)) {
				s.fail(fmt.Sprintf(`"token": "%d"`, uint64(token)), "%s", r.line)
			}
			s.release(c, "a", hold)
		},
	},
	{
		Name: "lock/lease", Spec: "§4.2", Needs: []Feature{Lease},
		Demand: "lease_ms is sent as it was given.",
		play: func(s *stage) {
			c := s.open()
			a := s.acquireAs(c, command{As: "a", Name: "a", LeaseMS: 61_234}, protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour})
			if a.LeaseMS != 61_234 {
				s.fail("an acquire with lease_ms 61234", "%+v", *a)
			}
		},
	},
	{
		Name: "lock/max-hold", Spec: "§4.2", Needs: []Feature{MaxHold},
		Demand: "max_hold_ms is sent as it was given.",
		play: func(s *stage) {
			c := s.open()
			now := protocol.Now()
			a := s.acquireAs(c, command{As: "a", Name: "a", MaxHoldMS: 71_234}, protocol.AcquireOK{Hold: 1, DeadlineNS: now + hour, EndNS: now + hour})
			if a.MaxHoldMS != 71_234 {
				s.fail("an acquire with max_hold_ms 71234", "%+v", *a)
			}
		},
	},
	{
		Name: "lock/crash-delay", Spec: "§4.2", Needs: []Feature{CrashDelay},
		Demand: "crash_delay_ms is sent as it was given.",
		play: func(s *stage) {
			c := s.open()
			a := s.acquireAs(c, command{As: "a", Name: "a", CrashDelayMS: 81_234}, protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour})
			if a.CrashDelayMS != 81_234 {
				s.fail("an acquire with crash_delay_ms 81234", "%+v", *a)
			}
		},
	},
	{
		Name: "lock/keep", Spec: "§4.2", Needs: []Feature{Keep},
		Demand: "keep_ms is sent as it was given.",
		play: func(s *stage) {
			c := s.open()
			a := s.acquireAs(c, command{As: "a", Name: "a", KeepMS: 81_234}, protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour})
			if a.KeepMS != 81_234 {
				s.fail("an acquire with keep_ms 81234", "%+v", *a)
			}
		},
	},
	{
		Name: "lock/errors", Spec: "§4.2, §6.1",
		Demand: "Each error code ends its acquire with that error, an unknown code with any error; the connection stays in use.",
		play: func(s *stage) {
			c := s.open()
			for _, code := range []protocol.Code{
				protocol.Deadlock, protocol.Unavailable, protocol.Denied, protocol.Limit, protocol.BadRequest, "weather",
			} {
				n, a := s.request(c, command{As: "a", Name: "a"})
				c.refuse(a.ID, code, "a sentence for people")
				var want []string
				if code != "weather" && code != protocol.BadRequest {
					want = []string{string(code)}
				}
				s.awaitError(n, fmt.Sprintf("an acquire that is refused with %q fails with that error", code), want...)
			}
			// An error without msg has an empty one.
			n, a := s.request(c, command{As: "a", Name: "a"})
			delete(c.used, a.ID)
			c.raw(frame(pairs("id", a.ID, "err", msgpack.RawMessage(pairs("code", "denied")))))
			s.awaitError(n, "an acquire that is refused without a msg fails with the error denied", "denied")
			s.acquire(c, "b", 1, protocol.Now()+hour)
		},
	},
	{
		Name: "lock/second-release", Spec: "§9.1",
		Demand: "A handle that was released does nothing: a second release is not_held, and sends nothing, also while the lock is held again.",
		play: func(s *stage) {
			c := s.open()
			s.acquireAs(c, command{As: "first", Name: "a"}, protocol.AcquireOK{Hold: 1, DeadlineNS: protocol.Now() + hour})
			s.release(c, "first", 1)
			s.acquireAs(c, command{As: "second", Name: "a"}, protocol.AcquireOK{Hold: 2, DeadlineNS: protocol.Now() + hour})
			s.awaitError(s.send(command{Do: "release", As: "first"}), "the second release fails with the error not_held", "not_held")
			s.fence(c, "the handle was released before")
			s.held("second", "only the first handle was released")
		},
	},
	{
		Name: "lock/answers-in-any-order", Spec: "§3", Needs: []Feature{Concurrent},
		Demand: "Answers are matched by their ids: the second acquire may be answered first.",
		play: func(s *stage) {
			c := s.open()
			n1, a1 := s.request(c, command{As: "x", Name: "x"})
			n2, a2 := s.request(c, command{As: "y", Name: "y"})
			c.grant(a2, protocol.AcquireOK{Hold: 2, Token: 22, DeadlineNS: protocol.Now() + hour})
			if r := s.awaitOK(n2, "the second acquire succeeds first"); r.Token != "22" {
				s.fail(`"token": "22"`, "%s", r.line)
			}
			c.grant(a1, protocol.AcquireOK{Hold: 1, Token: 11, DeadlineNS: protocol.Now() + hour})
			if r := s.awaitOK(n1, "the first acquire succeeds"); r.Token != "11" {
				s.fail(`"token": "11"`, "%s", r.line)
			}
			s.release(c, "x", 1)
			s.release(c, "y", 2)
		},
	},
	{
		Name: "lock/owners", Spec: "§4.2, §4.3", Needs: []Feature{Owners},
		Demand: "An owner's second acquire sends the same owner; each entry has its own handle, and one release.",
		play: func(s *stage) {
			c := s.open()
			grant := protocol.AcquireOK{Hold: 5, Token: 55, DeadlineNS: protocol.Now() + hour}
			first := s.acquireAs(c, command{As: "one", Name: "a", Owner: 3}, grant)
			grant.Count = 2
			second := s.acquireAs(c, command{As: "two", Name: "a", Owner: 3}, grant)
			other, a := s.request(c, command{As: "other", Name: "b", Owner: 4})
			if first.Owner == 0 || second.Owner != first.Owner || a.Owner == first.Owner || a.Owner == 0 || second.NotReentrant {
				s.fail("owners that are not 0, the same one twice and then another", "%d, %d (reentrant: %t), %d", first.Owner, second.Owner, !second.NotReentrant, a.Owner)
			}
			c.grant(a, protocol.AcquireOK{Hold: 6, DeadlineNS: protocol.Now() + hour})
			s.awaitOK(other, "the other owner's acquire succeeds")
			s.release(c, "two", 5)
			s.held("one", "one of two entries was released")
			s.release(c, "one", 5)
			s.awaitError(s.send(command{Do: "release", As: "two"}), "the third release fails with the error not_held", "not_held")
			s.fence(c, "the hold has no entry left")
		},
	},
	{
		Name: "frames/byte-by-byte", Spec: "§2",
		Demand: "Frames that arrive in pieces are frames.",
		play: func(s *stage) {
			c := s.open()
			n, a := s.request(c, command{As: "a", Name: "a"})
			delete(c.used, a.ID)
			s.entries[1] = 1
			whole := protocol.AcquireOK{ID: a.ID, Token: 1, Hold: 1, Count: 1, DeadlineNS: protocol.Now() + hour}.Append(nil)
			for i := range whole {
				c.raw(whole[i : i+1])
				time.Sleep(50 * time.Microsecond) // so that most bytes arrive alone
			}
			s.awaitOK(n, "the acquire succeeds")
			s.release(c, "a", 1)
		},
	},
	{
		Name: "frames/unusual", Spec: "§2, §5.2",
		Demand: "Events and fields that are not defined are ignored, whatever they have in them; any integer and string format is read.",
		play: func(s *stage) {
			c := s.open()
			n, a := s.request(c, command{As: "a", Name: "a"})
			delete(c.used, a.ID)
			s.entries[9] = 1
			deep := msgpack.RawMessage("\x91\x91\x91\x91\x91\x91\x91\x90") // 8 arrays inside one another
			anything := msgpack.RawMessage("\x85\xc0\xc3\xa1\xff\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\x01\xc4\x01\x00\x02\xd4\x05\x00\x03\x93\x01\x02\x03")
			c.raw(frame(pairs("ev", "weather", "rain", deep)))
			c.raw(frame(pairs("ev", "weather", "id", 1, "deadline_ns", "none")))
			wide := func(n uint64) msgpack.RawMessage { return msgpack.RawMessage("\xcf" + string(be64(n))) }
			signed := func(n uint64) msgpack.RawMessage { return msgpack.RawMessage("\xd3" + string(be64(n))) }
			c.raw(frame(pairs(
				"deep", deep, "any", anything, "id", wide(a.ID), "token", signed(77), "hold", wide(9), "count", wide(1),
				msgpack.RawMessage("\xda\x00\x0bdeadline_ns"), signed(uint64(protocol.Now()+hour)), "last", nil,
			)))
			if r := s.awaitOK(n, "the acquire succeeds"); r.Token != "77" {
				s.fail(`"token": "77"`, "%s", r.line)
			}
			c.raw(frame(pairs("ev", msgpack.RawMessage("\xdb\x00\x00\x00\x04lost"), "hold", wide(9), "reason", msgpack.RawMessage("\xd9\x06stolen"), "deep", deep)))
			s.lostSoon("a", "it was lost", "stolen")
		},
	},
	{
		Name: "lost/reasons", Spec: "§5.1",
		Demand: "After a lost event the hold is not held, with the reason, also if the client does not know the reason; release fails with lost.",
		play: func(s *stage) {
			c := s.open()
			for i, reason := range []protocol.Reason{
				protocol.Expired, protocol.Deleted, protocol.Stolen, protocol.ByForce, protocol.MaxHold, protocol.Forgotten, "eclipse",
			} {
				name, hold := string(reason), uint64(i+1)
				s.acquire(c, name, hold, protocol.Now()+hour)
				c.lost(hold, reason)
				s.lostSoon(name, "it was lost", string(reason))
				r := s.awaitError(s.send(command{Do: "release", As: name}), "the release fails with the error lost", "lost")
				if r.Reason != string(reason) {
					s.fail(fmt.Sprintf("the release fails with the reason %s", reason), "%s", r.line)
				}
			}
			c.lost(4711, protocol.Stolen) // not a hold of this client
			s.acquire(c, "b", 100, protocol.Now()+hour)
			s.held("b", "other holds were lost")
		},
	},
	{
		Name: "lost/with-the-grant", Spec: "§3, §5.1",
		Demand: "A lost event that arrives together with the grant counts.",
		play: func(s *stage) {
			c := s.open()
			n, a := s.request(c, command{As: "a", Name: "a"})
			delete(c.used, a.ID)
			s.entries[1] = 1
			both := protocol.AcquireOK{ID: a.ID, Token: 1, Hold: 1, Count: 1, DeadlineNS: protocol.Now() + hour}.Append(nil)
			c.raw(protocol.LostEvent{Hold: 1, Reason: protocol.ByForce}.Append(both))
			r := s.await(n, "the acquire ends")
			if !r.OK && r.Error != "lost" {
				s.fail("the acquire succeeds, or fails with the error lost", "%s", r.line)
			}
			if r.OK {
				s.lostSoon("a", "it was lost", "forced")
			}
		},
	},
	{
		Name: "lost/notified", Spec: "§5.1", Needs: []Feature{Notify},
		Demand: "The client reports a loss without being asked, once.",
		play: func(s *stage) {
			c := s.open()
			s.acquire(c, "a", 1, protocol.Now()+hour)
			s.acquire(c, "b", 2, protocol.Now()+hour)
			c.lost(2, protocol.Deleted)
			s.awaitLoss("b", "deleted")
			s.lost("b", "it was lost", "deleted")
			s.held("a", "only the other hold was lost")
		},
	},
}

func be64(n uint64) []byte {
	b := make([]byte, 8)
	for i := range b {
		b[7-i] = byte(n >> (8 * i))
	}
	return b
}

// badFrameScenes returns a scene for each kind of invalid frame.
func badFrameScenes() []Scene {
	grant := func(id uint64, change ...any) []byte {
		kv := []any{"id", id, "token", 5, "hold", 9, "count", 1, "deadline_ns", protocol.Now() + hour}
		for i := 0; i < len(change); i += 2 {
			for j := 0; j < len(kv); j += 2 {
				if kv[j] == change[i] {
					kv = append(kv[:j], kv[j+2:]...)
					break
				}
			}
			if change[i+1] != "leave out" {
				kv = append(kv, change[i], change[i+1])
			}
		}
		return frame(pairs(kv...))
	}
	null := msgpack.RawMessage("\xc0")
	var scenes []Scene
	for _, bad := range []struct {
		name, what string
		frame      func(id uint64) []byte // that answers the acquire, if it answers anything
	}{
		{"length-0", "a length of 0", func(uint64) []byte { return make([]byte, 4) }},
		{"length-65537", "a length of 65,537", func(uint64) []byte { return []byte{0, 1, 0, 1} }},
		{"array", "a body that is an array", func(uint64) []byte { return frame([]byte("\x91\x01")) }},
		{"trailing-byte", "a body with a byte after the map", func(id uint64) []byte { return frame(append(grant(id)[4:], 0xc0)) }},
		{"key-twice", "a key twice", func(id uint64) []byte {
			return frame(pairs("id", id, "token", 5, "hold", 9, "count", 1, "deadline_ns", protocol.Now()+hour, "token", 6))
		}},
		{"unknown-key-twice", "an unknown key twice", func(id uint64) []byte {
			return frame(pairs("id", id, "token", 5, "hold", 9, "count", 1, "deadline_ns", protocol.Now()+hour, "x", 5, "x", 6))
		}},
		{"key-int", "a key that is an integer", func(id uint64) []byte {
			return frame(pairs("id", id, "token", 5, "hold", 9, "count", 1, "deadline_ns", protocol.Now()+hour, 7, 6))
		}},
		{"key-not-utf8", "a key that is not UTF-8", func(id uint64) []byte {
			return frame(pairs("id", id, "token", 5, "hold", 9, "count", 1, "deadline_ns", protocol.Now()+hour, msgpack.RawMessage("\xa1\xff"), 6))
		}},
		{"too-deep", "an unknown field with 9 arrays inside one another", func(id uint64) []byte {
			return grant(id, "x", msgpack.RawMessage(strings.Repeat("\x91", 8)+"\x90"))
		}},
		{"no-token", "a grant without token", func(id uint64) []byte { return grant(id, "token", "leave out") }},
		{"token-nil", "a grant with token nil", func(id uint64) []byte { return grant(id, "token", null) }},
		{"token-text", "a grant with a token that is a string", func(id uint64) []byte { return grant(id, "token", "5") }},
		{"hold-too-large", "a grant with hold 2^63", func(id uint64) []byte { return grant(id, "hold", uint64(1)<<63) }},
		{"deadline-negative", "a grant with a negative deadline_ns", func(id uint64) []byte { return grant(id, "deadline_ns", -1) }},
		{"no-kind", "a frame without id, err and ev", func(uint64) []byte { return frame(pairs("x", 1)) }},
		{"lost-without-hold", "a lost event without hold", func(uint64) []byte { return frame(pairs("ev", "lost", "reason", "stolen")) }},
		{"lease-without-deadline", "a lease event without deadline_ns", func(uint64) []byte { return frame(pairs("ev", "lease")) }},
		{"reason-not-utf8", "a reason that is not UTF-8", func(uint64) []byte {
			return frame(pairs("ev", "lost", "hold", 1, "reason", msgpack.RawMessage("\xa2\xc3\x28")))
		}},
	} {
		scenes = append(scenes, Scene{
			Name: "bad-frame/" + bad.name, Spec: "§2, §7",
			Demand: badFrameDemand(bad.what),
			play:   func(s *stage) { playBadFrame(s, command{As: "x", Name: "x"}, bad.what, bad.frame) },
		})
	}
	return scenes
}

func badFrameDemand(what string) string {
	return "After " + what + " the acquire fails, and the client relies on no hold and closes the connection, or closes it as soon as it relies on none."
}

// playBadFrame sends an invalid frame while an acquire waits.
func playBadFrame(s *stage, acquire command, what string, frame func(id uint64) []byte) {
	c := s.open()
	s.acquire(c, "a", 1, protocol.Now()+hour)
	n, x := s.request(c, acquire)
	c.raw(frame(x.ID))
	s.awaitError(n, "the acquire fails")
	r := s.await(s.check("a"), "the answer to check")
	if r.Held != nil && *r.Held {
		if c.read(quietTime); c.hasEnded {
			s.fail("the client relies on no hold when it closes the connection to a running sidecar", "%s, and then the end of the connection", r.line)
		}
		n := s.send(command{Do: "close"})
		c.expectEnd("it received " + what)
		s.awaitOK(n, "close succeeds")
		s.isOpen = false
		return
	}
	c.expectEnd("it received " + what)
}

package pipeline

import (
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// askClock asks for Redis's clock after slots have moved to this master. The counters of their locks may have lost
// their last values on the way, and other hosts may have drawn these; the clock was last read when this connection was
// made. Until the answer comes, each counter that is used is lifted to the clock. Then the clock is the floor.
func (m *Machine) askClock(now int64) {
	if m.encoder.Lifts {
		m.asksAgain = true
		return
	}
	m.encoder.Lifts = true
	m.ask(now, timing, "time")
}

// onClock takes the answer of askClock.
func (m *Machine) onClock(now int64, answer *wire.Reply) {
	clock, ok := parseTime(answer)
	if !ok {
		return // each counter is lifted, for as long as the connection lasts
	}
	m.Clock, m.ClockAt = clock, now
	m.lift(now, clock)
	m.isRaised = true
	if m.encoder.Lifts = false; m.asksAgain {
		m.asksAgain = false
		m.askClock(now)
	}
}

// parseTime returns what TIME answers, µs.
func parseTime(answer *wire.Reply) (int64, bool) {
	if answer.Kind != '*' || len(answer.List) != 2 {
		return 0, false
	}
	seconds, err := strconv.ParseInt(answer.List[0].Text, 10, 64)
	micros, err2 := strconv.ParseInt(answer.List[1].Text, 10, 64)
	return seconds*1_000_000 + micros, err == nil && err2 == nil
}

// lift has the tokens of this connection be above a floor, too.
func (m *Machine) lift(now, floor int64) {
	if floor > m.ID.Above(now) {
		m.ID.Floor, m.ID.FloorAt = floor, now
	}
	m.encoder.Floor = max(m.encoder.Floor, m.ID.Above(now))
}

// farAhead is how far Redis's clock may once have been ahead of what it is now.
const farAhead = 366 * 24 * time.Hour

// raiseFloor notes a token that Redis gave out. One that is ahead of Redis's clock shows that the clock was set back
// since the counter was made: other counters may be below earlier tokens, and are lifted, as after a reconnect. A
// counter that is absurdly far ahead, because another program set it, must not lift those of all other locks.
func (m *Machine) raiseFloor(now int64, last uint64) {
	token := int64(last)
	if token <= m.ID.Above(now) || token >= m.redisClock(now)+int64(farAhead/time.Microsecond) {
		return
	}
	m.ID.Floor, m.ID.FloorAt = token, now
	m.isRaised = true
	if m.isAhead(now, token) {
		m.encoder.Floor = max(m.encoder.Floor, token)
	}
}

// checkTokens takes the tokens out of a transfer, or of an admission, that this sidecar must not grant unseen. It draws its own then. These
// are tokens that are not above the floor of this connection: another sidecar drew them, whose floor may be lower. And
// those that are ahead of Redis's clock: a message can be forged, and must not raise the floors of other locks. The
// result of a draw may.
func (m *Machine) checkTokens(now int64, msg *redisop.Message) {
	switch isOfPermits := msg.Of == redisop.KindPermits; { // their tokens are of no counter
	case msg.Kind != redisop.Transferred && msg.Kind != redisop.Admitted:
		return
	case isOfPermits && (m.isAhead(now, int64(msg.LastToken)) || msg.Conn == (redisop.Conn{})):
		msg.Tokens = 0
		return
	case isOfPermits:
		return
	}
	if int64(msg.LastToken)-int64(msg.Tokens) < m.encoder.TokensAbove() || m.isAhead(now, int64(msg.LastToken)) || msg.Conn == (redisop.Conn{}) {
		msg.Tokens = 0
	} else {
		m.raiseFloor(now, msg.LastToken)
	}
}

// isAhead reports whether a token is ahead of Redis's clock. Then the clock was set back since the counter was made.
func (m *Machine) isAhead(now, token int64) bool {
	return token > m.redisClock(now)+int64(time.Second/time.Microsecond)
}

// redisClock is Redis's clock, as far as its time at ClockAt shows it, µs.
func (m *Machine) redisClock(now int64) int64 { return m.Clock + (now-m.ClockAt)/1000 }

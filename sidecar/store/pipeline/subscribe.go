package pipeline

import (
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// requestChannels makes a request about channels.
func (m *Machine) requestChannels(now int64, r *request) {
	m.register(now, call{kind: subscribing, request: r})
	begin := len(m.out)
	m.out = appendRequest(m.out, r)
	m.made += int64(len(m.out) - begin)
}

// onConfirmation takes in the confirmation of one channel. When a whole SUBSCRIBE is confirmed, those of its channels
// are delivered that are still wanted.
func (m *Machine) onConfirmation(push *wire.Reply, unsubscribed bool, channel string) error {
	var r *request
	if !m.isIdle() {
		r = m.calls.front().request
	}
	if r == nil || r.unsubscribe != unsubscribed || !slices.Contains(r.channels, channel) {
		if channel == m.ownChannel && unsubscribed {
			return wire.Unavailablef("Redis at %s ended the subscription to the channel on which other sidecars reach this one; the connection is made again", m.Server.Address)
		}
		if push.List[0].Text == "sunsubscribe" && m.cfg.IsNode { // the slot has left it
			m.deliver(Delivery{Kind: SlotLeft, Names: m.channels.onEnded(channel)})
			return nil
		}
		return &wire.UnexpectedReply{Reply: *push}
	}
	if r.endsWithPing() {
		return nil
	}
	names, answered := m.channels.onConfirmation(r, channel)
	if answered {
		m.onAnswered()
	}
	if len(names) > 0 {
		m.deliver(Delivery{Kind: Subscribed, Names: names})
	}
	return nil
}

// onChannels takes in the answer to a request about channels that is no confirmation.
func (m *Machine) onChannels(now int64, answer *wire.Reply) error {
	r := m.calls.front().request
	if r.unsubscribe && answer.Kind == '-' && wire.Code(answer.Text) == "NOPERM" && !strings.Contains(strings.ToLower(answer.Text), "'ping'") {
		m.deliver(Delivery{Kind: Noted, Note: UnsubscribeDenied, Text: answer.Text})
	}
	if r.endsWithPing() {
		if answer.Kind == '-' && !strings.Contains(strings.ToLower(answer.Text), "'ping'") {
			// Of the SUNSUBSCRIBE; that of the PING follows. ASK, which Redis 7.4 to 8.2 answer while the slot is on its way,
			// ends nothing: what is published there until the slot has left is ignored.
			m.noteRedirect(answer.Text)
			return nil
		}
		m.channels.onPinged(r)
		m.onAnswered()
		return nil
	}
	if answer.Kind != '-' {
		return &wire.UnexpectedReply{Reply: *answer}
	}
	word := wire.Code(answer.Text)
	moved := m.noteRedirect(answer.Text)
	if wire.EndsConnection(word) {
		m.drain(fmt.Sprintf("Redis at %s does not accept subscriptions any more (%s)", m.Server.Address, wire.Clip(answer.Text)))
	}
	halves, denied := m.channels.onRefusal(r, moved || wire.OutcomeOf(word) == redisop.Retryable)
	m.onAnswered()
	for _, half := range halves {
		m.requestChannels(now, half)
	}
	if len(denied) > 0 {
		m.deliver(Delivery{Kind: Noted, Note: SubscribeDenied, Names: denied[:1], Text: answer.Text})
		m.deliver(Delivery{Kind: Unsubscribed, Names: denied})
	}
	return nil
}

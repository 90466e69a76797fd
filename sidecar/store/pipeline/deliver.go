package pipeline

import (
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// gather appends what was answered to the deliveries, in its order. It is called before a result is noted that came
// after a message. The owner sends operations where MOVED and ASK say, and the lock table gets the route of a slot that
// moved before the results of the operations that were not executed.
func (m *Machine) gather() {
	for _, r := range m.redirects {
		m.deliveries = append(m.deliveries, Delivery{Kind: Moved, Redirect: r})
	}
	for _, a := range m.asked {
		m.deliveries = append(m.deliveries, Delivery{Kind: Asked, Redirect: a.to, Ops: a.ops})
	}
	m.redirects, m.asked = m.redirects[:0], m.asked[:0]
	if m.durability.withholds {
		if len(m.messages) > 0 {
			m.setAside()
		}
		return
	}
	m.durability.unawaited = m.durability.unawaited[:0]
	if len(m.results) > 0 {
		m.deliveries = append(m.deliveries, Delivery{Kind: Results, Results: m.results, Raised: m.takeRaised()})
		m.results = m.takeSpare()
	}
	if len(m.messages) > 0 {
		m.deliveries = append(m.deliveries, Delivery{Kind: Messages, Messages: m.messages})
		m.messages = nil
	}
	if m.silent != "" && !m.isSilent {
		m.isSilent = true
		m.deliveries = append(m.deliveries, Delivery{Kind: Noted, Note: PublishDenied, Names: []string{m.silent}})
	}
}

// deliver appends a delivery behind what was answered before.
func (m *Machine) deliver(d Delivery) {
	m.gather()
	if m.durability.withholds && (d.Kind == Subscribed || d.Kind == Unsubscribed || d.Kind == SlotLeft) {
		m.setAside()
		m.durability.withheld = append(m.durability.withheld, d)
		return
	}
	m.deliveries = append(m.deliveries, d)
}

// takeSpare returns an empty slice for results.
func (m *Machine) takeSpare() (spare []redisop.Result) {
	spare, m.spare = m.spare, nil
	return spare
}

// setAside puts the results and messages that were read behind what is withheld.
func (m *Machine) setAside() {
	d := &m.durability
	if len(m.results) > 0 {
		d.withheld = append(d.withheld, Delivery{Kind: Results, Results: m.results, unawaited: d.unawaited})
		m.results, d.unawaited = nil, nil
	}
	if len(m.messages) > 0 {
		d.withheld = append(d.withheld, Delivery{Kind: Messages, Messages: m.messages})
		m.messages = nil
	}
}

// takeRaised returns the identity if its floor was raised since the last call.
func (m *Machine) takeRaised() *wire.Identity {
	if !m.isRaised {
		return nil
	}
	m.isRaised = false
	id := m.ID
	return &id
}

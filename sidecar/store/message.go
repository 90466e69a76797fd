package store

import (
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// ownChannel returns the channel on which sidecars reach the one with this uuid. It does not
// depend on the key prefix: a sidecar computes it from an owner field alone.
func ownChannel(uuid string) string { return channelPrefix + "{locksidecar}:" + uuid }

// A message on the channel of a sidecar is a text of fields, with one space between two of
// them. The last one is the key of the lock, in which any character may occur:
//
//	transfer <ticket> <last token> <tokens> <lease ms> <waiting> <passed ms> <key>
//	recall <key>
//	free <pause ms> <key>
//	requeue <key>

// parseMessage reads a message. Its Name is the key of the lock, with the key prefix. False:
// the text is none of these messages. Any program that may publish can have sent it.
func parseMessage(text string) (m locktable.Message, ok bool) {
	fields := messageFields{rest: text}
	switch fields.next() {
	case "transfer":
		m.Kind = locktable.Transferred
		m.Ticket = fields.number(64)
		m.LastToken = fields.number(64)
		m.Tokens = uint16(fields.number(16))
		m.LeaseMS = uint32(fields.number(32))
		m.Waiting = uint32(fields.number(32))
		m.PassedMS = uint32(fields.number(32))
		// 0 is no ticket, no lease, and no token. Tokens begin at 1.
		ok = m.Ticket > 0 && m.LeaseMS > 0 && m.Tokens > 0 && m.LastToken >= uint64(m.Tokens)
	case "recall":
		m.Kind, ok = locktable.Recalled, true
	case "free":
		m.Kind, ok = locktable.Freed, true
		m.PauseMS = uint32(fields.number(32))
	case "requeue":
		m.Kind, ok = locktable.Requeue, true
	}
	m.Name = fields.rest
	if !ok || fields.broken || m.Name == "" {
		return locktable.Message{}, false
	}
	return m, true
}

// messageFields are the fields of a message that were not read yet.
type messageFields struct {
	rest   string
	broken bool // a field is missing, or is no number
}

// next removes the first field.
func (f *messageFields) next() string {
	field, rest, found := strings.Cut(f.rest, " ")
	if !found {
		f.broken = true
	}
	f.rest = rest
	return field
}

// number removes the first field, which is a decimal number of so many bits.
func (f *messageFields) number(bits int) uint64 {
	n, err := strconv.ParseUint(f.next(), 10, bits)
	if err != nil {
		f.broken = true
	}
	return n
}

// message reads a message that was published to this sidecar. False: it is none, or not of a
// lock under the key prefix.
func (k *keyspace) message(text string) (locktable.Message, bool) {
	m, ok := parseMessage(text)
	if !ok {
		return m, false
	}
	name, ok := strings.CutPrefix(m.Name, k.prefix)
	if !ok || protocol.CheckName(name) != nil {
		return locktable.Message{}, false
	}
	m.Name = name
	return m, true
}

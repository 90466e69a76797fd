package wire

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A message on the channel of a sidecar is a text of fields, with one space between two of
// them. The last one is the key of the lock, in which any character may occur:
//
//	transfer:<origin> <ticket> <last token> <tokens> <lease ms> <waiting> <passed ms> <key>
//	admit:<origin> p <number> <units> <last token> <tokens> <lease ms> <waiting> <key>
//	admit:<origin> r <number> <mode> <last token> <tokens> <lease ms> <waiting> <key>
//	recall:<origin> <key>
//	return:<origin> <p or r> <key>
//	free:<origin> <pause ms> <key>
//	requeue:<origin> <ticket> <key>
//
// To a sidecar whose uuid is not of version 8, and from older sidecars, no message has an origin,
// and requeue has no ticket.

// The largest numbers of a message. A script sends no larger ones, so a message with a larger one
// is damaged or forged, and is not taken.
const (
	MaxScriptNumber = 1<<53 - 1 // of a hold, and of a token
	maxPauseMS      = uint64(redisop.FreeFor / time.Millisecond)
	maxPassedMS     = uint64(redisop.FreeAfter/time.Millisecond) - 1 // a lock that has passed for longer is left free, and no transfer says so
	maxWaiting      = 1<<20 - 1                                      // a sidecar has one ticket in a queue, so these are more hosts than there are
	maxTokens       = redisop.PassedTokens
	maxLeaseMS      = protocol.MaxDurationMS
)

// parseMessage reads a message, and the origin that it names. Its Name is the key of the lock,
// with the key prefix. False: the text is none of these messages. Any program that may publish
// can have sent it.
func parseMessage(text string) (m redisop.Message, from Origin, ok bool) {
	fields := messageFields{rest: text}
	word, name, hasOrigin := strings.Cut(fields.next(), ":")
	if hasOrigin {
		if from, ok = parseOrigin(name); !ok {
			return m, Origin{}, false
		}
	}
	switch ok = true; word {
	case "transfer":
		m.Kind = redisop.Transferred
		// 0 is no ticket, no lease, and no token. Tokens begin at 1.
		m.Ticket = fields.number(1, MaxScriptNumber)
		m.LastToken = fields.number(1, MaxScriptNumber)
		m.Tokens = uint16(fields.number(1, min(maxTokens, m.LastToken)))
		m.LeaseMS = uint32(fields.number(1, maxLeaseMS))
		m.Waiting = uint32(fields.number(0, maxWaiting))
		m.PassedMS = uint32(fields.number(0, maxPassedMS))
	case "admit":
		m.Kind, m.Of = redisop.Admitted, fields.kind()
		m.Ticket = fields.number(1, MaxScriptNumber)
		units, tokens := uint64(math.MaxUint16), uint64(maxTokens)
		if m.Of == redisop.KindReadWrite {
			units = uint64(redisop.ExclusiveMode)
		}
		m.Units = uint16(fields.number(1, units))
		m.LastToken = fields.number(1, MaxScriptNumber)
		if m.Of == redisop.KindPermits {
			tokens = uint64(m.Units)
		}
		m.Tokens = uint16(fields.number(1, min(tokens, m.LastToken)))
		m.LeaseMS = uint32(fields.number(1, maxLeaseMS))
		m.Waiting = uint32(fields.number(0, maxWaiting))
	case "recall":
		m.Kind = redisop.Recalled
	case "return":
		m.Kind, m.Of = redisop.Recalled, fields.kind()
	case "free":
		m.Kind = redisop.Freed
		m.PauseMS = uint32(fields.number(0, maxPauseMS))
	case "requeue":
		m.Kind = redisop.Requeue
		if m.NamesTicket = hasOrigin; hasOrigin {
			m.Ticket = fields.number(1, MaxScriptNumber)
		}
	default:
		ok = false
	}
	m.Name = fields.rest
	if !ok || fields.broken || m.Name == "" {
		return redisop.Message{}, Origin{}, false
	}
	return m, from, true
}

// messageFields are the fields of a message that were not read yet.
type messageFields struct {
	rest   string
	broken bool // a field is missing, or is no number within its bounds
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

// kind removes the first field, which is a kind of locks.
func (f *messageFields) kind() redisop.LockKind {
	switch f.next() {
	case "p":
	case "r":
		return redisop.KindReadWrite
	default:
		f.broken = true
	}
	return redisop.KindPermits
}

// number removes the first field, which is a decimal number from least to most.
func (f *messageFields) number(least, most uint64) uint64 {
	n, err := strconv.ParseUint(f.next(), 10, 64)
	if err != nil || n < least || n > most {
		f.broken = true
	}
	return n
}

// Message reads a message that was published to this sidecar, and the origin that it names. False:
// it is none, or not of a lock under the key prefix.
func (k *Keyspace) Message(text string) (redisop.Message, Origin, bool) {
	m, from, ok := parseMessage(text)
	if !ok {
		return m, from, false
	}
	name, ok := strings.CutPrefix(m.Name, k.Prefix)
	if !ok || protocol.CheckName(name) != nil || Reserved(k.Prefix, name) != "" {
		return redisop.Message{}, Origin{}, false
	}
	m.Name = name
	return m, from, true
}

// IsUUID reports whether a text is a uuid in its usual form: 36 characters.
func IsUUID(text string) bool {
	if len(text) != 36 {
		return false
	}
	for i := range text {
		c := text[i]
		switch isHex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case !isHex:
			return false
		}
	}
	return true
}

package redisop

// Message is what was published to this sidecar: on its own channel, or on the channel of a
// lock that it is subscribed to. Messages and results come in the order in which Redis made
// them.
type Message struct {
	Kind MessageKind
	Name string

	// Conn is the connection that the message came over, if the server at its other end executed
	// the script that sent the message. Otherwise it is not known: a replica received the message
	// from its master, an older sidecar sent it, or another program did.
	Conn Conn

	// Of Transferred.
	Ticket    uint64 // of this sidecar: the field that the key has now. Of Requeue with NamesTicket: the one that was removed
	LastToken uint64 // tokens LastToken − Tokens + 1 to LastToken are drawn for it
	Tokens    uint16
	LeaseMS   uint32 // that the key was given
	Waiting   uint32 // tickets in the queue behind it
	PassedMS  uint32 // for how long the lock has passed from owner to owner without having been free, ms

	Of LockKind // of Admitted and Recalled: of what kind the lock is

	Units uint16 // of Admitted, which has what Transferred has, but for PassedMS

	// Of Freed.
	PauseMS uint32 // for how long sidecars leave the lock free, ms

	// Of Requeue.
	NamesTicket bool // older sidecars name no ticket
}

// Conn is a connection to Redis, and the proof that the server at its other end made what came
// over it. The server was a master when the connection was made. The zero value proves nothing.
type Conn struct {
	number  uint32
	isKnown bool
}

// NewConn returns the connection with a number, to a server that is known.
func NewConn(number uint32) Conn { return Conn{number, true} }

// IsSame reports whether both are known, and are one connection.
func (c Conn) IsSame(other Conn) bool { return c.isKnown && c == other }

// MessageKind says what was published.
type MessageKind uint8

const (
	// Unlocked, on the channel of the lock: a program released the lock.
	Unlocked MessageKind = iota

	// Transferred: the lock passed to this sidecar, under its Ticket.
	Transferred

	// Recalled, to the sidecar that has the lock: another one waits for it. Of permits: to give back those that it does
	// not use.
	Recalled

	// Freed, to the first of the queue: the lock is free. It asks again after PauseMS.
	Freed

	// Requeue: the Ticket of this sidecar left the queue without the lock, because it had not
	// asked for too long. It asks again.
	Requeue

	// Admitted: this sidecar has Units permits more, that its place with the number Ticket was for.
	Admitted
)

// Number returns the number of the connection; false: it is not known.
func (c Conn) Number() (number uint32, isKnown bool) { return c.number, c.isKnown }

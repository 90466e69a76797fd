package pipeline

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Config is what stays for as long as a Machine.
type Config struct {
	UUID     string
	Keys     wire.Keyspace
	IsNode   bool // of a Cluster
	Replicas int  // that must confirm what is done; 0: none

	TokenExpiry   time.Duration // of token counters after their last use; 0: they do not expire
	Timeout       time.Duration // of silence while an answer is owed
	ProbeInterval time.Duration // 0: no probes

	Batches Batches
}

// Greeting is what the greeting of a connection found out.
type Greeting struct {
	Server  wire.Server
	At      string // host and port of the server, as Sentinels name it
	ID      wire.Identity
	Origin  wire.Origin // of what the server executes
	Number  uint32      // of the connection: no other one of this host has it
	Clock   int64       // the server's time at ClockAt, µs
	ClockAt int64       // CLOCK_BOOTTIME in ns

	HasQueues bool     // this user may use the queues of locks
	IsSharded bool     // the server has sharded channels, and is a node of a Cluster
	Loads     bool     // SCRIPT LOAD is permitted
	NoRole    bool     // ROLE is not: a ping is a PING
	Lacks     []string // permissions of commands of the greeting that locks do without

	Replication Replication
	Eviction    Eviction
}

// Machine is what waits for one server, and one connection to it at a time.
type Machine struct {
	cfg Config

	// What waits, also without a connection.
	waiting     Waiting
	asking      fifo[redisop.Op] // whose keys are here already, although another node has their slot
	queries     fifo[*Query]
	expired     []*Query // that were not sent in time
	channels    channels
	ownChannel  string // on which other sidecars reach this one
	isFinishing bool
	asksClock   bool             // slots have moved here since there was a connection: see askClock
	failingOver string           // where the master is that a Sentinel is about to replace; "": none is
	failoverWhy string           // the sentence for that
	probeLock   string           // that a probe takes; "": the server has no slot for one
	batch       []redisop.Op     // emptied, to be used again
	spare       []redisop.Result // the same
	ignored     ignored

	deliveries []Delivery // before what the connection has

	isUp bool
	conn
}

// conn is the state of one connection.
type conn struct {
	Greeting

	id      redisop.Conn
	encoder wire.Encoder
	calls   fifo[call]       // without an answer, oldest first
	flight  fifo[redisop.Op] // those that the calls carry out

	out    []byte // not taken by the owner yet
	made   int64  // bytes of commands that were made on this connection, with those of out
	isCut  bool   // it ends: no command is made any more
	served bool   // Redis answered a command
	drains string // why no further command is to be sent here, although it can be; "": it may

	liveness  liveness
	lastReply int64 // when Redis last sent anything, as of the last check or, if later, when liveness became waiting
	next      int64 // when Advance is due
	minRTT    int64 // the shortest time that an answer took
	trip      int64 // of the last command that Redis answered, ns; 0: there was none

	asksAgain bool // slots have moved here since askClock
	isRaised  bool // a token has raised the floor of the connection's id since the last delivery of results

	isLoading  map[*wire.Script]bool // that it is being taught a script is among the calls
	queryCalls int                   // how many of the calls are commands of queries

	probe        probe
	durability   durability
	degraded     string // why Redis is degraded, as it was delivered last; "": it is not
	risk         string // the same for the risk
	evictionNext int64  // when the numbers of evicted keys may be read again because locks were lost

	// What was answered, in order.
	redirects []wire.Redirect   // of MOVED
	asked     []askedOps        // of ASK
	results   []redisop.Result  // with those before
	messages  []redisop.Message // all came after the results
	silent    string            // a lock whose release could not be published
	isSilent  bool              // that one could not was delivered
	counts    Redirects
}

// askedOps is operations that a node answered with ASK.
type askedOps struct {
	to  wire.Redirect
	ops []redisop.Op
}

// Redirects counts the answers of a node of a Cluster that did not serve a command.
type Redirects struct {
	Moved    uint64 // another node has the slot
	Ask      uint64 // another node has these keys already, and is to get the slot
	TryAgain uint64 // another node has some of these keys
}

// A call is one command in flight. The answer to each kind is taken in by one function: see Reply.
type call struct {
	kind     kind
	script   *wire.Script
	byText   bool     // EVAL: the script is taught
	ops      int      // how many operations it carries out
	sent     int64    // CLOCK_BOOTTIME in ns, read before it was written
	from     int64    // where in the stream of the connection it begins, bytes
	isAsking bool     // another node of the Cluster has its slot
	again    bool     // Redis was taught the script after it did not know it for these operations
	isOwed   bool     // a WAIT follows: its results are withheld until the answer to that
	request  *request // of channels
	query    *Query   // of query
}

type kind uint8

const (
	running     kind = iota // EVALSHA or EVAL of operations
	loading                 // SCRIPT LOAD
	pinging                 // ROLE, or PING if that is not permitted
	subscribing             // SUBSCRIBE or UNSUBSCRIBE
	querying                // a command of a query
	probing                 // EVALSHA: a probe
	permitting              // which commands are permitted: see probe.lacks
	waiting                 // WAIT
	asking                  // ASKING: the next command may be of a slot that another node has
	timing                  // TIME: see askClock
	reading                 // CONFIG GET: see onReplicas
	informing               // INFO: see askEviction
)

// A Query is a few commands for people and not for locks. They are sent when nothing else waits. A query with a
// Script is one run of that; if Redis does not know it, it is loaded, or sent as a text.
type Query struct {
	Commands [][]string
	Script   *wire.Script
	Args     func(p *wire.Params) []string // of the script, made when it is sent
	IsAsking bool                          // another node of the Cluster has the slot of the script's keys
	Latest   int64                         // it is not sent after this time, and fails; 0: no limit

	Done func(replies []wire.Reply, err error) // the owner calls it: of a script, with the last reply

	stage   queryStage
	replies []wire.Reply // so far
	owed    int          // replies that are to come
}

// queryStage is how a script is sent.
type queryStage uint8

const (
	byDigest queryStage = iota
	byLoad              // after SCRIPT LOAD
	byText
)

// A Delivery is one thing that happened.
type Delivery struct {
	Kind DeliveryKind

	Results  []redisop.Result  // Results
	Raised   *wire.Identity    // the same: a token raised the floor; nil: none did
	Messages []redisop.Message // Messages
	Names    []string          // Subscribed, Unsubscribed, SlotLeft; of a Note, what it is about
	Redirect wire.Redirect     // Moved, Asked; of TryAgain, the slot
	Ops      []redisop.Op      // Asked
	Text     string            // Degraded, Question, Answer, Risk; of a Note, the reason
	From     string            // Question: the uuid of the sidecar that asks
	Risk     *Risk             // Risk
	Query    *Query            // Answered
	Note     Note              // Noted

	unawaited []int // see durability
}

// DeliveryKind says what a Delivery has.
type DeliveryKind uint8

const (
	Results      DeliveryKind = iota // results of operations
	Messages                         // on channels of locks, or to this sidecar
	Subscribed                       // Redis confirmed these subscriptions (again)
	Unsubscribed                     // they are gone, or not permitted
	SlotLeft                         // the same, because a slot has left the node
	Moved                            // another node has a slot
	Asked                            // another node has the keys of these operations, which are the owner's now
	TryAgain                         // another node has some of the keys of an operation
	Degraded                         // Redis began, or ceased ("") to refuse what locks need
	Risked                           // why two owners are possible; "": nothing is known
	Question                         // a sidecar asked this one
	Answer                           // a sidecar answered
	Answered                         // a query has all replies
	Noted                            // something for the log
)

// Note is what an operator may read. The owner words it, and says it once.
type Note uint8

const (
	_                 Note = iota
	PublishDenied          // this user may not publish: Names has a lock
	SubscribeDenied        // this user may not subscribe: Names has a lock, Text the reason
	UnsubscribeDenied      // this user may not end subscriptions, for the reason Text
	LacksOptional          // Names are permissions that locks do without
	KeysDenied             // this user may not use the keys of each lock, for the reason Text
	Flooded                // another program floods the channel of this sidecar
)

// probe is whether Redis executes what locks need: see probe.go.
type probe struct {
	encoder  wire.Encoder
	interval int64 // ns; 0: no probes

	inFlight bool
	sentAt   int64  // of the last one
	next     int64  // when the next one is sent, while none is in flight
	refusals int    // in a row
	why      string // Redis is degraded; "": it serves
	lacks    string // the same, because this user may not execute a command

	// Without a key prefix, an ACL may permit the locks of clients and not that of the probe.
	// These decide then; see isConclusive.
	passed      bool // a probe was executed on this connection
	takeServed  bool // a Take was, since the last probe that was
	takeRefused bool // a Take or a renewal was refused, since the last probe that was executed
}

const (
	// probeLease is how long the lock stays if Redis permits the Take and not the Drop.
	probeLease = time.Second

	// probeConfirm is the time between a refusal that may pass and the next probe, and the least
	// time between two probes.
	probeConfirm = time.Second

	// probeDegraded is the time between two probes of a degraded Redis.
	probeDegraded = 5 * time.Second
)

// durability is what waits for replicas: see durable.go.
type durability struct {
	owed     bool          // scripts were made, and no WAIT after them
	lease    uint32        // the shortest of their operations, ms; 0: they have none
	inFlight bool          // a WAIT has no answer
	within   time.Duration // that it waits, at most
	why      string        // the last WAIT was not satisfied; "": it was

	withholds bool       // a result was taken in whose WAIT has no answer
	withheld  []Delivery // before the results and messages of the connection, oldest first
	unawaited []int      // those of the connection's results, by index, that are of a Drop with CanWait
}

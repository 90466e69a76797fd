// Package invariant has the names of what must be true after every step. The assertions of the
// lock table use some of them as texts; the checks of the simulation and of the exploration use
// these constants. docs/invariants.md describes each, and a test compares.
package invariant

// Name is the name of an invariant.
type Name string

// Of the table in one process, which asserts them too.
const (
	Exclusion    Name = "Exclusion"
	Validity     Name = "Validity is conservative"
	HoldNumbers  Name = "A lower hold number never replaces a higher one"
	OneOperation Name = "One operation in flight"
)

// Of holds.
const (
	KeysCoverHolds Name = "Keys cover holds"
	TokensGrow     Name = "Tokens only grow"
	HoldsLast      Name = "A hold lasts until its end"
	HoldsEnd       Name = "A hold ends in time"
	Losses         Name = "A loss is reported once, with its reason"
	Reentry        Name = "A re-entry keeps hold and token"
	Releases       Name = "A release ends one entry"
	Keeps          Name = "A keep excludes until its end"
	Leaks          Name = "Permits cannot leak"
	PermitsInOrder Name = "Permits are granted in order"
)

// Of requests.
const (
	Answers        Name = "An answer belongs to a request, and says what became of it"
	AnswersInTime  Name = "A request is answered in time"
	Order          Name = "Waiters of a host are granted in order"
	StrictOrder    Name = "Strict order is the order of arrival"
	Deadlocks      Name = "A cycle of waits is refused"
	Limits         Name = "Limits are kept, and refuse no request that fits"
	Confirms       Name = "A confirmed release was executed"
	ResumedSession Name = "A resumed session has what it claimed"
)

// Of hosts that share a Redis.
const (
	WakeUps     Name = "No wake-up is lost"
	Turns       Name = "A turn ends while another host waits"
	FreeMoments Name = "A lock that passes on is left free at times"
	Backoff     Name = "A host that yields backs off"
	NewTickets  Name = "A new ticket stands behind all others"
	RedisSynced Name = "Redis has what the host wants"
	Routes      Name = "A lock is asked for at the shard that has it"
	Contract    Name = "The store keeps its contract"
	RedisDown   Name = "Nothing is sent to a Redis that is down"
)

// Of the state of a host.
const (
	Journal     Name = "The journal is true"
	Lists       Name = "Lists show what is"
	Audit       Name = "The table agrees with itself"
	Rest        Name = "The table comes to rest"
	NoPanic     Name = "The table does not panic"
	NothingLeft Name = "Nothing is left over"
)

package pipeline

import (
	"fmt"
	"strconv"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A replica that is promoted leaves its old master, which keeps the others. If they are as many as
// min-replicas-to-write asks for, the old master goes on granting locks that the new one does not know, until a
// Sentinel demotes it, or for as long as it is cut off together with them. So the right number is that of all
// replicas, there or in the setting durability.

// MinReplicas is the setting of Redis.
const MinReplicas = "min-replicas-to-write"

// Replication is what a master says of its replicas.
type Replication struct {
	Replicas int  // that are connected
	Tells    bool // it says how many

	minimum  minimum
	needed   int  // the value of min-replicas-to-write, if minimum is minimumRead
	IsDenied bool // CONFIG GET is: each attempt would be one more entry in the ACL LOG of Redis
}

// minimum is what is known of min-replicas-to-write.
type minimum uint8

const (
	minimumUnknown minimum = iota // neither CONFIG GET nor INFO is permitted
	minimumZero                   // INFO has no line that it has with the setting only
	minimumSet                    // it is 1 or more, as INFO shows
	minimumRead                   // CONFIG GET is permitted
)

// OnInfo takes in the fields of INFO REPLICATION; none: it is not permitted.
func (r *Replication) OnInfo(info map[string]string) {
	n, err := strconv.Atoi(info["connected_slaves"])
	if err != nil {
		return
	}
	r.Replicas, r.Tells = n, true
	r.minimum = minimumZero
	if _, isSet := info["min_slaves_good_slaves"]; isSet {
		r.minimum = minimumSet
	}
}

// OnMinimum takes in the value of the setting.
func (r *Replication) OnMinimum(text string) {
	if n, err := strconv.Atoi(text); err == nil {
		r.minimum, r.needed = minimumRead, n
	}
}

// risk is the sentence for numbers with which two owners may have one lock after a failover; "": they are right.
func (r *Replication) risk(s *wire.Server, durable int) string {
	n := r.Replicas
	if n == 0 || durable >= n || r.minimum == minimumRead && r.needed >= n || r.minimum == minimumSet && n == 1 {
		return ""
	}
	set := fmt.Sprintf("set %s %d there, or durability = \"replicas:%d\" on all hosts; docs/topologies.md has what either costs", MinReplicas, n, n)
	has := fmt.Sprintf("Redis at %s has %d replicas", s.Address, n)
	if n == 1 {
		has = fmt.Sprintf("Redis at %s has a replica", s.Address)
	}
	const then = ": after a failover, the old and the new master may grant one lock; "
	switch {
	case durable > 0:
		return fmt.Sprintf("%s, of which %d must confirm each lock (durability)%s%s", has, durable, then, set)
	case r.minimum == minimumZero || r.minimum == minimumRead && r.needed == 0:
		return fmt.Sprintf("%s, and also grants locks when it has lost them (%s is 0)%s%s", has, MinReplicas, then, set)
	case r.minimum == minimumRead:
		return fmt.Sprintf("%s, and grants locks with %d of them (%s)%s%s", has, r.needed, MinReplicas, then, set)
	}
	return fmt.Sprintf("%s, and this user may not read %s (+config|get permits it, and shows passwords of Redis, too): if it is below %d, the old and the new master may grant one lock after a failover; %s",
		has, MinReplicas, n, set)
}

// A Redis that evicts keys deletes locks that are held, because they expire: two owners then have one lock
// until the first one's next renewal.

// Eviction is what a server says of the keys that it deletes when its memory is full.
type Eviction struct {
	isKnown bool   // INFO is permitted
	policy  string // maxmemory-policy
	limit   int64  // maxmemory in bytes; 0: there is none
	evicted int64  // keys, since the server was started
	before  int64  // of these, when the connection was made
}

// OnInfo takes in the fields of INFO MEMORY and STATS, or of one of them.
func (e *Eviction) OnInfo(info map[string]string) {
	if policy := info["maxmemory_policy"]; policy != "" {
		e.policy = policy
		e.limit, _ = strconv.ParseInt(info["maxmemory"], 10, 64)
	}
	if n, err := strconv.ParseInt(info["evicted_keys"], 10, 64); err == nil {
		if !e.isKnown {
			e.before = n
		}
		e.isKnown, e.evicted = true, n
	}
}

// evicts is what the server does to the keys of locks, in words; "": nothing that is known.
func (e *Eviction) evicts() string {
	if e.policy == "" || e.policy == "noeviction" || e.limit == 0 {
		return ""
	}
	text := "Redis evicts keys (maxmemory-policy " + e.policy + ")"
	if n := e.evicted - e.before; n > 0 {
		text += fmt.Sprintf("; evicted_keys grew by %d since this sidecar connected", n)
	}
	return text
}

// risk is the sentence for a server that evicts locks; "": it does not.
func (e *Eviction) risk(s *wire.Server) string {
	what := e.evicts()
	if what == "" {
		return ""
	}
	return fmt.Sprintf("at %s, %s: when its memory is full it deletes locks that are held, and each then has two owners; set maxmemory-policy noeviction there, and keep other data elsewhere", s.Address, what)
}

// Risk is why two owners are possible, as far as it is known.
type Risk struct {
	Replication Replication
	Eviction    Eviction
	Server      wire.Server
	Durable     int // replicas that must confirm each lock
}

// Failover is the sentence for what may happen after a failover; "": nothing.
func (r *Risk) Failover() string { return r.Replication.risk(&r.Server, r.Durable) }

// Evicts is the sentence for a server that evicts locks; "": it does not.
func (r *Risk) Evicts() string { return r.Eviction.risk(&r.Server) }

// String is the sentence for all of it.
func (r *Risk) String() string {
	eviction, failover := r.Evicts(), r.Failover()
	if eviction != "" && failover != "" {
		return eviction + ". Also: " + failover
	}
	return eviction + failover
}

// Policy is the maxmemory-policy of the server.
func (e *Eviction) Policy() string { return e.policy }

// HasEvicted reports whether keys were evicted since the connection was made.
func (e *Eviction) HasEvicted() bool { return e.evicted > e.before }

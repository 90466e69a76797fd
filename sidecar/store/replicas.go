package store

import (
	"fmt"
	"strconv"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/redis/go-redis/v9"
)

// A replica that is promoted leaves its old master, which keeps the others. If they are as many as
// min-replicas-to-write asks for, the old master goes on granting locks that the new one does not know, until a
// Sentinel demotes it, or for as long as it is cut off together with them. So the right number is that of all
// replicas, there or in the setting durability.

// minReplicas is the setting of Redis.
const minReplicas = "min-replicas-to-write"

// replication is what a master says of its replicas.
type replication struct {
	replicas      int  // that are connected
	tellsReplicas bool // it says how many

	minimum  minimum
	needed   int  // the value of min-replicas-to-write, if minimum is minimumRead
	isDenied bool // CONFIG GET is: each attempt would be one more entry in the ACL LOG of Redis
}

// minimum is what is known of min-replicas-to-write.
type minimum uint8

const (
	minimumUnknown minimum = iota // neither CONFIG GET nor INFO is permitted
	minimumZero                   // INFO has no line that it has with the setting only
	minimumSet                    // it is 1 or more, as INFO shows
	minimumRead                   // CONFIG GET is permitted
)

// onInfo takes in the fields of INFO REPLICATION; none: it is not permitted.
func (r *replication) onInfo(info map[string]string) {
	n, err := strconv.Atoi(info["connected_slaves"])
	if err != nil {
		return
	}
	r.replicas, r.tellsReplicas = n, true
	r.minimum = minimumZero
	if _, isSet := info["min_slaves_good_slaves"]; isSet {
		r.minimum = minimumSet
	}
}

// onGreeting takes in the answer to CONFIG GET.
func (r *replication) onGreeting(answer *redis.Cmd) {
	list, _ := answer.Val().([]any)
	if r.isDenied = answer.Err() != nil; len(list) == 2 {
		text, _ := list[1].(string)
		r.onMinimum(text)
	}
}

// onMinimum takes in the value of the setting.
func (r *replication) onMinimum(text string) {
	if n, err := strconv.Atoi(text); err == nil {
		r.minimum, r.needed = minimumRead, n
	}
}

// risk is the sentence for numbers with which two owners may have one lock after a failover; "": they are right.
func (r *replication) risk(d *dialer) string {
	n := r.replicas
	if n == 0 || d.replicas >= n || r.minimum == minimumRead && r.needed >= n || r.minimum == minimumSet && n == 1 {
		return ""
	}
	set := fmt.Sprintf("set %s %d there, or durability = \"replicas:%d\" on all hosts; docs/topologies.md has what either costs", minReplicas, n, n)
	has := fmt.Sprintf("Redis at %s has %d replicas", d.Address, n)
	if n == 1 {
		has = fmt.Sprintf("Redis at %s has a replica", d.Address)
	}
	const then = ": after a failover, the old and the new master may grant one lock; "
	switch {
	case d.replicas > 0:
		return fmt.Sprintf("%s, of which %d must confirm each lock (durability)%s%s", has, d.replicas, then, set)
	case r.minimum == minimumZero || r.minimum == minimumRead && r.needed == 0:
		return fmt.Sprintf("%s, and also grants locks when it has lost them (%s is 0)%s%s", has, minReplicas, then, set)
	case r.minimum == minimumRead:
		return fmt.Sprintf("%s, and grants locks with %d of them (%s)%s%s", has, r.needed, minReplicas, then, set)
	}
	return fmt.Sprintf("%s, and this user may not read %s (+config|get permits it, and shows passwords of Redis, too): if it is below %d, the old and the new master may grant one lock after a failover; %s",
		has, minReplicas, n, set)
}

// onReplicas takes in how many replicas ROLE lists, and has the setting read again: replicas come and go, and an
// operator may change it. The caller holds mu, and flushes.
func (p *pipeline) onReplicas(n int) {
	p.replication.replicas, p.replication.tellsReplicas = n, true
	if n > 0 && !p.replication.isDenied && p.drainReason == "" {
		p.register(p.now, call{form: reading})
		p.out.Queued = wire.AppendString(wire.AppendString(wire.AppendString(wire.AppendArray(p.out.Queued, 3), "config"), "get"), minReplicas)
	}
}

// onMinimum takes in the answer to CONFIG GET, with RESP3 a map. The caller holds mu.
func (p *pipeline) onMinimum(answer wire.Reply) {
	if p.replication.isDenied = answer.Kind == '-'; answer.Kind == '%' && len(answer.List) == 2 {
		p.replication.onMinimum(answer.List[1].Text)
	}
}

// riskChange returns the sentence for the numbers, and whether that is not what was reported last. The caller
// holds mu, and reports it.
func (p *pipeline) riskChange() (risk string, changed bool) {
	risk = p.riskNow()
	changed = risk != p.risk
	p.risk = risk
	return risk, changed
}

// A riskReport is what is reported of a risk.
type riskReport struct {
	risk        string
	replication replication
	eviction    eviction
	dial        *dialer
}

func (s *readyConn) riskReport(risk string) riskReport {
	return riskReport{risk, s.replication, s.eviction, s.dial}
}

// reportRisk reports why two owners are possible; "": nothing is known. That of the replicas is logged once for each
// number of replicas that is larger than before: in a failover they come and go.
func (c *commands) reportRisk(r riskReport) {
	risk := r.risk
	if failover := r.replication.risk(r.dial); failover != "" && r.replication.replicas > c.riskLogged {
		c.riskLogged = r.replication.replicas
		c.cfg.Log.Warn("two owners may have one lock after a failover", "reason", failover)
	}
	c.reportEviction(&r.eviction, r.dial)
	if c.cfg.OnRisk != nil {
		c.cfg.OnRisk(c.shard, risk)
	}
}

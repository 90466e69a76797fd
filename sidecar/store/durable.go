package store

import (
	"cmp"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// With Config.Replicas, an operation is done when so many replicas of Redis have it. A lock that was
// granted is then still this sidecar's after a failover to one of them.
//
// After the scripts of a batch comes one WAIT, in the same write. Redis answers it when the replicas
// have confirmed all that it had executed by then, whichever connection that came over; or after a
// time. Until it has answered, it executes nothing else of this connection, so at most one WAIT is in
// flight, and operations that arrive meanwhile are the next batch.
//
// From the first result that a WAIT covers until its answer, nothing is delivered: results,
// messages and confirmations of subscriptions keep their order. The answer decides what the results
// are:
//
//	enough replicas                as Redis executed them
//	too few, or an error           what was done is NotSynced
//	none: the connection ended     Unknown, whatever they were
//
// A script that is sent again (see loadScript and split) is executed after the WAIT of its batch, so
// another WAIT follows it.
type durability struct {
	replicas int // that must have what was done; 0: none, and all else here is zero

	// Guarded by commands.mu.
	owed     bool          // scripts were queued, and no WAIT after them
	lease    uint32        // the shortest of their operations, ms; 0: they have none
	inFlight bool          // a WAIT has no answer
	within   time.Duration // that it waits, at most
	why      string        // the last WAIT was not satisfied; "": it was

	// Of the pipeline's reader.
	withholds bool       // a result was read whose WAIT has no answer
	withheld  []delivery // before the results and messages of the pipeline, oldest first
	unawaited []int      // those of the pipeline's results, by index, that are of a Drop with CanWait
}

// A delivery is what one callback brings.
type delivery struct {
	results      []redisop.Result
	unawaited    []int // as in durability
	messages     []redisop.Message
	subscribed   []string
	unsubscribed []string
}

// maxWait bounds the time of a WAIT. It is below locktable.Config.TryWithin, so that an acquire that
// does not wait is refused with what the replicas did.
const maxWait = 400 * time.Millisecond

// minWait is the least time of a WAIT: many operations share it, and one with a lease that is shorter is
// not to have the others fail. Its own validity counts from when it was sent.
const minWait = 100 * time.Millisecond

// isCovered reports whether an operation is done only when replicas have it. Nothing waits for a Drop
// with CanWait: if it is lost, the key ends with its lease.
func isCovered(op *redisop.Op) bool {
	return op.Kind == redisop.Take || op.Kind == redisop.Renew || op.Kind == redisop.Drop && !op.Has(redisop.CanWait)
}

// note notes operations that are being queued, and reports whether a WAIT is to follow.
func (d *durability) note(ops []redisop.Op) (isOwed bool) {
	for i := range ops {
		op := &ops[i]
		if !isCovered(op) {
			continue
		}
		isOwed = true
		if op.Kind != redisop.Drop && (d.lease == 0 || op.LeaseMS < d.lease) {
			d.lease = op.LeaseMS
		}
	}
	d.owed = d.owed || isOwed
	return isOwed
}

// waitWithin is for how long a WAIT waits after operations whose shortest lease is that. A renewal that is
// not confirmed is sent again often enough before the lease ends.
func waitWithin(leaseMS uint32, timeout time.Duration) time.Duration {
	within := maxWait
	if leaseMS > 0 {
		within = min(within, max(time.Duration(leaseMS)*time.Millisecond/10, minWait))
	}
	return max(min(within, timeout/2).Truncate(time.Millisecond), time.Millisecond)
}

// queueWait queues a WAIT if one is owed and none is in flight. It is called after scripts were
// queued, before mu is released: so a script that a WAIT must follow is never the last command in flight. The
// caller holds mu.
func (p *pipeline) queueWait(now int64) {
	d := &p.durability
	if !d.owed || d.inFlight {
		return
	}
	d.within = waitWithin(d.lease, p.dial.timeout)
	d.owed, d.lease, d.inFlight = false, 0, true
	p.register(now, call{form: syncing})
	p.out.Queued = appendString(appendArray(p.out.Queued, 3), "wait")
	p.out.Queued = appendNumber(p.out.Queued, int64(d.replicas))
	p.out.Queued = appendNumber(p.out.Queued, d.within.Milliseconds())
}

// onWaitReply takes in the answer to a WAIT, which is the oldest call, and returns what may be
// delivered now: those before the results of the pipeline. The error is that of a connection that
// cannot be used further. The caller holds mu.
func (p *pipeline) onWaitReply(answer reply) (deliverable []delivery, err error) {
	if answer.kind != ':' && answer.kind != '-' {
		return nil, &unexpectedReply{reply: answer}
	}
	p.onAnswered()
	d := &p.durability
	d.inFlight = false
	why := ""
	switch {
	case answer.kind == '-':
		why = p.dial.noWait(reason(answer.text))
		if p.drainReason == "" {
			p.drainReason = why // the next greeting finds out whether it stays so
		}
	case answer.num < int64(d.replicas):
		why = fmt.Sprintf("%d of %d replicas of Redis at %s confirmed the lock within %v; check its replicas (role)", answer.num, d.replicas, p.dial.address, d.within)
	}
	switch {
	case why == "":
		d.why = ""
	case d.why == "":
		d.why = why
	}
	if why != "" {
		for i := range d.withheld {
			notSynced(d.withheld[i].results, d.withheld[i].unawaited, why)
		}
		notSynced(p.results, d.unawaited, why)
		p.probeSoon()
	}
	// No probe is sent while a WAIT is in flight, and the next batch has one again.
	if at := p.checkProbe(p.now); at < p.nextCheck {
		p.nextCheck = at // run expected the reply that is here now
		p.commands.nudge()
	}
	deliverable, d.withheld = d.withheld, nil
	d.unawaited, d.withholds = d.unawaited[:0], false
	p.queueWait(p.now)
	return deliverable, nil
}

// notSynced makes the results that say what Redis has into NotSynced.
func notSynced(results []redisop.Result, unawaited []int, why string) {
	for i := range results {
		r := &results[i]
		if len(unawaited) > 0 && unawaited[0] == i {
			unawaited = unawaited[1:]
			continue
		}
		r.Unsynced = r.Kind == redisop.Take && r.Outcome == redisop.HeldByOther
		if isWrite := r.Kind == redisop.Take || r.Kind == redisop.Renew || r.Kind == redisop.Drop; isWrite && r.Outcome == redisop.Done {
			r.Outcome, r.Msg = redisop.NotSynced, why
		}
	}
}

// withhold notes results from an index on: those of ops, which a WAIT follows if isOwed.
func (d *durability) withhold(ops []redisop.Op, from int, isOwed bool) {
	d.withholds = d.withholds || isOwed
	for i := range ops {
		if ops[i].Has(redisop.CanWait) {
			d.unawaited = append(d.unawaited, from+i)
		}
	}
}

// setAside puts the results and messages that were read behind what is withheld.
func (p *pipeline) setAside(last delivery) {
	d := &p.durability
	if len(p.results)+len(p.messages) > 0 {
		d.withheld = append(d.withheld, delivery{results: p.results, unawaited: d.unawaited, messages: p.messages})
		p.results, d.unawaited, p.messages = nil, nil, nil
	}
	if len(last.subscribed)+len(last.unsubscribed) > 0 {
		d.withheld = append(d.withheld, last)
	}
}

// handAll delivers what was withheld.
func (p *pipeline) handAll(all []delivery) {
	for i := range all {
		if d := &all[i]; len(d.results) > 0 {
			p.commands.deliver(d.results, p.takeRaised())
		}
		p.commands.hand(&all[i])
	}
}

// endWithheld returns the results that were read and not delivered when the connection ended. Whether
// the replicas have them is not known, and the next connection may lead to one of those. Messages and
// confirmations are lost with the connection.
func (p *pipeline) endWithheld(why string) (results []redisop.Result) {
	if p.durability.replicas == 0 {
		return nil
	}
	<-p.ended // they are the reader's
	p.setAside(delivery{})
	for _, d := range p.durability.withheld {
		for _, r := range d.results {
			results = append(results, redisop.Result{Kind: r.Kind, Name: r.Name, Shard: r.Shard, Sent: r.Sent, Outcome: redisop.Unknown, Msg: why})
		}
	}
	p.durability.withheld = nil
	return results
}

// degradedWhy is why Redis is degraded; "": it is not. What refuses every acquire is shown before what
// some replica does. The caller holds mu.
func (p *pipeline) degradedWhy() string {
	if why := p.failover(); why != "" {
		return why
	}
	return cmp.Or(p.probe.lacks, p.probe.why, p.durability.why)
}

// degradedChange returns why Redis is degraded, and whether that is not what was reported last. The
// caller holds mu, and reports it.
func (p *pipeline) degradedChange() (why string, changed bool) {
	why = p.degradedWhy()
	changed = why != p.reported
	p.reported = why
	return why, changed
}

// tooFewReplicas is the sentence for a Redis that has fewer replicas than are to confirm; "": it has
// enough, or does not tell.
func (s *readyConn) tooFewReplicas() string {
	if r := &s.replication; !r.tellsReplicas || r.replicas >= s.dial.replicas {
		return ""
	}
	return fmt.Sprintf("Redis at %s has %d connected replicas, and %d must confirm each lock (durability); connect its replicas, or lower durability on all hosts",
		s.dial.address, s.replication.replicas, s.dial.replicas)
}

// noWait is the sentence for a Redis that refused WAIT with text.
func (d *dialer) noWait(text string) string {
	text = clip(text)
	if code(text) == "NOPERM" {
		return fmt.Sprintf("Redis at %s does not permit this user to wait for replicas (durability); let its ACL have +wait (%s)", d.address, text)
	}
	return fmt.Sprintf("Redis at %s does not wait for replicas (durability): %s", d.address, text)
}

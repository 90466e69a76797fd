package pipeline

import (
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
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

// maxWait bounds the time of a WAIT. It is below locktable.Config.TryWithin, so that an acquire that
// does not wait is refused with what the replicas did.
const maxWait = 400 * time.Millisecond

// minWait is the least time of a WAIT: many operations share it, and one with a lease that is shorter is
// not to have the others fail. Its own validity counts from when it was sent.
const minWait = 100 * time.Millisecond

// waitWithin is for how long a WAIT waits after operations whose shortest lease is that. A renewal that is
// not confirmed is sent again often enough before the lease ends.
func waitWithin(leaseMS uint32, timeout time.Duration) time.Duration {
	within := maxWait
	if leaseMS > 0 {
		within = min(within, max(time.Duration(leaseMS)*time.Millisecond/10, minWait))
	}
	return max(min(within, timeout/2).Truncate(time.Millisecond), time.Millisecond)
}

// queueWait makes a WAIT if one is owed and none is in flight. It is called after scripts were made, by each input: so a
// script that a WAIT must follow is never the last command in flight.
func (m *Machine) queueWait(now int64) {
	d := &m.durability
	if !d.owed || d.inFlight {
		return
	}
	d.within = waitWithin(d.lease, m.cfg.Timeout)
	d.owed, d.lease, d.inFlight = false, 0, true
	m.register(now, call{kind: waiting})
	begin := len(m.out)
	m.out = wire.AppendString(wire.AppendArray(m.out, 3), "wait")
	m.out = wire.AppendNumber(m.out, int64(m.cfg.Replicas))
	m.out = wire.AppendNumber(m.out, d.within.Milliseconds())
	m.made += int64(len(m.out) - begin)
}

// onWait takes in the answer to a WAIT: release follows. The error is that of a connection that cannot
// be used further.
func (m *Machine) onWait(now int64, answer *wire.Reply) error {
	if answer.Kind != ':' && answer.Kind != '-' {
		return &wire.UnexpectedReply{Reply: *answer}
	}
	m.onAnswered()
	d := &m.durability
	d.inFlight = false
	why := ""
	switch {
	case answer.Kind == '-':
		why = NoWait(&m.Server, wire.Reason(answer.Text))
		m.drain(why) // the next greeting finds out whether it stays so
	case answer.Num < int64(m.cfg.Replicas):
		why = fmt.Sprintf("%d of %d replicas of Redis at %s confirmed the lock within %v; check its replicas (role)", answer.Num, m.cfg.Replicas, m.Server.Address, d.within)
	}
	switch {
	case why == "":
		d.why = ""
	case d.why == "":
		d.why = why
	}
	if why != "" {
		for i := range d.withheld {
			notSynced(d.withheld[i].Results, d.withheld[i].unawaited, why)
		}
		notSynced(m.results, d.unawaited, why)
		m.probeBy(now + int64(probeDegraded))
	}
	m.probeBy(m.probe.next) // none is sent while a WAIT is in flight, and the next batch has one again
	return nil
}

// release delivers what was withheld, and what came after it may be.
func (m *Machine) release(now int64) {
	d := &m.durability
	for _, w := range d.withheld {
		switch w.Kind {
		case Results:
			w.Raised = m.takeRaised()
		case Subscribed:
			if w.Names = m.channels.subscribed(w.Names); len(w.Names) == 0 {
				continue
			}
		}
		m.deliveries = append(m.deliveries, w)
	}
	clear(d.withheld)
	d.withheld, d.unawaited, d.withholds = d.withheld[:0], d.unawaited[:0], false
	m.queueWait(now)
}

// withheldUnknown returns the results that were taken in and not delivered when the connection ended. Whether the
// replicas have them is not known, and the next connection may lead to one of those. Messages and confirmations are
// lost with the connection.
func (m *Machine) withheldUnknown(why string) (results []redisop.Result) {
	if m.cfg.Replicas == 0 {
		return nil
	}
	m.setAside()
	for _, d := range m.durability.withheld {
		for _, r := range d.Results {
			results = append(results, redisop.Result{Kind: r.Kind, Name: r.Name, Shard: r.Shard, Sent: r.Sent, Outcome: redisop.Unknown, Msg: why})
		}
	}
	return results
}

// tooFewReplicas is the sentence for a Redis that has fewer replicas than are to confirm; "": it has
// enough, or does not tell.
func (m *Machine) tooFewReplicas() string {
	if r := &m.Replication; !r.Tells || r.Replicas >= m.cfg.Replicas {
		return ""
	}
	return fmt.Sprintf("Redis at %s has %d connected replicas, and %d must confirm each lock (durability); connect its replicas, or lower durability on all hosts",
		m.Server.Address, m.Replication.Replicas, m.cfg.Replicas)
}

// slotIsMoving says why a release is not synced that a node executed before it has the slot: replicas of the node that has it
// may have the lock still, and one of them may become its master.
const slotIsMoving = "the slot of the lock is on its way to another node of the Cluster, and replicas of the old one may have the lock still; it is released when the slot has moved"

// NoWait is the sentence for a Redis that refused WAIT with text.
func NoWait(s *wire.Server, text string) string {
	text = wire.Clip(text)
	if wire.Code(text) == "NOPERM" {
		return fmt.Sprintf("Redis at %s does not permit this user to wait for replicas (durability); let its ACL have +wait (%s)", s.Address, text)
	}
	return fmt.Sprintf("Redis at %s does not wait for replicas (durability): %s", s.Address, text)
}

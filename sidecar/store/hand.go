package store

import (
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// handAll hands on what a Machine delivered, in its order.
func (l *link) handAll(deliveries []pipeline.Delivery) {
	for i := range deliveries {
		l.hand(&deliveries[i])
	}
}

func (l *link) hand(d *pipeline.Delivery) {
	switch d.Kind {
	case pipeline.Results:
		l.deliver(d.Results, d.Raised)
	case pipeline.Messages:
		if l.cfg.OnMessages != nil {
			l.cfg.OnMessages(d.Messages)
		}
	case pipeline.Subscribed:
		if l.cfg.OnSubscribed != nil {
			l.cfg.OnSubscribed(l.shard, d.Names)
		}
	case pipeline.Unsubscribed, pipeline.SlotLeft:
		if len(d.Names) > 0 && l.cfg.OnUnsubscribed != nil {
			l.cfg.OnUnsubscribed(l.shard, d.Names)
		}
		if d.Kind == pipeline.SlotLeft {
			l.cluster.refresh()
		}
	case pipeline.Moved:
		l.cluster.onMoved(d.Redirect)
	case pipeline.Asked:
		l.cluster.noteOpen(d.Redirect.Slot, d.Redirect.Address, false)
		l.cluster.askThere(d.Redirect, d.Ops)
	case pipeline.TryAgain:
		l.cluster.noteOpen(d.Redirect.Slot, "", true)
	case pipeline.Degraded:
		l.reportDegraded(d.Text)
	case pipeline.Risked:
		l.reportRisk(d.Text, d.Risk)
	case pipeline.Question, pipeline.Answer:
		if cl := l.cluster; cl != nil && !cl.has(l.shard, l.dial.channel) {
			return // a copy: see publish
		}
		if d.Kind == pipeline.Question && l.cfg.OnQuestion != nil {
			l.cfg.OnQuestion(d.From, []byte(d.Text))
		}
		if d.Kind == pipeline.Answer && l.cfg.OnAnswer != nil {
			l.cfg.OnAnswer([]byte(d.Text))
		}
	case pipeline.Answered:
		if d.Text != "" {
			d.Query.Done(nil, wire.Unavailable(d.Text))
		} else {
			d.Query.Done(d.Query.Replied(), nil)
		}
	case pipeline.Noted:
		l.note(d)
	}
}

func (l *link) deliver(results []redisop.Result, raised *wire.Identity) {
	if l.cfg.OnResults != nil {
		l.cfg.OnResults(results, raised)
	}
}

// note logs what an operator may read.
func (l *link) note(d *pipeline.Delivery) {
	keys := &l.dial.Keys
	switch d.Note {
	case pipeline.PublishDenied:
		if !l.publishLogged {
			l.publishLogged = true
			l.cfg.Log.Warn("this user may not publish: those who wait for a lock elsewhere learn late that it is free; let its ACL have +"+l.sharded("publish")+" and the channels "+keys.ChannelPatterns(),
				"lock", d.Names[0])
		}
	case pipeline.SubscribeDenied:
		if !l.subscribeLogged {
			l.subscribeLogged = true
			l.cfg.Log.Warn("this user may not subscribe to the channels of locks: the daemon asks again and again for a lock that another host holds; let its ACL have +"+l.sharded("subscribe")+" and the channels "+keys.ChannelPatterns(),
				"lock", d.Names[0], "reason", wire.Clip(d.Text))
		}
	case pipeline.LacksOptional:
		l.cfg.Log.Info("the Redis user lacks permissions that are useful and not required; deploy/README.md says what each is for", "permissions", strings.Join(d.Names, " "))
	case pipeline.Flooded:
		l.mu.Lock()
		total, inWindow := l.m.Ignored()
		l.mu.Unlock()
		l.cfg.Log.Warn("another program floods the channel of this sidecar: results of Redis wait behind its messages, which are ignored; let only daemons have +publish and the channels "+wire.OwnChannel("*"),
			"messages_in_a_second", inWindow, "ignored", total)
	}
}

// sharded returns the command for the channels of locks: that for sharded ones, if they are.
func (l *link) sharded(command string) string {
	if w := l.wired; w != nil && w.isSharded {
		return "s" + command
	}
	return command
}

// reportDegraded logs and reports that Redis began, or ceased, to be degraded; why: "" if it
// ceased.
func (l *link) reportDegraded(why string) {
	if why == "" {
		l.cfg.Log.Info("redis is not degraded any more")
	} else {
		l.cfg.Log.Warn("redis is degraded: it refuses what locks need", "reason", why)
	}
	if l.cfg.OnDegraded != nil {
		l.cfg.OnDegraded(l.shard, why)
	}
}

// reportRisk reports why two owners are possible; "": nothing is known. That of the replicas is logged once for each
// number of replicas that is larger than before: in a failover they come and go. Evicted keys are logged once for each
// policy, and once that it has happened.
func (l *link) reportRisk(text string, r *pipeline.Risk) {
	if failover := r.Failover(); failover != "" && r.Replication.Replicas > l.riskLogged {
		l.riskLogged = r.Replication.Replicas
		l.cfg.Log.Warn("two owners may have one lock after a failover", "reason", failover)
	}
	evicts, policy, hasEvicted := r.Evicts(), r.Eviction.Policy(), r.Eviction.HasEvicted()
	switch {
	case evicts == "":
	case policy != l.policyLogged:
		l.policyLogged, l.evictedLogged = policy, hasEvicted
		l.cfg.Log.Warn("Redis may delete locks that are held", "reason", evicts)
	case hasEvicted && !l.evictedLogged:
		l.evictedLogged = true
		l.cfg.Log.Warn("Redis has evicted keys, perhaps those of locks that are held", "reason", evicts)
	}
	if l.cfg.OnRisk != nil {
		l.cfg.OnRisk(l.shard, text)
	}
}

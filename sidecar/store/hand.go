package store

import (
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/cluster"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// connect makes the link to the server, which run connects.
func (s *shard) connect(d *link.Dialer, last wire.Identity, all *link.Shared) {
	c := link.Config{
		UUID: s.cfg.UUID, Last: last, TokenExpiry: s.cfg.TokenExpiry, Replicas: s.cfg.Replicas, ProbeInterval: s.cfg.ProbeInterval,
		Log: s.log, Shared: all, Hand: s.hand, OnUp: s.onUp, OnDown: s.onDown, OnSentinels: func(why string) { s.cfg.tell(Event{Kind: Sentinels, Text: why}) },
	}
	if s.masters != nil {
		c.Floor = s.masters.floorAt
	}
	if s.cfg.ReadURL != nil {
		c.Login = s.login
	}
	s.dial, s.link = d, link.New(c, d)
}

// login returns the way to the server with the user and the password of the URL, which is read again.
func (s *shard) login() (*link.Dialer, error) {
	d, err := s.cfg.readAgain()
	switch {
	case err != nil:
	case s.masters != nil:
		return s.masters.relogin(d, s.dial.Address)
	case !d.LeadsTo(s.dial):
		err = namesAnother(d)
	}
	return d, err
}

func (s *shard) onUp(dataLost, listening bool, id wire.Identity) {
	if s.masters != nil {
		id = s.masters.onUp(s.n, &id)
	}
	s.cfg.tell(Event{Kind: Up, Shard: s.n, IsLost: dataLost, IsListening: listening, ID: &id})
}

func (s *shard) onDown(err error) {
	if s.masters != nil {
		err = s.masters.onDown(s.n, err)
	}
	s.cfg.tell(Event{Kind: Down, Shard: s.n, Text: err.Error()})
}

// hand hands on what the Machine of the server delivered.
func (s *shard) hand(d *pipeline.Delivery) {
	switch d.Kind {
	case pipeline.Results:
		s.deliver(d.Results, d.Raised)
	case pipeline.Messages:
		s.cfg.tell(Event{Kind: Messages, Messages: d.Messages})
	case pipeline.Subscribed:
		s.cfg.tell(Event{Kind: Subscribed, Shard: s.n, Names: d.Names})
	case pipeline.Unsubscribed, pipeline.SlotLeft:
		if len(d.Names) > 0 {
			s.cfg.tell(Event{Kind: Unsubscribed, Shard: s.n, Names: d.Names})
		}
		if d.Kind == pipeline.SlotLeft {
			s.masters.update(func(m *cluster.Map, now int64) { m.SlotLeft(now) })
		}
	case pipeline.Moved:
		s.masters.update(func(m *cluster.Map, now int64) { m.Moved(now, d.Redirect) })
	case pipeline.Asked:
		s.masters.askThere(d.Redirect, d.Ops)
	case pipeline.TryAgain:
		s.masters.update(func(m *cluster.Map, now int64) { m.Blocked(now, d.Redirect.Slot) })
	case pipeline.Degraded:
		s.reportDegraded(d.Text)
	case pipeline.Risked:
		s.reportRisk(d.Text, d.Risk)
	case pipeline.Question, pipeline.Answer:
		if s.masters != nil && !s.masters.has(s.n, wire.SlotOf(wire.OwnChannel(s.cfg.UUID))) {
			return // a copy: see publish
		}
		kind := Question
		if d.Kind == pipeline.Answer {
			kind = Answer
		}
		s.cfg.tell(Event{Kind: kind, From: d.From, Text: d.Text})
	case pipeline.Answered:
		if d.Text != "" {
			d.Query.Done(nil, wire.Unavailable(d.Text))
		} else {
			d.Query.Done(d.Query.Replied(), nil)
		}
	case pipeline.Noted:
		s.note(d)
	}
}

func (s *shard) deliver(results []redisop.Result, raised *wire.Identity) {
	if s.masters != nil {
		raised = s.masters.onResults(results, raised)
	}
	s.cfg.tell(Event{Kind: Results, Results: results, ID: raised})
}

// note logs what an operator may read.
func (s *shard) note(d *pipeline.Delivery) {
	keys := &s.dial.Keys
	switch d.Note {
	case pipeline.PublishDenied:
		if !s.publishLogged {
			s.publishLogged = true
			s.log.Warn("this user may not publish: those who wait for a lock elsewhere learn late that it is free; let its ACL have +"+s.sharded("publish")+" and the channels "+keys.ChannelPatterns(),
				"lock", d.Names[0])
		}
	case pipeline.SubscribeDenied:
		if !s.subscribeLogged {
			s.subscribeLogged = true
			s.log.Warn("this user may not subscribe to the channels of locks: the daemon asks again and again for a lock that another host holds; let its ACL have +"+s.sharded("subscribe")+" and the channels "+keys.ChannelPatterns(),
				"lock", d.Names[0], "reason", wire.Clip(d.Text))
		}
	case pipeline.UnsubscribeDenied:
		if !s.unsubLogged {
			s.unsubLogged = true
			s.log.Warn("this user may not end subscriptions: this host receives the messages of each lock that it ever waited for; let its ACL have +"+s.sharded("unsubscribe"), "reason", wire.Clip(d.Text))
		}
	case pipeline.LacksOptional:
		s.log.Info("the Redis user lacks permissions that are useful and not required; deploy/README.md says what each is for", "permissions", strings.Join(d.Names, " "))
	case pipeline.KeysDenied:
		if !s.keysLogged {
			s.keysLogged = true
			s.log.Warn("this user may not use the keys of each lock: those of the others are denied; if that is not wanted, let its ACL have the keys ~*", "reason", wire.Clip(d.Text))
		}
	case pipeline.Flooded:
		var total, inWindow uint64
		s.link.With(func(m *pipeline.Machine) { total, inWindow = m.Ignored() })
		s.log.Warn("another program floods the channel of this sidecar: results of Redis wait behind its messages, which are ignored; let only daemons have +publish and the channels "+wire.OwnChannel("*"),
			"messages_in_a_second", inWindow, "ignored", total)
	}
}

// sharded returns the command for the channels of locks: that for sharded ones, if they are.
func (s *shard) sharded(command string) string {
	if s.link.IsSharded() {
		return "s" + command
	}
	return command
}

// reportDegraded logs and reports that Redis began, or ceased, to be degraded; why: "" if it
// ceased.
func (s *shard) reportDegraded(why string) {
	if why == "" {
		s.log.Info("redis is not degraded any more")
	} else {
		s.log.Warn("redis is degraded: it refuses what locks need", "reason", why)
	}
	s.cfg.tell(Event{Kind: Degraded, Shard: s.n, Text: why})
}

// reportRisk reports why two owners are possible; "": nothing is known. That of the replicas is logged once for each
// number of replicas that is larger than before: in a failover they come and go. Evicted keys are logged once for each
// policy, and once that it has happened.
func (s *shard) reportRisk(text string, r *pipeline.Risk) {
	if failover := r.Failover(); failover != "" && r.Replication.Replicas > s.riskLogged {
		s.riskLogged = r.Replication.Replicas
		s.log.Warn("two owners may have one lock after a failover", "reason", failover)
	}
	evicts, policy, hasEvicted := r.Evicts(), r.Eviction.Policy(), r.Eviction.HasEvicted()
	switch {
	case evicts == "":
	case policy != s.policyLogged:
		s.policyLogged, s.evictedLogged = policy, hasEvicted
		s.log.Warn("Redis may delete locks that are held", "reason", evicts)
	case hasEvicted && !s.evictedLogged:
		s.evictedLogged = true
		s.log.Warn("Redis has evicted keys, perhaps those of locks that are held", "reason", evicts)
	}
	s.cfg.tell(Event{Kind: Risk, Shard: s.n, Text: text})
}

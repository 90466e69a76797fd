package store

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A Redis that evicts keys deletes locks that are held, because they expire: two owners then have one lock
// until the first one's next renewal.

// eviction is what a server says of the keys that it deletes when its memory is full.
type eviction struct {
	isKnown bool   // INFO is permitted
	policy  string // maxmemory-policy
	limit   int64  // maxmemory in bytes; 0: there is none
	evicted int64  // keys, since the server was started
	before  int64  // of these, when the connection was made
}

// onInfo takes in the fields of INFO MEMORY and STATS, or of one of them.
func (e *eviction) onInfo(info map[string]string) {
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
func (e *eviction) evicts() string {
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
func (e *eviction) risk(d *dialer) string {
	what := e.evicts()
	if what == "" {
		return ""
	}
	return fmt.Sprintf("at %s, %s: when its memory is full it deletes locks that are held, and each then has two owners; set maxmemory-policy noeviction there, and keep other data elsewhere", d.Address, what)
}

// riskNow is the sentence for all that makes two owners possible, as far as it is known now.
func (s *readyConn) riskNow() string {
	eviction, failover := s.eviction.risk(s.dial), s.replication.risk(s.dial)
	if eviction != "" && failover != "" {
		return eviction + ". Also: " + failover
	}
	return eviction + failover
}

// askEviction has the numbers read again. The caller holds mu, and flushes.
func (p *pipeline) askEviction(now int64) {
	if !p.eviction.isKnown || p.drainReason != "" {
		return
	}
	for _, section := range []string{"memory", "stats"} {
		p.register(now, call{form: informing})
		p.out.Queued = wire.AppendString(wire.AppendString(wire.AppendArray(p.out.Queued, 2), "info"), section)
	}
}

// onInfo takes in the answer to INFO. The caller holds mu.
func (p *pipeline) onInfo(answer wire.Reply) {
	p.eviction.onInfo(infoFields(answer.Text))
	p.noteEviction()
}

// noteEviction publishes what the server does to the keys of locks.
func (p *pipeline) noteEviction() {
	p.commands.evicts.Store(new(p.eviction.evicts()))
}

// reportEviction logs once for each policy that the server evicts keys, and once that it has done so.
func (c *commands) reportEviction(e *eviction, d *dialer) {
	risk := e.risk(d)
	switch {
	case risk == "":
	case e.policy != c.policyLogged:
		c.policyLogged, c.evictedLogged = e.policy, e.evicted > e.before
		c.cfg.Log.Warn("Redis may delete locks that are held", "reason", risk)
	case e.evicted > e.before && !c.evictedLogged:
		c.evictedLogged = true
		c.cfg.Log.Warn("Redis has evicted keys, perhaps those of locks that are held", "reason", risk)
	}
}

// OnKeysGone has the numbers of evicted keys read soon: keys of held locks are gone. It returns what the server of
// a lock is known to do to keys of locks; "": nothing.
func (s *Store) OnKeysGone(name string) string {
	c := s.ofKey(s.dial.Keys.Key(name))
	if c == nil {
		return ""
	}
	what := c.evicts.Load()
	if what == nil || *what == "" {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p, now := c.pipe, protocol.Now(); p != nil && now >= p.evictionNext {
		p.evictionNext = now + int64(probeConfirm)
		p.askEviction(now)
		p.out.Flush()
	}
	return strings.TrimSpace(*what)
}

package store

import (
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// What people ask. Each done is called once, from a goroutine of the store, and must not block.

// Key reads the key and the queue of a lock. Redis is sent one command, or a second time with the
// text of the script, if it does not know that.
func (s *Store) Key(name string, done func(lookup.Key, error)) {
	s.runScript(lookup.AskKey(&s.dial.Keys, name), func(answer wire.Reply, err error) {
		var k lookup.Key
		if err == nil {
			k, err = lookup.ReadKey(answer)
		}
		done(k, err)
	})
}

// Announce publishes what this sidecar is. If Redis does not permit it, the log has that once.
func (s *Store) Announce(h lookup.Host) {
	keys := &s.dial.Keys
	s.ask(lookup.Announce(keys, s.cfg.UUID, h), func(replies []wire.Reply, err error) {
		if err != nil {
			return // it comes again with the next connection
		}
		next, hosts, err := lookup.ReadAnnounced(replies)
		if s.masters != nil {
			s.masters.with(func(m *guarded) { m.Hosts(hosts) })
		}
		if err == nil {
			s.prune(lookup.NewPrune(keys, next))
		} else if strings.Contains(err.Error(), "NOPERM") && !s.announceLogged.Swap(true) { // what may pass makes Redis degraded
			s.cfg.Log.Warn("other hosts cannot show the name of this one: Redis refused to store it; let the ACL of this user have +hset +pexpire +zadd +zrange and the keys "+keys.QueuePatterns(),
				"reason", err)
		}
	})
}

func (s *Store) prune(p *lookup.Prune) {
	done := func(replies []wire.Reply, err error) {
		if err != nil {
			return // the next time
		}
		if remove := p.Remove(replies); remove != nil {
			s.ask(remove, func([]wire.Reply, error) {})
		}
	}
	if len(p.Exist) == 0 {
		done(nil, nil)
		return
	}
	s.ask(p.Exist, done)
}

// Host finds out what the sidecar with this uuid published. known: it did, and lives, or did until
// a few minutes ago.
func (s *Store) Host(id string, done func(h lookup.Host, known bool, err error)) {
	s.HostsOf([]string{id}, func(hosts []lookup.Host, err error) {
		if len(hosts) == 0 {
			done(lookup.Host{}, false, err)
			return
		}
		done(hosts[0], true, nil)
	})
}

// Hosts returns the sidecars with the same key prefix, in the order of their uuids: at most
// lookup.HostPage of them, after the one with the uuid after; "": from the first. last is the member of
// the index from which the next page goes on; "": there is no other page.
func (s *Store) Hosts(after string, done func(hosts []lookup.Host, last string, err error)) {
	s.ask(lookup.AskPage(&s.dial.Keys, after), func(replies []wire.Reply, err error) {
		var ids []string
		last := ""
		if err == nil {
			ids, last, err = lookup.ReadPage(replies)
		}
		if err != nil {
			done(nil, "", err)
			return
		}
		s.HostsOf(ids, func(hosts []lookup.Host, err error) { done(hosts, last, err) })
	})
}

// HostsOf returns what the sidecars with these uuids published, in any order. Those that published
// nothing are left out. The caller bounds how many it names.
func (s *Store) HostsOf(ids []string, done func([]lookup.Host, error)) {
	if len(ids) == 0 {
		done(nil, nil)
		return
	}
	s.ask(lookup.AskHosts(&s.dial.Keys, ids), func(replies []wire.Reply, err error) {
		var hosts []lookup.Host
		if err == nil {
			hosts, err = lookup.ReadHosts(ids, replies)
		}
		done(hosts, err)
	})
}

// Published finds out whether a sidecar published its host within lookup.HostExpiry, and for how much
// longer that is known; 0: it did not. If it did, h is what it published, as far as that can be read.
func (s *Store) Published(id string, done func(h lookup.Host, left time.Duration, err error)) {
	keys := &s.dial.Keys
	s.ask(lookup.AskPublished(keys, id), func(replies []wire.Reply, err error) {
		if err != nil {
			done(lookup.Host{}, 0, err)
			return
		}
		done(lookup.ReadPublished(keys, id, replies))
	})
}

// DropOrphaned releases what a sidecar had whose daemon is gone for good, if Redis has
// exactly what was examined, and no sign of that daemon. A waiter gets the lock as it
// does after a Drop of that sidecar; lease is what the lock has then.
// The error is a sentence for people. latest: Redis is not sent the command after
// this time (protocol.Now), so that no lock is freed long after its client got an error.
//
// done is called once, from a goroutine of the store, and must not block.
func (s *Store) DropOrphaned(o lookup.Orphan, lease time.Duration, latest int64, done func(lookup.Dropped, error)) {
	keys := &s.dial.Keys
	drop := func(published string) {
		s.runScript(lookup.AskDrop(o, published, lease, latest), func(answer wire.Reply, err error) {
			if err != nil {
				done(lookup.Dropped{Outcome: lookup.OrphanChanged}, err)
				return
			}
			done(lookup.ReadDropped(answer, &o, s.serverOf(o.Name)))
		})
	}
	if s.masters == nil || wire.SlotOf(keys.Key(o.Name)) == wire.SlotOf(keys.Host(o.Sidecar)) {
		drop(keys.Host(o.Sidecar))
		return
	}
	// A script has keys of one slot: another command looks first.
	s.Published(o.Sidecar, func(_ lookup.Host, left time.Duration, err error) {
		if err != nil || left > 0 {
			done(lookup.Dropped{Outcome: lookup.OrphanPublished}, err)
			return
		}
		drop("")
	})
}

// Ask sends a question to the sidecar with this uuid. done: reached says whether that sidecar is
// connected to Redis. The answer comes as an Answer, or not at all.
func (s *Store) Ask(id string, body []byte, done func(reached bool, err error)) {
	s.ask(lookup.AskSidecar(id, s.cfg.UUID, body), func(replies []wire.Reply, err error) {
		if err != nil {
			done(false, err)
			return
		}
		done(lookup.ReadReached(replies))
	})
}

// Answer sends an answer to the sidecar that asked.
func (s *Store) Answer(id string, body []byte) {
	s.ask(lookup.AskAnswered(id, body), func([]wire.Reply, error) {})
}

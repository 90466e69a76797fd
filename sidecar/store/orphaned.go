package store

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

//go:embed scripts/orphaned.lua
var orphanedText string

// dropOrphaned is acquireRelease with a Drop of another sidecar, which is gone for good.
var dropOrphaned = wire.NewScript(orphanedText + wire.AcquireReleaseText())

// OrphanOutcome is what DropOrphaned did.
type OrphanOutcome uint8

const (
	// OrphanDropped: the lock was released. It has passed to the first of its queue, or is free.
	OrphanDropped OrphanOutcome = iota

	// OrphanChanged: Redis does not have the lock of this hold any more. Nothing was changed.
	OrphanChanged

	// OrphanPublished: the sidecar of the hold published its host within HostExpiry, so its daemon
	// was connected then. Nothing was changed.
	OrphanPublished

	// OrphanAlive: a connection receives the messages to the sidecar of the hold. Nothing was changed.
	OrphanAlive
)

// ParseOwner returns the uuid and the hold number of an owner field, if it is one that a sidecar
// writes.
func ParseOwner(field string) (id string, hold uint64, ok bool) {
	id = UUIDOf(field)
	hold, err := strconv.ParseUint(strings.TrimPrefix(field, id+":"), 10, 64)
	isOurs := IsSidecar(id) && err == nil && hold > 0 && hold <= wire.MaxScriptNumber
	return id, hold, isOurs && field == id+":"+strconv.FormatUint(hold, 10)
}

// DropOrphaned releases a lock of another sidecar, whose daemon is gone for good, if Redis has
// exactly the owner field that was examined, and no sign of that daemon. A waiter gets the lock as it
// does after a Drop of that sidecar; lease is what the lock has then. passed: it has passed to the
// first of its queue. The error is a sentence for people. latest: Redis is not sent the command after
// this time (protocol.Now), so that no lock is freed long after its client got an error.
//
// done is called once, from a goroutine of the store, and must not block. Precondition: ParseOwner
// accepts the field.
func (s *Store) DropOrphaned(name, field string, lease time.Duration, latest int64, done func(outcome OrphanOutcome, passed bool, err error)) {
	id := UUIDOf(field)
	keys := &s.dial.Keys
	if s.masters != nil && wire.SlotOf(keys.Key(name)) != wire.SlotOf(keys.Host(id)) {
		// A script has keys of one slot: another command looks first.
		s.Published(id, func(_ Host, left time.Duration, err error) {
			if err != nil || left > 0 {
				done(OrphanPublished, false, err)
				return
			}
			s.dropOrphaned(name, field, id, "", lease, latest, done)
		})
		return
	}
	s.dropOrphaned(name, field, id, keys.Host(id), lease, latest, done)
}

// dropOrphaned is DropOrphaned, where published is the key that shows that the sidecar of the field was
// connected; "": it was looked for before.
func (s *Store) dropOrphaned(name, field, id, published string, lease time.Duration, latest int64, done func(outcome OrphanOutcome, passed bool, err error)) {
	args := func(p *pipeline.Params) []string {
		e := p.Encoder
		return append(e.DropArgs(name, field, p.Birth, lease.Milliseconds()),
			published, wire.OwnChannel(id), "recall:"+e.Origin+" "+e.Keys.Key(name))
	}
	s.runScript(name, dropOrphaned, latest, args, func(answer wire.Reply, err error) {
		if err == nil && answer.Kind == '-' {
			err = wire.Unavailable(s.serverOf(name).refusedOrphaned(name, wire.Reason(answer.Text)))
		}
		if err != nil {
			done(OrphanChanged, false, err)
			return
		}
		switch answer.Text {
		case "changed":
			done(OrphanChanged, false, nil)
			return
		case "published":
			done(OrphanPublished, false, nil)
			return
		case "alive":
			done(OrphanAlive, false, nil)
			return
		}
		r := redisop.Result{Kind: redisop.Drop, Name: name}
		refused, _, err := wire.Decode(answer, &r)
		if err == nil && refused != "" {
			err = wire.Unavailable(s.serverOf(name).Answered(name, wire.Reason(refused)))
		}
		done(OrphanDropped, r.Passed, err)
	})
}

// refusedOrphaned is the sentence for a script that Redis refused with text before it changed anything.
func (d *dialer) refusedOrphaned(name, text string) string {
	if isMoving(text) {
		return slotIsMoving
	}
	if wire.DeniesKey(text) || wire.DeniedInScript(text) {
		return fmt.Sprintf("Redis at %s does not permit this user to look for signs of life of another sidecar; let its ACL have +hkeys +exists +publish and the keys %s (%s)",
			d.Address, d.Keys.QueuePatterns(), wire.Clip(text))
	}
	return d.Answered(name, text)
}

// Published finds out whether a sidecar published its host within HostExpiry, and for how much
// longer that is known; 0: it did not. If it did, h is what it published, as far as that can be read.
func (s *Store) Published(id string, done func(h Host, left time.Duration, err error)) {
	key := s.dial.Keys.Host(id)
	s.ask([][]string{{"pttl", key}, {"hget", key, hostField}}, func(replies []wire.Reply, err error) {
		if err == nil {
			err = refusal(replies[:1])
		}
		if err != nil || replies[0].Num == -2 {
			done(Host{}, 0, err)
			return
		}
		h, _ := readHost(id, replies[1])
		if replies[0].Num < 0 { // -1: any program may have written the key
			done(h, 0, wire.Unavailable(fmt.Sprintf("the key %q in Redis has no expiry, so it is not that of a sidecar: find out which program wrote it, and delete it", key)))
			return
		}
		done(h, time.Duration(replies[0].Num)*time.Millisecond, nil)
	})
}

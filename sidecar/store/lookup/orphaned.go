package lookup

import (
	_ "embed"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

//go:embed scripts/orphaned.lua
var orphanedText string

// DropOrphaned is AcquireRelease with a Drop of another sidecar, which is gone for good.
var DropOrphaned = wire.NewScript(orphanedText + wire.AcquireReleaseText())

// OrphanOutcome is what ReadDropped reads.
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

// AskDrop releases a lock of another sidecar, whose daemon is gone for good, if Redis has exactly the owner field that was
// examined, and no sign of that daemon. published is the key that shows such a sign; "": it was looked for before, because
// it is in another slot. Redis is not sent the command after latest (protocol.Now). Precondition: ParseOwner accepts the
// field.
func AskDrop(name, field, published string, lease time.Duration, latest int64) Run {
	args := func(p *wire.Params) []string {
		e := p.Encoder
		return append(e.DropArgs(name, field, p.Birth, lease.Milliseconds()),
			published, wire.OwnChannel(UUIDOf(field)), "recall:"+e.Origin+" "+e.Keys.Key(name))
	}
	return Run{Name: name, Script: DropOrphaned, Latest: latest, Args: args}
}

// ReadDropped reads the reply to AskDrop of a server. passed: the lock has passed to the first of its queue.
func ReadDropped(answer wire.Reply, name string, at *wire.Server) (outcome OrphanOutcome, passed bool, err error) {
	if answer.Kind == '-' {
		return OrphanChanged, false, wire.Unavailable(refusedOrphaned(at, name, wire.Reason(answer.Text)))
	}
	switch answer.Text {
	case "changed":
		return OrphanChanged, false, nil
	case "published":
		return OrphanPublished, false, nil
	case "alive":
		return OrphanAlive, false, nil
	}
	r := redisop.Result{Kind: redisop.Drop, Name: name}
	refused, _, err := wire.Decode(answer, &r)
	if err == nil && refused != "" {
		err = wire.Unavailable(at.Answered(redisop.KindLock, name, wire.Reason(refused)))
	}
	return OrphanDropped, r.Passed, err
}

// refusedOrphaned is the sentence for a script that Redis refused with text before it changed anything.
func refusedOrphaned(at *wire.Server, name, text string) string {
	if isMoving(text) {
		return slotIsMoving
	}
	if wire.DeniesKey(text) || wire.DeniedInScript(text) {
		return fmt.Sprintf("Redis at %s does not permit this user to look for signs of life of another sidecar; let its ACL have +hkeys +exists +publish and the keys %s (%s)",
			at.Address, at.Keys.QueuePatterns(), wire.Clip(text))
	}
	return at.Answered(redisop.KindLock, name, text)
}

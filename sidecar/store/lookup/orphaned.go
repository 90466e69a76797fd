package lookup

import (
	_ "embed"
	"fmt"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

//go:embed scripts/orphaned.lua
var orphanedText string

// DropOrphaned is AcquireRelease with a Drop of another sidecar, which is gone for good. DropOrphanedPermits is Permits with
// that.
var (
	DropOrphaned        = wire.NewScript(orphanedText + wire.AcquireReleaseText())
	DropOrphanedPermits = wire.NewScript(orphanedText + "local function permits()\n" + wire.PermitsText() + "end\nreturn {permits()[1], unpack(claim)}\n")
)

// Orphan is what a sidecar has that is gone for good.
type Orphan struct {
	Name    string
	Of      redisop.LockKind
	Sidecar string // uuid
	Hold    uint64 // the number in the owner field that was examined; of permits 0
}

// field is what the script has as the owner field.
func (o *Orphan) field() string {
	if o.Of == redisop.KindPermits {
		return o.Sidecar + ":"
	}
	return o.Sidecar + ":" + strconv.FormatUint(o.Hold, 10)
}

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

// Dropped is what became of an Orphan.
type Dropped struct {
	Outcome OrphanOutcome
	Passed  bool // the lock has passed to the first of its queue

	// Of permits, of which Redis may have given some to hosts that waited.
	Number  uint64 // of the claim
	Permits uint32
	LeftMS  int64 // how much longer the claim would have lasted
}

// AskDrop releases what a sidecar had that is gone for good, if Redis has exactly what was examined, and no sign of that
// daemon. published is the key that shows such a sign; "": it was looked for before, because
// it is in another slot. Redis is not sent the command after latest (protocol.Now).
func AskDrop(o Orphan, published string, lease time.Duration, latest int64) Run {
	script := DropOrphaned
	if o.Of == redisop.KindPermits {
		script = DropOrphanedPermits
	}
	args := func(p *wire.Params) []string {
		e := p.Encoder
		args, recall := []string(nil), "recall:"+e.Origin+" "
		if o.Of == redisop.KindPermits {
			args, recall = e.DropPermitsArgs(o.Name, o.field(), p.Birth), "return:"+e.Origin+" p "
		} else {
			args = e.DropArgs(o.Name, o.field(), p.Birth, lease.Milliseconds())
		}
		return append(args, published, wire.OwnChannel(o.Sidecar), recall+e.Keys.Key(o.Name))
	}
	return Run{Name: o.Name, Script: script, Latest: latest, Args: args}
}

// ReadDropped reads the reply to AskDrop of a server.
func ReadDropped(answer wire.Reply, o *Orphan, at *wire.Server) (d Dropped, err error) {
	if answer.Kind == '-' {
		return Dropped{Outcome: OrphanChanged}, wire.Unavailable(refusedOrphaned(at, o, wire.Reason(answer.Text)))
	}
	switch answer.Text {
	case "changed":
		return Dropped{Outcome: OrphanChanged}, nil
	case "published":
		return Dropped{Outcome: OrphanPublished}, nil
	case "alive":
		return Dropped{Outcome: OrphanAlive}, nil
	}
	r, refused := redisop.Result{Kind: redisop.Drop, Name: o.Name}, ""
	if o.Of != redisop.KindPermits {
		refused, _, err = wire.Decode(answer, &r)
	} else if v := answer.List; len(v) != 4 || v[3].Kind != ':' {
		err = &wire.UnexpectedReply{Script: DropOrphanedPermits, Reply: answer}
	} else {
		refused, err = wire.DecodePermits(v[0], &redisop.Op{Kind: redisop.Drop, Of: redisop.KindPermits, Name: o.Name}, &r)
		permits, _ := strconv.ParseUint(v[2].Text, 10, 32)
		d.Number, _ = strconv.ParseUint(v[1].Text, 10, 64)
		d.Permits, d.LeftMS = uint32(permits), v[3].Num
	}
	if err == nil && refused != "" {
		err = wire.Unavailable(at.Answered(o.Of, o.Name, wire.Reason(refused)))
	}
	d.Passed = r.Passed
	return d, err
}

// refusedOrphaned is the sentence for a script that Redis refused with text before it changed anything.
func refusedOrphaned(at *wire.Server, o *Orphan, text string) string {
	if isMoving(text) {
		return slotIsMoving
	}
	if wire.DeniesKey(text) || wire.DeniedInScript(text) {
		reads := "+hkeys"
		if o.Of == redisop.KindPermits {
			reads = "+hget +time"
		}
		return fmt.Sprintf("Redis at %s does not permit this user to look for signs of life of another sidecar; let its ACL have %s +exists +publish and the keys %s (%s)",
			at.Address, reads, at.Keys.QueuePatterns(), wire.Clip(text))
	}
	return at.Answered(o.Of, o.Name, text)
}

package redis

import (
	"slices"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// Standing is how the key of a lock stands to one operation of one sidecar.
type Standing uint8

const (
	Free            Standing = iota // there is no key, or it has expired
	Same                            // its only field is ours, with the number and the count of the operation
	OtherCount                      // its only field is ours, with the number of the operation and another count
	Earlier                         // its only field is ours, with a lower number
	Foreign                         // its only field is another owner's, or ours with a higher number; or it is a lock of another kind without our field
	Shared                          // it is a lock of another kind, and has our field with the number of the operation
	Structure                       // it is another hash, without that field
	SharedStructure                 // the same, with that field
	WrongType                       // it is not a hash
)

// Ours reports whether the lock belongs to the sidecar.
func (s Standing) Ours() bool { return s == Same || s == OtherCount || s == Earlier }

// Standing compares the key with the operation.
func (c *Command) Standing(k *Key) Standing {
	switch {
	case k.Other != nil:
		return c.standingOf(k.Other)
	case k.Owner == NoOwner:
		return Free
	case k.Owner != c.Owner || k.Num > c.Op.HoldID:
		return Foreign
	case k.Num < c.Op.HoldID:
		return Earlier
	case k.Count != c.Op.Count:
		return OtherCount
	}
	return Same
}

func (c *Command) standingOf(content *Content) Standing {
	if content.Type != "hash" {
		return WrongType
	}
	prefix := c.Prefixes[c.Owner]
	own := fieldOf(prefix, c.Op.HoldID)
	if field, isOwned := soleOwner(content.Hash); isOwned {
		num, ours := number(prefix, field)
		switch {
		case !ours || num > c.Op.HoldID:
			return Foreign
		case field != own:
			return Earlier
		case content.Hash[field] != strconv.FormatUint(uint64(c.Op.Count), 10):
			return OtherCount
		}
		return Same
	}
	_, has := content.Hash[own]
	switch isLock := isOtherKind(content.Hash); {
	case isLock && has:
		return Shared
	case isLock:
		return Foreign
	case has:
		return SharedStructure
	}
	return Structure
}

// soleOwner returns the only field of a hash, if that is an owner field: "<id>:<number>", or
// "<id>:<number>:<more>".
func soleOwner(hash map[string]string) (field string, ok bool) {
	if len(hash) != 1 {
		return "", false
	}
	for field = range hash {
	}
	parts := strings.Split(field, ":")
	return field, slices.ContainsFunc(parts[1:], func(part string) bool {
		digits := strings.TrimPrefix(part, "-")
		return digits != "" && strings.Trim(digits, "0123456789") == ""
	})
}

// isOtherKind reports whether a hash is a semaphore, or a read-write lock of Redisson, or what is left of one.
func isOtherKind(hash map[string]string) bool {
	return hash["mode"] == "read" || hash["mode"] == "write" || isSemaphore(hash)
}

func isSemaphore(hash map[string]string) bool { return strings.HasPrefix(hash["mode"], "permits") }

// Change is what an operation does to the key.
type Change uint8

const (
	Nothing Change = iota
	Write          // the key becomes a hash with this one field, count and lease
	Remove         // our field is deleted, and the key with it if it was the only one
	Pass           // the key becomes a hash with the field of a ticket, with one entry
)

// Verdict is what one operation must do and return, as long as Redis refuses nothing.
type Verdict struct {
	Outcome   redisop.Outcome
	Change    Change
	Draws     bool // Reserve tokens, before the key changes
	Publishes bool // the release, and returns the number of subscribers
	Counts    bool // the subscribers of the channel. A Take that finds another owner decides that by its rank
}

// Judge is the table of all operations.
func Judge(op *redisop.Op, s Standing) Verdict {
	switch op.Kind {
	case redisop.Take:
		return judgeTake(op, s)
	case redisop.Renew:
		switch s {
		case Free:
			return Verdict{Outcome: redisop.KeyMissing}
		case Same, OtherCount, Earlier:
			return Verdict{Outcome: redisop.Done, Change: Write}
		}
		return Verdict{Outcome: redisop.HeldByOther}
	case redisop.Check:
		switch s {
		case Free:
			return Verdict{Outcome: redisop.KeyMissing}
		case Same:
			return Verdict{Outcome: redisop.Done}
		case OtherCount, Earlier:
			return Verdict{Outcome: redisop.Differs}
		}
		return Verdict{Outcome: redisop.HeldByOther}
	case redisop.Arrive:
		return Verdict{Outcome: redisop.Done}
	case redisop.Drop:
		switch s {
		case Free: // no host was notified of the expiry
			return Verdict{Outcome: redisop.Done, Publishes: true}
		case Same, OtherCount, Earlier, Shared, SharedStructure:
			return Verdict{Outcome: redisop.Done, Change: Remove, Publishes: true}
		case WrongType:
			return Verdict{Outcome: redisop.NotALock}
		}
		return Verdict{Outcome: redisop.Done} // another owner's, or a later hold of ours
	}
	panic("redis: an operation of unknown kind")
}

func judgeTake(op *redisop.Op, s Standing) Verdict {
	v := Verdict{Counts: op.Has(redisop.CountListeners)}
	switch s {
	case Free:
		if op.Has(redisop.RequireExisting) {
			return Verdict{Outcome: redisop.KeyMissing}
		}
	case Foreign, Shared:
		return Verdict{Outcome: redisop.HeldByOther}
	case Structure, SharedStructure, WrongType:
		return Verdict{Outcome: redisop.NotALock}
	}
	v.Outcome, v.Change, v.Draws = redisop.Done, Write, op.Reserve > 0
	return v
}

// MaxToken is the largest token. A script cannot read a larger counter exactly.
const MaxToken = 1<<53 - 1

// draw draws n tokens, and returns the last of them. made: there was no counter, or it was
// 0. The code is that of the error, if it is refused.
//
// A counter below the floor may have lost what it once was: deleted, flushed, or read from
// a replica that is behind. It continues above fresh.
func (c *Counter) draw(cmd *Command, n int64) (last int64, made bool, code string) {
	if c.HasExpired(cmd.Now) {
		*c = Counter{}
	}
	switch {
	case c.Other != nil && c.Other.Type != "string":
		return 0, false, "WRONGTYPE"
	case c.Other != nil:
		return 0, false, "ERR"
	case c.Value+n > MaxToken:
		c.Value += n
		return 0, false, "ERR"
	case c.Value < cmd.Floor:
		made = c.Value == 0
		c.Value = max(c.Value, cmd.Fresh) + n
		switch {
		case cmd.Expiry == 0:
			c.ExpireAt = NoExpiry
		case made:
			c.ExpireAt = cmd.Now + cmd.Expiry
		}
	default:
		if !c.Exists {
			c.ExpireAt = NoExpiry
		}
		c.Value += n
		c.refresh(cmd)
	}
	c.Exists = true
	return c.Value, made, ""
}

// refresh moves the expiry of a counter that was used. It does not do so at every use, but
// when a fourteenth of the expiry has passed. A counter without an expiry is another
// program's, which wants it to stay.
func (c *Counter) refresh(cmd *Command) {
	switch {
	case c.ExpireAt == NoExpiry:
	case cmd.Expiry == 0:
		if !cmd.Denied.Persist {
			c.ExpireAt = NoExpiry
		}
	case c.ExpireAt-cmd.Now < cmd.Expiry/14*13:
		if !cmd.Denied.PExpire {
			c.ExpireAt = cmd.Now + cmd.Expiry
		}
	}
}

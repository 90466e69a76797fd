// Package redis is what the scripts of the store do in Redis, in plain Go: which
// operation changes which key, what it returns, and what it publishes. It is written
// from the comments of the scripts and of [locktable.Op], not from the Lua code.
//
// Two tests compare it with something else: the differential test of the store compares
// it with the scripts in a real Redis, and the simulation of the lock table compares its
// own model of Redis with it. Nothing that ships imports it.
package redis

import "github.com/locksidecar/locksidecar/sidecar/locktable"

// Standing is how the key of a lock stands to one operation of one sidecar.
type Standing uint8

const (
	Free       Standing = iota // there is no key, or it has expired
	Same                       // its only field is ours, with the number and the count of the operation
	OtherCount                 // its only field is ours, with the number of the operation and another count
	Earlier                    // its only field is ours, with a lower number
	Foreign                    // its only field is of another owner, or ours with a higher number
	Shared                     // it has several fields, and ours with the number of the operation is one of them
	Structure                  // it has several fields, and that one is not among them
	Alien                      // it is not a hash
	Standings
)

// Change is what an operation does to the key.
type Change uint8

const (
	Nothing Change = iota
	Write          // the key becomes a hash with this one field, count and lease
	Remove         // our field is deleted, and the key with it if it was the only one
)

// Verdict is what one operation must do and return, as long as Redis refuses nothing.
type Verdict struct {
	Outcome   locktable.Outcome
	Change    Change
	Draws     bool // Reserve tokens, before the key changes
	Publishes bool // the release, and returns the number of subscribers
	Counts    bool // the subscribers of the channel
}

// Judge is the table of all operations.
func Judge(op *locktable.Op, s Standing) Verdict {
	switch op.Kind {
	case locktable.Take:
		return judgeTake(op, s)
	case locktable.Keep:
		switch s {
		case Free:
			return Verdict{Outcome: locktable.Missing}
		case Same, OtherCount, Earlier:
			return Verdict{Outcome: locktable.Done, Change: Write}
		}
		return Verdict{Outcome: locktable.Other}
	case locktable.Check:
		switch s {
		case Free:
			return Verdict{Outcome: locktable.Missing}
		case Same:
			return Verdict{Outcome: locktable.Done}
		case OtherCount, Earlier:
			return Verdict{Outcome: locktable.Differs}
		}
		return Verdict{Outcome: locktable.Other}
	case locktable.Drop:
		switch s {
		case Free: // no host was notified of the expiry
			return Verdict{Outcome: locktable.Done, Publishes: true}
		case Same, OtherCount, Earlier, Shared:
			return Verdict{Outcome: locktable.Done, Change: Remove, Publishes: true}
		case Alien:
			return Verdict{Outcome: locktable.NotALock}
		}
		return Verdict{Outcome: locktable.Done} // another owner's, or a later hold of ours
	}
	panic("redis: an operation of unknown kind")
}

func judgeTake(op *locktable.Op, s Standing) Verdict {
	// A take counts the subscribers if it draws more tokens than its waiter needs, moves a
	// hold, or is refused.
	v := Verdict{Counts: s != Free || op.Reserve != 1}
	switch s {
	case Free:
		if op.Held {
			return Verdict{Outcome: locktable.Missing}
		}
	case Foreign, Shared, Structure:
		v.Outcome = locktable.Other
		return v
	case Alien:
		return Verdict{Outcome: locktable.NotALock}
	}
	v.Outcome, v.Change, v.Draws = locktable.Done, Write, op.Reserve > 0
	return v
}

// Span is a number of which only two bounds are known.
type Span struct{ Lo, Hi int64 }

// Exactly is a number that is known.
func Exactly(n int64) Span { return Span{n, n} }

func (s Span) add(n int64) Span { return Span{s.Lo + n, s.Hi + n} }

// Has reports whether the number may be n.
func (s Span) Has(n int64) bool { return s.Lo <= n && n <= s.Hi }

// MaxToken is the largest token. A counter beyond it cannot be read exactly by a script.
const MaxToken = 1<<53 - 1

// Lifting is whether a draw found the counter below the floor.
type Lifting uint8

const (
	NotLifted Lifting = iota
	Lifted
	MayBeLifted // the floor rose at about the time of the draw
)

// Draw draws n tokens from a counter, which is 0 if there is none, and returns the last
// of them. A counter below the floor may have lost what it once was, and continues above
// fresh: the time of Redis, or what the sidecar knows of tokens if that is later. ok is
// false if the token does not fit; the counter has that value all the same.
func Draw(counter Span, n int64, floor, fresh Span) (last Span, lifting Lifting, ok bool) {
	last = counter.add(n)
	switch {
	case last.Lo > MaxToken:
		return last, NotLifted, false
	case counter.Lo >= floor.Hi:
		return last, NotLifted, true
	case counter.Hi < floor.Lo:
		return fresh.add(n), Lifted, true
	}
	return Span{last.Lo, max(last.Hi, fresh.Hi+n)}, MayBeLifted, true
}

// NoExpiry is the time to live of a key that does not expire.
const NoExpiry = -1

// Refreshed is the time to live in ms of a counter after a draw. left: what it was. made:
// there was no counter, or it was 0. expiry: how long counters outlive their last use; 0:
// they do not expire. An expiry is not refreshed by every draw, but when a fourteenth of
// it has passed.
func Refreshed(left int64, made, lifted bool, expiry int64) int64 {
	switch {
	case expiry == 0:
		return NoExpiry
	case made:
		return expiry
	case left == NoExpiry:
		return NoExpiry // of a program that wants it to stay
	case !lifted && left < expiry/14*13:
		return expiry
	}
	return left
}

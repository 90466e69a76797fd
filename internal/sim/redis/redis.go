package redis

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// Redis is what one Redis has: keys that have not expired, and who is subscribed.
type Redis struct {
	Keys        map[string]Value
	Subscribers map[string]int // of a channel
	Patterns    int            // subscribers of a pattern that matches every channel
	Published   map[string]int // messages of a release, by channel
}

// Value is one key. Content that no operation changes is not looked into.
type Value struct {
	Type    string            // as TYPE returns it
	Hash    map[string]string // of a hash
	Number  *Span             // of a string that is a decimal integer
	Content string            // of anything else
	TTL     []int64           // time to live in ms, or NoExpiry; any of these
}

// Sidecar is who asks.
type Sidecar struct {
	Prefix string // of its owner fields
	Expiry int64  // of token counters, ms; 0: none
	Floor  Span   // tokens of its connection are above it
	Fresh  Span   // what a new counter begins above

	// What its user may not do. Its operations on a lock are refused as a whole if that
	// lock or, for a Take, its counter is a denied key.
	DeniedKeys                                        map[string]bool
	DeniedChannels                                    map[string]bool
	NoPublish, NoPubSub, NoType, NoPersist, NoPExpire bool
}

// Result is what an operation must return.
type Result struct {
	Outcome   locktable.Outcome
	Code      string // of the error, if Outcome is Refused or Busy
	Token     Span   // of a Take that is done; 0 if it drew none
	Made      bool   // of a Take that is done: there was no token counter before
	Listeners int32
	TTL       []int64 // of the key, if Outcome is Other
	Field     string  // as it stands in Redis, or a description
}

// Names as Redisson makes them: a name without braces gets some, so that a lock, its
// counter and its channel are in one slot of a Cluster.

func Channel(name string) string { return "redisson_lock__channel:" + slotted(name) }
func Counter(name string) string { return "redisson_lock_token:" + slotted(name) }

func slotted(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

// Standing compares the key of the operation's lock with the operation.
func (r *Redis) Standing(s *Sidecar, op *locktable.Op) Standing {
	v, ok := r.Keys[op.Name]
	field := s.field(op.Num)
	_, has := v.Hash[field]
	switch {
	case !ok:
		return Free
	case v.Type != "hash":
		return Alien
	case len(v.Hash) > 1 && has:
		return Shared
	case len(v.Hash) > 1:
		return Structure
	}
	for name, count := range v.Hash {
		num, ours := s.number(name)
		switch {
		case !ours || num > op.Num:
			return Foreign
		case name != field:
			return Earlier
		case count != strconv.Itoa(int(op.Count)):
			return OtherCount
		}
	}
	return Same
}

func (s *Sidecar) field(num uint64) string { return s.Prefix + strconv.FormatUint(num, 10) }

// number returns the hold number of an owner field of this sidecar.
func (s *Sidecar) number(field string) (uint64, bool) {
	digits, ours := strings.CutPrefix(field, s.Prefix)
	if !ours || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	num, err := strconv.ParseUint(digits, 10, 64)
	return num, err == nil
}

// Run carries out one operation. full: Redis grants it no memory.
func (r *Redis) Run(s *Sidecar, op *locktable.Op, full bool) Result {
	res := Result{Listeners: locktable.Uncounted}
	counter, channel := Counter(op.Name), Channel(op.Name)
	if s.DeniedKeys[op.Name] || op.Kind == locktable.Take && s.DeniedKeys[counter] {
		return refusal("NOPERM")
	}
	standing := r.Standing(s, op)
	was := r.Keys[op.Name]
	verdict := Judge(op, standing)
	res.Outcome = verdict.Outcome
	if verdict.Counts {
		res.Listeners = r.count(s, channel)
	}
	switch verdict.Outcome {
	case locktable.Other:
		res.TTL, res.Field = was.TTL, describe(s, was)
		return res
	case locktable.NotALock:
		res.Field = describe(s, was)
		return res
	}

	lease := []int64{int64(op.LeaseMS)}
	kept := standing == Same || standing == OtherCount || standing == Earlier // ours before
	if verdict.Change == Write && kept {
		if s.NoPExpire {
			return refusal("NOPERM")
		}
		// It is extended before anything else, which needs no memory and is the permission
		// to use some: what is ours can be renewed and handed over in a Redis that is full.
		full = false
	}
	if full && verdict.Change == Write {
		return refusal("OOM")
	}
	if verdict.Draws {
		last, made, code := r.draw(s, op, counter)
		if code != "" {
			if kept {
				// Of a lock that is ours the lease may have changed, and nothing else.
				r.Keys[op.Name] = Value{Type: was.Type, Hash: was.Hash, TTL: append(lease, was.TTL...)}
			}
			return refusal(code)
		}
		res.Token, res.Made = last, made
	}
	switch verdict.Change {
	case Write:
		if s.NoPExpire {
			return refusal("NOPERM") // a lock without an expiry must not stay
		}
		r.Keys[op.Name] = Value{Type: "hash", Hash: map[string]string{s.field(op.Num): strconv.Itoa(int(op.Count))}, TTL: lease}
	case Remove:
		if rest := maps.Clone(was.Hash); len(rest) > 1 {
			delete(rest, s.field(op.Num))
			r.Keys[op.Name] = Value{Type: was.Type, Hash: rest, TTL: was.TTL}
		} else {
			delete(r.Keys, op.Name)
		}
	}
	if verdict.Publishes {
		res.Listeners = r.publish(s, channel)
	}
	return res
}

func refusal(code string) Result {
	res := Result{Outcome: locktable.Refused, Code: code, Listeners: locktable.Uncounted}
	if code == "OOM" {
		res.Outcome = locktable.Busy
	}
	return res
}

// count is how many are subscribed to a channel, as far as the sidecar may ask; a
// subscriber of a pattern does not wait for a lock.
func (r *Redis) count(s *Sidecar, channel string) int32 {
	if s.NoPubSub {
		return -1
	}
	return int32(r.Subscribers[channel])
}

// publish publishes a release, and counts the subscribers: that it reached none needs no
// permission to count.
func (r *Redis) publish(s *Sidecar, channel string) int32 {
	if s.NoPublish || s.DeniedChannels[channel] {
		return -1
	}
	r.Published[channel]++
	if r.Subscribers[channel]+r.Patterns == 0 {
		return 0
	}
	return r.count(s, channel)
}

// describe is the owner field of a lock, or what is there instead of one.
func describe(s *Sidecar, v Value) string {
	if v.Type != "hash" {
		kind := v.Type
		if s.NoType {
			kind = "unknown"
		}
		return "a key of type " + kind + ", which is not a lock"
	}
	if mode, ok := v.Hash["mode"]; ok && len(v.Hash) > 1 {
		return "a read-write lock in mode " + mode[:min(len(mode), 16)]
	}
	if len(v.Hash) > 1 {
		return fmt.Sprintf("a hash with %d fields", len(v.Hash))
	}
	for field := range v.Hash {
		return field[:min(len(field), 256)]
	}
	panic("redis: a hash without fields")
}

// draw draws the tokens of an operation, or returns the code of the error.
func (r *Redis) draw(s *Sidecar, op *locktable.Op, counter string) (last Span, made bool, code string) {
	v, exists := r.Keys[counter]
	switch {
	case exists && v.Type != "string":
		return last, false, "WRONGTYPE"
	case exists && v.Number == nil:
		return last, false, "ERR"
	case !exists:
		v = Value{Type: "string", Number: &Span{}, TTL: []int64{NoExpiry}}
	}
	made = !exists || *v.Number == Exactly(0)
	last, lifting, ok := Draw(*v.Number, int64(op.Reserve), s.Floor, s.Fresh)
	if !ok {
		r.Keys[counter] = Value{Type: "string", Number: &last, TTL: v.TTL}
		return last, false, "ERR"
	}
	var ttl []int64
	for _, left := range v.TTL {
		if lifting != NotLifted {
			ttl = append(ttl, Refreshed(left, made, true, s.Expiry))
		}
		if lifting == Lifted {
			continue
		}
		refreshed := Refreshed(left, made, false, s.Expiry)
		if !made && (s.NoPersist && refreshed == NoExpiry || s.NoPExpire && refreshed != NoExpiry) {
			refreshed = left
		}
		ttl = append(ttl, refreshed)
		if op.Behind && !made {
			// If it follows its Drop in the same script, the expiry is not looked at: a
			// Take not long before did that.
			ttl = append(ttl, left)
		}
	}
	r.Keys[counter] = Value{Type: "string", Number: &last, TTL: ttl}
	return last, made && lifting == Lifted, ""
}

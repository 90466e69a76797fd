package store

import (
	"fmt"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What scripts return for one operation, its status, has two shapes: an integer in the cases that
// nearly all are, and otherwise an array of a code and what belongs to it.

// statusCode says which status an array is. The files of the scripts say when they return it.
type statusCode uint8

const (
	_ statusCode = iota
	codeTaken
	codeMissing
	codeDiffers
	codeHeld
	codeQueued
	codeFree
	codeFreeQueued
	codeDropped
	codePassed
	codePaused
	codeArrived
	codeNotALock
	codeRefused
)

// layouts says which operations have a code, and what follows it: n a number that is not negative,
// p a positive one, i any; b 0 or 1; t a text; l how subscribers were counted; r a redisop.Recall.
var layouts = [...]struct {
	of   []redisop.OpKind
	what string
}{
	codeTaken:      {[]redisop.OpKind{redisop.Take}, "nbnnln"}, // last token, made, waiting, ticket, subscribers
	codeMissing:    {[]redisop.OpKind{redisop.Take, redisop.Renew, redisop.Check}, ""},
	codeDiffers:    {[]redisop.OpKind{redisop.Check}, ""},
	codeHeld:       {[]redisop.OpKind{redisop.Take, redisop.Renew, redisop.Check}, "itln"},                            // PTTL, field, subscribers
	codeQueued:     {[]redisop.OpKind{redisop.Take}, "itlnnpnr"},                                                      // the same, rank, ticket, arrived, recall
	codeFree:       {[]redisop.OpKind{redisop.Take}, "ln"},                                                            // subscribers
	codeFreeQueued: {[]redisop.OpKind{redisop.Take}, "lnnpn"},                                                         // the same, rank, ticket, arrived
	codeDropped:    {[]redisop.OpKind{redisop.Drop}, "ln"},                                                            // subscribers
	codePassed:     {[]redisop.OpKind{redisop.Drop}, "n"},                                                             // waiting
	codePaused:     {[]redisop.OpKind{redisop.Drop}, "ln"},                                                            // subscribers
	codeArrived:    {[]redisop.OpKind{redisop.Arrive}, "nn"},                                                          // now, the first
	codeNotALock:   {[]redisop.OpKind{redisop.Take, redisop.Drop}, "t"},                                               // description
	codeRefused:    {[]redisop.OpKind{redisop.Take, redisop.Renew, redisop.Check, redisop.Arrive, redisop.Drop}, "t"}, // error
}

// unexpectedReply is a reply that no script makes. It may have been executed.
type unexpectedReply struct {
	script *script
	reply  reply
}

func (e *unexpectedReply) Error() string {
	return fmt.Sprintf("unexpected reply %v", e.reply)
}

// decode reads the status of one operation into r. A refusal is the text of an error of Redis for
// this operation alone. silent: what was given back could not be published.
func decode(status reply, r *redisop.Result) (refusal string, silent bool, err error) {
	if isUsual(status, r.Kind) {
		r.Outcome = redisop.Done
		switch r.Kind {
		case redisop.Take:
			r.Token = uint64(status.num)
		case redisop.Drop: // it was published, and reached no client
			r.Listeners = redisop.CountedListeners(0)
		}
		return "", false, nil
	}
	if !isLaidOut(status, r.Kind) {
		return "", false, &unexpectedReply{scriptOf(r.Kind), status}
	}
	c, v := statusCode(status.list[0].num), status.list[1:]
	switch c {
	case codeTaken:
		r.Outcome, r.Token, r.Made = redisop.Done, uint64(v[0].num), v[1].num == 1
		r.Waiting, r.Ticket, r.Listeners = uint32(v[2].num), uint64(v[3].num), listenersOf(v[4:])
	case codeMissing:
		r.Outcome = redisop.KeyMissing
	case codeDiffers:
		r.Outcome = redisop.Differs
	case codeHeld, codeQueued:
		r.Outcome, r.TTLMS, r.Field, r.Listeners = redisop.HeldByOther, max(v[0].num, -1), readable(v[1].text), listenersOf(v[2:])
		if c == codeQueued {
			decodePlace(v[4:], r)
			r.Recall = redisop.Recall(v[7].num)
		}
	case codeFree, codeFreeQueued:
		r.Outcome, r.LeftFree, r.TTLMS, r.Listeners = redisop.HeldByOther, true, -1, listenersOf(v)
		if c == codeFreeQueued {
			decodePlace(v[2:], r)
		}
	case codeDropped, codePaused:
		r.Outcome, r.Paused, r.Listeners = redisop.Done, c == codePaused, listenersOf(v)
		silent = r.Listeners.State == redisop.Unpublished
	case codePassed:
		r.Outcome, r.Passed, r.Waiting = redisop.Done, true, uint32(v[0].num)
	case codeArrived:
		r.Outcome, r.Arrived, r.FirstArrived = redisop.Done, uint64(v[0].num), uint64(v[1].num)
	case codeNotALock:
		r.Outcome, r.Field = redisop.NotALock, readable(v[0].text)
	case codeRefused:
		refusal = v[0].text
	}
	return refusal, silent, nil
}

// isUsual reports whether a status is the integer of the usual case.
func isUsual(status reply, kind redisop.OpKind) bool {
	switch {
	case status.kind != ':' || kind == redisop.Arrive:
		return false
	case kind == redisop.Take:
		return status.num > 0
	}
	return status.num == 0
}

// isLaidOut reports whether a status is an array as its code says, for an operation of this kind.
func isLaidOut(status reply, kind redisop.OpKind) bool {
	list := status.list
	if status.kind != '*' || len(list) == 0 || list[0].kind != ':' || list[0].num < 1 || list[0].num >= int64(len(layouts)) {
		return false
	}
	layout := &layouts[list[0].num]
	if len(list) != 1+len(layout.what) {
		return false
	}
	for i, v := range list[1:] {
		isNumber := v.kind == ':' && v.num >= 0
		ok := false
		switch layout.what[i] {
		case 'n':
			ok = isNumber
		case 'p':
			ok = isNumber && v.num > 0
		case 'i':
			ok = v.kind == ':'
		case 'b':
			ok = isNumber && v.num <= 1
		case 't':
			ok = v.kind == '$'
		case 'l':
			ok = isNumber && v.num <= int64(redisop.Unpublished)
		case 'r':
			ok = isNumber && v.num <= int64(redisop.RecallMissed)
		}
		if !ok {
			return false
		}
	}
	for _, of := range layout.of {
		if of == kind {
			return true
		}
	}
	return false
}

func listenersOf(v []reply) redisop.Listeners {
	return redisop.Listeners{State: redisop.ListenersState(v[0].num), N: int32(v[1].num)}
}

// decodePlace reads rank, ticket and arrival.
func decodePlace(v []reply, r *redisop.Result) {
	r.IsQueued, r.Rank, r.Ticket, r.Arrived = true, uint32(v[0].num), uint64(v[1].num), uint64(v[2].num)
}

// hasKinds reports whether a list has items of these kinds, and no others.
func hasKinds(list []reply, kinds string) bool {
	if len(list) != len(kinds) {
		return false
	}
	for i := range list {
		if list[i].kind != kinds[i] {
			return false
		}
	}
	return true
}

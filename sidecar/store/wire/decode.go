package wire

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What scripts return for one operation, its status, has two shapes: an integer in the cases that
// nearly all are, and otherwise an array of a code and what belongs to it.

// layouts says which operations have a code, and what follows it: n a number that is not negative,
// p a positive one, i any; b 0 or 1; t a text; l how subscribers were counted; r a redisop.Recall.
var layouts = [...]struct {
	of   []redisop.OpKind
	what string
}{
	CodeTaken:      {[]redisop.OpKind{redisop.Take}, "nbnnln"}, // last token, made, waiting, ticket, subscribers
	CodeMissing:    {[]redisop.OpKind{redisop.Take, redisop.Renew, redisop.Check}, ""},
	CodeDiffers:    {[]redisop.OpKind{redisop.Check}, ""},
	CodeHeld:       {[]redisop.OpKind{redisop.Take, redisop.Renew, redisop.Check}, "itln"},                            // PTTL, field, subscribers
	CodeQueued:     {[]redisop.OpKind{redisop.Take}, "itlnnpnr"},                                                      // the same, rank, ticket, arrived, recall
	CodeFree:       {[]redisop.OpKind{redisop.Take}, "ln"},                                                            // subscribers
	CodeFreeQueued: {[]redisop.OpKind{redisop.Take}, "lnnpn"},                                                         // the same, rank, ticket, arrived
	CodeDropped:    {[]redisop.OpKind{redisop.Drop}, "ln"},                                                            // subscribers
	CodePassed:     {[]redisop.OpKind{redisop.Drop}, "n"},                                                             // waiting
	CodePaused:     {[]redisop.OpKind{redisop.Drop}, "ln"},                                                            // subscribers
	CodeArrived:    {[]redisop.OpKind{redisop.Arrive}, "nn"},                                                          // now, the first
	CodeNotALock:   {[]redisop.OpKind{redisop.Take, redisop.Drop}, "t"},                                               // description
	CodeRefused:    {[]redisop.OpKind{redisop.Take, redisop.Renew, redisop.Check, redisop.Arrive, redisop.Drop}, "t"}, // error
}

// UnexpectedReply is a reply that no script makes. It may have been executed.
type UnexpectedReply struct {
	Script *Script
	Reply  Reply
}

func (e *UnexpectedReply) Error() string {
	return fmt.Sprintf("unexpected reply %v", e.Reply)
}

// Decode reads the status of one operation into r. A refusal is the text of an error of Redis for
// this operation alone. silent: what was given back could not be published.
func Decode(status Reply, r *redisop.Result) (refusal string, silent bool, err error) {
	if isUsual(status, r.Kind) {
		r.Outcome = redisop.Done
		switch r.Kind {
		case redisop.Take:
			r.Token = uint64(status.Num)
		case redisop.Drop: // it was published, and reached no client
			r.Listeners = redisop.CountedListeners(0)
		}
		return "", false, nil
	}
	if !IsLaidOut(status, r.Kind) {
		return "", false, &UnexpectedReply{scriptOf(r.Kind), status}
	}
	c, v := StatusCode(status.List[0].Num), status.List[1:]
	switch c {
	case CodeTaken:
		r.Outcome, r.Token, r.Made = redisop.Done, uint64(v[0].Num), v[1].Num == 1
		r.Waiting, r.Ticket, r.Listeners = uint32(v[2].Num), uint64(v[3].Num), listenersOf(v[4:])
	case CodeMissing:
		r.Outcome = redisop.KeyMissing
	case CodeDiffers:
		r.Outcome = redisop.Differs
	case CodeHeld, CodeQueued:
		r.Outcome, r.TTLMS, r.Field, r.Listeners = redisop.HeldByOther, max(v[0].Num, -1), readable(v[1].Text), listenersOf(v[2:])
		if c == CodeQueued {
			decodePlace(v[4:], r)
			r.Recall = redisop.Recall(v[7].Num)
		}
	case CodeFree, CodeFreeQueued:
		r.Outcome, r.LeftFree, r.TTLMS, r.Listeners = redisop.HeldByOther, true, -1, listenersOf(v)
		if c == CodeFreeQueued {
			decodePlace(v[2:], r)
		}
	case CodeDropped, CodePaused:
		r.Outcome, r.Paused, r.Listeners = redisop.Done, c == CodePaused, listenersOf(v)
		silent = r.Listeners.State == redisop.Unpublished
	case CodePassed:
		r.Outcome, r.Passed, r.Waiting = redisop.Done, true, uint32(v[0].Num)
	case CodeArrived:
		r.Outcome, r.Arrived, r.FirstArrived = redisop.Done, uint64(v[0].Num), uint64(v[1].Num)
	case CodeNotALock:
		r.Outcome, r.Field = redisop.NotALock, readable(v[0].Text)
	case CodeRefused:
		refusal = v[0].Text
	}
	return refusal, silent, nil
}

// isUsual reports whether a status is the integer of the usual case.
func isUsual(status Reply, kind redisop.OpKind) bool {
	switch {
	case status.Kind != ':' || kind == redisop.Arrive:
		return false
	case kind == redisop.Take:
		return status.Num > 0
	}
	return status.Num == 0
}

// IsLaidOut reports whether a status is an array as its code says, for an operation of this kind.
func IsLaidOut(status Reply, kind redisop.OpKind) bool {
	list := status.List
	if status.Kind != '*' || len(list) == 0 || list[0].Kind != ':' || list[0].Num < 1 || list[0].Num >= int64(len(layouts)) {
		return false
	}
	layout := &layouts[list[0].Num]
	return slices.Contains(layout.of, kind) && areLaidOut(list[1:], layout.what)
}

// areLaidOut reports whether values are as the letters of a layout say.
func areLaidOut(values []Reply, what string) bool {
	if len(values) != len(what) {
		return false
	}
	for i, v := range values {
		isNumber := v.Kind == ':' && v.Num >= 0
		ok := false
		switch what[i] {
		case 'n':
			ok = isNumber
		case 'p':
			ok = isNumber && v.Num > 0
		case 'i':
			ok = v.Kind == ':'
		case 'b':
			ok = isNumber && v.Num <= 1
		case 't':
			ok = v.Kind == '$'
		case 'l':
			ok = isNumber && v.Num <= int64(redisop.Unpublished)
		case 'r':
			ok = isNumber && v.Num <= int64(redisop.RecallMissed)
		}
		if !ok {
			return false
		}
	}
	return true
}

func listenersOf(v []Reply) redisop.Listeners {
	return redisop.Listeners{State: redisop.ListenersState(v[0].Num), N: int32(v[1].Num)}
}

// decodePlace reads rank, ticket and arrival.
func decodePlace(v []Reply, r *redisop.Result) {
	r.IsQueued, r.Rank, r.Ticket, r.Arrived = true, uint32(v[0].Num), uint64(v[1].Num), uint64(v[2].Num)
}

// HasKinds reports whether a list has items of these kinds, and no others.
func HasKinds(list []Reply, kinds string) bool {
	if len(list) != len(kinds) {
		return false
	}
	for i := range list {
		if list[i].Kind != kinds[i] {
			return false
		}
	}
	return true
}

package wire

import (
	"slices"
	"strconv"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What rw.lua is given, and what it returns.

// readWrite appends the command that executes ops, which are of read/write locks. The first token of a new counter is above
// birth, µs.
func (e *Encoder) readWrite(dst []byte, r Run, birth int64, ops []redisop.Op) []byte {
	dst = AppendCommand(dst, r, 6*len(ops), 2+len(ops))
	for i := range ops {
		name := ops[i].Name
		life := e.Keys.Life(name)
		switch ops[i].Kind {
		case redisop.Renew, redisop.Check: // those of a writer need one key while its slot moves
			if ops[i].Kind == redisop.Check || ops[i].Count == uint32(redisop.ExclusiveMode) {
				life = e.Keys.Key(name)
			}
			for range 3 {
				dst = AppendString(e.Keys.appendKey(dst, name), life)
			}
			continue
		}
		dst = AppendString(e.Keys.appendKey(dst, name), life)
		dst = e.Keys.appendDerived(dst, CounterPrefix, name)
		for _, from := range [...]string{ReadersPrefix, WritersPrefix, AskedPrefix} {
			dst = e.Keys.AppendOurs(dst, from, name)
		}
	}
	dst = AppendString(dst, e.Prefix)
	flags := byte(0)
	if e.Confirms && slices.ContainsFunc(ops, func(op redisop.Op) bool { return op.Kind != redisop.Drop || IsCovered(&op) }) {
		flags = 4
	}
	dst = appendText(dst, e.terms([4]byte{3: flags}, birth, 0, nil))
	for i := range ops {
		op := &ops[i]
		text := append(appendWhat(e.text[:0], op), ' ')
		text = strconv.AppendUint(text, op.HoldID, 10)
		keep, want, stands := redisop.Mode(op.Count), redisop.Mode(op.Want), op.Times
		if op.Kind == redisop.Drop {
			keep, want, stands = redisop.NoMode, redisop.NoMode, 0
		}
		text = append(text, ' ', modeLetters[keep], ' ', modeLetters[want], ' ', queueLetters[stands])
		for _, n := range [...]uint64{uint64(op.LeaseMS), uint64(op.Reserve), op.Arrived} {
			text = strconv.AppendUint(append(text, ' '), n, 10)
		}
		e.text = text
		dst = appendText(dst, text)
	}
	return dst
}

// The letters that rw.lua has for a Mode, and for the queues in which a host waits.
const (
	modeLetters  = "nrw"
	queueLetters = "nrwb"
)

// DecodeReadWrite reads the status of an operation of a read/write lock into r. A refusal is the text of an error of Redis
// for this operation alone.
func DecodeReadWrite(status Reply, op *redisop.Op, r *redisop.Result) (refusal string, err error) {
	switch r.Outcome = redisop.Done; {
	case status.Kind != ':':
	case status.Num == 0 && op.Kind == redisop.Drop:
		return "", nil
	case status.Num == 0 && op.Kind != redisop.Take:
		r.Permits = op.Count
		return "", nil
	case status.Num > 0 && op.Kind == redisop.Take:
		if r.Permits, r.Token = op.Count, uint64(status.Num); op.Count == uint32(redisop.NoMode) {
			r.Permits = uint32(op.Want)
		}
		return "", nil
	}
	unexpected := &UnexpectedReply{ReadWrite, status}
	if status.Kind != '*' || len(status.List) == 0 || status.List[0].Kind != ':' {
		return "", unexpected
	}
	v := status.List[1:]
	switch StatusCode(status.List[0].Num) {
	case CodeShares:
		if !areLaidOut(v, "nnbnb") || v[0].Num > int64(redisop.ExclusiveMode) {
			return "", unexpected
		}
		r.Permits, r.Token, r.Made = uint32(v[0].Num), uint64(v[1].Num), v[2].Num == 1
		if r.Waiting = uint32(v[3].Num); v[4].Num == 1 {
			r.Queues = redisop.ReadersQueue
		}
	case CodeAway:
		if op.Kind != redisop.Take || !areLaidOut(v, "nnitnnnr") || v[4].Num > int64(redisop.ReadersQueue|redisop.WritersQueue) {
			return "", unexpected
		}
		r.Outcome, r.Permits, r.TTLMS, r.Field = redisop.HeldByOther, uint32(v[1].Num), max(v[2].Num, -1), readable(v[3].Text)
		r.Queues, r.Rank = uint8(v[4].Num), uint32(v[5].Num)
		r.Arrived, r.Recall = uint64(v[6].Num), redisop.Recall(v[7].Num)
		if r.IsQueued = r.Queues != 0; r.IsQueued {
			r.Ticket = op.HoldID
		}
	case CodeLater:
		if len(v) != 0 {
			return "", unexpected
		}
		r.Outcome = redisop.Differs
	case CodeMissing, CodeHeld, CodeNotALock, CodeRefused:
		if !IsLaidOut(status, op.Kind) {
			return "", unexpected
		}
		refusal, _, err = Decode(status, r)
	default:
		return "", unexpected
	}
	return refusal, err
}

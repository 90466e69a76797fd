package wire

import (
	"slices"
	"strconv"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// What permits.lua is given, and what it returns.

// permits appends the command that executes ops, which are of semaphores. Tokens are above birth, µs.
func (e *Encoder) permits(dst []byte, r Run, birth int64, ops []redisop.Op) []byte {
	dst = AppendCommand(dst, r, 3*len(ops), 2+len(ops))
	for i := range ops {
		name := ops[i].Name
		dst = e.Keys.appendKey(dst, name)
		if ops[i].Kind == redisop.Renew || ops[i].Kind == redisop.Check { // these need one key while its slot moves
			dst = e.Keys.appendKey(dst, name)
			dst = e.Keys.appendKey(dst, name)
			continue
		}
		dst = e.Keys.AppendOurs(dst, WantedPrefix, name)
		dst = e.Keys.AppendOurs(dst, WantsPrefix, name)
	}
	dst = AppendString(dst, e.Prefix)
	flags := byte(0)
	if e.Confirms && slices.ContainsFunc(ops, func(op redisop.Op) bool { return op.Kind != redisop.Drop || IsCovered(&op) }) {
		flags = 4
	}
	dst = appendText(dst, e.terms([4]byte{3: flags}, birth, 0, nil))
	for i := range ops {
		op := &ops[i]
		text := appendWhat(e.text[:0], op)
		n := [...]uint64{op.HoldID, uint64(op.Count), uint64(op.Want), uint64(op.Capacity), uint64(op.LeaseMS), uint64(op.Times), uint64(op.Reserve), op.Arrived}
		given := len(n)
		switch isUsual := op.Arrived == 0 && op.Reserve == 1 && op.Times == 1; {
		case op.Kind == redisop.Drop:
			given = 1
		case op.Kind != redisop.Take, isUsual:
			given = 5
		}
		for _, n := range n[:given] {
			text = strconv.AppendUint(append(text, ' '), n, 10)
		}
		e.text = text
		dst = appendText(dst, text)
	}
	return dst
}

// DropPermitsArgs returns, of a run that takes all permits and the place of a sidecar away, the number of keys, the keys and the
// arguments. prefix is the uuid of that sidecar, and a colon. Tokens are above birth, µs.
func (e *Encoder) DropPermitsArgs(name, prefix string, birth int64) []string {
	k := &e.Keys
	return []string{"3", k.Key(name), k.Ours(WantedPrefix, name), k.Ours(WantsPrefix, name),
		prefix, string(e.terms([4]byte{}, birth, 0, nil)), "d " + strconv.FormatUint(MaxScriptNumber, 10)}
}

// DecodePermits reads the status of an operation of a semaphore into r. A refusal is the text of an error of Redis for this
// operation alone.
func DecodePermits(status Reply, op *redisop.Op, r *redisop.Result) (refusal string, err error) {
	switch r.Outcome = redisop.Done; {
	case status.Kind != ':':
	case status.Num == 0 && op.Kind == redisop.Drop:
		return "", nil
	case status.Num == 0 && op.Kind != redisop.Take:
		r.Permits = op.Count
		return "", nil
	case status.Num > 0 && op.Kind == redisop.Take:
		r.Permits, r.Token = op.Count+uint32(op.Want), uint64(status.Num)
		return "", nil
	}
	unexpected := &UnexpectedReply{Permits, status}
	if status.Kind != '*' || len(status.List) == 0 || status.List[0].Kind != ':' {
		return "", unexpected
	}
	v := status.List[1:]
	switch StatusCode(status.List[0].Num) {
	case CodePermitted:
		if !areLaidOut(v, "nnn") {
			return "", unexpected
		}
		r.Permits, r.Token, r.Waiting = uint32(v[0].Num), uint64(v[1].Num), uint32(v[2].Num)
	case CodeWanted:
		if op.Kind != redisop.Take || !areLaidOut(v, "nibnnr") {
			return "", unexpected
		}
		r.Outcome, r.Permits, r.TTLMS, r.IsQueued = redisop.HeldByOther, uint32(v[0].Num), max(v[1].Num, -1), v[2].Num == 1
		r.Rank, r.Arrived, r.Recall = uint32(v[3].Num), uint64(v[4].Num), redisop.Recall(v[5].Num)
		if r.IsQueued {
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

package store

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

// A script is one verb: its text and the digest by which Redis knows it.
type script struct {
	text string
	sha  string
}

var (
	//go:embed scripts/take.lua
	takeText string
	//go:embed scripts/keep.lua
	keepText string
	//go:embed scripts/drop.lua
	dropText string

	take = newScript(takeText)
	keep = newScript(keepText)
	drop = newScript(dropText)

	scripts = []*script{take, keep, drop}
)

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text: text, sha: hex.EncodeToString(sum[:])}
}

// load is the command that teaches Redis the script.
func (s *script) load() *redis.StringCmd {
	return redis.NewStringCmd(context.Background(), "script", "load", s.text)
}

// keepMax is how many locks one keep renews. Redis runs a script to its end
// before anybody else is served: at 1 to 2 µs a lock, this is well below 1 ms.
const keepMax = 128

// A call is one run of a script, for one operation or for many that renew.
type call struct {
	script *script
	ops    []locktable.Op
	cmd    *redis.Cmd
}

// encoder turns operations into calls. Its boxed values are made once.
type encoder struct {
	prefix any // "<uuid>:"
	floor  any // of this connection's tokens
}

// calls appends the calls that carry out ops, in their order. Neighbours that
// renew with the same lease share one.
func (e *encoder) calls(dst []call, ops []locktable.Op) []call {
	for len(ops) > 0 {
		n := 1
		var c call
		switch ops[0].Kind {
		case locktable.Take:
			c.script = take
		case locktable.Drop:
			c.script = drop
		case locktable.Keep:
			c.script = keep
			for n < len(ops) && n < keepMax && ops[n].Kind == locktable.Keep && ops[n].LeaseMS == ops[0].LeaseMS {
				n++
			}
		default:
			panic(fmt.Sprintf("store: operation of unknown kind %d", ops[0].Kind))
		}
		c.ops, ops = ops[:n:n], ops[n:]
		c.cmd = e.command(c.script, c.ops, false)
		dst = append(dst, c)
	}
	return dst
}

// command makes the EVALSHA that runs a script for ops, or the EVAL, which also
// teaches Redis the script.
func (e *encoder) command(s *script, ops []locktable.Op, eval bool) *redis.Cmd {
	args := make([]any, 2, 13+3*len(ops))
	args[0], args[1] = "evalsha", s.sha
	if eval {
		args[0], args[1] = "eval", s.text
	}
	op := &ops[0]
	switch s {
	case take:
		held := "0"
		if op.Held {
			held = "1"
		}
		args = append(args, 2, op.Name, counterOf(op.Name),
			e.prefix, op.Num, op.Count, op.LeaseMS, uint64(op.Reserve), e.floor, channelOf(op.Name), held)
	case keep:
		args = append(args, len(ops))
		for i := range ops {
			args = append(args, ops[i].Name)
		}
		args = append(args, e.prefix, op.LeaseMS)
		for i := range ops {
			args = append(args, ops[i].Num, ops[i].Count)
		}
	case drop:
		args = append(args, 1, op.Name, e.prefix, op.Num, channelOf(op.Name))
	}
	return redis.NewCmd(context.Background(), args...)
}

// A reply that the script cannot have made. Whether it ran is anybody's guess.
type strangeReply struct {
	script *script
	reply  any
}

func (e *strangeReply) Error() string {
	return fmt.Sprintf("it gave a reply of type %T that no script of ours makes", e.reply)
}

// decodeTake reads {1, token, listeners}, {0} or {2, pttl, field} into r.
func decodeTake(reply any, r *locktable.Result) error {
	parts, _ := reply.([]any)
	if len(parts) == 1 && parts[0] == int64(0) {
		r.Outcome = locktable.Missing
		return nil
	}
	if len(parts) != 3 {
		return &strangeReply{take, reply}
	}
	status, _ := parts[0].(int64)
	number, ok := parts[1].(int64)
	switch status {
	case 1:
		listeners, ok2 := parts[2].(int64)
		if !ok || !ok2 {
			return &strangeReply{take, reply}
		}
		r.Outcome = locktable.Done
		r.Token = uint64(number)
		r.Listeners = int32(listeners)
	case 2:
		field, ok2 := parts[2].(string)
		if !ok || !ok2 {
			return &strangeReply{take, reply}
		}
		decodeOther(number, field, r)
	default:
		return &strangeReply{take, reply}
	}
	return nil
}

// decodeKeep reads one status of keep into r: 1, 0, {pttl, field}, or the text of
// an error, which it returns.
func decodeKeep(status any, r *locktable.Result) (refusal string, err error) {
	switch s := status.(type) {
	case int64:
		switch s {
		case 1:
			r.Outcome = locktable.Done
			return "", nil
		case 0:
			r.Outcome = locktable.Missing
			return "", nil
		}
	case []any:
		if len(s) == 2 {
			ttl, ok := s[0].(int64)
			field, ok2 := s[1].(string)
			if ok && ok2 {
				decodeOther(ttl, field, r)
				return "", nil
			}
		}
	case string:
		return s, nil
	}
	return "", &strangeReply{keep, status}
}

func decodeOther(ttl int64, field string, r *locktable.Result) {
	r.Outcome = locktable.Other
	r.TTLMS = max(ttl, -1)
	r.Field = strings.ToValidUTF8(field, "\uFFFD")
}

package server

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/internal/sim/redis"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// Command is one command of a connection.
type Command struct {
	Words  []string     // in lower case: the name, and what follows it; of EVAL, EVALSHA and SCRIPT LOAD, hardly more than the name
	Script *wire.Script // that is run or loaded; nil: none, or one that the model does not know
	ByText bool         // EVAL
	Run    Run          // of operations
}

// Run is one run of a script for operations.
type Run struct {
	Ops    []redisop.Op // in the order in which the script executes them
	Prefix string       // of the owner's fields; "": the script needs none
	Floor  int64        // a counter below it is lifted, µs
	Birth  int64        // a new counter begins above it, µs
	Expiry int64        // of token counters, ns; 0: none
	Origin string       // what messages name as theirs

	Declares  bool // all keys are declared
	IsSharded bool // the channels of locks are
	Confirms  bool // each operation writes something

	again int  // from this index on, each Drop is followed by the Take of the same lock
	left  left // by the Drop before
}

// left is what a Drop leaves to the Take after it.
type left struct{ passedOn, free bool }

// errStrange: these bytes are no command that the store makes.
var errStrange = errors.New("no command of the store")

// Reader reads commands.
type Reader struct {
	Keys wire.Keyspace

	names map[string]string // that were read before: they cost no memory
	args  [][]byte
}

// text returns a string.
func (r *Reader) text(b []byte) string {
	if s, ok := r.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if r.names == nil {
		r.names = make(map[string]string)
	}
	if len(s) < 256 && len(r.names) < 4096 {
		r.names[s] = s
	}
	return s
}

// Read reads the first command into c, and returns the bytes after it.
func (r *Reader) Read(b []byte, c *Command) (rest []byte, err error) {
	n, b, err := head(b, '*')
	if err != nil || n == 0 {
		return nil, errStrange
	}
	r.args = r.args[:0]
	for range n {
		size, after, err := head(b, '$')
		if err != nil || len(after) < size+2 {
			return nil, errStrange
		}
		r.args = append(r.args, after[:size])
		b = after[size+2:]
	}
	c.Script, c.ByText = nil, false
	if run := &c.Run; len(run.Ops) > 0 {
		*run = Run{Ops: run.Ops[:0]}
	}
	c.Words = append(c.Words[:0], strings.ToLower(r.text(r.args[0])))
	switch c.Words[0] {
	case "evalsha":
		c.Script = byDigest[string(r.args[1])]
	case "eval":
		c.Script, c.ByText = byText[string(r.args[1])], true
	case "script":
		if string(r.args[1]) != "load" {
			return nil, errStrange
		}
		c.Script = byText[string(r.args[2])]
		return b, nil
	default:
		for _, arg := range r.args[1:] {
			c.Words = append(c.Words, r.text(arg))
		}
		return b, nil
	}
	count, err := strconv.Atoi(string(r.args[2]))
	if err != nil || count > len(r.args)-3 {
		return nil, errStrange
	}
	keys, args := r.args[3:3+count], r.args[3+count:]
	switch c.Script {
	case wire.AcquireRelease:
		err = r.takesAndDrops(&c.Run, keys, args)
	case wire.Renew:
		err = r.renewals(&c.Run, keys, args)
	case wire.Permits:
		err = r.permits(&c.Run, keys, args)
	case wire.ReadWrite:
		err = r.readsAndWrites(&c.Run, keys, args)
	case wire.Arrive:
		for _, key := range keys {
			c.Run.Ops = append(c.Run.Ops, redisop.Op{Kind: redisop.Arrive, Name: r.name(key)})
		}
		c.Run.again = len(keys)
	case wire.Permissions:
		if len(args) > 0 {
			c.Words = append(c.Words, r.text(args[0])) // a channel; "": some commands are not tried
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errStrange, err)
	}
	return b, nil
}

// The scripts of locks.
var byDigest, byText = func() (digests, texts map[string]*wire.Script) {
	digests, texts = make(map[string]*wire.Script), make(map[string]*wire.Script)
	for _, s := range wire.Scripts {
		digests[s.SHA], texts[s.Text] = s, s
	}
	return digests, texts
}()

// head reads the length of an array or a string.
func head(b []byte, kind byte) (n int, rest []byte, err error) {
	if len(b) == 0 || b[0] != kind {
		return 0, nil, errStrange
	}
	i := 1
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		n = 10*n + int(b[i]-'0')
	}
	if i+2 > len(b) || b[i] != '\r' || b[i+1] != '\n' {
		return 0, nil, errStrange
	}
	return n, b[i+2:], nil
}

// name is the lock that has a key.
func (r *Reader) name(key []byte) string { return r.text(bytes.TrimPrefix(key, []byte(r.Keys.Prefix))) }

// arguments are those of a script, of which the first ones were read.
type arguments struct {
	left [][]byte
	err  error
}

func (a *arguments) next() []byte {
	if len(a.left) == 0 {
		a.err = errors.New("an argument is missing")
		return nil
	}
	b := a.left[0]
	a.left = a.left[1:]
	return b
}

func (a *arguments) number() uint64 {
	n, err := number(a.next())
	if a.err == nil {
		a.err = err
	}
	return n
}

// number reads a decimal number; nothing is 0.
func number(digits []byte) (n uint64, err error) {
	for _, digit := range digits {
		if digit < '0' || digit > '9' {
			return 0, fmt.Errorf("%q is no number", digits)
		}
		n = 10*n + uint64(digit-'0')
	}
	return n, nil
}

// terms are the text of the second argument of main.lua.
type terms struct {
	bytes []byte
	err   error
}

// number reads the next number; missing ones are 0.
func (t *terms) number() uint64 {
	n, err := number(t.word())
	if t.err == nil {
		t.err = err
	}
	return n
}

func (t *terms) word() []byte {
	word, rest, _ := bytes.Cut(t.bytes, []byte(" "))
	t.bytes = rest
	return word
}

// How an operation waits: see main.lua and take.lua.
const (
	waitNone = iota
	waitQueued
	waitInOrder
	waitArrived
)

// headBytes is how many bytes of terms are no text.
const headBytes = 13

// takesAndDrops reads a run of main.lua.
func (r *Reader) takesAndDrops(run *Run, keys, all [][]byte) error {
	args := arguments{left: all}
	field, given := args.next(), args.next()
	if len(given) < headBytes {
		return errors.New("terms are missing")
	}
	takes, sets, drops, flags := int(given[0]), int(given[1]), int(given[2]), given[3]
	run.Declares, run.IsSharded, run.Confirms = given[4] == 1, given[5] == 1, flags >= 4
	for i := range 7 {
		run.Floor |= int64(given[6+i]) << (8 * i)
	}
	t := terms{bytes: given[headBytes:]}
	run.Expiry = int64(t.number()) * 1e6
	run.Birth = int64(t.number())
	passLease := uint32(t.number())
	run.Origin = r.text(t.word())

	locks := (len(keys) + drops) / 2
	if run.Declares {
		locks = len(keys) / 4
	}
	run.again = takes + sets + drops
	pairs := locks - run.again
	if pairs < 0 || len(keys) < locks {
		return errors.New("fewer keys than locks")
	}
	lease := uint32(0)
	if drops < locks {
		lease = uint32(args.number())
	}
	colon := bytes.LastIndexByte(field, ':')
	run.Prefix = r.text(field[:colon+1])
	args.left = all[len(all)-len(args.left)-1:]
	args.left[0] = field[colon+1:] // the number of the first
	take := func(name string, isSet bool) {
		op := redisop.Op{Kind: redisop.Take, Name: name, LeaseMS: lease, Count: 1, HoldID: args.number(), Asked: redisop.Asked{Reserve: 1}}
		if isSet {
			op.Count = uint32(args.number())
		}
		run.Ops = append(run.Ops, op)
	}
	flag := func() {
		op := &run.Ops[len(run.Ops)-1]
		op.Reserve = uint16(args.number())
		switch string(args.next()) {
		case "m":
			op.Flags |= redisop.RequireExisting
		case "c":
			op.Flags |= redisop.CountListeners
		case "cm":
			op.Flags |= redisop.RequireExisting | redisop.CountListeners
		}
	}
	for i := range locks {
		name := r.name(keys[i])
		switch {
		case i < takes:
			take(name, false)
		case i < takes+sets:
			take(name, true)
			flag()
		default:
			run.Ops = append(run.Ops, redisop.Op{Kind: redisop.Drop, Name: name, LeaseMS: passLease, HoldID: args.number()})
			if i >= run.again {
				take(name, false)
				run.Ops[len(run.Ops)-1].Flags |= redisop.AfterPendingDrop
				flag()
			}
		}
	}
	for i := range run.Ops {
		op := &run.Ops[i]
		wait, ticket, time := t.number(), t.number(), t.number()
		op.Ticket = ticket
		if op.Kind == redisop.Drop {
			op.PassedMS = uint32(time)
			continue
		}
		switch wait {
		case waitQueued:
			op.Flags |= redisop.Enqueue
		case waitInOrder:
			op.Flags |= redisop.Enqueue | redisop.InOrder
		case waitArrived:
			op.Flags |= redisop.Enqueue | redisop.InOrder
			op.Arrived = time
		}
	}
	if len(args.left) > 0 {
		return errors.New("an argument too many")
	}
	if args.err != nil {
		return args.err
	}
	return t.err
}

// renewals reads a run of renew.lua.
func (r *Reader) renewals(run *Run, keys, all [][]byte) error {
	args := arguments{left: all}
	run.Prefix = r.text(args.next())
	lease, count := uint32(args.number()), uint32(0)
	if len(args.left) > 0 {
		count = uint32(args.number())
		_ = args.number() // in how many to look for others
	}
	kind := redisop.Renew
	if lease == 0 {
		kind = redisop.Check
	}
	for _, key := range keys {
		run.Ops = append(run.Ops, redisop.Op{Kind: kind, Name: r.name(key), LeaseMS: lease, Count: count, HoldID: args.number()})
	}
	run.again = len(keys)
	return args.err
}

// permits reads a run of permits.lua.
func (r *Reader) permits(run *Run, keys, all [][]byte) error {
	args := arguments{left: all}
	run.Prefix = r.text(args.next())
	given := args.next()
	if len(given) < headBytes || len(keys)%3 != 0 {
		return errors.New("terms or keys are missing")
	}
	run.Confirms = given[3] >= 4
	t := terms{bytes: given[headBytes:]}
	_ = t.number() // the expiry of token counters, of which there are none
	run.Birth = int64(t.number())
	_ = t.number()
	run.Origin = r.text(t.word())
	for i := 0; i < len(keys); i += 3 {
		w := terms{bytes: args.next()}
		op := redisop.Op{Of: redisop.KindPermits, Kind: redisop.Take, Name: r.name(keys[i])}
		what := w.word()
		switch string(what) {
		case "d":
			op.Kind = redisop.Drop
		case "r":
			op.Kind = redisop.Renew
		case "c":
			op.Kind = redisop.Check
		}
		op.HoldID, op.Count, op.Want, op.Capacity, op.LeaseMS = w.number(), uint32(w.number()), uint16(w.number()), uint16(w.number()), uint32(w.number())
		if op.Kind == redisop.Take {
			op.Times, op.Reserve = 1, 1
			for _, flag := range what[1:] {
				switch flag {
				case 'q':
					op.Flags |= redisop.Enqueue
				case 'm':
					op.Flags |= redisop.RequireExisting
				case 'y':
					op.Flags |= redisop.Yields
				case 'p':
					op.Flags |= redisop.Yields
					op.Ticket = 1 // it does not say which
				default:
					return fmt.Errorf("an operation is %q", what)
				}
			}
		}
		if len(w.bytes) > 0 {
			op.Times, op.Reserve, op.Arrived = uint8(w.number()), uint16(w.number()), w.number()
		}
		if w.err != nil {
			return w.err
		}
		run.Ops = append(run.Ops, op)
	}
	run.again = len(run.Ops)
	if len(args.left) > 0 {
		return errors.New("an argument too many")
	}
	return errors.Join(args.err, t.err)
}

// readsAndWrites reads a run of rw.lua.
func (r *Reader) readsAndWrites(run *Run, keys, all [][]byte) error {
	args := arguments{left: all}
	run.Prefix = r.text(args.next())
	given := args.next()
	if len(given) < headBytes || len(keys)%6 != 0 {
		return errors.New("terms or keys are missing")
	}
	run.Confirms = given[3] >= 4
	for i := range 7 {
		run.Floor |= int64(given[6+i]) << (8 * i)
	}
	t := terms{bytes: given[headBytes:]}
	run.Expiry = int64(t.number()) * 1e6
	run.Birth = int64(t.number())
	_ = t.number()
	run.Origin = r.text(t.word())
	for i := 0; i < len(keys); i += 6 {
		w := terms{bytes: args.next()}
		op := redisop.Op{Of: redisop.KindReadWrite, Kind: redisop.Take, Name: r.name(keys[i])}
		what := w.word()
		switch string(what) {
		case "d":
			op.Kind = redisop.Drop
		case "r":
			op.Kind = redisop.Renew
		case "c":
			op.Kind = redisop.Check
		}
		op.HoldID = w.number()
		op.Count, op.Want = uint32(strings.Index("nrw", string(w.word()))), uint16(strings.Index("nrw", string(w.word())))
		op.Times, op.LeaseMS, op.Reserve, op.Arrived = uint8(strings.Index("nrwb", string(w.word()))), uint32(w.number()), uint16(w.number()), w.number()
		if op.Kind == redisop.Take {
			for _, flag := range what[1:] {
				switch flag {
				case 'q':
					op.Flags |= redisop.Enqueue
				case 'm':
					op.Flags |= redisop.RequireExisting
				case 'y':
					op.Flags |= redisop.Yields
				default:
					return fmt.Errorf("an operation is %q", what)
				}
			}
		}
		if w.err != nil {
			return w.err
		}
		run.Ops = append(run.Ops, op)
	}
	run.again = len(run.Ops)
	if len(args.left) > 0 {
		return errors.New("an argument too many")
	}
	return errors.Join(args.err, t.err)
}

// Command is an operation of the run, as the model of the scripts executes it at a server whose clock is that, µs.
func (r *Run) Command(i int, owner redis.Owner, now, clock int64) redis.Command {
	c := redis.Command{
		Op: &r.Ops[i], Owner: owner, Now: now, Clock: clock,
		Floor: r.Floor, Fresh: max(clock, r.Birth), Expiry: r.Expiry,
	}
	switch op := &r.Ops[i]; {
	case i < r.again:
	case op.Kind == redisop.Drop:
		c.Next = &r.Ops[i+1]
	default:
		c.PassedOn, c.LeftFree = r.left.passedOn, r.left.free && op.Has(redisop.Enqueue) && op.Arrived != 0
	}
	return c
}

// onReply notes what an operation leaves to the Take after it.
func (r *Run) onReply(i int, reply *redis.Reply) {
	if r.Ops[i].Kind == redisop.Drop {
		r.left = left{reply.Passed, reply.Paused}
	}
}

package store

import (
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

const (
	// maxFlight bounds the operations without an answer, and with them what is in
	// doubt when a connection ends.
	maxFlight = 4 * batchKeeps

	// Of a Redis that has answered within nearTrip, no more than nearCalls are asked for
	// an answer: it is at one, and goes on with the next. What comes in meanwhile makes a
	// larger run, which costs less than two: Redis wakes once and begins one script. From
	// farther away it would make waits longer.
	nearTrip  = int64(200 * time.Microsecond)
	nearCalls = 2

	// A buffer that has grown beyond this is not kept for the next write.
	maxSpare = 256 << 10
)

// A pipe is a session in use. Commands are written as they come, answers are read
// as they come, by a goroutine of its own: full duplex.
//
// Who queues something writes it too, unless somebody else is writing already;
// what the socket does not take at once is left to a goroutine.
type pipe struct {
	// Immutable.
	*session
	commands *commands
	encoder  encoder
	direct   syscall.RawConn // to write without blocking; nil: TLS is in between
	ended    chan struct{}   // closed when the reader has ended; broken says why
	patience int64           // ns

	// Guarded by commands.mu.
	calls   lane[call]         // without an answer, oldest first
	flight  lane[locktable.Op] // those that the calls carry out
	queued  int64              // bytes, ever
	written int64              // of them, given to the socket or being given
	out     []byte             // those that nobody is writing yet
	spare   []byte             // a buffer to be used next
	writing bool               // somebody writes, and sees to out after that
	broken  error              // why nothing is written any more
	ends    string             // why nothing more is to be said here, although it can be
	trip    int64              // the shortest time that an answer took
	heard   int64              // when Redis spoke last or, if later, when it was first owed an answer
	watched bool               // run will look soon whether an answer is overdue
	doubted bool               // run found that one is, and looks once more
	served  bool               // something was answered
	raised  bool               // a token has raised session.id's floor since the last OnResults
	taught  map[*script]bool   // that it is being taught a script is among the calls
	drains  sync.WaitGroup

	// Of the reader.
	replies *replies
	now     int64              // when it last read something
	results []locktable.Result // of what was answered, not delivered yet
	silent  string             // a lock whose release could not be published

	// Of the one who writes.
	part  []byte
	wrote int
	errno error
	try   func(fd uintptr) bool
}

func newPipe(c *commands, s *session) *pipe {
	p := &pipe{
		session:  s,
		commands: c,
		encoder:  encoder{prefix: c.cfg.UUID + ":", keys: c.dial.keys, floor: s.id.Floor, expiry: c.cfg.TokenExpiry.Milliseconds()},
		ended:    make(chan struct{}),
		patience: int64(c.dial.timeout),
		trip:     math.MaxInt64,
		heard:    protocol.Now(),
		taught:   make(map[*script]bool),
	}
	s.wire.release()
	if s.wire.secure {
		p.replies = newReplies(hearing{p, s.wire})
	} else {
		p.direct = s.wire.raw
		p.replies = newReplies(hearing{p, rawio.NewReader(s.wire.raw)})
	}
	p.try = p.writeSome
	return p
}

// open tells whether something may be said now. The caller holds mu.
func (p *pipe) open() bool {
	near := p.trip <= nearTrip
	return p.ends == "" && p.broken == nil && p.flight.len() < maxFlight && !(near && p.calls.len() >= nearCalls)
}

// idle tells whether nothing is owed. The caller holds mu.
func (p *pipe) idle() bool { return p.calls.len() == 0 }

// say queues ops, which are one batch, in an order of its own. The caller holds mu.
func (p *pipe) say(now int64, ops []locktable.Op) {
	gather(ops)
	for len(ops) > 0 {
		s, n := together(ops)
		p.run(now, call{script: s}, ops[:n])
		ops = ops[n:]
	}
}

// run queues a run of a script for ops, and arranges them. The caller holds mu.
func (p *pipe) run(now int64, cl call, ops []locktable.Op) {
	cl.ops = len(ops)
	p.register(now, cl)
	p.queue(p.encoder.run(p.out, cl.form, cl.script, p.id.floor(now), ops))
	for i := range ops {
		p.flight.push(ops[i])
	}
}

// queue takes what was appended to out. The caller holds mu.
func (p *pipe) queue(out []byte) {
	p.queued += int64(len(out) - len(p.out))
	p.out = out
}

// register notes that a command is about to be queued. The caller holds mu.
func (p *pipe) register(now int64, cl call) {
	if p.idle() {
		p.heard, p.doubted = now, false
	}
	cl.sent, cl.from = now, p.queued
	p.calls.push(cl)
}

// ping asks for a sign of life. The caller holds mu.
func (p *pipe) ping(now int64) {
	p.register(now, call{form: alive})
	p.queue(appendPing(p.out))
}

// flush writes what is queued, unless somebody else is writing. The caller holds
// mu, which is not held meanwhile.
func (p *pipe) flush() {
	mu := &p.commands.mu
	for !p.writing && p.broken == nil && len(p.out) > 0 {
		p.writing = true
		if p.direct == nil {
			p.drains.Go(p.drain)
			return
		}
		p.part, p.out = p.out, p.spare[:0]
		p.wrote, p.errno = 0, nil
		p.written += int64(len(p.part))
		mu.Unlock()
		err := p.direct.Write(p.try)
		mu.Lock()
		if err == nil {
			err = p.errno
		}
		rest := p.part[p.wrote:]
		p.written -= int64(len(rest))
		p.spare, p.part = kept(p.part), nil
		switch {
		case err != nil:
			p.cut(err)
		case len(rest) > 0 && p.broken == nil:
			p.spare = nil
			p.out = append(rest, p.out...)
			p.drains.Go(p.drain)
			return
		}
		p.writing = false
	}
}

// writeSome writes part as far as the socket takes it.
func (p *pipe) writeSome(fd uintptr) bool {
	for p.wrote < len(p.part) {
		n, err := rawio.Write(fd, p.part[p.wrote:])
		p.wrote += n
		switch err {
		case nil, syscall.EINTR:
			continue
		case syscall.EAGAIN:
		default:
			p.errno = err
		}
		break
	}
	return true // do not wait until there is room
}

// drain writes until nothing is left. A peer that takes nothing any more answers
// nothing either: that is for the watch to see.
func (p *pipe) drain() {
	mu := &p.commands.mu
	mu.Lock()
	defer mu.Unlock()
	for len(p.out) > 0 && p.broken == nil {
		b := p.out
		p.out = p.spare[:0]
		p.written += int64(len(b))
		mu.Unlock()
		n, err := p.wire.Write(b)
		mu.Lock()
		p.written -= int64(len(b) - n)
		p.spare = kept(b)
		if err != nil {
			p.cut(err)
		}
	}
	p.writing = false
}

// kept is a buffer to be used again, unless a burst has made it large.
func kept(b []byte) []byte {
	if cap(b) > maxSpare {
		return nil
	}
	return b
}

// cut ends the connection; the reader finds out, and tells. The caller holds mu.
func (p *pipe) cut(why error) {
	if p.broken == nil {
		p.broken = why
		p.wire.Close()
	}
}

// overdue ends a connection that is silent while it owes an answer, and asks one for
// a sign of life that is silent otherwise. It returns when to look again, at the
// latest; run is told when something is asked while nobody watches. The caller holds
// mu, and flushes.
func (p *pipe) overdue(now int64) (next int64) {
	if p.idle() && now >= p.heard+int64(idlePing) {
		p.ping(now)
	}
	switch quiet := now - p.heard; {
	case p.idle():
		p.watched = quiet < p.patience // then something may be asked at any time
		next = int64(idlePing)
		if p.watched {
			next = min(next, p.patience)
		}
	case quiet < p.patience:
		p.watched = true
		next = p.patience
	case !p.doubted || rawio.HasUnread(p.wire.raw):
		// Perhaps it is us who slept, with the host, or who are kept by a long step
		// of the loop. What came meanwhile is heard first.
		p.doubted = true
		return now + p.patience/8
	default:
		p.cut(os.ErrDeadlineExceeded)
		next = int64(time.Hour)
	}
	return p.heard + next
}

// read takes in what Redis answers until the connection ends. It is the pipe's
// goroutine.
func (p *pipe) read() {
	defer close(p.ended)
	var err error
	for err == nil {
		var answer reply
		if answer, err = p.replies.next(); err == nil {
			err = p.answered(answer)
		}
	}
	mu := &p.commands.mu
	mu.Lock()
	p.cut(err)
	mu.Unlock()
	_ = p.handOut()
}

// hearing is the stream of what Redis says. Before more is waited for, what was
// answered is handed out: the rest of a reply that has begun may take its time.
type hearing struct {
	*pipe
	from io.Reader
}

func (h hearing) Read(b []byte) (int, error) {
	if err := h.handOut(); err != nil {
		return 0, err
	}
	n, err := h.from.Read(b)
	h.now = protocol.Now()
	return n, err
}

// handOut says what waited for answers that have come, and delivers those. The error
// ends the pipe.
func (p *pipe) handOut() error {
	// Redis gets what waited for these answers before anybody else does.
	err := p.commands.goOn(p)
	if n := len(p.results); n > 0 {
		p.commands.deliver(p.results, p.takeRaised())
		p.results = make([]locktable.Result, 0, min(2*n, 64))
	}
	if p.silent != "" && !p.commands.publishTold {
		p.commands.publishTold = true
		p.commands.cfg.Log.Warn("this user may not publish: those who wait for a lock elsewhere learn late that it is free; let its ACL have +publish and the channels "+p.commands.dial.keys.channelPatterns(),
			"lock", p.silent)
	}
	return err
}

// farAhead is how far Redis's clock may once have been ahead of what it is now.
const farAhead = 366 * 24 * time.Hour

// raiseFloor notes a token that Redis gave out. One that is ahead of Redis's clock shows
// that the clock was set back since the counter was made: other counters may be behind
// tokens of before, and are lifted, as after a reconnect. A counter that is absurdly far
// ahead, because another program set it, must not lift those of all other locks. The
// caller holds mu.
func (p *pipe) raiseFloor(now int64, last uint64) {
	token, clock := int64(last), p.clock+(now-p.clockAt)/1000
	if token <= p.id.floor(now) || token >= clock+int64(farAhead/time.Microsecond) {
		return
	}
	p.id.Floor, p.id.FloorAt = token, now
	p.raised = true
	if token > clock+int64(time.Second/time.Microsecond) {
		p.encoder.floor = max(p.encoder.floor, token)
	}
}

// takeRaised returns the identity if its floor was raised since the last call.
func (p *pipe) takeRaised() *Identity {
	mu := &p.commands.mu
	mu.Lock()
	defer mu.Unlock()
	if !p.raised {
		return nil
	}
	p.raised = false
	id := p.id
	return &id
}

// answered takes one reply in, and notes the results of what it answers. The error is
// that of a connection that cannot be used further.
func (p *pipe) answered(answer reply) error {
	mu := &p.commands.mu
	mu.Lock()
	defer mu.Unlock()
	if p.idle() {
		return &strangeReply{reply: answer}
	}
	cl := *p.calls.front()
	p.heard, p.doubted, p.served = p.now, false, true
	if cl.ops > 0 { // something on the way may answer a ping
		p.trip = min(p.trip, p.now-cl.sent)
	}
	if cl.form == loading || cl.form == byText {
		delete(p.taught, cl.script)
	}
	if cl.ops > 0 && answer.kind == '-' {
		switch word := code(answer.text); {
		case word == "NOSCRIPT" && !cl.again && p.ends == "":
			p.teach(p.now, cl)
			return nil
		case cl.ops > 1 && outcomeOf(word) == locktable.Refused && p.ends == "":
			p.split(p.now, cl)
			return nil
		}
	}
	at := len(p.results)
	for _, op := range p.flight.head(cl.ops) {
		p.results = append(p.results, locktable.Result{Kind: op.Kind, Name: op.Name, Sent: cl.sent})
	}
	if err := p.decode(&cl, answer, p.results[at:]); err != nil {
		p.results = p.results[:at] // they are still under way
		return err
	}
	for i := range p.results[at:] {
		if token := p.results[at+i].Token; token != 0 {
			p.raiseFloor(p.now, token)
		}
	}
	p.calls.drop(1)
	p.flight.drop(cl.ops)
	return nil
}

// teach runs the oldest call again, once, behind the text of its script: it certainly
// did not run. The caller holds mu.
func (p *pipe) teach(now int64, cl call) {
	ops := p.again(cl)
	form := byDigest
	if !p.taught[cl.script] {
		p.taught[cl.script] = true
		if p.loads {
			p.register(now, call{form: loading, script: cl.script})
			p.queue(appendLoad(p.out, cl.script))
		} else {
			form = byText
		}
	}
	p.run(now, call{form: form, script: cl.script, again: true}, ops)
}

// split runs the oldest call again, by halves, after Redis refused it as a whole: one
// lock that an ACL denies must not cost the others their renewal. The caller holds mu.
func (p *pipe) split(now int64, cl call) {
	ops := p.again(cl)
	half := len(ops) / 2
	p.run(now, call{script: cl.script, again: cl.again}, ops[:half])
	p.run(now, call{script: cl.script, again: cl.again}, ops[half:])
}

// again takes the oldest call and its operations from those under way. The caller
// holds mu.
func (p *pipe) again(cl call) []locktable.Op {
	p.calls.drop(1)
	return p.flight.pop(nil, cl.ops)
}

// decode takes the reply of a call apart, one result for each of its operations. The
// caller holds mu.
func (p *pipe) decode(cl *call, answer reply, results []locktable.Result) error {
	c := p.commands
	refuse := func(r *locktable.Result, text string) {
		text = reason(text)
		word, _, _ := strings.Cut(text, " ")
		r.Outcome = outcomeOf(word)
		if r.Outcome == locktable.Refused && len(results) > 1 && answer.kind == '-' {
			r.Outcome = locktable.Busy // it may be one of the others that was refused
		}
		r.Msg = c.dial.answered(r.Name, text)
		if endsSession(word) && p.ends == "" {
			p.ends = r.Msg
		}
	}
	switch {
	case len(results) == 0: // whatever it says is a sign of life
	case answer.kind == '-':
		for i := range results {
			refuse(&results[i], answer.text)
		}
	case len(answer.list) != len(results):
		return &strangeReply{cl.script, answer}
	default:
		for i, status := range answer.list {
			refusal, silent, err := decode(status, &results[i])
			if err != nil {
				return err
			}
			if refusal != "" {
				refuse(&results[i], refusal)
			}
			if results[i].Outcome == locktable.NotALock {
				results[i].Msg = c.dial.notALock(results[i].Name, results[i].Field)
			}
			if silent {
				p.silent = results[i].Name
			}
		}
	}
	return nil
}

// close ends the connection, and returns the results of what was under way: where
// nothing of a command was written, it certainly was not carried out. The reader has
// ended, or will by itself.
func (p *pipe) close(why string) []locktable.Result {
	mu := &p.commands.mu
	mu.Lock()
	p.cut(net.ErrClosed)
	mu.Unlock()
	p.drains.Wait()
	p.session.close()
	mu.Lock()
	defer mu.Unlock()
	results := make([]locktable.Result, 0, p.flight.len())
	for _, cl := range p.calls.head(p.calls.len()) {
		outcome := locktable.Unknown
		if cl.from >= p.written {
			outcome = locktable.Unsent
		}
		for _, op := range p.flight.head(cl.ops) {
			results = append(results, locktable.Result{Kind: op.Kind, Name: op.Name, Sent: cl.sent, Outcome: outcome, Msg: why})
		}
		p.flight.drop(cl.ops)
	}
	p.calls = lane[call]{}
	return results
}

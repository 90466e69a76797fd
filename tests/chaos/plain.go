package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/history"
)

// A plainActor is a client as in SPEC.md §9.1: its session is not resumable. After the end of a
// connection it relies on its hold until the deadline, and its next connection is a new session.
// Each plainActor has connections of its own, and executes one activity at a time.
type plainActor struct {
	*actor
	conn    net.Conn // nil: not connected
	frames  *protocol.Reader
	decoder protocol.ReplyDecoder
	lastID  uint64
	holding *plainHold // nil: none
}

// A plainHold is one granted acquire.
type plainHold struct {
	op       int64
	name     string
	number   uint64
	token    uint64
	deadline int64
	orphaned bool // its session has ended: it is valid until the deadline, and cannot be released
	ended    protocol.Reason
}

// runPlain runs the actors of a worker whose sessions are not resumable.
func (w *goWorker) runPlain() {
	var wg sync.WaitGroup
	for i := range w.Actors {
		wg.Go(func() {
			p := &plainActor{actor: &actor{goWorker: w, dice: rand.New(rand.NewPCG(w.Seed, uint64(i)))}}
			p.act()
		})
	}
	wg.Wait()
}

func (p *plainActor) act() {
	for !p.isFinishing() {
		p.wait(p.randomTime(2 * time.Duration(p.ThinkMS) * time.Millisecond))
		switch n := p.dice.IntN(100); {
		case n < 60:
			p.section(p.anyLock(), protocol.Forever, p.randomTime(5*time.Millisecond))
		case n < 75:
			p.section(p.coolLock(), protocol.Forever, p.randomTime(3*time.Duration(p.LeaseMS)*time.Millisecond/2))
		case n < 90:
			p.section(p.anyLock(), 0, p.randomTime(5*time.Millisecond))
		default:
			p.section(p.anyLock(), 1+p.randomTime(500*time.Millisecond).Milliseconds(), p.randomTime(5*time.Millisecond))
		}
	}
	p.disconnect()
	p.closeRegister()
}

// section acquires a lock, holds it for a while and releases it.
func (p *plainActor) section(name string, waitMS int64, d time.Duration) {
	hold := p.acquire(name, waitMS)
	if hold == nil {
		return
	}
	p.holding = hold
	end := protocol.Now() + int64(d)
	for {
		p.writeRegister(hold.op, hold.name, hold.token)
		p.readUntil(min(end, protocol.Now()+int64(50*time.Millisecond)))
		if !p.check(hold) || protocol.Now() >= end || p.isFinishing() {
			break
		}
	}
	p.release(hold)
	p.holding = nil
}

// connect begins a session; false: there is no sidecar.
func (p *plainActor) connect() bool {
	conn, err := net.Dial("unix", p.Socket)
	if err != nil {
		return false
	}
	p.conn, p.frames = conn, protocol.NewReader(conn)
	p.lastID++
	var ok protocol.HelloOK
	if p.send(protocol.Hello{ID: p.lastID, V: protocol.Version, Client: "chaos plain"}) {
		if answer := p.await(p.lastID, protocol.Now()+int64(eventTimeout)); answer != nil && answer.Unpack(&ok) == nil && !ok.Resumed {
			return true
		}
	}
	p.disconnect()
	return false
}

// disconnect closes the connection, or notices its end. A hold of it stays valid until its
// deadline: an actor closes a connection to a running sidecar only while it holds nothing.
func (p *plainActor) disconnect() {
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
	if p.holding != nil {
		p.holding.orphaned = true
	}
}

func (p *plainActor) send(m protocol.Request) bool {
	_, err := p.conn.Write(m.Append(nil))
	return err == nil
}

// acquire returns nil if the lock was not granted.
func (p *plainActor) acquire(name string, waitMS int64) *plainHold {
	if p.conn == nil && !p.connect() {
		p.wait(5 * time.Millisecond)
		return nil
	}
	request := history.Event{Kind: history.Invoke, At: protocol.Now(), Op: p.lastOp.Add(1), Lock: name}
	if waitMS != protocol.Forever {
		request.WaitMS = max(waitMS, int64(time.Second/time.Millisecond)) // Redis's answer may take 500 ms
	}
	p.log.Write(request)
	fail := func(kind string, mayHaveHappened bool) *plainHold {
		p.log.Write(history.Event{Kind: history.Error, At: protocol.Now(), Op: request.Op, Err: kind, MayHaveHappened: mayHaveHappened})
		return nil
	}
	p.lastID++
	if !p.send(protocol.Acquire{ID: p.lastID, Name: name, WaitMS: waitMS}) {
		p.disconnect()
		return fail("unavailable", true)
	}
	answer := p.await(p.lastID, forever)
	if answer == nil {
		p.disconnect()
		return fail("unavailable", true)
	}
	if answer.code != "" {
		return fail(string(answer.code), false)
	}
	var ok protocol.AcquireOK
	if err := answer.Unpack(&ok); err != nil {
		panic(err)
	}
	p.log.Write(history.Event{Kind: history.Grant, At: protocol.Now(), Op: request.Op, Token: ok.Token, Until: ok.DeadlineNS})
	return &plainHold{op: request.Op, name: name, number: ok.Hold, token: ok.Token, deadline: ok.DeadlineNS}
}

// check records whether the actor relies on the hold.
func (p *plainActor) check(hold *plainHold) bool {
	before := protocol.Now()
	if hold.ended == "" && before >= hold.deadline {
		p.readUntil(before) // what has arrived counts
		if hold.ended == "" && protocol.Now() >= hold.deadline {
			hold.ended = protocol.Expired
		}
	}
	if hold.ended != "" {
		p.log.Write(history.Event{Kind: history.Lost, Before: before, At: protocol.Now(), Op: hold.op, Reason: string(hold.ended)})
		return false
	}
	before = protocol.Now()
	if before < hold.deadline {
		p.log.Write(history.Event{Kind: history.Checked, Before: before, At: protocol.Now(), Op: hold.op, Until: hold.deadline})
	}
	return true
}

// release stops relying on the hold, and releases it if its session goes on.
func (p *plainActor) release(hold *plainHold) {
	before := protocol.Now()
	p.log.Write(history.Event{Kind: history.Release, At: before, Op: hold.op})
	done := history.Event{Kind: history.Released, Before: before, Op: hold.op}
	isSent := hold.ended != "" && hold.ended != protocol.Expired || // the sidecar knows
		!hold.orphaned && p.conn != nil && p.send(protocol.Release{Hold: hold.number})
	switch {
	case hold.ended != "":
		done.Err, done.Reason = history.LostErr, string(hold.ended)
	case !isSent:
		done.Err = "unavailable"
	}
	done.At = protocol.Now()
	p.log.Write(done)
}

// readUntil handles what arrives before a time, and at least what has arrived by now. It returns
// early if the hold is lost or the worker has to finish.
func (p *plainActor) readUntil(at int64) {
	for {
		switch now := protocol.Now(); {
		case p.conn == nil:
			p.wait(time.Duration(at - now))
			return
		case p.receive(min(at, now+int64(20*time.Millisecond))) != nil:
		case protocol.Now() >= at || p.isFinishing() || p.holding.ended != "":
			return
		}
	}
}

// forever is a time that does not come.
const forever = int64(1<<63 - 1)

// await returns the answer to a request; nil: the connection has ended, or the time has passed.
func (p *plainActor) await(id uint64, until int64) *plainAnswer {
	for p.conn != nil && protocol.Now() < until {
		if answer := p.receive(min(until, protocol.Now()+int64(time.Second))); answer != nil && answer.ID == id {
			return answer
		}
	}
	return nil
}

// A plainAnswer is what was received: an answer, or an event, which has no id.
type plainAnswer struct {
	protocol.Answer
	code protocol.Code // of an error
}

// receive handles one frame; nil: none came before the time.
func (p *plainActor) receive(until int64) *plainAnswer {
	// A deadline in the past would return at once although a frame has arrived.
	_ = p.conn.SetReadDeadline(time.Now().Add(max(time.Duration(until-protocol.Now()), time.Millisecond)))
	body, err := p.frames.Next()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		var broken *protocol.ConnError
		if errors.As(err, &broken) || !errors.Is(err, io.EOF) && !isReset(err) {
			panic(err)
		}
		p.disconnect()
		return nil
	}
	received, err := p.decoder.Decode(body)
	if err != nil {
		panic(err)
	}
	switch m := received.(type) {
	case *protocol.Answer:
		return &plainAnswer{Answer: *m}
	case *protocol.Err:
		if m.ID == 0 { // the sidecar is stopping
			p.disconnect()
			return nil
		}
		return &plainAnswer{Answer: protocol.Answer{ID: m.ID}, code: m.Code}
	case *protocol.LostEvent:
		if h := p.holding; h != nil && h.number == m.Hold && !h.orphaned && h.ended == "" {
			h.ended = m.Reason
		}
	case *protocol.LeaseEvent:
		if h := p.holding; h != nil && !h.orphaned {
			h.deadline = max(h.deadline, m.DeadlineNS)
		}
	}
	return &plainAnswer{}
}

// isReset reports whether an error is the end of a connection whose other end was killed.
func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.ErrUnexpectedEOF)
}

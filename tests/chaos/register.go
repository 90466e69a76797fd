package main

import (
	"bufio"
	"encoding/json"
	"net"
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/tests/history"
)

// A register is the resource that the locks guard. For each lock it has a value, which is written
// with a fencing token; it refuses a write whose token is smaller than the largest one so far.
// Workers write to it over a Unix socket, one JSON object per line.
type register struct {
	listener net.Listener
	log      *history.Recorder
	wg       sync.WaitGroup

	mu     sync.Mutex // guards what follows
	values map[string]written
	conns  map[net.Conn]bool // nil: closed
}

// written is the last accepted write.
type written struct {
	Token uint64
	Value string
}

// A writeRequest is a request of a worker. Its answer is a writeAnswer.
type writeRequest struct {
	Lock  string `json:"lock"`
	Token uint64 `json:"token"`
	Value string `json:"value"`
}

type writeAnswer struct {
	Refused   bool   `json:"refused"`
	PrevToken uint64 `json:"ptoken"`
	PrevValue string `json:"pvalue"`
}

func newRegister(socket string, log *history.Recorder) (*register, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	r := &register{listener: listener, log: log, values: map[string]written{}, conns: map[net.Conn]bool{}}
	r.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.serve(conn) })
		}
	})
	return r, nil
}

func (r *register) serve(conn net.Conn) {
	defer conn.Close()
	r.mu.Lock()
	closed := r.conns == nil
	if !closed {
		r.conns[conn] = true
	}
	r.mu.Unlock()
	if closed {
		return
	}
	in, out := json.NewDecoder(bufio.NewReader(conn)), json.NewEncoder(conn)
	for {
		var w writeRequest
		if in.Decode(&w) != nil || out.Encode(r.write(w)) != nil {
			r.mu.Lock()
			delete(r.conns, conn)
			r.mu.Unlock()
			return
		}
	}
}

// write executes a write and records it, because the worker may be killed before it does.
func (r *register) write(w writeRequest) writeAnswer {
	before := protocol.Now()
	r.mu.Lock()
	last := r.values[w.Lock]
	done := writeAnswer{Refused: w.Token < last.Token, PrevToken: last.Token, PrevValue: last.Value}
	if !done.Refused {
		r.values[w.Lock] = written{w.Token, w.Value}
	}
	r.mu.Unlock()
	r.log.Write(history.Event{
		Kind: history.Applied, Before: before, At: protocol.Now(), Lock: w.Lock, Token: w.Token, Value: w.Value,
		Refused: done.Refused, PrevToken: done.PrevToken, PrevValue: done.PrevValue,
	})
	return done
}

func (r *register) close() {
	r.listener.Close()
	r.mu.Lock()
	for conn := range r.conns {
		conn.Close()
	}
	r.conns = nil
	r.mu.Unlock()
	r.wg.Wait()
}

package store

import (
	"io"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// While Redis is away, questions of people do not fill the memory.
func TestQueriesThatWaitAreBounded(t *testing.T) {
	c := &commands{wake: make(chan struct{}, 1)}
	failed := make(chan error, 1)
	ask := func() { c.ask(&query{done: func(_ []wire.Reply, err error) { failed <- err }}) }
	for range maxQueries {
		ask()
	}
	if n := c.queries.len(); n != maxQueries || len(failed) != 0 {
		t.Fatalf("%d queries wait", n)
	}
	ask()
	if n := c.queries.len(); n != maxQueries {
		t.Fatalf("%d queries wait", n)
	}
	if err := <-failed; !strings.Contains(err.Error(), "too many questions") {
		t.Error(err)
	}
}

// Operations of locks that wait are sent before questions of people.
func TestQueriesWaitForOperations(t *testing.T) {
	for _, waits := range []bool{true, false} {
		c := &commands{wake: make(chan struct{}, 1)}
		p := &pipeline{readyConn: &readyConn{}, commands: c, out: rawio.NewWriter(&c.mu, io.Discard, nil)}
		c.queries.push(&query{commands: [][]string{{"ping"}}})
		if waits {
			c.others.push(redisop.Op{})
		}
		if c.pumpQueries(p); (c.queries.len() > 0) != waits {
			t.Errorf("an operation waits: %v; %d queries wait", waits, c.queries.len())
		}
	}
}

// The question which master has which slot does not wait on a connection: it can be asked elsewhere.
func TestQueryAtOnceDoesNotWait(t *testing.T) {
	for _, waits := range []bool{true, false} {
		c := &commands{wake: make(chan struct{}, 1)}
		p := &pipeline{readyConn: &readyConn{}, commands: c, out: rawio.NewWriter(&c.mu, io.Discard, nil)}
		c.pipe = p
		p.minRTT, p.liveness = localRTT, waiting
		if waits {
			c.others.push(redisop.Op{})
		}
		sent := c.askAtOnce(&query{commands: [][]string{{"cluster", "nodes"}}})
		if sent == waits || c.queries.len() != 0 || (p.queryCalls == 1) == waits {
			t.Errorf("an operation waits: %v; sent: %v, %d commands are in flight, %d queries wait", waits, sent, p.queryCalls, c.queries.len())
		}
	}
}

// Questions of people take a bounded part of the connection.
func TestQueriesInFlightAreBounded(t *testing.T) {
	c := &commands{wake: make(chan struct{}, 1)}
	p := &pipeline{readyConn: &readyConn{}, commands: c, out: rawio.NewWriter(&c.mu, io.Discard, nil)}
	for range maxQueryCalls + 10 {
		c.queries.push(&query{commands: [][]string{{"ping"}}})
	}
	c.pumpQueries(p)
	if p.queryCalls != maxQueryCalls || c.queries.len() != 10 {
		t.Errorf("%d commands are in flight, %d queries wait", p.queryCalls, c.queries.len())
	}
}

package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// While Redis is away, questions of people do not fill the memory.
func TestQueriesThatWaitAreBounded(t *testing.T) {
	m := New(Config{})
	for range maxQueries {
		if why := m.Ask(1, &Query{}); why != "" {
			t.Fatal(why)
		}
	}
	if why := m.Ask(1, &Query{}); !strings.Contains(why, "too many questions") || m.queries.len() != maxQueries {
		t.Errorf("%q; %d queries wait", why, m.queries.len())
	}
}

// Operations of locks that wait are sent before questions of people. The question which master has which slot does not
// wait on a connection: it can be asked elsewhere.
func TestQueriesWaitForOperations(t *testing.T) {
	nodes := &Query{Commands: [][]string{{"cluster", "nodes"}}}
	for _, waits := range []bool{true, false} {
		d := drive(t)
		d.minRTT = d.cfg.Batches.NearRTT
		if waits {
			for i := range d.cfg.Batches.NearCalls + 1 {
				d.do(takeOp(fmt.Sprint(i), 1))
			}
		}
		if sent := d.AskAtOnce(d.now, nodes); sent == waits || (d.queryCalls == 1) == waits || d.queries.len() != 0 {
			t.Errorf("an operation waits: %v; sent at once: %v", waits, sent)
		}
		d.Ask(d.now, &Query{Commands: [][]string{{"ping"}}})
		if (d.queries.len() > 0) != waits {
			t.Errorf("an operation waits: %v; %d queries wait", waits, d.queries.len())
		}
	}
}

// Questions of people take a bounded part of the connection.
func TestQueriesInFlightAreBounded(t *testing.T) {
	d := drive(t)
	for range maxQueryCalls + 10 {
		d.Ask(d.now, &Query{Commands: [][]string{{"ping"}}})
	}
	if d.queryCalls != maxQueryCalls || d.queries.len() != 10 {
		t.Errorf("%d commands are in flight, %d queries wait", d.queryCalls, d.queries.len())
	}
}

// A query that was not sent in time is not sent.
func TestQueryExpires(t *testing.T) {
	m := New(Config{Keys: wire.NewKeyspace(""), UUID: ourUUID, Timeout: time.Second, Batches: DefaultBatches})
	q := &Query{Commands: [][]string{{"ping"}}, Latest: 10}
	m.Ask(5, q)
	m.Up(11, &Greeting{})
	if expired := m.TakeExpired(); len(expired) != 1 || expired[0] != q || m.HasBytes() {
		t.Errorf("%d queries expired", len(expired))
	}
}

// A script of a query that Redis does not know is loaded, or sent as a text if the user may not load it.
func TestScriptOfAQueryIsTaught(t *testing.T) {
	script := wire.NewScript("return 1")
	for _, tt := range []struct {
		name    string
		answers []string
		want    []string
	}{
		{"it is known", []string{":7\r\n"}, []string{"evalsha"}},
		{"it is loaded", []string{"-NOSCRIPT x\r\n", "+OK\r\n:7\r\n"}, []string{"evalsha", "script", "evalsha"}},
		{"it may not be loaded", []string{"-NOSCRIPT x\r\n", "-NOPERM x\r\n-NOSCRIPT x\r\n", ":7\r\n"}, []string{"evalsha", "script", "evalsha", "eval"}},
	} {
		d := drive(t)
		q := &Query{Script: script, Args: func(*wire.Params) []string { return []string{"0"} }}
		d.Ask(d.now, q)
		var got []string
		for _, a := range tt.answers {
			for _, c := range d.commands() {
				got = append(got, strings.Fields(c)[0])
			}
			if err := d.answer(a); err != nil {
				t.Fatal(err)
			}
			d.Rest(d.now)
		}
		deliveries := d.TakeDeliveries(nil)
		if !slices.Equal(got, tt.want) || len(deliveries) != 1 || deliveries[0].Query != q || len(q.Replied()) != 1 || q.Replied()[0].Num != 7 {
			t.Errorf("%s: %q, %+v", tt.name, got, deliveries)
		}
	}
}

// A message to this sidecar that is no question asks nothing.
func TestQuestionsThatAreNone(t *testing.T) {
	d := drive(t)
	for _, text := range []string{"", "ask", "ask ", "ask " + ourUUID, "ask x body", "ask {" + ourUUID + "} body", "recall a", "answe"} {
		if err := d.answer(fmt.Sprintf(">3\r\n$7\r\nmessage\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(d.ownChannel), d.ownChannel, len(text), text)); err != nil {
			t.Fatal(err)
		}
		_ = d.Rest(d.now)
		for _, x := range d.TakeDeliveries(nil) {
			if x.Kind == Question || x.Kind == Answer {
				t.Errorf("%q is read as a question from %q: %q", text, x.From, x.Text)
			}
		}
	}
}

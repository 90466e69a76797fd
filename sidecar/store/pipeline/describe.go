package pipeline

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A Command is one command in flight, for a model of a server.
type Command struct {
	Name     string       // run, load, ping, subscribe, unsubscribe, query, probe, permissions, wait, asking, time, config or info
	From     int64        // where in the stream of the connection it begins, bytes
	Script   string       // its digest; "": it runs and loads none
	ByText   bool         // of a run: the script is taught
	Ops      []redisop.Op // of a run, in the order in which the script executes them
	Channels []string     // of subscribe and unsubscribe
}

// commandNames are the names of the kinds of calls.
var commandNames = [...]string{
	running: "run", loading: "load", pinging: "ping", subscribing: "subscribe", querying: "query", probing: "probe",
	permitting: "permissions", waiting: "wait", asking: "asking", timing: "time", reading: "config", informing: "info",
}

// Commands returns the commands in flight, oldest first.
func (m *Machine) Commands() []Command {
	commands := make([]Command, 0, m.calls.len())
	at := 0
	for _, cl := range m.calls.head(m.calls.len()) {
		c := Command{Name: commandNames[cl.kind], From: cl.from, ByText: cl.byText}
		if cl.script != nil {
			c.Script = cl.script.SHA
		}
		if cl.ops > 0 {
			c.Ops = slices.Clone(m.flight.head(at + cl.ops)[at:])
			at += cl.ops
		}
		if r := cl.request; r != nil {
			c.Channels = r.channels
			if r.unsubscribe {
				c.Name = "unsubscribe"
			}
		}
		commands = append(commands, c)
	}
	return commands
}

// Made is how many bytes of commands were made on the present connection.
func (m *Machine) Made() int64 { return m.made }

// Describe appends what decides how the Machine goes on, but for times and positions: Machines of which it is equal do
// the same from then on.
func (m *Machine) Describe(dst []byte) []byte {
	ops := func(name string, ops []redisop.Op) {
		dst = fmt.Appendf(dst, " %s[", name)
		for i := range ops {
			dst = fmt.Appendf(dst, "%d:%s:%d ", ops[i].Kind, ops[i].Name, ops[i].HoldID)
		}
		dst = append(dst, ']')
	}
	lane := func(name string, s *lanes) {
		for _, l := range s.turns.head(s.turns.len()) {
			ops(name, l.ops.head(l.ops.len()))
		}
	}
	lane("renewals", &m.waiting.renewals)
	lane("deletes", &m.waiting.deletes)
	ops("others", m.waiting.others.head(m.waiting.others.len()))
	ops("asking", m.asking.head(m.asking.len()))
	dst = fmt.Appendf(dst, " up=%t cut=%t drains=%t live=%d near=%t finishing=%t queries=%d", m.isUp, m.isCut, m.drains != "", m.liveness,
		m.minRTT <= m.cfg.Batches.NearRTT, m.isFinishing, m.queries.len())
	for _, cl := range m.calls.head(m.calls.len()) {
		dst = fmt.Appendf(dst, " %s/%d/%t/%t/%t/%t", commandNames[cl.kind], cl.ops, cl.byText, cl.isAsking, cl.again, cl.isOwed)
		if cl.request != nil {
			dst = fmt.Appendf(dst, "%t%v%d", cl.request.unsubscribe, cl.request.channels, cl.request.confirmed)
		}
	}
	ops("flight", m.flight.head(m.flight.len()))
	for i := range m.results {
		dst = fmt.Appendf(dst, " %s%d", m.results[i].Name, m.results[i].Outcome)
	}
	d := &m.durability
	dst = fmt.Appendf(dst, " messages=%d owed=%t wait=%t why=%t withholds=%t withheld=%d", len(m.messages), d.owed, d.inFlight, d.why != "", d.withholds, len(d.withheld))
	for _, later := range [][]Delivery{d.withheld, m.deliveries} {
		for i := range later {
			dst = fmt.Appendf(dst, "/%d%v", later[i].Kind, later[i].Names)
			for j := range later[i].Results {
				dst = fmt.Appendf(dst, " %s%d", later[i].Results[j].Name, later[i].Results[j].Outcome)
			}
		}
		dst = append(dst, ';')
	}
	dst = fmt.Appendf(dst, " loading=%d loads=%t lifts=%t again=%t", len(m.isLoading), m.Loads, m.encoder.Lifts, m.asksAgain)
	return m.channels.describe(dst)
}

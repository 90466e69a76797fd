package store

import (
	"slices"
	"strings"
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A query is a few commands for people and not for locks: which hosts there are, and questions
// to them. Its commands are sent on the connection of the scripts when nothing waits there.
type query struct {
	commands [][]string
	encode   func(p *pipeline) [][]string // makes commands when they are sent; nil: they are made
	latest   int64                        // it is not sent after this time, and fails; 0: no limit
	replies  []wire.Reply                 // so far
	done     func(replies []wire.Reply, err error)
}

const (
	// maxQueries bounds the queries that wait to be sent. Further ones fail.
	maxQueries = 256

	// maxQueryCalls bounds the commands of queries that are in flight.
	maxQueryCalls = 64
)

// ask sends a query. done is called once, from a goroutine of the store, and must not block; err
// is a sentence for people.
func (c *commands) ask(q *query) {
	c.mu.Lock()
	var err error
	switch {
	case c.closed || c.closing:
		err = wire.Unavailable("the sidecar is stopping")
	case c.queries.len() >= maxQueries:
		err = wire.Unavailable("too many questions to Redis wait at this moment")
	default:
		c.queries.push(q)
		if c.pipe == nil {
			c.nudge() // run fails it
		} else {
			c.pump(c.pipe)
		}
	}
	c.mu.Unlock()
	if err != nil {
		go q.done(nil, err) // the caller may hold a mutex that done locks
	}
}

// askAtOnce sends a query if nothing waits on the connection, and reports whether it did. Otherwise done is
// not called.
func (c *commands) askAtOnce(q *query) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pipe
	if p == nil || c.closing || c.hasQueued() || c.queries.len() > 0 || !p.canSubscribe() || p.queryCalls >= maxQueryCalls {
		return false
	}
	c.queries.push(q)
	c.pump(p)
	return true
}

// ask sends commands that have one key or channel each, as their first argument: in a Cluster, each to
// the node that has its slot, those of one node in their order. A command whose key is on its way to another
// node is sent there. done gets one reply for each command; it
// is called as that of a query is.
func (s *Store) ask(list [][]string, done func(replies []wire.Reply, err error)) {
	parts := make(map[*commands][]int) // the indices of the commands, by connection
	for i, command := range list {
		c := s.ofKey(command[1])
		if c == nil {
			go done(nil, wire.Unavailable("no node of the Cluster is known yet"))
			return
		}
		parts[c] = append(parts[c], i)
	}
	var mu sync.Mutex // guards what follows
	replies := make([]wire.Reply, len(list))
	var failed error
	left := len(parts)
	for c, part := range parts {
		q := &query{done: func(got []wire.Reply, err error) {
			mu.Lock()
			for i := range got {
				replies[part[i]] = got[i]
			}
			if err != nil {
				failed = err
			}
			left--
			isLast := left == 0
			mu.Unlock()
			switch {
			case !isLast:
			case failed != nil:
				done(nil, failed)
			default:
				s.askThere(0, list, replies, done)
			}
		}}
		for _, i := range part {
			q.commands = append(q.commands, list[i])
		}
		c.ask(q)
	}
}

// askThere sends the commands, from an index on, that a node answered with ASK to the nodes that have their keys
// already. Each is sent once more: nodes may name each other.
func (s *Store) askThere(from int, list [][]string, replies []wire.Reply, done func(replies []wire.Reply, err error)) {
	for i := from; i < len(list); i++ {
		to := s.asked(list[i][1], replies[i])
		if to == nil {
			continue
		}
		to.ask(&query{commands: [][]string{{"asking"}, list[i]}, done: func(got []wire.Reply, err error) {
			if err != nil {
				done(nil, err)
				return
			}
			replies[i] = got[1]
			s.askThere(i+1, list, replies, done)
		}})
		return
	}
	done(replies, nil)
}

// asked returns the connection to the node that the answer ASK about a key names; nil: it is none, or there is no
// such node.
func (s *Store) asked(key string, answer wire.Reply) *commands {
	if s.cluster == nil || answer.Kind != '-' || wire.Code(answer.Text) != "ASK" {
		return nil
	}
	from := ""
	if c := s.ofKey(key); c != nil {
		from = c.dial.Address
	}
	r, ok := parseRedirect(answer.Text, from)
	if !ok {
		return nil
	}
	return s.cluster.shardOf(r)
}

// runScript runs a script for a lock, as commands.runScript does. If the key is on its way to another node, that
// one runs it.
func (s *Store) runScript(name string, sc *wire.Script, latest int64, args func(p *pipeline) []string, done func(answer wire.Reply, err error)) {
	key := s.dial.Keys.Key(name)
	c := s.ofKey(key)
	if c == nil {
		go done(wire.Reply{}, wire.Unavailable("no node of the Cluster is known yet"))
		return
	}
	c.runScript(sc, latest, false, args, func(answer wire.Reply, err error) {
		if to := s.asked(key, answer); err == nil && to != nil {
			to.runScript(sc, latest, true, args, done)
			return
		}
		done(answer, err)
	})
}

// pumpQueries queues queries on the pipeline. The caller holds mu, and flushes.
func (c *commands) pumpQueries(p *pipeline) {
	for c.queries.len() > 0 && p.canSubscribe() && p.queryCalls < maxQueryCalls && !c.hasQueued() {
		q := *c.queries.front()
		c.queries.drop(1)
		if q.latest != 0 && protocol.Now() > q.latest {
			go q.done(nil, wire.Unavailable("it was not sent to Redis in time")) // the caller holds mu
			continue
		}
		if q.encode != nil {
			q.commands = q.encode(p)
		}
		for _, command := range q.commands {
			p.register(protocol.Now(), call{form: querying, query: q})
			p.queryCalls++
			p.out.Queued = wire.AppendArray(p.out.Queued, len(command))
			for _, arg := range command {
				p.out.Queued = wire.AppendString(p.out.Queued, arg)
			}
		}
	}
}

// runScript runs a script as a query, behind ASKING if isAsking. Redis is sent one command, or a second time with the text of
// the script, if it does not know that: it has executed nothing then. args makes the arguments after
// the script's name; mu is held. latest: as in query. done gets the reply, which may be an error of
// Redis.
func (c *commands) runScript(s *wire.Script, latest int64, isAsking bool, args func(p *pipeline) []string, done func(answer wire.Reply, err error)) {
	run := func(p *pipeline, before [][]string, command ...string) [][]string {
		if isAsking {
			before = append(before, []string{"asking"})
		}
		lifts := p.encoder.Lifts
		p.encoder.Lifts = lifts || isAsking // as in queueCommand
		command = append(command, args(p)...)
		p.encoder.Lifts = lifts
		return append(before, command)
	}
	last := func(replies []wire.Reply, err error) {
		if err != nil {
			done(wire.Reply{}, err)
			return
		}
		done(replies[len(replies)-1], nil)
	}
	c.ask(&query{latest: latest, encode: func(p *pipeline) [][]string { return run(p, nil, "evalsha", s.SHA) }, done: func(replies []wire.Reply, err error) {
		if end := len(replies) - 1; err != nil || replies[end].Kind != '-' || wire.Code(replies[end].Text) != "NOSCRIPT" {
			last(replies, err)
			return
		}
		c.ask(&query{latest: latest, encode: func(p *pipeline) [][]string {
			return run(p, [][]string{{"script", "load", s.Text}}, "evalsha", s.SHA)
		}, done: func(replies []wire.Reply, err error) {
			if err != nil || replies[0].Kind != '-' {
				last(replies, err)
				return
			}
			// A user may have the permission to run a text, and none to load it.
			c.ask(&query{latest: latest, encode: func(p *pipeline) [][]string { return run(p, nil, "eval", s.Text) }, done: last})
		}})
	}})
}

// drainQueries removes the queries that wait to be sent.
func (c *commands) drainQueries() []*query {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queries.pop(nil, c.queries.len())
}

// fail ends queries that Redis has not answered.
func fail(queries []*query, why string) {
	for _, q := range queries {
		q.done(nil, wire.Unavailable(why))
	}
}

// onQueryReply notes the reply to one command of the oldest call, which is a query's. It returns
// the query when it is complete. The caller holds mu.
func (p *pipeline) onQueryReply(answer wire.Reply) (complete *query) {
	q := p.calls.front().query
	p.queryCalls--
	p.onAnswered()
	if answer.Kind == '-' {
		p.noteRedirect(answer.Text)
	}
	answer.List = slices.Clone(answer.List)
	if q.replies = append(q.replies, answer); len(q.replies) == len(q.commands) {
		return q
	}
	return nil
}

// unansweredQueries returns the queries that are in flight. The caller holds mu.
func (p *pipeline) unansweredQueries() (queries []*query) {
	for _, cl := range p.calls.head(p.calls.len()) {
		if q := cl.query; q != nil && (len(queries) == 0 || queries[len(queries)-1] != q) {
			queries = append(queries, q)
		}
	}
	return queries
}

// slotIsMoving says that no node of a Cluster has all that a question is about.
const slotIsMoving = "its slot moves to another node of the Cluster at this moment; try again when that has ended (CLUSTER NODES shows the slot in brackets)"

// isMoving reports whether a node refused a command because the slot of its keys is on its way.
func isMoving(text string) bool {
	word := wire.Code(text)
	return word == "ASK" || word == "TRYAGAIN" || strings.Contains(text, "non local key")
}

// refusal returns the first error among replies, or nil.
func refusal(replies []wire.Reply) error {
	for _, r := range replies {
		if r.Kind == '-' && isMoving(r.Text) {
			return wire.Unavailable(slotIsMoving)
		}
		if r.Kind == '-' {
			return wire.Unavailable("Redis refused it: " + wire.Clip(r.Text))
		}
	}
	return nil
}

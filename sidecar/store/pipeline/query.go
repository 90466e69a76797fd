package pipeline

import (
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

const (
	// maxQueries bounds the queries that wait to be sent. Further ones fail.
	maxQueries = 256

	// maxQueryCalls bounds the commands of queries that are in flight.
	maxQueryCalls = 64
)

// sendQueries makes the commands of queries.
func (m *Machine) sendQueries(now int64) {
	for m.queries.len() > 0 && m.accepts() && m.queryCalls < maxQueryCalls && !m.hasQueued() {
		q := *m.queries.front()
		m.queries.drop(1)
		if q.Latest != 0 && now > q.Latest {
			m.expired = append(m.expired, q)
			continue
		}
		m.sendQuery(now, q)
	}
}

func (m *Machine) sendQuery(now int64, q *Query) {
	send := func(words ...string) {
		m.register(now, call{kind: querying, query: q})
		m.queryCalls++
		q.owed++
		m.command(words...)
	}
	for _, words := range q.Commands {
		send(words...)
	}
	if q.Script == nil {
		return
	}
	if q.stage == byLoad {
		send("script", "load", q.Script.Text)
	}
	if q.IsAsking {
		send("asking")
	}
	lifts := m.encoder.Lifts
	m.encoder.Lifts = lifts || q.IsAsking // as in runScript
	args := q.Args(&wire.Params{Encoder: &m.encoder, Birth: m.ID.Above(now)})
	m.encoder.Lifts = lifts
	if q.stage == byText {
		send(append([]string{"eval", q.Script.Text}, args...)...)
	} else {
		send(append([]string{"evalsha", q.Script.SHA}, args...)...)
	}
}

// onQuery notes the reply to one command of a query. Redis is sent a script once; a second time with its text, if it
// does not know that: it has executed nothing then. A user may have the permission to run a text, and none to load it.
func (m *Machine) onQuery(answer *wire.Reply) {
	q := m.calls.front().query
	m.queryCalls--
	m.onAnswered()
	if answer.Kind == '-' {
		m.noteRedirect(answer.Text)
	}
	q.replies = append(q.replies, wire.Reply{Kind: answer.Kind, Num: answer.Num, Text: answer.Text, List: slices.Clone(answer.List)})
	if q.owed--; q.owed > 0 {
		return
	}
	if q.Script != nil {
		first, last := &q.replies[0], &q.replies[len(q.replies)-1]
		switch {
		case q.stage == byDigest && last.Kind == '-' && wire.Code(last.Text) == "NOSCRIPT":
			q.stage = byLoad
		case q.stage == byLoad && first.Kind == '-':
			q.stage = byText
		default:
			q.replies = q.replies[len(q.replies)-1:]
			m.deliver(Delivery{Kind: Answered, Query: q})
			return
		}
		q.replies = nil
		m.queries.push(q)
		return
	}
	m.deliver(Delivery{Kind: Answered, Query: q})
}

// unanswered returns the queries that are in flight.
func (m *Machine) unanswered() (queries []*Query) {
	for _, cl := range m.calls.head(m.calls.len()) {
		if q := cl.query; q != nil && (len(queries) == 0 || queries[len(queries)-1] != q) {
			queries = append(queries, q)
		}
	}
	return queries
}

// Replied are the replies to an Answered query: of a script, its last one.
func (q *Query) Replied() []wire.Reply { return q.replies }

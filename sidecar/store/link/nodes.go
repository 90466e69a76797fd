package link

import (
	"context"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A node of a Cluster is asked which one has which slot by CLUSTER NODES.

// topologyTimeout bounds the question to one node.
const TopologyTimeout = time.Second

// AskNodes asks the server on the connection to it. isAnswered is false if there is none, if the question would have to
// wait there, or if its answer is longer than what is kept.
func (l *Link) AskNodes(ctx context.Context) (text string, isAnswered bool, err error) {
	type result struct {
		answer wire.Reply
		err    error
	}
	results := make(chan result, 1)
	q := &pipeline.Query{Commands: [][]string{{"cluster", "nodes"}}, Done: func(replies []wire.Reply, err error) {
		if err != nil {
			results <- result{err: err}
			return
		}
		results <- result{answer: replies[0]}
	}}
	if !l.askAtOnce(q) {
		return "", false, nil
	}
	select {
	case r := <-results:
		switch {
		case r.err != nil:
			return "", true, r.err
		case r.answer.Kind == '-':
			return "", true, l.server.Load().nodesError(r.answer.Text)
		case r.answer.Kind != '$':
			return "", false, nil
		}
		return r.answer.Text, true, nil
	case <-ctx.Done():
		return "", true, wire.Unavailablef("Redis at %s does not answer", l.dial.Address)
	}
}

// AskNodes asks a node on a connection of its own. The end of ctx ends the connection.
func (d *Dialer) AskNodes(ctx context.Context) (text string, err error) {
	dialing, cancel := context.WithTimeout(ctx, TopologyTimeout)
	defer cancel()
	l, err := d.dial(dialing, &lostAddresses{})
	if err != nil {
		return "", err
	}
	defer l.close()
	defer context.AfterFunc(ctx, func() { l.wire.Close() })()
	_ = l.wire.SetDeadline(time.Now().Add(TopologyTimeout))
	text, err = l.client.ClusterNodes(ctx).Result()
	switch {
	case err == nil:
		return text, nil
	case isReply(err):
		return "", d.nodesError(err.Error())
	}
	return "", d.handshakeError(err)
}

// nodesError is for a server that answered the question with an error.
func (d *Dialer) nodesError(text string) error {
	switch {
	case strings.Contains(text, "cluster support disabled"):
		return wire.Unavailablef("Redis at %s is no node of a Cluster; write redis:// instead of redis+cluster://", d.Address)
	case wire.Code(text) == "NOPERM":
		return wire.Unavailablef("Redis at %s does not permit this user to ask which master has which slot; let its ACL have +cluster|nodes (%s)", d.Address, wire.Clip(text))
	}
	return d.handshakeError(refusedReply(text))
}

// refusedReply is an error that Redis answered: a redis.Error, as those of go-redis are.
type refusedReply string

func (e refusedReply) Error() string { return string(e) }
func (refusedReply) RedisError()     {}

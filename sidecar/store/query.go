package store

import (
	"strings"
	"sync"

	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// ask sends commands that have one key or channel each, as their first argument: in a Cluster, each to
// the node that has its slot, those of one node in their order. A command whose key is on its way to another
// node is sent there. done gets one reply for each command; it
// is called as that of a query is.
func (s *Store) ask(list [][]string, done func(replies []wire.Reply, err error)) {
	parts := make(map[*shard][]int) // the indices of the commands, by connection
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
		q := &pipeline.Query{Done: func(got []wire.Reply, err error) {
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
			q.Commands = append(q.Commands, list[i])
		}
		c.link.ask(q)
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
		to.link.ask(&pipeline.Query{Commands: [][]string{{"asking"}, list[i]}, Done: func(got []wire.Reply, err error) {
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
func (s *Store) asked(key string, answer wire.Reply) *shard {
	if s.masters == nil || answer.Kind != '-' || wire.Code(answer.Text) != "ASK" {
		return nil
	}
	from := ""
	if c := s.ofKey(key); c != nil {
		from = c.link.dial.Address
	}
	r, ok := wire.ParseRedirect(answer.Text, from)
	if !ok {
		return nil
	}
	return s.masters.shardOf(r)
}

// runScript runs a script for a lock as a query. args makes the arguments after the script's name. latest: as in
// pipeline.Query. If the key is on its way to another node, that one runs it. done gets the reply, which may be an error of
// Redis.
func (s *Store) runScript(name string, sc *wire.Script, latest int64, args func(p *pipeline.Params) []string, done func(answer wire.Reply, err error)) {
	key := s.dial.Keys.Key(name)
	c := s.ofKey(key)
	if c == nil {
		go done(wire.Reply{}, wire.Unavailable("no node of the Cluster is known yet"))
		return
	}
	finish := func(replies []wire.Reply, err error) {
		if err != nil {
			done(wire.Reply{}, err)
			return
		}
		done(replies[0], nil)
	}
	c.link.ask(&pipeline.Query{Script: sc, Args: args, Latest: latest, Done: func(replies []wire.Reply, err error) {
		if err == nil {
			if to := s.asked(key, replies[0]); to != nil {
				to.link.ask(&pipeline.Query{Script: sc, Args: args, Latest: latest, IsAsking: true, Done: finish})
				return
			}
		}
		finish(replies, err)
	}})
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

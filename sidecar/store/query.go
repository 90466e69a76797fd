package store

import (
	"sync"

	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// ask sends commands that have one key or channel each, as their first argument: in a Cluster, each to
// the node that has its slot, those of one node in their order. A command whose key is on its way to another
// node is sent there. done gets one reply for each command; it
// is called as that of a query is.
func (s *Store) ask(list lookup.Commands, done func(replies []wire.Reply, err error)) {
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
		c.link.Ask(q)
	}
}

// askThere sends the commands, from an index on, that a node answered with ASK to the nodes that have their keys
// already. Each is sent once more: nodes may name each other.
func (s *Store) askThere(from int, list lookup.Commands, replies []wire.Reply, done func(replies []wire.Reply, err error)) {
	for i := from; i < len(list); i++ {
		to := s.asked(list[i][1], replies[i])
		if to == nil {
			continue
		}
		to.link.Ask(&pipeline.Query{Commands: [][]string{{"asking"}, list[i]}, Done: func(got []wire.Reply, err error) {
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
		from = c.dial.Address
	}
	r, ok := wire.ParseRedirect(answer.Text, from)
	if !ok {
		return nil
	}
	return s.masters.shardOf(r)
}

// runScript runs a script for a lock as a query. If the key is on its way to another node, that one runs it. done gets the
// reply, which may be an error of Redis.
func (s *Store) runScript(r lookup.Run, done func(answer wire.Reply, err error)) {
	key := s.dial.Keys.Key(r.Name)
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
	c.link.Ask(&pipeline.Query{Script: r.Script, Args: r.Args, Latest: r.Latest, Done: func(replies []wire.Reply, err error) {
		if err == nil {
			if to := s.asked(key, replies[0]); to != nil {
				to.link.Ask(&pipeline.Query{Script: r.Script, Args: r.Args, Latest: r.Latest, IsAsking: true, Done: finish})
				return
			}
		}
		finish(replies, err)
	}})
}

package sidecar

import (
	"sync/atomic"

	"github.com/locksidecar/locksidecar/sidecar/endpoint"
)

// Trouble is why clients cannot connect, or why a restart would end their locks.
type Trouble struct {
	Kind TroubleKind
	Why  string // "": it is not so
}

// TroubleKind is a kind of trouble of the daemon, as the label of its metric has it.
type TroubleKind string

// The kinds, in the order of their importance.
const (
	SocketGone TroubleKind = "socket"     // clients cannot connect
	StateGone  TroubleKind = "state_gone" // a successor would not find the state
	StateFull  TroubleKind = "state_full" // the state lacks locks or clients
)

// troubles knows the trouble of the daemon.
type troubles struct {
	endpoint *endpoint.Endpoint

	misplaced  atomic.Pointer[string] // why a successor would not find the state; "": it would
	incomplete atomic.Pointer[string] // what the state file does not have, and what to do; "": it has every lock and client
}

func (t *troubles) init(e *endpoint.Endpoint) {
	t.endpoint = e
	t.misplaced.Store(new(string))
	t.incomplete.Store(new(string))
}

// all returns all kinds of trouble. restart: a restart by systemd helps.
func (t *troubles) all() (all [3]Trouble, restart bool) {
	why, restart := t.endpoint.Unreachable()
	return [...]Trouble{{SocketGone, why}, {StateGone, *t.misplaced.Load()}, {StateFull, *t.incomplete.Load()}}, restart
}

// first returns the sentence for the first trouble; "": there is none. restart: a restart by systemd helps.
func (t *troubles) first() (why string, restart bool) {
	all, restart := t.all()
	for _, t := range all {
		if t.Why != "" {
			return t.Why, restart && t.Kind == SocketGone
		}
	}
	return "", false
}

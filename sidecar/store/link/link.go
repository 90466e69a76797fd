// Package link is the way to one server: the socket, TLS, the greeting, and the goroutine that reads. A Link drives a
// Machine under one mutex, makes its connection again and again, and asks Sentinels where the server is.
package link

import (
	"context"
	"math"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/pipeline"
	"github.com/locksidecar/locksidecar/sidecar/store/sentinel"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// New returns a link that Run connects.
func New(cfg Config, d *Dialer) *Link {
	l := &Link{
		cfg:    cfg,
		dial:   d,
		login:  d,
		wake:   make(chan struct{}, 1),
		dialed: make(chan dialed),
		hurry:  make(chan struct{}, 1),
		done:   make(chan struct{}),
		why:    d.NotYet(),
	}
	held := &l.behindMu // no other goroutine has the link yet
	held.link, held.armed = l, math.MaxInt64
	held.m = pipeline.New(pipeline.Config{
		UUID: cfg.UUID, Keys: d.Keys, IsNode: d.IsNode, Replicas: cfg.Replicas,
		TokenExpiry: cfg.TokenExpiry, Timeout: d.timeout, ProbeInterval: cfg.ProbeInterval,
		Batches: pipeline.DefaultBatches,
	})
	if l.isIdle.Store(d.IsNode); d.IsNode {
		held.m.ProbeLock("")
	}
	l.server.Store(d)
	if d.group != nil {
		l.sentinels = newSentinels(d.group, cfg.Log)
		l.sentinels.onMoved, l.sentinels.onFailover, l.sentinels.onLost = l.onMoved, l.onFailover, cfg.OnSentinels
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.last = cfg.Last
	return l
}

// Do sends operations as soon as the connection is free for them. False: it is closed, and they get no result
// here.
func (l *Link) Do(ops []redisop.Op) bool {
	if len(ops) == 0 {
		return true
	}
	held := l.lock()
	defer held.unlock()
	if held.closed {
		return false
	}
	held.m.Do(protocol.Now(), ops)
	held.flush()
	return true
}

// DoAsking sends operations of locks whose keys are here already, although another node of the Cluster
// has their slot. False: it is closed, and they get no result here.
func (l *Link) DoAsking(ops []redisop.Op) bool {
	held := l.lock()
	defer held.unlock()
	if held.closed {
		return false
	}
	held.m.DoAsking(protocol.Now(), ops)
	held.flush()
	return true
}

// Subscribe has the channel of a lock be subscribed.
func (l *Link) Subscribe(name string) {
	held := l.lock()
	held.m.Subscribe(name)
	held.unlock()
	l.nudge()
}

// Unsubscribe ends that.
func (l *Link) Unsubscribe(name string) {
	held := l.lock()
	held.m.Unsubscribe(name)
	held.unlock()
	l.nudge()
}

// Ask sends a query. Its Done is called once, from a goroutine of the store, and must not block; err
// is a sentence for people.
func (l *Link) Ask(q *pipeline.Query) {
	held := l.lock()
	why := "the sidecar is stopping"
	if !held.closed {
		why = held.m.Ask(protocol.Now(), q)
		held.flush()
	}
	held.unlock()
	if why != "" {
		go q.Done(nil, wire.Unavailable(why)) // the caller may hold a mutex that Done locks
	}
}

// askAtOnce sends a query if nothing waits on the connection, and reports whether it did. Otherwise Done is
// not called.
func (l *Link) askAtOnce(q *pipeline.Query) bool {
	held := l.lock()
	defer held.unlock()
	if held.closed || !held.m.AskAtOnce(protocol.Now(), q) {
		return false
	}
	held.flush()
	return true
}

// With gives f the Machine for as long as the call takes, and writes what that has made.
func (l *Link) With(f func(m *pipeline.Machine)) {
	held := l.lock()
	defer held.unlock()
	f(held.m)
	held.flush()
}

// SetIdle notes whether the server has slots. When it gets the first ones, it is connected at once.
func (l *Link) SetIdle(isIdle bool) {
	if l.isIdle.Store(isIdle); !isIdle {
		l.connectNow()
	}
}

// Advance does what is due at a time, at which Redis sent something last.
func (l *Link) Advance(now, lastByteAt int64) {
	held := l.lock()
	defer held.unlock()
	if held.wired != nil {
		held.advance(now, lastByteAt)
		held.flush()
	}
}

// onFailover has nothing done that the server at an address answers from now on; "": all is.
func (l *Link) onFailover(address, why string) {
	if why != "" {
		l.cfg.Log.Warn("a Sentinel fails over the master: what it grants until it is replaced does not count", "reason", why)
	}
	l.With(func(m *pipeline.Machine) { m.Failover(address, why) })
}

// onMoved ends the connection to a server that is no longer the master, and has the master connected at
// once.
func (l *Link) onMoved(address string) {
	held := l.lock()
	held.movedTo = address
	if held.wired != nil {
		held.leave(held.wired, address)
	}
	held.unlock()
	l.connectNow()
}

// leave ends a connection to another server than the master at an address.
func (g *guarded) leave(w *wired, master string) {
	if w.dial.options.Addr != master {
		g.cut(w, wire.Unavailablef("Redis at %s is no longer the master %q: its Sentinels name %s", w.dial.Address, g.link.dial.Address, master))
	}
}

// connectNow ends the pause before the next attempt to connect.
func (l *Link) connectNow() {
	select {
	case l.hurry <- struct{}{}:
	default:
	}
}

// Unsent is how many operations wait to be sent: see Store.Unsent.
func (l *Link) Unsent() int { return int(l.unsentOps.Load()) }

// Trip is how long the last command took that Redis answered; 0: there was none.
func (l *Link) Trip() time.Duration { return time.Duration(l.roundTrip.Load()) }

// At is the way to the server that was connected last; before, to that of the URL.
func (l *Link) At() *Dialer { return l.server.Load() }

// CountSentinels returns how many Sentinels there are, and answer; zero: the URL has none.
func (l *Link) CountSentinels() sentinel.Count {
	if l.sentinels == nil {
		return sentinel.Count{}
	}
	return l.sentinels.counted()
}

// IsSharded reports whether the channels of locks are sharded at the server that is connected.
func (l *Link) IsSharded() bool {
	held := l.lock()
	defer held.unlock()
	return held.wired != nil && held.wired.isSharded
}

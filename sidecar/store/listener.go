package store

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/locktable"
)

const (
	subscribeMax = 100             // channels in one SUBSCRIBE
	listenPing   = 3 * time.Second // silence after which the connection is pinged
)

// listener owns the pub/sub connection. It is made with the first subscription, and closed
// when it fails a check: then all channels are subscribed again, and OnSubscribed follows,
// because messages may have been missed.
//
// Two goroutines serve a connection. run makes it, writes to it and watches over
// it; receive reads it until it ends. They share the state under mu.
type listener struct {
	cfg  Config
	dial *dialer

	wake   chan struct{} // dirty, redo or suspect has changed
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex // guards what follows; never held during I/O or a callback
	want    map[string][]string
	dirty   map[string]struct{} // channels to compare again: wanted against requested
	suspect bool                // the connection may lead to the wrong server
	deaf    string              // why there is no connection, as logged; empty while all is well
	denied  bool                // a denied channel was logged

	// Of the present connection.
	asked map[string]*asked
	sent  []*request // not answered yet, oldest first: Redis answers in order
	redo  []*request // parts of a refused SUBSCRIBE, to be written next
	heard int64      // when the last frame came or, if later, when a request was sent to a connection that owed none
}

// asked is the last request about a channel.
type asked struct {
	by        *request
	subscribe bool
	confirmed bool
}

// request is one command on the pub/sub connection: SUBSCRIBE, UNSUBSCRIBE, or
// PING, which has no channels. Redis confirms channel by channel.
type request struct {
	verb      verb
	channels  []string
	confirmed int
}

type verb uint8

const (
	ping verb = iota
	subscribe
	unsubscribe
)

func newListener(cfg Config, d *dialer) *listener {
	l := &listener{
		cfg:   cfg,
		dial:  d,
		wake:  make(chan struct{}, 1),
		done:  make(chan struct{}),
		want:  make(map[string][]string),
		dirty: make(map[string]struct{}),
		asked: make(map[string]*asked),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

func (l *listener) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *listener) subscribe(name string) {
	ch := l.dial.keys.channel(name)
	l.mu.Lock()
	l.want[ch] = addName(l.want[ch], name)
	l.dirty[ch] = struct{}{}
	l.mu.Unlock()
	l.nudge()
}

func (l *listener) unsubscribe(name string) {
	ch := l.dial.keys.channel(name)
	l.mu.Lock()
	if names := dropName(l.want[ch], name); len(names) > 0 {
		l.want[ch] = names
	} else {
		delete(l.want, ch)
	}
	l.dirty[ch] = struct{}{}
	l.mu.Unlock()
	l.nudge()
}

// addName and dropName make a new list: callbacks may still read the old one.

func addName(names []string, name string) []string {
	return append(dropName(names, name), name)
}

func dropName(names []string, name string) []string {
	var rest []string
	for _, n := range names {
		if n != name {
			rest = append(rest, n)
		}
	}
	return rest
}

// reset makes the connection again: the data is on another server now.
func (l *listener) reset() {
	l.mu.Lock()
	l.suspect = true
	l.mu.Unlock()
	l.nudge()
}

func (l *listener) close() {
	l.cancel()
	<-l.done
}

func (l *listener) run() {
	defer close(l.done)
	defer l.cancel()
	var delay time.Duration
	for {
		if !l.needed() {
			select {
			case <-l.wake:
				continue
			case <-l.ctx.Done():
				return
			}
		}
		if !pause(l.ctx, delay) {
			return
		}
		served, err := l.connection()
		if l.ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		news := l.deaf != err.Error()
		l.deaf = err.Error()
		l.mu.Unlock()
		if news {
			l.cfg.Log.Warn("the subscription does not work; locks that are waited for are polled instead", "reason", err)
		}
		if delay = nextDelay(delay); served >= backoffMax {
			delay = 0
		}
	}
}

// needed reports whether any channel is wanted.
func (l *listener) needed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.want) > 0
}

// connection makes a connection, serves it until it ends, and reports its subscriptions as
// gone. It returns how long it served and why it ended.
func (l *listener) connection() (served time.Duration, err error) {
	l.mu.Lock()
	l.suspect = false // what is dialed from now on is not the old one
	l.mu.Unlock()
	k, err := l.dial.dial(l.ctx)
	if err != nil {
		return 0, err
	}
	defer k.close()
	stop := context.AfterFunc(l.ctx, func() { k.wire.Close() })
	defer stop()
	ctx := context.Background()
	ps := k.client.Subscribe(ctx)
	defer ps.Close()

	k.wire.SetDeadline(time.Now().Add(l.dial.timeout))
	if err := ps.Ping(ctx); err != nil { // greets, too
		return 0, l.dial.handshakeError(err)
	}
	k.wire.SetDeadline(time.Time{})
	start := time.Now()

	l.mu.Lock()
	l.sent = append(l.sent, &request{verb: ping})
	l.heard = protocol.Now()
	for ch := range l.want {
		l.dirty[ch] = struct{}{}
	}
	l.mu.Unlock()

	in := &reading{ended: make(chan struct{})}
	go func() {
		defer close(in.ended)
		in.err = l.receive(ps)
	}()
	err = l.serve(k, ps, in)
	k.wire.Close() // frees the reader
	<-in.ended
	l.forget()
	return time.Since(start), err
}

// reading is the other goroutine of a connection. err is valid once ended is
// closed.
type reading struct {
	ended chan struct{}
	err   error
}

// serve writes requests and checks for silence, until the connection must end.
func (l *listener) serve(k *redisConn, ps *redis.PubSub, in *reading) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		requests, again := l.plan()
		wait, check, err := l.checkPings()
		if err != nil {
			return err
		}
		if check != nil {
			requests = append(requests, check)
		}
		for _, r := range requests {
			k.wire.SetWriteDeadline(time.Now().Add(l.dial.timeout))
			if err := r.write(ps); err != nil {
				return unavailableError(l.dial.broken(err))
			}
		}
		if len(again) > 0 && l.cfg.OnSubscribed != nil {
			l.cfg.OnSubscribed(again)
		}
		timer.Stop()
		if wait > 0 {
			timer.Reset(wait)
		}
		select {
		case <-l.wake:
		case <-timer.C:
		case <-in.ended:
			return in.err
		}
	}
}

func (r *request) write(ps *redis.PubSub) error {
	ctx := context.Background()
	switch r.verb {
	case subscribe:
		return ps.Subscribe(ctx, r.channels...)
	case unsubscribe:
		return ps.Unsubscribe(ctx, r.channels...)
	}
	return ps.Ping(ctx)
}

// plan reconciles: it compares the wanted channels with the requested ones, and returns the
// requests that close the difference, noted as sent in the order in which they must be
// written. again are names whose subscription is confirmed already.
func (l *listener) plan() (requests []*request, again []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	requests, l.redo = l.redo, nil
	latest := [...]*request{subscribe: nil, unsubscribe: nil}
	request := func(v verb, ch string) {
		r := latest[v]
		if r == nil || len(r.channels) == subscribeMax {
			r = &request{verb: v}
			latest[v] = r
			requests = append(requests, r)
		}
		r.channels = append(r.channels, ch)
		l.asked[ch] = &asked{by: r, subscribe: v == subscribe}
	}
	for ch := range l.dirty {
		names, a := l.want[ch], l.asked[ch]
		subscribed := a != nil && a.subscribe
		switch {
		case names != nil && !subscribed:
			request(subscribe, ch)
		case names == nil && subscribed:
			request(unsubscribe, ch)
		case names != nil && a.confirmed:
			again = append(again, names...)
		}
	}
	clear(l.dirty)
	l.noteRequested(requests)
	return requests, again
}

// noteRequested notes requests that are about to be written. mu is held.
func (l *listener) noteRequested(requests []*request) {
	if len(requests) > 0 && len(l.sent) == 0 {
		l.heard = protocol.Now()
	}
	l.sent = append(l.sent, requests...)
}

// checkPings decides whether the connection is alive: a reply that is due must come within the
// timeout, and after a long silence a ping is sent, because a dead peer sends nothing. It
// returns when to check again, or 0 if nothing can happen, and a ping that is due.
func (l *listener) checkPings() (wait time.Duration, check *request, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.suspect {
		return 0, nil, unavailablef("Redis at %s is not the one it was", l.dial.address)
	}
	silence := time.Duration(protocol.Now() - l.heard)
	if len(l.sent) == 0 {
		if len(l.asked) == 0 {
			return 0, nil, nil
		}
		if silence < listenPing {
			return listenPing - silence, nil, nil
		}
		check = &request{verb: ping}
		l.noteRequested([]*request{check})
		return l.dial.timeout, check, nil
	}
	if silence >= l.dial.timeout {
		return 0, nil, unavailablef("Redis at %s did not answer a subscription within %v", l.dial.address, l.dial.timeout)
	}
	return l.dial.timeout - silence, nil, nil
}

// receive reads until the connection ends and returns why. Every frame is a sign
// of life.
func (l *listener) receive(ps *redis.PubSub) error {
	ctx := context.Background()
	for {
		frame, err := ps.Receive(ctx)
		if err != nil {
			if !isReply(err) {
				return unavailableError(l.dial.broken(err))
			}
			if err := l.onRefusal(err); err != nil {
				return err
			}
			continue
		}
		switch f := frame.(type) {
		case *redis.Message:
			l.mu.Lock()
			l.heard = protocol.Now()
			names := l.want[f.Channel]
			l.mu.Unlock()
			if len(names) > 0 && l.cfg.OnMessages != nil {
				l.cfg.OnMessages(unlocked(names))
			}
		case *redis.Subscription:
			err = l.onConfirmation(f)
		case *redis.Pong:
			err = l.onPong()
		}
		if err != nil {
			return err
		}
	}
}

// unlocked returns a message for each of the names that have one channel.
func unlocked(names []string) []locktable.Message {
	messages := make([]locktable.Message, len(names))
	for i, name := range names {
		messages[i] = locktable.Message{Kind: locktable.Unlocked, Name: name}
	}
	return messages
}

// oldest returns the request to which a frame belongs, given what it answers. mu
// is held.
func (l *listener) oldest(v verb) (*request, error) {
	l.heard = protocol.Now()
	if len(l.sent) == 0 || l.sent[0].verb != v {
		return nil, unavailablef("Redis at %s answered what was not asked", l.dial.address)
	}
	return l.sent[0], nil
}

// onAnswer removes the oldest request. mu is held.
func (l *listener) onAnswer() {
	l.sent[0] = nil
	l.sent = l.sent[1:]
}

func (l *listener) onPong() error {
	l.mu.Lock()
	_, err := l.oldest(ping)
	deaf := l.deaf
	if err == nil {
		l.onAnswer()
		l.deaf = ""
	}
	l.mu.Unlock()
	if err == nil && deaf != "" {
		l.cfg.Log.Info("the subscription works again")
	}
	return err
}

// onConfirmation takes in the confirmation of one channel. When a whole SUBSCRIBE is
// confirmed, OnSubscribed is called for those of its channels that are still wanted.
func (l *listener) onConfirmation(f *redis.Subscription) error {
	v := subscribe
	if f.Kind == "unsubscribe" {
		v = unsubscribe
	}
	l.mu.Lock()
	r, err := l.oldest(v)
	if err != nil {
		l.mu.Unlock()
		return err
	}
	if a := l.asked[f.Channel]; a != nil && a.by == r {
		if v == subscribe {
			a.confirmed = true
		} else {
			delete(l.asked, f.Channel)
		}
	}
	r.confirmed++
	var names []string
	if r.confirmed == len(r.channels) {
		l.onAnswer()
		for _, ch := range r.channels {
			if a := l.asked[ch]; a != nil && a.by == r && a.confirmed {
				names = append(names, l.want[ch]...)
			}
		}
	}
	l.mu.Unlock()
	if len(names) > 0 && l.cfg.OnSubscribed != nil {
		l.cfg.OnSubscribed(names)
	}
	return nil
}

// onRefusal takes in an error reply. Redis refuses a SUBSCRIBE as a whole, so a channel that
// is not permitted is searched by halves; it stays unsubscribed, and the others are
// subscribed.
func (l *listener) onRefusal(err error) error {
	if code(err.Error()) != "NOPERM" {
		return l.dial.handshakeError(err)
	}
	l.mu.Lock()
	defer l.nudge()
	if len(l.sent) == 0 {
		l.mu.Unlock()
		return l.dial.handshakeError(err)
	}
	r := l.sent[0]
	l.heard = protocol.Now()
	l.onAnswer()
	if r.verb != subscribe {
		// Not permitted to ping: the error is a sign of life as well. Not permitted to
		// unsubscribe: what is still heard is ignored.
		for _, ch := range r.channels {
			if a := l.asked[ch]; a != nil && a.by == r {
				delete(l.asked, ch)
			}
		}
		l.mu.Unlock()
		return nil
	}
	var channels []string // that are still wanted
	for _, ch := range r.channels {
		if a := l.asked[ch]; a != nil && a.by == r {
			channels = append(channels, ch)
		}
	}
	if len(channels) > 1 {
		half := len(channels) / 2
		for _, part := range [][]string{channels[:half:half], channels[half:]} {
			again := &request{verb: subscribe, channels: part}
			for _, ch := range part {
				l.asked[ch].by = again
			}
			l.redo = append(l.redo, again)
		}
		l.mu.Unlock()
		return nil
	}
	var names []string
	for _, ch := range channels {
		names = l.want[ch]
		delete(l.asked, ch)
	}
	first := len(names) > 0 && !l.denied
	l.denied = l.denied || first
	l.mu.Unlock()
	if first {
		l.cfg.Log.Warn("this user may not hear when a lock is released, it is asked for again and again instead; let its ACL have the channels "+l.dial.keys.channelPatterns(),
			"lock", names[0], "reason", clip(err.Error()))
	}
	if len(names) > 0 && l.cfg.OnUnsubscribed != nil {
		l.cfg.OnUnsubscribed(append([]string(nil), names...))
	}
	return nil
}

// forget ends what was known of a connection, and calls OnUnsubscribed for its channels.
func (l *listener) forget() {
	var names []string
	l.mu.Lock()
	for ch, a := range l.asked {
		if a.confirmed {
			names = append(names, l.want[ch]...)
		}
	}
	clear(l.asked)
	l.sent, l.redo = nil, nil
	l.mu.Unlock()
	if len(names) > 0 && l.cfg.OnUnsubscribed != nil {
		l.cfg.OnUnsubscribed(names)
	}
}

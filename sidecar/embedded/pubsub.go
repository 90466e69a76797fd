package embedded

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/alicebob/miniredis/v2"
	redis "github.com/alicebob/miniredis/v2/server"
)

// In RESP3 a connection that has subscribed to a channel executes all other commands too.
// miniredis refuses them, as in RESP2. pubsub adds that, on connections that speak RESP3.
//
// As in Redis, a connection receives its replies and messages in the order in which they
// were made. A script that publishes to its own connection has its reply after the message, as
// in Redis 7.0.
type pubsub struct {
	data   *miniredis.Miniredis
	server *redis.Server // miniredis forgets it when it is closed, while connections still end
	info   map[string]string

	// executing is held while a command of a subscribed connection is executed and answered.
	// It is locked before the mutex of data.
	executing   sync.Mutex
	subscribers sync.Map // *redis.Peer → *subscriber
}

// subscriber is the subscriptions of one connection. Its goroutine writes the messages.
type subscriber struct {
	*miniredis.Subscriber
	peer *redis.Peer
	idle chan struct{} // the goroutine receives when it has written the messages from before
}

// addPubSub adds subscriptions in RESP3 to a started miniredis.
func addPubSub(m *miniredis.Miniredis) {
	id := make([]byte, 20)
	rand.Read(id)
	p := &pubsub{data: m, server: m.Server(), info: map[string]string{
		"server":      fmt.Sprintf("# Server\r\nrun_id:%x\r\n", id),
		"replication": "# Replication\r\nrole:master\r\n",
	}}
	p.server.SetPreHook(p.dispatch)
}

// dispatch executes a command, or returns false if miniredis is to execute it. It is also
// called for the commands of scripts, on connections of their own in RESP2.
func (p *pubsub) dispatch(c *redis.Peer, cmd string, args ...string) bool {
	if cmd == "INFO" {
		p.tell(c, args)
		return true
	}
	if !c.Resp3 {
		return false
	}
	var s *subscriber
	if v, ok := p.subscribers.Load(c); ok {
		s = v.(*subscriber)
	}
	switch {
	case cmd == "SUBSCRIBE" && len(args) > 0:
		if s == nil {
			if refusal := p.execute(c, "ECHO", ""); refusal[0] == '-' {
				c.Block(func(w *redis.Writer) { w.WriteRaw(refusal) })
				return true
			}
			s = p.newSubscriber(c)
		}
		p.change(c, "subscribe", args, s.Subscribe)
	case s == nil:
		return false
	case cmd == "UNSUBSCRIBE" && len(args) > 0:
		p.change(c, "unsubscribe", args, s.Unsubscribe)
	case cmd == "QUIT":
		return false
	case cmd == "PSUBSCRIBE", cmd == "PUNSUBSCRIBE", cmd == "UNSUBSCRIBE":
		c.WriteError("ERR the in-process Redis has no such subscriptions in RESP3")
	default:
		p.executing.Lock()
		defer p.executing.Unlock()
		answer := p.execute(c, append([]string{cmd}, args...)...)
		s.idle <- struct{}{}
		c.Block(func(w *redis.Writer) { w.WriteRaw(answer) })
	}
	return true
}

// tell answers an INFO: that of miniredis panics while it is being closed, and lacks what a sidecar reads. With
// the run id of its Redis, a sidecar accepts a lock that another one passes on without asking for it again.
func (p *pubsub) tell(c *redis.Peer, sections []string) {
	var text strings.Builder
	for section, lines := range p.info {
		if len(sections) == 0 || slices.ContainsFunc(sections, func(s string) bool { return strings.EqualFold(s, section) }) {
			text.WriteString(lines)
		}
	}
	if refusal := p.execute(c, "ECHO", ""); refusal[0] == '-' {
		c.Block(func(w *redis.Writer) { w.WriteRaw(refusal) })
		return
	}
	c.WriteBulk(text.String())
}

// execute executes a command and returns the reply. miniredis writes a reply in parts, and a
// message could come between two of them.
func (p *pubsub) execute(c *redis.Peer, args ...string) string {
	var answer bytes.Buffer
	own := redis.NewPeer(bufio.NewWriter(&answer))
	own.Ctx, own.Resp3, own.ClientName = c.Ctx, true, c.ClientName
	p.server.Dispatch(own, args)
	own.Flush()
	c.Ctx, c.ClientName = own.Ctx, own.ClientName
	return answer.String()
}

// change subscribes to channels or unsubscribes from them, and confirms each.
func (p *pubsub) change(c *redis.Peer, kind string, channels []string, change func(string) int) {
	p.executing.Lock()
	defer p.executing.Unlock()
	for _, channel := range channels {
		p.data.Lock()
		n := change(channel)
		p.data.Unlock()
		c.Block(func(w *redis.Writer) {
			w.WritePushLen(3)
			w.WriteBulk(kind)
			w.WriteBulk(channel)
			w.WriteInt(n)
		})
	}
}

func (p *pubsub) newSubscriber(c *redis.Peer) *subscriber {
	s := &subscriber{Subscriber: p.data.NewSubscriber(), peer: c, idle: make(chan struct{})}
	p.subscribers.Store(c, s)
	c.OnDisconnect(func() {
		p.subscribers.Delete(c)
		p.data.Lock()
		for _, channel := range s.Channels() {
			s.Unsubscribe(channel)
		}
		p.data.Unlock()
		s.Close() // nothing is published to it any more
	})
	go s.run()
	return s
}

// run writes what is published, until the subscriber is closed.
func (s *subscriber) run() {
	for {
		select {
		case m, ok := <-s.Messages():
			if !ok {
				return
			}
			s.peer.Block(func(w *redis.Writer) {
				w.WritePushLen(3)
				w.WriteBulk("message")
				w.WriteBulk(m.Channel)
				w.WriteBulk(m.Message)
				w.Flush()
			})
		case <-s.idle:
		}
	}
}

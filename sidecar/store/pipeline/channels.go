package pipeline

import (
	"fmt"
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

const (
	subscribeMax   = 100 // channels in one SUBSCRIBE
	maxSubscribing = 4   // requests without an answer; what is wanted meanwhile joins the next one
)

// channels is the set of channels of locks that are wanted, and what was requested of Redis for
// them. After the end of a connection all channels are requested again.
type channels struct {
	keys wire.Keyspace

	// isSharded: the present connection is to a node of a Cluster that has sharded channels. Then those
	// of locks are, as Redisson has them. One request has one of them, because it has one slot.
	isSharded bool

	want  map[string]string   // by channel: the name that has it
	dirty map[string]struct{} // channels to compare again: wanted against requested
	order fifo[string]        // the same, in their order
	later []string            // channels to compare again at the next check of the connection

	// Of the present connection.
	asked    map[string]asked
	inFlight int // requests
}

// asked is the last request about a channel that is subscribed, or was not refused yet.
type asked struct {
	by        *request
	confirmed bool // a subscription is confirmed, by this request or an earlier one
}

// request is one SUBSCRIBE or UNSUBSCRIBE. Redis confirms channel by channel, or refuses
// it as a whole.
type request struct {
	unsubscribe bool
	isSharded   bool
	channels    []string
	confirmed   int // how many of the channels
}

// endsWithPing reports whether a PING follows a request, whose answer ends it. A node ends a sharded
// subscription by itself when the slot leaves it, and its push looks like the confirmation of a
// SUNSUBSCRIBE, which it then answers with MOVED, too: so there may be one answer or two.
func (r *request) endsWithPing() bool { return r.unsubscribe && r.isSharded }

func newChannels(keys wire.Keyspace) channels {
	return channels{
		keys:  keys,
		want:  make(map[string]string),
		dirty: make(map[string]struct{}),
		asked: make(map[string]asked),
	}
}

// subscribe is not carried out, and not confirmed, for a name to whose channel this sidecar may
// not subscribe. So a channel is wanted for one name at most, and never a sidecar's.
func (c *channels) subscribe(name string) {
	if !c.keys.MaySubscribe(name) {
		return
	}
	ch := c.keys.Channel(name)
	c.want[ch] = name
	c.mark(ch)
}

func (c *channels) unsubscribe(name string) {
	if !c.keys.MaySubscribe(name) {
		return
	}
	ch := c.keys.Channel(name)
	delete(c.want, ch)
	c.mark(ch)
}

// mark has a channel compared again.
func (c *channels) mark(ch string) {
	if _, isDirty := c.dirty[ch]; !isDirty {
		c.dirty[ch] = struct{}{}
		c.order.push(ch)
	}
}

// appendWanted appends the name for which a channel is wanted, if there is one.
func (c *channels) appendWanted(names []string, ch string) []string {
	if name, ok := c.want[ch]; ok {
		names = append(names, name)
	}
	return names
}

// next reconciles: it compares the wanted channels with the requested ones, and returns a
// request that closes some of the difference, to be sent at once. nil: there is nothing to
// request now.
func (c *channels) next() *request {
	if c.inFlight >= maxSubscribing && (!c.isSharded || c.inFlight >= maxSubscribing*subscribeMax) {
		return nil
	}
	var r *request
	for range c.order.len() {
		ch := *c.order.front()
		c.order.drop(1)
		a, known := c.asked[ch]
		subscribed := known && !a.by.unsubscribe
		_, wanted := c.want[ch]
		switch {
		case !wanted && !subscribed, wanted && subscribed && !a.confirmed:
			// What is wanted was requested. Its confirmation follows.
			delete(c.dirty, ch)
			continue
		case r == nil:
			r = &request{unsubscribe: !wanted, isSharded: c.isSharded}
		case r.unsubscribe == wanted:
			c.order.push(ch) // it is for the next request
			continue
		}
		// A confirmed subscription is requested again: each call of Subscribe is confirmed, in
		// order with messages and results.
		delete(c.dirty, ch)
		r.channels = append(r.channels, ch)
		c.asked[ch] = asked{by: r, confirmed: wanted && subscribed}
		if len(r.channels) == subscribeMax || c.isSharded {
			break
		}
	}
	if r != nil {
		c.inFlight++
	}
	return r
}

// check has the channels compared again that Redis could not be asked for.
func (c *channels) check() {
	for _, ch := range c.later {
		c.mark(ch)
	}
	c.later = nil
}

// onConfirmation takes in the confirmation of one channel of r. When all are confirmed, r is
// answered, and names are those of its channels that are subscribed and still wanted.
func (c *channels) onConfirmation(r *request, ch string) (names []string, answered bool) {
	if a := c.asked[ch]; a.by == r {
		if r.unsubscribe {
			delete(c.asked, ch)
		} else {
			c.asked[ch] = asked{by: r, confirmed: true}
		}
	}
	if r.confirmed++; r.confirmed < len(r.channels) {
		return nil, false
	}
	c.inFlight--
	for _, ch := range r.channels {
		if a := c.asked[ch]; a.by == r && a.confirmed {
			names = c.appendWanted(names, ch)
		}
	}
	return names, true
}

// subscribed returns those of some names whose channels are subscribed still. One that was unsubscribed since, and is wanted
// again, is confirmed again.
func (c *channels) subscribed(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !c.asked[c.keys.Channel(name)].confirmed })
}

// onPinged takes in the end of a request that endsWithPing.
func (c *channels) onPinged(r *request) {
	c.inFlight--
	for _, ch := range r.channels {
		if c.asked[ch].by == r {
			delete(c.asked, ch)
		}
	}
}

// onRefusal takes in that Redis refused r, with an error that may pass or lasts. It refuses a
// SUBSCRIBE as a whole, so a channel that is not permitted is searched by halves, which are to
// be sent at once; it stays unsubscribed, and the others are subscribed. names are those of the
// channel that was found.
func (c *channels) onRefusal(r *request, mayPass bool) (halves []*request, names []string) {
	c.inFlight--
	var channels []string // of which r is the last request
	for _, ch := range r.channels {
		if c.asked[ch].by == r {
			channels = append(channels, ch)
		}
	}
	switch {
	case mayPass:
		for _, ch := range channels {
			if r.unsubscribe || c.asked[ch].confirmed {
				c.asked[ch] = asked{by: &request{}, confirmed: true} // it is subscribed as before
			} else {
				delete(c.asked, ch)
			}
		}
		c.later = append(c.later, channels...)
	case r.unsubscribe:
		// What is still published there is ignored.
		for _, ch := range channels {
			delete(c.asked, ch)
		}
	case len(channels) > 1:
		half := len(channels) / 2
		for _, part := range [][]string{channels[:half:half], channels[half:]} {
			again := &request{channels: part, isSharded: r.isSharded}
			for _, ch := range part {
				c.asked[ch] = asked{by: again, confirmed: c.asked[ch].confirmed}
			}
			halves = append(halves, again)
			c.inFlight++
		}
	default:
		for _, ch := range channels {
			names = c.appendWanted(names, ch)
			delete(c.asked, ch)
		}
	}
	return halves, names
}

// onEnded takes in that Redis has ended a subscription by itself. It returns the name for which the
// channel is wanted, if there is one: then it is requested again.
func (c *channels) onEnded(ch string) (names []string) {
	delete(c.asked, ch)
	if names = c.appendWanted(nil, ch); len(names) > 0 {
		c.later = append(c.later, ch)
	}
	return names
}

// onDisconnect notes the end of the connection: all that is wanted is to be requested again. It
// returns the names whose subscriptions were confirmed.
func (c *channels) onDisconnect() (names []string) {
	for ch, a := range c.asked {
		if a.confirmed {
			names = c.appendWanted(names, ch)
		}
	}
	clear(c.asked)
	c.inFlight, c.later = 0, nil
	for _, ch := range slices.Sorted(maps.Keys(c.want)) {
		c.mark(ch)
	}
	return names
}

// AppendSubscribe appends the command that subscribes to a channel that is not sharded.
func AppendSubscribe(dst []byte, channel string) []byte {
	return appendRequest(dst, &request{channels: []string{channel}})
}

func appendRequest(dst []byte, r *request) []byte {
	verb := "subscribe"
	if r.unsubscribe {
		verb = "unsubscribe"
	}
	if r.isSharded {
		verb = "s" + verb
	}
	dst = wire.AppendArray(dst, 1+len(r.channels))
	dst = wire.AppendString(dst, verb)
	for _, ch := range r.channels {
		dst = wire.AppendString(dst, ch)
	}
	if r.endsWithPing() {
		dst = wire.AppendPing(dst)
	}
	return dst
}

// describe is Describe.
func (c *channels) describe(dst []byte) []byte {
	for _, ch := range slices.Sorted(maps.Keys(c.want)) {
		dst = fmt.Appendf(dst, " want %s", ch)
	}
	dst = fmt.Appendf(dst, " dirty %v", c.order.head(c.order.len()))
	for _, ch := range slices.Sorted(maps.Keys(c.asked)) {
		dst = fmt.Appendf(dst, " asked %s %t %t", ch, c.asked[ch].by.unsubscribe, c.asked[ch].confirmed)
	}
	return fmt.Appendf(dst, " later %v flight %d", c.later, c.inFlight)
}

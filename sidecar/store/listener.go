package store

import "github.com/locksidecar/locksidecar/sidecar/store/wire"

const (
	subscribeMax   = 100 // channels in one SUBSCRIBE
	maxSubscribing = 4   // requests without an answer; what is wanted meanwhile joins the next one
)

// listener is the set of channels of locks that are wanted, and what was requested of Redis for
// them. The pipeline sends the requests and brings the answers; after the end of a connection
// all channels are requested again. commands.mu guards it.
type listener struct {
	keys wire.Keyspace

	// isSharded: the present connection is to a node of a Cluster that has sharded channels. Then those
	// of locks are, as Redisson has them. One request has one of them, because it has one slot.
	isSharded bool

	want  map[string]string   // by channel: the name that has it
	dirty map[string]struct{} // channels to compare again: wanted against requested
	later []string            // channels to compare again at the next check of the connection

	// Of the present connection.
	asked    map[string]asked
	inFlight int // requests
}

// asked is the last request about a channel that is subscribed, or was not refused yet.
type asked struct {
	by        *channelsRequest
	confirmed bool // a subscription is confirmed, by this request or an earlier one
}

// channelsRequest is one SUBSCRIBE or UNSUBSCRIBE. Redis confirms channel by channel, or refuses
// it as a whole.
type channelsRequest struct {
	unsubscribe bool
	isSharded   bool
	channels    []string
	confirmed   int // how many of the channels
}

// endsWithPing reports whether a PING follows a request, whose answer ends it. A node ends a sharded
// subscription by itself when the slot leaves it, and its push looks like the confirmation of a
// SUNSUBSCRIBE, which it then answers with MOVED, too: so there may be one answer or two.
func (r *channelsRequest) endsWithPing() bool { return r.unsubscribe && r.isSharded }

func newListener(keys wire.Keyspace) listener {
	return listener{
		keys:  keys,
		want:  make(map[string]string),
		dirty: make(map[string]struct{}),
		asked: make(map[string]asked),
	}
}

// subscribe is not carried out, and not confirmed, for a name to whose channel this sidecar may
// not subscribe. So a channel is wanted for one name at most, and never a sidecar's.
func (l *listener) subscribe(name string) {
	if !l.keys.MaySubscribe(name) {
		return
	}
	ch := l.keys.Channel(name)
	l.want[ch] = name
	l.dirty[ch] = struct{}{}
}

func (l *listener) unsubscribe(name string) {
	if !l.keys.MaySubscribe(name) {
		return
	}
	ch := l.keys.Channel(name)
	delete(l.want, ch)
	l.dirty[ch] = struct{}{}
}

// appendWanted appends the name for which a channel is wanted, if there is one.
func (l *listener) appendWanted(names []string, ch string) []string {
	if name, ok := l.want[ch]; ok {
		names = append(names, name)
	}
	return names
}

// next reconciles: it compares the wanted channels with the requested ones, and returns a
// request that closes some of the difference, to be sent at once. nil: there is nothing to
// request now.
func (l *listener) next() *channelsRequest {
	if l.inFlight >= maxSubscribing && (!l.isSharded || l.inFlight >= maxSubscribing*subscribeMax) {
		return nil
	}
	var r *channelsRequest
	for ch := range l.dirty {
		a, known := l.asked[ch]
		subscribed := known && !a.by.unsubscribe
		_, wanted := l.want[ch]
		switch {
		case !wanted && !subscribed, wanted && subscribed && !a.confirmed:
			// What is wanted was requested. Its confirmation follows.
			delete(l.dirty, ch)
			continue
		case r == nil:
			r = &channelsRequest{unsubscribe: !wanted, isSharded: l.isSharded}
		case r.unsubscribe == wanted:
			continue // it is for the next request
		}
		// A confirmed subscription is requested again: each call of Subscribe is confirmed, in
		// order with messages and results.
		delete(l.dirty, ch)
		r.channels = append(r.channels, ch)
		l.asked[ch] = asked{by: r, confirmed: wanted && subscribed}
		if len(r.channels) == subscribeMax || l.isSharded {
			break
		}
	}
	if r != nil {
		l.inFlight++
	}
	return r
}

// check has the channels compared again that Redis could not be asked for.
func (l *listener) check() {
	for _, ch := range l.later {
		l.dirty[ch] = struct{}{}
	}
	l.later = nil
}

// onConfirmation takes in the confirmation of one channel of r. When all are confirmed, r is
// answered, and names are those of its channels that are subscribed and still wanted.
func (l *listener) onConfirmation(r *channelsRequest, ch string) (names []string, answered bool) {
	if a := l.asked[ch]; a.by == r {
		if r.unsubscribe {
			delete(l.asked, ch)
		} else {
			l.asked[ch] = asked{by: r, confirmed: true}
		}
	}
	if r.confirmed++; r.confirmed < len(r.channels) {
		return nil, false
	}
	l.inFlight--
	for _, ch := range r.channels {
		if a := l.asked[ch]; a.by == r && a.confirmed {
			names = l.appendWanted(names, ch)
		}
	}
	return names, true
}

// onPinged takes in the end of a request that endsWithPing.
func (l *listener) onPinged(r *channelsRequest) {
	l.inFlight--
	for _, ch := range r.channels {
		if l.asked[ch].by == r {
			delete(l.asked, ch)
		}
	}
}

// onRefusal takes in that Redis refused r, with an error that may pass or lasts. It refuses a
// SUBSCRIBE as a whole, so a channel that is not permitted is searched by halves, which are to
// be sent at once; it stays unsubscribed, and the others are subscribed. names are those of the
// channel that was found.
func (l *listener) onRefusal(r *channelsRequest, mayPass bool) (halves []*channelsRequest, names []string) {
	l.inFlight--
	var channels []string // of which r is the last request
	for _, ch := range r.channels {
		if l.asked[ch].by == r {
			channels = append(channels, ch)
		}
	}
	switch {
	case mayPass:
		for _, ch := range channels {
			if r.unsubscribe || l.asked[ch].confirmed {
				l.asked[ch] = asked{by: &channelsRequest{}, confirmed: true} // it is subscribed as before
			} else {
				delete(l.asked, ch)
			}
		}
		l.later = append(l.later, channels...)
	case r.unsubscribe:
		// What is still published there is ignored.
		for _, ch := range channels {
			delete(l.asked, ch)
		}
	case len(channels) > 1:
		half := len(channels) / 2
		for _, part := range [][]string{channels[:half:half], channels[half:]} {
			again := &channelsRequest{channels: part, isSharded: r.isSharded}
			for _, ch := range part {
				l.asked[ch] = asked{by: again, confirmed: l.asked[ch].confirmed}
			}
			halves = append(halves, again)
			l.inFlight++
		}
	default:
		for _, ch := range channels {
			names = l.appendWanted(names, ch)
			delete(l.asked, ch)
		}
	}
	return halves, names
}

// onEnded takes in that Redis has ended a subscription by itself. It returns the name for which the
// channel is wanted, if there is one: then it is requested again.
func (l *listener) onEnded(ch string) (names []string) {
	delete(l.asked, ch)
	if names = l.appendWanted(nil, ch); len(names) > 0 {
		l.later = append(l.later, ch)
	}
	return names
}

// onDisconnect notes the end of the connection: all that is wanted is to be requested again. It
// returns the names whose subscriptions were confirmed.
func (l *listener) onDisconnect() (names []string) {
	for ch, a := range l.asked {
		if a.confirmed {
			names = l.appendWanted(names, ch)
		}
	}
	clear(l.asked)
	l.inFlight, l.later = 0, nil
	for ch := range l.want {
		l.dirty[ch] = struct{}{}
	}
	return names
}

func appendChannelsRequest(dst []byte, r *channelsRequest) []byte {
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

package link

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/store/sentinel"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// A Redis behind Sentinels is where they say it is:
//
//	locate ──address──► greet: is it a master? ──► locate: the same address? ──► connected
//	   ▲                                                                            │
//	   └── a Sentinel publishes +switch-master, or two rounds in a row name ◄───────┘
//	       another address, or the connection ends
//
// The second look is for a master that returns after its crash: it says that it is a master until the
// Sentinels make it a replica, ten seconds later, and has none of the locks since.

const (
	// questionPatience is how long the other Sentinels have to answer after more than half of them did.
	questionPatience = 250 * time.Millisecond

	// askAgain is the time between two looks at Sentinels that name different masters.
	askAgain = 100 * time.Millisecond

	// sentinelInterval is the time between two rounds of questions while connected, give or take a quarter.
	sentinelInterval = 5 * time.Second

	// failoverInterval is the time between two rounds of questions while a failover is announced.
	failoverInterval = time.Second

	// maxQuestions bounds the messages of one Sentinel that wait for a round of questions.
	maxQuestions = 8
)

// sentinels asks the Sentinels of a URL and receives their messages. What they say is decided by a Group: sentinels finds
// the master, and notices that it moved.
type sentinels struct {
	log      *slog.Logger
	interval time.Duration // between two rounds of questions while connected

	// onMoved: the master is at another address, as a Sentinel published and a round of questions
	// confirmed, or as two rounds found. It comes from any goroutine.
	onMoved func(address string)

	// onLost: most of the Sentinels do not answer, with the sentence that an operator reads; "": they do. It comes from
	// any goroutine.
	onLost func(why string)

	// onFailover: a Sentinel is about to replace the master at an address, for the reason that an operator reads;
	// "", "": none is any more. It comes from any goroutine.
	onFailover func(address, why string)

	changed chan struct{} // there are other Sentinels, or a failover is announced

	asking sync.WaitGroup // goroutines that ask one Sentinel

	master  string        // its name
	timeout time.Duration // of a question

	mu       sync.Mutex // guards what with gives; held while notes are reported, so that they come in order
	behindMu watched
}

// watched is what the mutex of sentinels guards: only with leads to it.
type watched struct {
	*sentinel.Group
	url     *sentinelGroup
	asked   map[*sentinel.Member]*asked
	attempt attempt // to connect to the address that was found last

	silent       bool // that a Sentinel does not permit its messages was logged
	partlySilent bool // that it does not permit those about the steps of a failover was logged
}

// asked is a Sentinel that is asked.
type asked struct {
	member     *sentinel.Member
	client     *redis.Client
	isListened bool // its messages are received, or will be
}

// An attempt to connect to a master. If that is known to have moved, the attempt ends.
type attempt struct {
	address string
	cancel  context.CancelFunc // nil: there is no attempt
}

func newSentinels(url *sentinelGroup, log *slog.Logger) *sentinels {
	s := &sentinels{log: log, interval: sentinelInterval, changed: make(chan struct{}, 1), master: url.Master, timeout: url.timeout}
	s.behindMu = watched{Group: sentinel.NewGroup(url.Master, url.Addresses), url: url, asked: make(map[*sentinel.Member]*asked)}
	s.with(func(*watched, int64) {})
	return s
}

// with gives f what the mutex guards. Then those are asked that the Group wants asked, and what it notes is reported.
func (s *sentinels) with(f func(w *watched, now int64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.behindMu
	f(w, protocol.Now())
	for m, a := range w.asked {
		if !w.Has(m) {
			delete(w.asked, m)
			a.client.Close()
		}
	}
	for _, m := range w.Members() {
		if w.asked[m] == nil {
			w.asked[m] = &asked{member: m, client: w.url.client(m.Address)}
			s.wake()
		}
	}
	for _, n := range w.Notes() {
		s.report(w, n)
	}
}

func (s *sentinels) report(w *watched, n sentinel.Note) {
	switch n.Kind {
	case sentinel.Denied:
		s.log.Warn("a Sentinel does not say all that it knows of the master: a failover is followed less surely", "sentinel", n.Address, "reason", w.url.reason(n.Err))
	case sentinel.Disagree:
		s.log.Warn("the Sentinels name different masters: the one of the highest configuration epoch is used, if it is a master", "masters", n.Text)
	case sentinel.Lost:
		s.log.Warn("most of the Sentinels do not answer", "reason", n.Text)
		if s.onLost != nil {
			s.onLost(n.Text)
		}
	case sentinel.Back:
		s.log.Info("most of the Sentinels answer again", "answering", n.Count.Answering, "known", n.Count.Known)
		if s.onLost != nil {
			s.onLost("")
		}
	case sentinel.Failover:
		if s.onFailover != nil {
			s.onFailover(n.Address, n.Text)
		}
		s.wake()
	}
}

// wake has watch look at the Sentinels.
func (s *sentinels) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// use replaces what the URL says: the seeds, user and password.
func (s *sentinels) use(url *sentinelGroup) {
	s.with(func(w *watched, _ int64) {
		isNew := url.Username != w.url.Username || url.Password != w.url.Password
		w.url = url
		w.Use(url.Addresses, isNew)
	})
}

// close ends all connections, and returns when no Sentinel is asked any more.
func (s *sentinels) close() {
	s.with(func(w *watched, _ int64) { w.Close() })
	s.asking.Wait()
}

// round asks all Sentinels at one time, and learns of others.
func (s *sentinels) round(parent context.Context) (views []sentinel.View, verdict sentinel.Verdict) {
	began, all := protocol.Now(), 0
	ctx, cancel := context.WithTimeout(parent, s.timeout)
	defer cancel()
	var answers chan sentinel.View
	s.with(func(w *watched, _ int64) {
		all = len(w.asked)
		answers = make(chan sentinel.View, all) // with room for those that come too late
		for _, a := range w.asked {
			s.asking.Go(func() { answers <- askSentinel(ctx, a.client, a.member, s.master) })
		}
	})
	var late <-chan time.Time
	answered := 0
	for len(views) < all {
		select {
		case v := <-answers:
			views = append(views, v)
			if v.Master != "" {
				answered++
			}
			if late == nil && 2*answered > all {
				timer := time.NewTimer(questionPatience)
				defer timer.Stop()
				late = timer.C
			}
			continue
		case <-late:
		case <-ctx.Done():
		}
		break
	}
	s.with(func(w *watched, now int64) { views, verdict = w.Answered(now, began, all, parent.Err() != nil, views) })
	return views, verdict
}

// counted returns how many Sentinels there are, and answer.
func (s *sentinels) counted() (c sentinel.Count) {
	s.with(func(w *watched, _ int64) { c = w.Counted() })
	return c
}

// locate returns the address of the master. isNamed is false while no Sentinel answers: it is the
// last address, which counts only if the server there is still the same.
func (s *sentinels) locate(ctx context.Context) (address string, isNamed bool, err error) {
	views, verdict := s.round(ctx)
	if first := verdict.Master; first != "" && !verdict.IsAgreed && !verdict.IsLed {
		s.with(func(w *watched, _ int64) { w.Disagree(views) })
		if !Pause(ctx, askAgain) {
			return "", false, ctx.Err()
		}
		views, verdict = s.round(ctx)
		if verdict.IsAgreed = false; verdict.Master != "" && verdict.Master != first {
			return "", false, wire.Unavailablef("the Sentinels of the master %q move it from %s to %s", s.master, first, verdict.Master)
		}
	}
	s.with(func(w *watched, now int64) {
		if address, isNamed = w.Locate(now, verdict); address != "" {
			return
		}
		if verdict.Master == "" {
			err = w.url.silence(views)
		} else {
			err = wire.Unavailablef("Redis at %s, the master %q, is down as its Sentinels see it; they promote a replica soon, if there is one", verdict.Master, s.master)
		}
	})
	return address, isNamed, err
}

// find makes a connection to the server of a URL, or to the master that Sentinels name.
func (d *Dialer) find(ctx context.Context, s *sentinels, lost *lostAddresses, last wire.Identity) (*readyConn, error) {
	if s == nil {
		return d.connect(ctx, lost, last)
	}
	address, isNamed, err := s.locate(ctx)
	if err != nil {
		return nil, err
	}
	attempting := s.begin(ctx, address)
	defer s.end()
	conn, err := d.At(address).connect(attempting, lost, last)
	if err != nil {
		return nil, wire.Unavailablef("%v (the Sentinels of the master %q name this address)", err, d.group.Master)
	}
	now, isNamedStill, err := s.locate(ctx)
	switch {
	case err != nil:
	case !(isNamed && isNamedStill) && !conn.id.SameServer(&last):
		err = wire.Unavailablef("no Sentinel of the master %q answers, and Redis at %s is not the server that it was: it may have lost the locks, or been replaced", d.group.Master, address)
	case now != address:
		err = wire.Unavailablef("Redis at %s says that it is a master, and the Sentinels of %q name %s; one that returned after a failover is not used", address, d.group.Master, now)
	}
	if err != nil {
		conn.close()
		return nil, err
	}
	return conn, nil
}

// begin notes an attempt to connect to an address, and returns its context.
func (s *sentinels) begin(ctx context.Context, address string) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	s.with(func(w *watched, _ int64) { w.attempt = attempt{address, cancel} })
	return ctx
}

// end ends the attempt.
func (s *sentinels) end() {
	s.with(func(w *watched, _ int64) {
		w.attempt.cancel()
		w.attempt = attempt{}
	})
}

// move reports that the master is at an address. An attempt to connect to another one ends.
func (s *sentinels) move(address string) {
	s.with(func(w *watched, _ int64) {
		if w.attempt.cancel != nil && w.attempt.address != address {
			w.attempt.cancel()
		}
	})
	s.onMoved(address)
}

// notListened returns the Sentinels whose messages nothing receives yet.
func (s *sentinels) notListened() (all []*asked) {
	s.with(func(w *watched, _ int64) {
		for _, a := range w.asked {
			if !a.isListened {
				a.isListened = true
				all = append(all, a)
			}
		}
	})
	return all
}

func (s *sentinels) isFailingOver() (is bool) {
	s.with(func(w *watched, _ int64) { is = w.IsFailingOver() })
	return is
}

// watch looks for another master until ctx ends, and receives the messages of all Sentinels. It begins with the
// first connection.
func (s *sentinels) watch(ctx context.Context) {
	var listening sync.WaitGroup
	defer listening.Wait()
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	for {
		for _, a := range s.notListened() {
			listening.Go(func() { s.listenAgain(ctx, a) })
		}
		interval := s.interval
		if s.isFailingOver() {
			interval = min(interval, failoverInterval)
		}
		t := time.NewTimer(interval*3/4 + rand.N(interval/2))
		select {
		case <-t.C:
			s.check(ctx)
		case <-s.changed:
		case <-ctx.Done():
		}
		if t.Stop(); ctx.Err() != nil {
			return
		}
	}
}

// check asks whether the master has moved. Two rounds have to find that.
func (s *sentinels) check(ctx context.Context) {
	address, isOther := s.other(ctx)
	if !isOther || !Pause(ctx, askAgain) {
		return
	}
	if again, isOther := s.other(ctx); isOther && again == address {
		s.move(address)
	}
}

// other asks where the master is. isOther: at another address than it was last.
func (s *sentinels) other(ctx context.Context) (address string, isOther bool) {
	_, verdict := s.round(ctx)
	s.with(func(w *watched, now int64) { isOther = w.IsElsewhere(now, verdict) })
	return verdict.Master, isOther
}

// listenAgain receives the messages of one Sentinel for as long as it is one of the group.
func (s *sentinels) listenAgain(ctx context.Context, a *asked) {
	for delay := 4 * backoffMin; Pause(ctx, delay); {
		isMember := false
		if s.with(func(w *watched, _ int64) { isMember = w.Has(a.member) }); !isMember {
			return
		}
		if delay = 4 * backoffMin; !s.listen(ctx, a) {
			delay = s.interval
		}
	}
}

// listen receives the messages of one Sentinel until its connection ends. False: it was not
// subscribed to them.
func (s *sentinels) listen(ctx context.Context, a *asked) (wasSubscribed bool) {
	ctx, cancel := context.WithCancel(ctx)
	sub := a.client.Subscribe(ctx, sentinel.SwitchMaster)
	defer sub.Close()
	stop := context.AfterFunc(ctx, func() { sub.Close() })
	defer stop()
	// Questions take their time, and an announcement must not wait for them.
	questions := make(chan func(), maxQuestions)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel() // the questions that are left are of no use
	defer close(questions)
	asking.Go(func() {
		for ask := range questions {
			ask()
		}
	})
	later := func(ask func()) {
		select {
		case questions <- ask:
		default: // the next round finds it
		}
	}
	for {
		received, err := sub.ReceiveTimeout(ctx, 0)
		if err != nil {
			isDenied := ctx.Err() == nil && strings.Contains(err.Error(), "NOPERM")
			if isDenied {
				s.logSilent(a.member.Address, err, wasSubscribed)
			}
			if isDenied && wasSubscribed {
				continue // of the other channels
			}
			return wasSubscribed
		}
		switch message := received.(type) {
		case *redis.Subscription:
			if message.Channel == sentinel.SwitchMaster {
				wasSubscribed = true
				_ = sub.Subscribe(ctx, sentinel.FailoverChannels...) // an error ends the next read, too
			}
			isLast := message.Channel == sentinel.FailoverChannels[len(sentinel.FailoverChannels)-1]
			if isLast {
				s.log.Info("receives the steps of failovers", "sentinel", a.member.Address)
			}
			if message.Channel == sentinel.SwitchMaster || isLast {
				later(func() { s.check(ctx) }) // what was published before is lost
			}
		case *redis.Message:
			if s.onAnnounced(a.member, message.Channel, message.Payload) {
				continue
			}
			later(func() { s.onMessage(ctx, message.Channel, message.Payload) })
		}
	}
}

// logSilent logs, once for each of both, that a Sentinel does not permit its messages: all, or those about the steps
// of a failover.
func (s *sentinels) logSilent(address string, err error, isPartly bool) {
	isFirst := false
	s.with(func(w *watched, _ int64) {
		was := &w.silent
		if isPartly {
			was = &w.partlySilent
		}
		isFirst, *was = !*was, true
	})
	switch {
	case !isFirst:
	case isPartly:
		s.log.Warn("this user may not receive what a Sentinel announces of a failover: until it names the new master, the old one may grant locks that the new one does not have; let its ACL have the channels &"+strings.Join(sentinel.FailoverChannels, " &"),
			"sentinel", address, "reason", wire.Clip(err.Error()))
	default:
		s.log.Warn("this user may not receive the messages of a Sentinel: a failover is noticed some seconds later; let its ACL have +subscribe and the channels &"+sentinel.SwitchMaster+" &"+strings.Join(sentinel.FailoverChannels, " &"),
			"sentinel", address, "reason", wire.Clip(err.Error()))
	}
}

// onAnnounced takes a message that a failover is about to promote a replica. False: it is another one.
func (s *sentinels) onAnnounced(m *sentinel.Member, channel, text string) (is bool) {
	s.with(func(w *watched, now int64) { is = w.Announced(now, m, channel, text) })
	return is
}

// onMessage takes what a Sentinel published of a master that moved, or is about to. A round of questions confirms
// it: the Sentinel may be of another group by now.
func (s *sentinels) onMessage(ctx context.Context, channel, text string) {
	from, to := sentinel.Moved(s.master, channel, text)
	if from == "" {
		return
	}
	_, verdict := s.round(ctx)
	isKnown := false
	if s.with(func(w *watched, _ int64) { isKnown = w.Last() == to }); to == "" || verdict.Master != to || isKnown {
		return
	}
	s.log.Info("the Sentinels say that the master has moved", "from", from, "to", to)
	s.move(to)
}

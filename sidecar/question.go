package sidecar

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/store"
)

// A sidecar asks another one by a message on its channel in Redis. A question is the body of an
// info, list, status or force_release request of the protocol, and an answer is the body of the answer to
// it, with one difference: deadline_ns is relative to the moment of the answer, because each host
// has its own clock.

const (
	// hostTimeout is the default of Config.AskWithin.
	hostTimeout = 500 * time.Millisecond

	// maxQuestions bounds the questions of all clients that have no answer, and maxConnQuestions those of one connection,
	// which is read no further then. An answer has at most some 20 KiB.
	maxQuestions     = 256
	maxConnQuestions = 64

	// maxAnswers is how many questions a sidecar answers in a second. Others are dropped: any
	// program that may publish can send them. One client that lists the locks of a host, page
	// after page, sends about as many.
	maxAnswers = 4000

	// maxUnansweredQuestions is how many questions wait for a step of the loop. Others are dropped.
	maxUnansweredQuestions = 16

	// maxHostPages bounds the search for a host by its name.
	maxHostPages = 50
)

// asker has the questions of clients to other hosts.
type asker struct {
	mu      sync.Mutex               // guards what follows
	waiting map[uint64]chan<- []byte // by number: where the answer goes
	byUser  map[int64]int            // questions of each user
	total   int
}

// begin reserves room for a question of a user. The caller ends it with end.
func (a *asker) begin(uid int64) *protocol.Err {
	a.mu.Lock()
	defer a.mu.Unlock()
	unreserved, share := peers.Shares(uid, maxQuestions)
	if a.total >= unreserved || a.byUser[uid] >= share {
		return &protocol.Err{Code: protocol.Limit, Msg: fmt.Sprintf("clients of this sidecar wait for %d answers of other hosts, user %d for %d of them; try again in a moment", a.total, uid, a.byUser[uid])}
	}
	if a.byUser == nil {
		a.byUser, a.waiting = make(map[int64]int), make(map[uint64]chan<- []byte)
	}
	a.total++
	a.byUser[uid]++
	return nil
}

func (a *asker) end(uid int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	if a.byUser[uid]--; a.byUser[uid] == 0 {
		delete(a.byUser, uid)
	}
}

// expect returns the number of a new question, and where its answer comes. Numbers are random, so
// that a program that cannot read questions cannot answer them either.
func (a *asker) expect() (number uint64, answer <-chan []byte) {
	number = uint64(rand.Int64N(math.MaxInt64-1)) + 1
	c := make(chan []byte, 1)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting[number] = c
	return number, c
}

func (a *asker) forget(number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, number)
}

// onAnswer takes in what was published as an answer.
func (a *asker) onAnswer(body []byte) {
	var d protocol.ReplyDecoder
	got, err := d.Decode(body)
	if err != nil {
		return
	}
	number := uint64(0)
	switch m := got.(type) {
	case *protocol.Answer:
		number = m.ID
	case *protocol.Err:
		number = m.ID
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.waiting[number]; c != nil {
		delete(a.waiting, number)
		c <- body
	}
}

// answered is a request that was answered before it reached the loop.
type answered struct {
	id      uint64
	reply   protocol.Reply
	force   *forceTarget    // what was to end by force; nil: nothing
	refused *policy.Refusal // by the policy; nil: it was not
}

func (a *answered) RequestID() uint64 { return a.id }

// isAboutHosts reports whether a request is answered by other hosts, or by what they published.
func isAboutHosts(req protocol.Request) bool {
	switch req.(type) {
	case *protocol.Hosts, *protocol.HostInfo, *protocol.HostList, *protocol.HostStatus, *protocol.HostForceRelease, *protocol.ForceReleaseOrphaned, *protocol.Who:
		return true
	}
	return false
}

// copyOf copies a request about other hosts, which the decoder is about to reuse.
func copyOf(req protocol.Request) protocol.Request {
	switch r := req.(type) {
	case *protocol.Hosts:
		return new(*r)
	case *protocol.HostInfo:
		return new(*r)
	case *protocol.HostList:
		return new(*r)
	case *protocol.HostStatus:
		return new(*r)
	case *protocol.HostForceRelease:
		return new(*r)
	case *protocol.ForceReleaseOrphaned:
		return new(*r)
	case *protocol.Who:
		return new(*r)
	}
	panic(fmt.Sprintf("%T is not about hosts", req))
}

// connQuestions has the questions to other hosts that one connection waits for. Its reader owns it.
type connQuestions struct {
	ctx    context.Context // until the reader ends
	cancel context.CancelFunc
	asked  sync.WaitGroup
}

// end returns when no question of the connection is under way: what it requested is handed over before its end.
func (q *connQuestions) end() {
	q.cancel()
	q.asked.Wait()
}

// askHosts has a request about other hosts answered, on a goroutine of its own, because that takes time: one host that
// is silent delays no other one. It waits while maxConnQuestions are under way, and for a client that does not read its
// answers: so no goroutine waits for that.
func (s *Server) askHosts(c *conn, q *connQuestions, req protocol.Request) {
	pending := []request{{kind: clientOther, conn: c}}
	if c.keepPace(&pending); len(pending) == 0 || !c.throttle(maxQueued, maxUnread) {
		return // nothing reads the answer
	}
	c.mu.Lock()
	for c.asking >= maxConnQuestions && !c.isAbandoned && !c.isEnding() {
		c.changed.Wait()
	}
	c.asking++
	c.mu.Unlock()
	q.asked.Go(func() {
		if who, is := req.(*protocol.Who); is {
			pending[0].other = s.prepareWho(q.ctx, c, who)
		} else {
			pending[0].other = s.answerAboutHosts(q.ctx, c, req)
		}
		c.mu.Lock()
		c.asking--
		c.queued++
		c.changed.Broadcast()
		c.mu.Unlock()
		s.hand(c, pending...)
	})
}

// answerAboutHosts answers a request about other hosts.
func (s *Server) answerAboutHosts(ctx context.Context, c *conn, req protocol.Request) *answered {
	a := &answered{id: req.RequestID()}
	switch r := req.(type) {
	case *protocol.HostForceRelease:
		a.force = &forceTarget{name: r.Name, host: r.Host}
	case *protocol.ForceReleaseOrphaned:
		a.force = &forceTarget{name: r.Name, isOrphaned: true}
	}
	var refusal *protocol.Err
	if a.refused = refuseHostsByPolicy(c, req); a.refused != nil {
		refusal = a.refused.Err()
	} else {
		a.reply, refusal = s.tryHosts(ctx, c, req)
	}
	if refusal != nil {
		refusal.ID = a.id
		a.reply = refusal
	}
	return a
}

func (s *Server) tryHosts(ctx context.Context, c *conn, req protocol.Request) (protocol.Reply, *protocol.Err) {
	uid := c.peer.UID
	if c.denial != nil {
		refusal := *c.denial
		return nil, &refusal
	}
	if s.cfg.OtherHosts == OtherHostsNone {
		return nil, &protocol.Err{Code: protocol.Denied, Msg: "this sidecar has nothing to do with other hosts: its setting other_hosts is none"}
	}
	if !peers.IsPrivileged(uid) {
		switch req.(type) {
		case *protocol.HostForceRelease:
			return nil, &protocol.Err{Code: protocol.Denied, Msg: "only root and the sidecar's user may force locks of other hosts free; ask as one of them, or on that host"}
		case *protocol.ForceReleaseOrphaned:
			return nil, &protocol.Err{Code: protocol.Denied, Msg: "only root and the sidecar's user may free orphaned locks; ask as one of them"}
		}
	}
	if refusal := s.asker.begin(uid); refusal != nil {
		return nil, refusal
	}
	defer s.asker.end(uid)
	ctx, cancel := context.WithTimeout(ctx, s.cfg.AskWithin)
	defer cancel()
	switch r := req.(type) {
	case *protocol.Hosts:
		return s.listHosts(ctx, r)
	case *protocol.HostInfo:
		ok := new(protocol.HostInfoOK)
		refusal := s.askHost(ctx, r.Host, func(n uint64) protocol.Request { return protocol.Info{ID: n, Name: r.Name} }, ok)
		ok.ID = r.ID
		if refusal == nil && ok.Lock != nil {
			if refusal = acceptRows(r.Host, ok.Lock); refusal == nil && c.rules != nil {
				c.rules.HostTerms().Redact(ok.Lock)
			}
		}
		return ok, refusal
	case *protocol.HostList:
		ok := new(protocol.HostListOK)
		refusal := s.askHost(ctx, r.Host, func(n uint64) protocol.Request { return protocol.List{ID: n, After: r.After} }, ok)
		ok.ID = r.ID
		if refusal == nil {
			rows := make([]*protocol.LockRow, len(ok.Locks))
			for i := range ok.Locks {
				rows[i] = &ok.Locks[i]
			}
			refusal = acceptRows(r.Host, rows...)
		}
		if refusal == nil && c.rules != nil {
			terms, kept := c.rules.HostTerms(), ok.Locks[:0]
			for i := range ok.Locks {
				if terms.Redact(&ok.Locks[i]) {
					kept = append(kept, ok.Locks[i])
				}
			}
			ok.Locks = kept
		}
		return ok, refusal
	case *protocol.HostStatus:
		ok := new(protocol.HostStatusOK)
		refusal := s.askHost(ctx, r.Host, func(n uint64) protocol.Request { return protocol.Status{ID: n} }, ok)
		ok.ID = r.ID
		if c.rules != nil {
			c.rules.HostTerms().RedactOldest(&ok.StatusRow)
		}
		return ok, refusal
	case *protocol.HostForceRelease:
		ok := new(protocol.HostForceReleaseOK)
		refusal := s.askHost(ctx, r.Host, func(n uint64) protocol.Request {
			return protocol.ForceRelease{ID: n, Name: r.Name, By: &protocol.Requester{Host: s.cfg.HostName, PID: c.peer.PID, UID: uid, Cmd: c.peer.Cmd}}
		}, ok)
		ok.ID = r.ID
		return ok, refusal
	case *protocol.ForceReleaseOrphaned:
		ok, refusal := s.releaseOrphaned(r.Name)
		if refusal != nil {
			return nil, refusal
		}
		ok.ID = r.ID
		return ok, nil
	}
	panic(fmt.Sprintf("%T is not about hosts", req))
}

// refuseHostsByPolicy says why the policy does not let a client ask other hosts; nil: it does, and
// what they answer is to be redacted with Rules.HostTerms. What entries hide or forbid here would be
// open there: the policy of this host is not known to other ones. A process of which it is not
// known which entries are about it is refused.
func refuseHostsByPolicy(c *conn, req protocol.Request) *policy.Refusal {
	switch {
	case c.refusal != nil:
		return c.refusal
	case c.rules == nil:
		return nil
	}
	name := ""
	switch r := req.(type) {
	case *protocol.HostForceRelease, *protocol.ForceReleaseOrphaned:
		return c.rules.ForceHost()
	case *protocol.HostInfo:
		name = r.Name
	case *protocol.Who:
		name = r.Name
	}
	if why := c.rules.Hosts(); why != nil || name == "" {
		return why
	}
	return c.rules.HostLock(name)
}

// acceptRows makes the deadlines in the rows of another host times of this one. Whatever can
// publish in Redis can answer a question: rows that do not fit into a frame are refused.
func acceptRows(host string, rows ...*protocol.LockRow) *protocol.Err {
	size := 0
	for _, row := range rows {
		toOwnClock(row)
		if size += row.Size(); size > protocol.ListRoom || protocol.CheckName(row.Name) != nil {
			return &protocol.Err{Code: protocol.Unavailable, Msg: fmt.Sprintf("host %s returned an answer that is not valid; find out which program publishes on the channel of its sidecar", host)}
		}
	}
	return nil
}

// toOwnClock makes the deadline in a row of another host a time of this one.
func toOwnClock(row *protocol.LockRow) {
	if row.State == protocol.StateHeld {
		row.DeadlineNS = min(row.DeadlineNS, math.MaxInt64/2) + protocol.Now()
	}
}

// toRelative is the inverse of toOwnClock.
func toRelative(now int64, row *protocol.LockRow) { row.DeadlineNS = max(0, row.DeadlineNS-now) }

// askHost asks the sidecar of a host, and decodes its answer into ok.
func (s *Server) askHost(ctx context.Context, host string, question func(number uint64) protocol.Request, ok protocol.OK) *protocol.Err {
	sidecar, refusal := s.sidecarOf(ctx, host)
	if refusal != nil {
		return refusal
	}
	err := s.askSidecar(ctx, sidecar, question, ok)
	var refused refusedByHost
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return &protocol.Err{Code: refused.Code, Msg: refused.Msg}
	case errors.Is(err, errNotReached):
		return &protocol.Err{Code: protocol.Unavailable, Msg: fmt.Sprintf("the sidecar of host %s does not run, or is not connected to Redis", host)}
	case errors.Is(err, errNoAnswer):
		return &protocol.Err{Code: protocol.Unavailable, Msg: fmt.Sprintf("host %s did not answer within %v; a force-release may have been executed", host, s.cfg.AskWithin)}
	}
	return &protocol.Err{Code: protocol.Unavailable, Msg: fmt.Sprintf("host %s could not be asked: %v", host, err)}
}

var (
	errNotReached = errors.New("the channel of the sidecar has no subscriber")
	errNoAnswer   = errors.New("the sidecar did not answer in time")
)

// refusedByHost is the error that the sidecar of another host answered.
type refusedByHost struct{ *protocol.Err }

func (e refusedByHost) Error() string { return e.Msg }

// askSidecar asks the sidecar with a uuid, and decodes its answer into ok. The error is
// errNotReached, errNoAnswer, a refusedByHost, or another one of Redis.
func (s *Server) askSidecar(ctx context.Context, sidecar string, question func(number uint64) protocol.Request, ok protocol.OK) error {
	number, answer := s.asker.expect()
	defer s.asker.forget(number)
	reached := make(chan error, 1)
	s.store.Ask(sidecar, frameBody(question(number).Append(nil)), func(is bool, err error) {
		if !is && err == nil {
			err = errNotReached
		}
		if err != nil {
			reached <- err
		}
	})
	select {
	case body := <-answer:
		if refusal := unpackAnswer(body, ok); refusal != nil {
			return refusedByHost{refusal}
		}
		return nil
	case err := <-reached:
		return err
	case <-ctx.Done():
		return errNoAnswer
	}
}

// frameBody returns the body of a frame.
func frameBody(frame []byte) []byte { return frame[4:] }

func unpackAnswer(body []byte, ok protocol.OK) *protocol.Err {
	var d protocol.ReplyDecoder
	got, err := d.Decode(body)
	if err == nil {
		switch m := got.(type) {
		case *protocol.Err:
			return &protocol.Err{Code: m.Code, Msg: m.Msg}
		case *protocol.Answer:
			err = m.Unpack(ok)
		}
	}
	if err != nil {
		return &protocol.Err{Code: protocol.Unavailable, Msg: "the other host gave an answer that cannot be read: " + err.Error()}
	}
	return nil
}

// sidecarOf returns the uuid of the sidecar of a host.
func (s *Server) sidecarOf(ctx context.Context, host string) (string, *protocol.Err) {
	if len(host) == len(s.uuid) && uuid.Validate(host) == nil {
		return host, nil
	}
	var found []string
	after := ""
	for range maxHostPages {
		hosts, last, err := s.hostPage(ctx, after)
		if err != nil {
			return "", &protocol.Err{Code: protocol.Unavailable, Msg: "the hosts cannot be listed: " + err.Error()}
		}
		for i := range hosts {
			if hosts[i].Name == host {
				found = append(found, hosts[i].UUID)
			}
		}
		if after = last; last == "" {
			break
		}
	}
	switch len(found) {
	case 0:
		return "", &protocol.Err{Code: protocol.BadRequest, Msg: fmt.Sprintf("no sidecar has published that its host is %q; locksidecar ls --all lists the hosts", host)}
	case 1:
		return found[0], nil
	}
	return "", &protocol.Err{Code: protocol.BadRequest, Msg: fmt.Sprintf("%d sidecars have published that their host is %q: name one by its uuid, %s for instance", len(found), host, found[0])}
}

// hostPage returns a page of what sidecars have published; last: see store.Store.Hosts.
func (s *Server) hostPage(ctx context.Context, after string) ([]store.Host, string, error) {
	type page struct {
		hosts []store.Host
		last  string
		err   error
	}
	read := make(chan page, 1)
	s.store.Hosts(after, func(hosts []store.Host, last string, err error) { read <- page{hosts, last, err} })
	select {
	case p := <-read:
		return p.hosts, p.last, p.err
	case <-ctx.Done():
		return nil, "", fmt.Errorf("Redis has not answered for %v", s.cfg.AskWithin)
	}
}

func (s *Server) listHosts(ctx context.Context, r *protocol.Hosts) (protocol.Reply, *protocol.Err) {
	m := &protocol.HostsOK{ID: r.ID}
	for after := r.After; len(m.Hosts) == 0; { // the sidecars of a whole page may have ended
		hosts, last, err := s.hostPage(ctx, after)
		if err != nil {
			return nil, &protocol.Err{Code: protocol.Unavailable, Msg: "the hosts cannot be listed: " + err.Error()}
		}
		for i := range hosts {
			h := &hosts[i]
			m.Hosts = append(m.Hosts, protocol.HostRow{Sidecar: h.UUID, Host: h.Name, Version: h.Version, PID: h.PID, Started: h.Started})
		}
		m.More, after = last != "", last
		if last == "" {
			break
		}
	}
	return m, nil
}

// questions bounds what other sidecars may ask of this one.
type questions struct {
	waiting atomic.Int32 // for a step of the loop

	// Of the goroutine that reads from Redis.
	second   int64 // since the host was started
	answered int   // in that second
}

// take reports whether a question is to be answered. The loop calls done for it.
func (q *questions) take(now int64) bool {
	if second := now / int64(time.Second); second != q.second {
		q.second, q.answered = second, 0
	}
	if q.answered >= maxAnswers || q.waiting.Load() >= maxUnansweredQuestions {
		return false
	}
	q.answered++
	q.waiting.Add(1)
	return true
}

func (q *questions) done() { q.waiting.Add(-1) }

// onQuestion hands a question of another sidecar to the loop.
func (s *Server) onQuestion(from string, body []byte) {
	if s.cfg.OtherHosts == OtherHostsNone || !s.questions.take(protocol.Now()) {
		return
	}
	var d protocol.RequestDecoder
	req, err := d.Decode(body)
	if m, is := req.(*protocol.Status); is && err == nil {
		m := *m
		s.readers.Go(func() { s.answerStatus(from, &m) }) // because a survey takes several steps of the loop
		return
	}
	s.submitEvent(event{kind: hostQuestion, text: from, body: body})
}

// answerStatus answers another sidecar that asks for the status of this one.
func (s *Server) answerStatus(from string, m *protocol.Status) {
	defer s.questions.done()
	r := s.prepareStatus(m)
	if r.survey == nil {
		return // this sidecar is overloaded
	}
	done := make(chan struct{})
	s.submitEvent(event{kind: loopQuery, done: done, query: func(now int64) {
		s.store.Answer(from, frameBody(protocol.StatusOK{ID: r.ID, StatusRow: s.statusRow(now, r)}.Append(nil)))
	}})
	select {
	case <-done:
	case <-s.ended:
	}
}

// answerHost answers a question of another sidecar.
func (l *loop) answerHost(now int64, from string, body []byte) {
	l.questions.done()
	var d protocol.RequestDecoder
	req, err := d.Decode(body)
	if err != nil {
		return // a sidecar has checked it: this was sent by another program
	}
	var reply protocol.Reply
	switch r := req.(type) {
	case *protocol.Info:
		m := &protocol.InfoOK{ID: r.ID}
		if row, ok := l.table.Info(now, r.Name); ok {
			l.locate(now, &row)
			toRelative(now, &row)
			m.Lock = &row
		}
		reply = m
	case *protocol.List:
		m := l.list(now, nil, r)
		for i := range m.Locks {
			toRelative(now, &m.Locks[i])
		}
		reply = m
	case *protocol.ForceRelease:
		reply = l.forceForHost(now, from, r)
	default:
		return
	}
	l.store.Answer(from, frameBody(reply.Append(nil)))
}

// forceForHost ends a hold for another sidecar, if that is permitted here.
func (l *loop) forceForHost(now int64, from string, r *protocol.ForceRelease) protocol.Reply {
	if l.cfg.OtherHosts != OtherHostsForceRelease {
		refusal := &protocol.Err{ID: r.ID, Code: protocol.Denied, Msg: fmt.Sprintf("host %s does not permit it: its setting other_hosts is not %s; force it there", l.cfg.HostName, OtherHostsForceRelease)}
		l.auditForceByHost(now, from, r, 0, refusal)
		return refusal
	}
	hold, ok := l.table.EndHold(now, r.Name)
	if !ok {
		return &protocol.Err{ID: r.ID, Code: protocol.NotHeld, Msg: fmt.Sprintf("no client on host %s holds %q", l.cfg.HostName, r.Name)}
	}
	l.auditForceByHost(now, from, r, hold, nil)
	return &protocol.ForceReleaseOK{ID: r.ID, Hold: hold}
}

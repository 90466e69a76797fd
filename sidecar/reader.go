package sidecar

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/intake"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// readers is what the goroutines that read connections share.
type readers struct {
	loop     *loop
	commands *peers.Commands
	paces    intake.Paces[policy.Account]
	policyMu sync.Mutex // of readers that ask the policy; no other lock is taken under it
}

// serve reads one connection until it ends.
func (r *readers) serve(c *conn) {
	if fault := r.read(c); fault != nil {
		r.loop.hand(c, request{kind: clientProtocolError, conn: c, fault: fault})
		c.linger()
	} else {
		r.loop.hand(c, request{kind: clientDisconnected, conn: c})
	}
	c.end()
}

// read hands over requests until the connection ends, or until the client breaks
// the protocol: then it returns the last frame that the client is sent. What came before
// the fault is handed over, too.
func (r *readers) read(c *conn) (fault *protocol.Err) {
	c.readUntil(time.Now().Add(protocol.HelloTimeout))
	frames := protocol.NewReader(rawio.NewReader(c.raw))
	var decoder protocol.RequestDecoder
	var batch []request
	defer func() {
		if len(batch) > 0 {
			if c.pace != nil {
				c.pace.Pause(protocol.Now(), len(batch)) // they count; nothing follows that could wait
			}
			r.submit(c, batch)
		}
	}()
	questions := connQuestions{}
	questions.ctx, questions.cancel = context.WithCancel(context.Background())
	defer questions.end()
	greeted := false
	for {
		body, err := frames.Next()
		if err != nil {
			var broken *protocol.ConnError
			switch {
			case errors.As(err, &broken):
				return &protocol.Err{Code: broken.Code, Msg: broken.Msg}
			case !greeted && errors.Is(err, os.ErrDeadlineExceeded) && !c.hasNoReader():
				return &protocol.Err{Code: protocol.NoHello, Msg: "no hello within 5 s; say hello first"}
			}
			return nil
		}
		req, bad, fault := decode(&decoder, body)
		if fault != nil {
			return fault
		}
		if c.isDraining.Load() && !(greeted && givesBack(req)) {
			continue
		}
		hello, isHello := req.(*protocol.Hello)
		if bad != nil {
			isHello = bad.Op == "hello"
		}
		switch {
		case isHello && greeted:
			return &protocol.Err{Code: protocol.NoHello, Msg: "a second hello; a connection says it once"}
		case !isHello && !greeted:
			return &protocol.Err{Code: protocol.NoHello, Msg: "the first frame was not hello; say hello first"}
		case isHello && bad != nil:
			fault := bad.Reply()
			return &fault
		case isHello:
			greeted = true
			c.readUntil(time.Time{})
			if c.peer.PID > 0 {
				c.peer.Cmd, c.process = r.commands.Read(c.peer.PID), peers.ProcessOf(c.pidfd, c.peer.PID)
			}
			c.policyPeer, c.denial = r.readPolicyPeer(c)
			if c.policyPeer != nil {
				c.rules, c.refusal = r.rulesFor(c.policyPeer)
				n, account := c.rules.Requests(c.peer.UID)
				c.pace = r.paces.Open(protocol.Now(), account, n)
				defer r.paces.Close(c.pace)
				if c.pace != nil {
					c.pace.CountOpen(protocol.Now()) // the hello waits for both
				}
			}
			h := *hello
			batch = append(batch, request{kind: clientHello, conn: c, other: &h})
		case bad != nil:
			// Counted as a request, so that an endless stream of bad ones
			// waits for its answers to be read like any other.
			batch = append(batch, request{kind: clientOther, conn: c, other: &refused{bad}})
		case otherhosts.IsAbout(req):
			// What the client requested before does not wait for other hosts.
			if !r.submitBatch(c, &batch) {
				return nil
			}
			questions.ask(r.loop, c, otherhosts.Copy(req))
		default:
			switch m := req.(type) {
			case *protocol.Status:
				// What the client requested before does not wait for the survey.
				if !r.submitBatch(c, &batch) {
					return nil
				}
				batch = append(batch, request{kind: clientOther, conn: c, other: r.loop.prepareStatus(m)})
			case *protocol.Ping:
				// Here and not in the loop, because it may wait for a look at the socket.
				why, _ := r.loop.troubles.first()
				batch = append(batch, request{kind: clientOther, conn: c, other: &pingRequest{*m, why}})
			default:
				batch = append(batch, handOver(c, req))
			}
		}
		if list := isPaged(req); list || len(batch) >= c.mostRequests() || frames.Buffered() == 0 {
			if !r.submitBatch(c, &batch) {
				return nil
			}
			if list {
				// A page is a thousand times the size of its request.
				c.throttle(0, maxUnread)
			}
		}
	}
}

// submit hands requests to the loop once the client's earlier ones leave room.
func (r *readers) submit(c *conn, batch []request) bool {
	ok := c.throttle(maxQueued, maxUnread)
	// Even if the connection is being ended: releases that were read still count.
	c.mu.Lock()
	c.queued += len(batch)
	c.mu.Unlock()
	r.loop.hand(c, batch...)
	return ok
}

// submitBatch submits a batch, and empties it.
func (r *readers) submitBatch(c *conn, batch *[]request) bool {
	if len(*batch) == 0 {
		return true
	}
	if c.keepPace(batch); len(*batch) == 0 {
		return true
	}
	ok := r.submit(c, *batch)
	clear(*batch)
	*batch = (*batch)[:0]
	return ok
}

// isPaged reports whether the answer to a request is a page, which can be long.
func isPaged(req protocol.Request) bool {
	switch req.(type) {
	case *protocol.List, *protocol.Events:
		return true
	}
	return false
}

// decode returns a request, or what is wrong with it: a request error, or the last frame
// of its connection.
func decode(d *protocol.RequestDecoder, body []byte) (protocol.Request, *protocol.RequestError, *protocol.Err) {
	req, err := d.Decode(body)
	if err == nil {
		return req, nil, nil
	}
	if bad, ok := errors.AsType[*protocol.RequestError](err); ok {
		return nil, bad, nil
	}
	if broken, ok := errors.AsType[*protocol.ConnError](err); ok {
		fault := broken.Reply()
		return nil, nil, &fault
	}
	return nil, nil, badFrame(err.Error())
}

// handOver copies a request, which the decoder is about to reuse.
func handOver(c *conn, req protocol.Request) request {
	in := request{kind: clientOther, conn: c}
	switch r := req.(type) {
	case *protocol.Acquire:
		in.kind, in.acquire.Acquire = clientAcquire, *r
	case *protocol.AcquireReadWrite:
		in.kind, in.lock, in.shared, in.acquire.Acquire = clientAcquire, redisop.KindReadWrite, r.Shared, r.Acquire
	case *protocol.AcquirePermits:
		in.kind, in.lock, in.acquire = clientAcquire, redisop.KindPermits, *r
	case *protocol.Downgrade:
		v := *r
		in.other = &v
	case *protocol.Release:
		in.kind, in.release = clientRelease, *r
	case *protocol.Confirm:
		v := *r
		in.other = &v
	case *protocol.Cancel:
		v := *r
		in.other = &v
	case *protocol.Info:
		v := *r
		in.other = &v
	case *protocol.List:
		v := *r
		in.other = &v
	case *protocol.ForceRelease:
		v := *r
		in.other = &v
	case *protocol.Events:
		v := *r
		in.other = &v
	case *protocol.Claim:
		v := *r
		v.Holds = slices.Clone(r.Holds)
		in.other = &v
	case *protocol.Bye:
		v := *r
		in.other = &v
	case *protocol.Metrics:
		v := *r
		in.other = &v
	case *protocol.Unknown:
		v := *r
		in.other = &v
	}
	return in
}

// givesBack reports whether a sidecar that stops still executes a request. It says nothing more to clients.
func givesBack(req protocol.Request) bool {
	switch req.(type) {
	case *protocol.Release, *protocol.Bye:
		return true
	}
	return false
}

// readPolicyPeer reads what the policy depends on of the process of a connection. Its credentials
// are those that it had when it connected, so this is done once. nil: there is no policy.
func (r *readers) readPolicyPeer(c *conn) (*policy.Peer, *protocol.Err) {
	if r.loop.policy == nil {
		return nil, nil
	}
	peer := policy.Peer{UID: c.peer.UID, IsPrivileged: peers.IsPrivileged(c.peer.UID)}
	if r.loop.policy.NeedsGroups() {
		groups, err := peers.GroupsOf(c.raw)
		if err != nil {
			return nil, &protocol.Err{Code: protocol.Denied, Msg: "the sidecar cannot find out the groups of your process, on which its policy depends: " + err.Error()}
		}
		peer.GIDs = append(groups, c.gid)
	}
	if r.loop.policy.NeedsCgroup() {
		peer.Cgroup = peers.CgroupOf(c.pidfd, c.peer.PID)
	}
	return &peer, nil
}

// rulesFor returns what the policy says about a peer; nil: nothing. refused: it cannot be known.
func (r *readers) rulesFor(peer *policy.Peer) (rules *policy.Rules, refused *policy.Refusal) {
	r.policyMu.Lock()
	defer r.policyMu.Unlock()
	return r.loop.policy.For(peer)
}

package otherhosts

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/peers"
	"github.com/locksidecar/locksidecar/sidecar/policy"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
)

// maxHostPages bounds the search for a host by its name.
const maxHostPages = 50

// Answered is a request that was answered before it reached the loop.
type Answered struct {
	Request protocol.Request
	Reply   protocol.Reply
	Refused *policy.Refusal // by the policy; nil: it was not
}

// RequestID returns the id of the request.
func (a *Answered) RequestID() uint64 { return a.Request.RequestID() }

// IsAbout reports whether a request is answered by other hosts, or by what they published.
func IsAbout(req protocol.Request) bool {
	switch req.(type) {
	case *protocol.Hosts, *protocol.HostInfo, *protocol.HostList, *protocol.HostStatus, *protocol.HostForceRelease, *protocol.ForceReleaseOrphaned, *protocol.Who:
		return true
	}
	return false
}

// Copy copies a request about other hosts, which the decoder is about to reuse.
func Copy(req protocol.Request) protocol.Request {
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

// Answer answers a request about other hosts. It takes time.
func (h *Hosts) Answer(ctx context.Context, c *Client, req protocol.Request) *Answered {
	a := &Answered{Request: req}
	var refusal *protocol.Err
	if a.Refused = refuseByPolicy(c, req); a.Refused != nil {
		refusal = a.Refused.Err()
	} else {
		a.Reply, refusal = h.try(ctx, c, req)
	}
	if refusal != nil {
		refusal.ID = a.RequestID()
		a.Reply = refusal
	}
	return a
}

func (h *Hosts) try(ctx context.Context, c *Client, req protocol.Request) (protocol.Reply, *protocol.Err) {
	uid := c.UID
	if c.Denial != nil {
		refusal := *c.Denial
		return nil, &refusal
	}
	if h.cfg.Setting == None {
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
	if refusal := h.asker.begin(uid); refusal != nil {
		return nil, refusal
	}
	defer h.asker.end(uid)
	ctx, cancel := context.WithTimeout(ctx, h.cfg.AskWithin)
	defer cancel()
	switch r := req.(type) {
	case *protocol.Hosts:
		return h.listHosts(ctx, r)
	case *protocol.HostInfo:
		ok := new(protocol.HostInfoOK)
		refusal := h.askHost(ctx, r.Host, func(n uint64) protocol.Request { return protocol.Info{ID: n, Name: r.Name} }, ok)
		ok.ID = r.ID
		if refusal == nil && ok.Lock != nil {
			if refusal = acceptRows(r.Host, ok.Lock); refusal == nil && c.Rules != nil {
				c.Rules.HostTerms().Redact(ok.Lock, false)
			}
		}
		return ok, refusal
	case *protocol.HostList:
		ok := new(protocol.HostListOK)
		refusal := h.askHost(ctx, r.Host, func(n uint64) protocol.Request { return protocol.List{ID: n, After: r.After} }, ok)
		ok.ID = r.ID
		if refusal == nil {
			rows := make([]*protocol.LockRow, len(ok.Locks))
			for i := range ok.Locks {
				rows[i] = &ok.Locks[i]
			}
			refusal = acceptRows(r.Host, rows...)
		}
		if refusal == nil && c.Rules != nil {
			terms, kept := c.Rules.HostTerms(), ok.Locks[:0]
			for i := range ok.Locks {
				if terms.Redact(&ok.Locks[i], false) {
					kept = append(kept, ok.Locks[i])
				}
			}
			ok.Locks = kept
		}
		return ok, refusal
	case *protocol.HostStatus:
		ok := new(protocol.HostStatusOK)
		refusal := h.askHost(ctx, r.Host, func(n uint64) protocol.Request { return protocol.Status{ID: n} }, ok)
		ok.ID = r.ID
		if c.Rules != nil {
			c.Rules.HostTerms().RedactOldest(&ok.StatusRow)
		}
		return ok, refusal
	case *protocol.HostForceRelease:
		ok := new(protocol.HostForceReleaseOK)
		refusal := h.askHost(ctx, r.Host, func(n uint64) protocol.Request {
			return protocol.ForceRelease{ID: n, Name: r.Name, Hold: r.Hold, By: &protocol.Requester{Host: h.cfg.HostName, PID: c.PID, UID: uid, Cmd: c.Cmd}}
		}, ok)
		ok.ID = r.ID
		return ok, refusal
	case *protocol.ForceReleaseOrphaned:
		ok, refusal := h.releaseOrphaned(r)
		if refusal != nil {
			return nil, refusal
		}
		ok.ID = r.ID
		return ok, nil
	}
	panic(fmt.Sprintf("%T is not about hosts", req))
}

// refuseByPolicy says why the policy does not let a client ask other hosts; nil: it does, and
// what they answer is to be redacted with Rules.HostTerms. What entries hide or forbid here would be
// open there: the policy of this host is not known to other ones. A process of which it is not
// known which entries are about it is refused.
func refuseByPolicy(c *Client, req protocol.Request) *policy.Refusal {
	switch {
	case c.Refusal != nil:
		return c.Refusal
	case c.Rules == nil:
		return nil
	}
	name := ""
	switch r := req.(type) {
	case *protocol.HostForceRelease, *protocol.ForceReleaseOrphaned:
		return c.Rules.ForceHost()
	case *protocol.HostInfo:
		name = r.Name
	case *protocol.Who:
		name = r.Name
	}
	if why := c.Rules.Hosts(); why != nil || name == "" {
		return why
	}
	return c.Rules.HostLock(name)
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

// askHost asks the sidecar of a host, and decodes its answer into ok.
func (h *Hosts) askHost(ctx context.Context, host string, question func(number uint64) protocol.Request, ok protocol.OK) *protocol.Err {
	sidecar, refusal := h.sidecarOf(ctx, host)
	if refusal != nil {
		return refusal
	}
	err := h.askSidecar(ctx, sidecar, question, ok)
	var refused refusedByHost
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		return &protocol.Err{Code: refused.Code, Msg: refused.Msg}
	case errors.Is(err, errNotReached):
		return &protocol.Err{Code: protocol.Unavailable, Msg: fmt.Sprintf("the sidecar of host %s does not run, or is not connected to Redis", host)}
	case errors.Is(err, errNoAnswer):
		text := fmt.Sprintf("host %s did not answer within %v", host, h.cfg.AskWithin)
		if _, isForced := question(0).(protocol.ForceRelease); isForced {
			text += "; the force-release may have been executed"
		}
		return &protocol.Err{Code: protocol.Unavailable, Msg: text}
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
func (h *Hosts) askSidecar(ctx context.Context, sidecar string, question func(number uint64) protocol.Request, ok protocol.OK) error {
	number, answer := h.asker.expect()
	defer h.asker.forget(number)
	reached := make(chan error, 1)
	h.Store.Ask(sidecar, frameBody(question(number).Append(nil)), func(is bool, err error) {
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
func (h *Hosts) sidecarOf(ctx context.Context, host string) (string, *protocol.Err) {
	if len(host) == len(h.cfg.UUID) && uuid.Validate(host) == nil {
		return host, nil
	}
	var found []string
	after := ""
	for range maxHostPages {
		hosts, last, err := h.hostPage(ctx, after)
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
func (h *Hosts) hostPage(ctx context.Context, after string) ([]lookup.Host, string, error) {
	type page struct {
		hosts []lookup.Host
		last  string
		err   error
	}
	read := make(chan page, 1)
	h.Store.Hosts(after, func(hosts []lookup.Host, last string, err error) { read <- page{hosts, last, err} })
	select {
	case p := <-read:
		return p.hosts, p.last, p.err
	case <-ctx.Done():
		return nil, "", silentRedis(h.cfg.AskWithin)
	}
}

func (h *Hosts) listHosts(ctx context.Context, r *protocol.Hosts) (protocol.Reply, *protocol.Err) {
	m := &protocol.HostsOK{ID: r.ID}
	for after := r.After; len(m.Hosts) == 0; { // the sidecars of a whole page may have ended
		hosts, last, err := h.hostPage(ctx, after)
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

// frameBody returns the body of a frame.
func frameBody(frame []byte) []byte { return frame[4:] }

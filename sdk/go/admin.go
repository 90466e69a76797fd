package locksidecar

import (
	"context"
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/protocol"
)

// These requests are for operators. To lock and to unlock needs none of them.
// Each waits for its answer as long as its context allows.

// Info describes a lock, as the sidecar of this host knows it. It returns false if the sidecar
// does not know the lock: no process of this host holds it or waits for it, or has just
// released it. Another host may hold it.
func (c *Client) Info(ctx context.Context, name string) (LockInfo, bool, error) {
	if err := protocol.CheckName(name); err != nil {
		return LockInfo{}, false, &clientError{text: err.Error()}
	}
	var ok protocol.InfoOK
	err := c.ask(ctx, newCall(queryCall, task{"ask about", name}, &ok, func(id uint64) protocol.Request {
		return protocol.Info{ID: id, Name: name}
	}))
	if err != nil || ok.Lock == nil {
		return LockInfo{}, false, err
	}
	return newLockInfo(ok.Lock, c.readClocks()), true, nil
}

// List returns every lock that a process of this host holds or waits for.
func (c *Client) List(ctx context.Context) ([]LockInfo, error) {
	var locks listedLocks
	var conn *connection // of the last page
	for after := uint64(0); ; {
		var page protocol.ListOK
		ask := newCall(queryCall, task{"list the locks", ""}, &page, func(id uint64) protocol.Request {
			return protocol.List{ID: id, After: after}
		})
		if err := c.ask(ctx, ask); err != nil {
			return nil, err
		}
		if ask.conn != conn && after != 0 {
			// The page is of another sidecar, which lists its locks in another order.
			locks, after = listedLocks{}, 0
			continue
		}
		conn = ask.conn
		locks.add(convertRows(page.Locks, c.readClocks(), newLockInfo))
		if after = page.Next; after == 0 {
			return locks.rows, nil
		}
	}
}

// listedLocks are the rows of the pages that were read of a list.
type listedLocks struct {
	rows  []LockInfo
	place map[string]int // of the name in rows
}

func (l *listedLocks) add(page []LockInfo) {
	if l.place == nil {
		l.place = make(map[string]int, len(page))
	}
	for _, row := range page {
		// The sidecar may list a lock twice; the later row is the newer one.
		if i, isListed := l.place[row.Name]; isListed {
			l.rows[i] = row
			continue
		}
		l.place[row.Name] = len(l.rows)
		l.rows = append(l.rows, row)
	}
}

// EventPage is a part of the events that a sidecar has in memory.
type EventPage struct {
	Events []Event // in the order in which they happened
	Next   uint64  // argument after of the next call
	Missed uint64  // how many events between after and Next the sidecar does not have any more
	Hidden string  // which events the policy hides from this process, in one sentence; "": none
}

// Events returns what happened to locks of this host. after is 0 for the oldest event that the
// sidecar has, or Next of an earlier page. With wait, Events returns when there is an event, or,
// with an error, when ctx ends. Without wait a page without events is the last one. The sidecar keeps the newest events only: a program that reads them too slowly finds in
// Missed how many it did not get. A restart of the sidecar is an event, too, if it had holds.
func (c *Client) Events(ctx context.Context, after uint64, wait bool) (EventPage, error) {
	var ok protocol.EventsOK
	err := c.ask(ctx, newCall(queryCall, task{"read the events", ""}, &ok, func(id uint64) protocol.Request {
		return protocol.Events{ID: id, After: after, Wait: wait}
	}))
	return EventPage{convertRows(ok.Events, c.readClocks(), newEvent), ok.Next, ok.Missed, ok.Hidden}, err
}

// Status returns how the sidecar of this host and its locks are.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var ok protocol.StatusOK
	err := c.ask(ctx, newCall(queryCall, task{"read the status", ""}, &ok, func(id uint64) protocol.Request {
		return protocol.Status{ID: id}
	}))
	if err != nil {
		return Status{}, err
	}
	return newStatus(&ok.StatusRow, c.readClocks()), nil
}

// ForcedRelease is what ForceRelease has ended.
type ForcedRelease struct {
	Hold  uint64 // number of the hold; of several, the newest
	Count int    // holds that were ended
}

// ForceOption changes what ForceRelease ends.
type ForceOption struct{ hold uint64 }

// OnlyHold makes ForceRelease end the hold with that number alone, as Info, Who and Events show it: of
// several holds of a semaphore, or of a lock that may have passed on meanwhile.
func OnlyHold(hold uint64) ForceOption { return ForceOption{hold} }

// ForceRelease ends the hold that a process of this host has on the lock, or all holds that such
// processes have of the semaphore (see [OnlyHold]). The error is ErrNotHeld if there is none. The holder is notified that it lost the lock, but not stopped.
// Root, the sidecar's user and the user of each holder may do this. If the sidecar stops
// before it answers, the error is ErrUnavailable, and the hold may have ended.
func (c *Client) ForceRelease(ctx context.Context, name string, options ...ForceOption) (ForcedRelease, error) {
	var ok protocol.ForceReleaseOK
	return c.force(ctx, task{"force the release of", name}, options, &ok, &ok, func(id, hold uint64) protocol.Request {
		return protocol.ForceRelease{ID: id, Name: name, Hold: hold}
	})
}

// force requests a forced release. ended is the answer.
func (c *Client) force(ctx context.Context, t task, options []ForceOption, answer protocol.OK, ended *protocol.ForceReleaseOK, request func(id, hold uint64) protocol.Request) (ForcedRelease, error) {
	if err := protocol.CheckName(t.name); err != nil {
		return ForcedRelease{}, &clientError{text: err.Error()}
	}
	var hold uint64
	for _, o := range options {
		if hold = o.hold; hold == 0 {
			return ForcedRelease{}, &clientError{text: t.String() + ": OnlyHold(0): holds have numbers from 1; leave the option out to end all"}
		}
	}
	if err := c.ask(ctx, newCall(forceCall, t, answer, func(id uint64) protocol.Request { return request(id, hold) })); err != nil {
		return ForcedRelease{}, err
	}
	forced := ForcedRelease{ended.Hold, int(max(1, ended.Count))}
	if hold != 0 && forced.Hold != hold {
		return forced, &clientError{
			text: fmt.Sprintf("%s: the sidecar is older than this client, and ended hold %d in the place of hold %d; upgrade it and restart it", t, forced.Hold, hold),
			kind: ErrUnsupported,
		}
	}
	return forced, nil
}

// Metrics returns what the sidecar counts, in the text format of Prometheus.
func (c *Client) Metrics(ctx context.Context) (string, error) {
	var text strings.Builder
	var conn *connection // of the last page
	for after := uint64(0); ; {
		var page protocol.MetricsOK
		ask := newCall(queryCall, task{"read the metrics", ""}, &page, func(id uint64) protocol.Request {
			return protocol.Metrics{ID: id, After: after}
		})
		if err := c.ask(ctx, ask); err != nil {
			return "", err
		}
		if ask.conn != conn && after != 0 {
			text.Reset() // the page is of another sidecar
			after = 0
			continue
		}
		conn = ask.conn
		text.WriteString(page.Text)
		if page.Next == 0 {
			return text.String(), nil
		}
		after = page.Next
	}
}

// Hosts returns the sidecars that use the same Redis with the same key prefix, this one among them,
// in no particular order. One that has stopped is listed for a few minutes more.
func (c *Client) Hosts(ctx context.Context) ([]HostInfo, error) {
	var hosts []HostInfo
	for after := ""; ; {
		var page protocol.HostsOK
		err := c.ask(ctx, newCall(queryCall, task{"list the hosts", ""}, &page, func(id uint64) protocol.Request {
			return protocol.Hosts{ID: id, After: after}
		}))
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, convertRows(page.Hosts, c.readClocks(), newHostInfo)...)
		if !page.More || len(page.Hosts) == 0 {
			return hosts, nil
		}
		after = page.Hosts[len(page.Hosts)-1].Sidecar
	}
}

// InfoOn describes a lock as the sidecar of another host knows it. host is the name of the host, or
// the uuid of its sidecar, which the RemoteField of a LockInfo begins with. The error is
// ErrUnavailable if that sidecar did not answer within half a second. A sidecar asks up to 64 hosts
// at one time for one client; other requests of the client wait meanwhile for none of them.
func (c *Client) InfoOn(ctx context.Context, host, name string) (LockInfo, bool, error) {
	if err := protocol.CheckName(name); err != nil {
		return LockInfo{}, false, &clientError{text: err.Error()}
	}
	var ok protocol.HostInfoOK
	err := c.ask(ctx, newCall(queryCall, task{"ask host " + host + " about", name}, &ok, func(id uint64) protocol.Request {
		return protocol.HostInfo{ID: id, Host: host, Name: name}
	}))
	if err != nil || ok.Lock == nil {
		return LockInfo{}, false, err
	}
	return newLockInfo(ok.Lock, c.readClocks()), true, nil
}

// ListOn returns every lock that a process of another host holds or waits for. host is as for
// InfoOn.
func (c *Client) ListOn(ctx context.Context, host string) ([]LockInfo, error) {
	var locks listedLocks
	for after := uint64(0); ; {
		var page protocol.HostListOK
		err := c.ask(ctx, newCall(queryCall, task{"list the locks of host " + host, ""}, &page, func(id uint64) protocol.Request {
			return protocol.HostList{ID: id, Host: host, After: after}
		}))
		if err != nil {
			return nil, err
		}
		locks.add(convertRows(page.Locks, c.readClocks(), newLockInfo))
		if after = page.Next; after == 0 {
			return locks.rows, nil
		}
	}
}

// StatusOn returns how the sidecar of another host and its locks are. host is as for InfoOn. The error is ErrUnavailable
// also if that sidecar is too old to answer.
func (c *Client) StatusOn(ctx context.Context, host string) (Status, error) {
	var ok protocol.HostStatusOK
	err := c.ask(ctx, newCall(queryCall, task{"ask for the status of host " + host, ""}, &ok, func(id uint64) protocol.Request {
		return protocol.HostStatus{ID: id, Host: host}
	}))
	if err != nil {
		return Status{}, err
	}
	return newStatus(&ok.StatusRow, c.readClocks()), nil
}

// ForceReleaseOn is ForceRelease for a hold that a process of another host has. host is as for
// InfoOn. Root and the user of this sidecar may do this, if the setting other_hosts of the other
// sidecar permits it. After ErrUnavailable the hold may have ended.
func (c *Client) ForceReleaseOn(ctx context.Context, host, name string, options ...ForceOption) (ForcedRelease, error) {
	var ok protocol.HostForceReleaseOK
	t := task{"force the release on host " + host + " of", name}
	return c.force(ctx, t, options, &ok, (*protocol.ForceReleaseOK)(&ok), func(id, hold uint64) protocol.Request {
		return protocol.HostForceRelease{ID: id, Host: host, Name: name, Hold: hold}
	})
}

// OrphanedOption changes what ForceReleaseOrphaned frees.
type OrphanedOption struct{ sidecar string }

// OfSidecar makes ForceReleaseOrphaned free what the sidecar with this uuid has. It is needed for a semaphore of which several
// other hosts have permits. [Client.Who] shows the uuids.
func OfSidecar(uuid string) OrphanedOption { return OrphanedOption{uuid} }

// ForceReleaseOrphaned frees a lock whose sidecar is gone for good, because its host died. Otherwise
// Redis has the lock until its lease or its keep ends. Of a semaphore it frees all permits that such a sidecar has. Root and
// the user of this sidecar may do this.
// The error is ErrNotHeld if no client has the lock, and ErrDenied if the lock is not orphaned: its
// sidecar may be alive, or is this one, or it is the lock of a foreign client.
//
// A sidecar that is only cut off from Redis cannot be told from one that is gone. Its processes then
// rely on the lock until their deadline, which is within the TTL of the OrphanedLock. After
// ErrUnavailable the lock may be free. Requests of this client that are sent in the meantime wait for
// the answer, for a second and a half at most.
func (c *Client) ForceReleaseOrphaned(ctx context.Context, name string, options ...OrphanedOption) (OrphanedLock, error) {
	if err := protocol.CheckName(name); err != nil {
		return OrphanedLock{}, &clientError{text: err.Error()}
	}
	sidecar := ""
	for _, o := range options {
		sidecar = o.sidecar
	}
	var ok protocol.ForceReleaseOrphanedOK
	err := c.ask(ctx, newCall(forceCall, task{"free the orphaned lock", name}, &ok, func(id uint64) protocol.Request {
		return protocol.ForceReleaseOrphaned{ID: id, Name: name, Sidecar: sidecar}
	}))
	if err != nil {
		return OrphanedLock{}, err
	}
	if sidecar != "" && ok.Sidecar != sidecar {
		err = &clientError{
			text: fmt.Sprintf("free the orphaned lock %q: the sidecar of this host is older than this client, and freed what sidecar %s had in the place of %s; upgrade it and restart it", name, ok.Sidecar, sidecar),
			kind: ErrUnsupported,
		}
	}
	return newOrphanedLock(&ok), err
}

// Who returns who has a lock and who waits for it, on all hosts. The sidecar reads Redis once and
// asks the sidecar of the owner, so the answer takes a second at most, however many hosts there are.
// A program may see as much as Info shows it, and of other hosts as much as Hosts and InfoOn do.
func (c *Client) Who(ctx context.Context, name string) (Ownership, error) {
	if err := protocol.CheckName(name); err != nil {
		return Ownership{}, &clientError{text: err.Error()}
	}
	var ok protocol.WhoOK
	err := c.ask(ctx, newCall(queryCall, task{"ask who has", name}, &ok, func(id uint64) protocol.Request {
		return protocol.Who{ID: id, Name: name}
	}))
	if err != nil {
		return Ownership{}, err
	}
	return newOwnership(&ok.WhoRow, c.readClocks()), nil
}

// Ping returns "ok", or one sentence about what is wrong between the sidecar and Redis.
func (c *Client) Ping(ctx context.Context) (string, error) {
	h, err := c.Health(ctx)
	return h.Redis, err
}

// Health is the state of a sidecar's connection to Redis.
type Health struct {
	Redis        string // "ok", or one sentence about what is wrong
	Degraded     bool   // the sidecar is connected to Redis, but Redis refuses what locks need; Redis says why
	RedisAddress string // where the sidecar connects to Redis, and the number of the database
	RedisRunID   string // of the Redis server; "": the sidecar is not connected, or Redis does not report it
	RedisRisk    string // what endangers locks while Redis serves, such as settings with which two owners may have one lock after a failover; "": nothing is known
	KeyPrefix    string // what the sidecar puts before the names of locks in Redis; "": nothing
	Trouble      string // why clients cannot connect, or why a restart would end their locks; "": neither is the case
}

// Health returns what Ping returns, and which Redis the sidecar uses. Hosts share locks
// only if they use the same Redis, with the same key prefix.
func (c *Client) Health(ctx context.Context) (Health, error) {
	var ok protocol.PingOK
	err := c.ask(ctx, newCall(queryCall, task{"ping the sidecar", ""}, &ok, func(id uint64) protocol.Request {
		return protocol.Ping{ID: id}
	}))
	return Health{ok.Redis, ok.Degraded, ok.RedisAddress, ok.RedisRunID, ok.RedisRisk, ok.KeyPrefix, ok.Trouble}, err
}

func (c *Client) ask(ctx context.Context, ask *call) error {
	return c.withSession(ctx, ask.task, func(s *session) error { return s.ask(ctx, ask) })
}

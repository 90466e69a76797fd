package contest

import (
	"time"

	"github.com/locksidecar/locksidecar/sidecar/locktable/moment"
)

// maxUnneededMessages is how many messages a subscription is kept for that no waiter needs:
// each costs Redis as much as another subscription.
const maxUnneededMessages = 4

// Subscription is what the table does about the channel of the lock.
type Subscription uint8

const (
	StaysAsItIs Subscription = iota
	Subscribe
	Unsubscribe
)

// UpdateSubscription decides whether the host is to be subscribed to the lock's channel:
//   - while local waiters wait for another host, and no sidecar would notify them that the lock
//     is free: there is no ticket, or the holder is a foreign client and only one ticket, or none,
//     stands before this host's;
//   - while local waiters have waited for long for one local holder, or as the first of the
//     queue: so that they notice at once if a program deletes the key;
//   - and for some time after; in the second case not if sidecars queue for the lock. Every
//     subscriber counts as a foreign client that waits, for which they leave the lock free more
//     often and for longer.
//
// waitsSince is when the first waiter came, and heldSince when the hold of the local client was
// granted; moment.Never: there is none.
func (c *Contest) UpdateSubscription(s *Shared, a *moment.Alarm, waitsSince, heldSince int64) (change Subscription) {
	isNeeded, isPolling := false, false
	until := a.Now + int64(s.cfg.SubscriptionLinger)
	isHeld := heldSince != never
	p := &c.place
	switch isAway := !isHeld && c.remote.isKnown; {
	case waitsSince == never:
	case isAway && (p.phase == placeAsked || p.phase == placeLeaving):
		isNeeded, isPolling = c.sub != unsubscribed, c.isPolling // until the result that is to come
		until = a.Now
	case isAway && !c.isNotified():
		isNeeded, isPolling = true, c.sub != subscribed
	case isHeld || isAway && p.rank == 0:
		since := heldSince
		if isAway {
			since = p.since
		}
		isNeeded = a.Due(max(waitsSince, since) + int64(s.cfg.WatchAfter))
		if p.isQueued() || c.memory.hostsWait {
			until = a.Now
		}
	}
	if isNeeded {
		c.subscribedUntil, c.unneededMessages = max(c.subscribedUntil, until), 0
		if c.sub == unsubscribed {
			c.sub, change = subscribing, Subscribe
		}
	} else if c.sub != unsubscribed && a.Due(c.subscribedUntil) {
		c.sub, change = unsubscribed, Unsubscribe
	}
	if isPolling != c.isPolling {
		c.isPolling = isPolling
		if isPolling {
			s.polling++
		} else {
			s.polling--
		}
	}
	return change
}

// IsSubscribing reports whether the host is subscribed to the lock's channel, or asked for that.
func (c *Contest) IsSubscribing() bool { return c.sub != unsubscribed }

// IsSubscribed reports whether the host is subscribed to the lock's channel.
func (c *Contest) IsSubscribed() bool { return c.sub == subscribed }

// OnSubscribed notes that Redis confirmed the subscription, for the first time or again:
// whatever was published before may have been missed, so a waiter for another host asks
// again.
func (c *Contest) OnSubscribed(now int64, isWaiting bool) {
	c.sub = subscribed
	if isWaiting && c.remote.isKnown {
		c.TryBy(now)
	}
}

// OnUnsubscribed notes that the subscription is gone or was denied. The host polls
// until OnSubscribed.
func (c *Contest) OnUnsubscribed(s *Shared, now int64) {
	c.sub = subscribing
	c.TryBy(now + c.pollPause(s))
}

// OnUnneededMessage notes a message that no local waiter needs.
func (c *Contest) OnUnneededMessage(now int64) {
	if c.unneededMessages++; c.unneededMessages >= maxUnneededMessages {
		c.subscribedUntil = min(c.subscribedUntil, now)
	}
}

// pollPause is how long a lock that another host has is not asked for if no message comes, by
// a host that has no ticket.
func (c *Contest) pollPause(s *Shared) int64 {
	if c.sub == subscribed {
		return int64(s.cfg.Poll)
	}
	return int64(min(max(s.cfg.PollDeaf, time.Duration(s.polling)*s.cfg.PollDeafLeast), s.cfg.Poll))
}

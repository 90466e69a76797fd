package contest

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// A message is another program's unless this host is about to publish one. If it were taken for this
// host's own, the release that another program published would go unnoticed.
func TestMessageIsOwnOnlyIfThisHostPublishesOne(t *testing.T) {
	const ms = int64(time.Millisecond)
	subscribedOne := func() *subscription {
		c := &subscription{sub: subscribed}
		c.expectOwnPublish(0)
		return c
	}
	for what, tt := range map[string]struct {
		result redisop.Result
		isOwn  bool
	}{
		"a release that was published":         {redisop.Result{Outcome: redisop.Done, Listeners: redisop.Listeners{State: redisop.Counted, N: 1}}, true},
		"a release that was not published":     {redisop.Result{Outcome: redisop.Done, Listeners: redisop.Listeners{State: redisop.Uncounted}}, false},
		"a lock that passed on":                {redisop.Result{Outcome: redisop.Done, Passed: true, Listeners: redisop.Listeners{State: redisop.Counted}}, false},
		"a release that was refused":           {redisop.Result{Outcome: redisop.Refused, Listeners: redisop.Listeners{State: redisop.Counted}}, false},
		"a release of which that is not known": {redisop.Result{Outcome: redisop.Unknown}, false},
	} {
		c := subscribedOne()
		c.expectNoPublish(&tt.result)
		if got := c.OnMessage(ms); got != tt.isOwn {
			t.Errorf("%s: the next message is own: %v", what, got)
		}
		if c.OnMessage(ms) {
			t.Errorf("%s: a second message is own", what)
		}
	}

	// A message that was lost is not made up for by a later one of another program.
	c := subscribedOne()
	if c.OnMessage(ownPublishWithin) {
		t.Error("a message is own that came too late")
	}
	c.expectOwnPublish(2 * ownPublishWithin)
	if !c.OnMessage(2*ownPublishWithin + ms) {
		t.Error("the message of the next release is not own")
	}
	if c.OnMessage(2*ownPublishWithin + 2*ms) {
		t.Error("the message after it is own, instead of one that was lost")
	}
}

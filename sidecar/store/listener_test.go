package store

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// listeners waits until the channel of name has n subscribers.
func listeners(t *testing.T, c *redis.Client, name string, n int64) {
	t.Helper()
	receivers(t, c, channelOf(name), n)
}

// receivers waits until a channel has n subscribers.
func receivers(t *testing.T, c *redis.Client, ch string, n int64) {
	t.Helper()
	var got int64
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if got = must(c.PubSubNumSub(ctx, ch).Result())[ch]; got == n {
			return
		}
	}
	t.Fatalf("%q has %d subscribers, want %d", ch, got, n)
}

// names collects n names from a channel, each of which must come once.
func names(t *testing.T, from chan string, n int, what string) map[string]bool {
	t.Helper()
	got := map[string]bool{}
	for range n {
		name := recv(t, from, what)
		if got[name] {
			t.Errorf("%s of %q twice", what, name)
		}
		got[name] = true
	}
	return got
}

func TestPublishedReleaseIsReceived(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		r := connected(t, b.url)
		for _, name := range []string{"invoice:42", "order:{7}:x", "odd{", "with space", "ключ"} {
			r.Subscribe(0, name)
			if got := recv(t, r.subscribed, "subscription"); got != name {
				t.Fatalf("got %q, want %q", got, name)
			}
			// A Redisson program releases.
			b.admin.Publish(ctx, channelOf(name), "0")
			if got := recv(t, r.messages, "message"); got != name {
				t.Errorf("got %q, want %q", got, name)
			}
			// We do.
			r.one(takeOp(name, 1))
			if res := r.one(dropOp(name, 1)); res.Listeners != redisop.CountedListeners(1) {
				t.Errorf("%+v listeners, want 1", res.Listeners)
			}
			if got := recv(t, r.messages, "message"); got != name {
				t.Errorf("got %q, want %q", got, name)
			}
			r.Unsubscribe(0, name)
			listeners(t, b.admin, name, 0)
		}
	})
}

// "a" and "{a}" have one channel. A subscription for "{a}" would count as a program that waits
// for "a".
func TestOneOfTwoNamesWithOneChannelIsSubscribed(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	next := func(name string) { // the order of what the listener does is the order of our calls
		t.Helper()
		r.Subscribe(0, name)
		if got := recv(t, r.subscribed, "subscription"); got != name {
			t.Errorf("the subscription of %q is confirmed, want %q", got, name)
		}
	}
	r.Subscribe(0, "{a}")
	next("b")
	listeners(t, a, "a", 0)
	next("a")
	listeners(t, a, "a", 1)
	a.Publish(ctx, channelOf("{a}"), "0")
	a.Publish(ctx, channelOf("b"), "0")
	if got := names(t, r.messages, 2, "message"); !got["a"] || !got["b"] {
		t.Errorf("messages of %v", got)
	}
	r.Unsubscribe(0, "{a}")
	next("c")
	listeners(t, a, "a", 1)
	r.Unsubscribe(0, "a")
	listeners(t, a, "a", 0)
}

// A lock could have such a name in the state file of an earlier version.
//
// Shows docs/guarantees.md: Names a lock like another lock's token counter, queue or channel.
func TestChannelOfASidecarIsNeverThatOfALock(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	for _, id := range []string{ourUUID, otherUUID} {
		r.Subscribe(0, "{locksidecar}:"+id)
		r.Subscribe(0, "b")
		if got := recv(t, r.subscribed, "subscription"); got != "b" {
			t.Errorf("the subscription of %q is confirmed", got)
		}
		r.Unsubscribe(0, "{locksidecar}:"+id)
		r.Unsubscribe(0, "b")
		listeners(t, a, "b", 0)
	}
	for id, want := range map[string]int64{ourUUID: 1, otherUUID: 0} {
		if got := must(a.PubSubNumSub(ctx, wire.OwnChannel(id)).Result())[wire.OwnChannel(id)]; got != want {
			t.Errorf("the channel of %s has %d subscribers, want %d", id, got, want)
		}
	}
}

func TestThousandSubscriptions(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	const n = 1050
	for i := range n {
		r.Subscribe(0, fmt.Sprint(i))
	}
	names(t, r.subscribed, n, "subscription")
	for i := range n {
		a.Publish(ctx, channelOf(fmt.Sprint(i)), "0")
	}
	names(t, r.messages, n, "message")

	// The connection ends: messages may be missed until all are subscribed again.
	a.ClientKillByFilter(ctx, "TYPE", "pubsub")
	names(t, r.unsubscribed, n, "end of subscription")
	names(t, r.subscribed, n, "subscription")
	for i := range n {
		r.Unsubscribe(0, fmt.Sprint(i))
	}
	listeners(t, a, fmt.Sprint(n-1), 0)
	if len(r.unsubscribed) != 0 {
		t.Error("Unsubscribe was answered with OnUnsubscribed")
	}
}

// A subscription that stands is confirmed again: whoever asks is answered.
func TestSubscribeIsAlwaysConfirmed(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url())
	for range 200 {
		r.Subscribe(0, "lock")
		recv(t, r.subscribed, "subscription")
		r.Unsubscribe(0, "lock")
	}
	for range 200 {
		r.Subscribe(0, "lock")
		recv(t, r.subscribed, "subscription")
	}
}

// However fast subscriptions begin and end, and though the connection ends meanwhile: in the
// end exactly what is wanted is subscribed.
func TestChangingMinds(t *testing.T) {
	s := startRedis(t)
	a := s.admin()
	r := connected(t, s.url())
	random := harness.Random(t)
	for round := range 20 {
		wanted := map[string]bool{}
		for i := range 2000 {
			name := fmt.Sprintf("%d:%d", round, random.IntN(30))
			if wanted[name] = random.IntN(2) == 0; wanted[name] {
				r.Subscribe(0, name)
			} else {
				r.Unsubscribe(0, name)
			}
			if i%100 == 0 {
				a.Ping(ctx) // lets some of it out
			}
			if i == 1000 && round%3 == 0 {
				a.ClientKillByFilter(ctx, "TYPE", "pubsub")
			}
		}
		for name, want := range wanted {
			if want {
				listeners(t, a, name, 1)
				r.Unsubscribe(0, name)
			}
		}
		for name := range wanted {
			listeners(t, a, name, 0)
		}
	}
}

// The server stands still and does not even close the connection.
func TestSilentSubscriptionIsGivenUp(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := connected(t, s.url(), func(c *Config) { c.Timeout = patience })
	r.Subscribe(0, "a")
	recv(t, r.subscribed, "subscription")
	s.suspend()
	r.ageIdle()
	r.impatient()
	if got := recv(t, r.unsubscribed, "end of subscription"); got != "a" {
		t.Errorf("got %q", got)
	}
	r.Subscribe(0, "b")
	s.signal(syscall.SIGCONT)
	if got := names(t, r.subscribed, 2, "subscription"); !got["a"] || !got["b"] {
		t.Errorf("got %v", got)
	}
}

// A SUBSCRIBE that Redis does not answer shows that the connection is dead, as a script does.
func TestUnansweredSubscriptionEndsTheConnection(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.url(), func(c *Config) { c.Timeout = patience })
	s.suspend()
	r.Subscribe(0, "a")
	r.later(0)
	r.impatient()
	r.down()
	s.signal(syscall.SIGCONT)
	if got := recv(t, r.subscribed, "subscription"); got != "a" {
		t.Errorf("got %q", got)
	}
	if len(r.unsubscribed) > 0 {
		t.Error("the end of a subscription that was not confirmed")
	}
}

// Some channels are not permitted: the others do not suffer, and the log tells
// once.
func TestDeniedChannelsDoNotPoisonOthers(t *testing.T) {
	s := startRedis(t)
	url := s.userURL("some", "~*", "&redisson_lock__channel:{ok*", "+@all")
	r := connected(t, url)
	ok, denied := 0, 0
	for i := range 350 {
		if i%90 == 7 {
			r.Subscribe(0, fmt.Sprint("no", i))
			denied++
		} else {
			r.Subscribe(0, fmt.Sprint("ok", i))
			ok++
		}
	}
	for name := range names(t, r.subscribed, ok, "subscription") {
		if !strings.HasPrefix(name, "ok") {
			t.Errorf("%q is subscribed", name)
		}
	}
	for name := range names(t, r.unsubscribed, denied, "denial") {
		if !strings.HasPrefix(name, "no") {
			t.Errorf("%q is denied", name)
		}
	}
	if n := strings.Count(r.logged(), "may not subscribe to the channels of locks"); n != 1 {
		t.Errorf("the log tells %d times: %s", n, r.logged())
	}
	// Permitted now, and asked again.
	s.admin().ACLSetUser(ctx, "some", "allchannels")
	r.Subscribe(0, "no7")
	for recv(t, r.subscribed, "subscription") != "no7" {
	}
}

func TestDeniedSubscriptionsAreReported(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("deaf", "~*", "&*", "+@all", "-subscribe", "-ping"))
	for i := range 10 {
		r.Subscribe(0, fmt.Sprint(i))
	}
	names(t, r.unsubscribed, 10, "denial")
	if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done {
		t.Errorf("%+v", res)
	}
}

// The danger: without this permission, a host stays subscribed to every lock that it ever waited for, and nothing says so.
func TestSubscriptionThatMayNotEndIsNamed(t *testing.T) {
	s := startRedis(t)
	r := connected(t, s.userURL("stays", "~*", "&*", "+@all", "-unsubscribe"))
	for _, name := range []string{"a", "b"} {
		r.Subscribe(0, name)
		recv(t, r.subscribed, "subscription")
		r.Unsubscribe(0, name)
	}
	harness.Eventually(t, "the log names it", func() bool { return strings.Contains(r.logged(), "let its ACL have +unsubscribe") })
	if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done {
		t.Errorf("%+v", res)
	}
	if n := strings.Count(r.logged(), "may not end subscriptions"); n != 1 {
		t.Errorf("it is logged %d times", n)
	}
}

// Redis permits everything but the sidecar's own channel: locks are served without it.
//
// Shows docs/guarantees.md: Wrong permissions, too old, not a Redis.
// Shows docs/queue.md: What Redis has.
func TestOwnChannelThatIsDenied(t *testing.T) {
	s := startRedis(t)
	r := open(t, s.userURL("others", "~*", "&redisson_lock__channel:{a*", "+@all"))
	if r.up().listening {
		t.Error("OnUp says that messages to this sidecar are received")
	}
	r.Subscribe(0, "a")
	recv(t, r.subscribed, "subscription")
	if res := r.one(takeOp("a", 1)); res.Outcome != redisop.Done {
		t.Errorf("%+v", res)
	}
	s.admin().ClientKillByFilter(ctx, "TYPE", "pubsub")
	r.down()
	r.up()
	recv(t, r.subscribed, "subscription on the new connection") // which is of TYPE pubsub from now on
	if log := r.logged(); strings.Count(log, "let its ACL have +subscribe and the channels redisson_lock__channel:{locksidecar}:*") != 1 {
		t.Errorf("the log does not say once what to permit: %s", log)
	}
	// Permitted now.
	s.admin().ACLSetUser(ctx, "others", "allchannels")
	s.admin().ClientKillByFilter(ctx, "TYPE", "pubsub")
	r.down()
	if !r.up().listening {
		t.Error("the channel is permitted, but not subscribed")
	}
}

// What other sidecars publish to this one is received from OnUp on, without a call of
// Subscribe, on each connection.
//
// Shows docs/queue.md: Messages.
func TestMessagesToThisSidecar(t *testing.T) {
	backends(t, func(t *testing.T, b backend) {
		got := make(chan redisop.Message, 100)
		r := open(t, b.url, func(c *Config) {
			c.KeyPrefix = "app1:"
			c.on(Messages, func(e Event) {
				for _, m := range e.Messages {
					got <- m
				}
			})
		})
		for range 2 {
			if !r.up().listening {
				t.Fatal("OnUp says that messages to this sidecar are not received")
			}
			for _, text := range []string{"0", "recall app2:a", "unknown app1:a", strings.Repeat("x", 1<<20), "free 10 app1:a b"} {
				if n := must(b.admin.Publish(ctx, "redisson_lock__channel:{locksidecar}:"+ourUUID, text).Result()); n != 1 {
					t.Fatalf("%d receivers", n)
				}
			}
			if m, want := recv(t, got, "message"), (redisop.Message{Kind: redisop.Freed, Name: "a b", PauseMS: 10}); m != want {
				t.Errorf("%+v, want %+v", m, want)
			}
			if b.server == nil {
				return
			}
			b.admin.ClientKillByFilter(ctx, "TYPE", "pubsub")
			r.down()
		}
	})
}

// Redis is busy with another script: channels are requested again when it may answer.
func TestSubscriptionIsRequestedAgainAfterAnErrorThatPasses(t *testing.T) {
	url, greeted := greet(t)
	r := connected(t, url, func(c *Config) { c.Timeout = patience })
	conn := recv(t, greeted, "connection")
	defer conn.Close()
	r.awaitWired()
	in := bufio.NewReader(conn)
	next := func() []string { // at one of the next checks of the connection
		received := make(chan []string, 1)
		go func() { received <- must(readCommand(in)) }()
		for {
			select {
			case args := <-received:
				return args
			default:
				r.single.link.Advance(protocol.Now(), protocol.Now())
			}
		}
	}
	r.Subscribe(0, "a")
	next()
	io.WriteString(conn, "-BUSY Redis is busy running a script.\r\n")
	if args := next(); args[0] != "subscribe" || args[1] != channelOf("a") {
		t.Fatalf("command %q", args)
	}
	io.WriteString(conn, confirmation("subscribe", channelOf("a")))
	if name := recv(t, r.subscribed, "subscription"); name != "a" {
		t.Errorf("subscribed: %q", name)
	}
	// The same with the end of a subscription.
	r.Unsubscribe(0, "a")
	next()
	io.WriteString(conn, "-BUSY Redis is busy running a script.\r\n")
	if args := next(); args[0] != "unsubscribe" || args[1] != channelOf("a") {
		t.Fatalf("command %q", args)
	}
	if len(r.unsubscribed) > 0 {
		t.Error("a denial was reported")
	}
}

func TestListenerWaitsForRedis(t *testing.T) {
	s := startRedis(t)
	s.stop()
	r := open(t, s.url())
	r.Subscribe(0, "lock")
	r.down()
	s.start()
	if r.up().lost {
		t.Error("the first OnUp says that data was lost")
	}
	recv(t, r.subscribed, "subscription")
}

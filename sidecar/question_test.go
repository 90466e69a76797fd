package sidecar_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/store/lookup"
)

// A question that was answered keeps no room: a sidecar answers any number of them, one after the
// other.
func TestSidecarAnswersQuestionAfterQuestion(t *testing.T) {
	there := newHouse(t, nil)
	here := newHouse(t, func(c *sidecar.Config) { c.Redis = there.cfg.Redis })
	other, hello := there.hello(false, "")
	other.hold("b") // Redis serves
	c := greeted(t, here.cfg.Socket)
	c.hold("c")          // Redis serves
	for i := range 100 { // more than may wait
		if e := c.hostRequest(func(id uint64) protocol.Request { return protocol.HostInfo{ID: id, Host: hello.Sidecar, Name: "a"} }); e != nil {
			t.Fatalf("question %d: %+v", i, e)
		}
	}
}

// The deadline of a hold on another host is a time of this one.
func TestDeadlineOfAHoldOnAnotherHostIsWithinItsLease(t *testing.T) {
	there := newHouse(t, nil)
	here := newHouse(t, func(c *sidecar.Config) { c.Redis = there.cfg.Redis })
	other, hello := there.hello(false, "")
	other.hold("a")
	c := greeted(t, here.cfg.Socket)
	c.hold("c") // Redis serves
	var info protocol.HostInfoOK
	if why := c.hostAnswer(func(id uint64) protocol.Request { return protocol.HostInfo{ID: id, Host: hello.Sidecar, Name: "a"} }, &info); why != "" {
		t.Fatal(why)
	}
	var list protocol.HostListOK
	if why := c.hostAnswer(func(id uint64) protocol.Request { return protocol.HostList{ID: id, Host: hello.Sidecar} }, &list); why != "" {
		t.Fatal(why)
	}
	if info.Lock == nil || len(list.Locks) != 1 {
		t.Fatalf("%+v, %+v", info, list)
	}
	now, lease := protocol.Now(), hello.LeaseMS*int64(time.Millisecond)
	for what, row := range map[string]*protocol.LockRow{"info": info.Lock, "list": &list.Locks[0]} {
		if left := row.DeadlineNS - now; left > lease {
			t.Errorf("%s: %v are left of a lease of %v", what, time.Duration(left), time.Duration(lease))
		}
	}
}

// The status of another host is that which its own clients get, but for what a policy hides there.
func TestStatusOfAnotherHost(t *testing.T) {
	there := newHouse(t, func(c *sidecar.Config) { c.Version, c.Build = "7.8.9", "0123456789ab" })
	here := newHouse(t, func(c *sidecar.Config) { c.Redis = there.cfg.Redis })
	other, hello := there.hello(false, "")
	other.hold("a")
	other.acquire("a", protocol.Forever)
	second, _ := there.hello(false, "")
	second.acquire("a", protocol.Forever)
	c := greeted(t, here.cfg.Socket)
	c.hold("c") // Redis serves
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 1000 {
		var got protocol.HostStatusOK
		if why := c.hostAnswer(func(id uint64) protocol.Request { return protocol.HostStatus{ID: id, Host: hello.Sidecar} }, &got); why != "" {
			t.Fatal(why)
		}
		if got.Waiting == 0 {
			<-tick.C
			continue
		}
		if got.Version != "7.8.9" || got.Build != "0123456789ab" || got.Redis != "ok" || got.Held != 1 || got.Sessions != 2 || got.OldestHold == nil || got.OldestHold.Name != "a" || got.OldestWaiter == nil {
			t.Errorf("%+v", got)
		}
		return
	}
	t.Error("no request waits there")
}

// The danger: one stopped host delays the answers of all others, or the end of a client that asked it.
func TestSilentHostsDelayNothing(t *testing.T) {
	there := newHouse(t, nil)
	here := newHouse(t, func(c *sidecar.Config) { c.Redis, c.AskWithin = there.cfg.Redis, time.Minute })
	other, hello := there.hello(false, "")
	other.hold("b")   // Redis serves
	const silent = 63 // and one more is asked at one time
	var channels []string
	for i := range silent {
		channels = append(channels, fmt.Sprintf("redisson_lock__channel:{locksidecar}:22222222-0000-8000-8000-%012d", i))
	}
	sub := redisOf(t, there).Subscribe(t.Context(), channels...)
	defer sub.Close()
	for range channels {
		if _, err := sub.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c := greeted(t, here.cfg.Socket)
	c.hold("c")
	for i := range silent {
		c.id++
		c.send(protocol.HostList{ID: c.id, Host: fmt.Sprintf("22222222-0000-8000-8000-%012d", i)})
	}
	for range 3 {
		var info protocol.HostInfoOK
		if why := c.hostAnswer(func(id uint64) protocol.Request { return protocol.HostInfo{ID: id, Host: hello.Sidecar, Name: "b"} }, &info); why != "" || info.Lock == nil {
			t.Fatalf("the host that answers: %+v, %s", info, why)
		}
		c.ping()
	}
	c.nc.Close()
	greeted(t, here.cfg.Socket).hold("c")
}

// The danger: a client that asks about other hosts and does not read the answers keeps many goroutines.
func TestAnswersThatAreNotReadKeepNoGoroutines(t *testing.T) {
	h := newHouse(t, func(c *sidecar.Config) { c.OtherHosts = otherhosts.None }) // each question is answered at once
	before := runtime.NumGoroutine()
	const clients = 4
	var sent atomic.Int64
	question := protocol.HostInfo{ID: 7, Host: "db-7", Name: "a"}.Append(nil)
	for range clients {
		c := greeted(t, h.cfg.Socket)
		_ = c.nc.SetDeadline(time.Time{})
		go func() {
			for {
				if _, err := c.nc.Write(question); err != nil {
					return
				}
				sent.Add(1)
			}
		}()
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for was := int64(-1); sent.Load() == 0 || sent.Load() != was; <-tick.C {
		was = sent.Load() // until the sidecar reads no more
	}
	for range 100 {
		if n := runtime.NumGoroutine() - before; n <= 6*clients {
			return
		}
		<-tick.C
	}
	t.Errorf("%d goroutines for %d clients", runtime.NumGoroutine()-before, clients)
}

// A name that two hosts have names none of them: a hold might end on the wrong one.
func TestHoldOfAnAmbiguousHostIsNotForced(t *testing.T) {
	first := newHouse(t, func(c *sidecar.Config) { c.HostName, c.OtherHosts = "db-7", otherhosts.ForceRelease })
	second := newHouse(t, func(c *sidecar.Config) {
		c.HostName, c.OtherHosts, c.Redis = "db-7", otherhosts.ForceRelease, first.cfg.Redis
	})
	here := newHouse(t, func(c *sidecar.Config) { c.Redis = first.cfg.Redis })
	holders := []*wire{greeted(t, first.cfg.Socket), greeted(t, second.cfg.Socket)}
	for i, name := range []string{"a", "b"} {
		holders[i].hold(name)
	}
	c := greeted(t, here.cfg.Socket)
	c.hold("c") // Redis serves
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for hosts := 0; hosts < 3; <-tick.C {
		var m protocol.HostsOK
		c.id++
		c.send(protocol.Hosts{ID: c.id})
		c.answer(c.id, &m)
		hosts = len(m.Hosts)
	}
	for _, name := range []string{"a", "b"} {
		e := c.hostRequest(func(id uint64) protocol.Request { return protocol.HostForceRelease{ID: id, Host: "db-7", Name: name} })
		if e == nil || e.Code != protocol.BadRequest {
			t.Errorf("force-release of %s on one of two hosts db-7: %+v", name, e)
		}
	}
}

// A host is found by its name, on whichever page of the hosts it is.
func TestHostIsFoundAmongVeryMany(t *testing.T) {
	h := newHouse(t, func(c *sidecar.Config) { c.AskWithin = time.Minute }) // on a busy host, the pages may take long
	c := greeted(t, h.cfg.Socket)
	c.hold("b") // Redis serves
	r := redisOf(t, h)
	ctx := context.Background()
	const hosts = 2*lookup.HostPage + 50
	for i := range hosts {
		uuid := fmt.Sprintf("22222222-0000-8000-8000-%012d", i)
		r.ZAdd(ctx, "locksidecar_hosts:{}", redis.Z{Member: uuid})
		r.HSet(ctx, "locksidecar_host:{"+uuid+"}", "about", fmt.Sprintf(`{"host":"host-%d"}`, i))
	}
	for host, want := range map[string]string{"host-0": "does not run", fmt.Sprint("host-", hosts-1): "does not run", "another": "no sidecar has published"} {
		e := c.hostRequest(func(id uint64) protocol.Request { return protocol.HostInfo{ID: id, Host: host, Name: "a"} })
		if !strings.Contains(e.Msg, want) {
			t.Errorf("%s, of %d: %+v, want that it %s", host, hosts, e, want)
		}
	}
}

// hostRequest sends a request about another host, and returns why it was refused; nil: it was not.
func (c *wire) hostRequest(request func(id uint64) protocol.Request) *protocol.Err {
	c.Helper()
	c.id++
	c.send(request(c.id))
	switch m := c.next().(type) {
	case *protocol.Err:
		refusal := *m
		return &refusal
	case *protocol.Answer:
		return nil
	default:
		c.Fatalf("got %+v", m)
		return nil
	}
}

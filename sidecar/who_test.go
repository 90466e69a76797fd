package sidecar_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar"
	"github.com/locksidecar/locksidecar/sidecar/otherhosts"
	"github.com/locksidecar/locksidecar/sidecar/policy"
)

// who asks who has a lock.
func (c *wire) who(name string) protocol.WhoRow {
	c.Helper()
	c.id++
	c.send(protocol.Who{ID: c.id, Name: name})
	var ok protocol.WhoOK
	c.answer(c.id, &ok)
	return ok.WhoRow
}

// awaitHosts waits until so many hosts are listed.
func (c *wire) awaitHosts(n int) {
	c.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for listed := 0; listed < n; <-tick.C {
		var m protocol.HostsOK
		c.id++
		c.send(protocol.Hosts{ID: c.id})
		c.answer(c.id, &m)
		listed = len(m.Hosts)
	}
}

func redisOf(t *testing.T, h *house) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(h.cfg.Redis)
	if err != nil {
		t.Fatal(err)
	}
	r := redis.NewClient(opts)
	t.Cleanup(func() { r.Close() })
	return r
}

const (
	programField = "285475da-9152-4c83-822a-67ee2f116a79:52"
	goneSidecar  = "285475da-9152-8c83-822a-67ee2f116a79"
)

// Each host names the process that holds a lock, and the hosts that wait for it in their order.
func TestWhoAnswersFromEachHost(t *testing.T) {
	there := newHouse(t, func(c *sidecar.Config) { c.HostName = "db-7" })
	here := newHouse(t, func(c *sidecar.Config) { c.HostName, c.Redis = "db-8", there.cfg.Redis })
	third := newHouse(t, func(c *sidecar.Config) { c.HostName, c.Redis = "db-9", there.cfg.Redis })
	holder, waiter, other := greeted(t, there.cfg.Socket), greeted(t, here.cfg.Socket), greeted(t, third.cfg.Socket)
	hold := holder.hold("a")
	for _, c := range []*wire{holder, waiter, other} {
		c.awaitHosts(3)
	}
	waiter.acquire("a", protocol.Forever)
	asker := greeted(t, here.cfg.Socket)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(asker.who("a").Queue) == 0 {
		<-tick.C
	}
	for name, c := range map[string]*wire{"the holder's": holder, "a waiter's": asker, "another": other} {
		got := c.who("a")
		if got.Redis != "ok" || got.Key != protocol.KeyLock || got.TTLMS <= 0 || len(got.Owners) != 1 || got.Owners[0].Host != "db-7" || got.Owners[0].Sidecar == "" {
			t.Errorf("from %s host: %+v", name, got)
		}
		if got.Holder == nil || got.Holder.Hold != hold.Hold || got.Holder.Token != hold.Token || got.Holder.PID == 0 || got.Holder.State != protocol.StateHeld || got.Trouble != "" {
			t.Errorf("from %s host: the holder is %+v, %s", name, got.Holder, got.Trouble)
		}
		if got.Queued != 1 || len(got.Queue) != 1 || got.Queue[0].Host != "db-8" {
			t.Errorf("from %s host: the queue is %+v", name, got.Queue)
		}
	}
	if got := asker.who("a"); got.Lock == nil || got.Lock.Waiting != 1 {
		t.Errorf("the waiters here are %+v", got.Lock)
	}
	if got := other.who("b"); got.Key != protocol.KeyFree || got.Holder != nil || got.Lock != nil || got.Trouble != "" || got.TTLMS != 0 {
		t.Errorf("of a free lock: %+v", got)
	}
}

// A key of a foreign client is reported as what it is. A sidecar that does not answer costs the answer
// little time.
func TestWhoReportsTheLocksOfOtherPrograms(t *testing.T) {
	h := newHouse(t, nil)
	c := greeted(t, h.cfg.Socket)
	c.hold("b") // Redis serves
	r := redisOf(t, h)
	ctx := context.Background()
	r.HSet(ctx, "program", programField, 1)
	r.HSet(ctx, "reading", "mode", "read", programField, 1)
	r.HSet(ctx, "gone", goneSidecar+":3", 1)
	r.PExpire(ctx, "gone", time.Minute)
	r.Set(ctx, "text", "x", 0)
	for name, want := range map[string]struct{ key, sidecar, trouble string }{
		"program": {protocol.KeyLock, "", ""},
		"reading": {protocol.KeyReadWrite, "", ""},
		"text":    {protocol.KeyOther, "", ""},
		"gone":    {protocol.KeyLock, goneSidecar, "is not connected to Redis"},
	} {
		got := c.who(name)
		id := ""
		if len(got.Owners) > 0 {
			id = got.Owners[0].Sidecar
		}
		if got.Key != want.key || id != want.sidecar || !strings.Contains(got.Trouble, want.trouble) || (got.Trouble == "") != (want.trouble == "") || got.Holder != nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A daemon that does not answer is reported, within a second, with 500 hosts.
func TestWhoIsBoundedInTime(t *testing.T) {
	h := newHouse(t, nil)
	c := greeted(t, h.cfg.Socket)
	c.hold("b") // Redis serves
	r := redisOf(t, h)
	ctx := context.Background()
	for i := range 500 {
		uuid := fmt.Sprintf("22222222-0000-8000-8000-%012d", i)
		r.ZAdd(ctx, "locksidecar_hosts:{}", redis.Z{Member: uuid})
		r.HSet(ctx, "locksidecar_host:{"+uuid+"}", "about", fmt.Sprintf(`{"host":"host-%d"}`, i))
		r.ZAdd(ctx, "locksidecar_queue:{a}", redis.Z{Score: float64(i), Member: fmt.Sprint(uuid, ":", i)})
	}
	const holder = "22222222-0000-8000-8000-000000000499"
	r.HSet(ctx, "a", holder+":1", 1)
	silent := r.Subscribe(ctx, "redisson_lock__channel:{locksidecar}:"+holder)
	defer silent.Close()
	if _, err := silent.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	got := c.who("a")
	t.Logf("a daemon that does not answer, of 500: %v", time.Since(begin))
	if got.Trouble == "" || !strings.Contains(got.Trouble, "host-499 did not answer within 800ms") || got.Holder != nil {
		t.Errorf("%+v", got)
	}
	if got.Queued != 500 || len(got.Queue) != protocol.MaxOwners || got.Queue[1].Host != "host-1" {
		t.Errorf("the queue is %+v", got.Queue)
	}
	r.Del(ctx, "a")
	begin = time.Now()
	if got := c.who("a"); got.Key != protocol.KeyFree || got.Trouble != "" {
		t.Errorf("of a free lock: %+v", got)
	}
	t.Logf("a free lock, with 500 hosts: %v", time.Since(begin))
}

// Without Redis, the answer is what this sidecar knows, and says so.
func TestWhoWithoutRedis(t *testing.T) {
	h := newHouse(t, nil)
	c := greeted(t, h.cfg.Socket)
	c.hold("a")
	h.cfg.Redis = "redis://127.0.0.1:1"
	h.restart()
	c = greeted(t, h.cfg.Socket)
	got := c.who("a")
	if got.Redis == "" || got.Redis == "ok" || got.Key != "" || got.Holder != nil {
		t.Errorf("%+v", got)
	}
}

// Other hosts are for those that no rule of the policy is about, and for sidecars that ask others.
func TestWhoShowsOtherHostsToThoseWhoMayListThem(t *testing.T) {
	there := newHouse(t, func(c *sidecar.Config) { c.HostName = "db-7" })
	greeted(t, there.cfg.Socket).hold("a")
	bound := newHouse(t, func(c *sidecar.Config) {
		c.Redis, c.Policy = there.cfg.Redis, []policy.Entry{{Name: "few", Users: me(), Holds: 2}}
	})
	c := greeted(t, bound.cfg.Socket)
	c.hold("b")
	got := c.who("a")
	if !strings.Contains(got.Redis, `rule "few"`) || got.Key != "" || got.Holder != nil || got.Owners != nil {
		t.Errorf("bound by the policy: %+v", got)
	}
	if got := c.who("b"); got.Lock == nil || got.Lock.State != protocol.StateHeld {
		t.Errorf("bound by the policy, of its own lock: %+v", got)
	}
	yes, no := true, false
	looks := newHouse(t, func(c *sidecar.Config) {
		c.Redis, c.Policy = there.cfg.Redis, []policy.Entry{
			{Name: "ops", Users: me(), Hosts: &yes},
			{Name: "payroll", Users: me(), Names: []string{"payroll:*"}, List: "own"},
			{Name: "rest", Users: me(), Commands: &no},
		}
	})
	greeted(t, there.cfg.Socket).hold("payroll:1")
	c = greeted(t, looks.cfg.Socket)
	c.hold("d") // Redis serves
	c.awaitHosts(3)
	if got := c.who("a"); got.Holder == nil || got.Holder.PID != int64(os.Getpid()) || got.Holder.Cmd != "" || got.Owners[0].Host != "db-7" {
		t.Errorf("may ask other hosts, and sees no commands: %+v, holder %+v", got, got.Holder)
	}
	if got := c.who("payroll:1"); !strings.Contains(got.Redis, `rule "payroll"`) || got.Key != "" || got.Holder != nil || got.Owners != nil {
		t.Errorf("may ask other hosts, but not about this name: %+v", got)
	}
	var listed protocol.HostListOK
	c.id++
	c.send(protocol.HostList{ID: c.id, Host: "db-7"})
	if c.answer(c.id, &listed); len(listed.Locks) != 1 || listed.Locks[0].Name != "a" || listed.Locks[0].Cmd != "" {
		t.Errorf("listed of the other host: %+v", listed.Locks)
	}
	var info protocol.HostInfoOK
	c.id++
	c.send(protocol.HostInfo{ID: c.id, Host: "db-7", Name: "a"})
	if c.answer(c.id, &info); info.Lock == nil || info.Lock.PID == 0 || info.Lock.Cmd != "" {
		t.Errorf("of the other host: %+v", info.Lock)
	}
	c.id++
	c.send(protocol.HostInfo{ID: c.id, Host: "db-7", Name: "payroll:1"})
	c.refused(c.id, protocol.Denied, `rule "payroll"`)
	c.id++
	c.send(protocol.HostForceRelease{ID: c.id, Host: "db-7", Name: "a"})
	c.refused(c.id, protocol.Denied, `rule "ops" of the policy is about your process`)
	alone := newHouse(t, func(c *sidecar.Config) { c.Redis, c.OtherHosts = there.cfg.Redis, otherhosts.None })
	c = greeted(t, alone.cfg.Socket)
	c.hold("c")
	got = c.who("a")
	if got.Key != protocol.KeyLock || got.Holder != nil || got.Owners[0].Host != "" || !strings.Contains(got.Trouble, "other_hosts is none") {
		t.Errorf("of a sidecar that does not ask others: %+v", got)
	}
	if got := c.who("c"); got.Holder == nil || got.Trouble != "" {
		t.Errorf("of a sidecar that does not ask others, of its own lock: %+v", got)
	}
}

// The event of a lock that another host took names that host.
func TestEventOfAStolenLockNamesTheHost(t *testing.T) {
	there := newHouse(t, func(c *sidecar.Config) { c.HostName = "db-7" })
	here := newHouse(t, func(c *sidecar.Config) { c.Redis, c.Lease = there.cfg.Redis, 3*time.Second })
	other, hello := there.hello(false, "")
	other.hold("b") // Redis serves
	c := greeted(t, here.cfg.Socket)
	c.hold("a")
	c.awaitHosts(2)
	r := redisOf(t, here)
	ctx := context.Background()
	if _, err := r.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, "a")
		p.HSet(ctx, "a", hello.Sidecar+":9", 1)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	reader := greeted(t, here.cfg.Socket)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var page protocol.EventsOK
		reader.id++
		reader.send(protocol.Events{ID: reader.id})
		reader.answer(reader.id, &page)
		for _, e := range page.Events {
			if e.Kind == protocol.EventLost && e.Reason == protocol.Stolen && e.RemoteField == hello.Sidecar+":9" && e.RemoteHost == "db-7" {
				return
			}
		}
		<-tick.C
	}
}

// impostor answers the questions to a sidecar that does not run, as any program can. Each call of answer
// answers one.
func impostor(t *testing.T, h *house) (answer func(reply func(id uint64) protocol.Reply)) {
	t.Helper()
	r := redisOf(t, h)
	ctx := context.Background()
	const channel = "redisson_lock__channel:{locksidecar}:"
	questions := r.Subscribe(ctx, channel+goneSidecar)
	t.Cleanup(func() { questions.Close() })
	if _, err := questions.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	asked := questions.Channel()
	return func(reply func(id uint64) protocol.Reply) {
		go func() {
			m, ok := <-asked
			if !ok {
				return
			}
			question := strings.SplitN(m.Payload, " ", 3) // ask <uuid> <body>
			var d protocol.RequestDecoder
			req, err := d.Decode([]byte(question[2]))
			if err != nil {
				t.Errorf("the question %q: %v", question[2], err)
				return
			}
			frame := reply(req.RequestID()).Append(nil)
			r.Publish(ctx, channel+question[1], "answer "+string(frame[4:]))
		}()
	}
}

// Any program can answer the questions to another host. A row that no sidecar makes, without the name of
// a lock, is not shown. The deadline in a row becomes a time of this host.
func TestRowsOfOtherHostsAreChecked(t *testing.T) {
	h := newHouse(t, nil)
	c := greeted(t, h.cfg.Socket)
	c.hold("b") // Redis serves
	redisOf(t, h).HSet(context.Background(), "a", goneSidecar+":3", 1)
	answer := impostor(t, h)
	row := func(name string) protocol.LockRow {
		return protocol.LockRow{Name: name, State: protocol.StateHeld, Hold: 3, Session: 1, PID: 4711, DeadlineNS: int64(time.Minute)}
	}
	for what, ask := range map[string]func(name string) (shown *protocol.LockRow, why string){
		"who": func(name string) (*protocol.LockRow, string) {
			answer(func(id uint64) protocol.Reply { r := row(name); return protocol.InfoOK{ID: id, Lock: &r} })
			got := c.who("a")
			return got.Holder, got.Trouble
		},
		"info": func(name string) (*protocol.LockRow, string) {
			answer(func(id uint64) protocol.Reply { r := row(name); return protocol.InfoOK{ID: id, Lock: &r} })
			var ok protocol.HostInfoOK
			why := c.hostAnswer(func(id uint64) protocol.Request { return protocol.HostInfo{ID: id, Host: goneSidecar, Name: "a"} }, &ok)
			return ok.Lock, why
		},
		"list": func(name string) (*protocol.LockRow, string) {
			answer(func(id uint64) protocol.Reply { return protocol.ListOK{ID: id, Locks: []protocol.LockRow{row(name)}} })
			var ok protocol.HostListOK
			why := c.hostAnswer(func(id uint64) protocol.Request { return protocol.HostList{ID: id, Host: goneSidecar} }, &ok)
			if len(ok.Locks) == 0 {
				return nil, why
			}
			return &ok.Locks[0], why
		},
	} {
		if shown, why := ask(""); shown != nil || !strings.Contains(why, "returned an answer that is not valid") {
			t.Errorf("%s, a row without a name: %+v, %s", what, shown, why)
		}
		shown, why := ask("a")
		if shown == nil || shown.PID != 4711 || why != "" {
			t.Errorf("%s, a row as a sidecar makes it: %+v, %s", what, shown, why)
			continue
		}
		if left := time.Duration(shown.DeadlineNS - protocol.Now()); left > time.Minute || left < 0 {
			t.Errorf("%s: a minute was left there, and %v are left here", what, left)
		}
	}
}

// A lock may pass on after its key was read and before the sidecar of its owner is asked. Then who looks
// once more, and no more often.
func TestWhoLooksAgainIfTheLockPassedOn(t *testing.T) {
	h := newHouse(t, nil)
	c := greeted(t, h.cfg.Socket)
	c.hold("b") // Redis serves
	redisOf(t, h).HSet(context.Background(), "a", goneSidecar+":3", 1)
	answer := impostor(t, h)
	for _, states := range [][2]string{{protocol.StateFree, protocol.StateHeld}, {protocol.StateRemote, protocol.StateHeld}, {protocol.StateFree, protocol.StateFree}} {
		var asked atomic.Int32
		for range states {
			answer(func(id uint64) protocol.Reply {
				state := states[asked.Add(1)-1]
				return protocol.InfoOK{ID: id, Lock: &protocol.LockRow{Name: "a", State: state}}
			})
		}
		if got := c.who("a"); got.Holder == nil || got.Holder.State != states[1] || got.Trouble != "" || asked.Load() != 2 {
			t.Errorf("%v: holder %+v, %s, after %d questions", states, got.Holder, got.Trouble, asked.Load())
		}
	}
}

// hostAnswer sends a request about another host, and decodes its answer into ok. why is the message of
// the error, if it was refused.
func (c *wire) hostAnswer(request func(id uint64) protocol.Request, ok protocol.OK) (why string) {
	c.Helper()
	c.id++
	c.send(request(c.id))
	switch m := c.next().(type) {
	case *protocol.Err:
		return m.Msg
	case *protocol.Answer:
		if err := m.Unpack(ok); err != nil {
			c.Fatal(err)
		}
	default:
		c.Fatalf("got %+v", m)
	}
	return ""
}

// Each host names the processes of all hosts that have permits.
func TestWhoNamesTheHoldersOfPermitsOnAllHosts(t *testing.T) {
	there := newHouse(t, func(c *sidecar.Config) { c.HostName = "web-1" })
	here := newHouse(t, func(c *sidecar.Config) { c.HostName, c.Redis = "web-2", there.cfg.Redis })
	one, two := greeted(t, there.cfg.Socket), greeted(t, here.cfg.Socket)
	first := one.permits("api", 2, 10)
	one.permits("api", 1, 10)
	two.permits("api", 4, 12)
	for _, c := range []*wire{one, two} {
		c.awaitHosts(2)
	}
	one.wantPermits("api", 9, 9, protocol.Forever)
	asker := greeted(t, here.cfg.Socket)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for len(asker.who("api").Queue) == 0 {
		<-tick.C
	}
	for host, c := range map[string]*wire{"web-1": greeted(t, there.cfg.Socket), "web-2": asker} {
		got := c.who("api")
		if got.Redis != "ok" || got.Key != protocol.KeyPermits || got.Permits != 7 || got.Of != 12 || len(got.Owners) != 2 || got.Trouble != "" || got.Lock == nil {
			t.Fatalf("from %s: %+v", host, got)
		}
		byHost := map[string]protocol.OwnerRow{got.Owners[0].Host: got.Owners[0], got.Owners[1].Host: got.Owners[1]}
		if a := byHost["web-1"]; a.Permits != 3 || a.Held != 2 || len(a.Holders) != 2 || a.Holders[0].Hold != first.Hold || a.Holders[0].Permits != 2 || a.Holders[0].PID == 0 {
			t.Errorf("from %s: web-1 has %+v", host, a)
		}
		if b := byHost["web-2"]; b.Permits != 4 || b.Held != 1 || len(b.Holders) != 1 || b.Holders[0].Cmd == "" {
			t.Errorf("from %s: web-2 has %+v", host, b)
		}
		if q := got.Queue; got.Queued != 1 || q[0].Host != "web-1" || q[0].Permits != 9 {
			t.Errorf("from %s: the queue is %+v", host, q)
		}
	}
	there.stop()
	for { // until Redis knows that its subscription has ended
		got := asker.who("api")
		if strings.Contains(got.Trouble, "the daemon of host web-1 is not connected to Redis") && got.Permits == 7 {
			break
		}
		if !strings.Contains(got.Trouble, "the daemon of host web-1 did not answer") {
			t.Fatalf("without web-1: %+v", got)
		}
	}
}

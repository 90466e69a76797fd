package pipeline

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

const ourUUID = "11111111-2222-8333-8444-555555555555"

func takeOp(name string, num uint64) redisop.Op {
	return redisop.Op{Kind: redisop.Take, Name: name, HoldID: num, Count: 1, LeaseMS: 30_000, Asked: redisop.Asked{Reserve: 1}}
}

// driven is a Machine with a connection, which a test drives by values.
type driven struct {
	*Machine
	t   testing.TB
	now int64
}

// drive returns a Machine that was just connected, with a server that is far.
func drive(t testing.TB, change ...func(*Config, *Greeting)) *driven {
	t.Helper()
	c := Config{UUID: ourUUID, Keys: wire.NewKeyspace(""), Timeout: 2 * time.Second, Batches: DefaultBatches}
	d := &driven{t: t, now: int64(time.Hour)}
	g := Greeting{
		Server: wire.Server{Address: "redis:1", Keys: c.Keys}, HasQueues: true, Loads: true,
		ID: wire.Identity{Floor: 1 << 50, FloorAt: d.now}, Clock: 1 << 50, ClockAt: d.now,
	}
	for _, f := range change {
		f(&c, &g)
	}
	d.Machine = New(c)
	d.Up(d.now, &g)
	d.isQuiet()
	return d
}

// do sends operations.
func (d *driven) do(ops ...redisop.Op) { d.Do(d.now, ops) }

// commands returns what was made since the last call.
func (d *driven) commands() (commands []string) {
	d.t.Helper()
	r := wire.NewReplies(strings.NewReader(string(d.TakeBytes(nil))))
	for {
		command, err := r.Next()
		if err != nil {
			return commands
		}
		var words []string
		for _, w := range command.List {
			words = append(words, w.Text)
		}
		commands = append(commands, strings.Join(words, " "))
	}
}

// answer takes in replies and pushes. It returns the first error.
func (d *driven) answer(text string) error {
	r := wire.NewReplies(strings.NewReader(text))
	for {
		reply, err := r.Next()
		if err != nil {
			return nil
		}
		if err := d.Reply(d.now, &reply); err != nil {
			return err
		}
	}
}

// rest returns what is delivered after all that was received is taken in, in words.
func (d *driven) rest() (delivered []string) {
	d.t.Helper()
	if err := d.Rest(d.now); err != nil {
		d.t.Errorf("the connection ends: %v", err)
	}
	for _, x := range d.TakeDeliveries(nil) {
		switch x.Kind {
		case Results:
			for _, r := range x.Results {
				delivered = append(delivered, fmt.Sprint(r.Name, " ", r.Outcome))
			}
		case Messages:
			delivered = append(delivered, fmt.Sprint(len(x.Messages), " messages"))
		default:
			delivered = append(delivered, fmt.Sprint("kind ", x.Kind, " ", x.Names, x.Text))
		}
	}
	return delivered
}

func (d *driven) isQuiet() {
	d.t.Helper()
	if got := d.rest(); len(got) > 0 {
		d.t.Errorf("delivered %q, want nothing", got)
	}
}

func bulk(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

const token = ":1700000000000001\r\n"

// A Take that is pipelined after a Drop waits for nothing in a Cluster, whatever the Drop finds.
func TestTakeInAClusterIsSentBeforeItsDropIsAnswered(t *testing.T) {
	d := drive(t, func(c *Config, _ *Greeting) { c.IsNode = true })
	d.do(redisop.Op{Kind: redisop.Drop, Name: "a", HoldID: 1})
	take := takeOp("a", 2)
	take.Flags |= redisop.AfterPendingDrop
	d.do(take)
	if got := d.commands(); len(got) != 2 || !strings.Contains(got[0], ":1 \x00\x00\x01") || !strings.Contains(got[1], ":2 \x01\x00\x00") {
		t.Fatalf("%q, want the Drop, and then the Take", got)
	}
	if err := d.answer(":0\r\n" + token); err != nil {
		t.Fatal(err)
	}
	if got := d.rest(); !slices.Equal(got, []string{"a done", "a done"}) {
		t.Errorf("delivered %q", got)
	}
}

// A Redis that is near is not asked for more than it can be at: what is asked meanwhile is one run.
func TestNearbyOneRunFollowsAnother(t *testing.T) {
	d := drive(t)
	d.minRTT = d.cfg.Batches.NearRTT
	near := d.cfg.Batches.NearCalls
	for i := range near + 10 {
		d.do(takeOp(fmt.Sprint(i), 1))
	}
	if got := d.commands(); len(got) != near {
		t.Fatalf("%d commands, want %d: %q", len(got), near, got)
	}
	if err := d.answer(token); err != nil {
		t.Fatal(err)
	}
	d.rest()
	if got := d.commands(); len(got) != 1 || strings.Fields(got[0])[2] != "20" {
		t.Fatalf("behind the first answer: %.100q, want one run of the ten that waited for it", got)
	}
}

// A Redis that sends messages is alive, although a reply is overdue.
func TestMessagesAreASignOfLife(t *testing.T) {
	d := drive(t)
	d.do(takeOp("a", 1))
	late := d.now + int64(d.cfg.Timeout)
	if isDead := d.Advance(late, 0, false); isDead || d.liveness != overdue {
		t.Errorf("dead: %v, liveness %d; want that the reply is overdue", isDead, d.liveness)
	}
	if isDead := d.Advance(late, d.now+1, false); isDead || d.liveness != owing || d.Next() <= late {
		t.Errorf("dead: %v, liveness %d, next check %d ns after the reply was overdue", isDead, d.liveness, d.Next()-late)
	}
}

// While the connection is idle, nothing is due until the next PING. A command that is sent meanwhile makes that earlier.
func TestCommandOnIdleConnectionIsCheckedInTime(t *testing.T) {
	d := drive(t)
	patience := int64(d.cfg.Timeout)
	begin := d.now
	if d.Advance(begin+patience, 0, false); d.liveness != idle || d.Next() != begin+int64(IdlePing) {
		t.Errorf("liveness %d, next check %d ns after the last reply; want idle, and the time of a PING", d.liveness, d.Next()-begin)
	}
	d.now = begin + patience
	d.do(takeOp("a", 1))
	if d.liveness != owing || d.Next() > d.now+patience {
		t.Errorf("the next check is %d ns after the command, and its answer is due after %d", d.Next()-d.now, patience)
	}
	d = drive(t)
	if d.Advance(d.now+int64(IdlePing), 0, false); !slices.Equal(d.commands(), []string{"role"}) {
		t.Error("an idle connection is not pinged")
	}
}

// A reader that is late, because the host slept or a step of the loop took long, has not seen the reply yet: Redis was
// not silent.
func TestConnectionWithUnreadReplyIsNotCut(t *testing.T) {
	d := drive(t)
	d.do(takeOp("a", 1))
	late := d.now + int64(d.cfg.Timeout)
	for range 100 {
		if d.Advance(late, 0, true) {
			t.Fatal("the connection is cut while an answer is waiting to be read")
		}
		late = d.Next()
	}
}

// The first check that finds a reply overdue may come from a host that has just woken up.
func TestOverdueConnectionIsCutAtSecondCheck(t *testing.T) {
	d := drive(t)
	d.do(takeOp("a", 1))
	if d.Advance(d.now+int64(d.cfg.Timeout), 0, false) || d.liveness != overdue {
		t.Errorf("cut at the first check, liveness %d", d.liveness)
	}
	if !d.Advance(d.Next(), 0, false) {
		t.Error("it is not cut at the second check")
	}
	d.Cut()
	if d.do(takeOp("b", 1)); len(d.commands()) != 1 {
		t.Error("a command was made after the cut")
	}
	d.Down(1<<20, "silent")
	d.Refuse("down")
	var got []string
	for _, x := range d.TakeDeliveries(nil) {
		for _, r := range x.Results {
			got = append(got, fmt.Sprint(r.Name, " ", r.Outcome))
		}
	}
	if want := []string{fmt.Sprint("a ", redisop.Unknown), fmt.Sprint("b ", redisop.NotSent)}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What was certainly not sent was not carried out, and what may have been sent may have been.
func TestDownTellsWhatWasSent(t *testing.T) {
	d := drive(t)
	d.do(takeOp("a", 1))
	sent := int64(len(d.TakeBytes(nil)))
	d.do(takeOp("b", 1))
	for _, tt := range []struct {
		sent int64
		want []redisop.Outcome
	}{{0, []redisop.Outcome{redisop.NotSent, redisop.NotSent}}, {1, []redisop.Outcome{redisop.Unknown, redisop.NotSent}}, {sent, []redisop.Outcome{redisop.Unknown, redisop.NotSent}}, {sent + 1, []redisop.Outcome{redisop.Unknown, redisop.Unknown}}} {
		d := drive(t)
		d.do(takeOp("a", 1))
		d.do(takeOp("b", 1))
		d.Down(tt.sent, "down")
		var got []redisop.Outcome
		for _, x := range d.TakeDeliveries(nil) {
			for _, r := range x.Results {
				got = append(got, r.Outcome)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%d bytes were sent: %v, want %v", tt.sent, got, tt.want)
		}
	}
}

func durable(c *Config, _ *Greeting) { c.Replicas = 1 }

// Redis executes nothing of a connection while it waits for replicas, so nothing is sent to it, however far it is. A
// script that is sent again has a WAIT of its own, with the time of its own lease.
func TestOneWaitIsInFlight(t *testing.T) {
	d := drive(t, durable)
	short := takeOp("a", 1)
	short.LeaseMS = 2000
	d.do(short)
	d.do(takeOp("b", 1))
	if got := d.commands(); len(got) != 2 || got[1] != "wait 1 200" {
		t.Errorf("%.60q", got)
	}
	if err := d.answer("-NOSCRIPT No matching script\r\n:1\r\n"); err != nil {
		t.Fatal(err)
	}
	d.isQuiet()
	if got := d.commands(); len(got) != 3 || !strings.HasPrefix(got[0], "script load") || got[2] != "wait 1 200" {
		t.Errorf("%.60q", got)
	}
	if err := d.answer("+OK\r\n" + token + ":1\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := d.rest(); !slices.Equal(got, []string{fmt.Sprint("a ", redisop.Done)}) {
		t.Errorf("%q", got)
	}
	if got := d.commands(); len(got) != 2 || got[1] != "wait 1 400" {
		t.Errorf("%.60q", got)
	}
}

// Confirmations of subscriptions keep their place.
func TestSubscriptionsAreDeliveredAfterTheResultsBeforeThem(t *testing.T) {
	d := drive(t, durable)
	channel := d.cfg.Keys.Channel("watched")
	d.do(takeOp("a", 1))
	d.Subscribe("watched")
	d.isQuiet()
	if err := d.answer(token + ">3\r\n" + bulk("subscribe") + bulk(channel) + ":1\r\n"); err == nil {
		t.Fatal("a confirmation before the answer to WAIT is taken for that of a later command")
	}
	d = drive(t, durable)
	d.runScript(d.now, call{script: wire.AcquireRelease}, []redisop.Op{takeOp("a", 1)})
	d.Subscribe("watched")
	d.requestChannels(d.now, d.channels.next())
	d.queueWait(d.now)
	if err := d.answer(token + ">3\r\n" + bulk("subscribe") + bulk(channel) + ":1\r\n"); err != nil {
		t.Fatal(err)
	}
	d.isQuiet()
	if err := d.answer(":1\r\n"); err != nil {
		t.Fatal(err)
	}
	if got, want := d.rest(), []string{fmt.Sprint("a ", redisop.Done), fmt.Sprint("kind ", Subscribed, " [watched]")}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTimeOfAWait(t *testing.T) {
	for _, tt := range []struct {
		leaseMS       uint32
		timeout, want time.Duration
	}{
		{30_000, 2 * time.Second, maxWait},
		{0, 2 * time.Second, maxWait},
		{2000, 2 * time.Second, 200 * time.Millisecond},
		{2005, 2 * time.Second, 200 * time.Millisecond},
		{50, 2 * time.Second, minWait}, // others share it
		{30_000, 100 * time.Millisecond, 50 * time.Millisecond},
	} {
		if got := waitWithin(tt.leaseMS, tt.timeout); got != tt.want {
			t.Errorf("lease %d ms, timeout %v: %v, want %v", tt.leaseMS, tt.timeout, got, tt.want)
		}
	}
}

// The slot leaves the node while it is being asked to end a subscription: the push looks like a
// confirmation, and then the node answers MOVED. The next reply is still that of the next command.
func TestUnsubscribeThatMeetsTheMoveOfItsSlot(t *testing.T) {
	for _, answers := range []string{
		">3\r\n" + bulk("sunsubscribe") + bulk("CHANNEL") + ":0\r\n" + "-MOVED 1 127.0.0.1:1\r\n+PONG\r\n",
		">3\r\n" + bulk("sunsubscribe") + bulk("CHANNEL") + ":0\r\n+PONG\r\n",
		"-MOVED 1 127.0.0.1:1\r\n+PONG\r\n",
		"-ASK 1 127.0.0.1:1\r\n+PONG\r\n", // Redis 7.4 to 8.2: it is still subscribed, until the slot has left
		"-MOVED 1 127.0.0.1:1\r\n-NOPERM this user has no permissions to run the 'ping' command\r\n",
	} {
		d := drive(t, func(c *Config, g *Greeting) { c.IsNode, g.IsSharded = true, true })
		channel := d.cfg.Keys.Channel("lock")
		d.Subscribe("lock")
		d.rest()
		if err := d.answer(">3\r\n" + bulk("ssubscribe") + bulk(channel) + ":1\r\n"); err != nil {
			t.Fatal(err)
		}
		d.Unsubscribe("lock")
		d.rest()
		if got := d.commands(); len(got) != 3 || !strings.HasPrefix(got[1], "sunsubscribe") || got[2] != "ping" {
			t.Fatalf("%q", got)
		}
		d.do(takeOp("lock", 1))
		if err := d.answer(strings.ReplaceAll(answers, bulk("CHANNEL"), bulk(channel))); err != nil {
			t.Errorf("%q: %v", answers, err)
		}
		if d.calls.len() != 1 || d.calls.front().kind != running || d.channels.inFlight != 0 {
			t.Errorf("%q: %d calls are without an answer, want the one after it; %d requests", answers, d.calls.len(), d.channels.inFlight)
		}
		d.TakeDeliveries(nil)
		message := ">3\r\n" + bulk("smessage") + bulk(channel) + bulk("0")
		if err := d.answer(message + ">3\r\n" + bulk("sunsubscribe") + bulk(channel) + ":0\r\n"); err != nil {
			t.Errorf("%q, and what the node sends of a channel that it still has: %v", answers, err)
		}
	}
}

// The danger: a slot comes after Redis has read its clock for the one before.
func TestClockIsAskedForAgainIfSlotsCameSince(t *testing.T) {
	d := drive(t)
	for range 3 {
		d.Lift(d.now, 0, true)
	}
	if floor := d.encoder.TokensAbove(); floor < 1<<53-1 {
		t.Errorf("a counter of %d would not be lifted", floor)
	}
	times := 0
	for d.AsksClock() {
		for _, c := range d.commands() {
			if c == "time" {
				times++
			}
		}
		if err := d.answer("*2\r\n" + bulk("1800000000") + bulk("7")); err != nil {
			t.Fatal(err)
		}
	}
	if times != 2 || d.ID.Above(d.now) != 1800000000_000007 || d.encoder.Floor != 1800000000_000007 {
		t.Errorf("the clock was asked for %d times, want twice; floor %d", times, d.encoder.Floor)
	}
}

// A counter that is used behind ASKING has come before its slot: it is lifted to the clock.
func TestCounterIsLiftedBehindAsking(t *testing.T) {
	d := drive(t, func(c *Config, _ *Greeting) { c.IsNode = true })
	d.DoAsking(d.now, []redisop.Op{takeOp("a", 1)})
	d.do(takeOp("a", 2))
	const lifted = "\xff\xff\xff\xff\xff\xff\x1f" // 1<<53 - 1
	if got := d.commands(); len(got) != 3 || got[0] != "asking" || !strings.Contains(got[1], lifted) || strings.Contains(got[2], lifted) {
		t.Errorf("%q", got)
	}
}

// The tokens of a transfer that is accepted are granted. After Redis has lost its counter, new ones are above them.
func TestTokensOfATransferRaiseTheFloor(t *testing.T) {
	d := drive(t)
	d.encoder.Floor = 0
	m := redisop.Message{Kind: redisop.Transferred, Conn: redisop.NewConn(1), LastToken: 1<<50 + 900_000, Tokens: 32}
	if d.checkTokens(d.now, &m); m.Tokens != 32 || d.ID.Above(d.now) != int64(m.LastToken) || d.encoder.Floor != 0 {
		t.Errorf("%+v, floor %d of %d", m, d.ID.Above(d.now), d.encoder.Floor)
	}
	last := uint64(1<<50 + 1_100_000)
	for _, m := range []redisop.Message{
		{Kind: redisop.Transferred, Conn: redisop.NewConn(1), LastToken: last, Tokens: 32},
		{Kind: redisop.Transferred, Conn: redisop.NewConn(1), LastToken: math.MaxInt64, Tokens: 32},
		{Kind: redisop.Transferred, LastToken: 1<<50 + 950_000, Tokens: 32},
	} {
		if d.checkTokens(d.now, &m); m.Tokens != 0 || d.ID.Above(d.now) != 1<<50+900_000 || d.encoder.Floor != 0 {
			t.Errorf("%+v, floor %d of %d", m, d.ID.Above(d.now), d.encoder.Floor)
		}
	}
}

// After Redis has lost its counters, tokens of this connection are above its floor. A transfer whose first token is not
// is granted with none of its tokens.
func TestTokensOfATransferAreAboveTheFloor(t *testing.T) {
	const last, tokens = 1<<50 + 900_000, 32
	for floor, want := range map[int64]uint16{last - tokens: tokens, last - tokens + 1: 0, last: 0, last + 1: 0} {
		d := drive(t)
		d.encoder.Floor = floor
		m := redisop.Message{Kind: redisop.Transferred, Conn: redisop.NewConn(1), LastToken: last, Tokens: tokens}
		if d.checkTokens(d.now, &m); m.Tokens != want {
			t.Errorf("with a floor of %d below the last token: %d tokens, want %d", last-floor, m.Tokens, want)
		}
	}
}

func TestFloodIsLoggedOnceInTenMinutes(t *testing.T) {
	var m ignored
	second := int64(time.Second)
	lines := func(begin, n int64) (lines int) {
		for i := range n {
			if m.add(begin + i*second/n) {
				lines++
			}
		}
		return lines
	}
	for _, tt := range []struct {
		at   int64 // s
		n    int64 // messages in a second from then on
		want int
	}{{10, ignoredMost, 0}, {20, 5 * ignoredMost, 1}, {21, 5 * ignoredMost, 0}, {619, 5 * ignoredMost, 0}, {700, 5 * ignoredMost, 1}} {
		if got := lines(tt.at*second, tt.n); got != tt.want {
			t.Errorf("%d messages in a second at %d s: %d lines, want %d", tt.n, tt.at, got, tt.want)
		}
	}
}

func TestRedirectsAreCountedByTheirKind(t *testing.T) {
	m := New(Config{IsNode: true})
	for _, text := range []string{"MOVED 1 a:1", "MOVED 2 a:1", "ASK 1 a:1", "TRYAGAIN later", "CLUSTERDOWN it is", "ERR MOVED"} {
		m.count(text)
	}
	if got := m.TakeRedirects(); got != (Redirects{Moved: 2, Ask: 1, TryAgain: 1}) || m.TakeRedirects() != (Redirects{}) {
		t.Errorf("counted %+v", got)
	}
}

// The counters of locks need not be above the tokens of semaphores, which have none. Those of an admission that may be
// forged are not granted.
func TestTokensOfPermitsRaiseNoFloor(t *testing.T) {
	d := drive(t)
	before := d.Identity()
	op := takeOp("api", 1)
	op.Of, op.Count, op.Want, op.Times, op.Capacity = redisop.KindPermits, 0, 1, 1, 10
	d.do(op)
	if err := d.answer(fmt.Sprintf("*1\r\n:%d\r\n", d.Clock+int64(time.Hour/time.Microsecond))); err != nil {
		t.Fatal(err)
	}
	if got := d.rest(); len(got) != 1 || d.Identity() != before {
		t.Errorf("%q, and the floor is %+v", got, d.Identity())
	}
	ahead := redisop.Message{Kind: redisop.Admitted, LastToken: uint64(d.Clock + int64(time.Hour/time.Microsecond)), Tokens: 1, Conn: redisop.NewConn(1)}
	if d.checkTokens(d.now, &ahead); ahead.Tokens != 0 || d.Identity() != before {
		t.Errorf("%+v, and the floor is %+v", ahead, d.Identity())
	}
}

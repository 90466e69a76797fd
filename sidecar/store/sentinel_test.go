package store

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/redisurl"
	"github.com/locksidecar/locksidecar/sidecar/store/sentinel"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

func TestSentinelMessages(t *testing.T) {
	for _, tt := range []struct{ text, named, moved string }{
		{"mymaster 10.0.0.1 6379 10.0.0.2 6380", "10.0.0.2:6380", "10.0.0.2:6380"},
		{"mymaster 10.0.0.1 6379 fe80::1 6380", "[fe80::1]:6380", "[fe80::1]:6380"},
		{"mymaster 10.0.0.1 6379 10.0.0.2 6380", "10.0.0.1:6379", ""}, // no Sentinel confirms it
		{"another 10.0.0.1 6379 10.0.0.2 6380", "10.0.0.2:6380", ""},
		{"mymaster 10.0.0.1 6379 10.0.0.2 x", "10.0.0.2:6380", ""},
		{"mymaster 10.0.0.1 6379 10.0.0.2", "10.0.0.2:6380", ""},
		{"", "10.0.0.2:6380", ""},
	} {
		f := startFakeSentinel(t, func(int) (string, int) { return tt.named, 1 })
		s := newSentinels(group(t, f.url()), slog.New(slog.DiscardHandler))
		moved := ""
		s.onMoved = func(address string) { moved = address }
		if s.onMessage(t.Context(), sentinel.SwitchMaster, tt.text); moved != tt.moved {
			t.Errorf("%q, and the Sentinels name %s: moved to %q, want %q", tt.text, tt.named, moved, tt.moved)
		}
		s.close()
	}
}

func TestPermissionsThatASentinelWantsAreNamed(t *testing.T) {
	denied := errors.New("NOPERM User app has no permissions to run the 'sentinel|sentinels' command")
	if why := new(sentinelGroup).reason(denied); !strings.Contains(why, "let its ACL have +sentinel|myid +sentinel|get-master-addr-by-name +sentinel|master +sentinel|sentinels") {
		t.Error(why)
	}
}

func TestSentinelWithoutTLSIsNamed(t *testing.T) {
	for _, err := range []error{tls.RecordHeaderError{}, io.EOF} {
		if why := (&sentinelGroup{Sentinel: redisurl.Sentinel{TLS: true}}).reason(err); !strings.Contains(why, "remove sentinel_tls=true") {
			t.Error(why)
		}
	}
}

func group(t *testing.T, raw string) *sentinelGroup {
	t.Helper()
	d, err := parse(Config{URL: raw, UUID: ourUUID, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	return d.group
}

// A fakeSentinel answers what a test sets.
type fakeSentinel struct {
	address string
	noSubs  atomic.Bool // no subscription is confirmed

	mu     sync.Mutex
	master func(round int) (address string, epoch int) // by how often it was asked
	flags  string                                      // of the master, beside "master"
	rounds int
	subs   []net.Conn
	full   int             // how many are subscribed to the steps of a failover
	denied map[string]bool // channels
	leads  string          // the address of the master that it replaces; "": it leads no failover
}

func startFakeSentinel(t *testing.T, master func(round int) (address string, epoch int)) *fakeSentinel {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeSentinel{address: l.Addr().String(), master: master}
	var serving sync.WaitGroup
	var conns sync.Map
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(conn, true)
			serving.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Range(func(conn, _ any) bool { conn.(net.Conn).Close(); return true })
		serving.Wait()
	})
	return s
}

func (s *fakeSentinel) url() string { return "redis+sentinel://" + s.address + "/mymaster" }

func (s *fakeSentinel) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		words, err := readWords(in)
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, s.answer(conn, words))
	}
}

func readWords(in *bufio.Reader) (words []string, err error) {
	line := func() string {
		text, failed := in.ReadString('\n')
		if failed != nil {
			err = failed
		}
		return strings.TrimSpace(text)
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(line(), "*"))
	for range n {
		line()
		words = append(words, strings.ToLower(line()))
	}
	return words, err
}

func (s *fakeSentinel) answer(conn net.Conn, words []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	bulk := func(texts ...string) string {
		out := fmt.Sprintf("*%d\r\n", len(texts))
		for _, text := range texts {
			out += fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
		}
		return out
	}
	address, epoch := s.master(s.rounds)
	host, port, _ := net.SplitHostPort(address)
	switch strings.Join(words[:min(2, len(words))], " ") {
	case "sentinel myid":
		return "$1\r\na\r\n"
	case "sentinel get-master-addr-by-name":
		return bulk(host, port)
	case "sentinel master":
		flags := "master" + s.flags
		if s.leads != "" {
			flags += ",failover_in_progress"
			host, port, _ = net.SplitHostPort(s.leads)
		}
		return bulk("ip", host, "port", port, "flags", flags, "config-epoch", strconv.Itoa(epoch))
	case "sentinel sentinels":
		s.rounds++ // the last question of a round
		return "*0\r\n"
	}
	if words[0] == "subscribe" {
		if s.noSubs.Load() {
			return ""
		}
		confirmed := ""
		for _, channel := range words[1:] {
			if s.denied[channel] {
				return "-NOPERM No permissions to access a channel\r\n"
			}
			confirmed += fmt.Sprintf("*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", len(channel), channel)
		}
		if words[1] == sentinel.SwitchMaster {
			s.subs = append(s.subs, conn)
		} else {
			s.full++
		}
		return confirmed
	}
	if words[0] == "hello" {
		return "-ERR unknown command 'hello'\r\n"
	}
	return "+OK\r\n"
}

// publish sends a message of a master that moved to those that are subscribed, when there are any.
func (s *fakeSentinel) publish(t *testing.T, text string) {
	t.Helper()
	s.await(t, "a client subscribes to the messages of the Sentinel", func() bool { return len(s.subs) > 0 })
	s.send(sentinel.SwitchMaster, text)
}

// announce sends a message about a step of a failover, when a client is subscribed to these.
func (s *fakeSentinel) announce(t *testing.T, channel, text string) {
	t.Helper()
	s.await(t, "a client subscribes to the steps of a failover", func() bool { return s.full > 0 })
	s.send(channel, text)
}

// await waits for a state of the Sentinel.
func (s *fakeSentinel) await(t *testing.T, what string, isMet func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		met := isMet()
		s.mu.Unlock()
		if met {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func (s *fakeSentinel) send(channel, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.subs {
		fmt.Fprintf(conn, "*3\r\n$7\r\nmessage\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(channel), channel, len(text), text)
	}
}

// A master that its Sentinels see down is none to move to: the connection to the server before stays.
func TestAddressOfAMasterThatIsDownIsNotMovedTo(t *testing.T) {
	for _, tt := range []struct {
		flags, row string
		want       bool
	}{
		{"", "", true},
		{",s_down,o_down", "", false},
		{",s_down,o_down", "127.0.0.1:1", true}, // in a failover, the row is of the old master, and the address of the new one
	} {
		flags, want := tt.flags, tt.want
		s := startFakeSentinel(t, func(int) (string, int) { return "127.0.0.1:2", 1 })
		s.flags, s.leads = flags, tt.row
		d, err := parse(Config{URL: s.url(), Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		all := newSentinels(d.group, slog.New(slog.DiscardHandler))
		defer all.close()
		all.group.Locate(protocol.Now(), sentinel.Verdict{Master: "127.0.0.1:1"})
		if address, isOther := all.other(ctx); address != "127.0.0.1:2" || isOther != want {
			t.Errorf("%q: at %s, and another one to move to: %v", flags, address, isOther)
		}
	}
}

// The danger: a master that returned after its crash is believed. Between the first question and the
// greeting it came back, and a replica was promoted.
//
// Shows docs/topologies.md: A master that returns after its crash.
func TestMasterThatSentinelsNameNoMoreIsNotUsed(t *testing.T) {
	old, promoted := startRedis(t), startRedis(t)
	s := startFakeSentinel(t, func(round int) (string, int) {
		if round == 0 {
			return old.tcp(), 1
		}
		return promoted.tcp(), 2
	})
	r := open(t, s.url())
	if why := r.down(); !strings.Contains(why, old.tcp()) || !strings.Contains(why, "returned after a failover") {
		t.Errorf("%s", why)
	}
	r.up()
	if address := r.Address(); address != promoted.tcp()+"/0" {
		t.Errorf("connected to %s", address)
	}
}

// A message of a Sentinel ends the connection to a server that serves on, at once.
func TestSentinelMessageEndsTheConnection(t *testing.T) {
	old, promoted := startRedis(t), startRedis(t)
	var moved sync.Mutex
	at := old.tcp()
	s := startFakeSentinel(t, func(int) (string, int) {
		moved.Lock()
		defer moved.Unlock()
		return at, 1
	})
	r := connected(t, s.url())
	moved.Lock()
	at = promoted.tcp()
	moved.Unlock()
	_, from, _ := net.SplitHostPort(old.tcp())
	_, to, _ := net.SplitHostPort(promoted.tcp())
	s.publish(t, "mymaster 127.0.0.1 "+from+" 127.0.0.1 "+to)
	if why := r.down(); !strings.Contains(why, "is no longer the master") {
		t.Errorf("%s", why)
	}
	r.up()
	if res := r.one(takeOp("lock", 1)); res.Outcome != redisop.Done || r.Address() != promoted.tcp()+"/0" {
		t.Errorf("%+v at %s", res, r.Address())
	}
	// A message that names the server that is used ends nothing.
	s.publish(t, "mymaster 127.0.0.1 "+from+" 127.0.0.1 "+to)
	if res := r.one(takeOp("lock", 2)); res.Outcome != redisop.Done {
		t.Errorf("%+v", res)
	}
}

// If the message is lost, two rounds of questions find the new master. One is not enough: Sentinels may
// differ for a moment.
func TestSentinelsAreAskedAgain(t *testing.T) {
	for _, tt := range []struct {
		name  string
		other int // as many rounds name another address
		moved bool
	}{{"one round", 1, false}, {"two rounds", 2, true}} {
		t.Run(tt.name, func(t *testing.T) {
			const enough = 8
			over := make(chan bool)
			f := startFakeSentinel(t, func(round int) (string, int) {
				if round == enough {
					select {
					case <-over:
					default:
						close(over)
					}
				}
				if round >= 2 && round < 2+tt.other {
					return "10.0.0.2:1", 2
				}
				return "10.0.0.1:1", 1
			})
			f.noSubs.Store(true) // the rounds that follow a subscription would come between two of watch
			s := newSentinels(group(t, f.url()), slog.New(slog.DiscardHandler))
			defer s.close()
			s.interval = time.Millisecond
			moved := make(chan string, 1)
			s.onMoved = func(address string) {
				select {
				case moved <- address:
				default:
				}
			}
			if address, _, err := s.locate(t.Context()); err != nil || address != "10.0.0.1:1" {
				t.Fatal(address, err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var watching sync.WaitGroup
			watching.Go(func() { s.watch(ctx) })
			recvClosed(t, over)
			stop()
			watching.Wait()
			select {
			case address := <-moved:
				if !tt.moved || address != "10.0.0.2:1" {
					t.Errorf("moved to %s", address)
				}
			default:
				if tt.moved {
					t.Error("the move was not noticed")
				}
			}
		})
	}
}

func recvClosed(t *testing.T, c chan bool) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatal("the Sentinel was not asked again")
	}
}

// The danger: an error has a part of a password that was not encoded.
func TestWrongURLShowsNoPassword(t *testing.T) {
	for _, raw := range []string{
		"redis+sentinel://s/m?sentinel_password=pa&ssECRET", "redis://u:p@h?ssECRET=1@h", "redis://h?password=pa&ssECRET", "redis://:x@h?db=ssECRET@h",
	} {
		if _, err := parse(Config{URL: raw, UUID: ourUUID}); err == nil || strings.Contains(err.Error(), "ssECRET") || !strings.Contains(err.Error(), "percent-encoded") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// The danger: no Sentinel answers, and the last address leads to a server that has lost the locks, or was
// replaced.
//
// Shows docs/topologies.md: No Sentinel answers.
func TestLastAddressCountsForTheSameServerOnly(t *testing.T) {
	master := startRedis(t)
	var mu sync.Mutex
	at := master.tcp()
	set := func(address string) {
		mu.Lock()
		defer mu.Unlock()
		at = address
	}
	s := startFakeSentinel(t, func(int) (string, int) {
		mu.Lock()
		defer mu.Unlock()
		return at, 1
	})
	r := connected(t, s.url())
	set("") // it answers nonsense
	must(master.admin().ClientKillByFilter(ctx, "type", "normal", "skipme", "yes").Result())
	must(master.admin().ClientKillByFilter(ctx, "type", "pubsub").Result())
	r.down()
	if up := r.up(); up.lost {
		t.Error("the same server is said to have lost its data")
	}
	master.stop()
	r.down()
	master.start()
	for why := r.down(); !strings.Contains(why, "is not the server that it was"); why = r.down() {
	}
	set(master.tcp())
	if up := r.up(); !up.lost {
		t.Error("another server is said to have kept the data")
	}
}

// The danger: a message that comes while a connection is made is forgotten.
func TestMoveWhileAConnectionIsTakenIntoUseEndsIt(t *testing.T) {
	old, promoted := startRedis(t), startRedis(t)
	s := startFakeSentinel(t, func(int) (string, int) { return old.tcp(), 1 })
	var store *Store
	opened := make(chan struct{})
	var once sync.Once
	r := open(t, s.url(), func(c *Config) {
		up := c.OnUp
		c.OnUp = func(n redisop.Shard, lost, listening bool, id wire.Identity) {
			<-opened
			once.Do(func() { store.single.link.onMoved(promoted.tcp()) })
			up(n, lost, listening, id)
		}
	})
	store = r.Store
	close(opened)
	r.up()
	if why := r.down(); !strings.Contains(why, "is no longer the master") {
		t.Errorf("%s", why)
	}
}

// The old master accepts connections and does not answer. That the master moved ends the attempt.
func TestMoveEndsAnAttemptToConnect(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	promoted := startRedis(t)
	var mu sync.Mutex
	at := hangs.Addr().String()
	s := startFakeSentinel(t, func(int) (string, int) {
		mu.Lock()
		defer mu.Unlock()
		return at, 1
	})
	r := open(t, s.url(), func(c *Config) { c.Timeout = 10 * time.Minute })
	conn, err := hangs.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	mu.Lock()
	at = promoted.tcp()
	mu.Unlock()
	_, from, _ := net.SplitHostPort(hangs.Addr().String())
	_, to, _ := net.SplitHostPort(promoted.tcp())
	s.publish(t, "mymaster 127.0.0.1 "+from+" 127.0.0.1 "+to)
	r.up()
}

// A Sentinel that accepts connections and does not answer keeps no store from closing.
func TestSentinelThatHangsDoesNotHoldUpClose(t *testing.T) {
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	r := open(t, "redis+sentinel://"+hangs.Addr().String()+"/mymaster", func(c *Config) { c.Timeout = 10 * time.Minute })
	conn, err := hangs.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	closed, cancel := context.WithCancel(t.Context())
	cancel()
	_ = r.Close(closed) // it waits for all goroutines
}

// The Sentinels of the URL that is read again decide nothing: they may be those of another Redis.
func TestOtherSentinelsNeedAReload(t *testing.T) {
	master, another := startRedis(t), startRedis(t)
	s := startFakeSentinel(t, func(int) (string, int) { return master.tcp(), 1 })
	other := startFakeSentinel(t, func(int) (string, int) { return another.tcp(), 9 })
	var mu sync.Mutex
	url := s.url()
	r := connected(t, s.url(), func(c *Config) {
		c.ReadURL = func() (string, error) {
			mu.Lock()
			defer mu.Unlock()
			return url, nil
		}
	})
	mu.Lock()
	url = other.url()
	mu.Unlock()
	must(master.admin().ClientKillByFilter(ctx, "type", "pubsub").Result())
	r.down()
	r.up()
	if r.Address() != master.tcp()+"/0" || !strings.Contains(r.logged(), "reload the daemon") {
		t.Errorf("connected to %s; the log:\n%s", r.Address(), r.logged())
	}
}

package harness

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A FakeSentinel answers what a test sets.
type FakeSentinel struct {
	Address string
	NoSubs  atomic.Bool // no subscription is confirmed

	mu     sync.Mutex
	master func(round int) (address string, epoch int) // by how often it was asked
	rounds int
	subs   []net.Conn
	full   int // how many are subscribed to the steps of a failover
	FakeAnswers
}

// FakeAnswers is what a FakeSentinel says of the master, and permits.
type FakeAnswers struct {
	Flags  string          // of the master, beside "master"
	Denied map[string]bool // channels
	Leads  string          // the address of the master that it replaces; "": it leads no failover
}

// Set changes what the Sentinel answers.
func (s *FakeSentinel) Set(a FakeAnswers) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.FakeAnswers = a
}

// StartFakeSentinel starts one that names a master, by how often it was asked.
func StartFakeSentinel(t testing.TB, master func(round int) (address string, epoch int)) *FakeSentinel {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &FakeSentinel{Address: l.Addr().String(), master: master}
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

// URL is that of a Redis behind the Sentinel alone.
func (s *FakeSentinel) URL() string { return "redis+sentinel://" + s.Address + "/" + MasterName }

func (s *FakeSentinel) serve(conn net.Conn) {
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

func (s *FakeSentinel) answer(conn net.Conn, words []string) string {
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
		flags := "master" + s.Flags
		if s.Leads != "" {
			flags += ",failover_in_progress"
			host, port, _ = net.SplitHostPort(s.Leads)
		}
		return bulk("ip", host, "port", port, "flags", flags, "config-epoch", strconv.Itoa(epoch))
	case "sentinel sentinels":
		s.rounds++ // the last question of a round
		return "*0\r\n"
	}
	if words[0] == "subscribe" {
		if s.NoSubs.Load() {
			return ""
		}
		confirmed := ""
		for _, channel := range words[1:] {
			if s.Denied[channel] {
				return "-NOPERM No permissions to access a channel\r\n"
			}
			confirmed += fmt.Sprintf("*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", len(channel), channel)
		}
		if words[1] == "+switch-master" {
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

// Publish sends a message of a master that moved to those that are subscribed, when there are any.
func (s *FakeSentinel) Publish(t testing.TB, text string) {
	t.Helper()
	s.await(t, "a client subscribes to the messages of the Sentinel", func() bool { return len(s.subs) > 0 })
	s.send("+switch-master", text)
}

// Announce sends a message about a step of a failover, when a client is subscribed to these.
func (s *FakeSentinel) Announce(t testing.TB, channel, text string) {
	t.Helper()
	s.AwaitSteps(t)
	s.send(channel, text)
}

// AwaitSteps waits until a client is subscribed to the steps of a failover.
func (s *FakeSentinel) AwaitSteps(t testing.TB) {
	t.Helper()
	s.await(t, "a client subscribes to the steps of a failover", func() bool { return s.full > 0 })
}

// await waits for a state of the Sentinel.
func (s *FakeSentinel) await(t testing.TB, what string, isMet func() bool) {
	t.Helper()
	Eventually(t, what, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return isMet()
	})
}

func (s *FakeSentinel) send(channel, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.subs {
		fmt.Fprintf(conn, "*3\r\n$7\r\nmessage\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(channel), channel, len(text), text)
	}
}

package commands

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A monitor reads what MONITOR reports of a Redis.
type monitor struct {
	t     testing.TB
	redis *harness.Redis
	marks int

	mu        sync.Mutex        // guards what follows
	scripts   map[string]string // SHA1 → text
	addresses map[string]string // uuid of a sidecar → address of its connection
	commands  []command         // since the last cut
	last      string            // the last mark that Redis has reported
}

// A command is a line of MONITOR.
type command struct {
	from  string // address of the client; "lua": a script
	words []string
}

// startMonitor returns when Redis reports each command to the monitor.
func startMonitor(t testing.TB, r *harness.Redis) *monitor {
	t.Helper()
	m := &monitor{t: t, redis: r, scripts: map[string]string{}, addresses: map[string]string{}}
	harness.Monitor(t, r, m.add)
	return m
}

func (m *monitor) add(line harness.MonitoredCommand) {
	c := command{from: line.From, words: line.Words}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch c.words[0] {
	case "script":
		if len(c.words) == 3 && c.words[1] == "load" {
			sum := sha1.Sum([]byte(c.words[2]))
			m.scripts[hex.EncodeToString(sum[:])] = c.words[2]
		}
		return
	case "subscribe":
		// The greeting of a daemon: the channel has its uuid.
		if uuid, ok := strings.CutPrefix(c.words[1], "redisson_lock__channel:{locksidecar}:"); ok {
			m.addresses[uuid] = c.from
			return
		}
	case "echo":
		m.last = c.words[1]
		return
	}
	m.commands = append(m.commands, c)
}

// addressOf returns the address of the connection of a sidecar.
func (m *monitor) addressOf(uuid string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.addresses[uuid]
}

// runs returns how many scripts were executed since the last mark that have this lock.
func (m *monitor) runs(lock string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, c := range m.commands {
		if c.words[0] == "evalsha" && slices.Contains(c.words, lock) {
			n++
		}
	}
	return n
}

// cut returns the commands since the last cut that name a lock, and those of the scripts that do.
func (m *monitor) cut(lock string) []command {
	m.t.Helper()
	m.marks++
	mark := fmt.Sprint("mark ", m.marks)
	m.redis.MustDo("echo", mark)
	harness.Eventually(m.t, "MONITOR reports an ECHO", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.last == mark
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	var of []command
	isOf := false
	for _, c := range m.commands {
		if c.from != "lua" {
			isOf = slices.ContainsFunc(c.words, func(w string) bool { return strings.Contains(w, lock) })
		}
		if isOf {
			of = append(of, c)
		}
	}
	m.commands = nil
	return of
}

// scriptName returns the name of the file of sidecar/store that the script with this SHA1
// ends with. The program joins files, and puts numbers in; the first line of a file stays.
func (m *monitor) scriptName(sum string) string {
	m.mu.Lock()
	text := m.scripts[sum]
	m.mu.Unlock()
	var files []string
	for _, dir := range []string{"store", "store/wire"} {
		of, err := filepath.Glob(filepath.Join(harness.Root(), "sidecar", dir, "scripts", "*.lua"))
		if err != nil {
			m.t.Fatal(err)
		}
		files = append(files, of...)
	}
	name, at := "", -1
	for _, path := range files {
		own, err := os.ReadFile(path)
		if err != nil {
			m.t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(own), "\n")
		if strings.HasPrefix(head, "-- permits:") && strings.Contains(text, head) {
			return "permits" // the files that it shares with others come after its own
		}
		if i := strings.LastIndex(text, head); i > at {
			name, at = strings.TrimSuffix(filepath.Base(path), ".lua"), i
		}
	}
	if name != "" {
		return name
	}
	m.t.Fatalf("script %s is none of sidecar/store", sum)
	return ""
}

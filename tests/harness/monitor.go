package harness

import (
	"bufio"
	"net"
	"regexp"
	"strconv"
	"testing"
)

// A MonitoredCommand is a line of MONITOR.
type MonitoredCommand struct {
	From  string // address of the client; "lua": a script
	Words []string
}

// Monitor has a Redis report each command that it executes, and returns when it does. each is called by
// one goroutine, in the order of execution. The last call returns before the test ends.
func Monitor(t testing.TB, r *Redis, each func(MonitoredCommand)) {
	t.Helper()
	conn, err := net.Dial("unix", r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	if ok, err := in.ReadString('\n'); err != nil || ok != "+OK\r\n" {
		t.Fatalf("MONITOR: %q, %v", ok, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return // the test closed the connection, or ended Redis
			}
			if command, ok := parseMonitored(t, line); ok {
				each(command)
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
}

var (
	lineOfMonitor = regexp.MustCompile(`^\+[\d.]+ \[\d+ (\S+)\] (.*)\r\n$`)
	quotedWord    = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
)

// parseMonitored returns the command of a line. A line that it cannot read fails the test.
func parseMonitored(t testing.TB, line string) (c MonitoredCommand, ok bool) {
	match := lineOfMonitor.FindStringSubmatch(line)
	if match == nil {
		t.Errorf("MONITOR reports %q", line)
		return c, false
	}
	c.From = match[1]
	for _, word := range quotedWord.FindAllString(match[2], -1) {
		text, err := strconv.Unquote(word)
		if err != nil {
			t.Errorf("MONITOR reports the argument %s: %v", word, err)
			return c, false
		}
		c.Words = append(c.Words, text)
	}
	return c, len(c.Words) > 0
}

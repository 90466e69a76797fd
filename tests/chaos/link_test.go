package main

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// echo returns a Unix socket on which a server sends back each line.
func echo(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "link")
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		listener.Close()
		os.RemoveAll(dir)
	})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return socket
}

type caller struct {
	net.Conn
	lines *bufio.Reader
}

func dialLink(t *testing.T, l *link) caller {
	t.Helper()
	conn, err := net.Dial("tcp", l.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return caller{conn, bufio.NewReader(conn)}
}

func (c caller) send(t *testing.T, line string) {
	t.Helper()
	if _, err := c.Write([]byte(line)); err != nil {
		t.Fatal(err)
	}
}

func (c caller) expect(t *testing.T, line string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(eventTimeout))
	if got, err := c.lines.ReadString('\n'); err != nil || got != line {
		t.Fatalf("received %q (%v), want %q", got, err, line)
	}
}

func (c caller) expectNothing(t *testing.T, d time.Duration) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(d))
	if got, err := c.lines.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("received %q (%v), want nothing", got, err)
	}
}

func TestLinkSimulatesFaultsAndRecovers(t *testing.T) {
	t.Parallel()
	l, err := newLink(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	c := dialLink(t, l)
	c.send(t, "a\n")
	c.expect(t, "a\n")

	l.stall(true)
	c.send(t, "late\n")
	c.expectNothing(t, 20*time.Millisecond)
	l.stall(false)
	c.expect(t, "late\n")

	l.drop()
	if _, err := c.lines.ReadString('\n'); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Fatalf("a dropped connection reads %v", err)
	}

	l.refuse(true)
	// Even the connect may fail.
	if refused, err := net.Dial("tcp", l.listener.Addr().String()); err == nil {
		if _, err := refused.Read(make([]byte, 1)); err == nil {
			t.Fatal("a refused connection reads something")
		}
		refused.Close()
	}
	l.refuse(false)

	c = dialLink(t, l)
	c.send(t, "b\n")
	c.expect(t, "b\n")
	given := make(chan struct{})
	go func() {
		l.halfOpen(eventTimeout)
		close(given)
	}()
	if err := waitUntil(t.Context(), eventTimeout, "it is half-open", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for conn := range l.conns {
			return conn.discards
		}
		return false
	}); err != nil {
		t.Fatal(err)
	}
	c.send(t, "lost\n")
	c.expectNothing(t, 20*time.Millisecond)
	fresh := dialLink(t, l)
	fresh.send(t, "c\n")
	fresh.expect(t, "c\n")
	select {
	case <-given:
		t.Fatal("halfOpen returned before the client closed the connection")
	default:
	}
	c.Close()
	<-given

	l.redirect(echo(t))
	other := dialLink(t, l)
	other.send(t, "d\n")
	other.expect(t, "d\n")
}

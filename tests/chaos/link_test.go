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

// echo answers every line on a Unix socket.
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

func call(t *testing.T, l *link) caller {
	t.Helper()
	conn, err := net.Dial("tcp", l.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return caller{conn, bufio.NewReader(conn)}
}

func (c caller) says(t *testing.T, line string) {
	t.Helper()
	if _, err := c.Write([]byte(line)); err != nil {
		t.Fatal(err)
	}
}

func (c caller) hears(t *testing.T, line string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if got, err := c.lines.ReadString('\n'); err != nil || got != line {
		t.Fatalf("heard %q (%v), want %q", got, err, line)
	}
}

func (c caller) hearsNothing(t *testing.T, d time.Duration) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(d))
	if got, err := c.lines.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %q (%v), want nothing", got, err)
	}
}

// A link breaks in the ways in which it is told to, and is whole afterwards.
func TestLink(t *testing.T) {
	l, err := newLink(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	c := call(t, l)
	c.says(t, "a\n")
	c.hears(t, "a\n")

	l.stall(true)
	c.says(t, "late\n")
	c.hearsNothing(t, 20*time.Millisecond)
	l.stall(false)
	c.hears(t, "late\n")

	l.drop()
	if _, err := c.lines.ReadString('\n'); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
		t.Fatalf("a dropped connection reads %v", err)
	}

	l.refuse(true)
	// Already the connect may fail.
	if refused, err := net.Dial("tcp", l.listener.Addr().String()); err == nil {
		if _, err := refused.Read(make([]byte, 1)); err == nil {
			t.Fatal("a refused connection reads something")
		}
		refused.Close()
	}
	l.refuse(false)

	c = call(t, l)
	c.says(t, "b\n")
	c.hears(t, "b\n")
	given := make(chan struct{})
	go func() {
		l.halfOpen(patience)
		close(given)
	}()
	if err := until(t.Context(), patience, "it is half-open", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for conn := range l.conns {
			return conn.mute
		}
		return false
	}); err != nil {
		t.Fatal(err)
	}
	c.says(t, "lost\n")
	c.hearsNothing(t, 20*time.Millisecond)
	fresh := call(t, l)
	fresh.says(t, "c\n")
	fresh.hears(t, "c\n")
	select {
	case <-given:
		t.Fatal("nobody had given the connection up")
	default:
	}
	c.Close()
	<-given

	l.lead(echo(t))
	other := call(t, l)
	other.says(t, "d\n")
	other.hears(t, "d\n")
}

//go:build linux

package locksidecar

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// logBuffer is what a Client has logged. Its goroutines write while a test reads.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *logBuffer) Len() int { return len(b.String()) }

func (b *logBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Reset()
}

// logTo makes the Client of a virtual network log into the buffer.
func logTo(c *Client) *logBuffer {
	var buf logBuffer
	c.dialer.log = slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	return &buf
}

func wantLog(t *testing.T, buf *logBuffer, lines ...string) {
	t.Helper()
	synctest.Wait()
	got := strings.Split(strings.TrimSpace(buf.String()), "\n")
	buf.Reset()
	if len(got) != len(lines) {
		t.Fatalf("logged %q, want %d lines", got, len(lines))
	}
	for i, line := range lines {
		if !strings.HasPrefix(got[i], line) {
			t.Errorf("logged %q, want %q", got[i], line)
		}
	}
}

func TestLossIsLogged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		buf := logTo(c)
		l := mustLock(t, c, "a")
		network.steal("a")
		wantLog(t, buf, `level=WARN msg="the lock is lost; another owner may hold it" lock=a token=`+strconv.FormatUint(l.Token(), 10)+` reason=stolen`)
		l.Unlock()
	})
}

func TestExpiryIsLogged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		buf := logTo(c)
		l := mustLock(t, c, "a", WithLease(time.Second))
		<-l.Done()
		wantLog(t, buf, `level=WARN msg="the lock is lost; another owner may hold it" lock=a`)
	})
}

func TestReleaseAndCloseAreNotLogged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		buf := logTo(c)
		mustLock(t, c, "a").Unlock()
		l := mustLock(t, c, "b")
		c.Close()
		<-l.Done()
		synctest.Wait()
		if buf.Len() > 0 {
			t.Errorf("logged %q", buf)
		}
	})
}

func TestReconnectIsLogged(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, c *Client, network *fakeNetwork) {
		buf := logTo(c)
		l := mustLock(t, c, "a")
		network.fail(os.ErrNotExist)
		wantLog(t, buf, `level=INFO msg="the connection to the sidecar has ended; connecting again" socket=/fake err="the sidecar ended the connection" held=1`)
		network.restore()
		time.Sleep(time.Second)
		wantLog(t, buf, `level=INFO msg="connected to the sidecar again" socket=/fake after=`)
		l.Unlock()
	})
}

func TestWithLoggerSetsTheLogger(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	c, err := Dial(context.Background(), "", WithLogger(log))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.dialer.log != log {
		t.Error("the option has no effect")
	}
}

// lineWriter sends each line that is logged.
type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

func TestSidecarWithoutItsStateIsLogged(t *testing.T) {
	lines := make(lineWriter, 8)
	s := listen(t)
	c, p := s.dial(WithLogger(slog.New(slog.NewTextHandler(lines, nil))))
	p.lock(c, "a", 1, inOneHour())
	p.nc.Close()
	s.accept().answerHello()
	<-lines // the end of the connection
	want := `level=WARN msg="the sidecar was restarted without its state: the held locks end at their deadlines"`
	if got := <-lines; !strings.Contains(got, want) || !strings.Contains(got, "held=1") {
		t.Errorf("logged %q, want %q", got, want)
	}
}

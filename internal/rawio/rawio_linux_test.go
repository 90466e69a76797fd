package rawio_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/rawio"
)

// pair returns the two ends of a connection.
func pair(t testing.TB) (here, there *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	here, err = l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close() })
	return here, c.(*net.UnixConn)
}

func raw(t testing.TB, c *net.UnixConn) syscall.RawConn {
	t.Helper()
	r, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestReaderReadsAllBytesThenEOF(t *testing.T) {
	for _, size := range []int{1, 100, 4096, 100_000} {
		here, there := pair(t)
		want := bytes.Repeat([]byte("0123456789"), 20_000)
		go func() {
			there.Write(want)
			there.Close()
		}()
		r := rawio.NewReader(raw(t, here))
		var got []byte
		buf := make([]byte, size)
		for {
			n, err := r.Read(buf)
			got = append(got, buf[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("with a buffer of %d bytes: read %d bytes, which are not the %d that were written", size, len(got), len(want))
		}
	}
}

// A Reader waits no longer than the connection's deadline, and works again after it.
func TestReaderObeysDeadline(t *testing.T) {
	here, there := pair(t)
	r := rawio.NewReader(raw(t, here))
	var buf [8]byte
	here.SetReadDeadline(time.Unix(1, 0))
	if _, err := r.Read(buf[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%v; want os.ErrDeadlineExceeded", err)
	}
	here.SetReadDeadline(time.Time{})
	there.Write([]byte("x"))
	if n, err := r.Read(buf[:]); n != 1 || err != nil {
		t.Errorf("%d, %v; want the byte that was written after the deadline", n, err)
	}
}

func TestReaderOfClosedConnectionFails(t *testing.T) {
	here, _ := pair(t)
	r := rawio.NewReader(raw(t, here))
	here.Close()
	if _, err := r.Read(make([]byte, 8)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v; want net.ErrClosed", err)
	}
}

// Write sends the bytes for which the socket has buf, and returns EAGAIN if it is full.
func TestWriteDoesNotBlock(t *testing.T) {
	here, there := pair(t)
	written := 0
	err := raw(t, here).Write(func(fd uintptr) bool {
		for {
			n, err := rawio.Write(fd, make([]byte, 4096))
			if err != nil {
				if err != syscall.EAGAIN {
					t.Errorf("%v; want EAGAIN when the socket is full", err)
				}
				return true
			}
			written += n
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	here.Close()
	if b, err := io.ReadAll(there); len(b) != written || err != nil {
		t.Errorf("%d bytes arrived, of %d (%v)", len(b), written, err)
	}
}

// Only short calls may go unannounced.
func TestReadIsBoundedWhateverTheBuffer(t *testing.T) {
	here, there := pair(t)
	for _, c := range []*net.UnixConn{here, there} {
		c.SetReadBuffer(200_000)
		c.SetWriteBuffer(200_000)
	}
	if _, err := there.Write(make([]byte, 60_000)); err != nil {
		t.Fatal(err)
	}
	err := raw(t, here).Control(func(fd uintptr) {
		buf := make([]byte, 100_000)
		if n, err := rawio.Read(fd, buf); n != 32<<10 || err != nil {
			t.Errorf("%d, %v; want 32 KiB of the 60,000 bytes", n, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What precedes a write happens before what follows the read of its bytes: otherwise the
// race detector reports the accesses to n.
func TestRaceDetectorOrdersWriteBeforeRead(t *testing.T) {
	here, there := pair(t)
	r, w := rawio.NewReader(raw(t, here)), raw(t, there)
	n := 0
	go func() {
		n++
		_ = w.Write(func(fd uintptr) bool {
			_, err := rawio.Write(fd, []byte("x"))
			return err != syscall.EAGAIN
		})
	}()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if n++; n != 2 {
		t.Errorf("n is %d", n)
	}
}

package wan

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience ends a test that hangs. No test gets faster or slower by it.
const patience = 2 * time.Minute

// between makes a connection through a proxy and returns both of its ends.
func between(t *testing.T, oneWay time.Duration, limit int) (client, server *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	proxy, err := listen(listener.Addr().String(), oneWay, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	})
	client = dial(t, proxy)
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, owned(t, accepted)
}

func dial(t *testing.T, p *Proxy) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp4", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return owned(t, conn)
}

func owned(t *testing.T, conn net.Conn) *net.TCPConn {
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*net.TCPConn)
}

func say(t *testing.T, conn net.Conn, what string) {
	t.Helper()
	if _, err := io.WriteString(conn, what); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, conn net.Conn, what string) {
	t.Helper()
	heard := make([]byte, len(what))
	if _, err := io.ReadFull(conn, heard); err != nil || string(heard) != what {
		t.Fatalf("heard %q (%v), want %q", heard, err, what)
	}
}

func TestBytesArriveWholeAndInOrderInBothDirections(t *testing.T) {
	client, server := between(t, time.Millisecond, inFlight)
	var work sync.WaitGroup
	for seed, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
		sent := make([]byte, 2<<20)
		random := rand.New(rand.NewPCG(uint64(seed), 0))
		for i := range sent {
			sent[i] = byte(random.Uint32())
		}
		work.Go(func() {
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 1+random.IntN(100_000))
				if _, err := way[0].Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			if err := way[0].CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		work.Go(func() {
			received, err := io.ReadAll(way[1])
			if err != nil || !bytes.Equal(sent, received) {
				t.Errorf("%d bytes of %d arrived, or others (%v)", len(received), len(sent), err)
			}
		})
	}
	work.Wait()
}

func TestNothingArrivesBeforeTheDelay(t *testing.T) {
	const oneWay = 700 * time.Microsecond
	client, server := between(t, oneWay, inFlight)
	for range 100 {
		asked := time.Now()
		say(t, client, "ping")
		hear(t, server, "ping")
		there := time.Now()
		say(t, server, "pong")
		hear(t, client, "pong")
		back := time.Now()
		if to, from := there.Sub(asked), back.Sub(there); to < oneWay || from < oneWay {
			t.Fatalf("%v there and %v back, want %v or more each", to, from, oneWay)
		}
	}
}

// A proxy that sleeps for every chunk needs the delay a thousand times.
func TestChunksTravelAtTheSameTime(t *testing.T) {
	const (
		oneWay = 100 * time.Millisecond
		chunks = 1000
	)
	client, server := between(t, oneWay, inFlight)
	var sent [chunks]time.Time
	for i := range sent {
		sent[i] = time.Now()
		if _, err := client.Write(binary.BigEndian.AppendUint64(nil, uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	for i, at := range sent {
		var chunk [8]byte
		if _, err := io.ReadFull(server, chunk[:]); err != nil {
			t.Fatal(err)
		}
		if got := binary.BigEndian.Uint64(chunk[:]); got != uint64(i) {
			t.Fatalf("chunk %d came in the place of chunk %d", got, i)
		}
		if took := time.Since(at); took < oneWay {
			t.Fatalf("chunk %d came after %v, want %v or more", i, took, oneWay)
		}
	}
	if took := time.Since(sent[0]); took >= chunks*oneWay/4 {
		t.Fatalf("%d chunks took %v: they waited for each other", chunks, took)
	}
}

func TestConnectionsDoNotWaitForEachOther(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	proxy, err := Listen(listener.Addr().String(), 5*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	const pairs = 64
	var clients, servers [pairs]*net.TCPConn
	for i := range pairs {
		clients[i] = dial(t, proxy)
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = owned(t, accepted)
	}
	for i := range pairs {
		say(t, clients[i], string(rune('0'+i)))
	}
	// The last is heard first, and with the others not read.
	for i := pairs - 1; i >= 0; i-- {
		hear(t, servers[i], string(rune('0'+i)))
	}
}

func TestHalfCloseIsPassedOnBehindWhatWasSaid(t *testing.T) {
	for _, first := range []string{"client", "server"} {
		t.Run(first, func(t *testing.T) {
			const oneWay = 20 * time.Millisecond
			one, other := between(t, oneWay, inFlight)
			if first == "server" {
				one, other = other, one
			}
			at := time.Now()
			say(t, one, "that is all")
			if err := one.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if heard, err := io.ReadAll(other); err != nil || string(heard) != "that is all" {
				t.Fatalf("heard %q (%v)", heard, err)
			}
			if took := time.Since(at); took < oneWay {
				t.Fatalf("the end came after %v, want %v or more", took, oneWay)
			}
			// The other direction lives, and more than once.
			for _, answer := range []string{"well", "well"} {
				say(t, other, answer)
				hear(t, one, answer)
			}
			other.Close()
			if heard, err := io.ReadAll(one); err != nil || len(heard) > 0 {
				t.Fatalf("heard %q (%v), want the end", heard, err)
			}
		})
	}
}

func TestResetIsPassedOnAfterTheDelay(t *testing.T) {
	for _, halfClosed := range []bool{false, true} {
		const oneWay = 20 * time.Millisecond
		client, server := between(t, oneWay, inFlight)
		say(t, client, "hello")
		hear(t, server, "hello")
		if halfClosed {
			if err := client.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if _, err := server.Read(make([]byte, 1)); err != io.EOF {
				t.Fatalf("reads %v, want the end of the stream", err)
			}
		}
		at := time.Now()
		if err := client.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		client.Close()
		if halfClosed {
			// A reader has had its end. A writer is told.
			var err error
			for err == nil {
				_, err = server.Write(make([]byte, 1<<10))
			}
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Fatalf("writes %v, want a reset", err)
			}
		} else if _, err := server.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("reads %v, want a reset", err)
		}
		if took := time.Since(at); took < oneWay {
			t.Fatalf("the reset came after %v, want %v or more", took, oneWay)
		}
	}
}

func TestConnectionToNobodyIsReset(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := listener.Addr().String()
	listener.Close()
	proxy, err := Listen(nobody, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	conn, err := net.Dial("tcp4", proxy.Addr())
	if err == nil { // else the reset came before Dial had looked
		_, err = owned(t, conn).Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("got %v, want a reset", err)
	}
}

// What a receiver does not read stops the sender, and is all there when it reads.
func TestSlowReceiverStopsTheSender(t *testing.T) {
	const limit, room = 256 << 10, 32 << 20 // room: more than the kernel's buffers take
	client, server := between(t, time.Millisecond, limit)
	payload := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	_ = client.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	sent := 0
	for {
		n, err := client.Write(payload)
		sent += n
		if errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
		if err != nil {
			break
		}
		if sent > room {
			t.Fatalf("%d bytes were taken and nobody has read one", sent)
		}
	}
	if err := client.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	received, err := io.ReadAll(server)
	if err != nil || len(received) != sent {
		t.Fatalf("%d bytes of %d arrived (%v)", len(received), sent, err)
	}
	for i := range received {
		if received[i] != payload[i%len(payload)%16] {
			t.Fatalf("byte %d is %q", i, received[i])
		}
	}
}

func TestCloseResetsWhatIsOnItsWay(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	proxy, err := Listen(listener.Addr().String(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	client := dial(t, proxy)
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server := owned(t, accepted)
	say(t, client, "never heard")
	for range 2 {
		if err := proxy.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, conn := range []*net.TCPConn{client, server} {
		if n, err := conn.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("reads %d bytes and %v, want a reset", n, err)
		}
	}
	if conn, err := net.Dial("tcp4", proxy.Addr()); err == nil {
		conn.Close()
		t.Fatal("a closed proxy takes connections")
	}
}

func TestListenRefusesWhatItCannotServe(t *testing.T) {
	for _, target := range []string{"", "127.0.0.1", "[::1]:6379", "127.0.0.1:port"} {
		if p, err := Listen(target, 0); err == nil {
			p.Close()
			t.Errorf("a proxy to %q", target)
		}
	}
	if p, err := Listen("127.0.0.1:6379", -1); err == nil {
		p.Close()
		t.Error("a negative delay")
	}
}

package rawio_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/internal/rawio"
)

// owner is what has a Writer: it queues bytes under its mutex.
type owner struct {
	*rawio.Writer
	mu     sync.Mutex
	closed chan error // what OnClose was called with
}

func newOwner(conn io.Writer, raw syscall.RawConn) *owner {
	o := &owner{closed: make(chan error, 10)}
	o.Writer = rawio.NewWriter(&o.mu, conn, raw)
	o.OnClose = func(err error) { o.closed <- err }
	return o
}

// send queues bytes and flushes.
func (o *owner) send(b []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Accepts() {
		o.Queued = append(o.Queued, b...)
	}
	o.Flush()
}

func (o *owner) locked(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

// counts checks the positions of a Writer.
func (o *owner) counts(t *testing.T, sent, end int64, unwritten int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Sent() != sent || o.End() != end || o.Unwritten() != unwritten {
		t.Errorf("sent %d of %d bytes, %d unwritten; want %d of %d, %d unwritten", o.Sent(), o.End(), o.Unwritten(), sent, end, unwritten)
	}
}

// direct returns the owner of a Writer to one end of a connection, and the other end.
func direct(t *testing.T) (*owner, *net.UnixConn, *net.UnixConn) {
	t.Helper()
	here, there := pair(t)
	return newOwner(here, raw(t, here)), here, there
}

// slowConn is a connection that takes bytes when the test says so.
type slowConn struct {
	writes  chan []byte      // the argument of the Write under way
	results chan writeResult // what it returns
}

type writeResult struct {
	n   int
	err error
}

func newSlowConn() *slowConn {
	return &slowConn{writes: make(chan []byte), results: make(chan writeResult)}
}

func (c *slowConn) Write(b []byte) (int, error) {
	c.writes <- b
	r := <-c.results
	return r.n, r.err
}

// Several goroutines queue and flush; the reader reads in pieces of every size. Each
// goroutine's bytes arrive whole and in order.
func TestWriterKeepsOrderOfConcurrentCallers(t *testing.T) {
	const senders, records = 4, 3000
	o, here, there := direct(t)
	here.SetWriteBuffer(4096)
	var wg sync.WaitGroup
	for sender := range senders {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(sender), 1))
			for i := range records {
				record := make([]byte, 8+random.IntN(300))
				binary.BigEndian.PutUint16(record, uint16(len(record)))
				binary.BigEndian.PutUint16(record[2:], uint16(sender))
				binary.BigEndian.PutUint32(record[4:], uint32(i))
				o.send(record)
			}
		})
	}
	go func() {
		wg.Wait()
		o.locked(o.Finish)
		o.Wait()
		here.CloseWrite()
	}()
	random := rand.New(rand.NewPCG(1, 2))
	var got []byte
	for chunk := make([]byte, 2000); ; {
		n, err := there.Read(chunk[:1+random.IntN(len(chunk)-1)])
		got = append(got, chunk[:n]...)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var next [senders]uint32
	for len(got) >= 8 {
		size, sender, i := binary.BigEndian.Uint16(got), binary.BigEndian.Uint16(got[2:]), binary.BigEndian.Uint32(got[4:])
		if int(size) > len(got) || sender >= senders || i != next[sender] {
			t.Fatalf("a record of %d bytes with number %d of sender %d is not the next one", size, i, sender)
		}
		next[sender]++
		got = got[size:]
	}
	if len(got) > 0 || next != [senders]uint32{records, records, records, records} {
		t.Errorf("%d records arrived, and %d bytes after them", next, len(got))
	}
	if err := <-o.closed; err != nil {
		t.Error(err)
	}
}

// The socket takes a part; the rest follows when the peer reads. Flush does not wait for that.
func TestFlushLeavesRestOfPartialWriteToGoroutine(t *testing.T) {
	o, here, there := direct(t)
	want := bytes.Repeat([]byte("0123456789"), 100_000)
	o.send(want)
	o.locked(func() {
		if o.Unwritten() == 0 || o.Unwritten() == len(want) {
			t.Errorf("the socket took all but %d of %d bytes; the test needs one that takes a part", o.Unwritten(), len(want))
		}
	})
	o.send([]byte("the end")) // follows the rest
	o.locked(o.Finish)
	go func() {
		o.Wait()
		here.Close()
	}()
	got, err := io.ReadAll(there)
	if err != nil || !bytes.Equal(got, append(want, "the end"...)) {
		t.Errorf("%d bytes arrived (%v), which are not the %d that were sent", len(got), err, len(want)+7)
	}
}

// A socket that is full takes nothing: write(2) returns EAGAIN.
func TestFlushOfFullSocketKeepsAllBytes(t *testing.T) {
	o, here, there := direct(t)
	full := 0
	if err := raw(t, here).Write(func(fd uintptr) bool {
		for {
			n, err := rawio.Write(fd, make([]byte, 512))
			full += n
			if err == syscall.EAGAIN {
				return true
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	o.send([]byte("after"))
	o.locked(func() {
		if o.Unwritten() != 5 {
			t.Errorf("%d bytes are unwritten, want all 5", o.Unwritten())
		}
	})
	got := make([]byte, full+5)
	if _, err := io.ReadFull(there, got); err != nil || string(got[full:]) != "after" {
		t.Errorf("%q (%v) arrived after the %d bytes before it", got[full:], err, full)
	}
	o.locked(o.Finish)
	o.Wait()
	o.counts(t, 5, 5, 0)
}

// What is being written may have arrived; what is queued after it certainly has not.
func TestSentCountsWriteUnderWayAsSent(t *testing.T) {
	conn := newSlowConn()
	o := newOwner(conn, nil)
	o.counts(t, 0, 0, 0)
	o.send([]byte("abcde"))
	<-conn.writes
	o.send([]byte("fgh"))
	o.counts(t, 5, 8, 8)
	o.locked(func() {
		if o.Begun() != 5 {
			t.Errorf("writes took %d bytes, want 5", o.Begun())
		}
	})
	conn.results <- writeResult{5, nil}
	if b := <-conn.writes; string(b) != "fgh" {
		t.Errorf("wrote %q next", b)
	}
	o.counts(t, 8, 8, 3)
	failure := errors.New("it broke")
	conn.results <- writeResult{1, failure}
	if err := <-o.closed; err != failure {
		t.Errorf("closed with %v", err)
	}
	o.Wait()
	o.counts(t, 6, 8, 0)
	o.locked(func() {
		if o.Err() != failure || o.Accepts() {
			t.Errorf("Err is %v, Accepts %v", o.Err(), o.Accepts())
		}
	})
}

// What a write that was under way at Close has sent is known once it ends.
func TestSentIsExactAfterCloseDuringWrite(t *testing.T) {
	conn := newSlowConn()
	o := newOwner(conn, nil)
	o.send([]byte("abcde"))
	<-conn.writes
	o.locked(func() { o.Close(net.ErrClosed) })
	o.counts(t, 5, 5, 0)
	conn.results <- writeResult{2, net.ErrClosed}
	o.Wait()
	o.counts(t, 2, 5, 0)
}

func TestFailedWriteClosesWriterOnce(t *testing.T) {
	o, _, there := direct(t)
	there.Close()
	o.send([]byte("x"))
	if err := <-o.closed; !errors.Is(err, syscall.EPIPE) {
		t.Errorf("closed with %v, want EPIPE", err)
	}
	o.send([]byte("y"))
	o.locked(func() {
		if o.Close(net.ErrClosed) {
			t.Error("closed twice")
		}
		if !errors.Is(o.Err(), syscall.EPIPE) {
			t.Errorf("Err is %v, want that of the write", o.Err())
		}
		o.Finish()
	})
	o.Wait()
	if len(o.closed) > 0 {
		t.Error("OnClose was called twice")
	}
}

// A write that waits for the peer ends with its connection.
func TestCloseDuringWriteDiscardsRest(t *testing.T) {
	o, here, _ := direct(t)
	o.send(make([]byte, 1<<20))
	o.send([]byte("more"))
	o.locked(func() {
		if !o.Close(net.ErrClosed) {
			t.Error("it was closed before")
		}
	})
	here.Close()
	o.Wait()
	o.locked(func() {
		if o.Err() != net.ErrClosed || o.Sent() == 0 || o.Sent() >= 1<<20 || o.Unwritten() != 0 {
			t.Errorf("Err is %v; %d bytes were sent, want a part; %d are unwritten", o.Err(), o.Sent(), o.Unwritten())
		}
	})
	if err := <-o.closed; err != net.ErrClosed || len(o.closed) > 0 {
		t.Errorf("OnClose was called with %v, and %d times more", err, len(o.closed))
	}
}

// The goroutine that writes also writes what is queued meanwhile; no other one does.
func TestFlushDuringFlushLeavesBytesToIt(t *testing.T) {
	here, there := pair(t)
	conn := &hookedConn{RawConn: raw(t, here)}
	o := newOwner(here, conn)
	conn.before = func() {
		conn.before = func() {}
		o.send([]byte(" second"))
		if conn.writes != 1 {
			t.Error("a second write began before the first ended")
		}
	}
	o.send([]byte("first"))
	o.counts(t, 12, 12, 0)
	here.Close()
	if got, err := io.ReadAll(there); string(got) != "first second" {
		t.Errorf("%q arrived (%v)", got, err)
	}
}

// A caller of Flush that is in its system call may have sent its bytes.
func TestFlushCountsItsWriteAsSent(t *testing.T) {
	here, _ := pair(t)
	conn := &hookedConn{RawConn: raw(t, here)}
	o := newOwner(here, conn)
	conn.before = func() { o.counts(t, 5, 5, 5) }
	o.send([]byte("abcde"))
	o.counts(t, 5, 5, 0)
}

// The caller of Flush finds the error, and not a goroutine some time later.
func TestFailedWriteInFlushClosesAtOnce(t *testing.T) {
	o, _, there := direct(t)
	there.Close()
	o.send([]byte("x"))
	o.locked(func() {
		if !errors.Is(o.Err(), syscall.EPIPE) {
			t.Errorf("Err is %v, want EPIPE", o.Err())
		}
	})
}

// Close while a caller of Flush is in its system call.
func TestCloseDuringFlush(t *testing.T) {
	here, _ := pair(t)
	conn := &hookedConn{RawConn: raw(t, here)}
	o := newOwner(here, conn)
	conn.before = func() {
		o.locked(func() {
			o.Queued = append(o.Queued, "more"...)
			o.Close(net.ErrClosed)
		})
	}
	o.send([]byte("x"))
	o.Wait()
	o.counts(t, 1, 1, 0)
}

// hookedConn calls before at the beginning of each write.
type hookedConn struct {
	syscall.RawConn
	before func()
	writes int
}

func (c *hookedConn) Write(f func(fd uintptr) bool) error {
	c.writes++
	c.before()
	return c.RawConn.Write(f)
}

func TestFinishWritesWhatIsQueued(t *testing.T) {
	for _, flushed := range []bool{false, true} {
		conn := newSlowConn()
		o := newOwner(conn, nil)
		var wrote []byte
		go func() {
			for b := range conn.writes {
				wrote = append(wrote, b...)
				conn.results <- writeResult{len(b), nil}
			}
		}()
		o.locked(func() {
			o.Queued = append(o.Queued, "first"...)
			if flushed {
				o.Flush()
			}
			o.Queued = append(o.Queued, " last"...)
			o.Finish()
			if o.Accepts() || o.Err() != rawio.ErrFinished {
				t.Errorf("finished: Accepts %v, Err %v", o.Accepts(), o.Err())
			}
			o.Finish()
		})
		if err := <-o.closed; err != nil {
			t.Errorf("closed with %v", err)
		}
		o.Wait()
		close(conn.writes)
		if string(wrote) != "first last" || len(o.closed) > 0 {
			t.Errorf("wrote %q, and closed %d times more", wrote, len(o.closed))
		}
	}
}

// Finish during a Flush leaves the end to it; Wait waits for that.
func TestFinishDuringFlush(t *testing.T) {
	here, there := pair(t)
	conn := &hookedConn{RawConn: raw(t, here)}
	o := newOwner(here, conn)
	conn.before = func() {
		conn.before = func() {}
		o.locked(func() {
			o.Queued = append(o.Queued, " last"...)
			o.Finish()
		})
	}
	go o.send([]byte("first"))
	err := <-o.closed
	o.Wait()
	here.Close()
	if got, _ := io.ReadAll(there); string(got) != "first last" || err != nil {
		t.Errorf("%q arrived, closed with %v", got, err)
	}
}

func TestFinishWithNothingQueuedCloses(t *testing.T) {
	o := newOwner(newSlowConn(), nil)
	o.locked(o.Finish)
	if err := <-o.closed; err != nil {
		t.Error(err)
	}
	o.Wait()
}

func TestFinishThatCannotWriteReportsLoss(t *testing.T) {
	conn := newSlowConn()
	o := newOwner(conn, nil)
	o.send([]byte("x"))
	<-conn.writes
	o.locked(o.Finish)
	failure := errors.New("too slow")
	conn.results <- writeResult{0, failure}
	if err := <-o.closed; err != failure {
		t.Errorf("closed with %v", err)
	}
	o.locked(func() {
		if o.Err() != rawio.ErrFinished {
			t.Errorf("Err is %v, want the first reason", o.Err())
		}
	})
}

// A caller of Flush does not write for the others without end.
func TestFlushWritesForOthersFourTimes(t *testing.T) {
	here, there := pair(t)
	conn := &hookedConn{RawConn: raw(t, here)}
	o := newOwner(here, conn)
	conn.before = func() { o.locked(func() { o.Queued = append(o.Queued, 'x') }) }
	o.send([]byte("x"))
	if conn.writes != 4 {
		t.Errorf("one caller wrote %d times", conn.writes)
	}
	if _, err := io.ReadFull(there, make([]byte, 5)); err != nil {
		t.Error(err)
	}
	o.locked(o.Finish)
	o.Wait()
}

func TestOnWriteFollowsEachWrite(t *testing.T) {
	o, _, there := direct(t)
	var unwritten []int
	wrote := make(chan struct{}, 1000)
	o.OnWrite = func() {
		unwritten = append(unwritten, o.Unwritten())
		wrote <- struct{}{}
	}
	o.send(make([]byte, 1<<20))
	go io.Copy(io.Discard, there)
	o.send([]byte("x"))
	o.locked(o.Finish)
	o.Wait()
	if len(unwritten) < 2 || unwritten[0] == 0 || unwritten[len(unwritten)-1] != 0 {
		t.Errorf("after the writes %d bytes were unwritten", unwritten)
	}
}

// One buffer is used again and again; that of a burst is freed.
func TestWriterReusesBuffers(t *testing.T) {
	o, _, there := direct(t)
	frame := make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		o.send(frame)
		_, _ = io.ReadFull(there, frame)
	}); n > 0 {
		t.Errorf("%v allocations a flush", n)
	}
	o.send(make([]byte, 1<<20))
	go io.Copy(io.Discard, there)
	for idle := false; !idle; runtime.Gosched() {
		o.locked(func() { idle = o.Unwritten() == 0 })
	}
	o.locked(func() {
		if cap(o.Queued) > 256<<10 {
			t.Errorf("a buffer of %d bytes is kept", cap(o.Queued))
		}
		o.Finish()
	})
	o.Wait()
}

func BenchmarkWriterFlush(b *testing.B) {
	here, there := pair(b)
	o := newOwner(here, raw(b, here))
	go io.Copy(io.Discard, there)
	frame := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		o.send(frame)
	}
	o.locked(func() { o.Close(net.ErrClosed) })
	here.Close()
	o.Wait()
}

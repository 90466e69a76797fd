package locksidecar

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/rawio"
)

// sharedReader is the reading end of a connection, which many goroutines share. One goroutine
// at a time reads; it has the turn.
//
// A caller that waits for an answer takes the turn if it is free, and reads for all callers
// until its answer has come: an answer that one goroutine reads and another one waits for
// costs a switch between them, and mostly the waking of another thread. When a caller leaves
// the turn it arms a read notifier. The background goroutine of the connection waits for the
// notification, and handles the frames that arrive while no caller has the turn.
//
// A notifier takes a file descriptor. Without one the background goroutine has the turn for
// as long as the connection lives.
type sharedReader struct {
	nc  net.Conn
	raw syscall.RawConn // nil: there is none

	mu          sync.Mutex // guards what follows; no other mutex is taken under it
	phase       turnPhase
	failure     error               // in turnFailed: what ended the reading
	notifier    *rawio.ReadNotifier // nil: callers cannot have the turn
	interrupted bool                // the deadline for reading has passed
	drains      uint64              // how often the reading goroutine found the socket empty, while drainAwaited is set
	drained     chan struct{}       // closed at the next drain, and when the turn changes; nil: awaitDrain does not run

	drainAwaited atomic.Bool // awaitDrain waits for drains to grow

	// Owned by the goroutine that has the turn.
	reader      *rawio.Reader // nil: Read reads nc
	nonBlocking bool          // Read does not wait
}

// turnPhase is who reads.
//
//	           leave
//	taken ───────────────► free
//	 │ │ ▲                  │
//	 │ │ └──────────────────┘
//	 │ │   take, waitTurn
//	 │ │ fail
//	 │ └─────► failed
//	 │ close      │ close
//	 ▼            ▼
//	closed ◄──────┘
type turnPhase uint8

const (
	// One goroutine reads, or handles what it has read. At first it is the goroutine that
	// makes the connection, then the background goroutine. leave ends it, or fail.
	turnTaken turnPhase = iota

	// No goroutine reads, and the notifier is armed. take or waitTurn ends it.
	turnFree

	// A caller that read has found the end of the connection, or an error. No goroutine
	// reads any more, and waitTurn returns the failure. close ends it.
	turnFailed

	// The connection is closed. It has no end.
	turnClosed
)

// newSharedReader returns the reader of a connection. The caller has the turn. raw is nil if
// the connection has no descriptor.
func newSharedReader(nc net.Conn, raw syscall.RawConn) *sharedReader {
	r := &sharedReader{nc: nc, raw: raw}
	if raw != nil {
		r.reader = rawio.NewReader(raw)
		r.reader.Empty = r.onEmpty
	}
	return r
}

// Read is for the goroutine that has the turn.
func (r *sharedReader) Read(b []byte) (int, error) {
	switch {
	case r.reader == nil:
		return r.nc.Read(b)
	case r.nonBlocking:
		return r.reader.ReadNow(b)
	}
	return r.reader.Read(b)
}

// onEmpty is called by the goroutine that has the turn, when it has handled all that has
// arrived and is about to wait for more.
func (r *sharedReader) onEmpty() {
	if !r.drainAwaited.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drains++
	r.wakeLocked()
}

// wakeLocked wakes the goroutines in awaitDrain.
func (r *sharedReader) wakeLocked() {
	if r.drained != nil {
		close(r.drained)
		r.drained = nil
		r.drainAwaited.Store(false)
	}
}

// awaitDrain returns true when the goroutine that has the turn has handled all that had
// arrived before the call, or the reading has ended. It returns false if the turn is free.
func (r *sharedReader) awaitDrain() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for before := r.drains; r.drains == before; {
		switch r.phase {
		case turnFree:
			return false
		case turnFailed, turnClosed:
			return true
		}
		if r.drained == nil {
			r.drained = make(chan struct{})
		}
		drained := r.drained
		r.drainAwaited.Store(true)
		r.interruptLocked() // the socket may have been empty before drainAwaited was set
		r.mu.Unlock()
		<-drained
		r.mu.Lock()
	}
	return true
}

// share makes the notifier, and returns whether callers may have the turn from now on. They
// may not if the connection has no file descriptor, or the process has none to spare.
func (r *sharedReader) share() bool {
	if r.raw == nil {
		return false
	}
	n, err := rawio.NewReadNotifier(r.raw)
	if err != nil {
		return false
	}
	r.mu.Lock()
	r.notifier = n
	r.mu.Unlock()
	return true
}

// take gives the turn to the caller, if it is free.
func (r *sharedReader) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase != turnFree {
		return false
	}
	r.takeLocked()
	return true
}

// takeLocked takes the turn, which is free.
func (r *sharedReader) takeLocked() {
	r.phase = turnTaken
	r.notifier.Disarm()
}

// leave gives up the turn. The caller must have handled all frames that it has read: the
// notifier notifies only of data that is still in the socket.
func (r *sharedReader) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = turnFree
	r.wakeLocked()
	if !r.notifier.Arm() {
		r.notifier.Interrupt() // the background goroutine finds out why
	}
}

// fail passes the error that ended the reading to the background goroutine. It is for a
// caller that has the turn.
func (r *sharedReader) fail(why error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase, r.failure = turnFailed, why
	r.wakeLocked()
	r.notifier.Interrupt()
}

// waitTurn is for the background goroutine. It returns nil, with the turn, when there may be
// data to read, and the error after fail.
func (r *sharedReader) waitTurn() error {
	for {
		r.notifier.Wait()
		r.mu.Lock()
		phase := r.phase
		if phase == turnFree {
			r.takeLocked()
		}
		r.mu.Unlock()
		switch phase {
		case turnFree:
			return nil
		case turnFailed:
			return r.failure // it does not change any more
		}
	}
}

// interrupt makes the Read of a caller return os.ErrDeadlineExceeded, until that caller
// calls clearInterrupt.
func (r *sharedReader) interrupt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.notifier != nil && r.phase == turnTaken {
		r.interruptLocked()
	}
}

// interruptLocked is interrupt. The turn is taken.
func (r *sharedReader) interruptLocked() {
	r.interrupted = true
	_ = r.nc.SetReadDeadline(time.Unix(1, 0))
}

// clearInterrupt is for the goroutine that has the turn, before it checks why it was
// interrupted.
func (r *sharedReader) clearInterrupt() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.interrupted {
		r.interrupted = false
		_ = r.nc.SetReadDeadline(time.Time{})
	}
}

// hangUp makes waitTurn return when the connection was closed while the turn was free.
func (r *sharedReader) hangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.notifier != nil {
		r.notifier.Interrupt()
	}
}

func (r *sharedReader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.phase = turnClosed
	r.wakeLocked()
	if r.notifier != nil {
		r.notifier.Close()
	}
}

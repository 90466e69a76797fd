package locksidecar

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/rawio"
)

// inbox is the reading end of a connection. One goroutine at a time reads; it has the
// turn.
//
// A caller that waits for an answer takes the turn if it is free, and reads for all
// callers until its answer has come: an answer that one goroutine reads and another one
// waits for costs a switch between them, and mostly the waking of another thread. When a
// caller leaves the turn it arms a read notifier. The background goroutine of the
// connection waits for the notification, and handles the frames that arrive while no
// caller has the turn.
//
// A notifier takes a file descriptor. Without one the background goroutine has the turn
// for as long as the connection lives.
type inbox struct {
	nc  net.Conn
	raw syscall.RawConn // nil: there is none

	mu       sync.Mutex          // guards what follows; no other lock is taken under it
	notifier *rawio.ReadNotifier // nil: the background goroutine has the turn all the time
	taken    bool
	pushed   bool  // the deadline for reading has passed
	end      error // that a goroutine other than the background one found
	closed   bool
	emptied  uint64        // times that the reader has found nothing more, while asked is set
	change   chan struct{} // closed at the next such time, and when the turn is left; nil: awaitEmpty does not run

	asked atomic.Bool // awaitEmpty waits for emptied to grow

	reader *rawio.Reader // of the one whose turn it is; nil: it reads nc
	now    bool          // of the same: Read does not wait
}

// newInbox returns an inbox; it is the turn of whoever calls.
func newInbox(nc net.Conn, raw syscall.RawConn) *inbox {
	in := &inbox{nc: nc, raw: raw, taken: true}
	if raw != nil {
		in.reader = rawio.NewReader(raw)
		in.reader.Empty = in.isEmpty
	}
	return in
}

// Read is for whose turn it is.
func (in *inbox) Read(b []byte) (int, error) {
	switch {
	case in.reader == nil:
		return in.nc.Read(b)
	case in.now:
		return in.reader.ReadNow(b)
	}
	return in.reader.Read(b)
}

// isEmpty is called by the goroutine that has the turn, when it has booked all that has
// arrived.
func (in *inbox) isEmpty() {
	if !in.asked.Load() {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.emptied++
	in.changed()
}

// changed wakes the goroutines in awaitEmpty. The caller holds mu.
func (in *inbox) changed() {
	if in.change != nil {
		close(in.change)
		in.change = nil
		in.asked.Store(false)
	}
}

// awaitEmpty returns true when the goroutine that has the turn has booked all that had
// arrived before the call, or the connection has ended; false: no goroutine has the turn.
func (in *inbox) awaitEmpty() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for before := in.emptied; in.emptied == before && in.end == nil && !in.closed; {
		if !in.taken {
			return false
		}
		if in.change == nil {
			in.change = make(chan struct{})
		}
		change := in.change
		in.asked.Store(true)
		in.pushLocked() // it may have found nothing before it was asked
		in.mu.Unlock()
		<-change
		in.mu.Lock()
	}
	return true
}

// share makes the notifier, and returns whether callers may have the turn from now on.
// They may not if the connection has no file descriptor, or the process has none to spare.
func (in *inbox) share() bool {
	if in.raw == nil {
		return false
	}
	n, err := rawio.NewReadNotifier(in.raw)
	if err != nil {
		return false
	}
	in.mu.Lock()
	in.notifier = n
	in.mu.Unlock()
	return true
}

// take tells whether it is the caller's turn now.
func (in *inbox) take() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.taken {
		return false
	}
	in.grab()
	return true
}

// grab takes the turn, which nobody has. The caller holds mu.
func (in *inbox) grab() {
	in.taken = true
	in.notifier.Disarm()
}

// leave gives up the turn. The caller must have handled all frames that it has read: the
// notifier notifies only of data that is still in the socket.
func (in *inbox) leave() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.taken = false
	in.changed()
	if !in.notifier.Arm() {
		in.notifier.Interrupt() // the background goroutine finds out why
	}
}

// abandon passes the error that ended the reading to the background goroutine. The turn
// stays taken.
func (in *inbox) abandon(why error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.end = why
	in.changed()
	in.notifier.Interrupt()
}

// keep is for the background goroutine. It returns nil, with the turn, when there may be
// data to read, or else the error that ended the reading.
func (in *inbox) keep() error {
	for {
		in.notifier.Wait()
		in.mu.Lock()
		end, free := in.end, !in.taken
		if free {
			in.grab()
		}
		in.mu.Unlock()
		if end != nil || free {
			return end
		}
	}
}

// push has whoever reads look up from it: Read fails with os.ErrDeadlineExceeded
// until it is calmed.
func (in *inbox) push() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.notifier != nil && in.taken {
		in.pushLocked()
	}
}

// pushLocked is push. The caller holds mu, and a goroutine has the turn.
func (in *inbox) pushLocked() {
	in.pushed = true
	_ = in.nc.SetReadDeadline(time.Unix(1, 0))
}

// calm is for whose turn it is, before it looks why it was pushed.
func (in *inbox) calm() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.pushed {
		in.pushed = false
		_ = in.nc.SetReadDeadline(time.Time{})
	}
}

// hangUp has everybody return who reads or keeps the inbox of a connection that was
// closed.
func (in *inbox) hangUp() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.notifier != nil {
		in.notifier.Interrupt()
	}
}

func (in *inbox) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	in.changed()
	if in.notifier != nil {
		in.notifier.Close()
	}
}

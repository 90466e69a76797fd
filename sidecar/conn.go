package sidecar

import (
	"encoding/binary"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/internal/rawio"
	"github.com/locksidecar/locksidecar/protocol"
)

const (
	// While a connection is read more slowly, so many requests are handed over at a time.
	pacedRequests = 8

	// A client whose unread answers exceed maxUnread bytes, or whose requests in
	// the inbox exceed maxQueued, is not read from until there are fewer. What
	// can still be added then is bounded by its waiters and holds: one answer or
	// one `lost` each.
	maxUnread = 256 << 10
	maxQueued = 64

	// If the unread answers of all clients exceed maxUnreadAll bytes, each of them may
	// have only lessUnread.
	maxUnreadAll = 64 << 20
	lessUnread   = 16 << 10

	// connections that have not said hello may exceed the sessions by this much.
	spareConns = 256

	// how long the last frame to a client that is being closed may take.
	lastFrame = time.Second

	// How long a sidecar that stops reads what its clients have sent: what has arrived when it stops, so at most the
	// buffer of each socket. Only on a host that is very busy, or with very many clients that flood it, that takes longer.
	drainWithin = 750 * time.Millisecond
)

func newConn(nc *net.UnixConn, unread *atomic.Int64) (*conn, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &conn{nc: nc, raw: raw, unread: unread, pidfd: -1, lease: -1}
	c.changed.L = &c.mu
	c.out = rawio.NewWriter(&c.mu, nc, raw)
	c.out.OnWrite = c.onWrite
	c.out.OnClose = c.onWriterClose
	return c, nil
}

// hangUpCheck is how soon a connection that is read slowly notices that the client has closed it.
const hangUpCheck = 200 * time.Millisecond

// keepPace waits before a batch of requests is handed over, if they come faster than the policy
// allows: see intake.Pace. A client that has gone is not waited for, because that would keep its locks. Of
// its requests those are handed over that give something back: nothing reads the other answers.
func (c *conn) keepPace(batch *[]request) {
	if c.pace == nil {
		return
	}
	now := protocol.Now()
	end := now + int64(c.pace.Pause(now, len(*batch)))
	c.isSlowed = end > now
	for ; now < end && !c.isUnread(); now = protocol.Now() {
		c.sleep(min(time.Duration(end-now), hangUpCheck))
	}
	if c.isSlowed && c.isUnread() {
		*batch = slices.DeleteFunc(*batch, func(r request) bool { return !r.isNeededAfterwards() })
	}
}

// sleep waits for so long, or until abandon is called.
func (c *conn) sleep(d time.Duration) {
	isOver := false
	timer := time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		isOver = true
		c.changed.Broadcast()
	})
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !isOver && !c.isAbandoned {
		c.changed.Wait()
	}
}

// abandon notes that nothing reads the answers to what the connection still brings: the client's
// process has ended, or the sidecar hangs up.
func (c *conn) abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isAbandoned = true
	c.changed.Broadcast()
}

// isUnread reports whether nothing reads the answers: see abandon, or the client has closed the
// connection.
func (c *conn) isUnread() bool {
	return c.hasNoReader() || c.reports(unix.POLLHUP)
}

// hasNoReader reports whether abandon was called.
func (c *conn) hasNoReader() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isAbandoned
}

// hasEnded reports whether the client has ended what it sends, or the connection is closed here.
func (c *conn) hasEnded() bool { return c.reports(unix.POLLRDHUP | unix.POLLHUP) }

// reports reports whether poll finds one of these states of the socket; also if the socket is closed here.
func (c *conn) reports(states int16) bool {
	found := true
	_ = c.raw.Control(func(fd uintptr) {
		state := []unix.PollFd{{Fd: int32(fd), Events: states}}
		n, err := unix.Poll(state, 0)
		found = err == nil && n == 1 && state[0].Revents&states != 0
	})
	return found
}

// mostRequests is how many requests are handed over at a time.
func (c *conn) mostRequests() int {
	if c.isSlowed {
		return pacedRequests
	}
	return maxQueued
}

// throttle is the backpressure of a slow reader: it waits until no more than queued requests and unread bytes are left of
// this connection; false: its last frame is queued, and nothing more is read.
func (c *conn) throttle(queued, unread int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for (c.queued > queued || c.unreadOver(unread)) && !c.isEnding() {
		c.changed.Wait()
	}
	return !c.isEnding() || c.isDraining.Load()
}

// isEnding reports whether the sidecar ends the connection. The caller holds mu.
func (c *conn) isEnding() bool { return c.out.Err() == rawio.ErrFinished }

// unreadOver reports whether the client has left more answers unread than it may. The
// caller holds mu.
func (c *conn) unreadOver(limit int) bool {
	n := len(c.out.Queued)
	return n > limit || n > lessUnread && c.unread.Load() > maxUnreadAll
}

// countUnread brings the count of all connections up to date. The caller holds mu.
func (c *conn) countUnread() {
	n := c.out.Unwritten()
	c.unread.Add(int64(n - c.counted))
	c.counted = n
}

// taken counts one request that the loop has dealt with.
func (c *conn) taken() {
	c.mu.Lock()
	c.queued--
	c.changed.Signal()
	c.mu.Unlock()
}

// queueReply queues a frame. It is written by flush.
func (c *conn) queueReply(m protocol.Reply) {
	c.mu.Lock()
	if c.out.Accepts() {
		c.out.Queued = m.Append(c.out.Queued)
		c.countUnread()
	}
	c.mu.Unlock()
}

// queueLease queues a `lease` event. It replaces an earlier one that no write has taken
// yet: a client that reads slowly gets only the newest.
func (c *conn) queueLease(m *protocol.LeaseEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.out.Accepts() {
		return
	}
	if at := c.lease - c.out.Begun(); at >= 0 {
		// The new event stands at the end: in the place of the old one it would not
		// cover the holds that were granted since.
		tail := c.out.Queued[at:]
		old := 4 + int(binary.BigEndian.Uint32(tail))
		c.out.Queued = append(c.out.Queued[:at], tail[old:]...)
	}
	c.lease = c.out.End()
	c.out.Queued = m.Append(c.out.Queued)
	c.countUnread()
}

// flush gives the socket what it takes without blocking.
func (c *conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.Flush()
}

// onWrite runs with mu held after each write.
func (c *conn) onWrite() {
	c.countUnread()
	c.changed.Signal()
}

// onWriterClose runs with mu held when nothing is written any more.
func (c *conn) onWriterClose(err error) {
	c.countUnread()
	c.changed.Broadcast()
	switch err {
	case nil:
		// The end of our answers reaches the client even if it still sends: a close
		// with unread input would be a reset.
		_ = c.nc.CloseWrite()
	case net.ErrClosed: // see end
	default:
		// The client would miss frames: it must not continue as if it had read all
		// of them. The reader finds the end after what the client has sent.
		rawio.Shutdown(c.raw)
	}
}

// queueLast queues the last frame of a connection that the sidecar ends. It may
// take lastFrame to be written.
func (c *conn) queueLast(m protocol.Reply) {
	c.queueReply(m)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.out.Accepts() {
		return
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(lastFrame))
	c.out.Finish()
	c.changed.Broadcast()
}

// readUntil sets when the reader gives up; the zero time: never. After hangUp the reader has
// ended, or is about to: then the deadline stays.
func (c *conn) readUntil(deadline time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.out.Accepts() {
		_ = c.nc.SetReadDeadline(deadline)
	}
}

// drain ends a connection of a sidecar that stops. The reader continues to the end of what the client has
// sent: a release that has arrived is executed, and one that is sent after this fails with EPIPE. So no
// release is lost, unless the client sends more than can be read in time. The loop calls it.
func (c *conn) drain(m protocol.Reply) {
	c.isOver = c.hasEnded() // before the client can learn of the stop: see onDisconnect
	c.isDraining.Store(true)
	c.queueLast(m)
	c.abandon()
	_ = c.nc.SetReadDeadline(time.Now().Add(drainWithin))
	rawio.ShutdownRead(c.raw)
}

// hangUp ends the reader; the last frame is written first.
func (c *conn) hangUp(m protocol.Reply) {
	c.queueLast(m)
	c.abandon()
	_ = c.nc.SetReadDeadline(time.Now())
}

// refuse tells a client why it is not served, gives it time to read it, and closes the connection.
func (c *conn) refuse(why *protocol.Err) {
	c.queueLast(why)
	c.linger()
	c.end()
}

// linger throws away what a client still sends after its last frame, for a
// bounded time.
func (c *conn) linger() {
	_ = c.nc.SetReadDeadline(time.Now().Add(lastFrame))
	var b [4096]byte
	for {
		if _, err := c.nc.Read(b[:]); err != nil {
			return
		}
	}
}

// end closes the connection. The last frame, if there is one, has its time; other
// answers are discarded.
func (c *conn) end() {
	c.mu.Lock()
	if !c.isEnding() {
		c.nc.Close()
		c.out.Close(net.ErrClosed)
	}
	c.mu.Unlock()
	c.out.Wait()
	c.nc.Close()
}

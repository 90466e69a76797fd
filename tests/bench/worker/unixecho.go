package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
)

// The bare Unix socket: a server that answers each acquire with a grant, at once
// and to anybody, and clients with a connection for each worker. The frames have
// the size of the sidecar's; as there, a release is not answered. Nothing is
// decoded, and the server has one thread and no Go runtime between it and epoll.
//
// The server is a worker of its own, to be started before its clients.

var (
	acquireFrame = protocol.Acquire{ID: 1 << 16, Name: "invoice:42", WaitMS: protocol.Forever}.Append(nil)
	releaseFrame = protocol.Release{Hold: 1 << 16}.Append(nil)
	grantFrame   = protocol.AcquireOK{ID: 1 << 16, Token: 1 << 50, Hold: 1 << 16, Count: 1, DeadlineNS: 1 << 46}.Append(nil)
)

func echoSocket(s *spec) string { return s.Socket + ".echo" }

type echoClient struct{ path string }

func connectEcho(s *spec) (client, error) { return echoClient{echoSocket(s)}, nil }

func (c echoClient) worker() (worker, error) {
	conn, err := net.Dial("unix", c.path)
	return &echoWorker{conn: conn, grant: make([]byte, len(grantFrame))}, err
}

func (echoClient) hold(string) (func() error, error) {
	return nil, errors.New("an echo server has no locks to hold")
}

type echoWorker struct {
	conn  net.Conn
	grant []byte
}

func (w *echoWorker) lock(string) error {
	if _, err := w.conn.Write(acquireFrame); err != nil {
		return err
	}
	_, err := io.ReadFull(w.conn, w.grant)
	return err
}

func (w *echoWorker) unlock() error {
	_, err := w.conn.Write(releaseFrame)
	return err
}

type echoServer struct {
	*run
	listening, epoll int
	conns            map[int]*echoConn
}

// An echoConn is what the server has of a client.
type echoConn struct {
	in   []byte // of a frame that is not whole
	room [4096]byte
}

func newEchoServer(r *run) measurement {
	return &echoServer{run: r, conns: map[int]*echoConn{}}
}

func (s *echoServer) prepare() error {
	path := echoSocket(&s.spec)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var err error
	if s.listening, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(s.listening, &unix.SockaddrUnix{Name: path}); err != nil {
		return fmt.Errorf("bind %s: %w", path, err)
	}
	if err := unix.Listen(s.listening, 1024); err != nil {
		return os.NewSyscallError("listen", err)
	}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := s.watch(s.listening); err != nil {
		return err
	}
	// Clients warm up before anybody says go.
	go func() {
		for {
			if err := s.turn(); err != nil {
				s.add(err)
				return
			}
		}
	}()
	return nil
}

func (s *echoServer) start() {}

func (s *echoServer) finish() error {
	return errors.Join(writeTapes(s.Records, nil), os.Remove(echoSocket(&s.spec)))
}

func (s *echoServer) watch(fd int) error {
	err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	return os.NewSyscallError("epoll_ctl", err)
}

// turn waits for clients and serves all that have something.
func (s *echoServer) turn() error {
	var events [128]unix.EpollEvent
	n, err := unix.EpollWait(s.epoll, events[:], -1)
	if err != nil && err != unix.EINTR {
		return os.NewSyscallError("epoll_wait", err)
	}
	for _, ev := range events[:max(n, 0)] {
		fd := int(ev.Fd)
		if fd != s.listening {
			s.serve(fd)
			continue
		}
		conn, _, err := unix.Accept4(s.listening, unix.SOCK_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("accept", err)
		}
		if err := s.watch(conn); err != nil {
			return err
		}
		s.conns[conn] = new(echoConn)
	}
	return nil
}

// serve reads once and answers, in one write, what has come. A client that is gone
// is forgotten.
func (s *echoServer) serve(fd int) {
	c := s.conns[fd]
	n, err := unix.Read(fd, c.room[len(c.in):])
	if err == unix.EINTR {
		return
	}
	var out []byte
	if n > 0 {
		out = c.answer(n)
	}
	if n > 0 && len(out) > 0 {
		_, err = unix.Write(fd, out)
	}
	if n <= 0 || err != nil {
		delete(s.conns, fd)
		unix.Close(fd)
	}
}

// answer takes n more bytes that were read behind c.in, and returns the answers to
// what is whole now.
func (c *echoConn) answer(n int) []byte {
	var out []byte
	in := c.room[:len(c.in)+n]
	for len(in) >= 4 {
		size := 4 + int(binary.BigEndian.Uint32(in))
		if len(in) < size {
			break
		}
		if size == len(acquireFrame) {
			out = append(out, grantFrame...)
		}
		in = in[size:]
	}
	c.in = c.room[:copy(c.room[:], in)]
	return out
}

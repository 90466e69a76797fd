package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A stage is what one contender plays on, made new for each run: nothing that one
// left behind, a connection or a page of memory, is in the way of the next.
type stage struct {
	dir      string
	redis    *process
	client   *redis.Client // the conductor's own, past the proxy
	etcd     *process      // nil: not needed
	proxies  []*process
	servers  []*process // our daemons, one a host, or what else serves the workers
	redisURL string     // for the contender, through the proxy if there is one
	etcdURL  string
	rtt      time.Duration // of a PING on the contender's way to Redis
	note     string
}

// build makes the stage of a scenario for a contender. What it returns must be
// closed, an error or not.
func (b *bench) build(ctx context.Context, s Scenario, c contender) (*stage, error) {
	st := &stage{}
	var err error
	// Not below $TMPDIR: the path of a socket may have 107 bytes.
	if st.dir, err = os.MkdirTemp("/tmp", "bench"); err != nil {
		return st, err
	}
	port, err := st.startRedis(ctx)
	if err != nil {
		return st, err
	}
	addr := "127.0.0.1:" + strconv.Itoa(port)
	if s.WAN {
		if addr, err = b.startProxy(ctx, st, addr); err != nil {
			return st, err
		}
	}
	st.redisURL = "redis://" + addr + "/0"
	if st.rtt, err = roundTrip(ctx, addr); err != nil {
		return st, err
	}
	if c.etcd {
		if err := b.startEtcd(ctx, st, s.WAN); err != nil {
			return st, err
		}
	}
	for host := range s.Hosts {
		switch {
		case c.role == Ours || c.role == Sibling:
			err = b.startDaemon(ctx, st, s, host)
		case c.server != "":
			err = b.startEcho(ctx, st, c, host)
		}
		if err != nil {
			return st, err
		}
	}
	return st, nil
}

// close ends all processes of the stage and removes its files.
func (st *stage) close() error {
	if st.client != nil {
		st.client.Close()
	}
	for _, p := range append(append(st.servers, st.proxies...), st.redis, st.etcd) {
		if p != nil {
			p.kill()
		}
	}
	if st.dir == "" {
		return nil
	}
	return os.RemoveAll(st.dir)
}

func (st *stage) socket(host int) string {
	return filepath.Join(st.dir, fmt.Sprintf("host%d.sock", host))
}

// startRedis returns the port of a server that keeps nothing on disk.
func (st *stage) startRedis(ctx context.Context) (port int, err error) {
	for attempt := 0; ; attempt++ {
		if port, err = freePort(); err != nil {
			return 0, err
		}
		st.redis, err = start("redis-server", exec.Command("redis-server", "--dir", st.dir,
			"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--save", "", "--appendonly", "no", "--daemonize", "no"))
		if err != nil {
			return 0, err
		}
		addr := "127.0.0.1:" + strconv.Itoa(port)
		err = st.redis.until(ctx, "listening", func() bool {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				conn.Close()
			}
			return err == nil
		})
		if err == nil {
			st.client = redis.NewClient(&redis.Options{Addr: addr, PoolSize: 1, DisableIdentity: true, MaxRetries: -1})
			return port, st.client.Ping(ctx).Err()
		}
		// Somebody may have been faster to take the port.
		if attempt == 5 || !strings.Contains(err.Error(), "in use") {
			return 0, err
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// startProxy puts a delaying proxy before target and returns its address. It is a
// process, so that its CPU time is nobody else's.
func (b *bench) startProxy(ctx context.Context, st *stage, target string) (addr string, err error) {
	cmd := exec.Command(b.programs.self, proxyCommand, target, (b.rtt / 2).String())
	p, addr, err := startServer(ctx, "proxy", cmd)
	if err != nil {
		return "", err
	}
	st.proxies = append(st.proxies, p)
	return addr, nil
}

func (b *bench) startEtcd(ctx context.Context, st *stage, wan bool) error {
	cmd := exec.Command(b.programs.etcd, "-dir", filepath.Join(st.dir, "etcd"))
	// It ends when its standard input does, which is after it is killed.
	if _, err := cmd.StdinPipe(); err != nil {
		return err
	}
	p, line, err := startServer(ctx, "etcd", cmd)
	if err != nil {
		return err
	}
	st.etcd = p
	var ready struct{ Client, Filesystem string }
	if err := json.Unmarshal([]byte(line), &ready); err != nil {
		return fmt.Errorf("etcd: it said %q: %w", line, err)
	}
	addr, found := strings.CutPrefix(ready.Client, "http://")
	if !found {
		return fmt.Errorf("etcd: it said %q: no URL of clients in it", line)
	}
	if wan {
		if addr, err = b.startProxy(ctx, st, addr); err != nil {
			return err
		}
	}
	st.etcdURL = "http://" + addr
	st.note = "its data is on " + ready.Filesystem + ", and each write waits for an fsync"
	return nil
}

// startDaemon starts the daemon of a host and returns when it has reached Redis.
func (b *bench) startDaemon(ctx context.Context, st *stage, s Scenario, host int) error {
	socket := st.socket(host)
	args := []string{"serve", "--socket", socket, "--lease", s.lease().String(), "--log-level", "warn"}
	if s.Setting != "" {
		args = append(args, s.Setting)
	}
	cmd := exec.Command(b.programs.daemon, args...)
	cmd.Env = append(withoutOurs(os.Environ()), "LOCKSIDECAR_REDIS="+st.redisURL)
	p, err := start(fmt.Sprintf("daemon %d", host), cmd)
	if err != nil {
		return err
	}
	st.servers = append(st.servers, p)
	return p.until(ctx, "serving", func() bool {
		ping := exec.CommandContext(ctx, b.programs.daemon, "ping", "--socket", socket)
		return ping.Run() == nil
	})
}

// startEcho starts what is in the place of a daemon without being one.
func (b *bench) startEcho(ctx context.Context, st *stage, c contender, host int) error {
	w, err := startWorker(c.server, b.programs.worker(c.language), spec{
		Contender: c.server, Mode: pairs, Socket: st.socket(host), LeaseMS: 30_000,
		Records: filepath.Join(st.dir, "server.records"),
	})
	if err != nil {
		return err
	}
	st.servers = append(st.servers, w.process)
	_, err = w.await(ctx, "ready", patience)
	return err
}

// withoutOurs is an environment without settings of ours that a developer may have.
func withoutOurs(env []string) []string {
	var kept []string
	for _, v := range env {
		if !strings.HasPrefix(v, "LOCKSIDECAR_") {
			kept = append(kept, v)
		}
	}
	return kept
}

// roundTrip is the median time of a PING, over a connection that is warm.
func roundTrip(ctx context.Context, addr string) (time.Duration, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	const warm, asked = 5, 21
	var took []float64
	answer := make([]byte, len("+PONG\r\n"))
	for i := range warm + asked {
		began := time.Now()
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			return 0, err
		}
		for got := 0; got < len(answer); {
			n, err := conn.Read(answer[got:])
			if err != nil {
				return 0, err
			}
			got += n
		}
		if string(answer) != "+PONG\r\n" {
			return 0, errors.New("redis-server answers PING with " + strconv.Quote(string(answer)))
		}
		if i >= warm {
			took = append(took, float64(time.Since(began)))
		}
	}
	return time.Duration(median(took)), nil
}

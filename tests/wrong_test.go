package tests

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// What users get wrong, and what they see then.

// mention expects err to be of a kind and to say these things to people.
func mention(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %v", kind)
	}
	if kind != nil && !errors.Is(err, kind) {
		t.Errorf("the error is %q, not of the kind %q", err, kind)
	}
	says(t, err.Error(), words...)
}

func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(strings.ToLower(text), strings.ToLower(w)) {
			t.Errorf("%q does not mention %q", text, w)
		}
	}
}

// unavailableBecause starts a daemon on a Redis that will not do: it serves all
// the same, and every user of it, and its log, hears the reason.
func unavailableBecause(t *testing.T, url string, words ...string) {
	t.Helper()
	d := launchDaemon(t, url)
	d.awaitRedis(strings.ToLower(words[0]))
	c := dial(t, d)
	_, err := c.TryLock(t.Context(), "x")
	mention(t, err, locksidecar.ErrUnavailable, words...)
	w := dialWire(t, d)
	says(t, w.refused(protocol.Unavailable, message{"op": "acquire", "name": "x", "wait_ms": 50}), words...)
	says(t, d.log.String(), words...)
	if r := d.run("ping"); r.code == 0 {
		t.Error("`locksidecar ping` finds nothing wrong")
	} else {
		says(t, r.stderr+r.stdout, words...)
	}
}

func TestRedisIsDown(t *testing.T) {
	port := freePort(t)
	unavailableBecause(t, fmt.Sprintf("redis://127.0.0.1:%d", port), "refuses connections", fmt.Sprint(port))
	unavailableBecause(t, "unix:///nowhere/redis.sock", "no redis socket", "/nowhere/redis.sock")
}

// A daemon that started without Redis serves as soon as it is there.
func TestRedisComesLater(t *testing.T) {
	r := startRedis(t)
	r.stop()
	d := launchDaemon(t, r.tcpURL())
	w := startGoWorker(t, d)
	granted := w.ask(command{Do: "lock", As: "x", Name: "x", WaitMS: -1})
	eventually(t, "the waiter waits", func() bool { return waiting(t, d, "x") == 1 })
	r.start()
	if a := w.await(granted); a.Err != "" {
		t.Errorf("the waiter is told %+v", a)
	}
}

func TestWrongPassword(t *testing.T) {
	r := startRedis(t, "--requirepass", "right")
	host := fmt.Sprintf("127.0.0.1:%d", r.port)
	unavailableBecause(t, "redis://:wrong@"+host, "password")
	unavailableBecause(t, "redis://"+host, "password")
	d := startDaemon(t, "redis://:right@"+host)
	if d.log.contains("right@") || d.log.contains(":right") {
		t.Error("the password is in the log")
	}
}

func TestRedisDoesNotPermitScripts(t *testing.T) {
	r := startRedis(t)
	acl(t, r, "app", ">pw", "~*", "&*", "+@all", "-@scripting")
	unavailableBecause(t, fmt.Sprintf("redis://app:pw@127.0.0.1:%d", r.port), "permit", "eval")
}

// Without permission to listen on channels, locks work and waits rely on
// asking again; the log says what to permit.
func TestRedisDoesNotPermitChannels(t *testing.T) {
	r := startRedis(t)
	acl(t, r, "app", ">pw", "~*", "resetchannels", "+@all")
	d := startDaemon(t, fmt.Sprintf("redis://app:pw@127.0.0.1:%d", r.port))
	other := startDaemon(t, r.unixURL())
	holder, waiter := startGoWorker(t, other), startGoWorker(t, d)
	holder.lock("x")
	granted := waiter.ask(command{Do: "lock", As: "x", Name: "x", WaitMS: -1})
	eventually(t, "the log says what is not permitted", func() bool { return d.log.contains("redisson_lock__channel") })
	holder.unlock("x")
	if a := waiter.await(granted); a.Err != "" {
		t.Fatalf("the waiter is told %+v", a)
	}
	waiter.unlock("x")
	// Its release is not lost, though it could not be published.
	holder.lock("x")
}

func TestRedisDoesNotPermitTheKey(t *testing.T) {
	r := startRedis(t)
	acl(t, r, "app", ">pw", "~app:*", "~redisson_lock_token:{app:*", "&redisson_lock__channel:{app:*", "+@all")
	d := startDaemon(t, fmt.Sprintf("redis://app:pw@127.0.0.1:%d", r.port))
	c := dial(t, d)
	_, err := c.TryLock(t.Context(), "else:1")
	mention(t, err, locksidecar.ErrDenied, "permit", "else:1")
	l, err := c.TryLock(t.Context(), "app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

func acl(t *testing.T, r *redisServer, user string, rules ...string) {
	t.Helper()
	args := []any{"ACL", "SETUSER", user, "on"}
	for _, rule := range rules {
		args = append(args, rule)
	}
	if err := r.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestRedisIsAReadOnlyReplica(t *testing.T) {
	master := startRedis(t)
	replica := startRedis(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", master.port))
	unavailableBecause(t, replica.unixURL(), "read-only replica", fmt.Sprint(master.port))
}

// A Redis that becomes a replica while it is used is noticed too.
func TestRedisBecomesAReplica(t *testing.T) {
	master, r := startRedis(t), startRedis(t)
	d := startDaemon(t, r.unixURL())
	ctx := t.Context()
	if err := r.Do(ctx, "REPLICAOF", "127.0.0.1", master.port).Err(); err != nil {
		t.Fatal(err)
	}
	_, err := dial(t, d).TryLock(ctx, "x")
	mention(t, err, locksidecar.ErrUnavailable, "replica")
	if err := r.Do(ctx, "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	w := startGoWorker(t, d)
	w.lock("x")
}

// An old Redis is played by a server that says so: none can be installed.
func TestRedisIsTooOld(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go answerLikeRedis3(conn)
		}
	}()
	unavailableBecause(t, "redis://"+l.Addr().String(), "3.0.7", "needs")
}

// answerLikeRedis3 knows INFO, TIME and PING as Redis 3.0 did, and no HELLO.
func answerLikeRedis3(conn net.Conn) {
	defer conn.Close()
	for {
		args, err := readCommand(conn)
		if err != nil {
			return
		}
		switch strings.ToUpper(args[0]) {
		case "INFO":
			info := "# Server\r\nredis_version:3.0.7\r\nrun_id:0123456789012345678901234567890123456789\r\n# Replication\r\nrole:master\r\n"
			fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(info), info)
		case "TIME":
			fmt.Fprint(conn, "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n")
		case "PING":
			fmt.Fprint(conn, "+PONG\r\n")
		default:
			fmt.Fprintf(conn, "-ERR unknown command '%s'\r\n", args[0])
		}
	}
}

// readCommand reads one command in Redis's protocol, a byte at a time.
func readCommand(r io.Reader) ([]string, error) {
	line := func() (string, error) {
		var s []byte
		for b := make([]byte, 1); ; {
			if _, err := io.ReadFull(r, b); err != nil {
				return "", err
			}
			if s = append(s, b[0]); bytes.HasSuffix(s, []byte("\r\n")) {
				return string(s[:len(s)-2]), nil
			}
		}
	}
	number := func(prefix string) (n int, err error) {
		s, err := line()
		if err != nil {
			return 0, err
		}
		_, err = fmt.Sscanf(s, prefix+"%d", &n)
		return n, err
	}
	n, err := number("*")
	if err != nil {
		return nil, err
	}
	args := make([]string, n)
	for i := range args {
		size, err := number("$")
		if err != nil {
			return nil, err
		}
		arg := make([]byte, size+2)
		if _, err := io.ReadFull(r, arg); err != nil {
			return nil, err
		}
		args[i] = string(arg[:size])
	}
	return args, nil
}

func TestSocketIsMissing(t *testing.T) {
	path := filepath.Join(shortDir(t), "nowhere.sock")
	_, err := locksidecar.Dial(t.Context(), path)
	mention(t, err, locksidecar.ErrUnavailable, path)
	r := runBinary(t, []string{"LOCKSIDECAR_SOCKET=" + path}, "ls")
	if r.code != 69 {
		t.Errorf("`locksidecar ls` ends with %d, not 69", r.code)
	}
	says(t, r.stderr, path)
	if havePython() {
		out, err := exec.Command(python(t), "-c", "import locksidecar, sys\n"+
			"try: locksidecar.connect(sys.argv[1]).lock('x').acquire()\n"+
			"except locksidecar.Unavailable as e: print(e)", path).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		says(t, string(out), path)
	}
}

func TestSocketIsNotPermitted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	d := startDaemon(t, startRedis(t).unixURL(), "--socket-mode=0600")
	for dir := filepath.Dir(d.socket); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "ls")
	cmd.Env = append(plainEnv(), "LOCKSIDECAR_SOCKET="+d.socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 77 {
		t.Errorf("`locksidecar ls` by another user: %v, not exit code 77", err)
	}
	says(t, string(out), d.socket, "permi")
}

// Two daemons on one socket: the second says who has it, the first goes on.
func TestSocketIsTaken(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL())
	second := runBinary(t, []string{"LOCKSIDECAR_REDIS=" + r.unixURL()}, "serve", "--socket", d.socket)
	if second.code == 0 {
		t.Error("a second daemon served on the same socket and ended well")
	}
	says(t, second.stderr, d.socket, "already", fmt.Sprint(d.pid()))
	if _, err := dial(t, d).TryLock(t.Context(), "x"); err != nil {
		t.Errorf("the first daemon suffered: %v", err)
	}
}

// A socket that a dead daemon left is in nobody's way.
func TestSocketIsStale(t *testing.T) {
	r := startRedis(t)
	d := startDaemon(t, r.unixURL())
	d.kill9()
	if _, err := os.Stat(d.socket); err != nil {
		t.Fatalf("the killed daemon left no socket: %v", err)
	}
	_, err := locksidecar.Dial(t.Context(), d.socket)
	mention(t, err, locksidecar.ErrUnavailable, d.socket)
	d.start()
	d.awaitAnswer()
	d.awaitRedis("ok")
}

func TestProtocolVersionIsUnknown(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	w := connectWire(t, d)
	says(t, w.refused(protocol.Unsupported, message{"op": "hello", "v": 99, "client": "future/99"}), "version 1")
	if m, err := w.next(); err != io.EOF {
		t.Errorf("after the refusal came %v (%v), not the end", m, err)
	}
}

func TestNamesThatCannotBe(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	c, w := dial(t, d), dialWire(t, d)
	for what, name := range map[string]string{
		"empty": "", "too long": strings.Repeat("x", 513), "a control character": "a\nb", "a C1 control character": "a\u0085b",
	} {
		if _, err := c.TryLock(t.Context(), name); err == nil || errors.Is(err, locksidecar.ErrUnavailable) || errors.Is(err, locksidecar.ErrHeld) {
			t.Errorf("%s: the SDK says %v", what, err)
		} else {
			says(t, err.Error(), "name")
		}
		says(t, w.refused(protocol.BadRequest, message{"op": "acquire", "name": name}), "name")
	}
	if _, err := c.TryLock(t.Context(), "\xff"); err == nil {
		t.Error("the SDK took a name that is not UTF-8")
	} else {
		says(t, err.Error(), "name", "UTF-8")
	}
	if _, err := c.TryLock(t.Context(), strings.Repeat("x", 512)); err != nil {
		t.Errorf("a name of 512 bytes: %v", err)
	}
	// On the wire, text that is not UTF-8 is no text: the frame is bad.
	bad := connectWire(t, d)
	bad.send(message{"op": "hello", "id": 1, "v": 1})
	if _, err := bad.next(); err != nil {
		t.Fatal(err)
	}
	bad.send(message{"op": "acquire", "id": 2, "name": "\xff"})
	says(t, bad.lastWordsThenEOF(protocol.BadFrame), "UTF-8")
}

func TestNumbersOutOfRange(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	w := dialWire(t, d)
	for _, m := range []message{
		{"wait_ms": -1}, {"wait_ms": 2_592_000_001}, {"lease_ms": 49}, {"lease_ms": -5},
		{"max_hold_ms": 0}, {"crash_delay_ms": 3_600_001}, {"owner": -1}, {"wait_ms": "1"},
	} {
		var field string
		for k := range m {
			field = k
		}
		m["op"], m["name"] = "acquire", "x"
		says(t, w.refused(protocol.BadRequest, m), field)
	}
	if a := w.ask(message{"op": "acquire", "name": "x", "wait_ms": 0}); a["err"] != nil {
		t.Errorf("after the refusals a good request is answered %v", a)
	}
}

func TestReleaseTwice(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	c := dial(t, d)
	l, err := c.TryLock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	next, err := c.TryLock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	mention(t, l.Unlock(), locksidecar.ErrNotHeld)
	if err := next.Err(); err != nil {
		t.Errorf("the second release of one handle hurt the next: %v", err)
	}

	w := dialWire(t, d)
	hold := w.ask(message{"op": "acquire", "name": "y"})["hold"]
	w.ask(message{"op": "release", "hold": hold})
	says(t, w.refused(protocol.NotHeld, message{"op": "release", "hold": hold}), "hold")
}

func TestReleaseOfSomebodyElsesHold(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	mine, theirs := dialWire(t, d), dialWire(t, d)
	hold := theirs.ask(message{"op": "acquire", "name": "x"})["hold"]
	if hold == nil {
		t.Fatal("no hold")
	}
	mine.refused(protocol.NotHeld, message{"op": "release", "hold": hold})
	mine.refused(protocol.Timeout, message{"op": "acquire", "name": "x", "wait_ms": 0})
	if a := theirs.ask(message{"op": "release", "hold": hold}); a["err"] != nil {
		t.Errorf("the owner's release is answered %v", a)
	}
}

// A client that connects and says nothing is told what was expected, and let go.
func TestClientThatNeverSaysHello(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	silent, rude := connectWire(t, d), connectWire(t, d)
	rude.send(message{"op": "ping", "id": 1})
	says(t, rude.lastWordsThenEOF(protocol.NoHello), "hello")
	says(t, silent.lastWordsThenEOF(protocol.NoHello), "hello")
}

// A frame that announces 4 GiB costs its sender the connection and the daemon
// nothing.
func TestFrameOfFourGigabytes(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL())
	good := dialWire(t, d)
	before := rss(t, d.pid())
	for range 20 {
		w := dialWire(t, d)
		w.write(binary.BigEndian.AppendUint32(nil, 1<<32-1))
		says(t, w.lastWordsThenEOF(protocol.BadFrame), "65536")
	}
	if grown := rss(t, d.pid()) - before; grown > 64<<20 {
		t.Errorf("the daemon grew by %d MiB", grown>>20)
	}
	if a := good.ask(message{"op": "ping"}); a["redis"] != "ok" {
		t.Errorf("another client's ping is answered %v", a)
	}
}

// A client that breaks the protocol while it holds a lock loses its connection;
// but it lives, so its lock is not given away before the deadline.
func TestMisbehavingClientKeepsItsLockToTheDeadline(t *testing.T) {
	d := startDaemon(t, startRedis(t).unixURL(), "--lease=2s")
	w := dialWire(t, d)
	granted := w.ask(message{"op": "acquire", "name": "x"})
	if granted["err"] != nil {
		t.Fatal(granted)
	}
	w.write([]byte{0, 0, 0, 1, 0xc1})
	w.lastWordsThenEOF(protocol.BadFrame)
	l, err := dial(t, d).Lock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	if deadline := toInt(t, granted["deadline_ns"]); protocol.Now() < deadline {
		t.Errorf("the lock was given away %d ms before the deadline", (deadline-protocol.Now())/1e6)
	}
}

func toInt(t *testing.T, v any) int64 {
	t.Helper()
	var n int64
	if _, err := fmt.Sscan(fmt.Sprint(v), &n); err != nil {
		t.Fatalf("%v is no number", v)
	}
	return n
}

// rss returns a process's resident memory in bytes.
func rss(t testing.TB, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

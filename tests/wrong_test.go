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
	"github.com/locksidecar/locksidecar/tests/harness"
)

// What users get wrong, and what they see then.

// unavailableBecause starts a daemon on a Redis that will not do: it serves all
// the same, and every user of it, and its log, hears the reason.
func unavailableBecause(t *testing.T, url string, words ...string) {
	t.Helper()
	d := harness.LaunchDaemon(t, url)
	d.AwaitRedis(strings.ToLower(words[0]))
	c := harness.Dial(t, d)
	_, err := c.TryLock(t.Context(), "x")
	harness.CheckError(t, err, locksidecar.ErrUnavailable, words...)
	w := harness.DialRaw(t, d)
	harness.CheckContains(t, w.ExpectRefusal(protocol.Unavailable, harness.Message{"op": "acquire", "name": "x", "wait_ms": 50}), words...)
	harness.CheckContains(t, d.Log.String(), words...)
	if r := d.Run("ping"); r.Code == 0 {
		t.Error("`locksidecar ping` finds nothing wrong")
	} else {
		harness.CheckContains(t, r.Stderr+r.Stdout, words...)
	}
}

func TestRedisIsDown(t *testing.T) {
	port := harness.FreePort(t)
	unavailableBecause(t, fmt.Sprintf("redis://127.0.0.1:%d", port), "refuses connections", fmt.Sprint(port))
	unavailableBecause(t, "unix:///nowhere/redis.sock", "no redis socket", "/nowhere/redis.sock")
}

func TestWrongPassword(t *testing.T) {
	r := harness.StartRedis(t, "--requirepass", "right")
	host := fmt.Sprintf("127.0.0.1:%d", r.Port)
	unavailableBecause(t, "redis://:wrong@"+host, "password")
	unavailableBecause(t, "redis://"+host, "password")
	d := harness.StartDaemon(t, "redis://:right@"+host)
	if d.Log.Contains("right@") || d.Log.Contains(":right") {
		t.Error("the password is in the log")
	}
}

func TestRedisDoesNotPermitScripts(t *testing.T) {
	r := harness.StartRedis(t)
	r.AddUser("app", ">pw", "~*", "&*", "+@all", "-@scripting")
	unavailableBecause(t, r.URLOf("app", "pw"), "permit", "eval")
}

// Without permission to listen on channels, locks work and waits rely on
// asking again; the log says what to permit.
func TestRedisDoesNotPermitChannels(t *testing.T) {
	r := harness.StartRedis(t)
	r.AddUser("app", ">pw", "~*", "resetchannels", "+@all")
	d := harness.StartDaemon(t, r.URLOf("app", "pw"))
	other := harness.StartDaemon(t, r.UnixURL())
	holder, waiter := harness.StartGoWorker(t, other), harness.StartGoWorker(t, d)
	holder.Lock("x")
	granted := waiter.Send(harness.Command{Do: "lock", As: "x", Name: "x", WaitMS: -1})
	harness.Eventually(t, "the log says what is not permitted", func() bool { return d.Log.Contains("redisson_lock__channel") })
	holder.Unlock("x")
	if a := waiter.Await(granted); a.Err != "" {
		t.Fatalf("the waiter is told %+v", a)
	}
	waiter.Unlock("x")
	// Its release is not lost, though it could not be published.
	holder.Lock("x")
}

func TestRedisDoesNotPermitTheKey(t *testing.T) {
	r := harness.StartRedis(t)
	r.AddUser("app", ">pw", "~app:*", "~redisson_lock_token:{app:*", "&redisson_lock__channel:{app:*", "+@all")
	d := harness.StartDaemon(t, r.URLOf("app", "pw"))
	c := harness.Dial(t, d)
	_, err := c.TryLock(t.Context(), "else:1")
	harness.CheckError(t, err, locksidecar.ErrDenied, "permit", "else:1")
	l, err := c.TryLock(t.Context(), "app:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

func TestRedisIsAReadOnlyReplica(t *testing.T) {
	master := harness.StartRedis(t)
	replica := harness.StartRedis(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", master.Port))
	unavailableBecause(t, replica.UnixURL(), "read-only replica", fmt.Sprint(master.Port))
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
	path := filepath.Join(harness.ShortDir(t), "nowhere.sock")
	_, err := locksidecar.Dial(t.Context(), path)
	harness.CheckError(t, err, locksidecar.ErrUnavailable, path)
	r := harness.RunProgram(t, []string{"LOCKSIDECAR_SOCKET=" + path}, "ls")
	if r.Code != 69 {
		t.Errorf("`locksidecar ls` ends with %d, not 69", r.Code)
	}
	harness.CheckContains(t, r.Stderr, path)
	if harness.HasPython() {
		out, err := exec.Command(harness.Python(t), "-c", "import locksidecar, sys\n"+
			"try: locksidecar.connect(sys.argv[1]).lock('x').acquire()\n"+
			"except locksidecar.Unavailable as e: print(e)", path).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		harness.CheckContains(t, string(out), path)
	}
}

func TestSocketIsNotPermitted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), "--socket-mode=0600")
	for dir := filepath.Dir(d.Socket); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(harness.Program(), "ls")
	cmd.Env = append(harness.PlainEnv(), "LOCKSIDECAR_SOCKET="+d.Socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 77 {
		t.Errorf("`locksidecar ls` by another user: %v, not exit code 77", err)
	}
	harness.CheckContains(t, string(out), d.Socket, "permi")
}

// Two daemons on one socket: the second says who has it, the first goes on.
func TestSocketIsTaken(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	second := harness.RunProgram(t, []string{"LOCKSIDECAR_REDIS=" + r.UnixURL()}, "serve", "--socket", d.Socket)
	if second.Code == 0 {
		t.Error("a second daemon served on the same socket and ended well")
	}
	harness.CheckContains(t, second.Stderr, d.Socket, "already", fmt.Sprint(d.PID()))
	if _, err := harness.Dial(t, d).TryLock(t.Context(), "x"); err != nil {
		t.Errorf("the first daemon suffered: %v", err)
	}
}

// A socket that a dead daemon left is in nobody's way.
func TestSocketIsStale(t *testing.T) {
	r := harness.StartRedis(t)
	d := harness.StartDaemon(t, r.UnixURL())
	d.Kill()
	if _, err := os.Stat(d.Socket); err != nil {
		t.Fatalf("the killed daemon left no socket: %v", err)
	}
	_, err := locksidecar.Dial(t.Context(), d.Socket)
	harness.CheckError(t, err, locksidecar.ErrUnavailable, d.Socket)
	d.Start()
	d.AwaitSocket()
	d.AwaitRedis("ok")
}

func TestProtocolVersionIsUnknown(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	w := harness.ConnectRaw(t, d)
	harness.CheckContains(t, w.ExpectRefusal(protocol.Unsupported, harness.Message{"op": "hello", "v": 99, "client": "future/99"}), "version 1")
	if m, err := w.Next(); err != io.EOF {
		t.Errorf("after the refusal came %v (%v), not the end", m, err)
	}
}

func TestNamesThatCannotBe(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	c, w := harness.Dial(t, d), harness.DialRaw(t, d)
	for what, name := range map[string]string{
		"empty": "", "too long": strings.Repeat("x", 513), "a control character": "a\nb", "a C1 control character": "a\u0085b",
	} {
		if _, err := c.TryLock(t.Context(), name); err == nil || errors.Is(err, locksidecar.ErrUnavailable) || errors.Is(err, locksidecar.ErrHeld) {
			t.Errorf("%s: the SDK says %v", what, err)
		} else {
			harness.CheckContains(t, err.Error(), "name")
		}
		harness.CheckContains(t, w.ExpectRefusal(protocol.BadRequest, harness.Message{"op": "acquire", "name": name}), "name")
	}
	if _, err := c.TryLock(t.Context(), "\xff"); err == nil {
		t.Error("the SDK took a name that is not UTF-8")
	} else {
		harness.CheckContains(t, err.Error(), "name", "UTF-8")
	}
	if _, err := c.TryLock(t.Context(), strings.Repeat("x", 512)); err != nil {
		t.Errorf("a name of 512 bytes: %v", err)
	}
	// On the wire, text that is not UTF-8 is no text: the frame is bad.
	bad := harness.ConnectRaw(t, d)
	bad.Send(harness.Message{"op": "hello", "id": 1, "v": 1})
	if _, err := bad.Next(); err != nil {
		t.Fatal(err)
	}
	bad.Send(harness.Message{"op": "acquire", "id": 2, "name": "\xff"})
	harness.CheckContains(t, bad.ExpectErrorThenEOF(protocol.BadFrame), "UTF-8")
}

func TestNumbersOutOfRange(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	w := harness.DialRaw(t, d)
	for _, m := range []harness.Message{
		{"wait_ms": -1}, {"wait_ms": 2_592_000_001}, {"lease_ms": 49}, {"lease_ms": -5},
		{"max_hold_ms": 0}, {"crash_delay_ms": 3_600_001}, {"owner": -1}, {"wait_ms": "1"},
	} {
		var field string
		for k := range m {
			field = k
		}
		m["op"], m["name"] = "acquire", "x"
		harness.CheckContains(t, w.ExpectRefusal(protocol.BadRequest, m), field)
	}
	if a := w.Call(harness.Message{"op": "acquire", "name": "x", "wait_ms": 0}); a["err"] != nil {
		t.Errorf("after the refusals a good request is answered %v", a)
	}
}

func TestReleaseTwice(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	c := harness.Dial(t, d)
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
	harness.CheckError(t, l.Unlock(), locksidecar.ErrNotHeld)
	if err := next.Err(); err != nil {
		t.Errorf("the second release of one handle hurt the next: %v", err)
	}

	w := harness.DialRaw(t, d)
	hold := w.Call(harness.Message{"op": "acquire", "name": "y"})["hold"]
	w.Call(harness.Message{"op": "release", "hold": hold})
	harness.CheckContains(t, w.ExpectRefusal(protocol.NotHeld, harness.Message{"op": "release", "hold": hold}), "hold")
}

func TestReleaseOfSomebodyElsesHold(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	mine, theirs := harness.DialRaw(t, d), harness.DialRaw(t, d)
	hold := theirs.Call(harness.Message{"op": "acquire", "name": "x"})["hold"]
	if hold == nil {
		t.Fatal("no hold")
	}
	mine.ExpectRefusal(protocol.NotHeld, harness.Message{"op": "release", "hold": hold})
	mine.ExpectRefusal(protocol.Timeout, harness.Message{"op": "acquire", "name": "x", "wait_ms": 0})
	if a := theirs.Call(harness.Message{"op": "release", "hold": hold}); a["err"] != nil {
		t.Errorf("the owner's release is answered %v", a)
	}
}

// A client that connects and says nothing is told what was expected, and let go.
func TestClientThatNeverSaysHello(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	silent, rude := harness.ConnectRaw(t, d), harness.ConnectRaw(t, d)
	rude.Send(harness.Message{"op": "ping", "id": 1})
	harness.CheckContains(t, rude.ExpectErrorThenEOF(protocol.NoHello), "hello")
	harness.CheckContains(t, silent.ExpectErrorThenEOF(protocol.NoHello), "hello")
}

// A frame that announces 4 GiB costs its sender the connection and the daemon
// nothing.
func TestFrameOfFourGigabytes(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL())
	good := harness.DialRaw(t, d)
	before := harness.ResidentMemory(t, d.PID())
	for range 20 {
		w := harness.DialRaw(t, d)
		w.Write(binary.BigEndian.AppendUint32(nil, 1<<32-1))
		harness.CheckContains(t, w.ExpectErrorThenEOF(protocol.BadFrame), "65536")
	}
	if grown := harness.ResidentMemory(t, d.PID()) - before; grown > 64<<20 {
		t.Errorf("the daemon grew by %d MiB", grown>>20)
	}
	if a := good.Call(harness.Message{"op": "ping"}); a["redis"] != "ok" {
		t.Errorf("another client's ping is answered %v", a)
	}
}

// A client that breaks the protocol while it holds a lock loses its connection;
// but it lives, so its lock is not given away before the deadline.
func TestMisbehavingClientKeepsItsLockToTheDeadline(t *testing.T) {
	d := harness.StartDaemon(t, harness.StartRedis(t).UnixURL(), "--lease=2s")
	w := harness.DialRaw(t, d)
	granted := w.Call(harness.Message{"op": "acquire", "name": "x"})
	if granted["err"] != nil {
		t.Fatal(granted)
	}
	w.Write([]byte{0, 0, 0, 1, 0xc1})
	w.ExpectErrorThenEOF(protocol.BadFrame)
	l, err := harness.Dial(t, d).Lock(t.Context(), "x")
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

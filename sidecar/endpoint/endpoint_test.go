package endpoint

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/sidecar/settings"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startEndpoint makes the socket of a sidecar; inherited: the test makes it, as systemd does.
func startEndpoint(t *testing.T, inherited bool) (*Endpoint, *Config) {
	t.Helper()
	cfg := &Config{Path: filepath.Join(t.TempDir(), "run", "s"), Mode: 0o640, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if inherited {
		if err := os.Mkdir(filepath.Dir(cfg.Path), 0o755); err != nil {
			t.Fatal(err)
		}
		cfg.Listener = listenAt(t, cfg.Path)
		if err := os.Chmod(cfg.Path, 0o620); err != nil {
			t.Fatal(err)
		}
	}
	e := mustListen(t, cfg)
	t.Cleanup(func() { e.Close(); e.Unlock() })
	return e, cfg
}

func mustListen(t *testing.T, cfg *Config) *Endpoint {
	t.Helper()
	e, err := Lock(*cfg)
	if err == nil {
		err = e.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func listenAt(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() })
	return l
}

// mustReach expects that the listener accepts a client that connects to the path.
func mustReach(t *testing.T, path string, l *net.UnixListener) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func TestRemovedSocketIsMadeAgain(t *testing.T) {
	for name, inherited := range map[string]bool{"ours": false, "systemd's": true} {
		t.Run(name, func(t *testing.T) {
			e, cfg := startEndpoint(t, inherited)
			if l := e.Check(); l != nil {
				t.Fatal("a socket that is in its place was made again")
			}
			before, err := os.Stat(cfg.Path)
			if err != nil {
				t.Fatal(err)
			}
			// A client that waits in the queue of the old socket is accepted.
			waiting, err := net.Dial("unix", cfg.Path)
			if err != nil {
				t.Fatal(err)
			}
			defer waiting.Close()
			old := e.listener
			remove(t, cfg.Path)
			l := e.Check()
			if l == nil {
				t.Fatal("the socket was not made again")
			}
			mustReach(t, cfg.Path, l)
			if _, err := old.AcceptUnix(); err != nil {
				t.Errorf("the client that waited: %v", err)
			}
			if after, err := os.Stat(cfg.Path); err != nil || after.Mode() != before.Mode() {
				t.Errorf("it has mode %v, and had %v (%v)", after.Mode(), before.Mode(), err)
			}
			if e.Check() != nil {
				t.Error("it was made twice")
			}
			if why, _ := e.Unreachable(); why != "" {
				t.Errorf("in trouble: %s", why)
			}
			e.Close()
			if _, err := os.Lstat(cfg.Path); err == nil {
				t.Error("it left the socket that it made behind")
			}
		})
	}
}

func TestRemovedDirectoryOfTheSocketIsMadeAgain(t *testing.T) {
	e, cfg := startEndpoint(t, false)
	remove(t, filepath.Dir(cfg.Path))
	l := e.Check()
	if l == nil {
		t.Fatal("the socket was not made again")
	}
	mustReach(t, cfg.Path, l)
	if _, err := lockSocket(cfg.Path); err == nil || !strings.Contains(err.Error(), "another sidecar") {
		t.Errorf("another sidecar may serve the socket: %v", err)
	}
}

func TestReplacedSocketIsReportedAndNotChanged(t *testing.T) {
	for name, inherited := range map[string]bool{"ours": false, "systemd's": true} {
		t.Run(name, func(t *testing.T) {
			e, cfg := startEndpoint(t, inherited)
			remove(t, cfg.Path)
			another := listenAt(t, cfg.Path)
			if e.Check() != nil {
				t.Fatal("it took the socket of another process")
			}
			why, restart := e.Unreachable()
			if !strings.Contains(why, "clients cannot connect") || restart != inherited {
				t.Errorf("it reports %q, and restart %v", why, restart)
			}
			mustReach(t, cfg.Path, another)
			remove(t, cfg.Path)
			l := e.Check()
			if why, _ := e.Unreachable(); l == nil || why != "" {
				t.Fatalf("the socket was not made again, and it reports %q", why)
			}
			mustReach(t, cfg.Path, l)
		})
	}
}

func TestStopDoesNotRemoveTheSocketOfAnotherProcess(t *testing.T) {
	e, cfg := startEndpoint(t, false)
	remove(t, cfg.Path)
	another := listenAt(t, cfg.Path)
	e.Close()
	mustReach(t, cfg.Path, another)
}

func TestStopDoesNotRemoveTheSocketOfSystemd(t *testing.T) {
	e, cfg := startEndpoint(t, true)
	e.Close()
	if err := unix.Access(cfg.Path, unix.F_OK); err != nil {
		t.Errorf("the socket of systemd: %v", err)
	}
}

// After a kill -9, systemd passes the next sidecar the socket that systemd made, although the
// dead sidecar had made another one in its place. No process listens on the file of that one.
func TestSocketOfADeadSidecarIsMadeAgain(t *testing.T) {
	e, cfg := startEndpoint(t, true)
	remove(t, cfg.Path)
	l := e.Check()
	if l == nil {
		t.Fatal("not made again")
	}
	l.SetUnlinkOnClose(false)
	l.Close() // as by kill -9
	next := mustListen(t, cfg)
	if l := next.Check(); l == nil {
		t.Fatal("not made again by the next sidecar")
	} else {
		defer l.Close()
	}
	c, err := net.Dial("unix", cfg.Path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// A restart would not help against a file that is not a socket, so the endpoint requests none,
// and the next sidecar reports the file, too.
func TestForeignFileInPlaceOfTheSocketIsReportedByEachSidecar(t *testing.T) {
	e, cfg := startEndpoint(t, true)
	remove(t, cfg.Path)
	if err := os.WriteFile(cfg.Path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	next := mustListen(t, cfg)
	for _, e := range []*Endpoint{e, next} {
		e.Check()
		if why, restart := e.Unreachable(); why == "" || restart {
			t.Errorf("the endpoint reports %q, restart %v", why, restart)
		}
	}
}

func TestRecreatedDirectoryHasItsMode(t *testing.T) {
	e, cfg := startEndpoint(t, false)
	dir := filepath.Dir(cfg.Path)
	before, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	old := unix.Umask(0o077)
	l := e.Check()
	unix.Umask(old)
	if l == nil {
		t.Fatal("not made again")
	}
	defer l.Close()
	if after, err := os.Stat(dir); err != nil || after.Mode() != before.Mode() {
		t.Errorf("the directory had mode %v, and has %v, %v", before.Mode(), after.Mode(), err)
	}
}

// Another user may have replaced the file with the uuid by a pipe, a link or another file.
func TestUUIDFileOfAnotherUserIsNotRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.uuid")
	if err := unix.Mkfifo(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if id := readUUIDFile(path); id != "" {
		t.Errorf("%s is read from a pipe", id)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := writeUUIDFile(path, "11111111-2222-4333-8444-555555555555"); err != nil || readUUIDFile(path) == "" {
		t.Fatalf("its own file is not read: %v", err)
	}
	if err := os.Symlink(path, path+".link"); err != nil || readUUIDFile(path+".link") != "" {
		t.Errorf("a link is followed: %v", err)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(path, 65534, 65534); errors.Is(err, os.ErrPermission) {
		t.Skip("this root may not give files to another user: ", err)
	} else if err != nil || readUUIDFile(path) != "" {
		t.Errorf("the file of another user is read: %v", err)
	}
}

// Other users can connect to a socket file that they can write to.
func TestSocketIsPrivateBeforeItsModeIsSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old := unix.Umask(0)
	l, err := listenPrivately(path)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v, %v; want 0600", st.Mode(), err)
	}
}

// The umask belongs to the whole process: a file that another goroutine makes while a socket
// is made again must not get another mode, and two sockets that are made at one time must
// not leave another umask behind.
func TestMakingASocketDoesNotChangeTheUmask(t *testing.T) {
	dir := t.TempDir()
	old := unix.Umask(0o022)
	defer unix.Umask(old)
	var sockets, files sync.WaitGroup
	stop := make(chan struct{})
	for i := range 2 {
		sockets.Go(func() {
			path := filepath.Join(dir, fmt.Sprint("s", i))
			for range 1000 {
				l, err := Bind(path, 0o660, -1)
				if err != nil {
					t.Error(err)
					return
				}
				l.Close()
			}
		})
	}
	files.Go(func() {
		path := filepath.Join(dir, "file")
		for {
			select {
			case <-stop:
				return
			default:
			}
			f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
			if err != nil {
				t.Error(err)
				return
			}
			st, err := f.Stat()
			f.Close()
			if err != nil || st.Mode().Perm() != 0o644 {
				t.Errorf("a file has mode %v (%v); want 0644", st.Mode(), err)
				return
			}
			if err := os.Remove(path); err != nil {
				t.Error(err)
				return
			}
		}
	})
	sockets.Wait()
	close(stop)
	files.Wait()
	if mask := unix.Umask(0o022); mask != 0o022 {
		t.Errorf("the umask is %04o, and was 0022", mask)
	}
}

// systemd starts a daemon again that could not have its socket because of another process.
func TestErrorsOfASocketThatStayAreThoseOfSettings(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{errDirectory("/run/s", unix.EACCES), true},
		{errGroup("/run/s", unix.EPERM), true},
		{errListening("/run/s", 7), false},
	} {
		var refused *settings.Error
		if got := errors.As(settings.AsError(tt.err), &refused); got != tt.want {
			t.Errorf("%v: an Error of settings %v, want %v", tt.err, got, tt.want)
		}
	}
}

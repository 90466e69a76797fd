package endpoint

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func mustLock(t *testing.T, socket string) *lock {
	t.Helper()
	l, err := lockSocket(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

// mustRefuse expects that lockSocket fails with an error that has these parts.
func mustRefuse(t *testing.T, socket string, parts ...string) {
	t.Helper()
	l, err := lockSocket(socket)
	if err == nil {
		l.close()
		t.Fatal("locked")
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not mention %q", err, part)
		}
	}
}

func mustStat(t *testing.T, path string) (st unix.Stat_t) {
	t.Helper()
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

func TestOnlyItsOwnerCanOpenTheLockFile(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l := mustLock(t, socket)
	pid := fmt.Sprint(os.Getpid())
	if b, err := os.ReadFile(socket + ".lock"); string(b) != pid+"\n" || mustStat(t, socket+".lock").Mode&0o777 != 0o600 {
		t.Errorf("%q, mode %o, %v", b, mustStat(t, socket+".lock").Mode, err)
	}
	mustRefuse(t, socket, "another sidecar (pid "+pid+")", socket, "stop it")
	l.close()
	inode := mustStat(t, socket+".lock").Ino
	if err := os.WriteFile(socket+".lock", []byte("1234567890\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustLock(t, socket)
	if b, _ := os.ReadFile(socket + ".lock"); string(b) != pid+"\n" || mustStat(t, socket+".lock").Ino != inode {
		t.Errorf("%q; the same file: %v", b, mustStat(t, socket+".lock").Ino == inode)
	}
}

// Another process has the file of an earlier daemon open. After one sidecar has started, it
// cannot lock the sidecars out any more.
//
// Shows docs/guarantees.md: A process of another user locks the lock file.
func TestLockFileThatOthersCanOpenIsReplaced(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	path := socket + ".lock"
	if err := os.WriteFile(path, []byte("4711\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	lock := func() error { return unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
	before := mustStat(t, path).Ino

	l := mustLock(t, socket)
	if st := mustStat(t, path); st.Ino == before || st.Mode&0o777 != 0o600 {
		t.Errorf("inode %d, before %d; mode %o", st.Ino, before, st.Mode)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); len(entries) != 1 || err != nil {
		t.Errorf("beside it: %v, %v", entries, err)
	}
	// An earlier daemon that has opened the file before cannot lock it.
	if err := lock(); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("the file from before can be locked: %v", err)
	}
	mustRefuse(t, socket, "another sidecar")
	l.close()
	if err := lock(); err != nil {
		t.Errorf("the file from before is still locked: %v", err)
	}
	mustLock(t, socket)
}

// Of many sidecars that start at one time, with any lock file, one has the socket.
func TestOneSidecarAtATimeLocksASocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	var holders, locked atomic.Int32
	for round := range 200 {
		if round%2 == 0 { // the file of an earlier daemon
			if err := os.Remove(socket + ".lock"); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if err := os.WriteFile(socket+".lock", nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				l, err := lockSocket(socket)
				if err != nil {
					return
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d sidecars have the socket", n)
				}
				locked.Add(1)
				holders.Add(-1)
				l.close()
			})
		}
		all.Wait()
	}
	if locked.Load() < 200 {
		t.Errorf("in 200 rounds it was locked %d times", locked.Load())
	}
}

// Shows docs/guarantees.md: A process of another user locks the lock file.
func TestFilesOfOtherProgramsAreNoLockFiles(t *testing.T) {
	const text = "precious\n"
	write := func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	for _, c := range []struct {
		what string
		make func(path string) error
		says string
	}{
		{"a symbolic link", func(p string) error { return errors.Join(write(p+".target"), os.Symlink(p+".target", p)) }, "symbolic link"},
		{"a symbolic link to nothing", func(p string) error { return os.Symlink(p+".nothing", p) }, "symbolic link"},
		{"a hard link", func(p string) error {
			return errors.Join(os.WriteFile(p+".target", []byte("4711\n"), 0o600), os.Link(p+".target", p))
		}, "hard link"},
		{"a file of another program", write, "contents that no sidecar wrote"},
		{"a long number", func(p string) error { return os.WriteFile(p, []byte(strings.Repeat("1", 100)), 0o600) }, "contents that no sidecar wrote"},
		{"a directory", func(p string) error { return os.Mkdir(p, 0o700) }, "not a regular file"},
		{"a pipe", func(p string) error { return unix.Mkfifo(p, 0o600) }, "not a regular file"},
		{"a socket", func(p string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p, Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		}, "not a regular file"},
		{"a file of another user", func(p string) error {
			if unix.Geteuid() != 0 {
				return os.ErrPermission
			}
			return errors.Join(os.WriteFile(p, nil, 0o600), os.Chown(p, 12345, -1)) // a root may lack CAP_CHOWN
		}, "belongs to uid 12345"},
		{"in no directory", func(string) error { return nil }, "no such file or directory"},
	} {
		t.Run(c.what, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			path := socket + ".lock"
			if err := c.make(path); errors.Is(err, os.ErrPermission) {
				t.Skip("only root can make one")
			} else if err != nil {
				t.Fatal(err)
			}
			if c.what == "in no directory" {
				socket += "/s"
			}
			contents := func() string {
				all := ""
				for _, p := range []string{path, path + ".target"} {
					if st, err := os.Lstat(p); err == nil && st.Mode().IsRegular() {
						b, _ := os.ReadFile(p)
						all += string(b) + "|"
					}
				}
				return all
			}
			before := contents()
			mustRefuse(t, socket, socket+".lock", c.says, "choose another socket")
			if now := contents(); now != before {
				t.Errorf("before %q, now %q", before, now)
			}
			if _, err := os.Lstat(path + ".nothing"); err == nil {
				t.Error("the target of the link was made")
			}
		})
	}
}

const lockerEnv = "LOCKSIDECAR_TEST_LOCKER"

// A process of another user has locked the file of an earlier daemon. The error names the process
// and a remedy, and the remedy works.
//
// Shows docs/guarantees.md: A process of another user locks the lock file.
func TestProcessOfAnotherUserThatLockedTheFileIsNamed(t *testing.T) {
	if path := os.Getenv(lockerEnv); path != "" {
		lockForAnotherUser(path)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	socket := filepath.Join(t.TempDir(), "s")
	path := socket + ".lock"
	for dir := filepath.Dir(path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte("4711\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	exe, err := os.ReadFile(os.Args[0]) // another user may not be able to enter its directory
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(filepath.Dir(path), "locker")
	if err := os.WriteFile(copied, exe, 0o755); err != nil {
		t.Fatal(err)
	}
	locker := exec.Command(copied, "-test.run=^TestProcessOfAnotherUserThatLockedTheFileIsNamed$")
	locker.Env = append(os.Environ(), lockerEnv+"="+path)
	locker.Dir = "/"
	locker.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, err := locker.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := locker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := locker.Start(); errors.Is(err, os.ErrPermission) {
		t.Skip("this root may not start a process of another user: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer locker.Wait()
	defer in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("the other process printed %q, %v", line, err)
	}
	mustRefuse(t, socket, fmt.Sprintf("process %d of uid 65534 [locker]", locker.Process.Pid), path, "remove the file")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	mustLock(t, socket)
}

// lockForAnotherUser is the main function of the other process of the test.
func lockForAnotherUser(path string) {
	f, err := os.Open(path)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("locked")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// Also if its lock file was removed while it runs.
//
// Shows docs/guarantees.md: A process of another user locks the lock file.
func TestSocketOfARunningProcessIsNotReplaced(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before := mustStat(t, socket).Ino
	e, err := Lock(Config{Path: socket, Mode: 0o600, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Unlock()
	err = e.Listen()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) || !strings.Contains(err.Error(), "listens on it") {
		t.Errorf("got %v", err)
	}
	if now := mustStat(t, socket).Ino; now != before {
		t.Error("the socket was replaced")
	}
}

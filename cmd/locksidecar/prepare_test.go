package main

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

func TestPrepareGivesTheDirectoryToTheDaemon(t *testing.T) {
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 && os.Chown(t.TempDir(), 65532, 65533) == nil { // a root in a container may lack CAP_CHOWN
		uid, gid = 65532, 65533
	}
	prepare := func(dir string, uid int) int {
		return dispatch([]string{"prepare", "--uid", strconv.Itoa(uid), "--gid", strconv.Itoa(gid), dir}, io.Discard, io.Discard)
	}
	dir := filepath.Join(t.TempDir(), "locksidecar")
	for range 2 { // the second time, the directory exists
		if code := prepare(dir, uid); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		info, err := os.Lstat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if stat := info.Sys().(*syscall.Stat_t); info.Mode() != os.ModeDir|0o755 || stat.Uid != uint32(uid) || stat.Gid != uint32(gid) {
			t.Errorf("the directory has the mode %v and belongs to %d:%d; want 0755 and %d:%d", info.Mode(), stat.Uid, stat.Gid, uid, gid)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}

	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if code := prepare(link, uid); code != exitFailure {
		t.Errorf("of a symbolic link: exit code %d", code)
	}
	if uid == os.Getuid() {
		return // a directory of another user cannot be made here
	}
	if code := prepare(dir, uid+1); code != exitFailure {
		t.Errorf("of a directory of another user: exit code %d", code)
	}
	if info, err := os.Lstat(dir); err != nil || info.Sys().(*syscall.Stat_t).Uid != uint32(uid) {
		t.Errorf("a directory of another user has changed its owner (%v)", err)
	}
}

package state

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
)

// identity is what must be the same for a state to be true: its times are of one boot and
// one time namespace, and a copy of the file is another file. The pids in it are of one pid
// namespace.
type identity struct {
	boot          [16]byte // zero: unknown, and like no other
	dev, inode    uint64
	handle, born  uint64 // what an inode has besides its number, which is used again; 0: not known
	timeNS, pidNS uint64
}

// ofFile adds what identifies the open file.
func (id *identity) ofFile(fd int, st *unix.Stat_t) {
	id.dev, id.inode = uint64(st.Dev), st.Ino
	id.handle, id.born = fileHandle(fd), birthTime(fd)
}

// fileHandle is a sum of the handle that the file system has for a file, which contains
// the generation of its inode; 0: it has none.
func fileHandle(fd int) uint64 {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type == unix.FUSE_SUPER_MAGIC {
		return 0 // FUSE may give a file another handle each time it is looked up
	}
	h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return 0
	}
	sum := mix(0, uint64(uint32(h.Type())))
	for b := h.Bytes(); len(b) > 0; b = b[min(8, len(b)):] {
		sum = mix(sum, load(string(b)))
	}
	return max(1, sum)
}

// birthTime is when a file was made, in nanoseconds; 0: the file system does not know.
func birthTime(fd int) uint64 {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &st); err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return uint64(st.Btime.Sec)*1e9 + uint64(st.Btime.Nsec)
}

// host is what a File needs of the world.
type host struct {
	identity // without what ofFile adds
	pid      int
	sidecar  Sidecar
	now      func() int64
	// allocate makes sure that a range of the file has room on its file system.
	allocate func(fd int, off, n int64) error
	stored   func(state, sequence image) // nil, or called after each store into one of the files
}

func thisHost() host {
	return host{
		identity: identity{boot: bootID(), timeNS: namespace("time"), pidNS: namespace("pid")},
		pid:      os.Getpid(),
		now:      protocol.Now,
		allocate: allocate,
	}
}

func bootID() [16]byte {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return [16]byte{}
	}
	id, err := uuid.Parse(strings.TrimSpace(string(b)))
	if err != nil {
		return [16]byte{}
	}
	return id
}

// namespace identifies one of this process's namespaces; 0: the kernel has none of
// the kind.
func namespace(kind string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/"+kind, &st); err != nil {
		return 0
	}
	return st.Ino
}

// Boot identifies what the times of CLOCK_BOOTTIME are relative to, as text without spaces; "": it is
// not known.
func Boot() string {
	boot := bootID()
	if boot == ([16]byte{}) {
		return ""
	}
	return fmt.Sprintf("%x-%d", boot, namespace("time"))
}

// CheckFileSize returns an error if this process may not write so long a file. Beyond that limit the
// kernel sends a signal that would end the process.
func CheckFileSize(n int64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err == nil && uint64(n) > limit.Cur {
		return unix.EFBIG
	}
	return nil
}

func allocate(fd int, off, n int64) error {
	if err := CheckFileSize(off + n); err != nil {
		return err
	}
	for {
		if err := unix.Fallocate(fd, 0, off, n); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// extend adds n bytes of zeros to a file, with room for them: a full disk is an error
// here, and not a signal at some store.
func (h *host) extend(fd int, off, n int64) error {
	err := h.allocate(fd, off, n)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	zeros := make([]byte, n)
	for len(zeros) > 0 {
		w, err := unix.Pwrite(fd, zeros, off)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		zeros, off = zeros[w:], off+int64(w)
	}
	return nil
}

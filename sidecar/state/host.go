package state

import (
	"errors"
	"os"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol"
)

// identity is what must be the same for a state to be true: its times are of one
// boot and one time namespace, and a copied file is not the one that is kept. The
// pids in it are of one pid namespace.
type identity struct {
	boot          [16]byte // zero: unknown, and like no other
	dev, inode    uint64
	timeNS, pidNS uint64
}

// host is what a File needs of the world.
type host struct {
	identity // without dev and inode
	pid      int
	now      func() int64
	// allocate makes sure that a range of the file has room on its file system.
	allocate func(fd int, off, n int64) error
	stored   func(image) // nil, or called after each store into the file
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

func allocate(fd int, off, n int64) error {
	// Beyond the limit the kernel sends a signal that would end the process.
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err == nil && uint64(off+n) > limit.Cur {
		return unix.EFBIG
	}
	for {
		if err := unix.Fallocate(fd, 0, off, n); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// extend adds n bytes of zeros to the file, with room for them: a full disk is an
// error here, and not a signal at some store.
func (f *File) extend(off, n int64) error {
	err := f.host.allocate(f.fd, off, n)
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	zeros := make([]byte, n)
	for len(zeros) > 0 {
		w, err := unix.Pwrite(f.fd, zeros, off)
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

package endpoint

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// The file at the path of the socket and ".uuid" has the uuid of the sidecar that served the
// socket last. If a sidecar with another state file, or with none, has served the socket in
// the meantime, an earlier state file is out of date: a later sidecar with that state file
// finds another uuid in this file, and does not restore the state.

// uuidPath returns the path of that file; "": the socket has no path.
func (e *Endpoint) uuidPath() string {
	if e.path == "" {
		return ""
	}
	return e.path + ".uuid"
}

// LastServed returns the uuid of the sidecar that served the socket last; "": not known.
func (e *Endpoint) LastServed() string { return readUUIDFile(e.uuidPath()) }

// readUUIDFile returns the uuid in a file; "": there is none.
func readUUIDFile(path string) string {
	text, err := readOwn(path, 64)
	if err != nil {
		return ""
	}
	id, err := uuid.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return ""
	}
	return id.String()
}

// readOwn reads up to limit bytes of a regular file of this user. Any other file is an error:
// another user may have put a symbolic link there, or a pipe that blocks the reader.
func readOwn(path string, limit int) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != unix.Geteuid() {
		return nil, fmt.Errorf("%s is not a file of this user", path)
	}
	return io.ReadAll(io.LimitReader(f, int64(limit)))
}

// RecordServing writes the uuid of this sidecar into the file. Precondition: it has served no client yet.
func (e *Endpoint) RecordServing(uuid string) {
	path := e.uuidPath()
	if path == "" {
		return
	}
	if err := writeUUIDFile(path, uuid); err != nil {
		e.cfg.Log.Warn("cannot note which sidecar serves the socket; do not go back to an earlier state file", "file", path, "error", err)
		_ = os.Remove(path) // its uuid is out of date
	}
}

// writeUUIDFile replaces the file atomically.
func writeUUIDFile(path, id string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(id + "\n")
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // one that cannot be removed has no effect
	}
	return err
}

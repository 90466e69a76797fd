package sidecar

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// The file with ".uuid" behind the path of a socket has the uuid of the sidecar that served
// the socket last. A sidecar that runs with another state file, or with none, does not know
// the state file of its predecessor; by this file the next one that is given that state
// finds out that it is out of date.

func servedPath(c *Config) string {
	path := c.socketPath()
	if path == "" {
		return ""
	}
	return path + ".uuid"
}

// lastServed is the uuid of the sidecar that served the socket last; "": not known.
func lastServed(path string) string {
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

// readOwn reads the first bytes of a regular file of this user. What another user has put
// in its place is an error: it is neither followed nor waited for.
func readOwn(path string, most int) ([]byte, error) {
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
	return io.ReadAll(io.LimitReader(f, int64(most)))
}

// noteServed notes that this sidecar serves the socket. Nothing has been served yet.
func (s *Server) noteServed() {
	path := servedPath(&s.cfg)
	if path == "" {
		return
	}
	if err := writeServed(path, s.uuid); err != nil {
		s.log.Warn("cannot note which sidecar serves the socket; do not go back to an earlier state file", "file", path, "error", err)
		_ = os.Remove(path) // what it says is no longer true
	}
}

// writeServed writes the file, in one step.
func writeServed(path, id string) error {
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
		_ = os.Remove(f.Name()) // if it stays, it has no effect
	}
	return err
}

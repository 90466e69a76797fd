package settings

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// systemd does not start a daemon again that ended because of an Error.
func TestOnlyErrorsThatStayAreSettingErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, taken := net.Listen("unix", path) // bind finds no file, and another process makes the socket
	if !errors.Is(taken, unix.EADDRINUSE) {
		t.Fatal(taken)
	}
	_, missing := os.Open(filepath.Join(dir, "none"))
	sentence := errors.New("lease 0s: choose another one")
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{fmt.Errorf("socket %s: %w", path, taken), false},
		{fmt.Errorf("state file: %w", unix.ENOSPC), false},
		{fmt.Errorf("lock file: %w", unix.EMFILE), false},
		{fmt.Errorf("lock file: %w", unix.ENOLCK), false},
		{fmt.Errorf("mapping: %w", unix.ENOMEM), false},
		{InUse("another sidecar serves"), false},
		{nil, false},
		{missing, true},
		{fmt.Errorf("directory of socket %s: %w", path, unix.EACCES), true},
		{fmt.Errorf("group of socket %s: %w", path, unix.EPERM), true},
		{sentence, true},
		{errors.Join(sentence, sentence), true},
	} {
		var refused *Error
		if got := errors.As(AsError(tt.err), &refused); got != tt.want {
			t.Errorf("%v: an Error %v, want %v", tt.err, got, tt.want)
		}
	}
}

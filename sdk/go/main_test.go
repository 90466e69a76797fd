//go:build linux

package locksidecar

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/protocol"
)

// TestMain starts a sidecar for the examples, and checks that no goroutine is left.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "locksidecar")
	if err != nil {
		panic(err)
	}
	sidecar := startFakeSidecar(filepath.Join(dir, "s"))
	os.Setenv("LOCKSIDECAR_SOCKET", sidecar.path)
	code := m.Run()
	sidecar.stop()
	os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

// shortDir is a directory whose path is short enough for a socket.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "ls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func inOneHour() int64 { return protocol.Now() + int64(time.Hour) }

// async runs do, and returns a function that waits for its results.
func async[T any](do func() (T, error)) func() (T, error) {
	var v T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		v, err = do()
	}()
	return func() (T, error) { <-done; return v, err }
}

// measure is async, and measures how long do takes.
func measure(do func() error) func() (time.Duration, error) {
	start := time.Now()
	return async(func() (time.Duration, error) {
		err := do()
		return time.Since(start), err
	})
}

func errOf[T any](_ T, err error) error { return err }

// wantKind checks that an error is of each of these kinds.
func wantKind(t testing.TB, err error, kinds ...error) {
	t.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			t.Errorf("the error is %v, not %v", err, kind)
		}
	}
}

// wantText checks that the text of an error contains each of these words.
func wantText(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want one with %q", words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not contain %q", err, w)
		}
	}
}

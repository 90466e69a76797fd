//go:build !linux

package locksidecar_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

func TestDialNeedsLinux(t *testing.T) {
	for _, path := range []string{"", "/run/locksidecar/locksidecar.sock"} {
		c, err := locksidecar.Dial(context.Background(), path)
		if c != nil || !errors.Is(err, locksidecar.ErrUnsupported) || !errors.Is(err, errors.ErrUnsupported) {
			t.Fatalf("%v, %v; want ErrUnsupported", c, err)
		}
		for _, word := range []string{"Linux", runtime.GOOS} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q does not contain %q", err, word)
			}
		}
	}
}

package messages

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

// A reload ends a daemon that can use its Redis. `serve --check`, which comes before, refuses
// settings with which the next daemon would lose the locks.
func TestCheckBeforeAReloadConnectsToRedis(t *testing.T) {
	t.Parallel()
	r, other := harness.StartRedis(t, "--requirepass", "right"), harness.StartRedis(t)
	address := fmt.Sprintf("127.0.0.1:%d", r.Port)
	url := "redis://:right@" + address
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	d := harness.StartDaemon(t, url)
	file := filepath.Join(t.TempDir(), "redis-url")
	check := func(code int, url string, rest ...string) harness.Result {
		t.Helper()
		if err := os.WriteFile(file, []byte(url+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got := d.Run(append([]string{"serve", "--check", "--redis-file", file}, rest...)...)
		if got.Code != code {
			t.Errorf("status %d for %s, want %d: %s", got.Code, url, code, got.Stderr+got.Stdout)
		}
		return got
	}
	asked := func(got harness.Result, says string) {
		t.Helper()
		if !strings.HasSuffix(got.Stdout, "which "+says+"\n") {
			t.Errorf("the check printed %q, want %q", got.Stdout, says)
		}
	}
	asked(check(0, url), "answers")
	asked(check(0, url, "--skip-redis"), "was not asked (--skip-redis)")
	check(64, url, "--skip-redis", "--connect")
	free := filepath.Join(t.TempDir(), "s.sock")
	asked(check(0, url, "--socket", free), "was not asked, because no daemon runs; --connect asks it")
	asked(check(0, url, "--socket", free, "--connect"), "answers")
	before := make(chan harness.Result, 1) // the first start; the check takes some seconds
	go func() {
		before <- d.Run("serve", "--check", "--connect", "--socket", free, "--redis", "redis://"+silent.Addr().String())
	}()
	for _, tt := range []struct {
		code  int
		url   string
		flags []string
		words string
	}{
		{69, "redis://:wrong@" + address, nil, "does not accept the password"},
		{69, "rediss://:right@" + address, nil, "does not answer in TLS"},
		{69, "redis://no-such-host.invalid:6379", nil, "cannot be found"},
		{69, url + "/99", nil, "no database 99"},
		{69, "redis://" + silent.Addr().String(), nil, "did not answer"},
		{64, other.UnixURL(), nil, "lead to another server"},
		{64, url + "/1", nil, "lead to another database"},
		{64, url, []string{"--key-prefix", "app1:"}, "is another one"},
	} {
		got := check(tt.code, tt.url, tt.flags...)
		harness.CheckContains(t, got.Stderr, tt.words, "--skip-redis")
		check(0, tt.url, append(tt.flags, "--skip-redis")...)
	}
	if got := <-before; got.Code != 69 || !strings.Contains(got.Stderr, "did not answer") || strings.Contains(got.Stderr, "the daemon that runs") {
		t.Errorf("before the first start: status %d, %s", got.Code, got.Stderr)
	}
	// A daemon without Redis loses nothing.
	r.Stop()
	d.AwaitRedis("refuses connections")
	asked(check(0, "redis://:wrong@"+address), "was not asked, because the daemon that runs cannot use its own; --connect asks it")
}

package redisfaults

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
	"github.com/locksidecar/locksidecar/tests/harness"
)

// mountedSecret is a directory as the kubelet mounts a secret: url -> ..data/url, and ..data is a
// link to a directory with a time as its name. An update makes another directory, and replaces the
// link by a rename.
type mountedSecret struct {
	t   *testing.T
	dir string
}

func (m mountedSecret) swap(version, url string) {
	m.t.Helper()
	check := func(err error) {
		m.t.Helper()
		if err != nil {
			m.t.Fatal(err)
		}
	}
	before, _ := os.Readlink(filepath.Join(m.dir, "..data")) // "": there was none
	check(os.Mkdir(filepath.Join(m.dir, version), 0o755))
	check(os.WriteFile(filepath.Join(m.dir, version, "url"), []byte(url), 0o440))
	check(os.Symlink(version, filepath.Join(m.dir, "..data_tmp")))
	check(os.Rename(filepath.Join(m.dir, "..data_tmp"), filepath.Join(m.dir, "..data")))
	if before == "" {
		check(os.Symlink("..data/url", filepath.Join(m.dir, "url")))
		return
	}
	check(os.RemoveAll(filepath.Join(m.dir, before)))
}

// deploy/containers.md has this procedure: a secret with another user and password is mounted, and
// the earlier user is removed. The lock that is held stays held.
func TestSwappedSecretIsUsedAtTheNextConnection(t *testing.T) {
	t.Parallel()
	r := harness.StartRedis(t)
	everything := []string{"~*", "&*", "+@all"}
	r.AddUser("locks-a", append(everything, ">old")...)
	secret := mountedSecret{t, harness.ShortDir(t)}
	secret.swap("..2026_11_24_06_00_00.1", r.URLOf("locks-a", "old"))
	path := filepath.Join(secret.dir, "url")
	d := harness.StartDaemon(t, "", "--redis-file", path)
	c := harness.Dial(t, d)
	held, err := c.Lock(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	owner := r.Owner("held")

	r.AddUser("locks-b", append(everything, ">new")...)
	secret.swap("..2026_11_24_07_00_00.2", r.URLOf("locks-b", "new"))
	// What an operator runs in the pod: the new secret is there, and Redis accepts it.
	printed := d.Run("serve", "--print", "--redis-file", path)
	harness.CheckContains(t, printed.Stdout, "--redis-file: redis://locks-b@127.0.0.1")
	if strings.Contains(printed.Stdout, ":new@") {
		t.Errorf("the password is printed: %s", printed.Stdout)
	}
	if got := d.Run("serve", "--check", "--redis-file", path); got.Code != 0 {
		t.Errorf("the check ends with status %d: %s", got.Code, got.Stderr)
	}
	if users := usersOf(r); users["locks-a"] == 0 || users["locks-b"] != 0 {
		t.Errorf("before the connection ends, the daemon's connections are those of %v", users)
	}
	r.MustDo("ACL", "DELUSER", "locks-a") // closes its connections
	harness.Eventually(t, "the daemon is connected as locks-b", func() bool { return usersOf(r)["locks-b"] > 0 })
	d.AwaitRedis("ok")
	next, err := c.Lock(t.Context(), "next")
	if err != nil {
		t.Fatal(err)
	}
	if err := held.Err(); err != nil || r.Owner("held") != owner {
		t.Errorf("the lock that is held: %v; Redis has the owner %s, and had %s", err, r.Owner("held"), owner)
	}
	for _, lock := range []*locksidecar.Lock{next, held} {
		if err := lock.Unlock(); err != nil {
			t.Error(err)
		}
	}
}

// usersOf returns how many connections each user of Redis has, except those of the test.
func usersOf(r *harness.Redis) map[string]int {
	users := make(map[string]int)
	for _, c := range r.LockConnections() {
		users[c.User]++
	}
	return users
}

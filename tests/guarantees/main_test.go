// Package guarantees shows what a client can rely on while nothing fails: exclusion, the order
// of waiters, fencing tokens, confirmed releases, few connections to Redis, and the
// interoperation with Redisson. The packages redisfaults, clientfaults and daemon show what
// holds when something fails.
package guarantees

import (
	"testing"

	"github.com/locksidecar/locksidecar/tests/harness"
)

func TestMain(m *testing.M) { harness.Main(m, harness.Config{}) }

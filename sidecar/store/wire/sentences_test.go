package wire

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
)

// The danger: an operator points the setting to a node that has become a master, and names one node fewer.
func TestReplicaInAClusterIsNoEndpoint(t *testing.T) {
	for isNode, says := range map[bool]string{false: "point redis to the master", true: "its slots are at another master"} {
		s := Server{Address: "h:1", IsNode: isNode}
		for _, text := range []string{s.Demoted(""), s.Answered(redisop.KindLock, "a", "READONLY x"), s.Answered(redisop.KindLock, "a", "MASTERDOWN x")} {
			if !strings.Contains(text, says) {
				t.Errorf("a node of a Cluster: %v: %s", isNode, text)
			}
		}
	}
}

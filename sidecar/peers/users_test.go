package peers

import "testing"

func TestOverflowUIDStandsForTheUsersThatHaveNone(t *testing.T) {
	for _, tt := range []struct {
		name, uidMap string
		want         int64
	}{
		{"the host", "         0          0 4294967295\n", -1},
		{"PrivateUsers=yes", "         0          0          1\n       998        998          1\n", 65534},
		{"a container", "         0     100000      65536\n", 65534},
		{"the host in parts", "0 0 1000\n1000 1000 4294966295\n", -1},
	} {
		if got := overflowUIDOf(tt.uidMap, "65534\n"); got != tt.want {
			t.Errorf("%s: %d stands for many users, want %d", tt.name, got, tt.want)
		}
	}
}

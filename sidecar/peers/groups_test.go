package peers

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The cgroup of a process that has its pid from a client that ended is not taken for that of the client.
func TestCgroupIsThatOfTheClientThatConnected(t *testing.T) {
	cmd := startProcess(t)
	ended, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ended)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(ended), Events: unix.POLLIN}}, -1); err != nil {
		t.Fatal(err)
	}
	lives, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(lives)
	own := CgroupOf(lives, int64(os.Getpid()))
	if text, err := os.ReadFile("/proc/self/cgroup"); err != nil || own != cgroupIn(string(text)) {
		t.Errorf("the cgroup of this process is %q, and /proc has %q, %v", own, text, err)
	}
	for what, tt := range map[string]struct {
		pidfd int
		want  string
	}{"a client that lives": {lives, own}, "a client that ended": {ended, ""}, "a client that is not watched": {-1, ""}} {
		if got := CgroupOf(tt.pidfd, int64(os.Getpid())); got != tt.want {
			t.Errorf("%s: %q, want the cgroup %q", what, got, tt.want)
		}
	}
}

func TestCgroupIsReadFromItsOwnField(t *testing.T) {
	const ours = "12:cpu:/x\n1:name=systemd:/user.slice/user-1000.slice/user@1000.service\n"
	for _, tt := range []struct{ text, want string }{
		{"0::/system.slice/backup.service\n", "/system.slice/backup.service"},
		{ours + "0::/init.scope\n", "/user.slice/user-1000.slice/user@1000.service"},
		{ours + "0::/user.slice/x:name=systemd:/system.slice/backup.service\n", "/user.slice/user-1000.slice/user@1000.service"},
		{"0::/a:b (deleted)\n", "/a:b"},
		{"", ""},
	} {
		if got := cgroupIn(tt.text); got != tt.want {
			t.Errorf("in %q the cgroup is %q, want %q", tt.text, got, tt.want)
		}
	}
}

package main

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// What a command leaves behind gets no grace when the lock is lost, and the exit code is that of the
// command: it had ended under the lock.
func TestLossAfterTheCommandEndedKillsWhatItLeftBehind(t *testing.T) {
	left := exec.Command("cat")
	left.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := left.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	s := supervisor{group: &group{id: left.Process.Pid}, killAfter: time.Hour, exited: true}
	s.onLost(&locksidecar.LostError{Name: "a", Reason: locksidecar.ReasonStolen})
	_ = left.Wait() // its error is the signal
	if by := left.ProcessState.Sys().(syscall.WaitStatus).Signal(); by != unix.SIGKILL {
		t.Errorf("the process was ended by signal %v", by)
	}
	if s.lost != nil {
		t.Errorf("the command ended before the loss, which is reported as its end: %v", s.lost)
	}
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// explainInterval is how often explainWait asks the sidecar.
const explainInterval = time.Second

// explainWait prints, until ctx ends, a reason why the wait for a lock may never end: Redis
// does not serve, or the holder waits for this process. While other processes just hold the
// lock it prints nothing, like flock(1).
func explainWait(ctx context.Context, client *locksidecar.Client, name string) {
	tick := time.NewTicker(explainInterval)
	defer tick.Stop()
	printed := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		why, err := whyWait(ctx, client, name)
		if err == nil && why != "" && why != printed {
			printErr("waiting for the lock %q: %s", name, why)
		}
		if err == nil {
			printed = why
		}
	}
}

// whyWait returns a sentence that explains the wait; "": there is nothing to explain.
func whyWait(ctx context.Context, client *locksidecar.Client, name string) (string, error) {
	row, ok, err := client.Info(ctx, name)
	if err != nil {
		return "", err
	}
	if !ok || row.State != locksidecar.LockHeld { // a process of this host that has it is the reason, whatever Redis does
		health, err := client.Health(ctx)
		if err != nil || health.Redis == "ok" {
			return "", err
		}
		return health.Redis, nil
	}
	if row.PID <= 0 || !isAncestor(row.PID) {
		return "", nil
	}
	return fmt.Sprintf("process %d (%s) holds it and has started this command; if it waits for this command to end, neither of them ends", row.PID, row.Cmd), nil
}

// isAncestor reports whether a process is the parent of this one, its grandparent, and so on.
func isAncestor(pid int) bool {
	for at := os.Getppid(); at > 1; at = parentOf(at) {
		if at == pid {
			return true
		}
	}
	return false
}

// parentOf returns the parent of a process; 0: not known.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The fields after the name, which stands in parentheses and may contain anything; the
	// first is the state.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return 0
	}
	return parent
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// explainEvery is how often a wait for a lock is looked at.
const explainEvery = time.Second

// explainWait prints, until ctx ends, why a wait for a lock may last longer than its
// holders: because Redis does not serve, or because the holder waits for this process. A
// wait for other holders is as silent as that of flock(1).
func explainWait(ctx context.Context, client *locksidecar.Client, name string) {
	tick := time.NewTicker(explainEvery)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		why, err := whyWait(ctx, client, name)
		if err == nil && why != "" && why != said {
			complain("waiting for the lock %q: %s", name, why)
		}
		if err == nil {
			said = why
		}
	}
}

// whyWait returns a sentence that explains the wait; "": there is nothing to explain.
func whyWait(ctx context.Context, client *locksidecar.Client, name string) (string, error) {
	health, err := client.Health(ctx)
	if err != nil {
		return "", err
	}
	if health.Redis != "ok" {
		return health.Redis, nil
	}
	row, ok, err := client.Info(ctx, name)
	if err != nil || !ok || row.State != protocol.StateHeld || row.PID <= 0 || !isAncestor(row.PID) {
		return "", err
	}
	return fmt.Sprintf("process %d (%s) holds it and has started this command; if it waits for this command to end, neither of them ends", row.PID, row.Cmd), nil
}

// isAncestor reports whether a process is the parent of this one, or the parent's parent,
// and so on.
func isAncestor(pid int64) bool {
	for at := int64(os.Getppid()); at > 1; at = parentOf(at) {
		if at == pid {
			return true
		}
	}
	return false
}

// parentOf is the parent of a process; 0: not known.
func parentOf(pid int64) int64 {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// After the name, which stands in parentheses and may contain anything, and the state.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	parent, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return parent
}

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

// explainWait prints, until ctx ends, a reason why the wait may never end: Redis does not serve, or
// a holder waits for this process. While other processes just hold the lock, or the permits, it
// prints nothing, like flock(1).
func (c *lockFlags) explainWait(ctx context.Context, client *locksidecar.Client) {
	tick := time.NewTicker(explainInterval)
	defer tick.Stop()
	printed := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		why, err := c.whyWait(ctx, client)
		if err == nil && why != "" && why != printed {
			printErr("waiting for %s: %s", c.what(), why)
		}
		if err == nil {
			printed = why
		}
	}
}

// whyWait returns a sentence that explains the wait; "": there is nothing to explain.
func (c *lockFlags) whyWait(ctx context.Context, client *locksidecar.Client) (string, error) {
	row, _, err := client.Info(ctx, c.Name)
	if err != nil {
		return "", err
	}
	const starter = "process %d (%s) %s and has started this command; if it waits for this command to end, neither of them ends"
	permits := c.permits()
	for _, h := range row.Holders {
		if h.PID <= 0 || !isAncestor(h.PID) {
			continue
		}
		if permits += h.Permits; permits > row.Of {
			return fmt.Sprintf(starter, h.PID, h.Cmd, fmt.Sprintf("has %d of them", h.Permits)), nil
		}
	}
	if row.Kind == locksidecar.KindReadWrite {
		for _, h := range row.Holders {
			if h.PID > 0 && isAncestor(h.PID) && !(c.Shared && h.Shared) {
				return fmt.Sprintf(starter, h.PID, h.Cmd, map[bool]string{true: "reads under it", false: "holds it"}[h.Shared]), nil
			}
		}
	}
	if row.State == locksidecar.LockHeld && c.Of == nil { // a process of this host that has it is the reason, whatever Redis does
		if row.PID <= 0 || !isAncestor(row.PID) {
			return "", nil
		}
		return fmt.Sprintf(starter, row.PID, row.Cmd, "holds it"), nil
	}
	health, err := client.Health(ctx)
	if err != nil || health.Redis == "ok" {
		return "", err
	}
	return health.Redis, nil
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

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/locksidecar/locksidecar/internal/display"
)

type pingCmd struct {
	socketFlag
}

const (
	// A sidecar that has just started may need pingTimeout to connect to Redis.
	pingTimeout  = 2 * time.Second
	pingInterval = 50 * time.Millisecond
)

func (pingCmd) Help() string {
	return `Asks the sidecar to answer and to say how its Redis is. Fit for a health check: it ends at once if Redis serves;
otherwise it asks again for 2 s, because a sidecar that has just started is not connected yet.
A Redis is degraded if it is connected but refuses what an acquire needs: it is out of memory, cannot save, or its
ACL denies commands or keys. The sidecar tries that when it connects and each minute, on a lock that no client has.
A sidecar is in trouble if it serves, but new clients cannot connect, or a restart would end the locks: the file
system of its state is full, for instance. Do not restart it for that: the message says what to do.
The last line names the Redis: hosts share locks only if address, run id and key prefix are the same on all of them.

Example:

    locksidecar ping || systemctl status locksidecar

` + exitTable + `
    74   Redis is connected, but degraded; or Redis serves, and the sidecar is in trouble`
}

func (c *pingCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, sidecar, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	start := time.Now()
	sent := start
	health, err := sidecar.Health(ctx)
	took := time.Since(sent)
	for err == nil && health.Redis != "ok" && time.Since(start) < pingTimeout {
		time.Sleep(pingInterval)
		sent = time.Now()
		health, err = sidecar.Health(ctx)
		took = time.Since(sent)
	}
	if err != nil {
		return err
	}
	if health.Degraded {
		return coded{exitDegraded, fmt.Errorf("the sidecar answers, but its Redis is degraded, and refuses what locks need: %s", health.Redis)}
	}
	if health.Redis == "ok" && health.Trouble != "" {
		return coded{exitDegraded, fmt.Errorf("the sidecar answers, and its Redis serves, but the sidecar is in trouble: %s", health.Trouble)}
	}
	if health.Redis != "ok" {
		return coded{exitUnavailable, fmt.Errorf("the sidecar answers, but its Redis does not serve: %s", health.Redis)}
	}
	_, err = fmt.Fprintf(out, "the sidecar answered in %v; its Redis serves\n", took.Round(time.Microsecond))
	if err == nil && health.RedisAddress != "" {
		prefix := ""
		if health.KeyPrefix != "" {
			prefix = fmt.Sprintf(", key prefix %q", health.KeyPrefix)
		}
		_, err = fmt.Fprintf(out, "Redis at %s, run id %s%s\n", health.RedisAddress, cmp.Or(health.RedisRunID, "unknown (the Redis user lacks +info)"), prefix)
	}
	if err == nil && health.RedisRisk != "" {
		_, err = fmt.Fprintf(out, "warning: %s\n", display.Printable(health.RedisRisk))
	}
	return err
}

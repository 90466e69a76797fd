package main

import (
	"context"
	"fmt"
	"io"
	"time"

	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

type pingCmd struct {
	client
}

func (pingCmd) Help() string {
	return `Asks the sidecar to answer and to say how its Redis is. Fit for a health check.

Example:

    locksidecar ping || systemctl status locksidecar

` + exitTable
}

func (c *pingCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	sidecar, err := locksidecar.Dial(ctx, c.Socket)
	if err != nil {
		return err
	}
	defer sidecar.Close()
	start := time.Now()
	redis, err := sidecar.Ping(ctx)
	if err != nil {
		return err
	}
	if redis != "ok" {
		return coded{exitUnavailable, fmt.Errorf("the sidecar answers, but its Redis does not serve: %s", redis)}
	}
	_, err = fmt.Fprintf(out, "the sidecar answered in %v; its Redis serves\n", time.Since(start).Round(time.Microsecond))
	return err
}

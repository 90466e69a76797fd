package main

import (
	"context"
	"io"
)

type metricsCmd struct {
	socketFlag
}

func (metricsCmd) Help() string {
	return `Prints what the sidecar counts, once, in the text format of Prometheus. It asks over the sidecar's socket, so
the setting "metrics" is not needed. docs/metrics.md has each metric, its unit and the alerts.

Example, for the textfile collector of the node exporter:

    locksidecar metrics > locksidecar.prom.tmp && mv locksidecar.prom.tmp /var/lib/node_exporter/locksidecar.prom

` + exitTable
}

func (c *metricsCmd) Run(ctx context.Context, out io.Writer) error {
	ctx, sidecar, end, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer end()
	text, err := sidecar.Metrics(ctx)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, text)
	return err
}

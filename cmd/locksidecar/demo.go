package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/internal/flashsale"
)

// demoCmd is the flash sale: many processes sell one stock, first without the
// lock and then with it.
type demoCmd struct {
	Stock     int           `default:"1500" help:"Units for sale in each part."`
	Tills     int           `default:"8" help:"Processes that sell, 2 or more; half of them in Python where it has the packages."`
	Pay       time.Duration `default:"1ms" help:"How long a customer takes to pay: the time between reading and writing the stock."`
	InProcess bool          `help:"Use the Redis inside this program even if redis-server is installed."`

	Till bool `hidden:"" help:"Be a till: what the demo starts."`
}

// Help is shown by "locksidecar demo --help".
func (*demoCmd) Help() string {
	return `Example:

  locksidecar demo --stock 5000 --tills 16

It starts a private Redis, a sidecar and the tills, and ends them all again.
A till in Python needs the packages locksidecar, msgpack and redis; the demo
looks for them in $LOCKSIDECAR_DEMO_PYTHON, or .venv/bin/python and python3.
Exit code 0: everything was as promised; 1: something was not.`
}

// Run is the demo, or one of its tills.
func (c *demoCmd) Run() error {
	if c.Till {
		return flashsale.RunTill(context.Background(), os.Stdin, os.Stdout)
	}
	if c.Stock < 100 || c.Stock > 1_000_000 {
		return errors.New("--stock must be from 100 to 1000000")
	}
	if c.Tills < 2 || c.Tills > 256 {
		return errors.New("--tills must be from 2 to 256")
	}
	if c.Pay < 0 || c.Pay > time.Second {
		return errors.New("--pay must be from 0s to 1s")
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return flashsale.Run(ctx, flashsale.Config{
		Stock:     c.Stock,
		Tills:     c.Tills,
		Pay:       c.Pay,
		InProcess: c.InProcess,
		Sidecar:   []string{exe, "serve"},
		Till:      []string{exe, "demo", "--till"},
	}, os.Stdout)
}

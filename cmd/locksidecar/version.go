package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/alecthomas/kong"

	"github.com/locksidecar/locksidecar/protocol"
	locksidecar "github.com/locksidecar/locksidecar/sdk/go"
)

// commit is set by the Makefile: -ldflags "-X main.commit=v0.1.0-3-g0123abc".
var commit string

// build returns the commit that the binary was built from, if the build or the Go toolchain
// recorded it.
func build() string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "unknown"
}

// versionFlag is --version, an alias of the version command.
type versionFlag bool

func (versionFlag) BeforeReset(app *kong.Kong) error {
	err := new(versionCmd).Run(app.Stdout)
	app.Exit(exitCode(err))
	return err
}

type versionCmd struct {
	JSON bool `help:"Print one JSON object: version, build, protocol, go, platform."`
}

func (versionCmd) Help() string {
	return `Example:

    locksidecar version --json`
}

func (c *versionCmd) Run(out io.Writer) error {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	if c.JSON {
		return json.NewEncoder(out).Encode(struct {
			Version  string `json:"version"`
			Build    string `json:"build"`
			Protocol int    `json:"protocol"`
			Go       string `json:"go"`
			Platform string `json:"platform"`
		}{locksidecar.Version, build(), protocol.Version, runtime.Version(), platform})
	}
	_, err := fmt.Fprintf(out, "locksidecar %s (build %s, protocol %d, %s, %s)\n", locksidecar.Version, build(), protocol.Version, runtime.Version(), platform)
	return err
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/alecthomas/kong"

	"github.com/locksidecar/locksidecar/protocol"
)

// release is set by the build: -ldflags "-X main.release=1.2.3".
var release string

// version is the release, or what the Go toolchain knows about this build.
func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}

// versionFlag is --version, which other programs have, too.
type versionFlag bool

func (versionFlag) BeforeReset(app *kong.Kong) error {
	err := new(versionCmd).Run(app.Stdout)
	app.Exit(exitCode(err))
	return err
}

type versionCmd struct {
	JSON bool `help:"Print one JSON object: version, protocol, go, platform."`
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
			Protocol int    `json:"protocol"`
			Go       string `json:"go"`
			Platform string `json:"platform"`
		}{version(), protocol.Version, runtime.Version(), platform})
	}
	_, err := fmt.Fprintf(out, "locksidecar %s (protocol %d, %s, %s)\n", version(), protocol.Version, runtime.Version(), platform)
	return err
}

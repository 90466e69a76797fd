// Command packaging makes packages and a container image from the directory that .ci/packages
// stages, and adds licences to bills of materials. It is a module of its own, so that what it needs is not a dependency of the daemon.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

func main() {
	var (
		version = flag.String("version", "", "`version` of the packages")
		commit  = flag.String("commit", "", "description of the `commit`")
		stage   = flag.String("stage", "", "`directory` with a staged directory for each architecture")
		archs   = flag.String("arch", "amd64,arm64", "`architectures`")
		out     = flag.String("out", "", "`directory` for what is made")
		check   = flag.String("check", "", "check the image in this OCI layout `directory`, and make nothing")
		extract = flag.String("extract", "", "with -check: write the files of the image for amd64 into this `directory`")
		bill    = flag.String("bill", "", "add the licence of each component to this bill of materials, a `file`, and make nothing; standard input has the modules")
		source  = flag.String("source", ".", "with -bill: `directory` of the main module")
	)
	flag.Parse()
	if *bill != "" {
		if err := addLicences(*bill, os.Stdin, *source); err != nil {
			fmt.Fprintln(os.Stderr, "error: the bill of materials:", err)
			os.Exit(1)
		}
		return
	}
	if *check != "" {
		if err := checkImage(*check, *version, *extract); err != nil {
			fmt.Fprintln(os.Stderr, "error: the image:", err)
			os.Exit(1)
		}
		return
	}
	if *version == "" || *stage == "" || *out == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*version, *commit, *stage, strings.Split(*archs, ","), *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(version, commit, stage string, archs []string, out string) error {
	epoch, err := sourceDate()
	if err != nil {
		return err
	}
	for _, arch := range archs {
		for _, format := range []string{"deb", "rpm"} {
			if err := makePackage(format, version, arch, stage, out); err != nil {
				return fmt.Errorf("%s for %s: %w", format, arch, err)
			}
		}
	}
	if err := makeImage(version, commit, stage, archs, out, epoch); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	return nil
}

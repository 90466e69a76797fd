package main

import (
	"bytes"
	_ "embed"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

//go:embed nfpm.yaml
var packageConfig []byte

// sourceDate returns $SOURCE_DATE_EPOCH, which all files get as their time: the same commit
// gives the same bytes. nfpm reads it, too.
func sourceDate() (time.Time, error) {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	return time.Unix(seconds, 0).UTC(), err
}

// makePackage writes one package. The paths of nfpm.yaml are relative to the staged directory.
func makePackage(format, version, arch, stage, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	back, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := os.Chdir(filepath.Join(stage, arch)); err != nil {
		return err
	}
	defer os.Chdir(back)
	values := map[string]string{"VERSION": version, "ARCH": arch}
	config, err := nfpm.ParseWithEnvMapping(bytes.NewReader(packageConfig), func(name string) string { return values[name] })
	if err != nil {
		return err
	}
	info, err := config.Get(format)
	if err != nil {
		return err
	}
	info = nfpm.WithDefaults(info)
	if format == "deb" {
		info.License = "" // Debian has no such field: the file copyright says it
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	for _, c := range info.Contents {
		c.FileInfo.MTime = info.MTime
	}
	file, err := os.Create(filepath.Join(out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	if err := packager.Package(info, file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licensecheck"
)

// licensed is the part of a licence file in percent that must be the text of known licences. pkg.go.dev
// requires as much.
const licensed = 75

// addLicences adds the licence of each component to a bill of materials. Each line of modules has the
// path, the version and the directory of one, as .ci/release lists them. dir is the directory of the main module.
func addLicences(bill string, modules io.Reader, dir string) error {
	dirs := make(map[string]string)
	lines := bufio.NewScanner(modules)
	for lines.Scan() {
		words := strings.SplitN(lines.Text(), " ", 3)
		if len(words) != 3 {
			return fmt.Errorf("%q is not a path, a version and a directory", lines.Text())
		}
		dirs[words[0]] = words[2]
	}
	if err := lines.Err(); err != nil {
		return err
	}
	// Debian's Go comes without the licence, which is that of golang.org/x/sys.
	dirs["std"] = dirs["golang.org/x/sys"]

	text, err := os.ReadFile(bill)
	if err != nil {
		return err
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		return err
	}
	main := bom.Metadata.Component
	dirs[main.Name] = dir
	components := []*cdx.Component{main}
	for i := range *bom.Components {
		components = append(components, &(*bom.Components)[i])
	}
	for _, c := range components {
		names, err := licences(dirs[c.Name])
		if err != nil {
			return fmt.Errorf("%s %s: %w", c.Name, c.Version, err)
		}
		c.Licenses = new(cdx.Licenses)
		for _, name := range names {
			*c.Licenses = append(*c.Licenses, cdx.LicenseChoice{License: &cdx.License{ID: name}})
		}
	}

	var out bytes.Buffer
	encoder := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON)
	encoder.SetPretty(true)
	if err := encoder.EncodeVersion(&bom, bom.SpecVersion); err != nil {
		return err
	}
	return os.WriteFile(bill, out.Bytes(), 0o644)
}

// licences returns the SPDX identifiers of the licences of a module.
func licences(dir string) ([]string, error) {
	if dir == "" {
		return nil, fmt.Errorf("it is in the binary, and not in the list of modules")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if name := strings.ToUpper(entry.Name()); !entry.Type().IsRegular() || !strings.HasPrefix(name, "LICENSE") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		found := licensecheck.Scan(text)
		if found.Percent < licensed {
			return nil, fmt.Errorf("%s is to %.0f %% the text of known licences: see which it is", entry.Name(), found.Percent)
		}
		for _, match := range found.Match {
			names = append(names, match.ID)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no licence", dir)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

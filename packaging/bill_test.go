package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeBill writes a bill of materials with components of these names, without licences.
func writeBill(t *testing.T, names ...string) (path string) {
	t.Helper()
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &cdx.Component{Name: "github.com/locksidecar/locksidecar"}}
	bom.Components = new([]cdx.Component)
	for _, name := range names {
		*bom.Components = append(*bom.Components, cdx.Component{Name: name, Version: "v1.0.0"})
	}
	path = filepath.Join(t.TempDir(), "bill.json")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := cdx.NewBOMEncoder(file, cdx.BOMFileFormatJSON).Encode(bom); err != nil {
		t.Fatal(err)
	}
	return path
}

// licencesIn returns the licences of each component of a bill of materials.
func licencesIn(t *testing.T, path string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]string)
	for _, c := range append(*bom.Components, *bom.Metadata.Component) {
		all[c.Name] = []string{}
		if c.Licenses != nil {
			for _, choice := range *c.Licenses {
				all[c.Name] = append(all[c.Name], choice.License.ID)
			}
		}
	}
	return all
}

// All modules of the daemon have licences that are recognized.
func TestBillOfMaterialsHasTheLicenceOfEachModule(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}", "./cmd/locksidecar")
	list.Dir, list.Stderr = "..", os.Stderr
	modules, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"std"}
	for line := range strings.Lines(string(modules)) {
		if name, _, _ := strings.Cut(line, " "); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	bill := writeBill(t, names...)
	if err := addLicences(bill, bytes.NewReader(modules), ".."); err != nil {
		t.Fatal(err)
	}
	found := licencesIn(t, bill)
	if len(found) != len(names)+1 || len(names) < 10 {
		t.Errorf("%d components became %d", len(names)+1, len(found))
	}
	for name, licences := range found {
		if len(licences) == 0 {
			t.Errorf("%s has no licence", name)
		}
		t.Log(name, licences)
	}
	for name, want := range map[string]string{
		"github.com/locksidecar/locksidecar": "MIT",
		"std":                                "BSD-3-Clause",
		"golang.org/x/sys":                   "BSD-3-Clause",
		"github.com/redis/go-redis/v9":       "BSD-2-Clause",
		"github.com/prometheus/common":       "Apache-2.0",
	} {
		if got := found[name]; !slices.Equal(got, []string{want}) {
			t.Errorf("%s has the licences %q; want %s", name, got, want)
		}
	}
}

// A release fails if it cannot name a licence.
func TestBillOfMaterialsWithoutALicenceIsRefused(t *testing.T) {
	unknown, none := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(unknown, "LICENSE"), []byte("Do with it what you want, on Mondays.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for modules, want := range map[string]string{
		"example.com/m v1.0.0 " + unknown + "\n": "0 % the text of known licences",
		"example.com/m v1.0.0 " + none + "\n":    "has no licence",
		"":                                       "not in the list of modules",
	} {
		if err := addLicences(writeBill(t, "example.com/m"), strings.NewReader(modules), ".."); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("modules %q: %v; want %q", modules, err, want)
		}
	}
}

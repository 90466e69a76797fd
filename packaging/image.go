package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// imageUser is the user and the group of the daemon in the image. It has a number above
// those that distributions give to people and services.
const imageUser = 65532

// imageName is what a container engine calls the image after it has loaded the archive.
const imageName = "localhost/locksidecar"

const (
	imagePasswd = "root:x:0:0:root:/:/usr/sbin/nologin\nlocksidecar:x:65532:65532:locksidecar daemon:/:/usr/sbin/nologin\n"
	imageGroup  = "root:x:0:\nlocksidecar:x:65532:\n"
)

// makeImage writes an OCI archive with an image for each architecture.
func makeImage(version, commit, stage string, archs []string, out string, date time.Time) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	annotations := map[string]string{
		"org.opencontainers.image.title":    "locksidecar",
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.revision": commit,
		"org.opencontainers.image.source":   "https://github.com/locksidecar/locksidecar",
		"org.opencontainers.image.licenses": "MIT",
	}
	for _, arch := range archs {
		image, err := imageFor(filepath.Join(stage, arch), arch, annotations, date)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image,
			Descriptor: v1.Descriptor{
				MediaType: types.OCIManifestSchema1,
				Platform:  &v1.Platform{OS: "linux", Architecture: arch},
			},
		})
	}
	// The archive has one index, which names the image, and in it the index of architectures.
	named := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: mutate.Annotations(index, annotations).(v1.ImageIndex),
		Descriptor: v1.Descriptor{
			MediaType: types.OCIImageIndex,
			Annotations: map[string]string{
				"org.opencontainers.image.ref.name": version,
				"io.containerd.image.name":          imageName + ":" + version,
			},
		},
	})
	dir, err := os.MkdirTemp("", "locksidecar-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, named); err != nil {
		return err
	}
	return writeArchive(filepath.Join(out, fmt.Sprintf("locksidecar_%s_oci.tar", version)), os.DirFS(dir), date)
}

func imageFor(staged, arch string, labels map[string]string, date time.Time) (v1.Image, error) {
	layerBytes, err := imageLayer(staged, date)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layerBytes)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: date}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "make packages"}})
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", arch, created
	file.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", imageUser, imageUser),
		Env:        []string{"PATH=/usr/bin"},
		Entrypoint: []string{"/usr/bin/locksidecar"},
		Cmd:        []string{"serve"},
		Labels:     labels,
		StopSignal: "SIGTERM",
	}
	image, err = mutate.ConfigFile(image, file)
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, labels).(v1.Image), nil
}

// imageLayer returns the file system of the image: the binary, its licences, its user, and the
// authorities that rediss:// is verified against.
func imageLayer(staged string, date time.Time) ([]byte, error) {
	var authorities bytes.Buffer
	for root := range bundle.Roots() {
		// A constraint would be lost in the file, and with it the distrust that it says.
		if root.Constraint == nil {
			if err := pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
				return nil, err
			}
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name string, mode int64, owner int, content []byte) error {
		header := &tar.Header{Name: name, Mode: mode, Uid: owner, Gid: owner, ModTime: date, Format: tar.FormatPAX}
		if content == nil {
			header.Typeflag = tar.TypeDir
		} else {
			header.Typeflag, header.Size = tar.TypeReg, int64(len(content))
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	for _, entry := range []struct {
		name    string
		mode    int64
		owner   int
		content []byte // nil: a directory
		from    string // a staged file; "": content has it
	}{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, content: []byte(imageGroup)},
		{name: "etc/locksidecar/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, content: []byte(imagePasswd)},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities.Bytes()},
		{name: "run/", mode: 0o755},
		{name: "run/locksidecar/", mode: 0o755, owner: imageUser},
		{name: "tmp/", mode: 0o1777},
		{name: "usr/", mode: 0o755},
		{name: "usr/bin/", mode: 0o755},
		{name: "usr/bin/locksidecar", mode: 0o755, from: "locksidecar"},
		{name: "usr/share/", mode: 0o755},
		{name: "usr/share/licenses/", mode: 0o755},
		{name: "usr/share/licenses/locksidecar/", mode: 0o755},
		{name: "usr/share/licenses/locksidecar/LICENSE", mode: 0o644, from: "LICENSE"},
		{name: "usr/share/licenses/locksidecar/THIRD_PARTY_LICENSES", mode: 0o644, from: "THIRD_PARTY_LICENSES"},
	} {
		if entry.from != "" {
			content, err := os.ReadFile(filepath.Join(staged, entry.from))
			if err != nil {
				return nil, err
			}
			entry.content = content
		}
		if err := add(entry.name, entry.mode, entry.owner, entry.content); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

// writeArchive writes the files below a directory into a tar archive, in the order of their
// names and with one time.
func writeArchive(path string, dir fs.FS, date time.Time) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	w := tar.NewWriter(file)
	err = fs.WalkDir(dir, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(dir, name)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: date, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return file.Close()
}

// checkImage checks each digest and size of an OCI layout, and what its images say of
// themselves. It writes the files of the image for amd64 into a directory.
func checkImage(dir, version, extract string) error {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	if err := validate.Index(index); err != nil {
		return err
	}
	named, err := partial.FindIndexes(index, func(d v1.Descriptor) bool {
		return d.Annotations["io.containerd.image.name"] == imageName+":"+version
	})
	if err != nil {
		return err
	}
	if len(named) != 1 {
		return fmt.Errorf("%d of its indexes are named %s:%s", len(named), imageName, version)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		images, err := partial.FindImages(named[0], match.Platforms(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			return err
		}
		if len(images) != 1 {
			return fmt.Errorf("%d images are for %s", len(images), arch)
		}
		file, err := images[0].ConfigFile()
		if err != nil {
			return err
		}
		if user := fmt.Sprintf("%d:%d", imageUser, imageUser); file.Architecture != arch || file.Config.User != user {
			return fmt.Errorf("for %s: the architecture is %s, the user %s", arch, file.Architecture, file.Config.User)
		}
		if arch == "amd64" {
			if err := extractImage(images[0], extract); err != nil {
				return err
			}
		}
	}
	return nil
}

// extractImage writes the files of an image, with their owners if this is root.
func extractImage(image v1.Image, dir string) error {
	files := mutate.Extract(image)
	defer files.Close()
	for r := tar.NewReader(files); ; {
		header, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		if header.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, 0o644)
			}
		}
		if err == nil {
			err = os.Chmod(path, header.FileInfo().Mode())
		}
		if err == nil && os.Getuid() == 0 {
			err = os.Chown(path, header.Uid, header.Gid)
		}
		if err != nil {
			return err
		}
	}
}

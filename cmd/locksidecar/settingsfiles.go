package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/BurntSushi/toml"
	"golang.org/x/sys/unix"
)

// dropInDir is the directory beside the settings file whose files are read after it.
const dropInDir = "conf.d"

// place is where a setting, or an entry of the policy, is written.
type place struct {
	path string
	line int // from 1; 0: not known
}

// String returns a place as errors name it.
func (p place) String() string {
	if p.line == 0 {
		return p.path
	}
	return fmt.Sprintf("%s, line %d", p.path, p.line)
}

// short returns a place as compilers print it.
func (p place) short() string {
	if p.line == 0 {
		return p.path
	}
	return fmt.Sprintf("%s:%d", p.path, p.line)
}

// settingsFile is a file of settings as it is written.
type settingsFile struct {
	path   string
	values settings
	keys   []string // that it has, in the order of settings
	lines  fileLines
	policy []map[string]any
}

// readSettingsFiles reads the settings file and then those in the directory conf.d beside it, in
// the order of their names. unread are the names there that do not end in .toml, except hidden
// files: editors, package managers and Kubernetes leave both.
func readSettingsFiles(path string) (files []*settingsFile, unread []string, err error) {
	owner, main, err := readSettingsFile(path)
	if err != nil {
		return nil, nil, err
	}
	files = []*settingsFile{main}
	dir := filepath.Join(filepath.Dir(path), dropInDir)
	// Everyone can make a directory beside a settings file in /tmp.
	trusted := []uint32{0, uint32(unix.Geteuid()), owner}
	entries, err := readDropInDir(dir, trusted)
	if errors.Is(err, fs.ErrNotExist) {
		return files, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if !strings.HasSuffix(e.Name(), ".toml") {
			unread = append(unread, path)
			continue
		}
		_, f, err := readSettingsFile(path, trusted...)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files = append(files, f)
	}
	return files, unread, errors.Join(errs...)
}

// readDropInDir returns what is in a directory, sorted by name, which must belong to one of the users.
func readDropInDir(path string, trusted []uint32) ([]fs.DirEntry, error) {
	cannotRead := func(err error) error { return fmt.Errorf("the settings in %s cannot be read: %w", path, err) }
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, cannotRead(err)
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		return nil, cannotRead(err)
	}
	if err := checkOwner(path, info, trusted); err != nil {
		return nil, err
	}
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, cannotRead(err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// checkOwner returns an error if a file belongs to a user that is not trusted with the settings.
func checkOwner(path string, info fs.FileInfo, trusted []uint32) error {
	if uid := ownerOf(info); !slices.Contains(trusted, uid) {
		return fmt.Errorf("%s belongs to the user %d, who could set any setting; it must belong to root, to the user of the daemon, or to the owner of the settings file", path, uid)
	}
	return nil
}

func ownerOf(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// readSettingsFile reads one file, which must belong to one of the users given, if there are any.
func readSettingsFile(path string, trusted ...uint32) (owner uint32, _ *settingsFile, err error) {
	flags := os.O_RDONLY
	if len(trusted) > 0 {
		flags |= unix.O_NONBLOCK // another user may have put a FIFO there: to open it would wait for a writer
	}
	file, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("the settings file cannot be read: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return 0, nil, fmt.Errorf("the settings file cannot be read: %w", err)
	}
	owner = ownerOf(info)
	if len(trusted) > 0 {
		if err := checkOwner(path, info, trusted); err != nil {
			return 0, nil, err
		}
		if !info.Mode().IsRegular() {
			return 0, nil, fmt.Errorf("%s is not a regular file; let it be one, or rename it so that its name does not end with .toml", path)
		}
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return 0, nil, fmt.Errorf("the settings file cannot be read: %w", err)
	}
	f, err := parseSettings(path, string(text))
	return owner, f, err
}

func parseSettings(path, text string) (*settingsFile, error) {
	var s struct {
		settings
		Policy []map[string]any `toml:"policy"`
	}
	meta, err := toml.Decode(text, &s)
	if err != nil {
		return nil, fmt.Errorf("the settings file %s is not valid: %w", path, err)
	}
	f := &settingsFile{path: path, values: s.settings, policy: s.Policy, lines: scanLines(text)}
	var errs []error
	reported := make(map[string]bool) // by the first part: [a.b] is a.b, and each of its keys
	for _, key := range meta.Undecoded() {
		if reported[key[0]] {
			continue
		}
		reported[key[0]] = true
		errs = append(errs, fmt.Errorf("the settings file %s has the unknown key %q; the keys are %s",
			f.at(key[0]), key, strings.Join(append(settingKeys(), "policy"), ", ")))
	}
	for _, key := range settingKeys() {
		if meta.IsDefined(key) {
			f.keys = append(f.keys, key)
		}
	}
	return f, errors.Join(errs...)
}

// at returns the place of a key.
func (f *settingsFile) at(key string) place { return place{f.path, f.lines.keys[key]} }

// entryPlaces returns where each entry of the policy is.
func (f *settingsFile) entryPlaces() []entryPlace {
	places := make([]entryPlace, len(f.policy))
	for i := range places {
		// Entries in one array, policy = [{…}], are not found one by one.
		places[i] = entryPlace{place: f.at("policy")}
		if len(f.lines.entries) == len(f.policy) {
			at := f.lines.entries[i]
			places[i] = entryPlace{place{f.path, at.header}, at.keys}
		}
	}
	return places
}

// entryPlace is where a [[policy]] entry is.
type entryPlace struct {
	place
	keys map[string]int // the lines of its keys
}

// fileLines are the lines of what a settings file has, from 1. The library does not say where keys
// and the tables of an array are.
type fileLines struct {
	keys    map[string]int // keys and tables at the top
	entries []entryLines   // [[policy]]
}

type entryLines struct {
	header int
	keys   map[string]int
}

// scanLines finds the keys and the [[policy]] entries of a valid TOML file.
func scanLines(text string) fileLines {
	found := fileLines{keys: make(map[string]int)}
	// A key a.b is also one in a.
	note := func(keys map[string]int, key string, line int) {
		first, _, _ := strings.Cut(key, ".")
		for _, k := range []string{unquoted(key), unquoted(first)} {
			if keys[k] == 0 {
				keys[k] = line
			}
		}
	}
	current := found.keys // the keys of the table in which a line is; nil: one that does not count
	var open tomlNesting
	for i, line := range strings.Split(strings.TrimPrefix(text, "\ufeff"), "\n") {
		if open.isInValue() {
			open.scan(line)
			continue
		}
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "[["):
			name, _, _ := strings.Cut(line[2:], "]]")
			note(found.keys, name, i+1)
			if current = nil; unquoted(name) == "policy" {
				current = make(map[string]int)
				found.entries = append(found.entries, entryLines{i + 1, current})
			}
		case strings.HasPrefix(line, "["):
			name, _, _ := strings.Cut(line[1:], "]")
			note(found.keys, name, i+1)
			current = nil
		case line != "" && line[0] != '#':
			key, value, _ := strings.Cut(line, "=")
			if current != nil {
				note(current, key, i+1)
			}
			open.scan(value)
		}
	}
	return found
}

func unquoted(key string) string { return strings.Trim(key, " \t\"'") }

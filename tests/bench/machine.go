package main

import (
	"context"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is where this run takes place, as far as programs say what they are.
func (b *bench) machine(ctx context.Context) Machine {
	m := Machine{Cores: runtime.NumCPU(), CPU: runtime.GOARCH, Versions: map[string]string{"go": runtime.Version()}}
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if model := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(cpu); model != nil {
			m.CPU = string(model[1])
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	// program says its version in output that matches.
	program := func(name, match string, command ...string) {
		if command[0] == "" {
			return
		}
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput()
		if err != nil {
			return
		}
		if found := regexp.MustCompile(match).FindSubmatch(out); found != nil {
			m.Versions[name] = string(found[1])
		}
	}
	program("redis-server", `v=([\d.]+)`, "redis-server", "--version")
	program("locksidecar", `(?:locksidecar )?(\S+)`, b.programs.daemon, "version")
	program("java", `version "([^"]+)"`, b.programs.java, "-version")
	program("python", `Python (\S+)`, b.programs.python, "--version")
	for _, p := range []string{"redis", "python-redis-lock", "redis-semaphore", "self-limiters"} {
		program(p+" (Python)", `^(\S+)`, b.programs.python, "-c", "import importlib.metadata as m; print(m.version('"+p+"'))")
	}
	for _, path := range []string{b.programs.goWorker, b.programs.etcd} {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			continue
		}
		for _, dep := range info.Deps {
			switch dep.Path {
			case "github.com/go-redsync/redsync/v4", "github.com/bsm/redislock", "github.com/redis/rueidis",
				"github.com/redis/go-redis/v9", "go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/server/v3":
				m.Versions[dep.Path] = dep.Version
			}
		}
	}
	// Maven leaves the jars in the name of which the version is beside the worker's.
	if jars, _ := filepath.Glob(filepath.Join(filepath.Dir(b.programs.javaWorker), "*", "redisson-[0-9]*.jar")); len(jars) == 1 {
		m.Versions["redisson"] = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(jars[0]), "redisson-"), ".jar")
	}
	return m
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// prepare finds or makes the programs that the plan needs, and takes out of the
// plan those contenders for which there are none.
func (b *bench) prepare(ctx context.Context, dir string) error {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return errors.New("redis-server is not installed: apt-get install redis-server")
	}
	p := &b.programs
	var err error
	if p.self, err = os.Executable(); err != nil {
		return err
	}
	needs := b.plan.needs
	source, sourceErr := findSource()
	build := func(program *string, name, from, pkg string) error {
		if *program != "" {
			_, err := os.Stat(*program)
			return err
		}
		if sourceErr != nil {
			return sourceErr
		}
		*program = filepath.Join(dir, name)
		cmd := exec.CommandContext(ctx, "go", "build", "-o", *program, pkg)
		cmd.Dir = filepath.Join(source, from)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", cmd, err, out)
		}
		return nil
	}
	if needs(contender.isOurs) {
		if err := build(&p.daemon, "locksidecar", "../..", "./cmd/locksidecar"); err != nil {
			return err
		}
	}
	if needs(func(c contender) bool { return c.language == inGo }) {
		if err := build(&p.goWorker, "worker", ".", "./worker"); err != nil {
			return err
		}
	}
	if needs(func(c contender) bool { return c.etcd }) {
		if err := build(&p.etcd, "etcd", ".", "./etcd"); err != nil {
			return err
		}
	}
	if needs(func(c contender) bool { return c.language == inJava }) {
		if err := b.without(inJava, p.findJava(ctx, source)); err != nil {
			return err
		}
	}
	if needs(func(c contender) bool { return c.language == inPython }) {
		if err := b.without(inPython, p.findPython(ctx, source)); err != nil {
			return err
		}
	}
	if len(b.plan) == 0 {
		return errors.New("there is nobody left to run")
	}
	return nil
}

func (c contender) isOurs() bool { return c.role == Ours || c.role == Sibling }

// findSource is the directory of this module, from it or from the repository's.
func findSource() (string, error) {
	for _, dir := range []string{".", "tests/bench"} {
		if _, err := os.Stat(filepath.Join(dir, "redisson", "pom.xml")); err == nil {
			return filepath.Abs(dir)
		}
	}
	return "", errors.New("not in a clone of the repository: give the programs by flags (see -help)")
}

// findJava makes the Java worker, without network if Maven has everything.
func (p *programs) findJava(ctx context.Context, source string) error {
	if err := exec.CommandContext(ctx, p.java, "-version").Run(); err != nil {
		return fmt.Errorf("%s -version: %w: apt-get install default-jdk-headless maven", p.java, err)
	}
	if p.javaWorker != "" {
		return nil
	}
	pom := filepath.Join(source, "redisson", "pom.xml")
	var out []byte
	var err error
	for _, how := range [][]string{{"-o"}, nil} {
		cmd := exec.CommandContext(ctx, "mvn", append(how, "-q", "-f", pom, "package")...)
		if out, err = cmd.CombinedOutput(); err == nil {
			p.javaWorker = filepath.Join(source, "redisson", "target", "redisson-worker.jar")
			return nil
		}
	}
	return fmt.Errorf("mvn package: %w: %.500s", err, out)
}

// findPython looks for a Python that has what the worker imports.
func (p *programs) findPython(ctx context.Context, source string) error {
	if p.pythonWorker == "" {
		p.pythonWorker = filepath.Join(source, "python", "worker.py")
	}
	if p.python == "" {
		p.python = filepath.Join(source, "../../.venv/bin/python")
	}
	if out, err := exec.CommandContext(ctx, p.python, "-c", "import locksidecar, redis, redis_lock").CombinedOutput(); err != nil {
		return fmt.Errorf("%s has not what the worker needs (make bench installs it): %w: %.500s", p.python, err, out)
	}
	return nil
}

// without takes the contenders of a language out of the plan if something is in
// their way. Where it is asked whether everything works, that is an error.
func (b *bench) without(l language, why error) error {
	if why == nil || b.smoke {
		return why
	}
	fmt.Fprintf(b.progress, "without the contenders in %s: %v\n", l, why)
	for i := range b.plan {
		b.plan[i].contenders = slices.DeleteFunc(b.plan[i].contenders, func(c contender) bool { return c.language == l })
	}
	b.plan = slices.DeleteFunc(b.plan, func(p planned) bool { return len(p.contenders) == 0 })
	return nil
}

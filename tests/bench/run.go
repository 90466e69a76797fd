package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// settle is how long workers work before they are measured. A JVM compiles what
	// it does often, and that takes longer.
	settle     = 500 * time.Millisecond
	settleJava = 4 * time.Second
	// startUp bounds the start of a fleet: 64 JVMs on two cores take a minute or two.
	startUp      = 5 * time.Minute
	startUpSmoke = time.Minute
	// takeAll bounds how long it takes to take the locks of Held.
	takeAll = 10 * time.Minute
)

// run has one contender play one scenario, and returns a Run, or one for each
// kill in a Crash.
func (b *bench) run(ctx context.Context, s Scenario, c contender, round int) []Run {
	st, err := b.build(ctx, s, c)
	runs := []Run{{}}
	if err == nil {
		switch s.Kind {
		case Held:
			runs[0], err = b.held(ctx, st, s, c)
		case Crash:
			runs, err = b.crash(ctx, st, s, c)
		default:
			runs[0], err = b.pairs(ctx, st, s, c)
		}
	}
	err = errors.Join(err, st.close())
	if err != nil {
		runs = append(runs[:0], Run{Error: oneLine(err)})
	}
	for i := range runs {
		r := &runs[i]
		r.Round = round + i
		r.RTTMS = ms(int64(st.rtt))
		r.Note = strings.Trim(st.note+"; "+r.Note, "; ")
	}
	return runs
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// muster starts worker processes that differ in what prepare makes of their specs,
// and returns when all are ready. What it returns must be killed, an error or not.
func (b *bench) muster(ctx context.Context, st *stage, s Scenario, c contender, specs []spec) (fleet, error) {
	var f fleet
	for i, sp := range specs {
		sp.Contender, sp.Redis, sp.Etcd = c.name, st.redisURL, st.etcdURL
		sp.LeaseMS = int64(s.LeaseMS)
		sp.Socket = st.socket(s.host(i))
		w, err := startWorker(fmt.Sprintf("%s %d", c.name, i), b.programs.worker(c.language), sp)
		if err != nil {
			return f, err
		}
		f = append(f, w)
	}
	within := startUp
	if b.smoke {
		within = startUpSmoke
	}
	_, err := f.await(ctx, "ready", within)
	return f, err
}

// host is the host of a process: the first ones are on the first.
func (s Scenario) host(process int) int { return process * s.Hosts / s.Processes }

// pairs measures acquire and release.
func (b *bench) pairs(ctx context.Context, st *stage, s Scenario, c contender) (Run, error) {
	var specs []spec
	if c.together {
		sp := s.pairsSpec(st, 0)
		for i := 1; i < s.Processes; i++ {
			sp.Names = append(sp.Names, s.pairsSpec(st, i).Names...)
		}
		specs = append(specs, sp)
	} else {
		for i := range s.Processes {
			specs = append(specs, s.pairsSpec(st, i))
		}
	}
	f, err := b.muster(ctx, st, s, c, specs)
	defer f.kill()
	if err != nil {
		return Run{}, err
	}
	if err := f.tell("go"); err != nil {
		return Run{}, err
	}
	if err := f.lasts(ctx, b.settle(c)); err != nil {
		return Run{}, err
	}
	from, err := st.read(ctx, f, false)
	if err != nil {
		return Run{}, err
	}
	if err := f.lasts(ctx, b.window); err != nil {
		return Run{}, err
	}
	to, err := st.read(ctx, f, true)
	if err != nil {
		return Run{}, err
	}
	size := Figures{}
	if err := st.size(f, size); err != nil {
		return Run{}, err
	}
	w := window{from: from.at, to: to.at, stopped: monotonic()}
	if err := f.tell("stop"); err != nil {
		return Run{}, err
	}
	done, err := f.await(ctx, "done", patience)
	if err != nil {
		return Run{}, err
	}

	var samples []sample
	for i, worker := range f {
		records, err := readRecords(worker.spec.Records)
		if err != nil {
			return Run{}, fmt.Errorf("%s: %w", worker.name, err)
		}
		for _, r := range records {
			samples = append(samples, sample{r, at{process: i, host: s.host(i)}})
		}
	}
	workers := s.Processes * s.Workers
	r := Run{}
	r.Figures, r.Waits = pairFigures(samples, w, workers)
	r.Figures.add(used(from, to, r.Figures[PairsPerSecond]*w.seconds(), c))
	r.Figures.add(size)
	if s.Kind == Contended || s.Kind == Permits {
		r.Figures.add(oneLockFigures(samples, w, s.Processes, max(1, s.Of)))
	}
	if s.Kind == Permits {
		r.Figures.add(s.permitFigures(r.Figures))
	}
	for i, e := range done {
		r.Figures[Errors] += float64(e.Errors)
		if e.Errors > 0 && r.Note == "" {
			r.Note = fmt.Sprintf("%s: %s", f[i].name, e.FirstError)
		}
	}
	if r.Figures[PairsPerSecond] == 0 {
		return r, fmt.Errorf("no pair within %v; %d errors; %s", b.window, int(r.Figures[Errors]), r.Note)
	}
	return r, nil
}

// pairsSpec is what process i of a pairs scenario does.
func (s Scenario) pairsSpec(st *stage, i int) spec {
	sp := spec{Mode: pairs, WorkUS: s.WorkUS, Of: s.Of, Records: filepath.Join(st.dir, fmt.Sprintf("records%d", i))}
	for j := range s.Workers {
		name := "contended"
		if s.Kind == Uncontended {
			name = fmt.Sprintf("own:%d:%d", i, j)
		}
		sp.Names = append(sp.Names, name)
	}
	return sp
}

func (b *bench) settle(c contender) time.Duration {
	switch {
	case b.smoke:
		return 100 * time.Millisecond
	case c.language == inJava:
		return settleJava
	}
	return settle
}

// held measures what it costs to keep many locks.
func (b *bench) held(ctx context.Context, st *stage, s Scenario, c contender) (Run, error) {
	r := Run{}
	if c.heldAtMost > 0 && s.Count > c.heldAtMost {
		r.Note = fmt.Sprintf("%d locks instead of %d: %s", c.heldAtMost, s.Count, c.heldWhy)
		s.Count = c.heldAtMost
	}
	const prefix = "held:"
	f, err := b.muster(ctx, st, s, c, []spec{{Mode: hold, Prefix: prefix, Count: s.Count}})
	defer f.kill()
	if err != nil {
		return r, err
	}
	began := time.Now()
	if err := f.tell("go"); err != nil {
		return r, err
	}
	if _, err := f.await(ctx, "held", takeAll); err != nil {
		return r, err
	}
	took := time.Since(began)
	// What was taken together is renewed together, each third, half or two thirds of
	// the lease. In twice the lease each library has as many bursts as belong there,
	// if no burst is where the window begins.
	length := max(b.window, 2*s.lease())
	if b.smoke {
		length = s.lease() * 3 / 4
	}
	if err := f.lasts(ctx, s.lease()/6); err != nil {
		return r, err
	}
	from, err := st.read(ctx, f, false)
	if err != nil {
		return r, err
	}
	if err := f.lasts(ctx, length); err != nil {
		return r, err
	}
	to, err := st.read(ctx, f, true)
	if err != nil {
		return r, err
	}
	seconds := float64(to.at-from.at) / 1e9
	r.Figures = used(from, to, 0, c)
	r.Figures.add(Figures{
		TakeSeconds:       took.Seconds(),
		RenewalsPerSecond: (to.renewals - from.renewals) / seconds,
		ScriptsPerSecond:  (to.scripts - from.scripts) / seconds,
		CommandsPerSecond: (to.commands - from.commands) / seconds,
		ServerCPUPerSecMS: r.Figures[ServerCPU] * 1e3,
		ClientCPUPerSecMS: r.Figures[ClientCPU] * 1e3,
	})
	if n := to.renewals - from.renewals; n > 0 {
		r.Figures[ServerCPUPerRenewalUS] = float64(to.store-from.store) / n / 1e3
	}
	if err := st.size(f, r.Figures); err != nil {
		return r, err
	}
	kept, err := st.kept(ctx, prefix)
	if err != nil {
		return r, err
	}
	r.Figures[LocksHeld] = float64(kept)
	if kept < s.Count {
		r.Note = strings.Trim(fmt.Sprintf("%s; only %d of %d locks were still held in the end", r.Note, kept, s.Count), "; ")
	}
	return r, nil
}

// kept counts the keys that are locks.
func (st *stage) kept(ctx context.Context, prefix string) (int, error) {
	locks := map[string]struct{}{} // a scan may give a key twice
	keys := st.client.Scan(ctx, 0, "*"+prefix+"*", 10_000).Iterator()
	for keys.Next(ctx) {
		// Our counters of tokens outlive their locks.
		if !strings.HasPrefix(keys.Val(), "redisson_lock_token:") {
			locks[keys.Val()] = struct{}{}
		}
	}
	return len(locks), keys.Err()
}

// crash kills holders and measures how soon those who wait are granted the lock.
func (b *bench) crash(ctx context.Context, st *stage, s Scenario, c contender) ([]Run, error) {
	var runs []Run
	for i := range b.kills(c) {
		took, err := b.crashOnce(ctx, st, s, c, fmt.Sprintf("crash:%d:", i))
		if err != nil {
			return nil, err
		}
		runs = append(runs, Run{Figures: Figures{CrashToGrantMS: ms(took)}})
	}
	return runs, nil
}

// kills is how often a contender's holder is killed: who waits for the end of the
// lease takes long.
func (b *bench) kills(c contender) int {
	switch {
	case b.smoke:
		return 1
	case c.role == Ours:
		return 20
	}
	return 2
}

func (b *bench) crashOnce(ctx context.Context, st *stage, s Scenario, c contender, prefix string) (ns int64, err error) {
	f, err := b.muster(ctx, st, s, c, []spec{
		{Mode: hold, Prefix: prefix, Count: 1},
		{Mode: wait, Names: []string{prefix + "0"}},
	})
	defer f.kill()
	if err != nil {
		return 0, err
	}
	holder, waiter := f[0], f[1]
	if err := holder.tell("go"); err != nil {
		return 0, err
	}
	if _, err := holder.await(ctx, "held", patience); err != nil {
		return 0, err
	}
	if err := waiter.tell("go"); err != nil {
		return 0, err
	}
	// Nobody tells that a process waits, but soon it does. The grant would come too
	// early otherwise, and be taken for a mistake.
	if err := f.lasts(ctx, 300*time.Millisecond); err != nil {
		return 0, err
	}
	killed := monotonic()
	holder.kill()
	granted, err := waiter.await(ctx, "granted", 3*s.lease()+patience)
	if err != nil {
		return 0, err
	}
	if granted.At < killed {
		return 0, fmt.Errorf("%s: was granted the lock %v before its holder was killed", c.name, time.Duration(killed-granted.At))
	}
	return granted.At - killed, nil
}

func (f Figures) add(more Figures) {
	for m, v := range more {
		f[m] = v
	}
}

// programs are what is run beside Redis.
type programs struct {
	self, daemon, goWorker, etcd string
	java, javaWorker             string // the program, the jar
	python, pythonWorker         string
}

// worker is the command of a worker process in a language.
func (p programs) worker(l language) *exec.Cmd {
	switch l {
	case inJava:
		// The first compiler alone: Redisson then needs 95 µs for a pair after six
		// seconds, and 150 with the second one, which is still at work by then. See
		// redisson/README.md.
		return exec.Command(p.java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-jar", p.javaWorker)
	case inPython:
		return exec.Command(p.python, p.pythonWorker)
	}
	return exec.Command(p.goWorker)
}

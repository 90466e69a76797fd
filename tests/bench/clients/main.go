// Command clients measures three ways to have Redis carry out the operations of a
// sidecar: its own pipeline (sidecar/store), go-redis and rueidis. Each runs the same
// scripts for the same 64 callers on the same Redis, one after the other in each round.
//
//	make bench-clients
//
// docs/decisions/0001-go-redis.md says what the result is used for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/sidecar/store/wire"
	"golang.org/x/sys/unix"
)

func main() {
	var (
		rounds  = flag.Int("rounds", 9, "how often each client is measured")
		window  = flag.Duration("time", time.Second, "how long each measurement takes")
		callers = flag.Int("callers", 64, "goroutines that take and drop a lock of their own")
	)
	flag.Parse()
	if flag.NArg() > 0 || *rounds < 1 || *window <= 0 || *callers < 1 || *callers > maxCallers {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := compare(ctx, os.Stdout, *rounds, *window, *callers); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// compare measures all clients, and prints a table.
func compare(ctx context.Context, out io.Writer, rounds int, window time.Duration, callers int) error {
	server, err := startRedis(ctx)
	if err != nil {
		return err
	}
	defer server.stop()
	results := make([][]figures, len(clients))
	for round := range rounds {
		for i := range clients {
			// Each round begins with another one: what follows a certain client has no
			// advantage and no disadvantage in all of them.
			i = (i + round) % len(clients)
			f, err := measure(ctx, server, clients[i], wire.AcquireRelease.Text, window, callers)
			if err != nil {
				return fmt.Errorf("%s: %w", clients[i].name, err)
			}
			results[i] = append(results[i], f)
		}
	}
	print(out, server.version, rounds, window, callers, results)
	return nil
}

// figures are what one measurement gave.
type figures struct {
	rate      float64 // operations a second
	clientCPU float64 // µs an operation
	redisCPU  float64 // µs an operation
	allocs    float64 // an operation
	batch     float64 // operations a script
}

// measure runs one client, on an empty Redis.
func measure(ctx context.Context, server *server, c client, text string, window time.Duration, callers int) (f figures, err error) {
	if err := server.admin.FlushAll(ctx).Err(); err != nil {
		return f, err
	}
	locks, err := c.open(ctx, server, text)
	if err != nil {
		return f, err
	}
	defer locks.close()
	load := newLoad(locks, callers)
	load.start()
	defer func() { err = errors.Join(err, load.stop()) }()
	if err := sleep(ctx, window/4); err != nil {
		return f, err
	}
	before, err := server.read(ctx, load)
	if err != nil {
		return f, err
	}
	if err := sleep(ctx, window); err != nil {
		return f, err
	}
	after, err := server.read(ctx, load)
	if err != nil {
		return f, err
	}
	ops := float64(after.ops - before.ops)
	if ops == 0 {
		return f, errors.New("no operation was carried out")
	}
	micros := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / ops }
	return figures{
		rate:      ops / after.at.Sub(before.at).Seconds(),
		clientCPU: micros(after.client - before.client),
		redisCPU:  micros(after.redis - before.redis),
		allocs:    float64(after.mallocs-before.mallocs) / ops,
		batch:     ops / float64(after.scripts-before.scripts),
	}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return errors.New("interrupted")
	}
}

// reading is what was used up until a moment.
type reading struct {
	at            time.Time
	ops           int64
	client, redis time.Duration // processor time
	mallocs       uint64
	scripts       int64 // that Redis ran
}

func (s *server) read(ctx context.Context, l *load) (r reading, err error) {
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	r.mallocs = mem.Mallocs
	if r.scripts, err = s.scripts(ctx); err != nil {
		return r, err
	}
	r.at, r.ops = time.Now(), l.ops.Load()
	if r.client, err = cpuOf(os.Getpid()); err != nil {
		return r, err
	}
	r.redis, err = cpuOf(s.cmd.Process.Pid)
	return r, err
}

// cpuOf is the processor time of a process.
func cpuOf(pid int) (time.Duration, error) {
	var t unix.Timespec
	// A process's clock has its pid in the upper bits, and CPUCLOCK_SCHED in the lower.
	if err := unix.ClockGettime(int32(^pid)<<3|2, &t); err != nil {
		return 0, fmt.Errorf("the processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// print prints medians, and the ratios to the first client in the same round.
func print(out io.Writer, version string, rounds int, window time.Duration, callers int, results [][]figures) {
	fmt.Fprintf(out, "%d callers, each with a lock of its own; redis-server %s over TCP on loopback; %d rounds of %v.\n", callers, version, rounds, window)
	fmt.Fprintf(out, "Medians; in brackets the ratio to the first line in the same round: median, least to greatest.\n\n")
	fmt.Fprintln(out, "| client | operations a second | client CPU an operation, µs | Redis CPU an operation, µs | allocations an operation | operations a script |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|")
	for i, c := range clients {
		cell := func(format string, of func(figures) float64) string {
			values, ratios := make([]float64, rounds), make([]float64, rounds)
			for r := range rounds {
				values[r] = of(results[i][r])
				ratios[r] = values[r] / of(results[0][r])
			}
			slices.Sort(values)
			slices.Sort(ratios)
			text := fmt.Sprintf(format, values[rounds/2])
			if i > 0 {
				text += fmt.Sprintf(" (%.2f, %.2f–%.2f)", ratios[rounds/2], ratios[0], ratios[rounds-1])
			}
			return text
		}
		median := func(of func(figures) float64) float64 {
			values := make([]float64, rounds)
			for r := range rounds {
				values[r] = of(results[i][r])
			}
			slices.Sort(values)
			return values[rounds/2]
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %.1f | %.1f |\n", c.name,
			cell("%.0f", func(f figures) float64 { return f.rate }),
			cell("%.2f", func(f figures) float64 { return f.clientCPU }),
			cell("%.2f", func(f figures) float64 { return f.redisCPU }),
			median(func(f figures) float64 { return f.allocs }),
			median(func(f figures) float64 { return f.batch }))
	}
}

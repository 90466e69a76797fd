package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A reading is what was used up until a moment: two make a difference.
type reading struct {
	at       int64 // CLOCK_MONOTONIC, ns
	workers  time.Duration
	servers  time.Duration // daemons, and what is in their place
	store    time.Duration // redis-server, or etcd if that is what is locked in
	proxies  time.Duration
	commands float64 // executed by Redis, those of scripts included
	scripts  float64
	renewals float64 // calls of EXPIRE and its kin
	bytes    float64 // in and out
	answer   float64 // bytes of Redis telling this, and of being asked again
	conns    float64 // connections but the conductor's own
}

// read takes a reading. At the end of a window the clocks are read before Redis
// is asked, and at the beginning after it, so that the question is in neither.
func (st *stage) read(ctx context.Context, f fleet, end bool) (r reading, err error) {
	if !end {
		if err := st.readRedis(ctx, &r); err != nil {
			return r, err
		}
		// The next reading counts this question, and the bytes of this answer.
		r.commands++
		r.bytes += r.answer
	}
	r.at = monotonic()
	store := st.redis
	if st.etcd != nil {
		store = st.etcd
	}
	for _, of := range []struct {
		processes []*process
		sum       *time.Duration
	}{
		{f.processes(), &r.workers}, {st.servers, &r.servers}, {[]*process{store}, &r.store}, {st.proxies, &r.proxies},
	} {
		for _, p := range of.processes {
			t, err := p.cpu()
			if err != nil {
				return r, err
			}
			*of.sum += t
		}
	}
	if end {
		err = st.readRedis(ctx, &r)
	}
	return r, err
}

func (st *stage) readRedis(ctx context.Context, r *reading) error {
	info, err := st.client.Info(ctx, "everything").Result()
	if err != nil {
		return fmt.Errorf("redis-server: %w: %s", err, st.redis.log.last())
	}
	r.answer = float64(len("$12345\r\n") + len(info) + len("\r\n*2\r\n$4\r\ninfo\r\n$10\r\neverything\r\n"))
	for line := range strings.Lines(info) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if command, ok := strings.CutPrefix(key, "cmdstat_"); ok {
			calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
			n, err := strconv.ParseFloat(calls, 64)
			if err != nil {
				return fmt.Errorf("INFO of redis-server: %q: %w", line, err)
			}
			switch command {
			case "eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro":
				r.scripts += n
			case "expire", "pexpire", "expireat", "pexpireat":
				r.renewals += n
			}
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // not one of the numbers below
		}
		switch key {
		case "total_commands_processed":
			r.commands += n
		case "total_net_input_bytes", "total_net_output_bytes":
			r.bytes += n
		case "connected_clients":
			r.conns = n - 1
		}
	}
	return nil
}

// used are the figures of everything that was used up between two readings, in
// which so many pairs were made.
func used(from, to reading, pairs float64, c contender) Figures {
	elapsed := float64(to.at - from.at) // ns
	workers, servers := float64(to.workers-from.workers), float64(to.servers-from.servers)
	store := float64(to.store - from.store)
	f := Figures{
		ClientCPU: (workers + servers) / elapsed,
		ServerCPU: store / elapsed,
		ProxyCPU:  float64(to.proxies-from.proxies) / elapsed,
	}
	if !c.etcd {
		f[Connections] = to.conns
	}
	if pairs == 0 {
		return f
	}
	f[WorkerCPUPerPairUS] = workers / pairs / 1e3
	f[DaemonCPUPerPairUS] = servers / pairs / 1e3
	f[ClientCPUPerPairUS] = (workers + servers) / pairs / 1e3
	f[ServerCPUPerPairUS] = store / pairs / 1e3
	if !c.etcd {
		f[CommandsPerPair] = (to.commands - from.commands) / pairs
		f[ScriptsPerPair] = (to.scripts - from.scripts) / pairs
		f[BytesPerPair] = (to.bytes - from.bytes) / pairs
	}
	return f
}

// size adds what the client host has in memory.
func (st *stage) size(f fleet, into Figures) error {
	for _, p := range f.processes() {
		rss, threads, err := p.memory()
		if err != nil {
			return err
		}
		into[ClientRSSMB] += rss / (1 << 20)
		into[ClientThreads] += threads
	}
	for _, p := range st.servers {
		rss, threads, err := p.memory()
		if err != nil {
			return err
		}
		into[DaemonRSSMB] += rss / (1 << 20)
		into[ClientRSSMB] += rss / (1 << 20)
		into[ClientThreads] += threads
	}
	return nil
}

package store

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/sidecar/redisop"
	"github.com/locksidecar/locksidecar/sidecar/store/link"
	"github.com/locksidecar/locksidecar/sidecar/store/wire"
)

// What each command of a sidecar costs Redis: CPU time of the whole process, system calls
// included, over TCP. The scale study (internal/sim, fleet.go) counts with these figures,
// and docs/scaling.md quotes them.
//
// A script comes either alone, each on the connection of another host, or in a
// pipeline of 64 on one connection.

// host speaks to Redis as a sidecar does, in bytes made beforehand, so that the
// client needs little of the machine.
type host struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
	enc  wire.Encoder
	now  int64                    // of what is encoded, ns
	slot func(name string) uint16 // of a Cluster; nil: Redis is none
}

func dialHost(t testing.TB, s *server, uuid string) *host {
	conn, err := net.Dial("tcp", s.tcp())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	h := &host{t: t, conn: conn, in: bufio.NewReaderSize(conn, 1<<16)}
	h.enc.Prefix, h.enc.Floor = uuid+":", 1
	return h
}

// dialMaster is dialHost at a master of a Cluster.
func dialMaster(t testing.TB, s *server, uuid string) *host {
	h := dialHost(t, s, uuid)
	h.enc.Declares, h.enc.IsSharded, h.slot = true, true, h.enc.Keys.SlotOf
	return h
}

// bytes is what the store writes for ops, and how many replies that has.
func (h *host) bytes(ops ...redisop.Op) (text []byte, replies int) {
	wire.SortForBatching(h.now, ops, h.slot)
	for len(ops) > 0 {
		script, n := wire.BatchPrefix(ops, h.slot)
		text = h.enc.AppendRun(text, wire.Run{Script: script}, h.now, 0, ops[:n])
		ops = ops[n:]
		replies++
	}
	return text, replies
}

func (h *host) write(text []byte) {
	if _, err := h.conn.Write(text); err != nil {
		h.t.Fatal(err)
	}
}

// reply reads one reply and returns its bytes.
func (h *host) reply() (n int) {
	line, err := h.in.ReadSlice('\n')
	if err != nil {
		h.t.Fatal(err)
	}
	n = len(line)
	size, _ := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	switch line[0] {
	case '-':
		h.t.Fatalf("Redis says %s", line)
	case '$':
		if size >= 0 {
			if _, err := h.in.Discard(size + 2); err != nil {
				h.t.Fatal(err)
			}
			n += size + 2
		}
	case '*':
		for range size {
			n += h.reply()
		}
	}
	return n
}

func (h *host) ask(ops ...redisop.Op) {
	text, replies := h.bytes(ops...)
	h.write(text)
	for range replies {
		h.reply()
	}
}

// cpu is the CPU time that Redis has used, in µs.
func (s *server) cpu(c *redis.Client) float64 {
	fields := wire.InfoFields(c.Info(ctx, "cpu").Val())
	user, _ := strconv.ParseFloat(fields["used_cpu_user"], 64)
	system, _ := strconv.ParseFloat(fields["used_cpu_sys"], 64)
	return (user + system) * 1e6
}

func BenchmarkRedisCost(b *testing.B) { runCosts(b, startRedis, dialHost, lockOfHost) }

// BenchmarkRedisClusterCost is BenchmarkRedisCost at the only master of a Cluster. Each lock has a slot
// of its own, and so a script, but for the locks of the shapes that say so.
func BenchmarkRedisClusterCost(b *testing.B) {
	start := func(t testing.TB, _ ...string) *server { return startOnlyMaster(t.(*testing.B)) }
	runCosts(b, start, dialMaster, lockOfHost)
	b.Run("one-slot-a-host", func(b *testing.B) {
		runCosts(b, start, dialMaster, func(h, i int) string { return fmt.Sprintf("lock:{%02d}:%04d", h, i) })
	})
}

// lockOfHost is the name of a lock of a host.
func lockOfHost(h, i int) string { return fmt.Sprintf("lock:%02d:%04d", h, i) }

// runCosts measures what each kind of batch costs a server.
func runCosts(b *testing.B, start func(t testing.TB, args ...string) *server, dial func(t testing.TB, s *server, uuid string) *host, lock func(h, i int) string) {
	const (
		hosts    = 64
		pipeline = 64
	)
	many := func(n int, op func(i int) redisop.Op) (ops []redisop.Op) {
		for i := range n {
			ops = append(ops, op(i))
		}
		return ops
	}
	type shape struct {
		name  string
		units int // of work in ops, for the figure per unit
		ops   func(h int) []redisop.Op
		after func(h int) []redisop.Op // follows in the same measurement
		setup func(h int) []redisop.Op
	}
	others := func(int) []redisop.Op { return []redisop.Op{takeOp("contended", 1)} }
	renewals := func(n int) shape {
		return shape{
			name: fmt.Sprintf("renew-%d-keys", n), units: n,
			setup: func(h int) []redisop.Op {
				return many(n, func(i int) redisop.Op { return takeOp(lock(h, i), 1) })
			},
			ops: func(h int) []redisop.Op {
				return many(n, func(i int) redisop.Op { return renewOp(lock(h, i), 1) })
			},
		}
	}
	takes := func(n int, reserve uint16) shape {
		s := shape{
			name: "take-and-drop", units: n,
			ops: func(h int) []redisop.Op {
				return many(n, func(i int) redisop.Op {
					op := takeOp(lock(h, i), 1)
					op.Reserve = reserve
					return op
				})
			},
			after: func(h int) []redisop.Op {
				return many(n, func(i int) redisop.Op { return dropOp(lock(h, i), 1) })
			},
		}
		if n > 1 {
			s.name += "-pipelined"
		}
		return s
	}
	assert := takes(pipeline, 0)
	assert.name = "assert-and-drop-pipelined" // takes that draw no token, as after a loss of data
	assertAlone := takes(1, 0)
	assertAlone.name = "assert-and-drop"
	for _, sh := range []shape{
		{name: "failing-take", units: 1, ops: others, setup: others},
		{name: "failing-take-pipelined", units: pipeline, setup: others, ops: func(int) []redisop.Op {
			return many(pipeline, func(int) redisop.Op { return takeOp("contended", 1) })
		}},
		{name: "drop-of-nothing", units: 1, ops: func(h int) []redisop.Op { return []redisop.Op{dropOp(lock(h, 0), 1)} }},
		takes(1, 1), takes(pipeline, 1), assertAlone, assert,
		renewals(1), renewals(2), renewals(4), renewals(16), renewals(64), renewals(128),
		func() shape { s := renewals(1024); s.name += "-pipelined"; return s }(),
	} {
		b.Run(sh.name, func(b *testing.B) {
			s := start(b)
			admin := s.admin()
			for _, script := range wire.Scripts {
				admin.ScriptLoad(ctx, script.Text)
			}
			crowd := make([]*host, hosts)
			first, then := make([][]byte, hosts), make([][]byte, hosts)
			var replies, more int
			for i := range crowd {
				h := dial(b, s, fmt.Sprintf("%08d-2222-3333-4444-555555555555", i))
				crowd[i] = h
				if sh.setup != nil {
					h.ask(sh.setup(i)...)
				}
				first[i], replies = h.bytes(sh.ops(i)...)
				if sh.after != nil {
					then[i], more = h.bytes(sh.after(i)...)
				}
			}
			answered := 0
			round := func(n int, texts [][]byte, replies int) {
				for i, h := range crowd[:n] {
					h.write(texts[i])
				}
				for _, h := range crowd[:n] {
					for range replies {
						answered += h.reply()
					}
				}
			}
			b.ResetTimer()
			before := s.cpu(admin)
			for left := b.N; left > 0; {
				n := min(left, hosts)
				left -= n
				round(n, first, replies)
				if sh.after != nil {
					round(n, then, more)
				}
			}
			used := s.cpu(admin) - before
			b.StopTimer()
			units := float64(b.N) * float64(sh.units)
			b.ReportMetric(used/units, "redis-µs/unit")
			b.ReportMetric(float64(len(first[0])+len(then[0]))/float64(sh.units), "B-out/unit")
			b.ReportMetric(float64(answered)/units, "B-in/unit")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkRedisFanOut measures what one release costs Redis with so many hosts
// that listen.
func BenchmarkRedisFanOut(b *testing.B) {
	for _, listeners := range []int{0, 10, 100, 1000} {
		b.Run(fmt.Sprint("listeners=", listeners), func(b *testing.B) {
			s := startRedis(b)
			admin := s.admin()
			for _, script := range wire.Scripts {
				admin.ScriptLoad(ctx, script.Text)
			}
			crowd := make([]*host, listeners)
			for i := range crowd {
				crowd[i] = dialHost(b, s, ourUUID)
				crowd[i].write(fmt.Appendf(nil, "*2\r\n$9\r\nSUBSCRIBE\r\n$%d\r\n%s\r\n", len(channelOf("contended")), channelOf("contended")))
				crowd[i].reply()
			}
			holder := dialHost(b, s, ourUUID)
			drop, _ := holder.bytes(dropOp("contended", 1))
			b.ResetTimer()
			before := s.cpu(admin)
			for range b.N {
				holder.write(drop)
				holder.reply()
				for _, h := range crowd {
					h.reply()
				}
			}
			used := s.cpu(admin) - before
			b.StopTimer()
			b.ReportMetric(used/float64(b.N), "redis-µs/release")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkRedisQueue measures what it costs Redis that a lock passes from host to host by its
// queue: the Drop and the Take after it, one script, and the message. So many hosts want each
// of the locks, and all locks pass on in each round.
func BenchmarkRedisQueue(b *testing.B) {
	for _, shape := range []struct{ hosts, locks int }{{2, 1}, {2, 32}, {40, 16}, {1000, 1}} {
		b.Run(fmt.Sprintf("hosts=%d,locks=%d", shape.hosts, shape.locks), func(b *testing.B) {
			s := startRedis(b)
			admin := s.admin()
			for _, script := range wire.Scripts {
				admin.ScriptLoad(ctx, script.Text)
			}
			type queued struct {
				*host
				messages *host
				num      uint64
			}
			crowd := make([]queued, shape.hosts*shape.locks) // those of a lock in the order of its queue
			lock := func(i int) string { return fmt.Sprintf("lock:%04d", i/shape.hosts) }
			for i := range crowd {
				uuid := fmt.Sprintf("%08d-2222-3333-4444-555555555555", i)
				messages := dialHost(b, s, uuid)
				channel := sidecarChannel(uuid)
				messages.write(fmt.Appendf(nil, "*2\r\n$9\r\nSUBSCRIBE\r\n$%d\r\n%s\r\n", len(channel), channel))
				messages.reply()
				crowd[i] = queued{dialHost(b, s, uuid), messages, 1}
				if i%shape.hosts == 0 {
					crowd[i].ask(takeOp(lock(i), 1))
					continue
				}
				crowd[i].ask(waitOp(lock(i), 1, 0))
				if i%shape.hosts < 3 { // the first two recall the lock
					crowd[i-i%shape.hosts].messages.reply()
				}
			}
			round := func(n, turn int) {
				for k := range n {
					i := k*shape.hosts + turn
					c := &crowd[i]
					take := waitOp(lock(i), c.num+1, 0)
					take.Flags |= redisop.AfterPendingDrop
					text, _ := c.bytes(passOp(lock(i), c.num, 10), take)
					c.write(text)
					c.num++
				}
				for k := range n {
					i := k*shape.hosts + turn
					crowd[i].reply()
					crowd[k*shape.hosts+(turn+1)%shape.hosts].messages.reply()
				}
			}
			b.ResetTimer()
			before := s.cpu(admin)
			for turn, left := 0, b.N; left > 0; turn++ {
				// All locks pass on, so that their queues stay alike.
				round(shape.locks, turn%shape.hosts)
				left -= shape.locks
			}
			rounds := (b.N + shape.locks - 1) / shape.locks
			b.ReportMetric((s.cpu(admin)-before)/float64(rounds*shape.locks), "redis-µs/transfer")
			b.ReportMetric(0, "ns/op")
			b.StopTimer()
			if n := admin.ZCard(ctx, "locksidecar_queue:{lock:0000}").Val(); n != int64(shape.hosts-1) {
				b.Fatalf("%d hosts wait, want %d", n, shape.hosts-1)
			}
		})
	}
}

// BenchmarkRedisConnect measures what a sidecar that connects costs Redis.
func BenchmarkRedisConnect(b *testing.B) {
	s := startRedis(b)
	admin := s.admin()
	trial := link.NewTrial(must(link.Parse(link.Settings{URL: "redis://" + s.tcp(), Timeout: patience})))
	b.Cleanup(trial.Close)
	b.ResetTimer()
	before := s.cpu(admin)
	for range b.N {
		if _, _, _, err := trial.Try(ctx); err != nil {
			b.Fatal(err)
		}
	}
	used := s.cpu(admin) - before
	b.ReportMetric(used/float64(b.N), "redis-µs/connection")
}

// BenchmarkRedisTopology measures what it costs a node of a Cluster that a sidecar asks which master has
// which slot, and that one connects. The Cluster has 30 masters, each with a replica. The others do not
// run, and that the node tries to connect them is in the figures: some 13 µs in a millisecond.
func BenchmarkRedisTopology(b *testing.B) {
	const masters = 30
	nodes := ""
	for i := range 2 * masters {
		flags, slots := "master", fmt.Sprintf(" %d-%d", i*redisop.Slots/masters, (i+1)*redisop.Slots/masters-1)
		of := "-"
		switch {
		case i == 0:
			flags = "myself,master"
		case i >= masters:
			flags, slots, of = "slave", "", fmt.Sprintf("%040d", i-masters+1)
		}
		nodes += fmt.Sprintf("%040d 127.0.0.1:%d@%d %s %s 0 0 %d connected%s\n", i+1, 1+i, 101+i, flags, of, i+1, slots)
	}
	nodes += "vars currentEpoch 30 lastVoteEpoch 0\n"
	file := filepath.Join(b.TempDir(), "nodes.conf")
	if err := os.WriteFile(file, []byte(nodes), 0o600); err != nil {
		b.Fatal(err)
	}
	s := startRedis(b, "--cluster-enabled", "yes", "--cluster-config-file", file, "--cluster-require-full-coverage", "no")
	admin := s.admin()
	cl := newMasters(Config{}, must(link.Parse(link.Settings{URL: "redis+cluster://" + s.tcp(), Timeout: patience})), nil, nil)
	b.Cleanup(cl.stop)
	trial := link.NewTrial(cl.at(s.tcp()))
	b.Cleanup(trial.Close)
	for _, shape := range []struct {
		name string
		do   func() error
	}{
		{"ask", func() error {
			t, err := cl.ask(s.tcp())
			if err == nil && (len(t.Masters) != masters || len(t.Nodes) != 2*masters) {
				b.Fatalf("%d masters of %d nodes", len(t.Masters), len(t.Nodes))
			}
			return err
		}},
		{"ask-on-a-connection", func() error { return admin.ClusterNodes(ctx).Err() }},
		{"connect", func() error {
			_, _, _, err := trial.Try(ctx)
			return err
		}},
	} {
		b.Run(shape.name, func(b *testing.B) {
			before := s.cpu(admin)
			for range b.N {
				if err := shape.do(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((s.cpu(admin)-before)/float64(b.N), "redis-µs/op")
		})
	}
}

// BenchmarkRedisMemory measures what a lock takes in the memory of Redis: while it
// is held, and for a week after its last use. It measures once, whatever b.N.
func BenchmarkRedisMemory(b *testing.B) {
	const locks = 100_000
	s := startRedis(b)
	r := connected(b, s.url())
	memory := func() float64 {
		n, _ := strconv.ParseFloat(wire.InfoFields(s.admin().Info(ctx, "memory").Val())["used_memory"], 64)
		return n
	}
	ops := make([]redisop.Op, locks)
	all := func(op func(name string, num uint64) redisop.Op) {
		for i := range ops {
			ops[i] = op(fmt.Sprintf("invoice:%06d", i), uint64(i+1))
		}
		r.Do(ops)
		for got := 0; got < len(ops); {
			got += len(<-r.results)
		}
	}
	before := memory()
	all(takeOp)
	b.ReportMetric((memory()-before)/locks, "redis-B/held-lock")
	all(dropOp)
	b.ReportMetric((memory()-before)/locks, "redis-B/used-lock")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRedisPermits measures what a permit that is taken and given back costs Redis, and a lock of kind lock in the
// same run: alone, and beside nine hosts that have one each of ten. In flight are so many semaphores.
func BenchmarkRedisPermits(b *testing.B) {
	for _, beside := range []int{0, 9} {
		for _, inFlight := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("beside=%d/inflight=%d", beside, inFlight), func(b *testing.B) {
				s := startRedis(b)
				admin := s.admin()
				for _, script := range wire.Scripts {
					admin.ScriptLoad(ctx, script.Text)
				}
				many := func(prefix string, op func(name string) redisop.Op) (ops []redisop.Op) {
					for i := range inFlight {
						ops = append(ops, op(fmt.Sprintf("%s:%02d", prefix, i)))
					}
					return ops
				}
				acquire := func(name string) redisop.Op { return permitsOp(name, 1, 0, 1) }
				for i := range beside {
					dialHost(b, s, fmt.Sprintf("%08d-2222-8333-8444-555555555555", i)).ask(many("permits", acquire)...)
				}
				h := dialHost(b, s, ourUUID)
				measure := func(take, drop []redisop.Op) float64 {
					first, replies := h.bytes(take...)
					then, more := h.bytes(drop...)
					before := s.cpu(admin)
					for range b.N {
						h.write(first)
						for range replies {
							h.reply()
						}
						h.write(then)
						for range more {
							h.reply()
						}
					}
					return (s.cpu(admin) - before) / float64(b.N*inFlight)
				}
				locks := measure(many("lock", func(name string) redisop.Op { return takeOp(name, 1) }), many("lock", func(name string) redisop.Op { return dropOp(name, 1) }))
				permits := measure(many("permits", acquire), many("permits", func(name string) redisop.Op { return permitsDrop(name, 1) }))
				b.ReportMetric(locks, "lock-redis-µs/pair")
				b.ReportMetric(permits, "redis-µs/pair")
				b.ReportMetric(permits/locks, "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkRedisReadWrite measures what a pair of a read/write lock costs Redis: CPU of its main thread, also in relation to a pair of
// kind lock and to what Redisson's read pair executes, in the same run. So many other sidecars share each lock, or as many
// readers of Redisson.
//
//	go test ./sidecar/store -run '^$' -bench RedisReadWrite
func BenchmarkRedisReadWrite(b *testing.B) {
	for _, beside := range []int{0, 8, 100, 1000} {
		b.Run(fmt.Sprint("beside=", beside), func(b *testing.B) {
			s := startRedis(b)
			admin := s.admin()
			const first = 1000 // token, above the floor
			admin.Set(ctx, counterOf("read"), first, 0)
			scripts := []string{redissonRead, redissonReadUnlock}
			for _, script := range wire.Scripts {
				scripts = append(scripts, script.Text)
			}
			for _, text := range scripts {
				admin.ScriptLoad(ctx, text)
			}
			for i := range beside {
				dialHost(b, s, fmt.Sprintf("%08d-2222-8333-8444-555555555555", i)).ask(rwOp("read", 1, redisop.NoMode, redisop.SharedMode))
				must(admin.Eval(ctx, redissonRead, []string{"redisson", fmt.Sprintf("{redisson}:c%d:1:rwlock_timeout", i)}, 3_600_000, fmt.Sprintf("c%d:1", i)).Result())
			}
			h := dialHost(b, s, ourUUID)
			measure := func(first, then []byte) float64 {
				before := s.cpu(admin)
				for range b.N {
					h.write(first)
					h.reply()
					h.write(then)
					h.reply()
				}
				return (s.cpu(admin) - before) / float64(b.N)
			}
			bytes := func(op redisop.Op) []byte {
				text, _ := h.bytes(op)
				return text
			}
			program := func(script string, keys, args []string) []byte {
				words := append([]string{"EVALSHA", wire.NewScript(script).SHA, strconv.Itoa(len(keys))}, append(keys, args...)...)
				text := wire.AppendArray(nil, len(words))
				for _, word := range words {
					text = wire.AppendString(text, word)
				}
				return text
			}
			num := uint64(1)
			pair := func(name string, mode redisop.Mode) float64 {
				return measure(bytes(rwOp(name, num, redisop.NoMode, mode)), bytes(rwDrop(name, num)))
			}
			lock := measure(bytes(takeOp("lock", 1)), bytes(dropOp("lock", 1)))
			read, write := pair("read", redisop.SharedMode), pair("write", redisop.ExclusiveMode)
			if granted := must(admin.Get(ctx, counterOf("read")).Int()) - first; granted != b.N+beside {
				b.Fatalf("%d shares were granted, want %d", granted, b.N+beside)
			}
			redisson := measure(
				program(redissonRead, []string{"redisson", "{redisson}:c:1:rwlock_timeout"}, []string{"30000", "c:1"}),
				program(redissonReadUnlock, []string{"redisson", "redisson_rwlock:{redisson}", "{redisson}:c:1:rwlock_timeout", "{redisson}", "redisson_unlock_latch:{redisson}:1"}, []string{"0", "c:1", "PUBLISH", "3000"}),
			)
			b.ReportMetric(lock, "lock-redis-µs/pair")
			b.ReportMetric(read, "read-redis-µs/pair")
			b.ReportMetric(write, "write-redis-µs/pair")
			b.ReportMetric(redisson, "redisson-redis-µs/pair")
			b.ReportMetric(read/redisson, "read/redisson")
			b.ReportMetric(write/lock, "write/lock")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// The commands of a read lock of Redisson 4.7.0 and of its unlock, as MONITOR shows them. It deletes the latch with a
// command of its own.
const (
	redissonRead = `local mode = redis.call('hget', KEYS[1], 'mode')
if mode == 'write' then return redis.call('pttl', KEYS[1]) end
if not mode then redis.call('hset', KEYS[1], 'mode', 'read') end
local entry = KEYS[2] .. ':' .. redis.call('hincrby', KEYS[1], ARGV[2], 1)
redis.call('set', entry, 1)
redis.call('pexpire', entry, ARGV[1])
local left = mode and redis.call('pttl', KEYS[1]) or 0
redis.call('pexpire', KEYS[1], math.max(left, ARGV[1]))
return 1`
	redissonReadUnlock = `local latch = redis.call('get', KEYS[5])
if latch ~= false then return tonumber(latch) end
redis.call('hget', KEYS[1], 'mode')
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end
local entries = redis.call('hincrby', KEYS[1], ARGV[2], -1)
if entries == 0 then redis.call('hdel', KEYS[1], ARGV[2]) end
redis.call('del', KEYS[3] .. ':' .. entries + 1)
if redis.call('hlen', KEYS[1]) > 1 then
  local longest = -3
  for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
    local count = tonumber(redis.call('hget', KEYS[1], field))
    if count then
      for i = count, 1, -1 do longest = math.max(longest, redis.call('pttl', KEYS[4] .. ':' .. field .. ':rwlock_timeout:' .. i)) end
    end
  end
  if longest > 0 then
    redis.call('pexpire', KEYS[1], longest)
    redis.call('set', KEYS[5], 0, 'px', 3000)
    redis.call('del', KEYS[5])
    return 0
  end
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
redis.call('set', KEYS[5], 1, 'px', 3000)
redis.call('del', KEYS[5])
return 1`
)

// BenchmarkRedisPermitsQueue measures what it costs Redis that permits pass from host to host by their queue: what the holder
// gives back, its next place, and the message. So many hosts want one of three permits.
func BenchmarkRedisPermitsQueue(b *testing.B) {
	const of = 3
	for _, hosts := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint("hosts=", hosts), func(b *testing.B) {
			s := startRedis(b)
			admin := s.admin()
			for _, script := range wire.Scripts {
				admin.ScriptLoad(ctx, script.Text)
			}
			type queued struct {
				*host
				messages *host
				num      uint64
			}
			crowd := make([]queued, hosts) // in the order of the queue
			take := func(num uint64) redisop.Op {
				op := permitsOp("permits", num, 0, 1)
				op.Capacity = of
				op.Set(redisop.Enqueue, true)
				return op
			}
			for i := range crowd {
				uuid := fmt.Sprintf("%08d-2222-3333-4444-555555555555", i)
				messages := dialHost(b, s, uuid)
				channel := sidecarChannel(uuid)
				messages.write(fmt.Appendf(nil, "*2\r\n$9\r\nSUBSCRIBE\r\n$%d\r\n%s\r\n", len(channel), channel))
				messages.reply()
				crowd[i] = queued{dialHost(b, s, uuid), messages, 1}
				crowd[i].ask(take(1))
				if i == of {
					for h := range of { // the first that waits calls idle permits back
						crowd[h].messages.reply()
					}
				}
			}
			b.ResetTimer()
			before := s.cpu(admin)
			for turn := range b.N {
				c := &crowd[turn%hosts]
				c.num++
				c.ask(permitsDrop("permits", c.num))
				crowd[(turn+of)%hosts].messages.reply()
				c.num++
				c.ask(take(c.num))
			}
			b.ReportMetric((s.cpu(admin)-before)/float64(b.N), "redis-µs/grant")
			b.ReportMetric(0, "ns/op")
			b.StopTimer()
			if n := admin.ZCard(ctx, "locksidecar_wanted:{permits}").Val(); n != int64(hosts-of) {
				b.Fatalf("%d hosts wait, want %d", n, hosts-of)
			}
		})
	}
}

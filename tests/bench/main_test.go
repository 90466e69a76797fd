package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeVar makes the test's binary a worker that locks nothing and says what it is
// told to say.
const fakeVar = "BENCH_FAKE"

func TestMain(m *testing.M) {
	switch told := os.Getenv(fakeVar); {
	case len(os.Args) == 4 && os.Args[1] == proxyCommand:
		if err := proxy(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case told != "":
		fakeWorker(told)
	default:
		os.Exit(m.Run())
	}
}

// fakeWorker grants itself the lock in slots of its own, ten a second and process,
// which stay clear of those of others unless it is told to be wrong.
func fakeWorker(told string) {
	in := bufio.NewReader(os.Stdin)
	line, _ := in.ReadString('\n')
	var s spec
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		fmt.Printf(`{"event":"error","msg":%q}`+"\n", err.Error())
		os.Exit(1)
	}
	switch told {
	case "refuses":
		fmt.Println(`{"event":"error","msg":"I do not like it here"}`)
		os.Exit(1)
	case "dies":
		fmt.Fprintln(os.Stderr, "alas")
		os.Exit(3)
	}
	fmt.Println(`{"event":"ready"}`)
	if line, _ := in.ReadString('\n'); line != "go\n" {
		os.Exit(4)
	}
	began := monotonic()
	if s.Mode == hold || s.Mode == wait {
		// The kernel's own lock: free when its holder is dead.
		f, err := os.Create(filepath.Join(filepath.Dir(s.Socket), "lock"))
		if err == nil {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(6)
		}
		told := map[mode]string{hold: "held", wait: "granted"}[s.Mode]
		fmt.Printf(`{"event":%q,"count":%d,"at":%d}`+"\n", told, s.Count, monotonic())
	}
	_, _ = in.ReadString('\n')
	if s.Mode == pairs {
		process, _ := strconv.ParseInt(s.Records[strings.LastIndex(s.Records, "records")+len("records"):], 10, 64)
		const slot, long = 10e6, 2e6
		var raw []byte
		// From before it was told to go: how soon that came is no matter then.
		for i := began/slot - 100; i < monotonic()/slot; i++ {
			asked := i*slot + process*long
			length := int64(long / 2)
			if told == "is wrong" {
				length = 2 * long
			}
			for _, t := range []int64{asked, asked + 1, asked + length, asked + length + 1} {
				raw = binary.LittleEndian.AppendUint64(raw, uint64(t))
			}
		}
		if err := os.WriteFile(s.Records, raw, 0o600); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(5)
		}
	}
	fmt.Println(`{"event":"done","errors":2,"first_error":"twice it did not work"}`)
}

// fakeBench is a benchmark whose Go workers are fakes.
func fakeBench(t *testing.T, told string) *bench {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LOCKSIDECAR_REQUIRE_REDIS") != "" {
			t.Fatal("redis-server is not installed: apt-get install redis-server")
		}
		t.Skip("redis-server is not installed: apt-get install redis-server")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(fakeVar, told)
	return &bench{
		window: 300 * time.Millisecond, rounds: 2, rtt: 2 * time.Millisecond, smoke: true,
		programs: programs{self: self, goWorker: self}, progress: io.Discard,
	}
}

var fake = contender{name: "fake", role: Peer, language: inGo}

func TestARunIsMeasuredFromItsRecords(t *testing.T) {
	b := fakeBench(t, "works")
	s := Scenario{Name: "x", Kind: Contended, Hosts: 2, Processes: 4, Workers: 1, LeaseMS: 1000, WAN: true}
	r := b.run(t.Context(), s, fake, 3)[0]
	if r.Error != "" || r.Round != 3 || r.RTTMS < 2 {
		t.Fatalf("%+v", r)
	}
	// A slot is granted to each of four processes, two on each host, in turn.
	f := r.Figures
	if changes, pairs := f[OwnerChangesPerSecond], f[PairsPerSecond]; pairs < 300 || changes < 0.95*pairs || changes > pairs {
		t.Errorf("%v changes in %v pairs a second", changes, pairs)
	}
	if hosts, pairs := f[HostChangesPerSecond], f[PairsPerSecond]; hosts < 0.4*pairs || hosts > 0.6*pairs {
		t.Errorf("%v changes of host in %v pairs a second", hosts, pairs)
	}
	expect(t, f, Figures{Violations: 0, Errors: 8, Connections: 0, CommandsPerPair: 0})
	if f[ClientRSSMB] <= 0 || f[ClientThreads] < 4 || f[BytesPerPair] > 1 || len(r.Waits) == 0 {
		t.Errorf("%+v", r)
	}
	if r.Note != "fake 0: twice it did not work" {
		t.Errorf("the note is %q", r.Note)
	}
}

func TestALockThatTwoHaveIsReported(t *testing.T) {
	b := fakeBench(t, "is wrong")
	s := Scenario{Name: "x", Kind: Contended, Hosts: 1, Processes: 2, Workers: 1, LeaseMS: 1000}
	r := b.run(t.Context(), s, fake, 1)[0]
	if r.Error != "" || r.Figures[Violations] == 0 {
		t.Fatalf("%+v", r)
	}
	for role, fails := range map[Role]bool{Ours: true, Sibling: true, Peer: false} {
		res := &Results{Scenarios: []ScenarioResult{{Scenario: s, Contenders: []ContenderResult{{Name: "fake", Role: role, Runs: []Run{r}}}}}}
		if err := res.complain(io.Discard); (err != nil) != fails {
			t.Errorf("%s: %v", role, err)
		}
	}
}

func TestAWorkerThatFailsSaysWhyInItsRun(t *testing.T) {
	s := Scenario{Name: "x", Kind: Uncontended, Hosts: 1, Processes: 2, Workers: 1, LeaseMS: 1000}
	for told, want := range map[string]string{"refuses": "I do not like it here", "dies": "alas"} {
		b := fakeBench(t, told)
		if r := b.run(t.Context(), s, fake, 1)[0]; !strings.Contains(r.Error, want) || r.Figures != nil {
			t.Errorf("%s: %+v", told, r)
		}
	}
}

func TestACrashIsTimedFromTheKill(t *testing.T) {
	b := fakeBench(t, "works")
	runs := b.run(t.Context(), Scenario{Name: "x", Kind: Crash, Hosts: 1, Processes: 2, LeaseMS: 1000}, fake, 1)
	if len(runs) != 1 || runs[0].Error != "" || runs[0].Figures[CrashToGrantMS] <= 0 {
		t.Errorf("%+v", runs)
	}
}

func TestNothingIsLeftOfARun(t *testing.T) {
	b := fakeBench(t, "works")
	ctx, cancel := context.WithCancel(t.Context())
	s := Scenario{Name: "x", Kind: Uncontended, Hosts: 1, Processes: 2, Workers: 1, LeaseMS: 1000, WAN: true}
	st, err := b.build(ctx, s, fake)
	if err != nil {
		st.close()
		t.Fatal(err)
	}
	f, err := b.muster(ctx, st, s, fake, []spec{s.pairsSpec(st, 0), s.pairsSpec(st, 1)})
	if err != nil {
		t.Error(err)
	}
	cancel()
	if err := f.lasts(ctx, time.Hour); err == nil {
		t.Error("an interrupt does not end a window")
	}
	f.kill()
	if err := st.close(); err != nil {
		t.Error(err)
	}
	for _, p := range append(f.processes(), st.redis, st.proxies[0]) {
		if err := syscall.Kill(p.pid(), 0); err != syscall.ESRCH {
			t.Errorf("%s is still there: %v", p.name, err)
		}
	}
	if _, err := os.Stat(st.dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", st.dir, err)
	}
}

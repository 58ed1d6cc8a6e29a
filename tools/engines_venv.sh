#!/bin/bash
# A separate environment with the engines' storage code that tests/t4_engines drives: SGLang,
# LMCache, NIXL, llama.cpp's server, safetensors. CPU builds only, all versions fixed; 3.3 GB, of
# which 1 GB is triton, which SGLang imports.
#
# usage: tools/engines_venv.sh [DIR]     (default: .venv-engines beside the checkout)
#
# TORCH_PIP_ARGS   passed on when torch is installed, e.g. --index-url of PyTorch's CPU builds
# PYTHON           the interpreter (3.11: the wheels are for it)
set -euo pipefail

readonly TORCH_VERSION=2.13.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${1:-$here/.venv-engines}
requirements=$here/tools/engines-requirements.txt
# Bump the last number when the steps below change.
stamp="$venv/.belugafs-stamp-$(sha256sum "$requirements" | cut -c1-12)-$TORCH_VERSION-1"

if [ -e "$stamp" ]; then
    exit 0
fi
echo "building $venv (torch $TORCH_VERSION and $(grep -c == "$requirements") packages; minutes, 3.3 GB)"
"${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --no-input)

# torch first and by exact version, so that no later requirement picks another build of it.
# shellcheck disable=SC2086  # several arguments are meant
"${pip[@]}" install -q ${TORCH_PIP_ARGS:-} "torch==$TORCH_VERSION"
# Without dependencies: SGLang and LMCache ask for CUDA packages that their file stores don't use.
"${pip[@]}" install -q --no-deps -r "$requirements"

"$venv/bin/python" -c "import torch; assert torch.__version__.split('+')[0] == '$TORCH_VERSION', torch.__version__"
touch "$stamp"
echo "$venv is ready"

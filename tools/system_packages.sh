#!/bin/bash
# Make sure that what the build and the mount need from the system is there.
#
# Looks for the things themselves, not for package names, so that a toolchain from elsewhere
# counts. Missing ones are installed with apt-get when we are root on a Debian or Ubuntu;
# otherwise the command to run is printed and the exit status is 1.
#
# PYTHON   the interpreter that the virtual environment is made from (default: python3)
set -euo pipefail

python=${PYTHON:-python3}
missing=()

need() { # need PACKAGE COMMAND...: the package is missing if the command fails
    local package=$1
    shift
    "$@" > /dev/null 2>&1 || missing+=("$package")
}
has_header() { echo "#include <$1>" | gcc -E -x c - -o /dev/null; }
has_python_headers() {
    test -f "$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h"
}

look() {
    missing=()
    need gcc gcc --version
    need libc6-dev has_header stdlib.h
    need make make --version
    need pkg-config pkg-config --version
    need python3 "$python" --version
    need python3-venv "$python" -c 'import ensurepip, venv'
    need python3-dev has_python_headers
    need libfuse3-dev pkg-config --exists fuse3
    need fuse3 which fusermount3
    need libxxhash-dev has_header xxhash.h
}

look
if [ ${#missing[@]} -gt 0 ]; then
    command="apt-get install -y --no-install-recommends ${missing[*]}"
    if [ "$(id -u)" -ne 0 ]; then
        echo "missing system packages; run as root, then try again:" >&2
        echo "    $command" >&2
        exit 1
    fi
    if ! which apt-get > /dev/null 2>&1; then
        echo "missing: ${missing[*]} (names of Debian packages; there is no apt-get here)" >&2
        exit 1
    fi
    echo "installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # Another apt may be running; and a package list can be old or absent.
    apt-get -qq -o DPkg::Lock::Timeout=300 update
    apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}" \
        > /dev/null
    look
    if [ ${#missing[@]} -gt 0 ]; then
        echo "still missing after installing: ${missing[*]}" >&2
        exit 1
    fi
fi

"$python" - <<'PY'
import sys

if sys.version_info < (3, 11):
    sys.exit(f"Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}; "
             "set PYTHON=/path/to/a/newer/python3")
PY

# SPDX-License-Identifier: Apache-2.0
# Helpers that the shell scripts of this repository share. Sourced, never run.

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# Prints the comment block at the top of the calling script, from its third line on.
usage_of() { sed -n '3,/^[^#]/{s/^# \{0,1\}//;t p;d;:p;p}' "$1"; }

# Prints the value of a flag that needs one. Arguments: the flag and all arguments after it.
flag_value() {
  [ $# -ge 2 ] || { printf '%s: %s needs a value\n' "$(basename "$0")" "$1" >&2; exit 2; }
  printf '%s' "$2"
}

unknown_flag() {
  printf "%s: unknown argument '%s'; see --help\n" "$(basename "$0")" "$1" >&2
  exit 2
}

# Prints a Python that can import the modules $1: Debian's, which has what install.sh installs, or
# else the first on PATH.
find_python() {
  local candidate
  for candidate in /usr/bin/python3 python3; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c "import ${1:-sys}" 2>/dev/null; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

# make_environment NAME REQUIREMENTS: makes build/NAME, an environment of its own for packages from PyPI.
make_environment() {
  local folder="build/$1" wanted="$2"
  cmp -s "$wanted" "$folder/requirements.txt" && return
  rm -rf "$folder"
  /usr/bin/python3 -m venv "$folder" &&
    "$folder/bin/python" -m pip install -q --disable-pip-version-check -r "$wanted" &&
    cp "$wanted" "$folder/requirements.txt" && return
  rm -rf "$folder"
  return 1
}

# Prints the number of parallel jobs: every core, but about 1.5 GiB of free memory each, at least 1.
build_jobs() {
  local cores memory_kib limit jobs
  cores="$(nproc)"
  memory_kib="$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)"
  limit="$(cat /sys/fs/cgroup/memory.max 2>/dev/null || true)"
  if [[ "$limit" =~ ^[0-9]+$ ]] && [ $((limit / 1024)) -lt "$memory_kib" ]; then
    memory_kib=$((limit / 1024))
  fi
  jobs=$((memory_kib / (1536 * 1024)))
  [ "$jobs" -ge 1 ] || jobs=1
  [ "$jobs" -le "$cores" ] || jobs="$cores"
  printf '%s' "$jobs"
}

# Prints the nvcc to use, or fails: PATH first, then CUDA_HOME, then the customary place.
find_nvcc() {
  local candidate
  for candidate in nvcc "${CUDA_HOME:-/nonexistent}/bin/nvcc" /usr/local/cuda/bin/nvcc; do
    if command -v "$candidate" >/dev/null 2>&1; then
      command -v "$candidate"
      return 0
    fi
  done
  return 1
}

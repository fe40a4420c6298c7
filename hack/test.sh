#!/usr/bin/env bash
# Runs every test, and brings what they need: packages, an engine, images.
#
#   hack/test.sh            all of them
#   hack/test.sh REGEXP     the real-engine tests of that name only
#
# CI=true agrees to the installation of an engine on a machine that has none.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
cd "$here/.."
only=${1:-}

step() {
	printf '\n=== %s (%ds)\n' "$*" "$SECONDS"
}

# The unit tests need neither root nor an engine, and are run so that this stays
# true: without any capability, which a mount needs, and with no engine to find.
unit_tests() {
	local drop=''
	if [[ $EUID -eq 0 ]]; then
		drop='setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all'
	fi
	DOCKER_HOST=unix:///nonexistent/docker.sock go test -exec "$drop" ./...
}

# A CLI configuration of the tests' own, so that they use the build of this tree
# and touch nothing of the user's.
isolate_cli() {
	export DOCKER_CONFIG=$PWD/build/docker-config
	make --no-print-directory install >/dev/null
}

step "packages"
hack/packages.sh tests
if [[ -z $only ]]; then
	step "lint"
	make --no-print-directory lint
fi
step "build"
make --no-print-directory build
if [[ -z $only ]]; then
	step "unit tests, without root's powers and without an engine"
	unit_tests
	step "shim tests, on real file systems"
	make --no-print-directory -C shim test
fi
step "engine and images"
hack/engine.sh up
hack/images.sh 15 17 18
isolate_cli
step "tests on the real engine"
# One package at a time: they share the engine, and two cores.
go test -tags e2e -count 1 -p 1 -timeout 30m -v -run "${only:-.}" \
	./hack/e2e/... ./volumedriver/... ./settle/...
step "done"

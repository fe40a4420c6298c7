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

# The whole from nothing, twice in a row, and away with it. An engine that somebody
# else runs may hold seeds of theirs, so there the demo's own things go, no more.
demo_and_removal() {
	hack/demo.sh --yes
	hack/demo.sh --yes
	if [[ ! -e /run/pgbranch-engine/dockerd.pid ]]; then
		docker pgbranch rm -f demo
		docker pgbranch seed rm demo-shop
		say "this engine is not ours: make clean-engine-state was not tried on it"
		return
	fi
	local root left
	root=$(docker info --format '{{.DockerRootDir}}')
	hack/clean.sh
	[[ ! -e $root/plugins/pgoverlay ]] || die "make clean-engine-state left $root/plugins/pgoverlay"
	hack/engine.sh up
	left=$(
		docker plugin ls --format '{{.Name}}' | grep '^pgoverlay:' || true
		docker volume ls -q --filter driver=pgoverlay:latest
		local label
		for label in branch helper stand-in; do
			docker ps -aq --filter "label=io.github.pgbranch.$label"
			docker images -q --filter "label=io.github.pgbranch.$label"
		done
	)
	[[ -z $left ]] || die "make clean-engine-state left in the engine: $left"
}

# What needs no engine runs beside what mostly waits for one: there are two cores. Its
# output comes in one piece.
beside() {
	local log=build/test-beside.log
	mkdir -p build
	unit_and_shim >"$log" 2>&1 &
	beside_pid=$!
	beside_log=$log
}

join_beside() {
	local status=0
	wait "$beside_pid" || status=$?
	cat "$beside_log"
	((status == 0)) || die "the tests that need no engine failed"
}

unit_and_shim() {
	step "unit tests, without root's powers and without an engine"
	unit_tests
	step "shim tests, on real file systems"
	make --no-print-directory -C shim test
}

# One package at a time: they share the engine. TestLong… are for make torture.
engine_tests() {
	local skip=()
	[[ -n $only ]] || skip=(-skip '^TestLong')
	go test -tags e2e -count 1 -p 1 -timeout 45m -v -run "${only:-.}" "${skip[@]}" "$@"
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
	beside
fi
step "engine and images"
hack/engine.sh up
hack/images.sh 15 17 18
isolate_cli
step "tests on the real engine"
engine_tests ./settle/...
if [[ -z $only ]]; then
	# What follows compares times.
	join_beside
fi
step "tests on the real engine, go on"
engine_tests ./hack/e2e/... ./volumedriver/...
step "tests in an engine of their own, which they kill"
# The rest of that package is long: make torture runs all of it.
only=${only:-'TestHostile|TestRefusalsLeave|TestLifeOf|TestAHalfFailed|TestAnAnonymous|TestDockerdIsKilled|TestAPluginThatIsCutOff|TestAnEngineWith|TestDockerdComesUp|TestThePluginDies.*/^(mount|unmount)$'} \
	engine_tests ./hack/faults/...
if [[ -z $only ]]; then
	step "the demo, twice, and the removal of everything"
	demo_and_removal
fi
step "done"

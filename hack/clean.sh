#!/usr/bin/env bash
# Removes everything that this project made in the engine: branches, seeds, the
# volume plugin and its data, helper and demo containers, images, and the engine
# itself where hack/engine.sh started it. It asks nothing: `make` names it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
cd "$here/.."

readonly helper=io.github.pgbranch.helper stand_in=io.github.pgbranch.stand-in

if ! timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; then
	say "no engine answers; nothing to clean in it"
	exec hack/engine.sh down
fi

# The installed CLI, or else this tree's.
pgbranch() {
	if docker pgbranch --help >/dev/null 2>&1; then
		docker pgbranch "$@"
		return
	fi
	[[ -x build/docker-pgbranch ]] || make --no-print-directory build >/dev/null
	build/docker-pgbranch pgbranch "$@"
}

# A seeding that was killed would be waited for.
docker ps -aq --filter "label=$helper" | xargs -r docker rm -f -v >/dev/null
docker rm -f -v pgbranch-demo-source >/dev/null 2>&1 || true
docker network rm pgbranch-demo >/dev/null 2>&1 || true
# What is in use by containers of somebody else is theirs to remove: it names them.
pgbranch uninstall --purge --force
docker images -q --filter "label=$stand_in" | sort -u | xargs -r docker rmi -f >/dev/null
rm -f "${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins/docker-pgbranch"
hack/engine.sh down
say "everything that pgbranch made is gone"

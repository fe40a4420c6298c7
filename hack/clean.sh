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
readonly branch=io.github.pgbranch.branch

if ! timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; then
	say "no engine answers; nothing to clean in it"
	exec hack/engine.sh down
fi

ids() { docker ps -aq --filter "label=$1"; }

# What is in use by containers of somebody else is theirs to remove.
remove_containers() {
	local label
	for label in $branch $helper; do
		ids "$label" | xargs -r docker rm -f -v >/dev/null
	done
	docker rm -f -v pgbranch-demo-source >/dev/null 2>&1 || true
	docker network rm pgbranch-demo >/dev/null 2>&1 || true
}

# The branches go before the seeds that they stand on.
remove_volumes() {
	local name
	docker volume ls -q --filter driver=pgoverlay:latest | grep -v @ | xargs -r docker volume rm >/dev/null
	for name in $(docker volume ls -q --filter driver=pgoverlay:latest); do
		docker volume rm "$name" >/dev/null
	done
}

# The plugin's data lies on the engine's host, which may be another machine: a
# container reaches it. Only our own subfolder is removed.
remove_plugin() {
	local source
	source=$(docker plugin inspect pgoverlay \
		--format '{{range .Config.Mounts}}{{if eq .Name "data"}}{{.Source}}{{end}}{{end}}' 2>/dev/null) || return 0
	docker plugin disable -f pgoverlay >/dev/null 2>&1 || true
	docker plugin rm -f pgoverlay >/dev/null
	local image
	image=$(docker images -q --filter "label=$stand_in" | head -n 1)
	if [[ -n $source && -n $image ]]; then
		docker run --rm --network none --entrypoint rm -u 0 -v "$source:/source" "$image" -rf /source/pgoverlay
	else
		say "left the plugin's data in $source/pgoverlay on the engine's host: no image is here to remove it with"
	fi
}

if docker plugin inspect pgoverlay >/dev/null 2>&1; then
	docker plugin enable pgoverlay >/dev/null 2>&1 || true
fi
remove_containers
remove_volumes
remove_plugin
docker images -q --filter "label=$helper" | sort -u | xargs -r docker rmi -f >/dev/null
docker images -q --filter "label=$stand_in" | sort -u | xargs -r docker rmi -f >/dev/null
rm -f "${DOCKER_CONFIG:-$HOME/.docker}/cli-plugins/docker-pgbranch"
hack/engine.sh down
say "everything that pgbranch made is gone"

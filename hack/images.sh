#!/usr/bin/env bash
# Sees to it that the engine has the images postgres:MAJOR.
#
#   hack/images.sh [MAJOR...]    15, 17 and 18 unless told otherwise
#
# An image that is there stays, and one that can be pulled is pulled. Where no
# registry can be reached, a stand-in with the stock image's contract is built
# from Debian's packages; it has the label io.github.pgbranch.stand-in=true,
# and is built again when its recipe in this folder has changed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

readonly label=io.github.pgbranch.stand-in

# suite MAJOR: the Debian release that has this major.
suite() {
	case $1 in
	15) echo bookworm ;;
	17) echo trixie ;;
	18) echo sid ;;
	*) die "no Debian release has PostgreSQL $1" "majors that can be built: 15, 17, 18" ;;
	esac
}

# recipe: one word that changes when what a stand-in is made of changes.
recipe() { cat "$here/images.sh" "$here"/images/* | sha256sum | cut -c 1-16; }

# is_current IMAGE: it exists, and is the stock one or a stand-in of this recipe.
is_current() {
	local found
	found=$(docker image inspect "$1" --format \
		"{{index .Config.Labels \"$label\"}} {{index .Config.Labels \"$label.recipe\"}}" 2>/dev/null) || return 1
	[[ $found != true* || $found == "true $(recipe)" ]]
}

# pull IMAGE gives up in seconds when no registry answers. One that does is
# given the time that the layers take.
pull() {
	local out tries=0 pid status=0
	out=$(mktemp)
	timeout 900 docker pull "$1" >"$out" 2>&1 &
	pid=$!
	while kill -0 "$pid" 2>/dev/null && ! grep -q 'Pulling from' "$out"; do
		if ((++tries > 50)); then
			kill "$pid"
			break
		fi
		sleep 0.1
	done
	wait "$pid" || status=$?
	rm -f "$out"
	return "$status"
}

# apt_options: what this machine's apt must know to fetch from its mirror at
# all, as arguments for mmdebstrap, which looks at none of apt's own settings.
apt_options() {
	apt-config dump Acquire | sed -nE 's/^(Acquire::(Check-Valid-Until|Check-Date|https?::Proxy)\b.*)/--aptopt=\1/p'
}

# root_filesystem MAJOR writes a tar archive to standard output, made of what
# $mirror has.
root_filesystem() {
	local major=$1 include options
	mapfile -t options < <(apt_options)
	include=postgresql-$major,locales,tzdata,xz-utils,zstd,less,libnss-wrapper
	# From 18 on the compiler for expressions is a package of its own. And sid's
	# postgresql-common would bring all of systemd for two small programs.
	((major < 18)) || include+=,postgresql-$major-jit,systemd-standalone-sysusers,systemd-standalone-tmpfiles
	# /run is kept: the directory of the server's socket is in it.
	mmdebstrap --quiet --mode=root --variant=essential --format=tar --skip=cleanup/run \
		--keyring=/usr/share/keyrings/debian-archive-keyring.gpg "${options[@]}" \
		--include="$include" \
		--essential-hook="'$here/images/hook.sh' prepare \"\$1\" $major" \
		--customize-hook="'$here/images/hook.sh' customize \"\$1\" $major" \
		"$(suite "$major")" - "$mirror"
}

# build IMAGE MAJOR
build() {
	local image=$1 major=$2 pgdata volume old id started=$SECONDS
	say "$image: no registry has it for us; building a stand-in from Debian $(suite "$major")"
	old=$(docker image inspect --format '{{.Id}}' "$image" 2>/dev/null) || true
	if ((major < 18)); then
		pgdata=/var/lib/postgresql/data volume=$pgdata
	else
		pgdata=/var/lib/postgresql/$major/docker volume=/var/lib/postgresql
	fi
	# Without a tag first: the engine imports a broken-off archive, too.
	id=$(root_filesystem "$major" | docker import \
		--change "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/$major/bin" \
		--change "ENV LANG=en_US.utf8" \
		--change "ENV PG_MAJOR=$major" \
		--change "ENV PGDATA=$pgdata" \
		--change "VOLUME $volume" \
		--change "EXPOSE 5432" \
		--change "STOPSIGNAL SIGINT" \
		--change 'ENTRYPOINT ["docker-entrypoint.sh"]' \
		--change 'CMD ["postgres"]' \
		--change "LABEL $label=true $label.recipe=$(recipe)" \
		-) || {
		[[ -z $id ]] || docker rmi "$id" >/dev/null
		die "the stand-in for $image could not be built"
	}
	docker tag "$id" "$image"
	say "$image: built in $((SECONDS - started)) s"
	# The stand-in that this one replaces, if no container uses it.
	[[ -z $old ]] || docker rmi "$old" >/dev/null 2>&1 || true
}

# missing MAJOR: whether the image is still to be built. Pulls it if possible.
missing() {
	local image=postgres:$1
	if is_current "$image"; then
		return 1
	fi
	# A stand-in whose recipe has changed was built because there is no registry.
	if ! docker image inspect "$image" >/dev/null 2>&1 && pull "$image"; then
		say "$image: pulled"
		return 1
	fi
}

require_builder() {
	if ! is_debian || [[ $EUID -ne 0 ]]; then
		die "no registry has postgres:$1 for us, and only root on Debian can build a stand-in" \
			"make a registry or mirror reachable for the engine, or run this as root on Debian"
	fi
	have mmdebstrap || die "no registry has postgres:$1 for us, and mmdebstrap is missing" \
		"run: $here/packages.sh"
}

docker version >/dev/null 2>&1 || die "no Docker engine answers" "run: $here/engine.sh up"
[[ $# -gt 0 ]] || set -- 15 17 18

to_build=()
for major; do
	suite "$major" >/dev/null
	! missing "$major" || to_build+=("$major")
done
[[ ${#to_build[@]} -gt 0 ]] || exit 0

require_builder "${to_build[0]}"
mirror=$(debian_mirror)
# All at once: unpacking and configuring keep one core busy each.
jobs=()
for major in "${to_build[@]}"; do
	build "postgres:$major" "$major" &
	jobs+=($!)
done
failed=0
for job in "${jobs[@]}"; do
	wait "$job" || failed=1
done
exit "$failed"

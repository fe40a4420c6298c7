#!/usr/bin/env bash
# What images.sh does to the root file system that mmdebstrap makes.
#
#   hook.sh prepare ROOT MAJOR      before the PostgreSQL packages are unpacked
#   hook.sh customize ROOT MAJOR    when everything is installed
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# The stock image has postgres as 999; the package would take the next free
# number. And it would make a cluster, which belongs into a volume.
prepare() {
	echo 'postgres:x:999:' >>"$root/etc/group"
	echo 'postgres:x:999:999::/var/lib/postgresql:/bin/bash' >>"$root/etc/passwd"
	echo 'postgres:!:20000::::::' >>"$root/etc/shadow"
	mkdir -p "$root/etc/postgresql-common"
	echo 'create_main_cluster = false' >"$root/etc/postgresql-common/createcluster.conf"
}

customize() {
	echo 'en_US.UTF-8 UTF-8' >>"$root/etc/locale.gen"
	chroot "$root" locale-gen >/dev/null

	local sample=$root/usr/share/postgresql/$major/postgresql.conf.sample
	sed -i -E "s/^#?listen_addresses = .*/listen_addresses = '*'/" "$sample"
	grep -q "^listen_addresses = '\*'" "$sample"

	# Open to every uid, as in the stock image: "docker run --user" works on
	# a fresh volume, which takes over the mode of the directory it covers.
	# In the chroot, because /var/run is a link to /run: of the image, then.
	local open=(/var/lib/postgresql)
	((major >= 18)) || open+=(/var/lib/postgresql/data)
	chroot "$root" install -d -o postgres -g postgres -m 1777 "${open[@]}"
	chroot "$root" install -d -o postgres -g postgres -m 3777 /var/run/postgresql
	mkdir "$root/docker-entrypoint-initdb.d"
	install -m 755 "$here/docker-entrypoint.sh" "$root/usr/local/bin/"

	# Removed at the end, and not kept out by dpkg's path-exclude: mmdebstrap
	# then filters every archive itself, which takes it half a minute.
	rm -rf "$root"/usr/share/{doc,man,info,lintian}/*
	find "$root/usr/share/locale" -mindepth 1 -maxdepth 1 -type d -exec rm -r {} +

	# The mirror and the way to it are the builder's business, and the logs
	# nobody's.
	rm -rf "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/* \
		"$root"/etc/apt/apt.conf.d/99mmdebstrap \
		"$root"/var/log/*.log "$root"/var/log/apt "$root"/var/cache/debconf/*-old
}

verb=$1 root=$2 major=$3
"$verb"

#!/usr/bin/env bash
# Installs, on Debian, what this project needs beside Go and an engine (for which
# see engine.sh). Quick when nothing is missing.
#
#   hack/packages.sh          to build it, and to build stand-in images
#   hack/packages.sh tests    to test it, too
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

packages=(
	# the shim, for this and the other architecture
	gcc libc6-dev make
	gcc-aarch64-linux-gnu libc6-dev-arm64-cross
	# the stand-in images
	mmdebstrap debian-archive-keyring
)
if [[ ${1:-} == tests ]]; then
	packages+=(
		# the shim under another C library, and on another processor
		musl-tools qemu-user-static binutils
		# a server of Debian's source, linked with musl
		bison flex perl bzip2
		# the file systems that branches live on
		e2fsprogs xfsprogs btrfs-progs
		# two worktrees of the sample Compose project
		git
		# an engine that is reached over ssh
		openssh-client
		# a dockerd that is slow at one step
		strace
		# a dockerd that runs rootless
		rootlesskit uidmap
		shellcheck
	)
	# A server without an engine, and npm, which has more of them. Neither need be
	# Debian's own, as long as it is there.
	compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || packages+=(postgresql)
	have npm || packages+=(npm)
fi
# The other architecture, seen from an arm64 machine.
if [[ $(uname -m) == aarch64 ]]; then
	packages=("${packages[@]/gcc-aarch64-linux-gnu/gcc-x86-64-linux-gnu}")
	packages=("${packages[@]/libc6-dev-arm64-cross/libc6-dev-amd64-cross}")
fi

if is_installed "${packages[@]}"; then
	exit 0
fi
is_debian || die "this script installs packages on Debian only" "install by hand: ${packages[*]}"
[[ $EUID -eq 0 ]] || die "only root can install packages" "run: sudo $0"
# The server is wanted for its programs only: no cluster of its own, no port taken.
if [[ " ${packages[*]} " == *" postgresql "* ]]; then
	mkdir -p /etc/postgresql-common/createcluster.d
	echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/pgbranch.conf
fi
say "installing what is missing of: ${packages[*]}"
apt_update
apt_install "${packages[@]}" >/dev/null

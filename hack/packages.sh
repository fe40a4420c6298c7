#!/usr/bin/env bash
# Installs, on Debian, what building and testing this project need beside Go
# and an engine (for which see engine.sh). Quick when nothing is missing.
#
#   hack/packages.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

packages=(
	# building the shim, for this and the other architecture, and its tests
	gcc libc6-dev make
	gcc-aarch64-linux-gnu libc6-dev-arm64-cross
	musl-tools
	qemu-user-static
	# the file systems that branches live on
	e2fsprogs xfsprogs btrfs-progs
	# the stand-in images
	mmdebstrap debian-archive-keyring
	# checks
	shellcheck
)
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
say "installing what is missing of: ${packages[*]}"
apt_update
apt_install "${packages[@]}" >/dev/null

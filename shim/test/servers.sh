#!/usr/bin/env bash
# Brings builds of Postgres for the tests, into a cache outside the repository, and prints the folder of the one asked for.
#
#   servers.sh debian MAJOR ARCH    a Debian root with that server, unpacked and not configured: to chroot into
#   servers.sh musl MAJOR           Debian's source, linked with musl: bin/postgres, bin/initdb, lib/
#
# LZ_CACHE is the cache, else /var/cache/lazyrw-test. What it has is not fetched or built again.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../../hack/lib.sh
. "$here/../../hack/lib.sh"

readonly cache=${LZ_CACHE:-/var/cache/lazyrw-test}
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# suite MAJOR: the Debian release that has this major.
suite() {
	case $1 in
	15) echo bookworm ;;
	17) echo trixie ;;
	18) echo sid ;;
	*) die "no Debian release has PostgreSQL $1" "majors that can be had: 15, 17, 18" ;;
	esac
}

# once NAME FUNCTION ARGUMENT...: unless the cache has NAME, FUNCTION makes it in a folder that it is given as its last
# argument, and that becomes the cache's in one step.
once() {
	local name=$1 work
	shift
	mkdir -p "$cache"
	exec 9>"$cache/.$name.lock"
	flock 9
	if [[ ! -d $cache/$name ]]; then
		work=$cache/.$name.tmp
		rm -rf "$work"
		mkdir "$work"
		"$@" "$work" >"$cache/$name.log" 2>&1 || {
			tail -n 30 "$cache/$name.log" >&2
			die "$name could not be made" "the whole log: $cache/$name.log"
		}
		mv "$work" "$cache/$name"
	fi
	exec 9>&-
	printf '%s\n' "$cache/$name"
}

# What this machine's apt must know to fetch from its mirror at all.
apt_settings() {
	apt-config dump Acquire | sed -nE 's/^(Acquire::(Check-Valid-Until|Check-Date|https?::Proxy)\b.*)/\1/p'
}

debian() { # debian MAJOR ARCH FOLDER
	local mirror options merged include=postgresql-$1,dash
	mirror=$(debian_mirror)
	mapfile -t options < <(apt_settings | sed 's/^/--aptopt=/')
	(($1 < 18)) || include+=,systemd-standalone-sysusers,systemd-standalone-tmpfiles # else systemd as a whole comes with it
	mmdebstrap --mode=root --variant=extract --architectures="$2" --keyring=$keyring "${options[@]}" \
		--include="$include" "$(suite "$1")" "$3" "$mirror"
	# These links are in base-files, which no package depends on. Programs ask for their loader in /lib or /lib64.
	for merged in bin lib lib64 sbin; do
		[[ ! -d $3/usr/$merged || -e $3/$merged ]] || ln -s "usr/$merged" "$3/$merged"
	done
	[[ -e $3/usr/bin/sh ]] || ln -s dash "$3/usr/bin/sh" # initdb starts the server through a shell
	mkdir -p "$3"/{dev,etc,proc,tmp}
	rm -rf "$3"/usr/share/{doc,man,info,locale} "$3"/var/lib/apt/lists "$3"/var/cache/apt
	if [[ $2 == arm64 ]]; then
		cp "$(command -v qemu-aarch64-static)" "$3/usr/bin/"
	fi
}

# unpacked_source MAJOR FOLDER: the newest that the release has, also in its security archive.
unpacked_source() {
	local mirror apt=$2/.apt archive
	mirror=$(debian_mirror)
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
	apt_settings >"$apt/apt.conf"
	cat >>"$apt/apt.conf" <<-END
		Dir::Etc::sourcelist "$apt/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::State::Lists "$apt/lists";
		Dir::Cache "$apt/cache";
		APT::Sandbox::User "root";
	END
	echo "deb-src [signed-by=$keyring] $mirror $(suite "$1") main" >"$apt/sources.list"
	APT_CONFIG=$apt/apt.conf apt-get -q update
	(cd "$apt" && APT_CONFIG=$apt/apt.conf apt-get -q source --download-only "postgresql-$1")
	archive=("$apt"/postgresql-"$1"_*.orig.tar.*)
	tar -x -f "${archive[0]}" -C "$2" --strip-components=1
	rm -rf "$apt"
}

# kernel_headers FOLDER: Linux' own headers without those of glibc beside them, for musl-gcc, which has none.
kernel_headers() {
	mkdir -p "$1"
	ln -s /usr/include/linux /usr/include/asm-generic "$1"
	ln -s "/usr/include/$(gcc -print-multiarch)/asm" "$1/asm"
}

# configure_source COMPILER PREFIX: in the source's folder. Nothing is wanted but a server that keeps data.
configure_source() {
	CC=$1 ./configure --prefix="$2" --without-readline --without-icu --without-zlib CFLAGS=-O1
	make -s -C src/backend generated-headers
}

musl() { # musl MAJOR FOLDER
	local source=$2/source prefix=$cache/musl-$1 destdir=$2/destdir part
	mkdir "$source"
	unpacked_source "$1" "$source"
	kernel_headers "$source/kernel-headers"
	cd "$source"
	configure_source "musl-gcc -idirafter $source/kernel-headers" "$prefix"
	for part in src/backend src/backend/snowball src/interfaces/libpq src/timezone src/include src/bin/initdb src/pl/plpgsql contrib/amcheck; do
		make -s -j2 -C $part
		make -s -C $part install DESTDIR="$destdir"
	done
	cd "$2"
	mv "$destdir$prefix"/* .
	rm -rf "$destdir" "$source" include
}

case "${1:-} $#" in
'debian 3') once "debian-$2-$3" debian "$2" "$3" ;;
'musl 2') once "musl-$2" musl "$2" ;;
*) die "debian MAJOR ARCH, or musl MAJOR" ;;
esac

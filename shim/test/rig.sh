# shellcheck shell=bash disable=SC2034 # what is set here is for those that source it
# Sourced by the test scripts: real file systems on loop devices, and overlays over them as the volume plugin mounts them.
#
# Everything happens in a private mount namespace, so that nothing stays mounted when the script dies, whatever kills it;
# the loop devices are detached by the kernel with the last mount of theirs.

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
SHIM=$(dirname "$HERE")
HOST_ARCH=$([ "$(uname -m)" = aarch64 ] && echo arm64 || echo amd64)

die() {
	echo "$0: $*" >&2
	exit 1
}

# check WHAT COMMAND...: says whether COMMAND succeeds; $failures counts those that do not.
failures=0
check() {
	local what=$1
	shift
	if "$@"; then
		echo "  ok   $what"
	else
		echo "  FAIL $what"
		failures=$((failures + 1))
	fi
}

need() {
	local tool
	for tool; do
		command -v "$tool" >/dev/null || die "$tool is missing; README.md of this folder lists the packages"
	done
}

# rig_enter "$@": the rest of the script runs as root in a mount namespace of its own, and $RIG is an empty directory.
rig_enter() {
	[ "$(id -u)" = 0 ] || die "must run as root: it mounts file systems"
	need unshare mount losetup
	if [ -z "${LZ_IN_NAMESPACE:-}" ]; then
		LZ_IN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
	fi
	RIG=$(mktemp -d "${TMPDIR:-/tmp}/lazyrw.XXXXXX")
	chmod 755 "$RIG"
	trap rig_leave EXIT
}

rig_leave() {
	local status=$?
	cd /
	umount -l "$RIG/branch" "$RIG/disk" 2>/dev/null
	rm -rf --one-file-system "$RIG"
	exit $status
}

# rig_disk FS: a fresh file system of that kind at $RIG/disk. XFS and btrfs can clone, which changes what a copy-up costs.
rig_disk() {
	need "mkfs.$1"
	truncate -s 0 "$RIG/image"
	truncate -s "${LZ_DISK_SIZE:-320M}" "$RIG/image"
	mkdir -p "$RIG/disk" "$RIG/branch"
	case $1 in
	ext4) mkfs.ext4 -q -F "$RIG/image" ;;
	xfs) mkfs.xfs -q -f -m reflink=1 "$RIG/image" ;;
	btrfs) mkfs.btrfs -q -f "$RIG/image" >/dev/null ;; # its notes on new defaults
	*) die "no recipe for file system $1" ;;
	esac
	mount -o loop "$RIG/image" "$RIG/disk"
	chmod 755 "$RIG/disk"
	mkdir "$RIG/disk/seed" "$RIG/disk/runtime"
	LZ_CLONES=1
	[ "$1" = ext4 ] && LZ_CLONES=0
	export LZ_CLONES
}

# rig_shim DIR OBJECT: lays the object into DIR as the runtime layer of a volume has it: a versioned file behind a stable link.
rig_shim() {
	mkdir -p "$1/.pgoverlay"
	cp "$2" "$1/.pgoverlay/lazyrw-test.so"
	ln -sf lazyrw-test.so "$1/.pgoverlay/lazyrw.so"
	chmod 755 "$1" "$1/.pgoverlay"
}

# rig_branch [OPTION...]: a fresh branch of $RIG/disk/seed at $RIG/branch, owned as the seed is; the one before is gone.
rig_branch() {
	mountpoint -q "$RIG/branch" && umount "$RIG/branch"
	rm -rf "$RIG/disk/upper" "$RIG/disk/work"
	mkdir "$RIG/disk/upper" "$RIG/disk/work"
	chown --reference="$RIG/disk/seed" "$RIG/disk/upper"
	chmod --reference="$RIG/disk/seed" "$RIG/disk/upper"
	rig_remount
	export LZ_UPPER=$RIG/disk/upper
	PRELOAD=$RIG/branch/.pgoverlay/lazyrw.so
}

# rig_remount: the same branch, mounted again.
rig_remount() {
	mountpoint -q "$RIG/branch" && umount "$RIG/branch"
	mount -t overlay overlay \
		-o "lowerdir=$RIG/disk/seed:$RIG/disk/runtime,upperdir=$RIG/disk/upper,workdir=$RIG/disk/work" \
		-o index=on,metacopy=on,redirect_dir=on "$RIG/branch"
}

# rig_call_seed OBJECT: a seed for the call tests, and a runtime layer with that object.
rig_call_seed() {
	local seed=$RIG/disk/seed
	mkdir -p "$seed/base/1" "$seed/base/2" "$seed/pg_wal"
	"$SHIM/build/postgres" seed "$seed/base/1" || die "cannot make the seed"
	cp "$seed/base/1/0" "$seed/base/2/0"
	printf 'NEWDATA!' >"$seed/news"
	echo 17 >"$seed/PG_VERSION"
	echo wal >"$seed/pg_wal/000000010000000000000001"
	rig_shim "$RIG/disk/runtime" "$1"
}

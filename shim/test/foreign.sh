#!/bin/bash
# The call tests once more, in programs of another libc and of another CPU: linked with musl, with the very object that serves
# glibc; and built for AArch64, under qemu. One file system is enough: the kernel is the same.
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_enter "$@"
need qemu-aarch64-static

failures=0
run() { # run WHAT OBJECT LAZY COMMAND...
	local what=$1 object=$2 lazy=$3
	shift 3
	rig_shim "$RIG/disk/runtime" "$object"
	rig_branch
	# Below qemu the tests still start this machine's shell, whose loader says that it cannot preload the other CPU's object.
	if (cd "$RIG/branch" && LZ_LAZY=$lazy exec "$@") 2> >(grep -v "cannot be preloaded" >&2); then
		echo "  ok   $what"
	else
		echo "  FAIL $what"
		failures=$((failures + 1))
	fi
}


rig_disk ext4
rig_call_seed "$SHIM/lib/lazyrw-$HOST_ARCH.so"
rig_branch
run "musl, lazily" "$SHIM/lib/lazyrw-$HOST_ARCH.so" 1 env LD_PRELOAD="$PRELOAD" "$SHIM/build/musl/postgres"
run "musl, by the second way in" "$SHIM/lib/lazyrw-$HOST_ARCH.so" 1 env LZ_LIBRARY="$PRELOAD" "$SHIM/build/musl/postgres"
run "musl, control" "$SHIM/lib/lazyrw-$HOST_ARCH.so" 0 "$SHIM/build/musl/postgres"
run "AArch64, lazily" "$SHIM/lib/lazyrw-arm64.so" 1 \
	qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_PRELOAD="$PRELOAD" "$SHIM/build/arm64/postgres"
if [ -n "${LZ_LONG:-}" ]; then
	run "AArch64, by the second way in" "$SHIM/lib/lazyrw-arm64.so" 1 \
		qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LZ_LIBRARY="$PRELOAD" "$SHIM/build/arm64/postgres"
fi
run "AArch64, control" "$SHIM/lib/lazyrw-arm64.so" 0 qemu-aarch64-static -L /usr/aarch64-linux-gnu "$SHIM/build/arm64/postgres"
echo "$failures failed"
[ $failures = 0 ]

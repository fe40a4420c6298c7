#!/bin/bash
# Readers and writers of the same files while they are copied up: race.sh ROUNDS [FS...]. Each round begins with a fresh branch, so
# that every file is copied up amid them.
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_enter "$@"

rounds=${1:?how many rounds}
shift
[ $# -gt 0 ] || set -- ext4 xfs btrfs
RACE=$SHIM/build/race/postgres
[ -x "$RACE" ] || die "run make first"

failures=0
for fs; do
	rig_disk "$fs"
	rig_call_seed "$SHIM/lib/lazyrw-$HOST_ARCH.so"
	reads=0 writes=0
	for ((round = 0; round < rounds; round++)); do
		rig_branch
		said=$(cd "$RIG/branch" && LD_PRELOAD=$PRELOAD exec "$RACE" 150 40 16) || failures=$((failures + 1))
		read -r r w <<<"$said"
		reads=$((reads + r)) writes=$((writes + w))
	done
	echo "$fs: $rounds rounds, $reads reads compared, $writes writes"
	umount "$RIG/branch" "$RIG/disk"
done
echo "$failures failed"
[ $failures = 0 ]

#!/bin/bash
# Random operations against a model: fuzz.sh STEPS [SEED] [FS...]. The steps are shared among the file systems; the seed is
# printed, and the same seed does the same. A shorter run without the shim comes first: it is the model that is tested there.
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_enter "$@"

steps=${1:?how many steps} seed=${2:-$RANDOM$RANDOM}
shift $(($# < 2 ? $# : 2))
[ $# -gt 0 ] || set -- ext4 xfs btrfs
FUZZ=$SHIM/build/fuzz
[ -x "$FUZZ/fuzz" ] || die "run make first"

failures=0
for fs; do
	rig_disk "$fs"
	mkdir "$RIG/disk/eager" "$RIG/disk/lazy"
	for mode in eager lazy; do
		share=$((steps / $#))
		args=("$RIG/disk/$mode" "$FUZZ/postgres" "$SHIM/lib/lazyrw-$HOST_ARCH.so")
		if [ $mode = eager ]; then
			"$FUZZ/fuzz" "${args[@]}" $((share / 10)) "$seed" eager
		else
			"$FUZZ/fuzz" "${args[@]}" "$share" "$seed"
		fi | sed "s/^/$fs: /"
		[ "${PIPESTATUS[0]}" = 0 ] || failures=$((failures + 1))
	done
	umount -l "$RIG/disk/eager/branch" "$RIG/disk/lazy/branch" 2>/dev/null # left behind by a failure
	umount -l "$RIG/disk"
done
echo "$failures failed"
[ $failures = 0 ]

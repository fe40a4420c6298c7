#!/bin/bash
# Every wrapped call, on a real overlay over each file system given: overlay.sh [ext4] [xfs] [btrfs]. Needs root.
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_enter "$@"

BUILD=$SHIM/build
OBJECT=$SHIM/lib/lazyrw-$HOST_ARCH.so
if [ ! -x "$BUILD/postgres" ] || [ ! -f "$OBJECT" ]; then die "run make first"; fi
[ $# -gt 0 ] || set -- ext4 xfs btrfs

in_branch() { # in_branch PRELOAD LAZY PROGRAM ARGS...
	local preload=$1 lazy=$2
	shift 2
	(cd "$RIG/branch" && LD_PRELOAD=$preload LZ_LAZY=$lazy exec "$@")
}

probe_says() { # probe_says WANT PRELOAD PROGRAM: what one open did; nothing else on stdout or stderr
	local said
	said=$(in_branch "$2" 1 "$3" probe 2>&1)
	[ "$said" = "$1" ] || { echo "    said: $said"; false; }
}

seed_sum() {
	(cd "$RIG/disk/seed" && find . -type f -exec sha256sum {} + | sort | sha256sum)
}

inert_cases() {
	rig_branch
	check "a postgres in the volume is lazy" probe_says lazy "$PRELOAD" "$BUILD/postgres"
	rig_branch
	check "no shim: eager" probe_says eager "" "$BUILD/postgres"
	rig_branch
	cp "$BUILD/postgres" "$RIG/notpostgres"
	check "another program: inert" probe_says eager "$PRELOAD" "$RIG/notpostgres"
	rig_branch
	mkdir -p "$RIG/elsewhere"
	rig_shim "$RIG/elsewhere" "$OBJECT"
	check "a data directory outside the shim's volume: inert" \
		probe_says eager "$RIG/elsewhere/.pgoverlay/lazyrw.so" "$BUILD/postgres"
	rig_branch
	check "an object outside .pgoverlay: inert" probe_says eager "$OBJECT" "$BUILD/postgres"
	rig_branch
	check "a user's own preload stays effective" probe_says "user's open
lazy" "$BUILD/users-own.so:$PRELOAD" "$BUILD/postgres"
	rig_branch
	mount --bind "$RIG/branch" "$RIG/elsewhere"
	check "seen through a bind mount of the volume" \
		bash -c "cd $RIG/elsewhere && [ \$(LD_PRELOAD=$RIG/elsewhere/.pgoverlay/lazyrw.so $BUILD/postgres probe) = lazy ]"
	umount "$RIG/elsewhere"
	check "tools say nothing" bash -c "[ -z \"\$(LD_PRELOAD=$PRELOAD bash -c 'ls / >/dev/null; true' 2>&1)\" ]"
}

small_table_cases() {
	rig_branch
	mkdir -p "$RIG/small"
	rig_shim "$RIG/small" "$BUILD/lazyrw-small.so"
	mount --bind "$RIG/small/.pgoverlay" "$RIG/branch/.pgoverlay"
	check "numbers past the table" [ "$(in_branch "$PRELOAD" 1 "$BUILD/postgres" numbers 512)" = "numbers hold" ]
	umount "$RIG/branch/.pgoverlay"
}

# A server in another mount and process namespace, as another container of the same volume is.
elsewhere() {
	unshare --mount --pid --fork --kill-child bash -c '
		mkdir -p '"$RIG"'/other && mount --bind '"$RIG"'/branch '"$RIG"'/other && mount -t proc proc /proc &&
		cd '"$RIG"'/other && LD_PRELOAD='"$RIG"'/other/.pgoverlay/lazyrw.so exec "$@"' - "$@"
}

refused_with_one_line() {
	local said status
	said=$("$@" 2>&1 </dev/null)
	status=$?
	if [ $status = 1 ] && [ "$(wc -l <<<"$said")" = 1 ] && grep -q "is in use by another Postgres server on this branch" <<<"$said"; then
		return
	fi
	echo "    status $status, said: $said"
	return 1
}

starts() {
	[ "$("$@" </dev/null)" = holding ]
}

second_server_cases() {
	rig_branch
	coproc SERVER { in_branch "$PRELOAD" 1 "$BUILD/postgres" hold; }
	read -r -u "${SERVER[0]}" line
	check "a first server starts" [ "$line" = holding ]
	refused_with_one_line in_branch "$PRELOAD" 1 "$BUILD/postgres" hold & # each waits a while before it gives up
	local second=$!
	check "one in other namespaces is refused" refused_with_one_line elsewhere "$BUILD/postgres" hold
	check "a second one is refused" wait $second
	check "the first one's postmaster.pid is still there" [ -f "$RIG/branch/postmaster.pid" ]
	eval "exec ${SERVER[1]}>&-"
	wait "$SERVER_PID"
	check "after its end another starts" starts in_branch "$PRELOAD" 1 "$BUILD/postgres" hold
	check "and in other namespaces too" starts elsewhere "$BUILD/postgres" hold

	mkfifo "$RIG/stdin"
	in_branch "$PRELOAD" 1 "$BUILD/postgres" orphan <"$RIG/stdin" >"$RIG/stdout" &
	exec 9>"$RIG/stdin"
	wait $!
	until grep -q holding "$RIG/stdout"; do sleep 0.05; done
	check "a backend that outlives its postmaster keeps the branch" \
		refused_with_one_line in_branch "$PRELOAD" 1 "$BUILD/postgres" hold
	exec 9>&-
	check "until it ends" starts in_branch "$PRELOAD" 1 "$BUILD/postgres" hold
	rm "$RIG/stdin"
	check "the lock leaves no file" \
		[ "$(cd "$LZ_UPPER" && find . -type f ! -name postmaster.pid ! -path ./.pgoverlay/active | wc -l)" = 0 ]
}

# An fsync by a descriptor that was opened before another process had the file copied up.
power_cut_cases() {
	rig_branch
	check "an old descriptor's fsync" in_branch "$PRELOAD" 1 "$BUILD/postgres" cut
	umount "$RIG/branch" "$RIG/disk"
	mount -o loop "$RIG/image" "$RIG/disk"
	rig_remount
	check "outlives a cut of the power" in_branch "" 0 "$BUILD/postgres" aftercut
}

for fs; do
	echo "== $fs"
	rig_disk "$fs"
	rig_call_seed "$OBJECT"
	before=$(seed_sum)
	inert_cases
	rig_branch
	check "every call, lazily" in_branch "$PRELOAD" 1 "$BUILD/postgres"
	rig_branch
	if [ "$fs" = ext4 ] || [ -n "${LZ_LONG:-}" ]; then
		check "every call, by the second way in" in_branch "" 1 env LZ_LIBRARY="$PRELOAD" "$BUILD/postgres"
	fi
	small_table_cases
	rig_branch
	check "control, without the shim" in_branch "" 0 "$BUILD/postgres"
	second_server_cases
	check "the seed is unchanged" [ "$(seed_sum)" = "$before" ]
	if [ "$fs" != btrfs ]; then # which cannot be shut down
		power_cut_cases
		rig_branch
		check "on a file system that has ended" in_branch "$PRELOAD" 1 "$BUILD/postgres" last
	fi
	umount "$RIG/branch" "$RIG/disk"
done
echo "$failures failed"
[ $failures = 0 ]

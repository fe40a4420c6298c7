#!/bin/bash
# What a server leaves for the plugin to read, and what happens to postmaster.pid when a second server comes by
# shared_preload_libraries, which replaces that file before any library is loaded. Needs root.
set -uo pipefail
. "$(dirname "$0")/rig.sh"
rig_enter "$@"

BUILD=$SHIM/build
OBJECT=$SHIM/lib/lazyrw-$HOST_ARCH.so
if [ ! -x "$BUILD/postgres" ] || [ ! -f "$OBJECT" ]; then die "run make first"; fi
NOTE=$RIG/branch/.pgoverlay/active
KEPT=$RIG/branch/.pgoverlay/postmaster.pid
PID=$RIG/branch/postmaster.pid

first() { # first WAY MODE: starts a server in these namespaces, by library or preload
	local -A way=([preload]="LD_PRELOAD=$PRELOAD" [library]="LZ_LIBRARY=$PRELOAD" [none]=LZ_NONE=)
	rm -f "$RIG/in" "$RIG/out"
	mkfifo "$RIG/in"
	(cd "$RIG/branch" && exec env "${way[$1]}" "$BUILD/postgres" "$2" <"$RIG/in" >"$RIG/out") &
	FIRST=$!
	exec 9>"$RIG/in"
	for _ in $(seq 100); do
		grep -q holding "$RIG/out" && return
		sleep 0.05
	done
	die "the first server does not start"
}

end_first() {
	exec 9>&-
	wait "$FIRST"
}

elsewhere() { # elsewhere COMMAND...: in another mount and process namespace, as another container is
	unshare --mount --pid --fork --kill-child bash -c '
		mkdir -p '"$RIG"'/other && mount --bind '"$RIG"'/branch '"$RIG"'/other && mount -t proc proc /proc &&
		cd '"$RIG"'/other && exec "$@"' - "$@"
}

second() { elsewhere env LZ_LIBRARY="$RIG/other/.pgoverlay/lazyrw.so" "$BUILD/postgres" hold; }

says() { # says WAY LAZY
	grep -qx "way=$1" "$NOTE" && grep -qx "lazy=$2" "$NOTE" && grep -qx "arch=$HOST_ARCH" "$NOTE" &&
		grep -qx "object=lazyrw-test.so" "$NOTE" && [ "$PID" -ef "$KEPT" ]
}

is_refused() { # a second server ends with one line and status 1
	local said status
	said=$(second 2>&1 </dev/null)
	status=$?
	[ $status = 1 ] && [ "$(wc -l <<<"$said")" = 1 ] && grep -q "is in use by another Postgres server on this branch" <<<"$said" && return
	echo "    status $status, said: $said"
	return 1
}

# The first server asks for its postmaster.pid all the time while the second one comes and goes.
asks_meanwhile() {
	is_refused &
	local refused=$!
	while kill -0 $refused 2>/dev/null; do
		printf x >&9
		sleep 0.01
	done
	wait $refused || return 1
	sleep 0.5
	! grep -q lost "$RIG/out" && [ "$(grep -c claimed "$RIG/out")" -gt 20 ]
}

stays_whole() { # stays_whole WAY: neither server's end leaves anything else than what was
	local before
	rig_branch
	first "$1" hold
	before=$(stat -c %i "$PID" && cat "$PID")
	check "$1: the first server never misses its postmaster.pid" asks_meanwhile
	check "$1: it is the same file with the same content" [ "$(stat -c %i "$PID" && cat "$PID")" = "$before" ]
	check "$1: nothing of the second stays" [ "$(find "$RIG/branch/.pgoverlay" -name '*postmaster.pid*' | wc -l)" = 1 ]
	end_first
}

waits_for_its_turn() {
	rig_branch
	first library hold
	second <"$RIG/hold" >"$RIG/second" 9>&- &
	local pid=$!
	exec 8>"$RIG/hold"
	sleep 1
	end_first
	sleep 1
	printf x >&8
	exec 8>&-
	wait $pid && [ "$(tr '\n' ' ' <"$RIG/second")" = "holding claimed " ]
}

eager_says() {
	rig_branch
	touch "$RIG/branch/.pgoverlay/eager"
	first "$1" hold
	says "$2" unwanted
	local rc=$?
	end_first
	[ $rc = 0 ] && [ "$(cd "$RIG/branch" && LD_PRELOAD=$PRELOAD "$BUILD/postgres" probe)" = eager ]
}

rig_disk ext4
rig_call_seed "$OBJECT"
mkfifo "$RIG/hold"

rig_branch
first preload hold
check "LD_PRELOAD leaves word" says LD_PRELOAD yes
end_first
first library hold
check "shared_preload_libraries leaves word" says shared_preload_libraries yes
end_first
first none hold
check "the word of the last server is not taken for a later one's" bash -c "! [ $PID -ef $KEPT ]"
end_first

stays_whole preload
stays_whole library

rig_branch
first library orphan
wait "$FIRST"
before=$(stat -c %i "$PID")
check "a backend that outlives its postmaster keeps the branch" is_refused
check "and the file stays" [ "$(stat -c %i "$PID")" = "$before" ]
exec 9>&-
check "a second server has its turn when the first ends in time" waits_for_its_turn

rig_branch
first library hold
(cd "$RIG/branch" && "$BUILD/postgres" hold </dev/null >/dev/null)
printf x >&9
sleep 4
check "a server without the shim that took the file over ends the first, as ever" grep -q lost "$RIG/out"
end_first

check "cow=off: LD_PRELOAD is told that it is not wanted" eager_says preload LD_PRELOAD
check "cow=off: so is shared_preload_libraries" eager_says library shared_preload_libraries

rig_branch
mount --bind "$RIG/disk/runtime/.pgoverlay" "$RIG/branch/.pgoverlay"
mount -o remount,bind,ro "$RIG/branch/.pgoverlay"
first preload hold
check "a server that may leave no word works all the same" bash -c "[ -e $PID ] && ! [ -e $NOTE ]"
end_first
umount "$RIG/branch/.pgoverlay"

umount "$RIG/branch" "$RIG/disk"
echo "$failures failed"
[ $failures = 0 ]

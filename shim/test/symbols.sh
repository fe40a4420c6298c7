#!/bin/bash
# What makes one object fit every program of every image: it needs no library, and asks only weakly for what it uses of one:
# errno, and for the second way in the loader's functions and three variables of the server. It exports the wrappers and what
# makes it a module of Postgres; nothing in it is writable and executable. For each architecture built.
set -uo pipefail
. "$(dirname "$0")/rig.sh"
need readelf

failures=0
check() { # check WHAT WANT HAVE
	if [ "$2" = "$3" ]; then
		echo "  ok   $1"
	else
		printf '  FAIL %s\n    want: %s\n    have: %s\n' "$1" "$2" "$3"
		failures=$((failures + 1))
	fi
}

names() { # the public names in wrapped.def
	sed -n 's/^WRAP_[A-Z]*(\([a-z_0-9]*\), .*/\1/p' "$SHIM/src/wrapped.def" | sort
}

allowed() { # libc's, then the server's
	printf 'WEAK UND %s\n' __errno_location dl_iterate_phdr dlopen dlsym io_method pkglib_path process_shared_preload_libraries_in_progress | sort
}

for arch in amd64 arm64; do
	object=$SHIM/lib/lazyrw-$arch.so
	[ -f "$object" ] || die "$object is missing; run make first"
	echo "== $arch"
	symbols=$(readelf --dyn-syms -W "$object" | awk '$5 == "GLOBAL" || $5 == "WEAK" { print $5, $7, $8 }')
	check "needs no library" "" "$(readelf -dW "$object" | grep -E 'NEEDED|RPATH|RUNPATH|SONAME|TEXTREL')"
	check "asks for the allowed names only, all of them weakly" "$(allowed)" "$(grep ' UND ' <<<"$symbols" | sort)"
	check "exports the wrappers and what makes it a module, nothing else" "$( (names; echo Pg_magic_func; echo _PG_init; echo lazyrw_object) | sort)" \
		"$(grep -v ' UND ' <<<"$symbols" | awk '{ print $3 }' | sort)"
	check "no segment is writable and executable" "" "$(readelf -lW "$object" | awk '($1 == "LOAD" || $1 == "GNU_STACK") && /RWE/')"
	check "nothing runs when it is loaded" "" "$(readelf -dW "$object" | grep -E 'INIT|FINI')"
	check "bound at load, then read-only" 1 "$(readelf -lW "$object" | grep -c GNU_RELRO)"
done
echo "$failures failed"
[ $failures = 0 ]

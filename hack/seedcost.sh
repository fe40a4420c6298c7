#!/usr/bin/env bash
# Measures what a seed costs over a bare pg_basebackup of the same source: rounds of
# both, the order alternating, each to its end on disk. Needs the engine with the
# plugin, and `docker pgbranch`.
#
#   hack/seedcost.sh [MIB] [ROUNDS] [SOURCE…]    1024 MiB and 5 rounds unless told otherwise
#
# The sources, all three unless told otherwise:
#   fresh      rows that nobody has vacuumed: each page is written by the freeze
#   vacuumed   after VACUUM ANALYZE, as autovacuum leaves a table; up to Postgres 17 that
#              freezes nothing, so each page is written, too
#   frozen     after VACUUM FREEZE ANALYZE, as most of an old database is
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

mib=${1:-1024} rounds=${2:-5}
shift $(($# < 2 ? $# : 2))
[[ $# -gt 0 ]] || set -- fresh vacuumed frozen
readonly name=pgbranch-seedcost image=postgres:17
export PGPASSWORD=seedcost
work=$(mktemp -d)

remove() {
	docker rm -fv "$name" >/dev/null 2>&1 || true
	docker pgbranch seed rm "$name" >/dev/null 2>&1 || true
	docker volume rm "$name" >/dev/null 2>&1 || true
	docker network rm "$name" >/dev/null 2>&1 || true
}
trap 'remove; rm -rf "$work"' EXIT

# start_source KIND: one table of half the size and eight others, with indexes.
start_source() {
	local -A last=([fresh]=ANALYZE [vacuumed]='VACUUM ANALYZE' [frozen]='VACUUM FREEZE ANALYZE')
	[[ -n ${last[$1]:-} ]] || die "there is no source $1" "the sources are fresh, vacuumed and frozen"
	docker network create "$name" >/dev/null
	docker run -d --name "$name" --network "$name" --shm-size 512m -e POSTGRES_PASSWORD="$PGPASSWORD" "$image" \
		postgres -c autovacuum=off -c fsync=off -c max_wal_size=16GB >/dev/null
	until docker exec "$name" pg_isready -q -h 127.0.0.1; do sleep 0.2; done
	# shellcheck disable=SC2016 # the container's PGDATA
	docker exec "$name" sh -c 'echo "host replication all all scram-sha-256" >>"$PGDATA/pg_hba.conf"'
	{
		echo 'SELECT pg_reload_conf();'
		local table rows=$((mib * 2100))
		for table in one a b c d e f g h; do
			echo "CREATE TABLE $table AS SELECT g AS id, g % 1000 AS grp, repeat(md5(g::text), 6) AS pad FROM generate_series(1, $rows) g;"
			echo "CREATE INDEX ON $table (id);"
			rows=$((mib * 262))
		done
		echo "${last[$1]}; CHECKPOINT;"
	} | docker exec -i "$name" psql -qAtX -U postgres >/dev/null
	say "source $1: $(docker exec "$name" psql -AtX -U postgres -c 'SELECT pg_size_pretty(sum(pg_database_size(oid))) FROM pg_database')"
}

# timed WHAT: appends the seconds that it took, and those of the processor without
# the source's, which it prints.
timed() {
	local began=$EPOCHREALTIME
	"$1" >>"$work/$1.cpu"
	awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f\n", b - a }' >>"$work/$1"
}

bare() {
	# bash's `times` has a second line for the children, user and system: 0m0.464s 0m1.797s
	docker run --rm --network "$name" -e PGPASSWORD -v "$name:/out" --entrypoint bash "$image" -ec \
		"pg_basebackup -h $name -U postgres -D /out/copy --checkpoint=fast; times" |
		awk 'END { n = split($0, t, /[ms ]+/); printf "%.2f\n", t[1] * 60 + t[2] + t[3] * 60 + t[4] }'
}

seed() {
	docker pgbranch seed create "$name" --from "postgres://postgres@$name/postgres" --network "$name" --progress json 2>&1 >/dev/null |
		awk -F '"cpuSeconds":' 'NF > 1 { sum += $2 } END { printf "%.2f\n", sum }'
}

median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int((NR + 2) / 2)]) / 2 }'; }
ratio() { awk -v s="$(median "$work/seed$1")" -v b="$(median "$work/bare$1")" 'BEGIN { printf "%.2f", s / b }'; }

measure() {
	local i what order
	rm -f "$work"/*
	for ((i = 1; i <= rounds; i++)); do
		order=(bare seed)
		((i % 2)) || order=(seed bare)
		for what in "${order[@]}"; do
			sync
			timed "$what"
		done
		docker volume rm "$name" >/dev/null
		docker pgbranch seed rm "$name" >/dev/null
		say "$1, round $i: pg_basebackup $(tail -n 1 "$work/bare") s (processor $(tail -n 1 "$work/bare.cpu") s)," \
			"seed $(tail -n 1 "$work/seed") s (processor $(tail -n 1 "$work/seed.cpu") s), load $(cut -d ' ' -f 1 /proc/loadavg)"
	done
	say "RATIO seed over pg_basebackup, $1 source: $(ratio '')" \
		"(medians $(median "$work/seed") and $(median "$work/bare") s, budget 1.5);" \
		"processor without the source's $(ratio .cpu) ($(median "$work/seed.cpu") and $(median "$work/bare.cpu") s)"
}

for kind; do
	remove
	start_source "$kind"
	measure "$kind"
done

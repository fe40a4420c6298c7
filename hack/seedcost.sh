#!/usr/bin/env bash
# Measures what a seed costs over a bare pg_basebackup of the same source: rounds of
# both, the order alternating, each to its end on disk. Needs the engine with the
# plugin, and `docker pgbranch`.
#
#   hack/seedcost.sh [MIB] [ROUNDS]    1024 MiB and 5 rounds unless told otherwise
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

mib=${1:-1024} rounds=${2:-5}
readonly name=pgbranch-seedcost image=postgres:17
export PGPASSWORD=seedcost

remove() {
	docker rm -fv "$name" >/dev/null 2>&1 || true
	docker pgbranch seed rm "$name" >/dev/null 2>&1 || true
	docker volume rm "$name" >/dev/null 2>&1 || true
	docker network rm "$name" >/dev/null 2>&1 || true
}
trap remove EXIT
remove

# source: rows that nobody has vacuumed and somebody has analyzed, as autovacuum
# leaves them after a load; one table of half the size and eight others, with indexes.
start_source() {
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
		echo 'ANALYZE; CHECKPOINT;'
	} | docker exec -i "$name" psql -qAtX -U postgres >/dev/null
}

# timed FILE COMMAND… appends how many seconds the command took.
timed() {
	local file=$1 began=$EPOCHREALTIME
	shift
	"$@"
	awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f\n", b - a }' >>"$file"
}

bare() {
	docker run --rm --network "$name" -e PGPASSWORD -v "$name:/out" --entrypoint pg_basebackup "$image" \
		-h "$name" -U postgres -D /out/copy --checkpoint=fast
}

seed() {
	docker pgbranch seed create "$name" --from "postgres://postgres@$name/postgres" --network "$name" --progress "${PROGRESS:-quiet}" >/dev/null
}

start_source
say "source: $(docker exec "$name" psql -AtX -U postgres -c 'SELECT pg_size_pretty(sum(pg_database_size(oid))) FROM pg_database')"
work=$(mktemp -d)
for ((i = 1; i <= rounds; i++)); do
	order=(bare seed)
	((i % 2)) || order=(seed bare)
	for what in "${order[@]}"; do
		sync
		timed "$work/$what" "$what"
	done
	docker volume rm "$name" >/dev/null
	docker pgbranch seed rm "$name" >/dev/null
	say "round $i: pg_basebackup $(tail -n 1 "$work/bare") s, seed $(tail -n 1 "$work/seed") s, load $(cut -d ' ' -f 1 /proc/loadavg)"
done
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int((NR + 2) / 2)]) / 2 }'; }
say "RATIO seed over pg_basebackup: $(awk -v s="$(median "$work/seed")" -v b="$(median "$work/bare")" 'BEGIN { printf "%.2f", s / b }')" \
	"(medians $(median "$work/seed") and $(median "$work/bare") s, budget 1.5)"
rm -rf "$work"

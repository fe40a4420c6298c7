#!/usr/bin/env bash
# The main job, from nothing: an engine if there is none, the CLI, the volume
# plugin, an image, a sample database, a seed of it, a branch, and the proof that
# reading the branch copied nothing. May be run again and again.
#
#   hack/demo.sh [--yes]    --yes (or CI=true) agrees to install an engine
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"
cd "$here/.."

readonly source=pgbranch-demo-source network=pgbranch-demo seed=demo-shop

note() { printf '\n\033[1m# %s\033[0m\n' "$*"; }

run() {
	printf '$ %s\n' "$*"
	"$@"
}

# forget removes what an earlier demo made.
forget() {
	docker pgbranch rm -f demo demo-eager >/dev/null
	if docker pgbranch seed inspect $seed >/dev/null 2>&1; then
		docker pgbranch seed rm $seed >/dev/null
	fi
	docker rm -f -v $source >/dev/null 2>&1 || true
	docker network rm $network >/dev/null 2>&1 || true
}

# sample starts a server with a 1,000,000 row table that was never vacuumed.
sample() {
	local password=$1
	docker network create $network >/dev/null
	docker run -d --name $source --network $network -e POSTGRES_PASSWORD="$password" -e POSTGRES_DB=shop \
		postgres:17 >/dev/null
	local try
	for try in {1..120}; do
		if docker exec $source pg_isready -q -h 127.0.0.1 -U postgres; then break; fi
		[[ $try -lt 120 ]] || die "the sample database does not start" "docker logs $source"
		sleep 0.5
	done
	docker exec -i $source psql -q -v ON_ERROR_STOP=1 -U postgres -d shop <<-'SQL'
		ALTER SYSTEM SET autovacuum = off;
		SELECT pg_reload_conf() \g /dev/null
		CREATE TABLE orders AS
		SELECT g AS id, g % 5000 AS customer, md5(g::text) AS note FROM generate_series(1, 1000000) g;
		CREATE INDEX ON orders (id);
		CREATE TABLE products (id int PRIMARY KEY, name text, price numeric);
		INSERT INTO products SELECT g, 'product ' || g, g * 1.5 FROM generate_series(1, 500) g;
	SQL
	printf 'host replication all all scram-sha-256\n' |
		docker exec -i $source sh -c 'cat >> "$PGDATA/pg_hba.conf"'
	docker exec $source psql -q -U postgres -c 'SELECT pg_reload_conf()' >/dev/null
}

owned() { docker pgbranch inspect --format '{{.ownedBytes}}' "$1"; }

read_everything() {
	docker pgbranch psql "$1" -- -q -At -c 'SELECT count(*), count(DISTINCT customer), max(length(note)) FROM orders' \
		-c 'SET enable_seqscan = off' -c 'SELECT sum(id) FROM orders WHERE id BETWEEN 1 AND 1000000' -c CHECKPOINT
}

note "an engine, the CLI with the volume plugin in it, and an image"
hack/engine.sh up "$@"
hack/packages.sh
run make --no-print-directory install
hack/images.sh 17

note "the volume plugin"
run docker pgbranch setup
forget

note "a sample database: 1,000,000 orders"
password=$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')
sample "$password"

note "a seed of it, made once"
export PGPASSWORD=$password
run docker pgbranch seed create $seed --from postgres://postgres@$source/shop --network $network
unset PGPASSWORD
docker rm -f -v $source >/dev/null
docker network rm $network >/dev/null
run docker pgbranch seed ls

note "a branch of it: a running, writable Postgres"
run docker pgbranch create demo --from $seed
before=$(owned demo)

note "read every row, by table and by index, and checkpoint"
run read_everything demo
after=$(owned demo)
table=$(docker pgbranch psql demo -- -At -c "SELECT pg_total_relation_size('orders')")
echo "the branch owned $before bytes before and $after after; the table and its index have $table"

note "the control: the same without the shim"
run docker pgbranch create demo-eager --from $seed --cow off
eager_before=$(owned demo-eager)
read_everything demo-eager >/dev/null
eager_after=$(owned demo-eager)
echo "that branch owned $eager_before bytes before and $eager_after after"
docker pgbranch rm -f demo-eager >/dev/null

if ((after - before > 1048576)); then die "reading the branch copied $((after - before)) bytes"; fi
if ((eager_after - eager_before < table / 2)); then die "the control copied nothing: this proves nothing"; fi

note "write to the branch: only it changes"
run docker pgbranch psql demo -- -q -c "UPDATE products SET price = 0 WHERE id = 1" -c CHECKPOINT
run docker pgbranch ls

note "done. Yours to play with: docker pgbranch psql demo; then: docker pgbranch rm -f demo"

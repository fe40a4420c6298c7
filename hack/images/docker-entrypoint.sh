#!/usr/bin/env bash
# Entrypoint of the stand-in images that images.sh builds where the stock
# postgres image cannot be pulled. It keeps what users of the stock image rely
# on: the same environment variables, the same order of steps, and a server
# that replaces this script as PID 1.
#
# No "nounset": scripts of /docker-entrypoint-initdb.d are sourced into this
# shell, and were written for the stock entrypoint, which does not set it.
set -Eeo pipefail

readonly initdb_dir=/docker-entrypoint-initdb.d

fail() {
	printf 'error: %s\n' "$1" >&2
	shift
	[[ $# -eq 0 ]] || printf '  %s\n' "$@" >&2
	exit 1
}

# setting NAME [DEFAULT] exports NAME: from the environment, or from the file
# that NAME_FILE names (a Docker secret), or the default.
setting() {
	local name=$1 file_name=$1_FILE value=${!1}
	if [[ -n ${!file_name} ]]; then
		[[ -z $value ]] || fail "$name and $file_name are both set" "set only one of them"
		value=$(<"${!file_name}")
		unset "$file_name"
	fi
	export "$name=${value:-$2}"
}

# only_prints ARGUMENT...: whether the server would print something and exit,
# so that it needs no data directory.
only_prints() {
	local argument
	for argument; do
		case $argument in
		--help | '-?' | --version | -V | --describe-config) return 0 ;;
		esac
	done
	return 1
}

# --- as root, on every start -----------------------------------------------

own() { find "$1" ! -user postgres -exec chown postgres {} +; }

# prepare_directories makes what the server needs. chmod may fail where the
# directory belongs to somebody else; initdb and the server then say so
# better than we could.
prepare_directories() {
	local dir
	for dir in "$PGDATA" ${POSTGRES_INITDB_WALDIR:+"$POSTGRES_INITDB_WALDIR"}; do
		mkdir -p "$dir"
		chmod 0700 "$dir" || true
		[[ $EUID -ne 0 ]] || own "$dir"
	done
	mkdir -p /var/run/postgresql || true
	chmod 3777 /var/run/postgresql 2>/dev/null || true
	[[ $EUID -ne 0 ]] || own /var/run/postgresql
}

# step_down runs this script again as postgres, in the same process.
step_down() {
	HOME=$(getent passwd postgres | cut -d: -f6)
	export HOME
	exec setpriv --reuid=postgres --regid=postgres --init-groups -- "${BASH_SOURCE[0]}" "$@"
}

# --- as postgres, once per data directory -----------------------------------

require_password() {
	[[ -z $POSTGRES_PASSWORD && $POSTGRES_HOST_AUTH_METHOD != trust ]] || return 0
	fail "the database is not initialized, and no password for its superuser is given" \
		"set POSTGRES_PASSWORD (or POSTGRES_PASSWORD_FILE) to a non-empty value," \
		"or POSTGRES_HOST_AUTH_METHOD=trust to let everybody in without one"
}

# refuse_old_layout: from 18 on, the volume is /var/lib/postgresql and each
# major has a directory in it. A cluster in another place, or a mount where 17
# had its volume, means that the user expects data which initdb would ignore.
refuse_old_layout() {
	[[ $PGDATA == "/var/lib/postgresql/$PG_MAJOR/docker" ]] || return 0
	local dir found=()
	for dir in /var/lib/postgresql{,/data,/*/docker}; do
		[[ ! -s $dir/PG_VERSION ]] || found+=("$dir")
	done
	if [[ ${#found[@]} -eq 0 ]] && mountpoint -q /var/lib/postgresql/data; then
		found+=("/var/lib/postgresql/data (a mount that nothing uses)")
	fi
	[[ ${#found[@]} -eq 0 ]] || fail \
		"there is PostgreSQL data where images for 18 and later do not keep it: ${found[*]}" \
		"mount one volume at /var/lib/postgresql, and bring an older cluster over with pg_upgrade"
}

# run_initdb: initdb wants a name for its uid. With "docker run --user" of any
# number there is none, and nss_wrapper lends one.
run_initdb() {
	local arguments=(--username="$POSTGRES_USER") environment=() extra names wrapper
	[[ -z $POSTGRES_INITDB_WALDIR ]] || arguments+=(--waldir="$POSTGRES_INITDB_WALDIR")
	# The variable holds shell words: --locale-provider=icu --icu-rules='…'
	eval "extra=($POSTGRES_INITDB_ARGS)"

	if ! getent passwd "$EUID" >/dev/null; then
		names=$(mktemp -d)
		printf 'postgres:x:%s:%s::%s:/bin/false\n' "$EUID" "$(id -g)" "$PGDATA" >"$names/passwd"
		printf 'postgres:x:%s:\n' "$(id -g)" >"$names/group"
		wrapper=$(ls /usr/lib/*/libnss_wrapper.so)
		environment=(LD_PRELOAD="$wrapper${LD_PRELOAD:+:$LD_PRELOAD}"
			NSS_WRAPPER_PASSWD="$names/passwd" NSS_WRAPPER_GROUP="$names/group")
	fi
	# --pwfile does not take an empty file, and printf's newline sees to that.
	env "${environment[@]}" initdb "${arguments[@]}" \
		--pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") "${extra[@]}"
	[[ -z $names ]] || rm -r "$names"
}

# admit_hosts ARGUMENT...: initdb admits this machine only. The arguments are
# the server's: they may set password_encryption, which is the default method.
admit_hosts() {
	local method=$POSTGRES_HOST_AUTH_METHOD
	[[ -n $method ]] || method=$(postgres -C password_encryption "$@")
	printf '\nhost all all all %s\n' "$method" >>"$PGDATA/pg_hba.conf"
}

# start_private ARGUMENT...: a server that only the unix socket leads to, so
# that nobody sees the database before its init scripts are through.
# NOTIFY_SOCKET: a supervisor must not take this server for the real one.
start_private() {
	local options
	printf -v options '%q ' "$@" -c listen_addresses= -p "${PGPORT:-5432}"
	NOTIFY_SOCKET='' PGUSER=${PGUSER:-$POSTGRES_USER} pg_ctl -D "$PGDATA" -o "$options" -w start
}

# docker_process_sql [PSQL-ARGUMENT...] runs psql on the new database. Its
# name is part of the contract: sourced init scripts call it.
docker_process_sql() {
	PGHOST='' PGHOSTADDR='' psql -v ON_ERROR_STOP=1 --no-psqlrc --no-password \
		--username "$POSTGRES_USER" ${POSTGRES_DB:+--dbname "$POSTGRES_DB"} "$@"
}

create_database() {
	local name=$POSTGRES_DB
	POSTGRES_DB='' docker_process_sql --quiet --dbname postgres --set name="$name" <<-'END'
		SELECT format('CREATE DATABASE %I', :'name')
		WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = :'name') \gexec
	END
}

run_init_files() {
	local file
	for file in "$initdb_dir"/*; do
		case $file in
		*.sh)
			printf '%s: %s\n' "${BASH_SOURCE[0]}" "$file"
			if [[ -x $file ]]; then
				"$file"
			else
				# shellcheck source=/dev/null
				. "$file"
			fi
			;;
		*.sql) run_sql "$file" cat ;;
		*.sql.gz) run_sql "$file" gzip -dc ;;
		*.sql.xz) run_sql "$file" xz -dc ;;
		*.sql.zst) run_sql "$file" zstd -dc ;;
		*) [[ ! -e $file ]] || printf '%s: ignoring %s\n' "${BASH_SOURCE[0]}" "$file" ;;
		esac
	done
}

# run_sql FILE DECOMPRESS...
run_sql() {
	printf '%s: %s\n' "${BASH_SOURCE[0]}" "$1"
	"${@:2}" "$1" | docker_process_sql
}

initialize() {
	require_password
	refuse_old_layout
	# A directory that cannot be read must stop us now: later, PG_VERSION would
	# make the next start take the cluster for finished.
	ls "$initdb_dir" >/dev/null
	run_initdb
	admit_hosts "$@"
	# For the case that POSTGRES_INITDB_ARGS asks for passwords on the socket.
	export PGPASSWORD=${PGPASSWORD:-$POSTGRES_PASSWORD}
	start_private "$@"
	create_database
	run_init_files
	PGUSER=${PGUSER:-$POSTGRES_USER} pg_ctl -D "$PGDATA" -m fast -w stop
	unset PGPASSWORD
	printf '\nPostgreSQL is initialized; starting it for good.\n\n'
}

# -----------------------------------------------------------------------------

[[ $1 != -* ]] || set -- postgres "$@"
if [[ $1 == postgres ]] && ! only_prints "$@"; then
	# Settings first: only root may be able to read the files of secrets.
	setting POSTGRES_PASSWORD
	setting POSTGRES_USER postgres
	setting POSTGRES_DB "$POSTGRES_USER"
	setting POSTGRES_INITDB_ARGS
	prepare_directories
	[[ $EUID -ne 0 ]] || step_down "$@"
	if [[ -s $PGDATA/PG_VERSION ]]; then
		printf 'PostgreSQL data found in %s; not initializing it.\n' "$PGDATA"
	else
		initialize "${@:2}"
	fi
fi
exec "$@"

#!/usr/bin/env bash
# Brings up a Docker engine for the tests where none answers.
#
#   hack/engine.sh up [--yes]   use the engine that answers; else install and start one
#   hack/engine.sh down         end the engine that "up" started; nothing else
#   hack/engine.sh status       say what answers and what "up" started
#
# Exit status: 0 an engine answers (up, status) or is ended (down);
# 1 it does not, and why is on standard error; 2 wrong usage.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$here/lib.sh"

readonly run_dir=/run/pgbranch-engine
readonly log_dir=/var/log/pgbranch-engine
readonly socket=/var/run/docker.sock
readonly sid_source=/etc/apt/sources.list.d/pgbranch-sid.sources
readonly sid_pin=/etc/apt/preferences.d/pgbranch-sid

# Debian's stable releases carry engines that are years old, so these come
# from sid. What they depend on stays stable's, because nothing else is pinned.
readonly sid_packages=(docker.io docker-cli docker-compose containerd tini-static)

usage() {
	sed -n '4,6s/^# *//p' "${BASH_SOURCE[0]}" >&2
	exit 2
}

# --- what answers ----------------------------------------------------------

# engine_version prints the version of the engine that DOCKER_HOST or the
# current context names. The bound is for endpoints such as ssh:// and tcp://
# that do not refuse but hang.
engine_version() {
	have docker || return 1
	timeout 20 docker version --format '{{.Server.Version}}' 2>/dev/null
}

endpoint() {
	docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null || printf 'unix://%s\n' "$socket"
}

describe_engine() {
	local version=$1
	printf 'engine %s at %s, storage driver %s, client %s (%s)\n' "$version" "$(endpoint)" \
		"$(docker info --format '{{.Driver}}')" \
		"$(docker version --format '{{.Client.Version}}')" "$(command -v docker)"
}

# require_local_endpoint refuses to bring up an engine that the client, told
# to look elsewhere, would then not use.
require_local_endpoint() {
	have docker || return 0
	local host
	host=$(endpoint)
	case $host in
	unix://"$socket" | unix:///run/docker.sock) ;;
	*) die "docker is set to $host, and no engine answers there" \
		"start that engine, or unset DOCKER_HOST and run 'docker context use default'" ;;
	esac
}

# --- may we? ---------------------------------------------------------------

agreed() {
	[[ $yes == true || ${CI:-} == true ]] && return 0
	[[ -t 0 && -t 2 ]] || return 1
	local answer
	read -r -p "No Docker engine answers. Install what is missing from Debian and start one? [y/N] " answer
	[[ $answer == [yY]* ]]
}

become_root() {
	[[ $EUID -ne 0 ]] || return 0
	have sudo || die "only root can install and start an engine, and there is no sudo" \
		"run this as root, or point DOCKER_HOST at an engine"
	exec sudo -- "${BASH_SOURCE[0]}" "$@"
}

# --- install ---------------------------------------------------------------

has_engine() { have dockerd && have containerd && have iptables && docker compose version >/dev/null 2>&1; }

install_engine() {
	is_debian || die "this script installs an engine on Debian only" \
		"install Docker Engine 28 or later and its Compose plugin, start it, and run this again"
	say "installing ${sid_packages[*]} from Debian sid"
	apt_update
	add_sid

	# Bridge networks and published ports need iptables; Debian's default
	# alternative (iptables-nft) will do.
	local packages=("${sid_packages[@]}" iptables ca-certificates)
	# Where the kernel has AppArmor, tests run confined as users' containers
	# do, and dockerd loads the profile for that with apparmor_parser.
	if [[ $(cat /sys/module/apparmor/parameters/enabled 2>/dev/null) == Y ]]; then
		packages+=(apparmor)
	fi
	without_service_start apt_install "${packages[@]}" >"$log_dir/install.log" 2>&1 || {
		tail -n 20 "$log_dir/install.log" >&2
		die "the packages could not be installed" "the whole log is $log_dir/install.log"
	}
	has_engine || die "the packages are installed, and still an engine, iptables or 'docker compose' is not in PATH" \
		"see what comes first in PATH: $(type -ap docker | paste -sd' ')"
}

# add_sid makes Debian sid known to apt at a priority that never installs
# anything, and lifts only the engine's packages above that.
add_sid() {
	local archives mirror
	archives=$(debian_archives)
	if [[ ! -e $sid_source ]] && grep -q ' sid$' <<<"$archives"; then
		return # the machine runs on sid, or its owner has it set up: leave that alone
	fi
	mirror=$(debian_mirror)
	# The pin goes first: sid without it would be a candidate for everything.
	cat >"$sid_pin" <<-END
		Package: *
		Pin: release n=sid
		Pin-Priority: -10

		Package: ${sid_packages[*]}
		Pin: release n=sid
		Pin-Priority: 990
	END
	# Only the package lists: sid's metadata for software centres is large.
	cat >"$sid_source" <<-END
		Types: deb
		URIs: $mirror
		Suites: sid
		Components: main
		Targets: Packages
		Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
	END
	apt_update
}

# without_service_start COMMAND...: without systemd, the packages' postinst
# would start dockerd through its init script, outside our pid files.
without_service_start() {
	local policy=/usr/sbin/policy-rc.d status=0
	if runs_systemd || [[ -e $policy ]]; then
		"$@"
		return
	fi
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
	"$@" || status=$?
	rm -f "$policy"
	return "$status"
}

# --- start and stop --------------------------------------------------------

runs_systemd() { [[ -d /run/systemd/system ]]; }

# started_pid NAME prints the pid of the daemon that we started, if it still
# is that daemon: a pid file outlives a crash, and its pid may by now belong
# to a program that is none of our business.
started_pid() {
	local pid exe
	pid=$(cat "$run_dir/$1.pid" 2>/dev/null) || return 1
	exe=$(readlink "/proc/$pid/exe" 2>/dev/null) || return 1
	exe=${exe% (deleted)} # the package was upgraded meanwhile
	[[ ${exe##*/} == "$1" ]] || return 1
	printf '%s\n' "$pid"
}

# start_daemon NAME ARGUMENT...
start_daemon() {
	local name=$1
	# The shell has no job control here, so the child is not a group leader
	# and setsid execs in place: $! is the daemon. It must not inherit the lock.
	setsid "$@" </dev/null >>"$log_dir/$name.log" 2>&1 9>&- &
	printf '%s\n' "$!" >"$run_dir/$name.pid"
}

# wait_for NAME SECONDS COMMAND...: until COMMAND succeeds or the daemon ends.
wait_for() {
	local name=$1 deadline=$((SECONDS + $2)) told=$((SECONDS + 30))
	shift 2
	until "$@" >/dev/null 2>&1; do
		if ((SECONDS >= told)); then
			say "still waiting for $name: $(tail -n 1 "$log_dir/$name.log")"
			told=$((SECONDS + 30))
		fi
		if ! started_pid "$name" >/dev/null; then
			tail -n 20 "$log_dir/$name.log" >&2
			die "$name ended while starting" "the whole log is $log_dir/$name.log"
		fi
		if ((SECONDS >= deadline)); then
			tail -n 20 "$log_dir/$name.log" >&2
			die "$name does not answer" "it still runs; see $log_dir/$name.log, then '${BASH_SOURCE[0]} down'"
		fi
		sleep 0.1
	done
}

containerd_answers() { ctr --connect-timeout 2s version; }
dockerd_answers() { timeout 10 docker -H "unix://$socket" version; }

start_engine() {
	if runs_systemd; then
		systemctl start containerd.service docker.service
		touch "$run_dir/systemd"
		return
	fi
	# containerd on its own and not as dockerd's child: containers then
	# outlive a dockerd that is killed, as they do under systemd.
	if ! containerd_answers >/dev/null 2>&1; then
		start_daemon containerd
		wait_for containerd 30 containerd_answers
	fi
	# No pid file of dockerd's own: it refuses to start when the pid in a
	# stale one is alive, whatever program that is by now.
	if ! started_pid dockerd >/dev/null; then
		start_daemon dockerd --containerd=/run/containerd/containerd.sock --pidfile=
	fi
	# dockerd does not listen before it has looked for the driver of every volume
	# it knows, and gives each driver that is gone 15 s (volume/service/restore.go,
	# pkg/plugins/plugins.go): a plugin removed before its volumes costs minutes here.
	wait_for dockerd 900 dockerd_answers
}

# stop_daemon NAME SECONDS
stop_daemon() {
	local name=$1 deadline=$((SECONDS + $2)) pid
	if pid=$(started_pid "$name"); then
		kill -TERM "$pid"
		while started_pid "$name" >/dev/null; do
			((SECONDS < deadline)) || die "$name (pid $pid) has not ended in $2 seconds" \
				"see $log_dir/$name.log; if it hangs: kill -KILL $pid"
			sleep 0.1
		done
		say "ended $name (pid $pid)"
	fi
	rm -f "$run_dir/$name.pid"
}

lock() {
	mkdir -p "$run_dir" "$log_dir"
	exec 9>"$run_dir/lock"
	flock -w 600 9 || die "another $0 has been at work for ten minutes"
}

# --- verbs -----------------------------------------------------------------

up() {
	local version
	if version=$(engine_version); then
		describe_engine "$version"
		return
	fi
	require_local_endpoint
	agreed || die "no Docker engine answers, and nobody agreed to install and start one" \
		"run '$0 up --yes', or start an engine and point DOCKER_HOST at it"
	become_root up --yes

	lock
	if ! engine_version >/dev/null; then # another "up" may have done it while we waited
		has_engine || install_engine
		start_engine
	fi
	version=$(engine_version) || die "the engine was started, and still '$(command -v docker)' gets no answer from it" \
		"try: docker version"
	describe_engine "$version"
}

down() {
	[[ -d $run_dir ]] || return 0
	become_root down
	lock
	if [[ -e $run_dir/systemd ]]; then
		# The socket first: it would start the service again.
		systemctl stop docker.socket docker.service containerd.service
		rm -f "$run_dir/systemd"
		return
	fi
	# dockerd gives each container its own stop timeout before it ends.
	stop_daemon dockerd 120
	stop_daemon containerd 30
}

status() {
	local name pid version
	for name in containerd dockerd; do
		if pid=$(started_pid "$name"); then
			printf '%s was started here: pid %s, log %s\n' "$name" "$pid" "$log_dir/$name.log"
		fi
	done
	version=$(engine_version) || die "no engine answers at $(endpoint)" "run '$0 up'"
	describe_engine "$version"
}

yes=false
[[ $# -gt 0 ]] || usage
verb=$1
shift
for argument; do
	case $verb:$argument in
	up:--yes | up:-y) yes=true ;;
	*) usage ;;
	esac
done
case $verb in
up | down | status) "$verb" ;;
*) usage ;;
esac

# shellcheck shell=bash
# What the scripts of this folder share: messages, and the ways of apt.
# To be sourced; sets nothing and runs nothing by itself.

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

# die MESSAGE [HINT]: the hint is what the user can do next.
die() {
	say "$1"
	[[ $# -lt 2 ]] || printf '  %s\n' "$2" >&2
	exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

is_debian() {
	# In a subshell: os-release sets names such as VERSION and ID.
	# shellcheck source=/dev/null
	(. /etc/os-release && [[ $ID == debian ]]) 2>/dev/null && have apt-get
}

# apt_update refreshes the package lists. apt waits for dpkg's lock when told
# to, but never for the lock on the lists, and a mirror that is being updated
# gives hash mismatches for a moment: both pass, so it is tried again.
apt_update() {
	local try out
	for try in 1 2 3 4 5; do
		if out=$(apt-get -q update -o APT::Update::Error-Mode=any 2>&1); then
			return 0
		fi
		say "apt-get update failed (try $try of 5)"
		sleep $((try * 2))
	done
	printf '%s\n' "$out" | tail -n 5 >&2
	die "the package lists could not be refreshed" "run 'apt-get update' and mend what it reports"
}

# apt_install PACKAGE...: without recommended packages and without questions.
apt_install() {
	DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -q -y \
		-o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 \
		-o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold \
		install --no-install-recommends "$@"
}

# is_installed PACKAGE...: whether dpkg has all of them configured.
is_installed() {
	local package
	for package; do
		[[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) == ii* ]] || return 1
	done
}

# debian_archives prints "URI CODENAME" for each Debian suite that this
# machine's apt is configured with. It needs package lists: only the
# downloaded Release file tells Debian's archive from another vendor's.
debian_archives() {
	# shellcheck disable=SC2016 # the placeholders are apt's
	apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(ORIGIN) $(COMPONENT)' \
		'Created-By: Packages' | awk '$3 == "Debian" && $4 == "main" { print $1, $2 }' | sort -u
}

# debian_mirror prints the URI of the machine's own Debian mirror. A suite
# named by its plain codename is in the main archive; the security archive
# has names like "bookworm-security" only, and no sid.
debian_mirror() {
	local archives mirror
	archives=$(debian_archives)
	if [[ -z $archives ]]; then # never updated
		apt_update
		archives=$(debian_archives)
	fi
	mirror=$(awk '$2 !~ /-/ { print $1; exit }' <<<"$archives")
	[[ -n $mirror ]] || die "apt on this machine has no Debian mirror" \
		"add one to /etc/apt/sources.list.d, run 'apt-get update', and try again"
	printf '%s\n' "$mirror"
}

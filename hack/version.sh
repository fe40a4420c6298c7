#!/usr/bin/env bash
# Prints this tree's version. Two builds of one version must be one build, since
# `docker pgbranch setup` replaces an installed volume plugin only when its
# version differs: a tree with changes gets a digest of them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! version=$(git describe --tags --always 2>/dev/null); then
	echo dev
	exit 0
fi
if [[ -n $(git status --porcelain) ]]; then
	changes=$({ git diff HEAD; git ls-files -z --others --exclude-standard | xargs -0 -r cat; } | sha256sum)
	version+="-dirty-${changes:0:8}"
fi
echo "$version"

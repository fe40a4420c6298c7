# docker-pgbranch. On a fresh Debian machine two commands do everything:
#   make demo    the main job, from nothing
#   make test    every test
#   make torture the long forms of some

VERSION := $(shell hack/version.sh)
ARCHS   := amd64 arm64
HOST    := $(shell go env GOARCH)
BUNDLE  := engine/bundle/files
MODULE  := github.com/pgbranch/docker-pgbranch
# The user's Docker CLI plugin folder.
PLUGINS := $(or $(DOCKER_CONFIG),$(HOME)/.docker)/cli-plugins

# Every program is static: the CLI runs on any distribution, and pgoverlay in any
# container.
GO      := CGO_ENABLED=0 go
LDFLAGS := -s -w

.PHONY: help
help:
	@echo "make demo | test | torture | build | install | shim | plugin | plugin-push | lint | clean | clean-engine-state"

.PHONY: packages
packages:
	@hack/packages.sh

.PHONY: build
build: build/docker-pgbranch

.PHONY: shim
shim: packages
	$(MAKE) --no-print-directory -C shim

# The volume plugin, for `docker plugin create` by hand and for the CLI to embed.
.PHONY: plugin
plugin: $(ARCHS:%=build/plugin-%/rootfs/pgoverlay) $(ARCHS:%=$(BUNDLE)/pgoverlay-%.gz) $(BUNDLE)/config.json

# Always asked: go build knows best what has changed.
.PHONY: FORCE
FORCE:

build/plugin-%/rootfs/pgoverlay: shim FORCE
	@mkdir -p $(@D)
	GOARCH=$* $(GO) build -trimpath -ldflags '$(LDFLAGS) -X main.version=$(VERSION)' -o $@ ./cmd/pgoverlay
	@cp config.json build/plugin-$*/config.json

$(BUNDLE)/pgoverlay-%.gz: build/plugin-%/rootfs/pgoverlay
	gzip -9 -n -c $< > $@

$(BUNDLE)/config.json: config.json
	cp $< $@

build/docker-pgbranch: plugin FORCE
	@mkdir -p $(@D)
	$(GO) build -trimpath -ldflags '$(LDFLAGS) -X $(MODULE)/plugin.Version=$(VERSION)' -o $@ ./cmd/docker-pgbranch

.PHONY: install
install: build
	@mkdir -p $(PLUGINS)
	install -m 755 build/docker-pgbranch $(PLUGINS)/docker-pgbranch
	@echo "installed docker pgbranch $(VERSION) in $(PLUGINS)"

# The volume plugin in a registry, for `docker plugin install`:
#   make plugin-push REGISTRY=HOST[:PORT]/NAME TAG=...
.PHONY: plugin-push
plugin-push: plugin
	@test -n '$(REGISTRY)' || { echo 'say where to: make plugin-push REGISTRY=HOST[:PORT]/NAME TAG=...'; exit 2; }
	go run ./hack/pluginpush -plugins build -repository '$(REGISTRY)' -tag '$(or $(TAG),$(VERSION))'

.PHONY: demo
demo:
	@hack/demo.sh

.PHONY: test
test:
	@hack/test.sh

# The long forms of what `make test` has short: hours. shim/test/README.md says what.
.PHONY: torture
torture: build
	@hack/packages.sh tests
	hack/engine.sh up
	hack/images.sh 17
	go test -tags e2e -count 1 -timeout 60m -v ./hack/faults/
	$(MAKE) --no-print-directory -C shim torture
	hack/test.sh '^TestLong'

# Hours on a quiet machine; goes on where it was. See hack/bench/main.go.
.PHONY: bench
bench: install
	go run ./hack/bench

.PHONY: lint
lint:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt would change: $$out"; exit 1; }
	go vet ./...
	go vet -tags e2e ./...
	@shellcheck -x -P SCRIPTDIR $$(git ls-files '*.sh') .ci/run

.PHONY: clean
clean:
	rm -rf build $(BUNDLE)/*
	$(MAKE) --no-print-directory -C shim clean

# Removes everything that this project made in the engine, and the engine too if
# hack/engine.sh started it.
.PHONY: clean-engine-state
clean-engine-state:
	@hack/clean.sh

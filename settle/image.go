package settle

import (
	"context"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// runPreflight tells what the image of this container is, so that its caller can say
// whether it suits a seed. It looks at nothing else and writes nothing.
func runPreflight(ctx context.Context, in *input, _ *events) (contract.AgentEvent, error) {
	var req contract.PreflightRequest
	if err := in.request(&req); err != nil {
		return contract.AgentEvent{}, err
	}
	a, err := postgresAccount()
	if err != nil {
		return contract.AgentEvent{}, err
	}
	facts, err := imageFacts(ctx, a)
	return contract.AgentEvent{Image: facts}, err
}

// imageFacts asks the image's own programs and files.
func imageFacts(ctx context.Context, a account) (*contract.ImageFacts, error) {
	f := &contract.ImageFacts{UID: a.uid, GID: a.gid}
	server, err := tool("postgres")
	if err != nil {
		return nil, err
	}
	// First what needs no running of it: a server for another C library may not run.
	if f.Libc, err = libc(ctx); err != nil {
		return nil, err
	}
	f.ICU = icuOf(server)
	f.CannotLoad = cannotLoadInto(server)
	out, err := a.output(ctx, "postgres", "--version")
	if err != nil {
		return nil, notRun(err, f.CannotLoad)
	}
	if f.Major, err = imageMajor(ctx, a, "postgres"); err != nil {
		return nil, err
	}
	_, version, _ := strings.Cut(strings.TrimSpace(out), ") ")
	f.ServerVersion = version
	if strings.HasPrefix(f.Libc, "glibc") {
		f.Locales = locales(ctx)
	}
	f.Extensions = extensionsIn(a.shareDir(ctx, server))
	f.Libraries = librariesIn(a.libDir(ctx, server))
	return f, nil
}

// notRun adds to the failure of the image's server what is known of it: an engine without an emulator
// says "exec format error" of another architecture's program.
func notRun(err error, why string) error {
	var failed *contract.AgentError
	if why == "" || !errors.As(err, &failed) {
		return err
	}
	failed.Code = contract.AgentErrImage
	failed.Message += "; " + why
	failed.Hint = "name an image of the engine's own architecture"
	return failed
}

var icuLibrary = pattern(`^libicui18n\.so\.(\d+)`)

// icuOf is the major version of ICU that a program is linked with.
func icuOf(program string) string {
	f, err := elf.Open(program)
	if err != nil {
		return ""
	}
	defer f.Close()
	libraries, _ := f.ImportedLibraries()
	for _, l := range libraries {
		if m := icuLibrary().FindStringSubmatch(l); m != nil {
			return m[1]
		}
	}
	return ""
}

// locales are those that the C library knows, nil where nothing can tell.
func locales(ctx context.Context) []string {
	cmd := exec.CommandContext(ctx, "locale", "-a")
	cmd.Env = environment("/")
	out, err := cmd.Output()
	if err != nil {
		return nil
	}
	found := strings.Fields(string(out))
	slices.Sort(found)
	return slices.Compact(found)
}

// shareDir is where the server looks for extensions. pg_config says so, and is a package of its own
// in Debian; else it is found beside the program as the server finds it
// (make_relative_path in path.c), in the layouts of Debian and of the source.
func (a account) shareDir(ctx context.Context, server string) string {
	if out, err := a.output(ctx, "pg_config", "--sharedir"); err == nil {
		return strings.TrimSpace(out)
	}
	if real, err := filepath.EvalSymlinks(server); err == nil {
		server = real
	}
	prefix := filepath.Dir(filepath.Dir(server))
	for _, dir := range []string{
		strings.Replace(prefix, "/lib/postgresql/", "/share/postgresql/", 1),
		filepath.Join(prefix, "share", "postgresql"), filepath.Join(prefix, "share"),
	} {
		if info, err := os.Stat(filepath.Join(dir, "extension")); err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}

// libDir is where the server looks for modules, found as shareDir is.
func (a account) libDir(ctx context.Context, server string) string {
	if out, err := a.output(ctx, "pg_config", "--pkglibdir"); err == nil {
		return strings.TrimSpace(out)
	}
	if real, err := filepath.EvalSymlinks(server); err == nil {
		server = real
	}
	lib := filepath.Join(filepath.Dir(filepath.Dir(server)), "lib")
	for _, dir := range []string{filepath.Join(lib, "postgresql"), lib} {
		if _, err := os.Stat(filepath.Join(dir, "plpgsql.so")); err == nil {
			return dir
		}
	}
	return ""
}

// librariesIn lists the modules of a folder, nil where there are none: that says nothing.
func librariesIn(dir string) []string {
	if dir == "" {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.so"))
	var found []string
	for _, file := range files { // sorted
		found = append(found, strings.TrimSuffix(filepath.Base(file), ".so"))
	}
	return found
}

var defaultVersion = pattern(`(?m)^\s*default_version\s*=\s*'([^']*)'`)

// extensionsIn lists the extensions by their control files, nil where there is no such
// folder: that says nothing.
func extensionsIn(share string) map[string]string {
	if share == "" {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(share, "extension", "*.control"))
	if err != nil || len(files) == 0 {
		return nil
	}
	found := map[string]string{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".control")
		found[name] = ""
		text, err := os.ReadFile(file)
		if m := defaultVersion().FindSubmatch(text); err == nil && m != nil {
			found[name] = string(m[1])
		}
	}
	return found
}

// unsuited says what of these speaks against making a seed with the image: what is Never,
// and, unless the user insists, what is Grave.
func unsuited(found []contract.Unfit, force bool) error {
	for _, u := range found {
		switch {
		case u.Never:
			return fail(contract.AgentErrMajor, "name an image with --image that suits the source", "%s: %s", u.What, u.Why)
		case u.Grave && !force:
			return fail(contract.AgentErrImage, "name an image with --image that suits the source, or insist with --force", "%s: %s", u.What, u.Why)
		}
	}
	return nil
}

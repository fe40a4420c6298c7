package volumedriver

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgbranch/docker-pgbranch/volumedriver/contract"
)

// validOptions is what every refusal of options ends with.
const validOptions = "valid options: " +
	contract.OptSeed + "=NAME[@GENERATION] makes a branch of a seed, " +
	contract.OptBranch + "=NAME a branch of a branch, both with " +
	contract.OptCow + "=" + contract.CowAuto + "|" + contract.CowFile + "|" + contract.CowOff +
	", " + contract.OptTTL + "=24h and " + contract.OptConfPrefix + "NAME=VALUE for a setting of Postgres; " +
	contract.OptStaging + "=NAME, with " +
	contract.OptGeneration + "=" + contract.GenerationFirst + "|" + contract.GenerationNext +
	", makes a staging volume; " +
	contract.OptOp + "=" + contract.OpStatus + "|" + contract.OpSeal + "|" + contract.OpReset + "|" + contract.OpUsage +
	", with " + contract.OptVolume + "=NAME, makes a ticket"

const nameHint = "a name starts with a letter or a digit, goes on with letters, digits, '_', '.' and '-', " +
	"and has 2 to 128 characters"

// options are the parsed options of a create.
type options struct {
	// kind is contract.KindBranch, KindStaging or KindTicket.
	kind string
	// seed is the name of the seed that a branch is made of or that a staging volume
	// is for; generation is 0 for the newest.
	seed       string
	generation int
	// parent is the branch that a branch is made of.
	parent string
	cow    string
	// ttl is 0 where the branch does not expire.
	ttl time.Duration
	// conf are the settings of the branch's own, as sorted lines NAME=VALUE.
	conf string
	// next permits a staging volume for a seed that exists.
	next bool
	op   string
	// target is the volume that a ticket is about.
	target string
}

// allowed lists, for each option that says what to make, the options beside it.
var allowed = map[string][]string{
	contract.OptSeed:    {contract.OptCow, contract.OptTTL},
	contract.OptBranch:  {contract.OptCow, contract.OptTTL},
	contract.OptStaging: {contract.OptGeneration},
	contract.OptOp:      {contract.OptVolume},
}

// parseOptions checks the name and the options of a create. No option at all is an
// error: an empty PGDATA makes an image run initdb where a user expects data.
func parseOptions(name string, opts map[string]string) (options, error) {
	if !contract.ValidName(name) {
		return options{}, refuse(named("volume", name), "this name is not allowed", nameHint)
	}
	object := named("volume", name)
	opts, conf, err := takeSettings(object, opts)
	if err != nil {
		return options{}, err
	}
	main, err := mainOption(object, opts)
	if err != nil {
		return options{}, err
	}
	if conf != "" && main != contract.OptSeed && main != contract.OptBranch {
		return options{}, refuse(object, fmt.Sprintf("a setting does not go with %q", main), validOptions)
	}
	for _, key := range sortedKeys(opts) {
		if key != main && !slices.Contains(allowed[main], key) {
			cause := fmt.Sprintf("unknown option %q", key)
			if isOption(key) {
				cause = fmt.Sprintf("option %q does not go with %q", key, main)
			}
			return options{}, refuse(object, cause, validOptions)
		}
	}
	switch main {
	case contract.OptStaging:
		return stagingOptions(object, opts)
	case contract.OptOp:
		return ticketOptions(object, opts)
	default:
		o, err := branchOptions(object, main, opts)
		o.conf = conf
		return o, err
	}
}

// mainOption finds the one option that says what to make.
func mainOption(object string, opts map[string]string) (string, error) {
	var found []string
	for _, key := range sortedKeys(opts) {
		if _, ok := allowed[key]; ok {
			found = append(found, key)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", refuse(object, "options "+strings.Join(found, " and ")+" exclude each other", validOptions)
	}
	for _, key := range sortedKeys(opts) {
		if !isOption(key) {
			return "", refuse(object, fmt.Sprintf("unknown option %q", key), validOptions)
		}
	}
	return "", refuse(object, "needs an option that says what to make, and is never an empty volume", validOptions)
}

func branchOptions(object, main string, opts map[string]string) (options, error) {
	o := options{kind: contract.KindBranch, cow: contract.CowAuto}
	value := opts[main]
	if main == contract.OptBranch {
		if !contract.ValidName(value) {
			return o, refuse(object, fmt.Sprintf("branch name %q is not allowed", value), nameHint)
		}
		o.parent = value
	} else {
		seed, gen, err := parseSeed(value)
		if err != nil {
			return o, refuse(object, err.Error(), nameHint+"; a generation is a number from 1 on")
		}
		o.seed, o.generation = seed, gen
	}
	if cow, ok := opts[contract.OptCow]; ok {
		if cow != contract.CowAuto && cow != contract.CowFile && cow != contract.CowOff {
			return o, refuse(object, fmt.Sprintf("cow=%q is unknown", cow),
				"valid values: "+contract.CowAuto+", "+contract.CowFile+", "+contract.CowOff)
		}
		o.cow = cow
	}
	if ttl, ok := opts[contract.OptTTL]; ok {
		d, err := time.ParseDuration(ttl)
		if err != nil || d <= 0 {
			return o, refuse(object, fmt.Sprintf("ttl=%q is no positive duration", ttl), `write it like "24h" or "90m"`)
		}
		o.ttl = d
	}
	return o, nil
}

func stagingOptions(object string, opts map[string]string) (options, error) {
	o := options{kind: contract.KindStaging, seed: opts[contract.OptStaging]}
	if !contract.ValidName(o.seed) {
		return o, refuse(object, fmt.Sprintf("seed name %q is not allowed", o.seed), nameHint)
	}
	switch gen, ok := opts[contract.OptGeneration]; {
	case !ok || gen == contract.GenerationFirst:
	case gen == contract.GenerationNext:
		o.next = true
	default:
		return o, refuse(object, fmt.Sprintf("generation=%q is unknown", gen),
			"valid values: "+contract.GenerationFirst+", "+contract.GenerationNext)
	}
	return o, nil
}

func ticketOptions(object string, opts map[string]string) (options, error) {
	o := options{kind: contract.KindTicket, op: opts[contract.OptOp], target: opts[contract.OptVolume]}
	switch o.op {
	case contract.OpStatus:
		if o.target != "" {
			return o, refuse(object, "op=status takes no volume", validOptions)
		}
	case contract.OpSeal, contract.OpReset, contract.OpUsage:
		if o.target == "" {
			return o, refuse(object, "op="+o.op+" needs "+contract.OptVolume+"=NAME", validOptions)
		}
		if !contract.ValidName(o.target) {
			return o, refuse(object, fmt.Sprintf("volume name %q is not allowed", o.target), nameHint)
		}
	default:
		return o, refuse(object, fmt.Sprintf("op=%q is unknown", o.op), validOptions)
	}
	return o, nil
}

// parseSeed splits NAME[@GENERATION]; generation 0 stands for the newest.
func parseSeed(s string) (name string, generation int, err error) {
	name, gen, given := strings.Cut(s, "@")
	if !contract.ValidName(name) {
		return "", 0, fmt.Errorf("seed name %q is not allowed", name)
	}
	if !given {
		return name, 0, nil
	}
	generation, err = strconv.Atoi(gen)
	if err != nil || generation < 1 || strconv.Itoa(generation) != gen {
		return "", 0, fmt.Errorf("seed generation %q is no number from 1 on", gen)
	}
	return name, generation, nil
}

// seedVolume is the volume name of a seed generation. No name that a user may give
// contains '@', so it collides with none.
func seedVolume(name string, generation int) string {
	return name + "@" + strconv.Itoa(generation)
}

func isOption(key string) bool {
	if _, ok := allowed[key]; ok {
		return true
	}
	for _, with := range allowed {
		if slices.Contains(with, key) {
			return true
		}
	}
	return false
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

package volumedriver

import (
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

func TestParseOptionsAccepts(t *testing.T) {
	for name, c := range map[string]struct {
		opts []string
		want options
	}{
		"seed":            {[]string{"seed", "shop"}, options{kind: "branch", seed: "shop", cow: "auto"}},
		"generation":      {[]string{"seed", "shop@3", "cow", "off"}, options{kind: "branch", seed: "shop", generation: 3, cow: "off"}},
		"ttl":             {[]string{"seed", "shop", "ttl", "90m", "cow", "file"}, options{kind: "branch", seed: "shop", cow: "file", ttl: 90 * time.Minute}},
		"settings":        {[]string{"seed", "shop", "conf.work_mem", "8MB", "conf.Log_Statement", "all"}, options{kind: "branch", seed: "shop", cow: "auto", conf: "log_statement=all\nwork_mem=8MB\n"}},
		"branch":          {[]string{"branch", "b1"}, options{kind: "branch", parent: "b1", cow: "auto"}},
		"staging":         {[]string{"staging", "shop"}, options{kind: "staging", seed: "shop"}},
		"staging, first":  {[]string{"staging", "shop", "generation", "first"}, options{kind: "staging", seed: "shop"}},
		"staging, next":   {[]string{"staging", "shop", "generation", "next"}, options{kind: "staging", seed: "shop", next: true}},
		"status":          {[]string{"op", "status"}, options{kind: "ticket", op: "status"}},
		"seal":            {[]string{"op", "seal", "volume", "vx"}, options{kind: "ticket", op: "seal", target: "vx"}},
		"reset":           {[]string{"op", "reset", "volume", "vx"}, options{kind: "ticket", op: "reset", target: "vx"}},
		"longest of name": {[]string{"seed", strings.Repeat("a", 128)}, options{kind: "branch", seed: strings.Repeat("a", 128), cow: "auto"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseOptions("vx", optionMap(c.opts))
			assert.NilError(t, err)
			assert.Check(t, got == c.want, "got %+v", got)
		})
	}
}

func TestParseOptionsRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		opts []string
		want string
	}{
		"none":               {nil, "never an empty volume"},
		"unknown":            {[]string{"sed", "shop"}, `unknown option "sed"`},
		"unknown beside":     {[]string{"seed", "shop", "size", "1"}, `unknown option "size"`},
		"two parents":        {[]string{"seed", "shop", "branch", "bb"}, "branch and seed exclude each other"},
		"seed and op":        {[]string{"seed", "shop", "op", "status"}, "op and seed exclude each other"},
		"only cow":           {[]string{"cow", "off"}, "needs an option"},
		"empty seed":         {[]string{"seed", ""}, `seed name "" is not allowed`},
		"seed with slash":    {[]string{"seed", "../x"}, "is not allowed"},
		"generation 0":       {[]string{"seed", "shop@0"}, "is no number from 1 on"},
		"generation 01":      {[]string{"seed", "shop@01"}, "is no number from 1 on"},
		"generation x":       {[]string{"seed", "shop@x"}, "is no number from 1 on"},
		"port":               {[]string{"seed", "shop", "conf.PORT", "1"}, "port cannot be set"},
		"no setting":         {[]string{"seed", "shop", "conf.", "1"}, "needs a name"},
		"bad setting":        {[]string{"seed", "shop", "conf.work mem", "1"}, `"work mem" is no name`},
		"two lines":          {[]string{"seed", "shop", "conf.a", "1'\nport=2"}, "more than one line"},
		"setting twice":      {[]string{"seed", "shop", "conf.a", "1", "conf.A", "2"}, "set twice"},
		"setting of staging": {[]string{"staging", "shop", "conf.a", "1"}, `a setting does not go with "staging"`},
		"cow":                {[]string{"seed", "shop", "cow", "on"}, `cow="on" is unknown`},
		"ttl":                {[]string{"seed", "shop", "ttl", "1 day"}, "no positive duration"},
		"ttl negative":       {[]string{"seed", "shop", "ttl", "-1h"}, "no positive duration"},
		"ttl of a staging":   {[]string{"staging", "shop", "ttl", "1h"}, `option "ttl" does not go with "staging"`},
		"generation unknown": {[]string{"staging", "shop", "generation", "2"}, `generation="2" is unknown`},
		"seal without":       {[]string{"op", "seal"}, "needs volume=NAME"},
		"status with":        {[]string{"op", "status", "volume", "vx"}, "takes no volume"},
		"op unknown":         {[]string{"op", "gc"}, `op="gc" is unknown`},
		"seal of a path":     {[]string{"op", "seal", "volume", "a/b"}, "is not allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseOptions("vx", optionMap(c.opts))
			assert.Check(t, is.ErrorContains(err, c.want))
			assert.Check(t, is.ErrorContains(err, "\n"), "every refusal has a hint")
		})
	}
}

func TestParseOptionsRefusesNames(t *testing.T) {
	for _, name := range []string{
		"", ".", "..", "x", "../../x", "a/b", "a b", "-rf", ".hidden", "_x", "x:y", "x@1", "é", "x\n", "x\x00", strings.Repeat("a", 129), strings.Repeat("a", 200),
	} {
		_, err := parseOptions(name, map[string]string{"seed": "shop"})
		assert.Check(t, is.ErrorContains(err, "not allowed"), "%q", name)
		assert.Check(t, is.ErrorContains(err, "letters, digits, '_', '.' and '-'"), "%q", name)
	}
}

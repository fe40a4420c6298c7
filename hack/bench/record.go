package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Sample is one measurement: one workload on one variant in one round.
type Sample struct {
	Variant string `json:"variant"`
	Round   int    `json:"round"`
	// Turn is the variant's place in its round, from 0.
	Turn int `json:"turn"`
	// Values are by metric: seconds, bytes, transactions a second, as the metric's name
	// says by its end.
	Values map[string]float64 `json:"values"`
	// Load is the load average of one minute when the measurement began.
	Load    float64   `json:"load"`
	Started time.Time `json:"started"`
	// Session is an index into Recording.Sessions.
	Session int `json:"session"`
}

// Session is one invocation of this program that measured something.
type Session struct {
	Host    Host      `json:"host"`
	Started time.Time `json:"started"`
	// Scale is the size of everything: "full", "small" or "tiny".
	Scale string `json:"scale"`
}

// Recording is all that was measured of one workload. It is its own state file: what
// is in it is not measured again.
type Recording struct {
	Workload string    `json:"workload"`
	Sessions []Session `json:"sessions"`
	Samples  []Sample  `json:"samples"`

	path string
}

// openRecording reads what there is of a workload, or begins it.
func openRecording(dir, workload string) (*Recording, error) {
	r := &Recording{Workload: workload, path: filepath.Join(dir, workload+".json")}
	raw, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	return r, json.Unmarshal(raw, r)
}

// has reports whether a measurement is done at that scale.
func (r *Recording) has(variant string, round int, scale string) bool {
	for _, s := range r.Samples {
		if s.Variant == variant && s.Round == round && r.Sessions[s.Session].Scale == scale {
			return true
		}
	}
	return false
}

// add keeps a measurement: on disk, before the next one begins.
func (r *Recording) add(session Session, s Sample) error {
	s.Session = -1
	for i, known := range r.Sessions {
		if known.Started.Equal(session.Started) {
			s.Session = i
		}
	}
	if s.Session < 0 {
		r.Sessions = append(r.Sessions, session)
		s.Session = len(r.Sessions) - 1
	}
	r.Samples = append(r.Samples, s)
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(r.path+".tmp", append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(r.path+".tmp", r.path)
}

// series gives a variant's values of a metric by round, of one scale.
func (r *Recording) series(variant, metric, scale string) map[int]float64 {
	found := map[int]float64{}
	for _, s := range r.Samples {
		if v, ok := s.Values[metric]; ok && s.Variant == variant && r.Sessions[s.Session].Scale == scale {
			found[s.Round] = v
		}
	}
	return found
}

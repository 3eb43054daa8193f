package http

import (
	"maps"
	nethttp "net/http"
	"slices"

	"github.com/headrace/headrace/server/broker"
)

// alterBody is a change of a topic's settings. A setting that is unset is the default again.
type alterBody struct {
	Set    map[string]string `json:"set"`
	Unset  []string          `json:"unset"`
	DryRun bool              `json:"dry_run"`
}

type alteredBody struct {
	Name   string `json:"name"`
	DryRun bool   `json:"dry_run,omitempty"`
	broker.Altered
}

// alterTopic changes settings and answers what has changed and about what is deleted for it. It returns when the settings
// are in force.
func (a *api) alterTopic(w nethttp.ResponseWriter, r *nethttp.Request) error {
	raw, err := body(w, r, MaxBodyBytes)
	if err != nil {
		return err
	}
	var in alterBody
	if err := decodeBody(raw, "a change of settings", &in); err != nil {
		return err
	}
	change := broker.Alteration{DryRun: in.DryRun, Preview: true}
	for _, name := range slices.Sorted(maps.Keys(in.Set)) {
		change.Changes = append(change.Changes, broker.ConfigChange{Name: name, Value: in.Set[name]})
	}
	for _, name := range in.Unset {
		change.Changes = append(change.Changes, broker.ConfigChange{Name: name, Op: broker.DeleteConfig})
	}
	out := alteredBody{Name: r.PathValue("name"), DryRun: in.DryRun}
	if out.Altered, err = a.Broker.AlterTopic(r.Context(), out.Name, change); err != nil {
		return err
	}
	writeJSON(w, nethttp.StatusOK, out)
	return nil
}

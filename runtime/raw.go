package runtime

import (
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/internal/scalar"
)

// rawTopic is how a topic without schema reads: { key: bytes?, value: bytes? }, event time from the
// records.
func rawTopic() *plan.Topic {
	opaque := scalar.Type{Kind: scalar.KindBytes, Nullable: true}
	return &plan.Topic{
		Format: plan.FormatRaw,
		Schema: plan.Schema{Columns: []plan.Column{{Name: "key", Input: "key", Type: opaque}, {Name: "value", Input: "value", Type: opaque}}},
	}
}

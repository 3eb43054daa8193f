package replication

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/internal/golden"
	"github.com/headrace/headrace/log"
)

// The bytes of commands, rows, the identity and the open mark are on disks: a change here is a change of format.
func TestFormats(t *testing.T) {
	var out strings.Builder
	name := log.TopicID{0: 0xaa, 15: 1}
	two, owner, set := int32(2), "web/clicks", DefaultSettings()
	commands := []struct {
		title string
		kind  commandKind
		body  any
	}{
		{"create-topic", cmdCreateTopic, Topic{Name: "clicks", ID: name, Partitions: 1, Settings: DefaultSettings(), CreatedAt: 1700000000000, Configs: map[string]string{"retention.ms": "-1"}}},
		{"set-topic", cmdSetTopic, setTopic{Name: "clicks", Patch: TopicPatch{Partitions: &two, Owner: &owner, Settings: &set}}},
		{"put-module", cmdPutModule, putModule{Module: ModuleRow{Name: "web", Text: "text", State: "running", AppliedAt: 5, Pipelines: []PipelineRow{{Name: "hot", Version: "v", Task: log.TaskID{1}, Start: "earliest", State: "running"}}}}},
		{"register-node", cmdRegisterNode, NodeRow{ID: 1, Disk: "disk", StartedAt: 7}},
		{"producer-block", cmdProducerBlock, struct{}{}},
		{"put-schema", cmdPutSchema, SchemaRow{Name: "s", Text: "{}"}},
		{"delete-module", cmdDeleteModule, deleteModule{Name: "web", Expect: 1}},
		{"delete-topic", cmdDeleteTopic, deleteTopic{Name: "clicks"}},
	}
	m, err := openMeta(fsx.NewMem(), "rows", quiet)
	must(t, err)
	defer m.Close() //nolint:errcheck // a test
	s := NewMemShard(m, MemOptions{Auto: true})
	rows := func(title string) {
		fmt.Fprintf(&out, "rows %s\n----\n", title)
		it, err := m.db.NewIter(nil)
		must(t, err)
		for ok := it.First(); ok; ok = it.Next() {
			fmt.Fprintf(&out, "%q %q\n", it.Key(), it.Value())
		}
		must(t, it.Close())
		out.WriteByte('\n')
	}
	for i, c := range commands {
		u, err := command(c.kind, c.body)
		must(t, err)
		r := s.Do(t.Context(), u)
		e, err := log.DecodeEntry(log.EncodeEntry(nil, 0, []*log.Unit{u}))
		must(t, err)
		for _, v := range e.Units() {
			for op := range v.Ops() {
				fmt.Fprintf(&out, "command %s\n----\n%02x %s\n%s %v\n\n", c.title, op.Body[0], op.Body[1:], r.Outcome, r.Offsets)
			}
		}
		if i == len(commands)-3 {
			rows("after six commands")
		}
	}
	rows("at the end")
	b, err := identity{Version: 1, ClusterID: "c", NodeID: 1, DiskID: "d", CreatedAt: 1, Formatted: true}.encode()
	must(t, err)
	fmt.Fprintf(&out, "identity\n----\n%s\n", hex.Dump(b))
	b, err = OpenMark{Epoch: 7, BootID: "boot", Since: time.UnixMilli(1_700_000_000_000).UTC(), PID: 42}.encode()
	must(t, err)
	fmt.Fprintf(&out, "open\n----\n%s", hex.Dump(b))
	golden.Check(t, "testdata/formats.txt", out.String())
}

package replication

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/headrace/headrace/internal/fsx"
	"github.com/headrace/headrace/log"
)

// judge applies commands one by one, each an entry of its own, and returns the catalogue, the rows that they
// wrote and what they were told.
func judge(t *testing.T, db *pebble.DB, commands ...[]byte) (*Catalog, *pebble.Batch, [][]int64, []error) {
	t.Helper()
	c := newCatalog()
	batch := db.NewIndexedBatch()
	var offsets [][]int64
	var errs []error
	for i, cmd := range commands {
		next := *c
		a := applier{c: &next, index: uint64(i + 1), batch: batch}
		u := new(log.Unit)
		u.Command(cmd)
		e, err := log.DecodeEntry(log.EncodeEntry(nil, 5, []*log.Unit{u}))
		must(t, err)
		for _, v := range e.Units() {
			before, rows := dump(a.c), batch.Len()
			o, err := a.unit(v)
			if err != nil && (!reflect.DeepEqual(before, dump(a.c)) || batch.Len() != rows || len(a.work) > 0) {
				t.Fatalf("%q is refused and has changed something: %v", cmd, err)
			}
			offsets, errs = append(offsets, o), append(errs, err)
		}
		if a.err != nil {
			t.Fatalf("%q: rows: %v", cmd, a.err)
		}
		c = &next
	}
	return c, batch, offsets, errs
}

var refusals = []error{
	ErrTopicExists, ErrUnknownTopic, ErrInvalidName, ErrInvalidTopic, ErrUnknownModule, ErrVersionConflict, ErrLimit,
	log.ErrBadUnit,
}

// FuzzCommand: any bytes, after commands that were fine, are a definite no that changes nothing, or a command
// that every node takes alike and whose rows, read again, are the catalogue.
func FuzzCommand(f *testing.F) {
	encode := func(kind commandKind, body any) []byte {
		b, err := json.Marshal(body)
		if err != nil {
			f.Fatal(err)
		}
		return append([]byte{byte(kind)}, b...)
	}
	four, text := int32(4), json.RawMessage(`{"a": 1}`)
	topic := Topic{Name: "here", ID: log.TopicID{1}, Partitions: 2, Configs: map[string]string{"a": "b", "c": "d"}}
	ground := [][]byte{
		encode(cmdCreateTopic, topic),
		encode(cmdPutModule, putModule{Module: ModuleRow{Name: "module", Text: "text", Params: map[string]string{"p": "1"}}}),
		encode(cmdPutSchema, SchemaRow{Name: "schema", Text: "text"}),
		encode(cmdRegisterNode, NodeRow{ID: 1, Disk: "disk"}),
	}
	for _, cmd := range ground {
		f.Add(cmd)
	}
	other := Topic{Name: "other", ID: log.TopicID{2}, Partitions: 1, Schema: text}
	f.Add(encode(cmdCreateTopic, other))
	f.Add(encode(cmdDeleteTopic, deleteTopic{Name: "here"}))
	f.Add(encode(cmdSetTopic, setTopic{Name: "here", Patch: TopicPatch{Partitions: &four, Schema: &text}}))
	f.Add([]byte("\x03{\"name\":\"here\",\"patch\":{\"schema\":null,\"settings\":{}}}"))
	f.Add(encode(cmdDeleteModule, deleteModule{Name: "module", Expect: -1}))
	f.Add(encode(cmdProducerBlock, struct{}{}))
	f.Add(encode(cmdPurge, purge{IDs: []log.TopicID{{1}, {1}}}))
	f.Add([]byte("\x00{}"))
	f.Add([]byte{})

	m, err := openMeta(fsx.NewMem(), "rows", quiet)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := m.Close(); err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, cmd []byte) {
		all := append(slices.Clone(ground), cmd, cmd)
		c, rows, offsets, errs := judge(t, m.db, all...)
		defer func() { must(t, rows.Close()) }()
		for _, err := range errs {
			if err != nil && !slices.ContainsFunc(refusals, func(no error) bool { return errors.Is(err, no) }) {
				t.Fatalf("%q: no reason that callers know: %v", cmd, err)
			}
		}
		same, again, offsets2, errs2 := judge(t, m.db, all...)
		defer func() { must(t, again.Close()) }()
		if !reflect.DeepEqual(dump(c), dump(same)) || !slices.Equal(rows.Repr(), again.Repr()) ||
			!reflect.DeepEqual(offsets, offsets2) || len(errs) != len(errs2) {
			t.Fatalf("%q: not the same twice", cmd)
		}
		read, _, err := load(rows)
		if err != nil {
			t.Fatalf("%q: %v", cmd, err)
		}
		if got, want := catalogText(t, read), catalogText(t, c); got != want {
			t.Fatalf("%q: the rows are not the catalogue\n%s\n%s", cmd, got, want)
		}
	})
}

// catalogText is a catalogue as text: raw JSON may be spaced otherwise in a row, and an empty map is none.
func catalogText(t *testing.T, c *Catalog) string {
	t.Helper()
	b, err := json.Marshal(dump(c))
	must(t, err)
	return string(b)
}

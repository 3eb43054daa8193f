package http

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	nethttp "net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/headrace/headrace/log"
	"github.com/headrace/headrace/log/record"
	"github.com/headrace/headrace/server/broker"
)

type topicBody struct {
	Name       string               `json:"name"`
	Kind       string               `json:"kind"` // topic, derived, view
	ID         string               `json:"id"`
	Partitions int32                `json:"partitions"`
	Owner      string               `json:"owner,omitempty"`  // the pipeline that writes it
	Source     string               `json:"source,omitempty"` // of a view
	Readers    []string             `json:"readers,omitempty"`
	Ready      bool                 `json:"ready"`
	CreatedAt  string               `json:"created_at,omitempty"`
	Configs    []broker.ConfigEntry `json:"configs,omitempty"` // of one topic only
	Schema     json.RawMessage      `json:"schema,omitempty"`
	Ranges     []partitionBody      `json:"ranges,omitempty"` // of one topic only
	Records    *int64               `json:"records,omitempty"`
}

type partitionBody struct {
	Partition int32 `json:"partition"`
	LogStart  int64 `json:"log_start"`
	LogEnd    int64 `json:"log_end"`
	Bytes     int64 `json:"bytes"` // of record batches, about
}

func describe(t *broker.Topic) topicBody {
	b := topicBody{Name: t.Name, Kind: t.Kind.String(), ID: t.ID.String(), Partitions: t.Partitions, Owner: t.Owner, Ready: t.Ready}
	if t.View != nil {
		b.Source = t.View.Source()
	}
	if t.CreatedAt > 0 {
		b.CreatedAt = time.UnixMilli(t.CreatedAt).UTC().Format(time.RFC3339Nano)
	}
	return b
}

func (a *api) listTopics(w nethttp.ResponseWriter, r *nethttp.Request) error {
	topics := a.Broker.Topics()
	items := make([]broker.Item, len(topics))
	for i, t := range topics {
		items[i] = broker.Item{Name: t.Name, Body: describe(t)}
	}
	p, err := paged(r, items)
	if err == nil {
		writeJSON(w, nethttp.StatusOK, p)
	}
	return err
}

// topic finds the topic of a path.
func (a *api) topic(r *nethttp.Request) (*broker.Topic, error) {
	name := r.PathValue("name")
	t, ok := a.Broker.Topic(name)
	if !ok {
		return nil, broker.Errorf(broker.UnknownTopic, "topic %q does not exist", clip(name))
	}
	return t, nil
}

func (a *api) getTopic(w nethttp.ResponseWriter, r *nethttp.Request) error {
	t, err := a.topic(r)
	if err != nil {
		return err
	}
	writeJSON(w, nethttp.StatusOK, a.detail(r, t))
	return nil
}

// detail is a topic with settings and offsets. A partition that is not open has no range.
func (a *api) detail(r *nethttp.Request, t *broker.Topic) topicBody {
	b := describe(t)
	b.Configs, b.Schema = broker.DescribeConfigs(t), t.Schema
	if a.Pipelines != nil {
		b.Readers = a.Pipelines.Readers(t.Name)
	}
	total := int64(0)
	for i := range t.Partitions {
		start, end, err := a.Broker.Bounds(r.Context(), t, i, t.Partitions <= 64)
		if err != nil {
			continue
		}
		total += end - start
		size, _ := a.Broker.PartitionBytes(t, i) // it was there a moment ago
		b.Ranges = append(b.Ranges, partitionBody{i, start, end, size})
	}
	b.Records = &total
	return b
}

type createBody struct {
	Name       string            `json:"name"`
	Partitions int32             `json:"partitions"`
	Configs    map[string]string `json:"configs"`
	DryRun     bool              `json:"dry_run"`
}

func (a *api) createTopic(w nethttp.ResponseWriter, r *nethttp.Request) error {
	raw, err := body(w, r, MaxBodyBytes)
	if err != nil {
		return err
	}
	var in createBody
	if err := decodeBody(raw, "a topic", &in); err != nil {
		return err
	}
	if in.Partitions < 0 {
		return broker.Errorf(broker.InvalidPartitions, "topic %q cannot have %d partitions", clip(in.Name), in.Partitions)
	}
	created := a.Broker.CreateTopics(r.Context(), []broker.TopicSpec{{Name: in.Name, Partitions: in.Partitions, Configs: in.Configs}}, nil, in.DryRun)[0]
	if created.Err != nil {
		return created.Err
	}
	status := nethttp.StatusCreated
	if in.DryRun {
		status = nethttp.StatusOK
	}
	writeJSON(w, status, describe(created.Topic))
	return nil
}

func (a *api) deleteTopic(w nethttp.ResponseWriter, r *nethttp.Request) error {
	name := r.PathValue("name")
	if err := a.Broker.DeleteTopic(r.Context(), name); err != nil {
		return err
	}
	writeJSON(w, nethttp.StatusOK, map[string]any{"name": name, "state": "deleted"})
	return nil
}

// endTopic declares the end of a topic's event time: windows close, later records are late.
func (a *api) endTopic(w nethttp.ResponseWriter, r *nethttp.Request) error {
	t, err := a.topic(r)
	if err != nil {
		return err
	}
	if err := a.Broker.EndTopic(r.Context(), t); err != nil {
		return err
	}
	writeJSON(w, nethttp.StatusOK, map[string]any{"name": t.Name, "partitions": t.Partitions, "watermark": "+inf"})
	return nil
}

// A recordBody is one line of the records resource. Key and value are embedded when they are a JSON
// object or array, a string when they are other text, and base64 in fields of their own when they are
// neither; null is null.
type recordBody struct {
	Partition   int32           `json:"partition"`
	Offset      int64           `json:"offset"`
	Timestamp   string          `json:"timestamp"`
	Key         json.RawMessage `json:"key"`
	KeyBase64   string          `json:"key_base64,omitempty"`
	Value       json.RawMessage `json:"value"`
	ValueBase64 string          `json:"value_base64,omitempty"`
	Headers     []headerBody    `json:"headers,omitempty"`
}

type headerBody struct {
	Key         string          `json:"key"`
	Value       json.RawMessage `json:"value"`
	ValueBase64 string          `json:"value_base64,omitempty"`
}

var jsonNull = json.RawMessage("null")

// decoded is a key or value for showing.
func decoded(b []byte) (text json.RawMessage, b64 string) {
	switch {
	case b == nil:
		return jsonNull, ""
	case !utf8.Valid(b):
		return jsonNull, base64.StdEncoding.EncodeToString(b)
	case len(b) > 0 && (b[0] == '{' || b[0] == '[') && json.Valid(b):
		var compact bytes.Buffer
		if json.Compact(&compact, b) == nil { // a line of NDJSON has no line breaks
			return compact.Bytes(), ""
		}
	}
	s, err := json.Marshal(string(b))
	if err != nil {
		return jsonNull, base64.StdEncoding.EncodeToString(b)
	}
	return s, ""
}

// recordsBytes is how much the records resource reads at a time.
const recordsBytes = 1 << 20

// records streams records of one partition from an offset on, until limit or the log end. offset is a
// number, earliest (the default), latest, or -N for the last N offsets.
func (a *api) records(w nethttp.ResponseWriter, r *nethttp.Request) error {
	t, err := a.topic(r)
	if err != nil {
		return err
	}
	partition, err := intParam(r, "partition", 0, 0, 1<<31-1)
	if err != nil {
		return err
	}
	limit, err := intParam(r, "limit", 100, 1, MaxRecords)
	if err != nil {
		return err
	}
	start, end, err := a.Broker.Bounds(r.Context(), t, int32(partition), true)
	if err != nil {
		return err
	}
	from, err := recordsFrom(r.URL.Query().Get("offset"), start, end)
	if err != nil {
		return err
	}
	out := recordWriter{w: w, left: limit, partition: int32(partition), next: from}
	defer out.finish()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Trailer", "Headrace-Next-Offset")
	for out.left > 0 && out.next < end {
		fr := &broker.FetchRequest{MaxBytes: recordsBytes, Parts: []broker.FetchPart{
			{Topic: t, Partition: int32(partition), Offset: out.next, MaxBytes: recordsBytes, Epoch: -1},
		}}
		a.Broker.Fetch(r.Context(), fr)
		part := &fr.Parts[0]
		if part.Err != nil {
			fr.Release()
			if out.wrote {
				return nil // the answer has begun; it ends early, and the trailer says where
			}
			w.Header().Del("Trailer")
			return part.Err
		}
		moved := out.batches(part.Batches)
		fr.Release()
		if !moved || r.Context().Err() != nil {
			break
		}
	}
	return nil
}

func recordsFrom(s string, start, end int64) (int64, error) {
	switch s {
	case "", "earliest":
		return start, nil
	case "latest":
		return end, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil:
		return 0, broker.Errorf(broker.BadRequest, "offset=%s: want a number, earliest or latest", clip(s))
	case n < 0:
		return max(end+max(n, -end), start), nil
	case n < start || n > end:
		return 0, broker.Errorf(broker.OffsetOutOfRange, "offset %d is not in %d to %d", n, start, end)
	}
	return n, nil
}

// recordWriter writes lines.
type recordWriter struct {
	w         nethttp.ResponseWriter
	reader    record.Reader
	buf       bytes.Buffer
	partition int32
	left      int
	next      int64
	wrote     bool
}

// batches writes the records at and after next, and reports whether next moved.
func (o *recordWriter) batches(batches []log.Batch) bool {
	before := o.next
	enc := json.NewEncoder(&o.buf)
	enc.SetEscapeHTML(false)
	for i := range batches {
		b := &batches[i]
		h, err := record.ParseHeader(b.Data)
		if err != nil {
			return false
		}
		if h.Control() || h.Columnar() {
			o.next = max(o.next, b.Last+1)
			continue
		}
		if err := o.reader.Reset(b.Data); err != nil {
			return false
		}
		shift := b.Base - h.BaseOffset
		for o.left > 0 && o.reader.Next() {
			rec := o.reader.Record()
			offset := rec.Offset + shift
			if offset < o.next {
				continue
			}
			line := recordBody{Partition: o.partition, Offset: offset, Timestamp: time.UnixMilli(rec.Timestamp).UTC().Format(time.RFC3339Nano)}
			line.Key, line.KeyBase64 = decoded(rec.Key)
			line.Value, line.ValueBase64 = decoded(rec.Value)
			for _, kv := range o.reader.Headers() {
				hb := headerBody{Key: kv.Key}
				hb.Value, hb.ValueBase64 = decoded(kv.Value)
				line.Headers = append(line.Headers, hb)
			}
			if err := enc.Encode(&line); err != nil {
				return false
			}
			o.left--
			o.next = offset + 1
		}
		if o.reader.Err() != nil {
			return false
		}
		if o.left > 0 {
			o.next = max(o.next, b.Last+1)
		}
	}
	if o.buf.Len() > 0 {
		o.wrote = true
		if _, err := o.w.Write(o.buf.Bytes()); err != nil {
			return false
		}
		o.buf.Reset()
	}
	return o.next > before
}

func (o *recordWriter) finish() {
	o.w.Header().Set("Headrace-Next-Offset", strconv.FormatInt(o.next, 10))
}

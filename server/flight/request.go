package flight

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"time"

	"github.com/apache/arrow/go/v15/arrow/flight"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/operators/columnar"
	"github.com/headrace/headrace/runtime"
	"github.com/headrace/headrace/server/broker"
)

// maxCommandBytes bounds a descriptor's command and a ticket.
const maxCommandBytes = 64 << 10

// A command is the JSON of a descriptor.
type command struct {
	Topic      string  `json:"topic"`
	Partitions []int32 `json:"partitions,omitempty"` // nil: all
	// Where to begin and to end: an offset, a time (RFC 3339), earliest or latest. "": earliest to latest.
	From   bound  `json:"from,omitempty"`
	To     bound  `json:"to,omitempty"`
	Follow bool   `json:"follow,omitempty"` // go on with what comes, for ever
	Where  string `json:"where,omitempty"`  // of the language
	Select string `json:"select,omitempty"`
	// Of DoPut: the one partition to write to; nil: by key, or one after the other.
	Partition *int32 `json:"partition,omitempty"`
}

// A bound is one end of a range.
type bound struct {
	kind   boundKind
	offset int64
	ms     int64
}

type boundKind uint8

const (
	boundDefault boundKind = iota
	boundOffset
	boundTime
	boundEarliest
	boundLatest
)

// UnmarshalJSON implements json.Unmarshaler.
func (b *bound) UnmarshalJSON(raw []byte) error {
	var n int64
	if json.Unmarshal(raw, &n) == nil {
		if n < 0 {
			return errors.New("an offset is not negative")
		}
		*b = bound{kind: boundOffset, offset: n}
		return nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return errors.New("want an offset, a time, \"earliest\" or \"latest\"")
	}
	switch s {
	case "":
		*b = bound{}
	case "earliest":
		*b = bound{kind: boundEarliest}
	case "latest":
		*b = bound{kind: boundLatest}
	default:
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return errors.New("want an offset, a time such as 2024-05-06T07:08:09Z, \"earliest\" or \"latest\"")
		}
		*b = bound{kind: boundTime, ms: t.UnixMilli()}
	}
	return nil
}

// parseCommand reads a command. Unknown members are refused: a misspelt filter must not read everything.
func parseCommand(raw []byte) (command, error) {
	var c command
	if len(raw) > maxCommandBytes {
		return c, broker.Errorf(broker.BadRequest, "the command has %d bytes, at most %d", len(raw), maxCommandBytes)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, badCommand("the command is not understood: " + clip(err.Error()))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return c, badCommand("something follows the command")
	}
	return c, nil
}

func badCommand(message string) error {
	return &broker.Error{Code: broker.BadRequest, Message: message, Fix: `Use a path ["topic", NAME], or a command such as {"topic": "clicks", "partitions": [0], "from": "earliest", "where": "n > 1"}; docs/flight.md lists the members.`}
}

// fromDescriptor reads a descriptor: a path or a command.
func fromDescriptor(d *flight.FlightDescriptor) (command, error) {
	switch {
	case d == nil:
		return command{}, badCommand("there is no descriptor")
	case d.Type == flight.DescriptorPATH:
		if len(d.Path) != 2 || d.Path[0] != "topic" {
			return command{}, badCommand("the path is not [\"topic\", NAME]")
		}
		return command{Topic: d.Path[1]}, nil
	case d.Type == flight.DescriptorCMD:
		return parseCommand(d.Cmd)
	}
	return command{}, badCommand("the descriptor has neither path nor command")
}

// A span is a range of one partition. To is exclusive; MaxInt64: for ever.
type span struct {
	partition int32
	next, to  int64
}

// A reading is what is to be read: a topic or view, and how.
type reading struct {
	name   string        // as the client says
	stored *broker.Topic // whose records are read
	topic  *plan.Topic
	view   *plan.View // nil: the topic as it is
	where  string
	cols   string
	follow bool
	schema *columnar.Schema
}

// open finds the topic of a command and compiles its expressions.
func (s *Server) open(c *command) (*reading, error) {
	t, ok := s.broker.Topic(c.Topic)
	if !ok {
		return nil, broker.Errorf(broker.UnknownTopic, "topic %q does not exist", clip(c.Topic))
	}
	r := &reading{name: c.Topic, where: c.Where, cols: c.Select, follow: c.Follow}
	var err error
	if r.stored, r.topic, r.view, err = s.broker.Declared(t); err != nil {
		return nil, err
	}
	if c.Where != "" || c.Select != "" {
		if r.view != nil {
			e := broker.Errorf(broker.WrongMethod, "where and select over the view %q are not built", t.Name)
			e.Why, e.Fix = "They are evaluated over stored topics.", "Read the topic that the view reads, or declare a view over this one."
			return nil, e
		}
		if r.view, err = runtime.CompileDelivery(r.topic, c.Where, c.Select); err != nil {
			return nil, err
		}
	}
	d, err := r.delivery()
	if err != nil {
		return nil, err
	}
	r.schema = d.Schema()
	d.Close()
	return r, nil
}

func (r *reading) delivery() (*runtime.Delivery, error) {
	d, err := runtime.NewDelivery(r.topic, r.view, memory.DefaultAllocator)
	if err != nil {
		return nil, &broker.Error{Code: broker.BadRequest, Message: "topic " + r.name + " cannot be read in columns: " + err.Error(), Fix: "Read it with a Kafka client.", Err: err}
	}
	return d, nil
}

// spans are the ranges of a command.
func (s *Server) spans(ctx context.Context, r *reading, c *command) ([]span, error) {
	parts := slices.Clone(c.Partitions)
	if parts == nil {
		for i := range r.stored.Partitions {
			parts = append(parts, i)
		}
	}
	slices.Sort(parts)
	parts = slices.Compact(parts)
	out := make([]span, len(parts))
	for i, p := range parts {
		start, end, err := s.broker.Bounds(ctx, r.stored, p, true)
		if err != nil {
			return nil, err
		}
		x := span{partition: p, next: start, to: end}
		if x.next, err = s.at(ctx, r, p, c.From, start, end, start); err != nil {
			return nil, err
		}
		switch {
		case c.Follow && c.To.kind == boundDefault:
			x.to = math.MaxInt64
		case c.Follow:
			return nil, badCommand("follow has no end, and to is given")
		default:
			if x.to, err = s.at(ctx, r, p, c.To, start, end, end); err != nil {
				return nil, err
			}
		}
		x.to = max(x.to, x.next)
		out[i] = x
	}
	return out, nil
}

// at is the offset of a bound.
func (s *Server) at(ctx context.Context, r *reading, partition int32, b bound, start, end, def int64) (int64, error) {
	switch b.kind {
	case boundEarliest:
		return start, nil
	case boundLatest:
		return end, nil
	case boundOffset:
		if b.offset < start || b.offset > end {
			return 0, broker.Errorf(broker.OffsetOutOfRange, "offset %d is not in %d to %d of partition %d of topic %q", b.offset, start, end, partition, r.stored.Name)
		}
		return b.offset, nil
	case boundTime:
		offset, _, err := s.broker.OffsetForTime(ctx, r.stored, partition, b.ms)
		if err != nil {
			return 0, err
		}
		if offset < 0 {
			return end, nil
		}
		return offset, nil
	}
	return def, nil
}

// A ticket names a range of a partition of a topic:
//
//	"HRF" version(1) flags(1) topic id(16) partition(4) from(8) to(8), then name, where and select, each with a length (2) in front,
//	and CRC-32C of all that (4); integers are big-endian.
//
// The topic's id is that of the stored topic: a ticket does not outlive its topic. A ticket that begins with a brace is a command.
const (
	ticketMagic   = "HRF\x01"
	ticketFixed   = len(ticketMagic) + 1 + 16 + 4 + 8 + 8
	ticketFollows = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func appendTicket(dst []byte, r *reading, x span) []byte {
	at := len(dst)
	dst = append(dst, ticketMagic...)
	flags := byte(0)
	if r.follow {
		flags = ticketFollows
	}
	dst = append(dst, flags)
	dst = append(dst, r.stored.ID[:]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(x.partition))
	dst = binary.BigEndian.AppendUint64(dst, uint64(x.next))
	dst = binary.BigEndian.AppendUint64(dst, uint64(x.to))
	for _, text := range []string{r.name, r.where, r.cols} {
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(text))) // a command has at most 64 KiB
		dst = append(dst, text...)
	}
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[at:], castagnoli))
}

var errTicket = &broker.Error{Code: broker.BadRequest, Message: "the ticket is none of this server's", Fix: "Ask for a new one with GetFlightInfo."}

// parseTicket takes a ticket apart.
func parseTicket(b []byte) (c command, id [16]byte, x span, err error) {
	if len(b) < ticketFixed+4 || len(b) > 2*maxCommandBytes || string(b[:len(ticketMagic)]) != ticketMagic {
		return c, id, x, errTicket
	}
	body, sum := b[:len(b)-4], binary.BigEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return c, id, x, errTicket
	}
	body = body[len(ticketMagic):]
	c.Follow = body[0]&ticketFollows != 0
	copy(id[:], body[1:17])
	x.partition = int32(binary.BigEndian.Uint32(body[17:]))
	x.next, x.to = int64(binary.BigEndian.Uint64(body[21:])), int64(binary.BigEndian.Uint64(body[29:]))
	body = body[37:]
	for _, text := range []*string{&c.Topic, &c.Where, &c.Select} {
		if len(body) < 2 {
			return c, id, x, errTicket
		}
		n := int(binary.BigEndian.Uint16(body))
		if body = body[2:]; len(body) < n {
			return c, id, x, errTicket
		}
		*text, body = string(body[:n]), body[n:]
	}
	if len(body) > 0 || x.next < 0 || x.to < x.next {
		return c, id, x, errTicket
	}
	return c, id, x, nil
}

// fromTicket is what a ticket asks for.
func (s *Server) fromTicket(ctx context.Context, raw []byte) (*reading, []span, error) {
	if len(raw) > 0 && raw[0] == '{' {
		c, err := parseCommand(raw)
		if err != nil {
			return nil, nil, err
		}
		r, err := s.open(&c)
		if err != nil {
			return nil, nil, err
		}
		spans, err := s.spans(ctx, r, &c)
		return r, spans, err
	}
	c, id, x, err := parseTicket(raw)
	if err != nil {
		return nil, nil, err
	}
	r, err := s.open(&c)
	if err != nil {
		return nil, nil, err
	}
	if r.stored.ID != id {
		e := broker.Errorf(broker.UnknownTopic, "topic %q is not the one that the ticket was made for", clip(c.Topic))
		e.Why, e.Fix = "It was deleted and created again.", "Ask for a new ticket with GetFlightInfo."
		return nil, nil, e
	}
	return r, []span{x}, nil
}

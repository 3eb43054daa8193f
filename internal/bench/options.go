package bench

import "fmt"

// MaxRecordBytes is the largest record that a benchmark sends: it fits a batch of its own under the default
// max.message.bytes of a topic.
const MaxRecordBytes = 900_000

// An OptionError says which option of a benchmark cannot be, or which do not go together. Options are named as the
// command's flags.
type OptionError struct{ What string }

func (e *OptionError) Error() string { return "bench: " + e.What }

func optionErrorf(format string, args ...any) *OptionError {
	return &OptionError{fmt.Sprintf(format, args...)}
}

// A Bound is the range of a numeric option, from 1 on.
type Bound struct {
	Flag string
	Max  int64
}

// Bounds are those of all numeric options.
var Bounds = []Bound{
	{"size", MaxRecordBytes},
	{"rate", 100_000_000},
	{"seconds", 86_400},
	{"partitions", 10_000},
	{"topics", 100_000},
	{"active", 100_000},
	{"rows", 1_000_000_000},
	{"bytes", 64 << 30},
	{"retain-bytes", 1 << 50},
	{"connections", 1000},
	{"events", 1_000_000_000},
	{"event-rate", 1_000_000_000},
}

// Check returns an *OptionError for a value out of range.
func (b Bound) Check(v int64) error {
	if v < 1 || v > b.Max {
		return optionErrorf("--%s %d: want a number from 1 to %d", b.Flag, v, b.Max)
	}
	return nil
}

func (o *Options) value(flag string) int64 {
	switch flag {
	case "size":
		return int64(o.Size)
	case "rate":
		return int64(o.Rate)
	case "seconds":
		return int64(o.Seconds)
	case "partitions":
		return int64(o.Partitions)
	case "topics":
		return int64(o.Topics)
	case "active":
		return int64(o.Active)
	case "rows":
		return int64(o.Rows)
	case "bytes":
		return o.Bytes
	case "retain-bytes":
		return o.RetainBytes
	case "events":
		return o.Events
	case "event-rate":
		return o.EventRate
	}
	return int64(o.Connections)
}

// validate judges what concerns every benchmark; 0 is the default. own means that the benchmark measures a server of its
// own only.
func (o *Options) validate(name string, own bool) error {
	for _, b := range Bounds {
		if v := o.value(b.Flag); v != 0 {
			if err := b.Check(v); err != nil {
				return err
			}
		}
	}
	switch {
	case o.Client != "" && o.Client != ClientKgo && o.Client != ClientNative:
		return optionErrorf("--client %s: want %s or %s", o.Client, ClientKgo, ClientNative)
	case own && o.Server != "":
		return optionErrorf("%s measures a server of its own: --server does not go with it", name)
	case o.Keep && o.Server == "":
		return optionErrorf("--keep goes with --server: a server of the benchmark's own leaves nothing")
	}
	return nil
}

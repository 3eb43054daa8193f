// Package plan is a checked module as plain data: what dsl/check makes and runtime carries out.
//
// Nothing here evaluates, reads or decides. Types come from internal/scalar. A plan is immutable once
// Compile has returned it and may be shared by goroutines.
package plan

import (
	"strconv"
	"time"

	"github.com/headrace/headrace/internal/scalar"
)

// A Module is one checked .hr file.
type Module struct {
	Name      string
	Text      string
	Topics    []*Topic    // declared sources, in file order
	Pipelines []*Pipeline // stored derived topics, in file order
	Views     []*View     // delivered, never stored
	Warnings  []Diagnostic
}

// A Diagnostic is one finding of the compiler, with everything a front needs to show it.
type Diagnostic struct {
	Code     string `json:"code"`             // "E0104", "W0210"
	Message  string `json:"message"`          // one sentence in the user's terms
	File     string `json:"file"`             // as given to Compile
	Line     int    `json:"line"`             // 1-based
	Column   int    `json:"column"`           // 1-based, in runes
	Length   int    `json:"length"`           // runes under the caret, at least 1
	Reason   string `json:"reason,omitempty"` // why
	Fix      string `json:"fix,omitempty"`    // an edit in words, or replacement text in backquotes
	LineText string `json:"source,omitempty"` // the source line
	Edit     *Edit  `json:"edit,omitempty"`   // a machine-applicable edit; applying it removes this diagnostic
}

// An Edit replaces the bytes [Start, End) of the module text.
type Edit struct {
	Start int    `json:"start"`
	End   int    `json:"end"`
	Text  string `json:"text"`
}

// Format names a codec.
type Format uint8

// The codecs. FormatRaw is a topic without schema: key and value as bytes.
const (
	FormatRaw Format = iota
	FormatJSON
	FormatCSV
	FormatArrow // columns; rows that come as records are JSON, and so are those that a Kafka client gets
	FormatLines // the record's value is the one column
	FormatRegex // columns are the named groups of Topic.Pattern
)

// A Topic is a stored topic: a declared source or what a pipeline writes.
type Topic struct {
	Ident      string // name inside the module
	Name       string // Kafka name
	Schema     Schema
	Key        []int // columns of the key, indexes into Schema.Columns
	Format     Format
	Pattern    string        // FormatRegex: a regular expression with a named group for each column
	Partitions int           // 0: the server's default, or the input's count
	Retain     time.Duration // 0: no limit
	Time       TimeSpec
	Late       Side // the side streams of what reads this topic
	Invalid    Side
	Errors     Side
	Derived    bool // written by a pipeline: event times and watermark come from its records and time marks
	Declared   bool // by a schema in this module (false: made by a pipeline, or found in the catalogue)
	// Table: keyed and compacted. A record takes the place of the one with its key, a record without
	// value (a tombstone) deletes it. Every record has a key.
	Table bool `json:",omitempty"`
}

// A StreamType says what the rows of a stream do to each other.
type StreamType uint8

// The types of streams. A topic takes StreamAppend only; a table takes all three.
const (
	StreamAppend    StreamType = iota // every row is new and stays
	StreamTable                       // a row takes the place of the one with its key, or deletes it
	StreamChangelog                   // as in a table, but a row that goes is taken back with all its columns
)

func (t StreamType) String() string { return [...]string{"append", "table", "changelog"}[t] }

// A Schema is an ordered list of columns.
type Schema struct {
	Columns []Column
}

// A Column is a column of a stored topic with its spelling in the input.
type Column struct {
	Name       string
	Input      string // field name in the encoded form; equals Name unless `as` was given
	Type       scalar.Type
	TimeLayout string // KindTime only: "" RFC 3339, "s" "ms" "us" "ns" integers, else a layout (yyyy MM dd HH mm ss SSS)
	TimeZone   string // zone for layouts without one; "" is UTC
	// Nested columns (lists of struct, struct) spell their members' inputs and layouts here, parallel
	// to Type.Fields (of the element, for a list).
	Members []Column
}

// A TimeSpec says how rows get their event time.
type TimeSpec struct {
	Expr   *Expr // over the topic's columns; nil: the record timestamp
	Append bool  // `time append`: the append time
	Lag    time.Duration
	Idle   time.Duration // 0: an idle partition holds the watermark
	Delay  time.Duration
	Future time.Duration // rows later than append time + Future are invalid; default 1m; 0 for derived topics, which have no such limit
}

// A Side is where one kind of rows goes that leave the main stream.
type Side struct {
	Action SideAction
	Topic  string // Kafka name, for SideTo
}

// A SideAction is what happens to rows of a side stream.
type SideAction uint8

// SideDefault is "to the default topic" of semantics (x_late, x_invalid, x_errors); the checker
// resolves it to SideTo with a name wherever a pipeline uses it.
const (
	SideDefault SideAction = iota
	SideTo
	SideDrop
	SideFail
)

// A Pipeline is one stored derived topic with the stages that make it.
type Pipeline struct {
	Name    string // "module/topic"
	Source  *Topic
	Output  *Topic
	Stages  []Stage
	Invalid Side // what fails before the first stage
	Late    Side // SideDefault, without a topic, if no stage has state: nothing is late
	Errors  Side
	Needed  []bool // per source column: read by some stage, by the event time, or by the key
	Version string // hex hash of everything that decides output; equal versions keep their state
	Text    string // canonical text of the statement
}

// A View is a stateless pipeline evaluated while delivering.
type View struct {
	Name   string // ident in the module
	Topic  *Topic // as seen from outside: its Kafka name and schema
	Source *Topic
	Stages []Stage // StageFilter, StageProject, StageKey only
	Needed []bool
	Errors Side
	Text   string
}

// A StageKind says which fields of a Stage are used.
type StageKind uint8

// The stages of the first engine; set, select and drop are all StageProject.
const (
	StageFilter StageKind = iota + 1
	StageProject
	StageKey
	StageAggregate
	// StageChanges makes a changelog of a table: it keeps the row of each key, and takes it back before
	// the next one. Out and OutKey are those of its input.
	StageChanges
	StageExplode
	StageTop
	StageDedup
	StageOver
	StageLookup
)

// A Stage transforms a stream of rows. Its expressions see the columns of the stage before it (of the
// source, for the first).
type Stage struct {
	Kind    StageKind
	Word    string // as written: where, set, select, drop, key, agg
	Pos     Pos
	Out     Schema     // columns after this stage
	OutKey  []int      // key columns after this stage, indexes into Out
	Shuffle bool       // the key differs from the one before: rows may change partition
	Type    StreamType // of the rows after this stage; one that keeps the type has that of its input

	Filter  *Expr       // StageFilter: bool, not nullable
	Project []NamedExpr // StageProject: every output column, in order
	Agg     *Aggregate  // StageAggregate
	Explode *Explode    // StageExplode
	Top     *Top        // StageTop
	Dedup   *Dedup      // StageDedup
	Over    *Over       // StageOver
	Lookup  *Lookup     // StageLookup
}

// A NamedExpr is an output column.
type NamedExpr struct {
	Name string
	Expr *Expr
}

// An Aggregate folds rows of a (key, window) into one row: the by columns, window_start, window_end,
// then Results; with EmitUpdate and EmitEvery then rev (int64, the rows in the group) and final (bool, no
// other row follows). Without a window there are no window_start and window_end, and one group a key.
//
// The key of what it makes is By; of a table with a window, By and window_start.
type Aggregate struct {
	By    []NamedExpr // over the input columns
	Slots []AggCall   // what is accumulated
	// Results are expressions over a synthetic row: the By columns, window_start, window_end, then
	// one column a slot. `total = sum(a) / count()` is two slots and one result.
	Results  []NamedExpr
	Window   Window
	OnAppend bool // window over append time

	Emit    Emit
	Every   time.Duration // EmitEvery: the tick
	Accept  time.Duration // `late accept`: how long a closed window takes rows
	Forever bool          // without a window: `state forever`
	TTL     time.Duration // without a window: `state ttl`, else 0
	Retract bool          // the input is a changelog: deletes take their rows back
}

// Marks says whether the columns rev and final follow the results.
func (a *Aggregate) Marks() bool { return a.Emit == EmitUpdate || a.Emit == EmitEvery }

// Emit says when groups leave.
type Emit uint8

// The modes of emission. EmitClose: once, when the window closes (and again for rows of `late accept`).
// EmitUpdate: after each step, the groups that it touched. EmitEvery: the groups touched since the last
// tick. EmitChanges: as EmitUpdate, without rev and final, for stages that take rows back.
const (
	EmitClose Emit = iota
	EmitUpdate
	EmitEvery
	EmitChanges
)

// An AggCall is one accumulator.
type AggCall struct {
	Func   string // count sum min max ..
	Arg    *Expr  // nil: count() of rows
	By     *Expr  // arg_min and arg_max: what is compared; else nil
	Param  *Expr  // a constant: the q of a quantile; else nil
	Filter *Expr  // nil: all rows; else bool, not nullable
	Type   scalar.Type
}

// Text is the call as written, without its filter.
func (a *AggCall) Text() string {
	text := a.Func + "("
	for i, x := range []*Expr{a.Arg, a.By, a.Param} {
		if x == nil {
			continue
		}
		if i > 0 {
			text += ", "
		}
		text += x.Text
	}
	return text + ")"
}

// A WindowKind is a family of windows.
type WindowKind uint8

// The windows of the first engine.
const (
	WindowTumble WindowKind = iota + 1
	WindowHop
	WindowSession  // Size is the gap
	WindowCumulate // [k*Size, k*Size + i*Every), i = 1 .. Size/Every
	WindowCount    // Count rows of a key
	WindowCalendar // the Unit of a clock in Zone
)

// A Window says which rows of a key belong together: those in a span [start, start+Size), start a multiple of Every
// since 1970 UTC, unless its kind says otherwise.
type Window struct {
	Kind  WindowKind // 0: none, one group for each key
	Size  time.Duration
	Every time.Duration `json:",omitempty"` // equals Size for WindowTumble
	Max   time.Duration `json:",omitempty"` // WindowSession: no session is longer; 0: no bound
	Count int64         `json:",omitempty"`
	Unit  string        `json:",omitempty"` // minute hour day week month quarter year
	Zone  string        `json:",omitempty"` // "": UTC
}

// Text is the window as written.
func (w Window) Text() string {
	d := func(d time.Duration) string { return string(scalar.AppendDuration(nil, int64(d))) }
	switch w.Kind {
	case WindowTumble:
		return "tumble(" + d(w.Size) + ")"
	case WindowHop:
		return "hop(" + d(w.Size) + " every " + d(w.Every) + ")"
	case WindowSession:
		if w.Max > 0 {
			return "session(" + d(w.Size) + " max " + d(w.Max) + ")"
		}
		return "session(" + d(w.Size) + ")"
	case WindowCumulate:
		return "cumulate(" + d(w.Size) + " every " + d(w.Every) + ")"
	case WindowCount:
		return "count(" + strconv.FormatInt(w.Count, 10) + ")"
	case WindowCalendar:
		if w.Zone != "" {
			return "calendar(" + w.Unit + ", " + strconv.Quote(w.Zone) + ")"
		}
		return "calendar(" + w.Unit + ")"
	}
	return "none"
}

// Pos is a place in the module text.
type Pos struct {
	Offset int // byte
	Line   int // 1-based
	Column int // 1-based, runes
}

// An ExprOp says which fields of an Expr are used.
type ExprOp uint8

// The nodes of the typed expression. Lazy nodes evaluate their right side only where it decides.
const (
	ExprColumn   ExprOp = iota + 1 // Column: index into the stage's input columns
	ExprMeta                       // Meta: a metadata column of the record
	ExprConst                      // Value
	ExprCall                       // Func(Args...), strict; resolved by scalar.Resolve with the types of Args
	ExprAnd                        // Args[0] and Args[1], Kleene, lazy
	ExprOr                         // Args[0] or Args[1], Kleene, lazy
	ExprCond                       // Args[0] ? Args[1] : Args[2], lazy; the condition is never null
	ExprCoalesce                   // Args[0] ?? Args[1], lazy
	ExprField                      // Args[0].Field, on a struct; null struct gives null
	ExprLambda                     // the closure argument of a list function: body in Args[0]
	ExprElem                       // `#` of the enclosing lambda, Depth levels up; Field says which of its arguments
	ExprLet                        // Args[0] bound, Args[1] body
	ExprVar                        // variable of the enclosing let, Depth levels up
)

// Field of an ExprElem: `#`, `#index` and, in reduce, `#acc`. They are the arguments of a closure in
// their order.
const (
	ElemValue = iota
	ElemIndex
	ElemAcc
)

// An Expr is a node of a typed expression. Implicit widening is explicit: the checker inserts calls to
// "cast" functions, so that the types of a call's arguments are exactly those of the overload.
type Expr struct {
	Op     ExprOp
	Type   scalar.Type
	Column int
	Meta   Meta
	Value  scalar.Value
	Func   string
	Args   []*Expr
	Field  int
	Depth  int
	Text   string // source text of the whole expression, for row errors and explain
	Pos    Pos
}

// Meta names a metadata column.
type Meta uint8

// record.time .append_time .key .headers .topic .partition .offset
const (
	MetaTime Meta = iota + 1
	MetaAppendTime
	MetaKey
	MetaHeaders
	MetaTopic
	MetaPartition
	MetaOffset
)

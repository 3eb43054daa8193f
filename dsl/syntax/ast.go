// Package syntax reads and prints the text of modules: lexer, parser, tree and formatter.
//
// The parser knows the whole grammar of docs/language.md. It decides where an expression ends, never
// what it means: expressions are kept as slices of the text, already parsed by dsl/expr's parser
// configuration into expr-lang trees. Names and types are dsl/check's.
package syntax

import (
	"github.com/expr-lang/expr/ast"
)

// Pos is a byte offset in the module text. Module.LineCol turns it into line and column.
type Pos int

// A Name is an identifier (or, for topic names, a string literal) with its place.
type Name struct {
	Text   string
	Pos    Pos
	Quoted bool // written as a string
}

// An Expr is one expression slice.
type Expr struct {
	Text string   // exactly as written
	Pos  Pos      // of its first byte
	End  Pos      // after its last byte
	Node ast.Node // parsed; node locations are rune offsets from the start of the module text; nil if it did not parse
	// Durations are the duration literals inside, by the generated $-identifier that stands for each
	// in Node (see Rules of embedding).
	Durations map[string]Duration
}

// A Duration is a duration literal, or the name of a const that holds one.
type Duration struct {
	Nanos    int64
	Const    string // name of a const, instead of Nanos
	Negative bool   // the const is meant with a minus sign (`within -x to 10m`)
	Text     string
	Pos      Pos
}

// An Int is an integer literal, or the name of a const.
type Int struct {
	Value int64
	Const string
	Pos   Pos
}

// A Module is a parsed file.
type Module struct {
	File       string
	Text       string
	Statements []Statement

	src *source
}

// LineCol gives the 1-based line and column (in runes) of a place.
func (m *Module) LineCol(p Pos) (line, col int) { return m.src.lineCol(int(p)) }

// LineText gives a 1-based line without its end, "" outside the text.
func (m *Module) LineText(line int) string { return m.src.lineText(line) }

// RuneOffset counts the runes before a place.
func (m *Module) RuneOffset(p Pos) int { return m.src.runeOffset(int(p)) }

// ByteOffset is the place after that many runes; it turns the location of an Expr's node into a Pos.
func (m *Module) ByteOffset(runes int) Pos { return Pos(m.src.byteOffset(runes)) }

// A Statement is one of TopicDecl, StreamDecl, ViewDecl, PipelineStmt, ConstDecl, ParamDecl, FuncDecl,
// TypeDecl, TestDecl.
type Statement interface{ statementPos() Pos }

type (
	// TopicDecl is `topic x {..}`, `topic x = ..`, `table ..`.
	TopicDecl struct {
		Pos      Pos
		Table    bool
		Name     Name
		As       *Name     // Kafka name
		Schema   *TypeExpr // Fields set; nil for a derived one
		Pipeline *Pipeline // nil for a declared one
		Options  []Option
		End      Pos
	}
	// StreamDecl is `stream x = ..`.
	StreamDecl struct {
		Pos      Pos
		Name     Name
		Pipeline *Pipeline
		End      Pos
	}
	// ViewDecl is `view x = ..`.
	ViewDecl struct {
		Pos      Pos
		Name     Name
		As       *Name
		Pipeline *Pipeline
		Options  []Option
		End      Pos
	}
	// PipelineStmt is a bare pipeline.
	PipelineStmt struct {
		Pos      Pos
		Pipeline *Pipeline
		End      Pos
	}
	// ConstDecl is `const x = EXPR`.
	ConstDecl struct {
		Pos   Pos
		Name  Name
		Value Expr
		End   Pos
	}
	// ParamDecl is `param x: ty = EXPR`.
	ParamDecl struct {
		Pos     Pos
		Name    Name
		Type    TypeExpr
		Default *Expr
		End     Pos
	}
	// FuncDecl is `fn f(a: ty) -> ty = EXPR`.
	FuncDecl struct {
		Pos    Pos
		Name   Name
		Params []FieldDecl
		Result TypeExpr
		Body   *Expr
		Wasm   []string // file and export, instead of Body
		End    Pos
	}
	// TypeDecl is `type X = {..}`.
	TypeDecl struct {
		Pos  Pos
		Name Name
		Type TypeExpr
		End  Pos
	}
	// TestDecl is `test "name" { .. }`.
	TestDecl struct {
		Pos   Pos
		Title string
		Steps []TestStep
		End   Pos
	}
)

func (d *TopicDecl) statementPos() Pos    { return d.Pos }
func (d *StreamDecl) statementPos() Pos   { return d.Pos }
func (d *ViewDecl) statementPos() Pos     { return d.Pos }
func (d *PipelineStmt) statementPos() Pos { return d.Pos }
func (d *ConstDecl) statementPos() Pos    { return d.Pos }
func (d *ParamDecl) statementPos() Pos    { return d.Pos }
func (d *FuncDecl) statementPos() Pos     { return d.Pos }
func (d *TypeDecl) statementPos() Pos     { return d.Pos }
func (d *TestDecl) statementPos() Pos     { return d.Pos }

// A TypeExpr is a written type: a name with arguments, or a struct.
type TypeExpr struct {
	Pos      Pos
	End      Pos
	Name     string      // "" for a struct
	Ints     []Int       // decimal(12,2)
	Strings  []string    // time("ms", "UTC")
	Elems    []TypeExpr  // list<T>, map<K,V>
	Fields   []FieldDecl // struct
	Struct   bool
	Broken   bool // a field could not be read, and was reported
	Nullable bool // trailing ?
}

// A FieldDecl is `name: ty as "input"`.
type FieldDecl struct {
	Name     Name
	Type     TypeExpr
	Input    string // "" if not given
	InputPos Pos
}

// An Option is one item of `with`: Word says which fields are used.
type Option struct {
	Pos      Pos
	Word     string // key format retain partitions time late invalid errors emit
	Names    []Name // key columns; format name
	String   string // format argument
	Duration *Duration
	Int      *Int
	// time
	TimeExpr   *Expr // a column name or (EXPR)
	TimeAppend bool
	Spans      []Span // lag idle delay future
	// late invalid errors
	Action string // to drop fail
	Target *Name
	Emit   *Emit
	End    Pos
}

// A Span is a word with a duration: lag 5s.
type Span struct {
	Word     string
	Pos      Pos
	Duration Duration
}

// A Pipeline is `from x [as n] |> stage ..`.
type Pipeline struct {
	Pos    Pos
	Source Name
	Alias  *Name
	Stages []*Stage
	End    Pos
}

// A Stage is one |> step. Word is its first word (where set select drop rename unwrap explode union key
// check route agg over top dedup join lookup match); it says which fields are used.
type Stage struct {
	Pos     Pos // of Word
	End     Pos
	Word    string
	Expr    *Expr     // where, explode, check, join/lookup (on), top's none
	Assigns []Assign  // set, over, agg (with Filter), rename (Value is the old name), define
	Items   []Item    // select
	Names   []Name    // drop, union, unwrap (one)
	Renames [][2]Name // rename: new, old
	Keys    []Expr    // key
	Targets []Route   // route; check's else target is Targets[0] with When nil
	Fail    bool      // check .. else fail
	Left    bool      // explode left, lookup left
	Kind    string    // join: "" left full semi anti
	As      *Name     // explode, join, lookup
	Index   *Name     // explode index
	Source  *Name     // join, lookup
	N       *Int      // top
	Ties    bool      // top
	Orders  []Order   // top
	Clauses []Clause
	Match   *Match
}

// An Assign is `name = EXPR [where EXPR]`.
type Assign struct {
	Name   Name
	Value  Expr
	Filter *Expr
}

// An Item is an element of select or by: `*`, `x.*`, `[name =] EXPR`.
type Item struct {
	Pos   Pos
	Star  bool
	Of    *Name // x.*
	Name  *Name
	Value *Expr
}

// A Route is `when EXPR to topic` or `else to topic` (When nil).
type Route struct {
	Pos  Pos
	When *Expr
	To   Name
}

// An Order is `EXPR [asc|desc]`.
type Order struct {
	Value Expr
	Desc  bool
}

// A Clause is one trailing clause of a stage; Word says which fields are used: by per window emit within
// valid until as latest state late rank keep rows range.
type Clause struct {
	Pos       Pos
	End       Pos
	Word      string
	Items     []Item // by, per
	PerWindow bool   // per window
	Window    *Window
	OnAppend  bool
	Emit      *Emit
	From, To  *Duration // within [-]D [to [-]D]; range D in From
	Exprs     []Expr    // valid from, to; until; as of
	Mode      string    // state: forever ttl max; late: accept drop to; keep: first last
	Duration  *Duration // state ttl, late accept
	Int       *Int      // state max, rows
	Before    bool      // rows n before
	Name      *Name     // rank
	Target    *Name     // late to
}

// A Window is `tumble(D)`, `hop(D every D)`, ...
type Window struct {
	Pos   Pos
	End   Pos
	Word  string // tumble hop cumulate count session calendar
	Size  *Duration
	Every *Duration // or session max
	Int   *Int      // count
	Unit  string    // calendar
	Zone  string
}

// An Emit is close, update, changes, or every D.
type Emit struct {
	Pos   Pos
	Word  string
	Every *Duration
}

// A Match is a pattern stage.
type Match struct {
	By        []Item
	Within    *Duration
	Forever   bool
	Order     string // time arrival
	Pattern   *Pattern
	Define    []Assign
	Unless    []Name
	Skip      string // past next none "to first" "to last"
	SkipTo    *Name
	TimeoutTo *Name
	Rows      string // one all
	Clauses   []Clause
	Select    []Item
}

// A Pattern is alternatives of sequences.
type Pattern struct {
	Pos          Pos
	Alternatives []PatternSeq
}

// A PatternSeq is elements joined by links; Links[i] stands before Elems[i+1].
type PatternSeq struct {
	Elems []PatternElem
	Links []PatternLink
}

// A PatternLink is `->`, `=>` or `~>` with an optional gap limit.
type PatternLink struct {
	Word string
	Gap  *Duration
	Pos  Pos
}

// A PatternElem is `[not] (name | (pattern) | all(..)) [quant] [for D]`.
type PatternElem struct {
	Pos   Pos
	Not   bool
	Name  *Name
	Group *Pattern
	All   []Name
	Quant *Quant
	For   *Duration
	End   Pos
}

// A Quant is a quantifier.
type Quant struct {
	Pos      Pos
	Min, Max int64 // Max -1: no bound
	Lazy     bool
	Link     string // "" "!" "~"
	Each     bool
	Until    *Name
}

// A TestStep is given, advance or expect.
type TestStep struct {
	Pos    Pos
	Word   string
	None   bool
	Topic  Name
	At     string // advance
	End    Pos
	Fields []Assign
}

// Package vector computes typed expressions over columns.
//
// NewProgram turns the expressions of one stage into one graph in which equal parts are shared, and
// gives every node a kernel: a loop over typed lanes. Eval runs it over a batch. A node is evaluated
// only for the rows where it decides something: the right side of `and`, `or` and `??`, and the
// branches of a conditional, see a smaller selection. Nulls and errors travel in lanes of their own, so
// one bad row never disturbs another.
//
// What has no kernel is computed row by row with the reference function of internal/scalar, or by a
// function that the caller gave (Expr.Fallback); Kernel and Explain say where. Kernels and reference
// functions agree bit for bit, on nulls and error codes too; a fuzzer holds them to it.
//
// A Program keeps its scratch memory between batches: one goroutine at a time may use it. It reads no
// clock and nothing else from outside, and it is the same on every machine.
package vector

import (
	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators"
)

// An Op says which fields of an Expr are used.
type Op uint8

// The nodes of an expression. And, Or, Cond and Coalesce evaluate their later arguments only where the
// first one leaves the answer open.
const (
	OpColumn   Op = iota + 1 // Column: index into the input columns
	OpMeta                   // Meta: a metadata column
	OpConst                  // Value
	OpCall                   // Func(Args...), resolved by scalar.Resolve with the types of Args
	OpAnd                    // Kleene
	OpOr                     // Kleene
	OpCond                   // Args[0] ? Args[1] : Args[2]; a null condition is false
	OpCoalesce               // Args[0] ?? Args[1]
	OpField                  // Args[0].Field of a struct; a null struct gives null
	OpLet                    // Args[0] bound, Args[1] the body
	OpVar                    // the variable of the enclosing let, Depth levels up
	OpFallback               // Fallback
)

// The metadata columns that an OpMeta names.
const (
	MetaTime = iota + 1
	MetaAppendTime
	MetaKey
	MetaHeaders // has no column: give a Fallback
	MetaTopic
	MetaPartition
	MetaOffset
)

// An Expr is a node of a typed expression. It is read by NewProgram and not kept.
type Expr struct {
	Op     Op
	Type   scalar.Type
	Column int
	Meta   int
	Value  scalar.Value
	Func   string
	Args   []*Expr
	Field  int
	Depth  int
	// Computed is for an OpConst that stands where a column was: overloads do not see it as a constant.
	Computed bool
	Text     string // source text, for row errors and Explain; that of the root counts

	// Fallback computes a row without a kernel; its Args are ignored. It may read b during the call
	// only. A node of any Op with a Fallback is an OpFallback.
	Fallback func(b *operators.Batch, row int) (scalar.Value, scalar.Code)
	// Reason says for Explain why there is a Fallback.
	Reason string
}

// Package expr is the only door to expr-lang: it reads one expression into expr-lang's tree, and runs one
// typed expression over one row on expr-lang's virtual machine.
//
// expr-lang gives the syntax, the laziness of `?:` and the machine. It gives no meaning: Parse never
// checks types, and Compile turns every operator and function into a call of internal/scalar, so nothing
// of expr-lang's arithmetic, comparison or time zones can be reached. A Program is the oracle for the
// column kernels, the fallback for expressions that have none, and what folds constants (Fold).
//
// Parse, Fold and Compile may be called by any goroutine. A Program belongs to one goroutine at a time.
package expr

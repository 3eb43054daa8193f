package expr

import (
	"math"

	"github.com/headrace/headrace/dsl/plan"
)

// MaxCost is the largest Cost of an expression that a module may have.
const MaxCost = 1_000_000

// elemFactor is how often Cost assumes that the body of a closure runs.
const elemFactor = 64

// expensive are the functions whose work grows with their input: matching, splitting, hashing, rebuilding.
var expensive = map[string]int{
	"matches": 16, "extract": 16, "capture": 16, "json": 16, "to_json": 16, "url_param": 8, "split": 8, "join": 8, "replace": 8,
	"repeat": 16, "lpad": 4, "rpad": 4, "part": 4, "sort": 16, "uniq": 16, "concat": 4, "flatten": 8, "reverse": 4, "range": 8,
	"sum": 8, "mean": 8, "median": 16, "min": 2, "max": 2, "parse_time": 8, "fmt": 8, "hash64": 4, "md5": 8, "sha256": 8, "hex": 4,
	"unhex": 4, "toBase64": 4, "fromBase64": 4, "lower": 2, "upper": 2, "in": 2, "not_in": 2, "geo_distance": 8, "pow": 4,
}

// Cost estimates the work of one row in calls of cheap reference functions: each node is one, an
// expensive function is more, and the body of a closure counts elemFactor times. It saturates.
//
// Shared nodes count each time they are reached, and are looked at once.
func Cost(e *plan.Expr) int {
	return int(cost(e, make(map[*plan.Expr]int64)))
}

func cost(e *plan.Expr, known map[*plan.Expr]int64) int64 {
	if c, ok := known[e]; ok {
		return c
	}
	total := int64(1)
	if e.Op == plan.ExprCall {
		total = int64(max(1, expensive[e.Func]))
	}
	for _, a := range e.Args {
		total += cost(a, known)
	}
	if e.Op == plan.ExprLambda {
		total *= elemFactor
	}
	total = min(total, math.MaxInt32)
	known[e] = total
	return total
}

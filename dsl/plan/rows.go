package plan

import "time"

// An Explode makes a row of each element of a list: the columns of the input, then the element and, if it
// is asked for, its place in the list. Its Stage.Out ends in these one or two columns.
type Explode struct {
	List  *Expr // over the input columns: a list
	Left  bool  // a null or empty list gives one row, whose element is null
	Index bool  // the element's place, from 0, is a column, too
}

// A Grouping is how a stage that keeps rows groups them. Its Stage.Out begins with the columns of the
// input and Added.
type Grouping struct {
	Added []NamedExpr // over the input columns
	Group []int       // columns of Out
}

// A Top gives the first N rows of each group in Order when their window closes. Its Stage.Out is the input,
// Added, window_start and window_end if Window is one, and the rank if Rank.
type Top struct {
	Grouping
	N      int
	Ties   bool // with all rows that are equal to the N-th
	Order  []SortExpr
	Window Window
	Start  int // columns of Out with the window of a row, if Window is none
	End    int
	Rank   bool
	Update bool // a table of the best rows so far, by Group and the rank; there is no window
}

// A SortExpr is one part of an order. Null comes last, whatever the direction.
type SortExpr struct {
	Expr *Expr // over the input columns
	Desc bool
}

// A Dedup lets the first row of each group pass and drops its repetitions. Its Stage.Out is the input and
// Added.
type Dedup struct {
	Grouping
	Within time.Duration // how long others of its group are repetitions of a row; 0: for ever
	Last   bool          // instead, a table of the last row of each group, by Group; Within is 0
	Idle   bool          // Within counts from the last row of the group, not from the one that passed
}

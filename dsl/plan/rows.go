package plan

// An Explode makes a row of each element of a list: the columns of the input, then the element and, if it
// is asked for, its place in the list. Its Stage.Out ends in these one or two columns.
type Explode struct {
	List  *Expr // over the input columns: a list
	Left  bool  // a null or empty list gives one row, whose element is null
	Index bool  // the element's place, from 0, is a column, too
}

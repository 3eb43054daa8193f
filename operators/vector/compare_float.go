package vector

// exactFloat says whether a float is exactly the integer i, which may be an unsigned one.
func exactFloat(i int64) bool { return i >= 0 && i <= 1<<53 }

// floatAgainst compares a column of floats with an integer constant that is a float exactly: `amount > 100`. With NaN
// only `!=` holds, as in any comparison of floats.
func floatAgainst(name string, c float64) kernel {
	var loop func(o []bool, x []float64, rows []int32)
	switch name {
	case "eq":
		loop = func(o []bool, x []float64, rows []int32) {
			for _, i := range rows {
				o[i] = x[i] == c
			}
		}
	case "ne":
		loop = func(o []bool, x []float64, rows []int32) {
			for _, i := range rows {
				o[i] = x[i] != c
			}
		}
	case "lt":
		loop = func(o []bool, x []float64, rows []int32) {
			for _, i := range rows {
				o[i] = x[i] < c
			}
		}
	case "le":
		loop = func(o []bool, x []float64, rows []int32) {
			for _, i := range rows {
				o[i] = x[i] <= c
			}
		}
	case "gt":
		loop = func(o []bool, x []float64, rows []int32) {
			for _, i := range rows {
				o[i] = x[i] > c
			}
		}
	case "ge":
		loop = func(o []bool, x []float64, rows []int32) {
			for _, i := range rows {
				o[i] = x[i] >= c
			}
		}
	}
	return func(o *vec, a []*vec, s *selection) { loop(o.b, a[0].f, s.rows) }
}

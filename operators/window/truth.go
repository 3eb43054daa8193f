package window

import (
	"github.com/apache/arrow/go/v15/arrow/array"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators/state"
)

// truth is bool_and and bool_or. Cell: 0 without a value, else 1 + the result so far.
type truth struct{ or bool }

func (truth) cells() int { return 1 }

func (a truth) update(u *update) {
	arena := u.t.Arena()
	for i, row := range u.rows {
		if u.col.isNull(row) {
			continue
		}
		c := &arena[int(u.pos[i])+u.cell]
		switch v := 1 + uint64(u.col.words[row]); {
		case *c == 0:
			*c = v
		case a.or:
			*c = max(*c, v)
		default:
			*c = min(*c, v)
		}
	}
}

func (truth) finish(_ *state.Table, c []uint64, b array.Builder) scalar.Code {
	if c[0] == 0 {
		b.AppendNull()
	} else {
		b.(*array.BooleanBuilder).Append(c[0] == 2)
	}
	return scalar.CodeNone
}

func (truth) save(dst []byte, _ *state.Table, c []uint64) []byte { return append(dst, 't', byte(c[0])) }

func (truth) load(b []byte, t *state.Table, p state.Pos, cell int) ([]byte, error) {
	r := reader{b: b}
	r.tag('t')
	if v := r.take(1); v != nil && v[0] <= 2 {
		t.Arena()[int(p)+cell] = uint64(v[0])
	} else {
		r.bad = true
	}
	return r.rest("bool_and or bool_or")
}

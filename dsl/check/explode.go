package check

import (
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/dsl/syntax"
	"github.com/headrace/headrace/internal/scalar"
)

// explode checks `explode [left] xs as x [index i]`.
func (c *checker) explode(f *flow, st *syntax.Stage) {
	e := c.expression(st.Expr, f.scope())
	if e == nil || st.As == nil || f.unknown {
		f.unknown = true
		return
	}
	at := exprSpan(st.Expr)
	if e.Type.Kind != scalar.KindList {
		x := c.err("E0134", at, "`explode` needs a list, this is %s", TypeString(e.Type)).because("it makes a row of each element")
		switch e.Type.Kind {
		case scalar.KindString:
			x.fix("split it: `split(%s, \",\")`", c.src.slice(at)).replace(at, "split("+c.src.slice(at)+", \",\")")
		case scalar.KindMap:
			x.fix("take its keys: `keys(%s)`", c.src.slice(at)).replace(at, "keys("+c.src.slice(at)+")")
		default:
			x.fix("name a column that is a list")
		}
		f.unknown = true
		return
	}
	if e.Type.Elem.Kind == scalar.KindNull {
		c.err("E0118", at, "column `%s` would always be nil", st.As.Text).because("nil alone has no type").fix("leave the stage out")
		f.unknown = true
		return
	}
	made := []plan.Column{{Name: st.As.Text, Input: st.As.Text, Type: e.Type.Elem.OrNull(st.Left), Members: memberColumns(*e.Type.Elem)}}
	names := []syntax.Name{*st.As}
	if st.Index != nil {
		names = append(names, *st.Index)
		made = append(made, plan.Column{Name: st.Index.Text, Input: st.Index.Text, Type: scalar.TypeInt64.OrNull(st.Left)})
	}
	if !c.addedNames(f, names, "explode") || !c.affordable(f, st, len(f.cols)+len(made)) {
		f.unknown = true
		return
	}
	f.push(plan.Stage{
		Kind: plan.StageExplode, Word: "explode", Pos: c.src.pos(int(st.Pos)),
		Explode: &plan.Explode{List: e, Left: st.Left, Index: st.Index != nil},
		Out:     plan.Schema{Columns: append(append([]plan.Column(nil), f.cols...), made...)}, OutKey: f.key,
	})
}

// addedNames reports columns that a stage adds to its rows under a name that is taken.
func (c *checker) addedNames(f *flow, names []syntax.Name, word string) bool {
	seen, good := map[string]bool{}, true
	for _, n := range names {
		if seen[n.Text] || columnIndex(f.cols, n.Text) >= 0 {
			c.err("E0108", c.nameSpan(n), "there would be two columns `%s`", n.Text).
				because("`%s` adds it to the columns that there are, and later stages find a column by its name", word).
				fix("give it another name: `%s_2`", n.Text).replace(c.nameSpan(n), n.Text+"_2")
			good = false
		}
		seen[n.Text] = true
	}
	return good
}

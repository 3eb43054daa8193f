// Package exprgen makes random typed expressions, random batches for them, and the row-by-row answer that
// every way of evaluating them must give. It is for tests.
//
// What it makes is typed as a checker would: calls are resolved, and arguments that need widening are
// wrapped in casts. The same seed makes the same expressions.
package exprgen

import (
	"math"
	"math/rand/v2"
	"strings"

	"github.com/headrace/headrace/internal/scalar"
	"github.com/headrace/headrace/operators/vector"
)

// A Gen draws expressions over a schema.
type Gen struct {
	R      *rand.Rand
	Schema []scalar.Type
	pool   map[scalar.Kind][]*vector.Expr
	all    []*vector.Expr
}

// New makes a generator. The schema is drawn too: at least one column of each kind, some nullable.
func New(seed uint64) *Gen {
	g := &Gen{R: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
	inner := scalar.StructType(scalar.Field{Name: "x", Type: scalar.TypeInt64.Null()}, scalar.Field{Name: "y", Type: scalar.TypeString})
	types := []scalar.Type{
		scalar.TypeBool, scalar.TypeBool, scalar.TypeInt8, scalar.TypeInt16, scalar.TypeInt32, scalar.TypeInt64, scalar.TypeInt64, scalar.TypeInt64,
		scalar.TypeUint8, scalar.TypeUint16, scalar.TypeUint32, scalar.TypeUint64, scalar.TypeUint64, scalar.TypeFloat32, scalar.TypeFloat64, scalar.TypeFloat64,
		scalar.DecimalType(12, 2), scalar.DecimalType(38, 0), scalar.DecimalType(20, 10), scalar.DecimalType(3, 3),
		scalar.TypeString, scalar.TypeString, scalar.TypeString, scalar.TypeBytes, scalar.TypeTime, scalar.TypeTime,
		scalar.TypeDuration, scalar.TypeDate,
		scalar.StructType(scalar.Field{Name: "a", Type: scalar.TypeInt64}, scalar.Field{Name: "s", Type: scalar.TypeString.Null()},
			scalar.Field{Name: "t", Type: scalar.TypeTime}, scalar.Field{Name: "in", Type: inner.Null()}),
		scalar.ListType(scalar.TypeInt64.Null()), scalar.ListType(scalar.TypeString),
		scalar.MapType(scalar.TypeString, scalar.TypeInt64),
	}
	for _, t := range types {
		g.Schema = append(g.Schema, t.OrNull(g.R.IntN(2) == 0))
	}
	return g
}

func (g *Gen) chance(percent int) bool { return g.R.IntN(100) < percent }

func pick[T any](g *Gen, from []T) T { return from[g.R.IntN(len(from))] }

// Exprs draws n expressions that share parts.
func (g *Gen) Exprs(n, size int) []*vector.Expr {
	g.pool, g.all = map[scalar.Kind][]*vector.Expr{}, nil
	for i, t := range g.Schema {
		g.add(&vector.Expr{Op: vector.OpColumn, Column: i, Type: t})
	}
	g.add(&vector.Expr{Op: vector.OpMeta, Meta: vector.MetaTime, Type: scalar.TypeTime})
	g.add(&vector.Expr{Op: vector.OpMeta, Meta: vector.MetaOffset, Type: scalar.TypeInt64})
	g.add(&vector.Expr{Op: vector.OpMeta, Meta: vector.MetaKey, Type: scalar.TypeBytes.Null()})
	for range 6 {
		t := g.leafType()
		v := g.Value(t, 3)
		if v.IsNull() {
			t = t.Null()
		}
		g.add(&vector.Expr{Op: vector.OpConst, Type: t, Value: v})
	}
	base := len(g.all)
	for tries := 0; len(g.all) < base+size && tries < 40*size; tries++ {
		if e := g.grow(); e != nil {
			g.add(e)
		}
	}
	made := g.all[base:]
	if len(made) == 0 {
		made = g.all
	}
	out := make([]*vector.Expr, n)
	for i := range out {
		// The later ones are larger.
		out[i] = made[len(made)-1-min(g.R.IntN(len(made)), g.R.IntN(len(made)))]
	}
	return out
}

// Condition draws a bool, one that is not nullable if it finds any.
func (g *Gen) Condition(size int) *vector.Expr {
	g.Exprs(1, size)
	cond := g.pool[scalar.KindBool][0]
	var good []*vector.Expr
	for _, e := range g.pool[scalar.KindBool] {
		if !e.Type.Nullable {
			good = append(good, e)
		}
	}
	if len(good) > 0 {
		cond = good[len(good)-1-min(g.R.IntN(len(good)), g.R.IntN(len(good)))]
	}
	for range 2 {
		if len(good) > 1 && g.chance(60) {
			left := pick(g, good)
			cond = &vector.Expr{Op: vector.OpAnd, Type: scalar.TypeBool.OrNull(cond.Type.Nullable), Args: []*vector.Expr{left, cond}}
		}
	}
	return cond
}

func (g *Gen) add(e *vector.Expr) {
	g.all = append(g.all, e)
	g.pool[e.Type.Kind] = append(g.pool[e.Type.Kind], e)
}

func (g *Gen) leafType() scalar.Type {
	for {
		t := pick(g, g.Schema).NonNull()
		if t.Kind != scalar.KindStruct && t.Kind != scalar.KindList && t.Kind != scalar.KindMap {
			return t
		}
	}
}

// of draws something of a kind; recent expressions are preferred.
func (g *Gen) of(k scalar.Kind) *vector.Expr {
	p := g.pool[k]
	if len(p) == 0 {
		return nil
	}
	if g.chance(50) {
		return p[len(p)-1-g.R.IntN(min(len(p), 4))]
	}
	return pick(g, p)
}

var (
	intKinds = []scalar.Kind{
		scalar.KindInt64, scalar.KindInt64, scalar.KindInt64, scalar.KindInt8, scalar.KindInt16, scalar.KindInt32,
		scalar.KindUint8, scalar.KindUint16, scalar.KindUint32, scalar.KindUint64, scalar.KindUint64,
	}
	numKinds = append([]scalar.Kind{scalar.KindFloat64, scalar.KindFloat64, scalar.KindFloat32, scalar.KindDecimal, scalar.KindDecimal, scalar.KindDecimal}, intKinds...)
	letters  = map[byte]scalar.Kind{
		's': scalar.KindString, 'b': scalar.KindBool, 't': scalar.KindTime, 'D': scalar.KindDuration, 'a': scalar.KindDate, 'y': scalar.KindBytes,
		'l': scalar.KindList, 'm': scalar.KindMap, 'S': scalar.KindStruct, 'd': scalar.KindDecimal, 'q': scalar.KindUint64, 'k': scalar.KindInt64,
	}
)

// arg draws an argument by its letter: n number, i integer, f float, z small integer constant, * anything,
// = like the first, or a kind.
func (g *Gen) arg(c byte, first *vector.Expr) *vector.Expr {
	switch c {
	case 'n':
		return g.of(pick(g, numKinds))
	case 'i':
		return g.of(pick(g, intKinds))
	case 'f':
		return g.of(pick(g, []scalar.Kind{scalar.KindFloat64, scalar.KindFloat64, scalar.KindFloat32, scalar.KindInt64}))
	case 'z':
		return constant(scalar.Int(int64(g.R.IntN(7) - 2)))
	case '*':
		return pick(g, g.all)
	case '=':
		return g.of(first.Type.Kind)
	case '0':
		return &vector.Expr{Op: vector.OpConst, Type: scalar.TypeNull, Value: scalar.Null}
	}
	return g.of(letters[c])
}

func constant(v scalar.Value) *vector.Expr {
	return &vector.Expr{Op: vector.OpConst, Type: scalar.Type{Kind: v.Kind}, Value: v}
}

// forms are functions with the letters of their arguments; text after a colon is a constant argument.
var forms = strings.Fields(`
add/nn add/nn add/nn add/== add/ss add/tD add/DD sub/nn sub/nn sub/tD sub/tt sub/DD mul/nn mul/nn mul/Dk mul/dd div_op/nn div_op/DD div_op/Dk div_op/nz
mod_op/nn mod_op/iz mod_op/nn div/ii div/ii mod/ii div/iz neg/n neg/D pos/n pow_op/ff not/b
eq/n= eq/nn eq/nn eq/ss eq/** eq/tt eq/b= eq/*0 ne/nn ne/nn ne/ss ne/*0 ne/y= lt/nn lt/nn lt/ss lt/tt le/nn le/nn le/DD gt/nn gt/nn gt/ss gt/qk ge/nn ge/kq ge/aa ge/ss
lt/kf gt/fk le/qf ge/fq eq/kf eq/fq
in/*l in/kl not_in/sl in/sm contains/ss startsWith/ss endsWith/ss matches/s:a.*b matches/s:^[0-9]+$
index/lk index/lz index/ms slice/lzz slice/szz slice/s0z range/zz list_of/nn list_of/s= is_null/* null_if/nn null_if/ss null_if/== coalesce/n= coalesce/s= coalesce/=*=
abs/n abs/D ceil/n floor/n round/n round/nz min/nn min/tt max/nn max/ss min/nnn max/dk
bitand/ii bitor/ii bitxor/ii bitnot/i bitshl/iz bitshr/iz bitshr/ii sign/n sqrt/f is_nan/f wrap_add/ii wrap_mul/ii ln/f
len/s len/l len/y len/m lower/s upper/s trim/s trim/ss trimPrefix/ss trimSuffix/ss split/ss len_split/ss replace/sss join/l:- indexOf/ss lastIndexOf/ss hasPrefix/ss
repeat/sz byte_len/s byte_len/y substr/sz substr/szz part/ss:z part/ssz lpad/sz rpad/szs reverse_str/s extract/s:([a-z])([0-9]?) url_param/ss concat/ss concat/sss concat/ll
hour/t minute/t second/t day/t month/a year/t weekday/t weekday/a day_of_year/t hour/t:Europe/Berlin day/t:America/New_York year/t:Asia/Kathmandu date_of/t date_of/t:Asia/Tokyo trunc/tD
epoch/t:ms epoch/t:s from_epoch/k:ms from_epoch/k:s from_epoch/i:us fmt/t:yyyy-MM-dd fmt/t:HH:mm fmt/t:yyyyMMddHHmmssSSSXXX fmt/a:yyyy-MM-dd
trunc_to/t:month trunc_to/t:week parse_time/s:yyyy-MM-dd
take/lz reverse/l uniq/l sort/l first/l last/l sum/l mean/l median/l keys/m values/m contains_key/ms
to_json/* hash64/* hash64/** md5/s sha256/y hex/s unhex/s toBase64/y fromBase64/s uuid_ok/s ip_in/s:10.0.0.0/8 json/s:a:int64
int/n int/s float/n float/s string/n string/t string/b string/D string/a bool/s bool/i bytes/s dec/i int8/n int16/i int32/n uint8/i uint16/n uint32/f uint64/n float32/n
try_int/s try_int/n try_int8/i try_uint64/n try_float/s try_bool/s
cast_time/s cast_date/s cast_duration/s unwrap/S
`)

// grow draws one new expression out of the pool, or nil if the draw has no type.
func (g *Gen) grow() *vector.Expr {
	switch g.R.IntN(12) {
	case 0:
		return g.logic(vector.OpAnd)
	case 1:
		return g.logic(vector.OpOr)
	case 2:
		return g.cond()
	case 3:
		return g.coalesce()
	case 4:
		if g.chance(50) {
			return g.field()
		}
		return g.let()
	case 5:
		return g.decimal()
	}
	return g.call(pick(g, forms))
}

func (g *Gen) logic(op vector.Op) *vector.Expr {
	a, b := g.of(scalar.KindBool), g.of(scalar.KindBool)
	return &vector.Expr{Op: op, Type: scalar.TypeBool.OrNull(a.Type.Nullable || b.Type.Nullable), Args: []*vector.Expr{a, b}}
}

func (g *Gen) cond() *vector.Expr {
	c := g.of(scalar.KindBool)
	a := pick(g, g.all)
	b := g.of(a.Type.Kind)
	t, ok := scalar.Common(a.Type, b.Type)
	if !ok {
		return nil
	}
	a, b = g.cast(a, t), g.cast(b, t)
	if a == nil || b == nil {
		return nil
	}
	return &vector.Expr{Op: vector.OpCond, Type: t, Args: []*vector.Expr{c, a, b}}
}

func (g *Gen) coalesce() *vector.Expr {
	a := pick(g, g.all)
	b := g.of(a.Type.Kind)
	t, ok := scalar.Common(a.Type, b.Type)
	if !ok {
		return nil
	}
	a, b = g.cast(a, t), g.cast(b, t)
	if a == nil || b == nil {
		return nil
	}
	t.Nullable = a.Type.Nullable && b.Type.Nullable
	return &vector.Expr{Op: vector.OpCoalesce, Type: t, Args: []*vector.Expr{a, b}}
}

func (g *Gen) field() *vector.Expr {
	s := g.of(scalar.KindStruct)
	i := g.R.IntN(len(s.Type.Fields))
	return &vector.Expr{Op: vector.OpField, Field: i, Type: s.Type.Fields[i].Type.OrNull(s.Type.Nullable), Args: []*vector.Expr{s}}
}

// let binds something and uses it in a call.
func (g *Gen) let() *vector.Expr {
	bound := g.of(pick(g, numKinds))
	if bound == nil {
		return nil
	}
	v := &vector.Expr{Op: vector.OpVar, Type: bound.Type}
	for range 5 {
		body := g.resolve(pick(g, []string{"add", "mul", "sub", "lt", "eq"}), []*vector.Expr{v, g.of(bound.Type.Kind)})
		if body != nil {
			return &vector.Expr{Op: vector.OpLet, Type: body.Type, Args: []*vector.Expr{bound, body}}
		}
	}
	return nil
}

func (g *Gen) decimal() *vector.Expr {
	x := g.of(pick(g, append([]scalar.Kind{scalar.KindString}, numKinds...)))
	p := 1 + g.R.IntN(38)
	s := g.R.IntN(p + 1)
	return g.resolve("cast_decimal", []*vector.Expr{x, constant(scalar.Int(int64(p))), constant(scalar.Int(int64(s)))})
}

func (g *Gen) call(form string) *vector.Expr {
	name, pattern, _ := strings.Cut(form, "/")
	pattern, text, hasText := strings.Cut(pattern, ":")
	var args []*vector.Expr
	for i := range len(pattern) {
		var first *vector.Expr
		if len(args) > 0 {
			first = args[0]
		} else {
			first = pick(g, g.all)
		}
		a := g.arg(pattern[i], first)
		if a == nil {
			return nil
		}
		args = append(args, a)
	}
	if hasText {
		parts := []string{text}
		if name == "json" {
			parts = strings.Split(text, ":")
		}
		if name == "part" {
			args = append(args, g.arg('z', nil))
			parts = nil
		}
		for _, p := range parts {
			args = append(args, constant(scalar.String(p)))
		}
		if name == "extract" && g.chance(50) {
			args = append(args, constant(scalar.Int(int64(g.R.IntN(3)))))
		}
	}
	if name == "len_split" {
		inner := g.resolve("split", args)
		if inner == nil {
			return nil
		}
		return g.resolve("len", []*vector.Expr{inner})
	}
	if (name == "in" || name == "not_in") && args[1].Type.Kind == scalar.KindList && g.chance(70) {
		args[1] = g.constList(args[0].Type)
	}
	if name == "index" && args[0].Type.Kind == scalar.KindMap && g.chance(70) {
		keys, vals := []scalar.Value{}, []scalar.Value{}
		for range g.R.IntN(5) {
			keys, vals = append(keys, g.Value(scalar.TypeString, 0)), append(vals, g.Value(scalar.TypeString, 0))
		}
		args[0] = &vector.Expr{Op: vector.OpConst, Type: scalar.MapType(scalar.TypeString, scalar.TypeString), Value: scalar.Map(keys, vals)}
	}
	return g.resolve(name, args)
}

func (g *Gen) constList(t scalar.Type) *vector.Expr {
	n := 1 + g.R.IntN(3)
	if g.chance(20) {
		n = 12
	}
	vals := make([]scalar.Value, n)
	null := false
	for i := range vals {
		vals[i] = g.Value(t.NonNull(), 0)
		if g.chance(5) {
			vals[i], null = scalar.Null, true
		}
	}
	return &vector.Expr{Op: vector.OpConst, Type: scalar.ListType(t.NonNull().OrNull(null)), Value: scalar.List(vals...)}
}

// resolve types a call as a checker does, or gives nil.
func (g *Gen) resolve(name string, args []*vector.Expr) *vector.Expr {
	if !scalar.Known(name) {
		panic("exprgen: no function " + name)
	}
	list := make([]scalar.Arg, len(args))
	for i, a := range args {
		list[i].Type = a.Type
		if a.Op == vector.OpConst {
			list[i].Const = &a.Value
		}
	}
	f, err := scalar.Resolve(name, list)
	if err != nil {
		return nil
	}
	e := &vector.Expr{Op: vector.OpCall, Func: name, Type: f.Result}
	for i, a := range args {
		c := g.cast(a, f.Args[i])
		if c == nil {
			return nil
		}
		e.Args = append(e.Args, c)
	}
	return e
}

// cast wraps e if it is not of type t already.
func (g *Gen) cast(e *vector.Expr, t scalar.Type) *vector.Expr {
	if e.Type.Same(t) || t.Kind == scalar.KindNull {
		return e
	}
	if e.Type.Kind == scalar.KindNull {
		return &vector.Expr{Op: vector.OpConst, Type: t.Null(), Value: scalar.Null}
	}
	name, consts, ok := scalar.CastName(t)
	if !ok {
		return nil
	}
	args := []*vector.Expr{e}
	for _, c := range consts {
		args = append(args, constant(c))
	}
	return g.resolve(name, args)
}

var (
	someInts = []int64{
		0, 1, -1, 2, 3, 7, 10, 100, -100, 127, 128, -128, -129, 255, 256, 32767, 32768, 65535, 65536, math.MaxInt32, math.MinInt32, math.MaxInt32 + 1, math.MaxUint32,
		1 << 53, 1<<53 + 1, -1<<53 - 1, math.MaxInt64, math.MinInt64, math.MaxInt64 - 1, math.MinInt64 + 1, 86400, 3600, 1000000007,
	}
	someFloats = []float64{
		0, math.Copysign(0, -1), 1, -1, 0.5, 1.5, 2.5, -2.5, 0.1, 100, 1e6, 1e21, 1e-7, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64,
		1 << 53, 1<<53 + 2, 1 << 63, -1 << 63, 1 << 64, math.MaxFloat32, 9007199254740993, 127, 128, 255, 256, -0.5, 3,
	}
	someTexts = []string{
		"", "a", "b", "ab", "a1b", "A", "Straße", "ÄÖ", "x,y,z", "a/b/c/d", "http://h/p?a=1&b=%20", "  pad ", "true", "false", "12", "-7", "1e3", "0.10", "99999999999999999999",
		"NaN", "2024-02-29", "2024-02-30", "1h30m", "\xff\xfe", "é", "日本語", "a\x00b", "10.1.2.3", "{\"a\":1}", "{\"a\":\"x\"}", "616263", "YWJj", "US", "DE",
		"01234567-89ab-cdef-0123-456789abcdef", "2024-05-06T07:08:09.5Z", "/", ",", "İ",
	}
)

// Value draws a value of type t, null in about nulls percent of the cases if t is nullable.
func (g *Gen) Value(t scalar.Type, nulls int) scalar.Value {
	if t.Nullable && g.chance(nulls) {
		return scalar.Null
	}
	switch k := t.Kind; {
	case k.Integer():
		i := pick(g, someInts)
		if g.chance(30) {
			i = int64(g.R.Uint64()) >> g.R.IntN(64)
		}
		for !scalar.CheckInt(i, scalar.KindInt64, k) {
			if k == scalar.KindUint64 {
				break // any bits
			}
			i >>= 1
			if i == -1 {
				i = 1
			}
		}
		return scalar.IntOf(k, i)
	case k.Float():
		f := pick(g, someFloats)
		if g.chance(30) {
			f = g.R.NormFloat64() * math.Pow10(g.R.IntN(20)-8)
		}
		if k == scalar.KindFloat32 {
			return scalar.Float32(float32(f))
		}
		return scalar.Float(f)
	case k == scalar.KindBool:
		return scalar.Bool(g.chance(50))
	case k == scalar.KindDecimal:
		return scalar.Decimal(g.digits(t.Precision))
	case k == scalar.KindString:
		return scalar.String(g.text())
	case k == scalar.KindBytes:
		return scalar.Bytes(g.text())
	case k == scalar.KindTime:
		if g.chance(70) {
			return scalar.Time(1_700_000_000_000_000_000 + int64(g.R.IntN(1000))*123_456_789_012)
		}
		return scalar.Time(pick(g, someInts))
	case k == scalar.KindDuration:
		if g.chance(60) {
			return scalar.Duration(int64(g.R.IntN(100)-20) * 1_000_000_000)
		}
		return scalar.Duration(pick(g, someInts))
	case k == scalar.KindDate:
		return scalar.Date(int64(g.R.IntN(60000) - 20000))
	case k == scalar.KindList:
		l := make([]scalar.Value, g.R.IntN(4))
		for i := range l {
			l[i] = g.Value(*t.Elem, nulls)
		}
		return scalar.List(l...)
	case k == scalar.KindMap:
		var keys, vals []scalar.Value
		for range g.R.IntN(3) {
			keys, vals = append(keys, g.Value(*t.Key, 0)), append(vals, g.Value(*t.Elem, nulls))
		}
		return scalar.Map(keys, vals)
	case k == scalar.KindStruct:
		l := make([]scalar.Value, len(t.Fields))
		for i, f := range t.Fields {
			l[i] = g.Value(f.Type, nulls)
		}
		return scalar.Struct(l...)
	}
	return scalar.Null
}

func (g *Gen) text() string {
	if g.chance(80) {
		return pick(g, someTexts)
	}
	return pick(g, someTexts) + pick(g, someTexts)
}

// digits draws an unscaled decimal of at most p digits, often at the edge.
func (g *Gen) digits(p int32) scalar.Int128 {
	var d scalar.Int128
	switch g.R.IntN(5) {
	case 0:
		d, _ = scalar.Pow10(p - 1).Mul(scalar.Int128Of(10))
		d, _ = d.Sub(scalar.Int128Of(1)) // 99..9
	case 1:
		d = scalar.Int128Of(int64(g.R.IntN(10)))
	default:
		d = scalar.Int128{Hi: int64(g.R.Uint64() >> 2), Lo: g.R.Uint64()}
		_, d = d.QuoRem(scalar.Pow10(1 + int32(g.R.IntN(int(p)))))
	}
	if p < scalar.MaxPrecision {
		_, d = d.QuoRem(scalar.Pow10(p))
	}
	if g.chance(40) {
		d = d.Neg()
	}
	return d
}

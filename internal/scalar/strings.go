package scalar

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Limits of functions that expand their input. Beyond them a row fails with CodeLimit.
const (
	MaxTextBytes = 1 << 20 // of a string or bytes that a function makes
	MaxElements  = 1 << 16 // of a list that a function makes
)

func text(s string) (Value, Code) {
	if len(s) > MaxTextBytes {
		return Null, CodeLimit
	}
	return String(s), CodeNone
}

func concatStrings(v []Value) (Value, Code) {
	n := 0
	for _, x := range v {
		n += len(x.S)
	}
	if n > MaxTextBytes {
		return Null, CodeLimit
	}
	if len(v) == 2 {
		return String(v[0].S + v[1].S), CodeNone
	}
	var b strings.Builder
	b.Grow(n)
	for _, x := range v {
		b.WriteString(x.S)
	}
	return String(b.String()), CodeNone
}

func predicate(op func(a, b string) bool) evalFn {
	return func(v []Value) (Value, Code) { return Bool(op(v[0].S, v[1].S)), CodeNone }
}

func mapText(op func(string) string) evalFn {
	return func(v []Value) (Value, Code) { return text(op(v[0].S)) }
}

// Lower maps to lower case, without a copy when nothing changes.
func Lower(s string) string { return strings.ToLower(s) }

// Upper maps to upper case.
func Upper(s string) string { return strings.ToUpper(s) }

func evalTrim(cut func(s, set string) string, space func(s string) string) evalFn {
	return func(v []Value) (Value, Code) {
		if len(v) == 1 {
			return String(space(v[0].S)), CodeNone
		}
		return String(cut(v[0].S, v[1].S)), CodeNone
	}
}

func evalSplit(v []Value) (Value, Code) {
	n := -1
	if len(v) == 3 {
		n = int(min(v[2].I, MaxElements+1))
	}
	if n < 0 || n > MaxElements {
		n = MaxElements + 1
	}
	parts := strings.SplitN(v[0].S, v[1].S, n)
	if len(parts) > MaxElements {
		return Null, CodeLimit
	}
	l := make([]Value, len(parts))
	for i, p := range parts {
		l[i] = String(p)
	}
	return Value{Kind: KindList, L: l}, CodeNone
}

// SplitCount is the number of parts that split makes, without making them.
func SplitCount(s, sep string) (int64, Code) {
	n := strings.Count(s, sep) + 1
	if sep == "" {
		n = utf8.RuneCountInString(s)
	}
	if n > MaxElements {
		return 0, CodeLimit
	}
	return int64(n), CodeNone
}

func evalReplace(v []Value) (Value, Code) {
	s, old, new, n := v[0].S, v[1].S, v[2].S, -1
	if len(v) == 4 {
		n = int(max(min(v[3].I, MaxTextBytes), -1))
	}
	if grow := len(new) - len(old); grow > 0 {
		count := strings.Count(s, old)
		if n >= 0 {
			count = min(count, n)
		}
		if count > 0 && (MaxTextBytes-len(s))/grow < count {
			return Null, CodeLimit
		}
	}
	return text(strings.Replace(s, old, new, n))
}

func evalRepeat(v []Value) (Value, Code) {
	n := v[1].I
	switch {
	case n < 0:
		return Null, CodeBadCast
	case n > 0 && int64(len(v[0].S)) > MaxTextBytes/n:
		return Null, CodeLimit
	case v[0].S == "":
		return String(""), CodeNone
	}
	return String(strings.Repeat(v[0].S, int(n))), CodeNone
}

func evalJoin(v []Value) (Value, Code) {
	sep := ""
	if len(v) == 2 {
		sep = v[1].S
	}
	var b []byte
	first := true
	for _, e := range v[0].L {
		if e.IsNull() {
			continue
		}
		if len(b)+len(sep)+len(e.S) > MaxTextBytes {
			return Null, CodeLimit
		}
		if !first {
			b = append(b, sep...)
		}
		first = false
		b = append(b, e.S...)
	}
	return String(string(b)), CodeNone
}

// charIndex turns a byte index into a count of characters.
func charIndex(s string, i int) int64 {
	if i < 0 {
		return -1
	}
	return int64(utf8.RuneCountInString(s[:i]))
}

// byteAt is the byte where character n begins; n past the end is len(s).
func byteAt(s string, n int64) int {
	if n >= int64(len(s)) {
		return len(s)
	}
	i := 0
	for ; n > 0 && i < len(s); n-- {
		_, w := utf8.DecodeRuneInString(s[i:])
		i += w
	}
	return i
}

// span clamps [from, to) to a length, with negative positions counted from the end.
func span(from, to, n int64) (int64, int64) {
	clamp := func(x int64) int64 {
		if x < 0 {
			x += n
		}
		return min(max(x, 0), n)
	}
	from, to = clamp(from), clamp(to)
	return from, max(from, to)
}

func evalSubstr(v []Value) (Value, Code) {
	s := v[0].S
	n := int64(utf8.RuneCountInString(s))
	from, _ := span(v[1].I, n, n)
	to := n
	if len(v) == 3 {
		to = from + min(max(v[2].I, 0), n-from)
	}
	i := byteAt(s, from)
	return String(s[i : i+byteAt(s[i:], to-from)]), CodeNone
}

// Part is piece i of s split at sep, counted from 0, or from the end if negative; ok is false outside.
func Part(s, sep string, i int64) (string, bool) {
	if sep == "" || i < 0 {
		parts := strings.Split(s, sep)
		if i < 0 {
			i += int64(len(parts))
		}
		if i < 0 || i >= int64(len(parts)) {
			return "", false
		}
		return parts[i], true
	}
	for ; i > 0; i-- {
		j := strings.Index(s, sep)
		if j < 0 {
			return "", false
		}
		s = s[j+len(sep):]
	}
	if j := strings.Index(s, sep); j >= 0 {
		s = s[:j]
	}
	return s, true
}

func evalPart(v []Value) (Value, Code) {
	s, ok := Part(v[0].S, v[1].S, v[2].I)
	if !ok {
		return Null, CodeNone
	}
	return String(s), CodeNone
}

func evalPad(left bool) evalFn {
	return func(v []Value) (Value, Code) {
		s, n, pad := v[0].S, v[1].I, " "
		if len(v) == 3 {
			pad = v[2].S
		}
		have := int64(utf8.RuneCountInString(s))
		if n <= have {
			return String(s[:byteAt(s, max(n, 0))]), CodeNone
		}
		if n > MaxTextBytes {
			return Null, CodeLimit
		}
		chars := int64(utf8.RuneCountInString(pad))
		if chars == 0 {
			return String(s), CodeNone
		}
		need := n - have
		if int64(len(s))+(need/chars+1)*int64(len(pad)) > 4*MaxTextBytes {
			return Null, CodeLimit
		}
		fill := strings.Repeat(pad, int(need/chars)) + pad[:byteAt(pad, need%chars)]
		if left {
			return text(fill + s)
		}
		return text(s + fill)
	}
}

func reverseString(s string) string {
	b := make([]byte, len(s))
	i := len(s)
	for p := 0; p < len(s); {
		_, w := utf8.DecodeRuneInString(s[p:])
		i -= w
		copy(b[i:], s[p:p+w])
		p += w
	}
	return string(b)
}

func evalURLParam(v []Value) (Value, Code) {
	s, name := v[0].S, v[1].S
	if _, q, ok := strings.Cut(s, "?"); ok {
		s = q
	} else if strings.Contains(s, "://") {
		return Null, CodeNone
	}
	s, _, _ = strings.Cut(s, "#")
	for s != "" {
		var pair string
		pair, s, _ = strings.Cut(s, "&")
		key, value, _ := strings.Cut(pair, "=")
		k, err := url.QueryUnescape(key)
		if err != nil || k != name {
			continue
		}
		value, err = url.QueryUnescape(value)
		if err != nil {
			return Null, CodeNone
		}
		return String(value), CodeNone
	}
	return Null, CodeNone
}

// constRegexp compiles a constant pattern.
func constRegexp(name string, args []Arg, i int) (*regexp.Regexp, error) {
	p, ok := constString(args[i])
	if !ok {
		return nil, fail(name, i, "the pattern must be a constant", "write it as a literal")
	}
	re, err := regexp.Compile(p)
	if err != nil {
		return nil, fail(name, i, fmt.Sprintf("not a regular expression: %v", strings.TrimPrefix(err.Error(), "error parsing regexp: ")), "")
	}
	return re, nil
}

func resolveMatches(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	t, err := typed(name, args, 0, KindString, "a string")
	if err != nil {
		return nil, err
	}
	re, err := constRegexp(name, args, 1)
	if err != nil {
		return nil, err
	}
	return &Func{Args: []Type{t, TypeString}, Result: TypeBool, Eval: func(v []Value) (Value, Code) {
		return Bool(re.MatchString(v[0].S)), CodeNone
	}}, nil
}

// resolveExtract makes extract(s, re, group): the text of a group of the first match, or null.
func resolveExtract(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 3); err != nil {
		return nil, err
	}
	t, err := typed(name, args, 0, KindString, "a string")
	if err != nil {
		return nil, err
	}
	re, err := constRegexp(name, args, 1)
	if err != nil {
		return nil, err
	}
	f := &Func{Args: []Type{t, TypeString}, Result: TypeString.Null()}
	group := int64(0)
	if len(args) == 3 {
		var isConst bool
		if group, isConst = constInt(args[2]); !isConst || group < 0 || group > int64(re.NumSubexp()) {
			return nil, fail(name, 2, fmt.Sprintf("the group must be a constant from 0 to %d", re.NumSubexp()), "")
		}
		f.Args = append(f.Args, args[2].Type)
	}
	f.Eval = func(v []Value) (Value, Code) {
		s, ok := extract(re, v[0].S, int(group))
		if !ok {
			return Null, CodeNone
		}
		return String(s), CodeNone
	}
	return f, nil
}

func extract(re *regexp.Regexp, s string, group int) (string, bool) {
	m := re.FindStringSubmatchIndex(s)
	if m == nil || m[2*group] < 0 {
		return "", false
	}
	return s[m[2*group]:m[2*group+1]], true
}

// resolveCapture makes capture(s, re): a struct of the named groups of the first match.
func resolveCapture(name string, args []Arg) (*Func, error) {
	if err := arity(name, args, 2, 2); err != nil {
		return nil, err
	}
	t, err := typed(name, args, 0, KindString, "a string")
	if err != nil {
		return nil, err
	}
	re, err := constRegexp(name, args, 1)
	if err != nil {
		return nil, err
	}
	var fields []Field
	var groups []int
	seen := map[string]bool{}
	for i, n := range re.SubexpNames() {
		if n == "" {
			continue
		}
		if seen[n] {
			return nil, fail(name, 1, fmt.Sprintf("two groups are called `%s`", n), "")
		}
		seen[n] = true
		fields = append(fields, Field{n, TypeString.Null()})
		groups = append(groups, i)
	}
	if len(fields) == 0 {
		return nil, fail(name, 1, "the pattern has no named group", "write `(?P<name>..)`")
	}
	return &Func{Args: []Type{t, TypeString}, Result: StructType(fields...).Null(), Eval: func(v []Value) (Value, Code) {
		m := re.FindStringSubmatchIndex(v[0].S)
		if m == nil {
			return Null, CodeNone
		}
		l := make([]Value, len(groups))
		for i, g := range groups {
			l[i] = Null
			if m[2*g] >= 0 {
				l[i] = String(v[0].S[m[2*g]:m[2*g+1]])
			}
		}
		return Value{Kind: KindStruct, L: l}, CodeNone
	}}, nil
}

package vector

import (
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/headrace/headrace/internal/scalar"
)

// view is b as a string without a copy.
func view(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	return unsafe.String(&b[0], len(b))
}

// An arena holds the bytes of the strings that a node makes, until the batch is done. When it grows, the
// strings before keep the old memory.
type arena struct {
	buf  []byte
	from int
}

// maxArenaBytes is what an arena keeps for the next batch.
const maxArenaBytes = 4 << 20

func (w *arena) begin() { w.from = len(w.buf) }

// put makes what was appended to buf since the last put the string of row i.
func (w *arena) put(o *vec, i int32) {
	o.s.str[i] = view(w.buf[w.from:])
	w.from = len(w.buf)
}

// reset forgets the strings.
func (w *arena) reset() {
	w.buf = w.buf[:0]
	if cap(w.buf) > maxArenaBytes {
		w.buf = nil
	}
}

func (n *node) textKernel(name string) kernel {
	for _, a := range n.args {
		if a.form != formText && a.form != formInt {
			return nil
		}
	}
	if n.args[0].form != formText {
		return nil
	}
	n.onlyLive = true
	switch name {
	case "contains":
		return n.textPredicate(strings.Contains)
	case "startsWith", "hasPrefix":
		return n.textPredicate(strings.HasPrefix)
	case "endsWith", "hasSuffix":
		return n.textPredicate(strings.HasSuffix)
	case "matches":
		re := n.constPattern(1)
		if re == nil {
			break
		}
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.b[i] = re.MatchString(a[0].s.at(i))
			}
		}
	case "extract":
		re := n.constPattern(1)
		group := int64(0)
		if len(n.args) == 3 {
			group, _ = n.constInt(2)
		}
		if re == nil {
			break
		}
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				v := a[0].s.at(i)
				m := re.FindStringSubmatchIndex(v)
				if m == nil || m[2*group] < 0 {
					o.setNull(i)
					continue
				}
				o.s.str[i] = v[m[2*group]:m[2*group+1]]
			}
		}
	case "lower":
		return n.caseKernel('A', 'Z', scalar.Lower)
	case "upper":
		return n.caseKernel('a', 'z', scalar.Upper)
	case "len":
		if n.args[0].typ.Kind != scalar.KindString {
			return byteLen
		}
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.i[i] = int64(utf8.RuneCountInString(a[0].s.at(i)))
			}
		}
	case "byte_len":
		return byteLen
	case "part":
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				v, ok := scalar.Part(a[0].s.at(i), a[1].s.at(i), a[2].i[i])
				if !ok {
					o.setNull(i)
					continue
				}
				o.s.str[i] = v
			}
		}
	case "trimPrefix":
		return n.textMap(strings.TrimPrefix)
	case "trimSuffix":
		return n.textMap(strings.TrimSuffix)
	case "trim":
		if len(n.args) == 1 {
			return n.textMap(func(s, _ string) string { return strings.TrimSpace(s) })
		}
		return n.textMap(strings.Trim)
	case "concat":
		return n.concat()
	}
	n.onlyLive = false
	return nil
}

func byteLen(o *vec, a []*vec, s *selection) {
	for _, i := range s.rows {
		o.i[i] = int64(len(a[0].s.at(i)))
	}
}

func (n *node) textPredicate(op func(s, t string) bool) kernel {
	if c, ok := n.constText(1); ok {
		return func(o *vec, a []*vec, s *selection) {
			for _, i := range s.rows {
				o.b[i] = op(a[0].s.at(i), c)
			}
		}
	}
	return func(o *vec, a []*vec, s *selection) {
		for _, i := range s.rows {
			o.b[i] = op(a[0].s.at(i), a[1].s.at(i))
		}
	}
}

// textMap makes strings that are parts of the first argument.
func (n *node) textMap(op func(s, t string) string) kernel {
	return func(o *vec, a []*vec, s *selection) {
		t := &a[len(a)-1].s
		for _, i := range s.rows {
			o.s.str[i] = op(a[0].s.at(i), t.at(i))
		}
	}
}

// caseKernel maps letters; a string that stays as it is is not copied.
func (n *node) caseKernel(from, to byte, slow func(string) string) kernel {
	w := &n.arena
	return func(o *vec, a []*vec, s *selection) {
		w.begin()
		for _, i := range s.rows {
			v := a[0].s.at(i)
			change, ascii := false, true
			for j := range len(v) {
				c := v[j]
				change = change || c >= from && c <= to
				ascii = ascii && c < utf8.RuneSelf
			}
			switch {
			case !ascii:
				v = slow(v)
				if len(v) > scalar.MaxTextBytes {
					o.fail(i, scalar.CodeLimit)
					continue
				}
				o.s.str[i] = v
			case len(v) > scalar.MaxTextBytes:
				o.fail(i, scalar.CodeLimit)
			case !change:
				o.s.str[i] = v
			default:
				for j := range len(v) {
					c := v[j]
					if c >= from && c <= to {
						c ^= 0x20
					}
					w.buf = append(w.buf, c)
				}
				w.put(o, i)
			}
		}
	}
}

// concat joins all arguments.
func (n *node) concat() kernel {
	w := &n.arena
	return func(o *vec, a []*vec, s *selection) {
		w.begin()
		for _, i := range s.rows {
			size := 0
			for _, x := range a {
				size += len(x.s.at(i))
			}
			if size > scalar.MaxTextBytes {
				o.fail(i, scalar.CodeLimit)
				continue
			}
			for _, x := range a {
				w.buf = append(w.buf, x.s.at(i)...)
			}
			w.put(o, i)
		}
	}
}

// splitCount is len(split(s, sep)) without the list.
func splitCount(o *vec, a []*vec, s *selection) {
	for _, i := range s.rows {
		n, c := scalar.SplitCount(a[0].s.at(i), a[1].s.at(i))
		o.i[i] = n
		if c != scalar.CodeNone {
			o.fail(i, c)
		}
	}
}

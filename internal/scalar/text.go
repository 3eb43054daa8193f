package scalar

import (
	"encoding/base64"
	"math"
	"strconv"
	"unicode/utf8"
)

// AppendJSON appends the JSON text of v, which is of type t: integers and decimals as exact numbers,
// floats in shortest form, times as RFC 3339 in UTC with as many fraction digits as needed, dates as
// "2006-01-02", durations as "1h30m", bytes in base64, lists as arrays, structs and maps as objects
// (map keys as their text).
//
// Errors: CodeNotFinite for NaN and infinities; dst is then returned as it came.
func AppendJSON(dst []byte, v Value, t Type) ([]byte, Code) {
	if v.IsNull() {
		return append(dst, "null"...), CodeNone
	}
	start := len(dst)
	switch t.Kind {
	case KindFloat32, KindFloat64:
		if math.IsNaN(v.F) || math.IsInf(v.F, 0) {
			return dst, CodeNotFinite
		}
		return appendFloat(dst, v.F, floatBits(t.Kind)), CodeNone
	case KindString:
		return AppendJSONString(dst, v.S), CodeNone
	case KindBytes:
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, []byte(v.S))
		return append(dst, '"'), CodeNone
	case KindTime, KindDuration, KindDate:
		dst = append(dst, '"')
		dst, _ = AppendText(dst, v, t)
		return append(dst, '"'), CodeNone
	case KindList:
		dst = append(dst, '[')
		for i, e := range v.L {
			if i > 0 {
				dst = append(dst, ',')
			}
			var c Code
			if dst, c = AppendJSON(dst, e, *t.Elem); c != CodeNone {
				return dst[:start], c
			}
		}
		return append(dst, ']'), CodeNone
	case KindStruct:
		dst = append(dst, '{')
		for i, f := range t.Fields {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = AppendJSONString(dst, f.Name)
			dst = append(dst, ':')
			var c Code
			if dst, c = AppendJSON(dst, v.L[i], f.Type); c != CodeNone {
				return dst[:start], c
			}
		}
		return append(dst, '}'), CodeNone
	case KindMap:
		dst = append(dst, '{')
		for i, k := range v.Keys {
			if i > 0 {
				dst = append(dst, ',')
			}
			text, c := AppendText(nil, k, *t.Key)
			if c != CodeNone {
				return dst[:start], c
			}
			dst = AppendJSONString(dst, string(text))
			dst = append(dst, ':')
			if dst, c = AppendJSON(dst, v.L[i], *t.Elem); c != CodeNone {
				return dst[:start], c
			}
		}
		return append(dst, '}'), CodeNone
	}
	return AppendText(dst, v, t)
}

// AppendText appends v as the cast `string` writes it: strings as they are, bytes in base64, other
// values as in JSON but without quotes; null is empty. It is the text of a CSV field before quoting.
//
// Errors: CodeNotFinite as AppendJSON.
func AppendText(dst []byte, v Value, t Type) ([]byte, Code) {
	if v.IsNull() {
		return dst, CodeNone
	}
	switch t.Kind {
	case KindBool:
		return strconv.AppendBool(dst, v.I != 0), CodeNone
	case KindInt8, KindInt16, KindInt32, KindInt64:
		return strconv.AppendInt(dst, v.I, 10), CodeNone
	case KindUint8, KindUint16, KindUint32, KindUint64:
		return strconv.AppendUint(dst, uint64(v.I), 10), CodeNone
	case KindDecimal:
		return AppendDecimal(dst, v.D, t.Scale), CodeNone
	case KindString:
		return append(dst, v.S...), CodeNone
	case KindBytes:
		return base64.StdEncoding.AppendEncode(dst, []byte(v.S)), CodeNone
	case KindTime:
		return AppendTime(dst, v.I), CodeNone
	case KindDuration:
		return AppendDuration(dst, v.I), CodeNone
	case KindDate:
		return AppendDate(dst, v.I), CodeNone
	}
	return AppendJSON(dst, v, t)
}

func floatBits(k Kind) int {
	if k == KindFloat32 {
		return 32
	}
	return 64
}

// appendFloat appends a finite float in its shortest form: plain digits between 1e-6 and 1e21, else with an
// exponent.
func appendFloat(dst []byte, f float64, bits int) []byte {
	abs := math.Abs(f)
	format := byte('f')
	if abs != 0 && (bits == 64 && (abs < 1e-6 || abs >= 1e21) || bits == 32 && (float32(abs) < 1e-6 || float32(abs) >= 1e21)) {
		format = 'e'
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, format, -1, bits)
	if n := len(dst); format == 'e' && n-start >= 4 && dst[n-4] == 'e' && dst[n-2] == '0' {
		// e-09 is written e-9, as ECMAScript does.
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// AppendJSONString appends s quoted. Control characters, quotes and backslashes are escaped; bytes
// that are no UTF-8 become U+FFFD. Nothing else is.
func AppendJSONString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		b := s[i]
		if b < utf8.RuneSelf {
			if b >= 0x20 && b != '"' && b != '\\' {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			switch b {
			case '"', '\\':
				dst = append(dst, '\\', b)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
			}
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[start:i]...)
			dst = append(dst, "\uFFFD"...)
			i++
			start = i
			continue
		}
		i += n
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

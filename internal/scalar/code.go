package scalar

import "fmt"

// A Code says why one row failed. Zero is no failure. The codes are the same as those of compile-time
// diagnostics, so that a constant that fails at compile time and a row that fails at run time read
// alike.
type Code uint16

// The codes of row errors.
const (
	CodeNone            Code = 0
	CodeOverflow        Code = 601 // integer overflow
	CodeDivisionByZero  Code = 602
	CodeBadCast         Code = 603 // the value has no counterpart in the target type
	CodeDecimalOverflow Code = 604 // more than 38 digits, or more than the declared precision
	CodeTimeRange       Code = 605 // outside 1677-09-21 to 2262-04-11
	CodeNotFinite       Code = 606 // NaN or infinity where text or a number with limits is needed
	CodeLimit           Code = 607 // a function would make too much
	CodeNull            Code = 608 // null in a non-null column
	CodeUnparsable      Code = 609 // the record is not in the topic's format
	CodeWrongType       Code = 610 // a field of the record has another type than its column
	CodeFuture          Code = 611 // event time too far ahead of the append time
	CodeBadPattern      Code = 612 // a pattern, layout, unit or zone that is not one
	CodeNullStruct      Code = 613 // unwrap of a null struct
)

// String gives "E0601"; for CodeNone it gives "ok".
func (c Code) String() string {
	if c == CodeNone {
		return "ok"
	}
	return fmt.Sprintf("E%04d", uint16(c))
}

// Message is one sentence for people.
func (c Code) Message() string {
	switch c {
	case CodeNone:
		return "no error"
	case CodeOverflow:
		return "integer overflow"
	case CodeDivisionByZero:
		return "division by zero"
	case CodeBadCast:
		return "the value does not convert to the target type"
	case CodeDecimalOverflow:
		return "decimal overflow: the result needs more digits than its type has"
	case CodeTimeRange:
		return "time out of range: times run from 1677-09-21 to 2262-04-11"
	case CodeNotFinite:
		return "NaN or infinity has no written form"
	case CodeLimit:
		return "the result would exceed a size limit"
	case CodeNull:
		return "null in a column that is not nullable"
	case CodeUnparsable:
		return "the record cannot be read in the topic's format"
	case CodeWrongType:
		return "a field has another type than its column"
	case CodeFuture:
		return "the event time is further ahead of the append time than the topic allows"
	case CodeBadPattern:
		return "not a valid pattern, layout, unit or zone"
	case CodeNullStruct:
		return "unwrap of a null struct"
	}
	return "unknown error"
}

// Fix is what a user can do about it, in words.
func (c Code) Fix() string {
	switch c {
	case CodeNone:
		return ""
	case CodeOverflow:
		return "use `dec(x)` or `float(x)` for larger numbers, `wrap_add` or `wrap_mul` for hashing"
	case CodeDivisionByZero:
		return "guard it: `b != 0 ? a / b : nil`, or `a / null_if(b, 0)`"
	case CodeBadCast:
		return "use the `try_` form of the cast, which gives null"
	case CodeDecimalOverflow:
		return "cast to a smaller scale first: `dec(x, 38, 6)`"
	case CodeTimeRange:
		return "check the unit of the number or the layout of the text"
	case CodeNotFinite:
		return "guard it: `is_nan(x) ? nil : x`"
	case CodeLimit:
		return "shorten the input, or take a part of it first"
	case CodeNull:
		return "declare the column nullable (`T?`), or send the field"
	case CodeUnparsable:
		return "send records in the topic's format"
	case CodeWrongType:
		return "send the declared type, or declare the column as what is sent"
	case CodeFuture:
		return "check the producer's clock and the column's unit, or raise `future`"
	case CodeBadPattern:
		return "use a constant pattern, which is checked before anything runs"
	case CodeNullStruct:
		return "filter first: `|> where c != nil |> unwrap c`"
	}
	return ""
}

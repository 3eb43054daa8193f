package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"

	"github.com/headrace/headrace/server/broker"
)

// decodeBody reads a JSON body, and says what is wrong with it in the words of JSON: what is what it should be.
func decodeBody(raw []byte, what string, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		return nil
	}
	why := strings.TrimPrefix(err.Error(), "json: ")
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF):
		why = "it is empty"
	case errors.Is(err, io.ErrUnexpectedEOF):
		why = "it ends in the middle"
	case errors.As(err, &kind):
		at := "it"
		if kind.Field != "" {
			at = `"` + kind.Field + `"`
		}
		why = at + " is " + jsonValue(kind.Value) + ", want " + jsonKind(kind.Type)
	}
	return broker.Errorf(broker.BadRequest, "the body is not %s: %s", what, clip(why))
}

// jsonValue is what encoding/json calls a value, with its article.
func jsonValue(value string) string {
	switch kind, of, _ := strings.Cut(value, " "); {
	case kind == "number" && of != "": // one that does not fit
		return "the number " + of
	case kind == "bool":
		return "true or false"
	case kind == "array", kind == "object":
		return "an " + kind
	default:
		return "a " + kind
	}
}

// jsonKind is what a Go type is in JSON.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		return "a whole number in range"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	default:
		return "an object"
	}
}

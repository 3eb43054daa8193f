// Package columnar is the payload of a columnar record batch: Arrow columns as bytes, and back.
//
// FORMAT.md draws every byte. A payload is a prefix that names its schema, two small tables, and the raw
// buffers of the columns, each on a 64-byte boundary. Writing one copies each column once; reading one
// copies nothing: arrays point into the payload.
//
// What comes from outside goes through Open, which checks every length, and through Frame.Check, which
// checks every value that a later reader relies on: offsets, text, dictionary indexes, nulls where there
// are none, digits of decimals. After both no array of a Frame can reach outside the payload.
//
// The package knows neither the log nor the language. A Schema is immutable and may be shared; a Frame
// and an Encoder belong to one goroutine at a time.
package columnar

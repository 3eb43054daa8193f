package http_test

import (
	"fmt"
	"testing"
)

// What is wrong with a body is said in the words of JSON, not of the server's source.
func TestBodiesAreJudgedInTheWordsOfJSON(t *testing.T) {
	w := start(t, nil)
	for _, c := range []struct{ method, body, want string }{
		{"POST", ``, `the body is not a topic: it is empty`},
		{"POST", `{"name":`, `the body is not a topic: it ends in the middle`},
		{"POST", `{"name" "a"}`, `the body is not a topic: invalid character '"' after object key`},
		{"POST", `{"nme":"a"}`, `the body is not a topic: unknown field "nme"`},
		{"POST", `{"partitions":"two"}`, `the body is not a topic: "partitions" is a string, want a whole number in range`},
		{"POST", `{"partitions":1.5}`, `the body is not a topic: "partitions" is the number 1.5, want a whole number in range`},
		{"POST", `{"partitions":99999999999}`, `the body is not a topic: "partitions" is the number 99999999999, want a whole number in range`},
		{"POST", `{"dry_run":1}`, `the body is not a topic: "dry_run" is a number, want true or false`},
		{"POST", `{"name":true}`, `the body is not a topic: "name" is true or false, want a string`},
		{"POST", `[]`, `the body is not a topic: it is an array, want an object`},
		{"PATCH", `{"set":[]}`, `the body is not a change of settings: "set" is an array, want an object`},
		{"PATCH", `{"unset":{}}`, `the body is not a change of settings: "unset" is an object, want an array`},
	} {
		path := "/api/v1/topics"
		if c.method == "PATCH" {
			path += "/t"
		}
		if m := w.json(c.method, path, c.body, 400); m["code"] != "E1060" || fmt.Sprint(m["message"]) != c.want {
			t.Errorf("%s: %v, want %s", c.body, m, c.want)
		}
	}
}

package log

import (
	"encoding/json"
	"testing"
)

func TestIDsAreTextInJSON(t *testing.T) {
	in := struct {
		Topic TopicID
		Task  TaskID
	}{TopicID{0: 1, 15: 0xfe}, TaskID{7: 0xab}}
	b, err := json.Marshal(in)
	if err != nil || string(b) != `{"Topic":"01000000-0000-0000-0000-0000000000fe","Task":"00000000-0000-00ab-0000-000000000000"}` {
		t.Fatalf("%s, %v", b, err)
	}
	out := in
	out.Topic, out.Task = TopicID{}, TaskID{}
	if err := json.Unmarshal(b, &out); err != nil || out != in {
		t.Fatalf("%+v, %v", out, err)
	}
	for _, s := range []string{"", "x", "01000000-0000-0000-0000-0000000000f", "01000000-0000-0000-0000-0000000000fg", "0100000000000000-0000-0000-0000000000fe"} {
		if _, err := ParseTopicID(s); err == nil {
			t.Errorf("%q is taken for an id", s)
		}
	}
}

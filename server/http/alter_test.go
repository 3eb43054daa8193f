package http_test

import (
	"fmt"
	"testing"
)

func TestTopicsAreAltered(t *testing.T) {
	w := start(t, nil)
	w.json("POST", "/api/v1/topics", `{"name":"t","configs":{"retention.ms":"60000"}}`, 201)
	const path = "/api/v1/topics/t"
	settings := func() string {
		topic, _ := w.broker.Topic("t")
		return fmt.Sprint(topic.Configs, topic.Settings.RetentionMs, topic.Settings.RetentionBytes)
	}
	for _, c := range []struct {
		body   string
		status int
		want   string // code, or what changed
		now    string
	}{
		{`{"set":{"retention.ms":"5","retention.bytes":"7"},"dry_run":true}`, 200, "[map[after:7 before:-1 default:false name:retention.bytes] map[after:5 before:60000 default:false name:retention.ms]]", "map[retention.ms:60000] 60000 -1"},
		{`{"set":{"retention.bytes":"7"},"unset":["retention.ms"]}`, 200, "[map[after:7 before:-1 default:false name:retention.bytes] map[after:-1 before:60000 default:true name:retention.ms]]", "map[retention.bytes:7] -1 7"},
		{`{"set":{"retention.bytes":"7"},"unset":["retention.ms"]}`, 200, "[]", "map[retention.bytes:7] -1 7"},
		{`{}`, 200, "[]", "map[retention.bytes:7] -1 7"},
		{`{"set":{"retention.bytes":"x"}}`, 400, "E1005", "map[retention.bytes:7] -1 7"},
		{`{"set":{"no.such":"x"}}`, 400, "E1005", "map[retention.bytes:7] -1 7"},
		{`{"unset":["no.such"]}`, 400, "E1005", "map[retention.bytes:7] -1 7"},
		{`{"set":{"retention.ms":"1"},"unset":["retention.ms"]}`, 400, "E1060", "map[retention.bytes:7] -1 7"},
	} {
		m := w.json("PATCH", path, c.body, c.status)
		got := fmt.Sprint(m["changed"])
		if c.status != 200 {
			got = fmt.Sprint(m["code"])
		}
		if now := settings(); got != c.want || now != c.now {
			t.Errorf("%s: %s, now %s; want %s, %s", c.body, got, now, c.want, c.now)
		}
	}
}

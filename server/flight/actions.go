package flight

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/apache/arrow/go/v15/arrow/flight"

	"github.com/headrace/headrace/server/broker"
)

// maxActionBytes bounds the body of an action, a module's text most of all.
const maxActionBytes = 1 << 20

// An action is one of DoAction.
type action struct {
	name, help string
	do         func(s *Server, stream flight.FlightService_DoActionServer, body []byte) error
}

// actions are what the HTTP API does too, on the same code.
var actions = []action{
	{"create-topic", `{"name": .., "partitions": n, "configs": {..}}`, createTopic},
	{"delete-topic", `{"name": ..}`, deleteTopic},
	{"list-topics", "no body; a result for each topic and view", listTopics},
	{"apply", `{"module": .., "text": .., "params": {..}, "dry_run": false, "allow_break": false}`, apply},
	{"stop", `{"name": module or module/topic}`, stop},
}

// ListActions lists them.
func (s *Server) ListActions(_ *flight.Empty, stream flight.FlightService_ListActionsServer) error {
	for _, a := range actions {
		if err := stream.Send(&flight.ActionType{Type: a.name, Description: a.help}); err != nil {
			return err
		}
	}
	return nil
}

// DoAction runs one. Its body, and each of its results, is JSON.
func (s *Server) DoAction(a *flight.Action, stream flight.FlightService_DoActionServer) error {
	if len(a.GetBody()) > maxActionBytes {
		return broker.Errorf(broker.BodyTooLarge, "the body of %s is larger than %d bytes", clip(a.Type), maxActionBytes)
	}
	for _, x := range actions {
		if x.name == a.Type {
			return x.do(s, stream, a.GetBody())
		}
	}
	e := broker.Errorf(broker.NoSuchResource, "there is no action %q", clip(a.Type))
	e.Why, e.Fix = "The name is not one of ListActions.", "See ListActions."
	return e
}

// decode reads a body.
func decode(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = errors.New("something follows it")
	}
	return &broker.Error{Code: broker.BadRequest, Message: "the body of the action is not understood: " + clip(err.Error()), Fix: "ListActions shows the bodies of all actions."}
}

func answer(stream flight.FlightService_DoActionServer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return stream.Send(&flight.Result{Body: text})
}

// A topicBody is a topic or view in a result.
type topicBody struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	Partitions int32  `json:"partitions"`
	Owner      string `json:"owner,omitempty"`
}

func describe(t *broker.Topic) topicBody {
	return topicBody{Name: t.Name, Kind: t.Kind.String(), Partitions: t.Partitions, Owner: t.Owner}
}

func createTopic(s *Server, stream flight.FlightService_DoActionServer, body []byte) error {
	var in struct {
		Name       string            `json:"name"`
		Partitions int32             `json:"partitions"`
		Configs    map[string]string `json:"configs"`
	}
	if err := decode(body, &in); err != nil {
		return err
	}
	created := s.broker.CreateTopics(stream.Context(), []broker.TopicSpec{{Name: in.Name, Partitions: in.Partitions, Configs: in.Configs}}, nil, false)[0]
	if created.Err != nil {
		return created.Err
	}
	return answer(stream, describe(created.Topic))
}

func deleteTopic(s *Server, stream flight.FlightService_DoActionServer, body []byte) error {
	var in struct {
		Name string `json:"name"`
	}
	if err := decode(body, &in); err != nil {
		return err
	}
	if err := s.broker.DeleteTopic(stream.Context(), in.Name); err != nil {
		return err
	}
	return answer(stream, map[string]string{"name": in.Name, "state": "deleted"})
}

func listTopics(s *Server, stream flight.FlightService_DoActionServer, _ []byte) error {
	for _, t := range s.broker.Topics() {
		if err := answer(stream, describe(t)); err != nil {
			return err
		}
	}
	return nil
}

// engine returns the engine or E1068.
func (s *Server) engine() (broker.Pipelines, error) {
	if s.opts.Pipelines == nil {
		return nil, broker.Errorf(broker.NoEngine, "the pipeline engine does not run")
	}
	return s.opts.Pipelines, nil
}

func apply(s *Server, stream flight.FlightService_DoActionServer, body []byte) error {
	var in struct {
		Module     string            `json:"module"`
		Text       string            `json:"text"`
		Params     map[string]string `json:"params"`
		DryRun     bool              `json:"dry_run"`
		AllowBreak bool              `json:"allow_break"`
	}
	if err := decode(body, &in); err != nil {
		return err
	}
	e, err := s.engine()
	if err != nil {
		return err
	}
	if err := broker.CheckTopicName(in.Module); err != nil {
		return broker.Errorf(broker.BadRequest, "the module name %q is not allowed", clip(in.Module))
	}
	if !utf8.ValidString(in.Text) {
		return broker.Errorf(broker.BadRequest, "the module's text is not UTF-8")
	}
	result, err := e.Apply(stream.Context(), in.Module, in.Text, broker.ApplyOptions{DryRun: in.DryRun, AllowBreak: in.AllowBreak, Params: in.Params})
	if err != nil {
		return err
	}
	return answer(stream, result)
}

func stop(s *Server, stream flight.FlightService_DoActionServer, body []byte) error {
	var in struct {
		Name string `json:"name"`
	}
	if err := decode(body, &in); err != nil {
		return err
	}
	e, err := s.engine()
	if err != nil {
		return err
	}
	if err := e.Stop(stream.Context(), in.Name); err != nil {
		return err
	}
	return answer(stream, map[string]string{"name": in.Name, "state": "stopped"})
}

package flight

import (
	"context"
	"strings"

	"github.com/apache/arrow/go/v15/arrow/flight"
	"github.com/apache/arrow/go/v15/arrow/memory"

	"github.com/headrace/headrace/server/broker"
)

// ListFlights lists topics and views with their schemas. The criteria, if there are any, are the beginning of the name.
func (s *Server) ListFlights(c *flight.Criteria, stream flight.FlightService_ListFlightsServer) error {
	prefix := string(c.GetExpression())
	for _, t := range s.broker.Topics() {
		if !strings.HasPrefix(t.Name, prefix) {
			continue
		}
		r, err := s.open(&command{Topic: t.Name})
		if err != nil {
			if broker.AsError(err).Code == broker.Internal {
				return err
			}
			continue // it was deleted meanwhile, or has no columns
		}
		info := s.info(r, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"topic", t.Name}})
		if err := stream.Send(info); err != nil {
			return err
		}
	}
	return nil
}

// info is a flight without endpoints.
func (s *Server) info(r *reading, d *flight.FlightDescriptor) *flight.FlightInfo {
	return &flight.FlightInfo{
		Schema: flight.SerializeSchema(r.schema.Arrow(), memory.DefaultAllocator), FlightDescriptor: d, TotalRecords: -1, TotalBytes: -1,
	}
}

// GetSchema is the schema of a topic or view, or of what a command makes of it.
func (s *Server) GetSchema(_ context.Context, d *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	c, err := fromDescriptor(d)
	if err != nil {
		return nil, err
	}
	r, err := s.open(&c)
	if err != nil {
		return nil, err
	}
	return &flight.SchemaResult{Schema: flight.SerializeSchema(r.schema.Arrow(), memory.DefaultAllocator)}, nil
}

// GetFlightInfo is an endpoint for each partition of a topic, with a ticket for its range. The number of records is that of
// the offsets in the range where every offset may be a row: not of views, filters, compacted and derived topics.
func (s *Server) GetFlightInfo(ctx context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	c, err := fromDescriptor(d)
	if err != nil {
		return nil, err
	}
	r, err := s.open(&c)
	if err != nil {
		return nil, err
	}
	spans, err := s.spans(ctx, r, &c)
	if err != nil {
		return nil, err
	}
	info := s.info(r, d)
	total := int64(0)
	for _, x := range spans {
		info.Endpoint = append(info.Endpoint, &flight.FlightEndpoint{Ticket: &flight.Ticket{Ticket: appendTicket(nil, r, x)}})
		total += x.to - x.next
	}
	if !r.follow && r.view == nil && !r.stored.Settings.Compact && r.stored.Kind == broker.Stored {
		info.TotalRecords = total
	}
	return info, nil
}

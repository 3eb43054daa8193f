package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/headrace/headrace/server/broker"
)

// A conn is one client connection. Its reader goroutine runs every handler; see the package comment.
type conn struct {
	srv    *Server
	nc     net.Conn
	id     uint64
	remote string
	host   string // the client's address without port
	frames frameReader
	out    *outbox

	client  atomic.Pointer[clientName] // as told by ApiVersions
	parsed  produceParse               // scratch of the Produce path
	fetches broker.FetchSession
}

// A clientName is what KIP-511 tells about a client.
type clientName struct{ name, version string }

// A request is one decoded request header.
type request struct {
	key, version int16
	correlation  int32
	clientID     string
	body         []byte // valid until the next frame
}

// errRefused is a request after which the connection is closed; it has been logged.
var errRefused = errors.New("kafka: connection refused")

func (s *Server) newConn(ctx context.Context, nc net.Conn) *conn {
	c := &conn{srv: s, nc: nc, id: s.connIDs.Add(1), remote: nc.RemoteAddr().String()}
	c.host = c.remote
	if h, _, err := net.SplitHostPort(c.remote); err == nil {
		c.host = h
	}
	c.frames = frameReader{
		ctx: ctx, nc: nc, budget: s.budget, limit: s.frameLimit, idle: s.opts.IdleTimeout, stall: s.opts.StallTimeout,
		small: make([]byte, smallFrame),
	}
	c.out = newOutbox(nc, s.opts.MaxInflight, s.opts.WriteTimeout, &s.wg)
	return c
}

// serve reads requests until the client leaves, the server stops or a request is not acceptable.
func (c *conn) serve(ctx context.Context) {
	log := c.srv.log.With("conn", c.id, "remote", c.remote)
	defer func() {
		if r := recover(); r != nil {
			c.srv.metrics.Panics.Add(1)
			log.Error("kafka.panic", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			c.out.fail(errRefused)
		}
		c.frames.done()
	}()
	stop := context.AfterFunc(ctx, func() { _ = c.nc.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		frame, err := c.frames.next()
		if ctx.Err() != nil {
			c.finish()
			return
		}
		if err != nil {
			c.ended(log, err)
			return
		}
		if err := c.handle(ctx, log, frame); err != nil {
			if !errors.Is(err, errRefused) {
				c.ended(log, err)
				return
			}
			c.finish()
			return
		}
	}
}

// ended logs why reading stopped and closes the connection. Responses that are still outstanding are
// written first when the client only closed its sending side.
func (c *conn) ended(log *slog.Logger, err error) {
	switch {
	case errors.Is(err, io.EOF):
		c.finish()
		return
	case errors.Is(err, errFrame):
		log.Warn("kafka.frame", "err", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		log.Debug("kafka.idle", "err", err)
	case errors.Is(err, errBusy):
		log.Warn("kafka.memory", "err", err)
	default:
		log.Debug("kafka.closed", "err", err)
	}
	c.out.fail(err)
}

// finish waits a moment for outstanding responses, then closes the connection.
func (c *conn) finish() {
	deadline := time.Now().Add(c.srv.opts.DrainTimeout)
	for wait := time.Millisecond; c.out.outstanding() > 0 && time.Now().Before(deadline); wait = min(2*wait, 50*time.Millisecond) {
		time.Sleep(wait)
	}
	c.out.fail(net.ErrClosed)
}

// parseHeader splits a frame into header and body. kmsg does not know request headers.
func parseHeader(frame []byte) (request, error) {
	if len(frame) < minFrame {
		return request{}, &FrameError{Key: -1, Length: int64(len(frame)), Reason: "shorter than a request header"}
	}
	r := request{
		key:         int16(binary.BigEndian.Uint16(frame)),
		version:     int16(binary.BigEndian.Uint16(frame[2:])),
		correlation: int32(binary.BigEndian.Uint32(frame[4:])),
	}
	if r.key == keyAPIVersions && r.version > apiFor(r.key).max {
		return r, nil // its header may be of a form that is not known yet
	}
	b := kbin.Reader{Src: frame[8:]}
	if id := b.UnsafeNullableString(); id != nil {
		r.clientID = *id
	}
	if a := apiFor(r.key); a != nil && a.flexible(r.version) {
		kmsg.SkipTags(&b)
	}
	if !b.Ok() {
		return request{}, &FrameError{Key: r.key, Length: int64(len(frame)), Reason: "the request header is cut short"}
	}
	r.body = b.Src
	return r, nil
}

// handle answers one request. An error ends the connection.
func (c *conn) handle(ctx context.Context, log *slog.Logger, frame []byte) error {
	req, err := parseHeader(frame)
	if err != nil {
		return err
	}
	a := apiFor(req.key)
	if a == nil {
		log.Error("kafka.unknown_api", "key", req.key, "name", kmsg.NameForKey(req.key), "version", req.version,
			"client", c.describe(), "fix", "this request is not served; the client should have learned that from ApiVersions")
		return errRefused
	}
	m := c.srv.metrics.api(req.key)
	start := time.Now()
	if req.version < a.accept || req.version > a.max {
		m.Errors.Add(1)
		return c.wrongVersion(log, a, req)
	}
	m.Requests.Add(1)
	if a.key == keyProduce {
		return c.produce(ctx, log, req, start)
	}
	if a.key == keyFetch {
		return c.fetch(ctx, log, req, start)
	}
	kreq := kmsg.RequestForKey(req.key)
	kreq.SetVersion(req.version)
	if err := kreq.ReadFrom(req.body); err != nil { // copies strings: the request may outlive the frame
		m.Errors.Add(1)
		return &FrameError{Key: req.key, Length: int64(len(frame)), Reason: fmt.Sprintf("version %d: %v", req.version, err)}
	}
	req.clientID = strings.Clone(req.clientID)
	req.body = nil
	c.frames.done()
	p, err := c.out.reserve()
	if err != nil {
		return err
	}
	resp := dispatch(ctx, c, kreq, req.clientID)
	resp.SetVersion(req.version)
	answer := encode(req, resp)
	m.Seconds.observe(time.Since(start)) // first: who has the answer finds it counted
	p.send(nil, answer)
	return nil
}

// wrongVersion answers a version that is not served. For ApiVersions that is part of the protocol: the
// answer is in version 0 and names what is served. For everything else no answer can be understood.
func (c *conn) wrongVersion(log *slog.Logger, a *api, req request) error {
	if a.key == keyAPIVersions {
		p, err := c.out.reserve()
		if err != nil {
			return err
		}
		resp := &kmsg.ApiVersionsResponse{ErrorCode: codeUnsupportedVersion}
		resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{{ApiKey: a.key, MinVersion: a.min, MaxVersion: a.max}}
		req.version = 0
		p.send(nil, encode(req, resp))
		return nil
	}
	fix := "this version is not served; the client should have learned that from ApiVersions"
	if a.key == keyProduce && req.version < a.accept {
		fix = "message formats before record batches (magic 2) are not supported: use a client of Kafka 0.11 or later"
	}
	log.Error("kafka.version", "api", kmsg.NameForKey(a.key), "version", req.version, "served", fmt.Sprintf("%d-%d", a.accept, a.max),
		"client", c.describe(), "fix", fix)
	return errRefused
}

// describe names the client for logs.
func (c *conn) describe() string {
	if n := c.client.Load(); n != nil {
		return n.name + " " + n.version
	}
	return "unnamed"
}

// encode makes a whole response frame: length, header, body.
func encode(req request, resp kmsg.Response) []byte {
	size := 256
	if m, ok := resp.(*kmsg.MetadataResponse); ok { // may be megabytes, which growing would copy over and over
		for i := range m.Topics {
			size += 280 + 40*len(m.Topics[i].Partitions)
		}
	}
	buf := appendHeader(make([]byte, 0, size), req)
	buf = resp.AppendTo(buf)
	binary.BigEndian.PutUint32(buf, uint32(len(buf)-4))
	return buf
}

// appendHeader appends a length field to patch later and the response header. The header of ApiVersions
// is version 0 always, so that a client of any age can read it.
func appendHeader(dst []byte, req request) []byte {
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(req.correlation))
	if a := apiFor(req.key); req.key != keyAPIVersions && a.flexible(req.version) {
		dst = append(dst, 0) // no tags
	}
	return dst
}

// printable cuts what a client says about itself to something that may be logged.
func printable(s string) string {
	if len(s) > 64 {
		s = s[:64]
	}
	out := make([]rune, 0, len(s))
	for _, r := range s {
		if r < 0x20 || r == 0x7f || r == utf8.RuneError {
			r = '?'
		}
		out = append(out, r)
	}
	return string(out)
}

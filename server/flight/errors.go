package flight

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/runtime"
	"github.com/headrace/headrace/server/broker"
)

// grpcCodes says what each refusal is to gRPC where its HTTP status does not tell. Clients retry Unavailable.
var grpcCodes = map[broker.Code]codes.Code{
	broker.TopicExists:      codes.AlreadyExists,
	broker.OffsetOutOfRange: codes.OutOfRange,
	broker.OutcomeUnknown:   codes.Unknown,
	broker.Timeout:          codes.DeadlineExceeded,
	broker.NoRoom:           codes.ResourceExhausted,
	broker.RottenRecords:    codes.DataLoss,
	broker.WrongMethod:      codes.Unimplemented,
}

func codeOf(c broker.Code) codes.Code {
	if code, ok := grpcCodes[c]; ok {
		return code
	}
	switch c.Info().Status {
	case 400, 413, 422:
		return codes.InvalidArgument
	case 403:
		return codes.PermissionDenied
	case 404:
		return codes.NotFound
	case 409:
		return codes.FailedPrecondition
	case 503:
		return codes.Unavailable
	}
	return codes.Internal
}

// statusOf is an error as gRPC carries it: "E1001 what happened. Why, if this case has a reason of its own. What to do". A status stays what it is.
func statusOf(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	var compile *broker.CompileError
	var own *dsl.Errors
	switch {
	case errors.As(err, &compile):
		return compileStatus(compile.Errors)
	case errors.As(err, &own):
		return compileStatus(own.List)
	case errors.Is(err, runtime.ErrNotDelivered):
		err = &broker.Error{Code: broker.BadRequest, Message: strings.TrimPrefix(err.Error(), "runtime: "), Fix: "Put the rest into a pipeline or a view, and read that."}
	}
	e := broker.AsError(err)
	message, _, fix := e.Explain()
	text := e.Code.String() + " " + message + ". "
	if e.Why != "" { // of this case
		text += strings.TrimSuffix(e.Why, ".") + ". "
	}
	return status.Error(codeOf(e.Code), text+fix)
}

// maxDiagnostics is how many errors of a text a status shows: gRPC bounds what it carries.
const maxDiagnostics = 5

// compileStatus shows the errors of a text, each with its own code.
func compileStatus(list []plan.Diagnostic) error {
	if len(list) > maxDiagnostics {
		list = list[:maxDiagnostics]
	}
	text := dsl.RenderAll(list)
	return status.Error(codes.InvalidArgument, broker.DoesNotCompile.String()+" "+strings.TrimSpace(text))
}

// clip makes what came from outside fit for a message.
func clip(s string) string {
	if n := 80; len(s) > n {
		for !utf8.RuneStart(s[n]) && n > 80-utf8.UTFMax {
			n--
		}
		s = s[:n] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// grpcError says whether an error is one of the call rather than of what it carried.
func grpcError(err error) bool {
	_, ok := status.FromError(err)
	return ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

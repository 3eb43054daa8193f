package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
	"github.com/headrace/headrace/dsl"
	"github.com/headrace/headrace/dsl/plan"
	"github.com/headrace/headrace/server"
)

// Exit codes.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitDenied      = 5
	exitUnreachable = 6
	exitInvalid     = 7
	exitPartly      = 8
	exitTorn        = 9
	exitRotten      = 10
	exitInterrupted = 130
)

// A failure is how a command ends when it does not succeed: what happened, why, what to do, a code.
type failure struct {
	code string
	what string
	why  string
	fix  string
	exit int

	diagnostics []plan.Diagnostic
}

func (f *failure) Error() string { return f.code + " " + f.what }

// print writes
//
//	E2001 what happened
//	  why: ...
//	  fix: ...
func (f *failure) print(w io.Writer) {
	for i := range f.diagnostics {
		fmt.Fprintln(w, strings.TrimRight(dsl.Render(f.diagnostics[i]), "\n"))
	}
	if f.what == "" {
		return
	}
	fmt.Fprintf(w, "%s %s\n", f.code, f.what)
	if f.why != "" {
		fmt.Fprintf(w, "  why: %s\n", f.why)
	}
	if f.fix != "" {
		fmt.Fprintf(w, "  fix: %s\n", f.fix)
	}
}

// The codes of the command. E2000 is the client's for answers that are none.
var commandCodes = []codeInfo{
	{Code: "E2000", Title: "the answer is not Headrace's", Why: "Something else listens at the address.", Fix: "Check --http and --server."},
	{Code: "E2001", Title: "the command line is wrong", Why: "A flag or argument is unknown, missing or out of range.", Fix: "`headrace COMMAND --help` shows the usage with examples."},
	{Code: "E2002", Title: "the server cannot be reached", Why: "Nothing answers at the address, or not in time.", Fix: "Start one with `headrace serve --data ./data`, or name its addresses with --server and --http."},
	{Code: "E2003", Title: "a file cannot be read or written", Why: "The operating system refused.", Fix: "Check the path and its permissions."},
	{Code: "E2004", Title: "the input does not fit the topic", Why: "A CSV header lacks a required column, or a line cannot be split.", Fix: "Compare the header with `headrace topic describe TOPIC`."},
	{Code: "E2005", Title: "the records were not all accepted", Why: "The server refused some, or the connection broke.", Fix: "The summary says how many were acknowledged; the message says why the first was not."},
	{Code: "E2006", Title: "the server does not start", Why: "The message is the cause, which has no code of its own.", Fix: "See the server's log; `headrace debug log --data DIR` looks into the data directory."},
	{Code: "E2007", Title: "a check failed", Why: "What the run computed is not what was expected.", Fix: "The lines above say which."},
	{Code: "E2008", Title: "files are not formatted", Why: "`headrace fmt --check` found differences.", Fix: "Run `headrace fmt -w FILE`."},
	{Code: "E2009", Title: "the change would break readers or writers", Why: "The plan above holds a `break`.", Fix: "Undo that part of the change, or add --allow-break if it is meant."},
	{Code: "E2010", Title: "unknown error code", Why: "No error has this code.", Fix: "`headrace explain-error` without a code lists them all."},
	{Code: "E2011", Title: "the topic has no such partition", Why: "Partitions are numbered from 0.", Fix: "`headrace topic describe TOPIC` lists them."},
	{Code: "E2012", Title: "the data directory is in use", Why: "A server has it open, and two would destroy it.", Fix: "Stop the server that the message names first."},
	{Code: "E2013", Title: "the data directory is torn", Why: "The last run was cut off in the middle of a write; nothing that was acknowledged is lost.", Fix: "Start the server: it cuts off or writes again what is torn."},
	{Code: "E2014", Title: "the data directory is rotten", Why: "Bytes on the disk are no longer what was written: the disk, its controller or somebody has changed them.", Fix: "Copy the directory, then run `headrace debug log --repair`. Distrust the disk."},
	{Code: "E2015", Title: "the repair would lose acknowledged records", Why: "Nothing on this disk holds them any more.", Fix: "Restore a backup, or accept the loss with --repair --accept-loss after copying the directory."},
	{Code: "E2016", Title: "the damage cannot be repaired", Why: "What is damaged is held by no other file.", Fix: "Restore a backup of the directory, or start with an empty one."},
	{Code: "E2017", Title: "records cannot be read", Why: "The server refuses them, and asking again for ten seconds has not helped.", Fix: "`headrace status` says what is the matter with the server; so does its log."},
	{Code: "E2018", Title: "there is no space to start", Why: "The disk of the data directory is full, and what was kept for a start is used up.", Fix: "Free some space and start again; what was acknowledged is there."},
	{Code: "E2019", Title: "the address is open to other machines", Why: "There is no TLS and no authentication: anyone who reaches the address could read and write everything.", Fix: "Listen on 127.0.0.1, or add --insecure if the network is trusted."},
	{Code: "E2020", Title: "the address cannot be listened on", Why: "Another process has it, this machine does not, or its name is unknown.", Fix: "Choose another --kafka, --http or --pprof address."},
	{Code: "E2099", Title: "the command failed", Why: "The message is the underlying error's.", Fix: "Try again; if it stays, report it with the message."},
}

type codeInfo struct {
	Code  string `json:"code"`
	Title string `json:"title"`
	Why   string `json:"why"`
	Fix   string `json:"fix,omitempty"`
	// Example is a module, or a part of one, that gives the error.
	Example string `json:"example,omitempty"`
}

func fail(code string, exit int, format string, args ...any) *failure {
	f := &failure{code: code, what: fmt.Sprintf(format, args...), exit: exit}
	for _, c := range commandCodes {
		if c.Code == code {
			f.why, f.fix = c.Why, c.Fix
		}
	}
	return f
}

// serverCode is a refusal that the command foresees in the server's words.
func serverCode(code string, exit int, format string, args ...any) *failure {
	f := &failure{code: code, what: fmt.Sprintf(format, args...), exit: exit}
	for _, c := range server.Codes() {
		if c.Code == code {
			f.why, f.fix = c.Why, c.Fix
		}
	}
	return f
}

// because replaces why and fix of a code by those of the case.
func (f *failure) because(why, fix string) *failure {
	f.why, f.fix = why, fix
	return f
}

func usageError(cmd *cobra.Command, what string) *failure {
	f := fail("E2001", exitUsage, "%s", what)
	f.why = "The usage is `" + cmd.UseLine() + "`."
	f.fix = "See `" + cmd.CommandPath() + " --help`."
	return f
}

// explain turns any error into a failure.
func explain(err error) *failure {
	var (
		f       *failure
		compile *dsl.Errors
		api     *client.Error
		conn    *client.ConnectError
		path    *fs.PathError
		kafka   *kerr.Error
		refused *client.ReadError
		first   *kgo.ErrFirstReadEOF
		wire    *client.WireError
	)
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &compile):
		return invalidModule(compile.List)
	case errors.As(err, &api):
		return serverFailure(api)
	case errors.As(err, &conn):
		return fail("E2002", exitUnreachable, "%v", conn)
	case errors.As(err, &path):
		return fail("E2003", exitFailed, "%v", path)
	case errors.As(err, &wire) && wire.Code != "":
		return wireFailure(wire)
	case errors.As(err, &refused):
		return readFailure(refused)
	case errors.As(err, &kafka):
		return kafkaFailure(kafka, err)
	case errors.As(err, &first), errors.Is(err, context.DeadlineExceeded), isDialError(err):
		return fail("E2002", exitUnreachable, "%v", err)
	}
	return fail("E2099", exitFailed, "%v", err)
}

func isDialError(err error) bool {
	s := err.Error()
	return strings.Contains(s, "connection refused") || strings.Contains(s, "unable to dial") || strings.Contains(s, "no such host")
}

// invalidModule is a module text with errors.
func invalidModule(list []plan.Diagnostic) *failure {
	return &failure{exit: exitInvalid, diagnostics: list}
}

func diagnostics(in []client.Diagnostic) []plan.Diagnostic {
	out := make([]plan.Diagnostic, len(in))
	for i, d := range in {
		out[i] = plan.Diagnostic{Code: d.Code, Message: d.Message, File: d.File, Line: d.Line, Column: d.Column, Length: d.Length, Reason: d.Reason, Fix: d.Fix, LineText: d.Source}
	}
	return out
}

// serverFailure is a refusal of the HTTP API.
func serverFailure(e *client.Error) *failure {
	if len(e.Errors) > 0 {
		return invalidModule(diagnostics(e.Errors))
	}
	f := &failure{code: e.Code, what: e.Message, why: e.Why, fix: e.Fix, exit: statusExit(e.Status)}
	if e.Code == "E1036" {
		f.exit = exitRotten
	}
	return f
}

// statusExit is the exit code for a refusal's HTTP status.
func statusExit(status int) int {
	switch status {
	case 400:
		return exitUsage
	case 403:
		return exitDenied
	case 404:
		return exitNotFound
	case 409:
		return exitConflict
	case 422:
		return exitInvalid
	case 503, 504:
		return exitUnreachable
	}
	return exitFailed
}

// wireFailure is a refusal over the Kafka protocol in the server's own words, which end with the code's fix.
func wireFailure(w *client.WireError) *failure {
	f := &failure{code: w.Code, what: w.Message, exit: exitFailed}
	for _, c := range server.Codes() {
		if c.Code == w.Code {
			f.why, f.fix, f.exit = c.Why, c.Fix, statusExit(c.Status)
			f.what = strings.TrimSuffix(w.Message, ". "+c.Fix)
		}
	}
	if f.exit == exitUsage {
		f.exit = exitInvalid // what is wrong are the records, not the command line
	}
	return f
}

// readFailure is a refusal to give records, or the offsets of some.
func readFailure(e *client.ReadError) *failure {
	where := fmt.Sprintf("%s[%d]", e.Topic, e.Partition)
	if e.Partition < 0 {
		where = e.Topic
	}
	if e.Offset >= 0 {
		where = fmt.Sprintf("%s at offset %d", where, e.Offset)
	}
	switch {
	case errors.Is(e, kerr.UnknownTopicOrPartition):
		return serverCode("E1001", exitNotFound, "topic %q does not exist", e.Topic)
	case errors.Is(e, kerr.CorruptMessage):
		return serverCode("E1036", exitRotten, "%s cannot be read: the server finds the stored records rotten", where)
	}
	return fail("E2017", exitFailed, "%s cannot be read: %v", where, e.Err)
}

// kafkaFailure is a refusal by an error code of the Kafka protocol.
func kafkaFailure(k *kerr.Error, err error) *failure {
	f := fail("E2005", exitFailed, "%v", err)
	f.why, f.fix = k.Description, ""
	switch k.Code {
	case kerr.UnknownTopicOrPartition.Code:
		return serverCode("E1001", exitNotFound, "the topic does not exist")
	case kerr.TopicAlreadyExists.Code:
		f.exit = exitConflict
	case kerr.PolicyViolation.Code:
		return serverCode("E1008", exitDenied, "the server does not take records for this topic")
	case kerr.MessageTooLarge.Code:
		return serverCode("E1013", exitInvalid, "a record is larger than the topic allows")
	}
	return f
}

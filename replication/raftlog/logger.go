package raftlog

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// A logger passes raft's messages on. Everything that it does not override is the null logger's.
type logger struct {
	hclog.Logger
	to   *slog.Logger
	name string
}

// Logger returns an hclog.Logger that writes to l, one level below what the library asked for: raft calls
// an ordinary start a warning. Errors stay errors. A nil l discards everything.
func Logger(l *slog.Logger) hclog.Logger {
	if l == nil {
		return hclog.NewNullLogger()
	}
	return &logger{Logger: hclog.NewNullLogger(), to: l}
}

func level(l hclog.Level) slog.Level {
	switch {
	case l >= hclog.Error:
		return slog.LevelError
	case l == hclog.Warn:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

func (l *logger) Log(at hclog.Level, msg string, args ...any) {
	lv := level(at)
	if at <= hclog.Debug || !l.to.Enabled(context.Background(), lv) {
		return // raft's own debug output is a line per vote; it is of no use to us
	}
	l.to.Log(context.Background(), lv, "raft: "+msg, plain(args)...)
}

// plain turns hclog's lazy format values into strings.
func plain(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			if verb, ok := f[0].(string); ok {
				a = fmt.Sprintf(verb, f[1:]...)
			}
		}
		out[i] = a
	}
	return out
}

func (l *logger) Trace(string, ...any)          {}
func (l *logger) Debug(string, ...any)          {}
func (l *logger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *logger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *logger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }
func (l *logger) IsTrace() bool                 { return false }
func (l *logger) IsDebug() bool                 { return false }
func (l *logger) IsInfo() bool                  { return l.to.Enabled(context.Background(), slog.LevelDebug) }

func (l *logger) IsWarn() bool                     { return l.to.Enabled(context.Background(), slog.LevelInfo) }
func (l *logger) IsError() bool                    { return true }
func (l *logger) Name() string                     { return l.name }
func (l *logger) GetLevel() hclog.Level            { return hclog.Info }
func (l *logger) SetLevel(hclog.Level)             {}
func (l *logger) ResetNamed(n string) hclog.Logger { return l.Named(n) }

func (l *logger) With(args ...any) hclog.Logger {
	c := *l
	c.to = l.to.With(plain(args)...)
	return &c
}

func (l *logger) Named(name string) hclog.Logger {
	c := *l
	c.name = name
	return &c
}

func (l *logger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }

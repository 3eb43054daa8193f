package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/headrace/headrace/replication"
	"github.com/headrace/headrace/server"
)

func (a *app) serveCmd() *cobra.Command {
	var (
		o       server.Options
		level   string
		format  string
		pprofAt string
		memory  string
		sizes   map[string]int64
	)
	cmd := &cobra.Command{
		Use: "serve", Short: "Run a server", Args: cobra.NoArgs,
		Example: "  headrace serve --data ./data\n  headrace serve --data /var/lib/headrace --kafka 127.0.0.1:9092 --http 127.0.0.1:8090 --flight 127.0.0.1:9093",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var l slog.Level
			if err := l.UnmarshalText([]byte(level)); err != nil {
				return usageError(cmd, "--log-level "+level+": want debug, info, warn or error")
			}
			var h slog.Handler = slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: l})
			switch format {
			case "text":
			case "json":
				h = slog.NewJSONHandler(a.err, &slog.HandlerOptions{Level: l})
			default:
				return usageError(cmd, "--log-format "+format+": want text or json")
			}
			if o.DefaultPartitions < 1 || o.DefaultPartitions > replication.MaxTopicPartitions {
				return usageError(cmd, fmt.Sprintf("--default-partitions %d: want 1 to %d", o.DefaultPartitions, replication.MaxTopicPartitions))
			}
			o.Logger, o.Version = slog.New(h), version
			if err := tune(cmd, &o, sizes); err != nil {
				return err
			}
			if err := setMemory(cmd, &o, memory); err != nil {
				return err
			}
			if pprofAt != "" {
				stop, err := servePprof(pprofAt)
				if err != nil {
					return err
				}
				defer stop()
			}
			s, err := startServer(o)
			if err != nil {
				return err
			}
			web, try := "none", ""
			if s.HTTPAddr() != "" {
				web = "http://" + s.HTTPAddr()
				try = fmt.Sprintf("  headrace topic create greetings --server %s --http %s\n", s.KafkaAddr(), s.HTTPAddr())
			}
			flight := ""
			if s.FlightAddr() != "" {
				flight = "  flight grpc://" + s.FlightAddr() + "\n"
			}
			fmt.Fprintf(a.err, `headrace %s serves
  kafka  %s (advertised %s)
  http   %s
%s  data   %s
try
%s  kcat -b %s -L
`, version, s.KafkaAddr(), s.Advertised(), web, flight, o.Data, try, s.Advertised())
			select {
			case <-cmd.Context().Done():
			case err = <-s.Failed():
			}
			return errors.Join(err, s.Close())
		},
	}
	cmd.Flags().StringVar(&o.Data, "data", env("HEADRACE_DATA_DIR", "./headrace-data"), "data directory (env HEADRACE_DATA_DIR)")
	cmd.Flags().StringVar(&o.KafkaAddr, "kafka", defaultKafka, "listen address of the Kafka front")
	cmd.Flags().StringVar(&o.HTTPAddr, "http", defaultHTTP, "listen address of the HTTP front, - for none: then most of this command's other commands cannot reach the server")
	cmd.Flags().StringVar(&o.FlightAddr, "flight", "", "listen address of the Arrow Flight front, such as 127.0.0.1:9093 (default none)")
	cmd.Flags().StringVar(&o.Advertised, "advertise", "", "address that Kafka clients are told to use (default: the listen address)")
	cmd.Flags().BoolVar(&o.Insecure, "insecure", false, "allow addresses that other machines can reach, without TLS or authentication")
	cmd.Flags().BoolVar(&o.AutoCreateTopics, "auto-create-topics", false, "create topics that clients ask for")
	cmd.Flags().Int32Var(&o.DefaultPartitions, "default-partitions", 1, "partitions of topics that do not say, as when Kafka clients create them")
	cmd.Flags().StringVar(&memory, "memory", "", "memory for records, such as 512MiB (default 1GiB, or half of what there is)")
	cmd.Flags().BoolVar(&o.Node.Data.WALDirect, "wal-direct", false, "write the log past the page cache (O_DIRECT and O_DSYNC)")
	cmd.Flags().DurationVar(&o.OffsetsRetention, "offsets-retention", server.DefaultOffsetsRetention, "how long a consumer group's offsets stay after its last member has left and its last commit; negative: for ever")
	cmd.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	cmd.Flags().StringVar(&format, "log-format", "text", "text or json")
	cmd.Flags().StringVar(&pprofAt, "pprof", "", "address of Go's profiler, a loopback one; default none")
	cmd.Flags().StringToInt64Var(&sizes, "tune", nil, "sizes of the log, for tests")
	_ = cmd.Flags().MarkHidden("tune") // it exists
	return cmd
}

// setMemory gives the server its budget, and Go's collector a soft limit of the same size, unless GOMEMLIMIT sets one.
func setMemory(cmd *cobra.Command, o *server.Options, text string) error {
	o.Memory = server.DefaultMemory()
	if text != "" {
		n, err := humanize.ParseBytes(text)
		if err != nil || n > math.MaxInt64 {
			return usageError(cmd, fmt.Sprintf("--memory %s: want a size such as 512MiB", text))
		}
		if o.Memory = int64(n); o.Memory < server.MinMemory {
			return usageError(cmd, fmt.Sprintf("--memory %s: want at least %s", text, humanize.IBytes(server.MinMemory)))
		}
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(o.Memory)
	}
	return nil
}

// startServer starts a server and explains why it does not.
func startServer(o server.Options) (*server.Server, error) {
	s, err := server.Start(o)
	if err != nil {
		return nil, startFailure(err, o.Data)
	}
	return s, nil
}

// startFailure names why a server does not start by the code of its cause.
func startFailure(err error, data string) *failure {
	failed := func(code string, exit int) *failure {
		return fail(code, exit, "the server does not start: %s", strings.TrimPrefix(err.Error(), "server: "))
	}
	var listen *server.ListenError
	switch {
	case errors.Is(err, server.ErrAddress):
		return failed("E2001", exitUsage).because("An address is host:port.", "Correct --kafka, --http, --flight or --advertise, such as --kafka 127.0.0.1:9092.")
	case errors.Is(err, server.ErrInsecure):
		return failed("E2019", exitDenied)
	case errors.As(err, &listen):
		return failed("E2020", exitFailed)
	case errors.Is(err, replication.ErrInUse):
		return failed("E2012", exitConflict)
	case errors.Is(err, replication.ErrIdentity):
		return failed("E2016", exitRotten).because("The file `identity` is damaged or missing, and nothing else says whose directory it is.", "Restore a backup of the directory, or start with an empty one.")
	case errors.Is(err, replication.ErrRotten):
		f := failed("E2014", exitRotten)
		f.fix = fmt.Sprintf("See what is damaged with `headrace debug log --data %[1]s`; copy the directory, then run `headrace debug log --data %[1]s --repair`, or restore a backup. Distrust the disk.", data)
		return f
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return failed("E2018", exitFailed)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return failed("E2003", exitFailed).because("The operating system does not let this user write there.",
			fmt.Sprintf("Give %s and all in it to the user that runs the server, or choose another --data directory.", data))
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EEXIST):
		return failed("E2003", exitFailed).because("There is a file where a directory is to be.", "Choose another --data directory.")
	}
	return failed("E2006", exitFailed)
}

func servePprof(addr string) (stop func(), err error) {
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		return nil, fail("E2001", exitUsage, "--pprof %s: want a loopback address with a port", addr)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fail("E2020", exitFailed, "--pprof %s: %v", addr, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(ln) }() // ends with Close
	fmt.Fprintf(os.Stderr, "profiler at http://%s/debug/pprof/\n", ln.Addr())
	return func() { _ = s.Close() }, nil
}

func (a *app) statusCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Short: "Show whether the server is ready, and why not", Args: cobra.NoArgs,
		Long: `Status shows whether the server is ready and, if not, why; the exit code is then 6. Notes name stored records that
were found rotten: everything else is served.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.api().Status(cmd.Context())
			if err != nil {
				return err
			}
			notReady := func() error {
				if s.Ready {
					return nil
				}
				return serverCode("E1032", exitUnreachable, "the server is not ready").because(strings.Join(s.Reasons, "; "), "See the server's log; retry once the reason is gone.")
			}
			if done, err := a.asJSON(s); done {
				return errors.Join(err, notReady())
			}
			ready := "ready"
			if !s.Ready {
				ready = "not ready: " + strings.Join(s.Reasons, "; ")
			}
			fmt.Fprintf(a.out, "server   %s\nversion  %s\ncluster  %s, node %d\nkafka    %s\n", ready, s.Version, s.ClusterID, s.NodeID, s.Kafka)
			for _, note := range s.Notes {
				fmt.Fprintf(a.out, "note     %s\n", note)
			}
			return notReady()
		},
	}
	a.outputFlag(cmd)
	return cmd
}

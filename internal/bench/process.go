package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/headrace/headrace/client"
)

// A process is a server of its own: this program, started again as "serve".
type process struct {
	cmd         *exec.Cmd
	kafka, http string
	ready       time.Duration // from the start of the process to /readyz
}

// freePorts asks the system for two addresses that nobody uses now.
func freePorts() (a, b string, err error) {
	one, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", fmt.Errorf("bench: %w", err)
	}
	defer one.Close()
	two, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", fmt.Errorf("bench: %w", err)
	}
	defer two.Close()
	return one.Addr().String(), two.Addr().String(), nil
}

// startProcess starts a server on a data directory and waits until it is ready.
func startProcess(ctx context.Context, data string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	p := &process{}
	if p.kafka, p.http, err = freePorts(); err != nil {
		return nil, err
	}
	p.cmd = exec.Command(self, "serve", "--data", data, "--kafka", p.kafka, "--http", p.http, "--log-level", "warn")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is this process's to handle
	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start a server: %w", err)
	}
	for {
		resp, err := http.Get("http://" + p.http + "/readyz") //nolint:noctx // a loopback probe
		if err == nil {
			ok := resp.StatusCode == http.StatusOK
			_ = resp.Body.Close()
			if ok {
				p.ready = time.Since(began)
				return p, nil
			}
		}
		if ctx.Err() != nil || time.Since(began) > 2*time.Minute {
			return nil, errors.Join(errors.New("bench: the server does not become ready"), ctx.Err(), p.kill())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// kill ends the process at once, as a crash would.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	_ = p.cmd.Wait() // it was killed: the error says so
	return nil
}

// stop ends the process cleanly.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	_ = p.cmd.Wait() // ends with the code of an interrupt
	return nil
}

// Partitions measures the start and the idle memory of a server with many topics and one topic of many
// partitions. Defaults: 10,000 topics and 1,000 partitions.
func Partitions(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("partitions", true); err != nil {
		return nil, err
	}
	o.Topics, o.Partitions = cmp.Or(o.Topics, 10_000), cmp.Or(o.Partitions, 1000)
	dir, err := os.MkdirTemp(o.Dir, "headrace-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	data := filepath.Join(dir, "data")
	r := &Report{Name: "partitions", Topics: o.Topics + 1, Partitions: o.Topics + o.Partitions}
	if err := r.surroundings(dir); err != nil {
		return nil, err
	}
	p, err := startProcess(ctx, data)
	if err != nil {
		return nil, err
	}
	o.say("partitions: %d topics, and one topic of %d partitions", o.Topics, o.Partitions)
	began := time.Now()
	if err := createMany(ctx, p.kafka, o); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	o.say("created in %.1f s", time.Since(began).Seconds())
	if err := p.stop(); err != nil {
		return nil, err
	}
	if p, err = startProcess(ctx, data); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	r.StartMs = ms(p.ready)
	time.Sleep(3 * time.Second) // idle
	r.RSSBytes = rss(p.cmd.Process.Pid)
	r.Seconds = time.Since(began).Seconds()
	return r, nil
}

func createMany(ctx context.Context, seeds string, o Options) error {
	k, err := client.Kafka(seeds)
	if err != nil {
		return err
	}
	defer k.Close()
	for from := 0; from < o.Topics; from += 500 {
		var names []string
		for i := from; i < min(from+500, o.Topics); i++ {
			names = append(names, fmt.Sprintf("bench-topic-%06d", i))
		}
		if err := client.CreateTopics(ctx, k, 1, names...); err != nil {
			return fmt.Errorf("bench: create topics: %w", err)
		}
	}
	if err := client.CreateTopics(ctx, k, int32(o.Partitions), "bench-wide"); err != nil {
		return fmt.Errorf("bench: create a wide topic: %w", err)
	}
	return nil
}

// Recovery kills a server under full load and measures how long the next start takes until it is ready,
// and that nothing acknowledged is missing. Defaults: 5 s of load with records of 100 B.
func Recovery(ctx context.Context, o Options) (rep *Report, err error) {
	if err := o.validate("recovery", true); err != nil {
		return nil, err
	}
	o.Size, o.Seconds = cmp.Or(o.Size, 100), cmp.Or(o.Seconds, 5)
	dir, err := os.MkdirTemp(o.Dir, "headrace-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	data := filepath.Join(dir, "data")
	r := &Report{Name: "recovery", RecordBytes: o.Size}
	if err := r.surroundings(dir); err != nil {
		return nil, err
	}
	p, err := startProcess(ctx, data)
	if err != nil {
		return nil, err
	}
	const topic = "bench-recovery"
	if _, err := client.NewAPI(p.http).CreateTopic(ctx, client.TopicSpec{Name: topic, Partitions: 1}); err != nil {
		return nil, errors.Join(err, p.kill())
	}
	o.say("recovery: full load for %d s, then kill -9", o.Seconds)
	acked, err := load(ctx, p, topic, o)
	if err != nil {
		return nil, err
	}
	if p, err = startProcess(ctx, data); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	r.StartMs = ms(p.ready)
	r.RSSBytes = rss(p.cmd.Process.Pid)
	t, err := client.NewAPI(p.http).Topic(ctx, topic)
	if err != nil {
		return nil, err
	}
	if t.Records == nil || *t.Records < acked {
		got, _ := json.Marshal(t.Ranges)
		return nil, fmt.Errorf("bench: %d records were acknowledged, the topic holds %s", acked, got)
	}
	r.Messages, r.Seconds = acked, float64(o.Seconds)
	return r, nil
}

// load produces until the server is killed in the middle of it, and counts what was acknowledged.
func load(ctx context.Context, p *process, topic string, o Options) (int64, error) {
	k, err := client.Kafka(p.kafka, append(client.ProducerOpts(), kgo.DefaultProduceTopic(topic))...)
	if err != nil {
		return 0, errors.Join(err, p.kill())
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(o.Seconds)*time.Second)
	defer cancel()
	var acked atomic.Int64
	value := payload(o.Size)
	for ctx.Err() == nil {
		k.Produce(ctx, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
			if err == nil {
				acked.Add(1)
			}
		})
	}
	if err := p.kill(); err != nil {
		return 0, err
	}
	return acked.Load(), nil
}
